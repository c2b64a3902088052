//! External programs that tests compare with, installed once in a folder that is cached between test runs.
//!
//! Without a network or the installation tools, the test reports that it was skipped, bypassing the output capture of
//! tests.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Disconnects the standard streams of a command.
pub fn silence_command(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// Returns true if a command runs and succeeds.
pub fn command_succeeds(command: &mut Command) -> bool {
    silence_command(command).status().is_ok_and(|status| status.success())
}

/// Reports that something was skipped, and its requirements besides a network.
pub fn report_skip(tool: &str, takes: &str) {
    let message =
        format!("skipped: {tool}, which cannot be installed: it takes {takes} and a network\n");
    std::io::stderr().write_all(message.as_bytes()).ok();
}

/// Installs something into the folder `home` with `install`, once for all test runs; returns `false` if that fails.
pub fn install_once(home: &Path, install: impl Fn(&Path) -> bool) -> bool {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !home.is_dir() {
        // Concurrent processes install into separate folders, and the first one renamed into place stays. So a partial
        // installation is never used.
        let mut making = home.as_os_str().to_owned();
        making.push(format!("-new-{}", std::process::id()));
        let making = Path::new(&making);
        if install(making) {
            std::fs::rename(making, home).ok();
        }
        std::fs::remove_dir_all(making).ok();
    }
    home.is_dir()
}
