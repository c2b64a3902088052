//! Small files of a vault and around it. The first byte says which: `c`onfig, `k`ey, `s`napshot, `l`ock, list of a `r`est
//! server, what a clone stands on (`b`ase), `j`ournal of runs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_backup::fuzzing::file;

fuzz_target!(|input: &[u8]| file(input));
