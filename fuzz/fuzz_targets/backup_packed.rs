//! What is compressed in a vault. Input: the length that an index tells in four bytes, and the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_backup::fuzzing::packed;

fuzz_target!(|input: &[u8]| packed(input));
