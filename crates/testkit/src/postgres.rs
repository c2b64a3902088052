//! A PostgreSQL server for tests: Debian's programs, a temporary directory, a free port.
//!
//! One server serves all tests of a binary; each test has a schema or database of its own. The directory is made by
//! `initdb` once per server, and the server ends with the process that started it.
//!
//! On failure: a test that finds no PostgreSQL fails and says which package to install. Nothing is skipped.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use tempfile::TempDir;

/// The name of the only user, who may do everything; no password is asked.
const USER: &str = "tympan";
/// A server that does not start in this time never does.
const START: Duration = Duration::from_secs(60);

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct PostgresServer {
    dir: TempDir,
    port: u16,
    settings: Vec<String>,
    child: Option<Child>,
}

impl PostgresServer {
    /// Returns the server that the tests of this binary share.
    ///
    /// # Panics
    /// If there is no PostgreSQL on the machine, or it does not start.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(|| {
            stop_at_exit();
            Self::start(&["max_connections=200"])
        })
    }

    /// Starts a server of one test's own, with settings such as `max_connections=20`.
    ///
    /// # Panics
    /// As [`PostgresServer::shared`].
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("tympan-postgres").tempdir().expect("a directory");
        give_away(dir.path());
        let data = dir.path().join("data");
        let made = command("initdb")
            .args(["--username", USER, "--auth", "trust", "--no-sync", "--encoding", "UTF8"])
            .args(["--locale", "C", "--pgdata"])
            .arg(&data)
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = Self { dir, port: free_port(), settings, child: None };
        server.resume();
        server
    }

    /// Starts the server again after [`PostgresServer::kill`].
    ///
    /// # Panics
    /// If it does not start.
    pub fn resume(&mut self) {
        let mut child = command("postgres")
            .arg("-D")
            .arg(self.dir.path().join("data"))
            .arg("-p")
            .arg(self.port.to_string())
            .arg("-k")
            .arg(self.dir.path())
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=32MB"])
            .args(self.settings.iter().flat_map(|setting| ["-c", setting.as_str()]))
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("postgres runs");
        let log = child.stderr.take().expect("a pipe");
        let (sender, ready) = mpsc::channel();
        // Read to its end, or the server would wait for room in the pipe.
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                if line.contains("ready to accept connections") {
                    sender.send(Ok(())).ok();
                }
                seen.push(line);
            }
            sender.send(Err(seen.join("\n"))).ok();
        });
        self.child = Some(child);
        match ready.recv_timeout(START) {
            Ok(Ok(())) => {}
            Ok(Err(log)) => panic!("postgres ended:\n{log}"),
            Err(_) => panic!("postgres is not ready after {START:?}"),
        }
    }

    /// Kills the server as a crash would: no connection is told, nothing is written.
    pub fn kill(&mut self) {
        self.stop(libc_signal::QUIT);
    }

    /// Returns the URL of the first database.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Returns the URL by which the server is reached through something that listens on another port.
    #[must_use]
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://{USER}@127.0.0.1:{port}/postgres?sslmode=disable")
    }

    /// Returns the port on which the server listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a name for a schema that no other test of this process has.
    #[must_use]
    pub fn new_schema() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs one command of SQL and returns what it prints, values separated by `|`.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, text: &str) -> String {
        let run = command("psql")
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args(["--set", "ON_ERROR_STOP=1", "--command", text])
            .arg(self.url())
            .output()
            .expect("psql runs");
        assert!(run.status.success(), "{text}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8_lossy(&run.stdout).trim().to_owned()
    }

    fn stop(&mut self, signal: &str) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = child.id().to_string();
        Command::new("kill").args([signal, &pid]).status().ok();
        child.wait().ok();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop(libc_signal::QUIT);
    }
}

/// Signals of the server, as `kill` takes them.
mod libc_signal {
    /// Ends at once, without a checkpoint; the next start recovers.
    pub(super) const QUIT: &str = "-QUIT";
}
