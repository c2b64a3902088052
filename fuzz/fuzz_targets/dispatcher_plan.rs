//! Conditions and ranges of a request, one header per line: a part that is promised lies inside of the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::check_conditional_request;

fuzz_target!(|input: &[u8]| check_conditional_request(input));
