//! Folders of a vault, of the bytes behind the seal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_backup::fuzzing::tree;

fuzz_target!(|input: &[u8]| tree(input));
