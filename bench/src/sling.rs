//! The peer Apache Sling, driven by the peers' own script.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Outcome;
use crate::context::SERVER_CORE;
use crate::load::Target;
use crate::process::{free_address, is_installed, peer_script, pinned};

/// The bench page in Sling, from the same JSON.
pub(crate) const PAGE: &str = "/content/bench/f3/p345.html";
/// The page's data.
pub(crate) const JSON: &str = "/content/bench/f3/p345.json";
/// The file of 102,400 bytes.
pub(crate) const BINARY: &str = "/content/bench/bin100k.bin";

/// Downloading and starting takes minutes the first time.
const START_LIMIT: Duration = Duration::from_secs(900);

/// A running Sling; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Sling {
    script: PathBuf,
    work: PathBuf,
    address: SocketAddr,
    pid: u32,
}

impl Sling {
    /// Starts Sling and fills it with the bench pages. Downloads stay in `work`.
    ///
    /// # Errors
    /// If the script or what it needs is missing, or Sling does not start.
    pub(crate) fn start(work: PathBuf) -> Outcome<Self> {
        let script = peer_script("sling.sh")?;
        for tool in ["java", "mvn", "curl", "python3", "timeout"] {
            if !is_installed(tool) {
                return Err(format!("Sling needs `{tool}`, which is not installed").into());
            }
        }
        std::fs::create_dir_all(&work)?;
        eprintln!("starting Apache Sling, which takes minutes");
        let mut sling = Self { script, work, address: free_address()?, pid: 0 };
        sling.run("start")?;
        sling.pid = std::fs::read_to_string(sling.work.join("pid"))?.trim().parse()?;
        sling.run("fill")?;
        Ok(sling)
    }

    /// Returns a path of Sling as a target of load.
    pub(crate) fn target(&self, path: &str) -> Target {
        Target { address: self.address, path: path.to_owned(), pid: self.pid }
    }

    fn run(&self, verb: &str) -> Outcome<()> {
        let mut command = pinned(SERVER_CORE, "timeout");
        command.arg(START_LIMIT.as_secs().to_string()).arg("bash").arg(&self.script).arg(verb);
        let log = std::fs::File::create(self.work.join(format!("{verb}.log")))?;
        let status = self.prepare(&mut command).stdout(log.try_clone()?).stderr(log).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!(
                "`sling.sh {verb}` failed; see `{}`",
                self.work.join(format!("{verb}.log")).display()
            )
            .into())
        }
    }

    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("WORK", &self.work)
            .env("PORT", self.address.port().to_string())
            .stdin(Stdio::null())
    }
}

impl Drop for Sling {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.run("stop").ok();
    }
}
