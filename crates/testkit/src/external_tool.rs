//! Programs of others that tests compare with: installed once below a folder that tests keep.
//!
//! Without a network, or what it takes to install one, the test says that it was skipped, past what catches the output of
//! tests.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Lets a command say nothing and hear nothing.
pub fn silence_command(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// Tells whether a command runs and succeeds.
pub fn command_succeeds(command: &mut Command) -> bool {
    silence_command(command).status().is_ok_and(|status| status.success())
}

/// Says that something was skipped, and what it takes besides a network.
pub fn report_skip(what: &str, takes: &str) {
    let said =
        format!("skipped: {what}, which cannot be installed: it takes {takes} and a network\n");
    std::io::stderr().write_all(said.as_bytes()).ok();
}

/// Installs something into the folder `home` by `install`, once for all runs; `false` if that cannot be done.
pub fn install_once(home: &Path, install: impl Fn(&Path) -> bool) -> bool {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !home.is_dir() {
        // Another process that runs at the same time makes its own, and the first one in place stays. So half of one is
        // never used.
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
