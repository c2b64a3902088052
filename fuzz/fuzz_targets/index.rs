//! Index files: whatever the entries say, a look-up ends and stays inside of the file.
//!
//! Input: the file; the checksum of its header is made right before it is read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tympan_store::fuzzing::fuzz_index(data));
