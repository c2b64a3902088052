//! Programs that run to their end, with what they took: GNU time tells it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Outcome;

/// What a program took, with those that it started and waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// Seconds of the clock.
    pub(crate) wall: f64,
    /// Seconds of CPU.
    pub(crate) cpu: f64,
    /// The most memory that one of them had, in MiB.
    pub(crate) peak: f64,
}

/// A program and its arguments, to be run as often as wanted.
#[derive(Debug)]
pub(crate) struct Timed {
    command: Command,
    name: String,
}

impl Timed {
    /// Names a program. It finds no settings of a user, and keeps what it keeps below `home`.
    pub(crate) fn new(program: impl AsRef<OsStr>, home: &Path) -> Self {
        let name = program.as_ref().to_string_lossy().into_owned();
        let mut command = Command::new("/usr/bin/time");
        command.args(["-o", "/dev/stderr", "-f", "\ntaken %e %U %S %M"]).arg(program);
        command.env("HOME", home).env("XDG_CACHE_HOME", home.join("cache"));
        command.env("BORG_BASE_DIR", home.join("borg")).env("BORG_PASSPHRASE", "pw");
        command.env("RESTIC_PASSWORD", "pw").env("TYMPAN_VAULT_PASSWORD", "pw");
        command.env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self { command, name }
    }

    /// Adds arguments.
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets the folder that the program works in.
    pub(crate) fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Runs it.
    ///
    /// # Errors
    /// If it cannot be run, or says that it failed.
    pub(crate) fn run(mut self) -> Outcome<Taken> {
        let output = self.command.output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("`{}` failed: {}", self.name, text.trim()).into());
        }
        let line = text.lines().rev().find_map(|line| line.strip_prefix("taken "));
        let numbers: Vec<f64> =
            line.unwrap_or_default().split(' ').filter_map(|number| number.parse().ok()).collect();
        match numbers.as_slice() {
            [wall, user, system, kib] => {
                Ok(Taken { wall: *wall, cpu: user + system, peak: kib / 1024.0 })
            }
            _ => Err("GNU time is not installed as /usr/bin/time".into()),
        }
    }
}
