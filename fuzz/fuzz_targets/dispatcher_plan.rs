//! Conditions and ranges of a request, one header per line: a part that is promised lies inside of the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::conditions;

fuzz_target!(|input: &[u8]| conditions(input));
