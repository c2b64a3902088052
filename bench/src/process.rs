//! Programs that a row starts: pinned to a core, waited for, stopped by their process id.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;

/// A started program; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    errors: PathBuf,
}

/// Makes a command that runs pinned to a core, where `taskset` is installed.
pub(crate) fn pinned(core: usize, program: impl AsRef<OsStr>) -> Command {
    if is_installed("taskset") {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(core.to_string()).arg(program);
        command
    } else {
        Command::new(program)
    }
}

/// Tells whether a program stands in the search path or where servers are installed.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.any(|folder| folder.join(program).is_file())
}

/// Finds a script of the peers: in `TYMPAN_PEERS`, or beside the workspace.
pub(crate) fn peer_script(name: &str) -> Outcome<PathBuf> {
    let folder = match std::env::var_os("TYMPAN_PEERS") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/peers"),
    };
    let script = folder.join(name);
    if script.is_file() {
        Ok(script)
    } else {
        Err(format!("there is no `{}`; set TYMPAN_PEERS", script.display()).into())
    }
}

impl Process {
    /// Starts a command; its errors go to a file in `folder`.
    pub(crate) fn start(mut command: Command, folder: &Path) -> Outcome<Self> {
        let errors = folder.join("errors.log");
        let sink = File::options().create(true).append(true).open(&errors)?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(sink).spawn()?;
        let (send, lines) = channel();
        if let Some(output) = child.stdout.take() {
            // Ends with the process's output; nobody needs to wait for it.
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                lines.take_while(|line| send.send(line.clone()).is_ok()).for_each(drop);
            });
        }
        Ok(Self { child, lines, errors })
    }

    /// Returns the process's id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line `ready` and returns the lines before it.
    pub(crate) fn wait_until_ready(&mut self, limit: Duration) -> Outcome<Vec<String>> {
        let end = Instant::now() + limit;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line == "ready" => return Ok(seen),
                Ok(line) => seen.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("not ready after {} s", limit.as_secs()).into());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("it ended: {}", self.last_errors()).into());
                }
            }
        }
    }

    /// Waits until something accepts connections at an address.
    pub(crate) fn wait_for_port(&mut self, address: SocketAddr, limit: Duration) -> Outcome<()> {
        let end = Instant::now() + limit;
        while std::net::TcpStream::connect(address).is_err() {
            if self.child.try_wait()?.is_some() {
                return Err(format!("it ended: {}", self.last_errors()).into());
            }
            if Instant::now() > end {
                return Err(
                    format!("nothing listens on {address} after {} s", limit.as_secs()).into()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Asks the process to end and waits for it; after ten seconds it is killed.
    pub(crate) fn stop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            // It may have ended by itself meanwhile.
            kill_process(pid, Signal::TERM).ok();
        }
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }

    fn last_errors(&self) -> String {
        let text = std::fs::read_to_string(&self.errors).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the address in a line such as `publish listens on http://127.0.0.1:4503`.
pub(crate) fn address_in(lines: &[String]) -> Outcome<SocketAddr> {
    let address = lines.iter().find_map(|line| {
        let (_, url) = line.split_once("listens on ")?;
        url.trim().split_once("://")?.1.parse().ok()
    });
    address.ok_or_else(|| "the program did not tell its address".into())
}

/// Returns an address with a port that is free right now.
pub(crate) fn free_address() -> Outcome<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
