//! What a client sends first, as the lane for kept answers reads it: it sees one end of a request, or leaves it to hyper.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::check_fast_path;

fuzz_target!(|input: &[u8]| check_fast_path(input));
