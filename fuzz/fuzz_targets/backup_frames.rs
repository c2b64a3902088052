//! Files of frames, imported into a store in memory: no ref is made of what lacks its root.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_backup::fuzzing::frames;

fuzz_target!(|input: &[u8]| frames(input));
