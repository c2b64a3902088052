//! The program file of this process, for child processes.

/// The program file of this process, by the kernel's name for it.
///
/// After an upgrade, the path that the program was started with may refer to another version or not exist. Workers that
/// take parts of a job must have the version of the process that distributes them, so they are started from the open
/// file (proc(5), `exe`).
pub const PROGRAM_FILE: &str = "/proc/self/exe";
