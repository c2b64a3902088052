//! What a client of HTTP/2 sends, as the lane reads it: frames, compressed fields, windows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::check_http2;

fuzz_target!(|input: &[u8]| check_http2(input));
