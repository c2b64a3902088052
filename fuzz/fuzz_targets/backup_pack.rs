//! Packs: where the header is, and what it lists.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_backup::fuzzing::pack;

fuzz_target!(|input: &[u8]| pack(input));
