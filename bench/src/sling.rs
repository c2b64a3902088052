//! The peer Apache Sling, driven by the peers' own script.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// How often it is filled before that counts as failed, and the time between.
const FILLS: usize = 6;
const BETWEEN_FILLS: Duration = Duration::from_secs(10);

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
        // What a Sling before has installed is refused by the next one as not unique; what was downloaded is kept elsewhere.
        let launcher = work.join("launcher");
        if launcher.exists() {
            std::fs::remove_dir_all(launcher)?;
        }
        eprintln!("starting Apache Sling, which takes minutes");
        let mut sling = Self { script, work, address: free_address()?, pid: 0 };
        sling.run("start")?;
        sling.pid = std::fs::read_to_string(sling.work.join("pid"))?.trim().parse()?;
        sling.fill()?;
        Ok(sling)
    }

    /// Fills it with the bench pages. A new home answers before all of its parts have begun, so that one attempt may be too
    /// early; what is there already is put there again.
    fn fill(&self) -> Outcome<()> {
        for _ in 1..FILLS {
            if self.run("fill").is_ok() {
                return Ok(());
            }
            std::thread::sleep(BETWEEN_FILLS);
        }
        self.run("fill")
    }

    /// Returns how long it took until Sling answered, as its script tells, in seconds, and its resident memory at that
    /// time, in MiB.
    pub(crate) fn start_costs(&self) -> Option<(f64, f64)> {
        let log = std::fs::read_to_string(self.work.join("start.log")).ok()?;
        let line = log.get(log.rfind("ready after")?..)?;
        let number_after = |word: &str| {
            let mut words = line.split_whitespace().skip_while(|found| *found != word);
            words.nth(1)?.parse().ok()
        };
        Some((number_after("after")?, number_after("resident")?))
    }

    /// Returns a path of Sling as a target of load.
    pub(crate) fn target(&self, path: &str) -> Target {
        Target { address: self.address, path: path.to_owned(), pid: self.pid }
    }

    /// Uploads a package into a folder that the installer watches, and returns the seconds until it is unpacked. `stored` is
    /// where Sling keeps the package.
    ///
    /// # Errors
    /// If it is not unpacked within `limit`.
    pub(crate) fn install(&self, package: &Path, stored: &str, limit: Duration) -> Outcome<f64> {
        let name = package.file_name().and_then(|name| name.to_str()).ok_or("it has no name")?;
        self.curl(&["-F", "jcr:primaryType=sling:Folder"], "/apps/bench/install")?;
        let begin = Instant::now();
        let form = format!("{name}=@{};type=application/zip", package.display());
        self.curl(&["-F", &form], "/apps/bench/install")?;
        let definition = format!("{stored}/jcr:content/vlt:definition.json");
        while !self.curl(&[], &definition).is_ok_and(|told| told.contains("lastUnpacked")) {
            if begin.elapsed() > limit {
                return Err(format!("Sling did not install `{}`", package.display()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Puts a file into a folder, which is made.
    ///
    /// # Errors
    /// If Sling refuses it.
    pub(crate) fn put_file(&self, folder: &str, file: &Path, media_type: &str) -> Outcome<()> {
        let name = file.file_name().and_then(|name| name.to_str()).ok_or("it has no name")?;
        self.curl(&["-F", "jcr:primaryType=sling:Folder"], folder)?;
        let form = format!("{name}=@{};type={media_type}", file.display());
        self.curl(&["-F", &form], folder).map(drop)
    }

    /// Puts the node of a JSON file below `parent`, in place of one with this name.
    ///
    /// # Errors
    /// If Sling refuses it.
    pub(crate) fn import_json(&self, parent: &str, name: &str, file: &Path) -> Outcome<()> {
        let (name, file) = (format!(":name={name}"), format!(":contentFile=@{}", file.display()));
        let mut form = Vec::new();
        for field in [":operation=import", ":contentType=json", ":replace=true", &name, &file] {
            form.extend(["-F", field]);
        }
        self.curl(&form, parent).map(drop)
    }

    /// Removes a node, if there is one.
    ///
    /// # Errors
    /// If Sling does not answer.
    pub(crate) fn remove(&self, path: &str) -> Outcome<()> {
        match self.curl(&[], &format!("{path}.json")) {
            Ok(_) => self.curl(&["-F", ":operation=delete"], path).map(drop),
            Err(_) => Ok(()),
        }
    }

    /// Fails if there is nothing at a path.
    ///
    /// # Errors
    /// What Sling answers.
    pub(crate) fn require(&self, path: &str) -> Outcome<()> {
        self.curl(&[], path).map(drop)
    }

    /// Asks as an administrator; gives the body.
    fn curl(&self, arguments: &[&str], path: &str) -> Outcome<String> {
        let mut command = Command::new("curl");
        command.args(["-sf", "--max-time", "120", "-u", "admin:admin"]).args(arguments);
        let output = command.arg(format!("http://{}{path}", self.address)).output()?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("Sling: {path}: curl ended with {}", output.status).into())
        }
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
