//! What siblings tell, and the log of it: read, written and read again they say the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::check_flush_propagation;

fuzz_target!(|input: &[u8]| check_flush_propagation(input));
