//! Records and packs of them: what a scan finds are whole records, each once, whatever the bytes.
//!
//! Input: records one after the other; their checksums are made right before they are read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tympan_store::fuzzing::fuzz_records(data));
