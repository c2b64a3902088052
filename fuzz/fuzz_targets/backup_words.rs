//! What people write about backups: exclude patterns and a path (the first two lines), rules of retention, addresses of
//! vaults, known hosts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_backup::fuzzing::words;

fuzz_target!(|text: &str| words(text));
