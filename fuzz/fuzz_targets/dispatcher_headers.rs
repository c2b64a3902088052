//! Header files beside cache files: read, written and read again they say the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::check_header_file;

fuzz_target!(|input: &[u8]| check_header_file(input));
