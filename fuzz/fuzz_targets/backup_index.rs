//! Index files of a vault: whatever they list, a look-up ends and finds it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_backup::fuzzing::index;

fuzz_target!(|input: &[u8]| index(input));
