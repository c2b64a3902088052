//! The program file that this process runs, for processes that it starts.

/// The file that this process was started from, by the kernel's name for it.
///
/// The path by which the program was started may name another version after an upgrade, or nothing. Workers that take
/// parts of a job have to be of the version that hands them out, so they start from the open file (proc(5), `exe`).
pub(crate) const PROGRAM_FILE: &str = "/proc/self/exe";
