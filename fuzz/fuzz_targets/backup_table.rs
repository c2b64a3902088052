//! Tables of a source's folders.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_backup::fuzzing::table;

fuzz_target!(|input: &[u8]| table(input));
