//! The program under test, as `tympan lab` starts it.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

/// The built program.
pub(crate) const LAB_PROGRAM: &str = env!("CARGO_BIN_EXE_tympan-lab");

/// Returns the command `tympan lab`.
pub(crate) fn lab_command() -> Command {
    let mut command = Command::new(LAB_PROGRAM);
    command.arg0("tympan lab").env("TYMPAN_LOG", "warn");
    command
}

/// Runs the program to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    lab_command().args(arguments).output().unwrap()
}

/// Runs the program, which must succeed, and returns its standard output.
pub(crate) fn run_ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
