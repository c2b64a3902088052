//! The headers of a response about caching: whatever they hold, its terms are within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::check_cache_control;

fuzz_target!(|input: &[u8]| check_cache_control(input));
