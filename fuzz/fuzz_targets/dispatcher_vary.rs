//! `Vary` and the headers that it names: a request matches its own response, whatever they hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::check_vary;

fuzz_target!(|input: &[u8]| check_vary(input));
