//! The command of a child process, and its end.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Maximum time for a process to exit after it closed its channel.
const PROCESS_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A command that starts a program, with the arguments that precede the program's own.
#[derive(Debug, Clone)]
pub struct ProgramCommand {
    /// The program, usually the current executable.
    pub program: PathBuf,
    /// Arguments that select the function of the program.
    pub arguments: Vec<OsString>,
}

/// Returns true if a process was killed from outside, by a signal that no fault of a file causes.
pub(crate) fn is_killed_externally(status: ExitStatus) -> bool {
    const HANG_UP: i32 = 1;
    const INTERRUPT: i32 = 2;
    const QUIT: i32 = 3;
    const KILL: i32 = 9;
    const TERMINATE: i32 = 15;
    matches!(status.signal(), Some(HANG_UP | INTERRUPT | QUIT | KILL | TERMINATE))
}

/// Waits for a process whose channel is closed. If it does not exit, it is killed and `None` is returned.
pub(crate) fn wait_for_exit(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + PROCESS_EXIT_TIMEOUT;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}
