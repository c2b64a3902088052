//! URL paths in path, selectors, extension and suffix: nothing of a path is lost.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::fuzzing::check_url_path;

fuzz_target!(|input: &str| check_url_path(input));
