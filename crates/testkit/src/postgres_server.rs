//! A PostgreSQL server for tests: Debian's programs, a temporary directory, a free port.
//!
//! One server serves all tests of a binary; each test has its own schema or database. `initdb` creates the directory
//! once per server, and the server ends with the process that started it.
//!
//! On failure: a test without PostgreSQL fails and names the package to install. Nothing is skipped.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

/// The name of the only user, a superuser without a password.
const SUPERUSER: &str = "tympan";
/// Maximum start time of a server.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct PostgresServer {
    dir: PathBuf,
    port: u16,
    settings: Vec<String>,
    supervisor: Option<Child>,
}

impl PostgresServer {
    /// Returns the server that the tests of this binary share.
    ///
    /// # Panics
    /// If there is no PostgreSQL on the machine, or it does not start.
    pub fn shared_server() -> &'static Self {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&["max_connections=300"]))
    }

    /// Starts a separate server for one test, with settings such as `max_connections=20`. With `ssl=on` it supports
    /// TLS, with a certificate for `localhost` whose authority is in [`PostgresServer::authority_file`].
    ///
    /// # Panics
    /// As [`PostgresServer::shared_server`].
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        let dir =
            tempfile::Builder::new().prefix("tympan-postgres").tempdir().expect("a directory");
        // The supervisor removes it, even if this process is killed.
        let dir = dir.keep();
        chown_to_server_user(&dir);
        let made = postgres_command("initdb")
            .args(["--username", SUPERUSER, "--auth", "trust", "--no-sync", "--encoding", "UTF8"])
            .args(["--locale", "C", "--pgdata"])
            .arg(dir.join("data"))
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        if settings.iter().any(|setting| setting == "ssl=on") {
            create_certificates(&dir);
        }
        let mut server = Self { dir, port: find_free_port(), settings, supervisor: None };
        server.restart();
        server
    }

    /// Starts a standby of this server with the same settings: it replicates, serves reads, and can take over with
    /// [`PostgresServer::promote`]. `synchronous_standby_names` decides whether this server waits for it.
    ///
    /// # Panics
    /// If this server does not run or the standby does not start.
    #[must_use]
    pub fn start_standby(&self) -> Self {
        let dir = tempfile::Builder::new().prefix("tympan-standby").tempdir().expect("a directory");
        let dir = dir.keep();
        chown_to_server_user(&dir);
        let copied = postgres_command("pg_basebackup")
            .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--pgdata"])
            .arg(dir.join("data"))
            .args(["--host=127.0.0.1", "--username", SUPERUSER, "--port"])
            .arg(self.port.to_string())
            .output()
            .expect("pg_basebackup runs");
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        let settings = self.settings.clone();
        let mut server = Self { dir, port: find_free_port(), settings, supervisor: None };
        server.restart();
        server
    }

    /// Promotes a standby: from now on it accepts writes.
    ///
    /// # Panics
    /// If it does not within a minute.
    pub fn promote(&self) {
        assert_eq!(self.run_sql("SELECT pg_promote(wait_seconds => 60)"), "t", "it takes over");
    }

    /// Restarts the server after [`PostgresServer::kill`], on the same port.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        let mut postgres = postgres_command("postgres");
        postgres
            .arg("-D")
            .arg(self.dir.join("data"))
            .arg("-p")
            .arg(self.port.to_string())
            .arg("-k")
            .arg(&self.dir)
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=32MB"])
            .args(self.settings.iter().flat_map(|setting| ["-c", setting.as_str()]));
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR_SCRIPT, "sh"])
            .arg(&self.dir)
            .arg(postgres.get_program())
            .args(postgres.get_args())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a shell runs");
        let log = supervisor.stderr.take().expect("a pipe");
        let (sender, receiver) = mpsc::channel();
        // Read to the end; otherwise a full pipe would block the server.
        std::thread::spawn(move || {
            let mut lines = Vec::new();
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                // A standby prints "read-only connections".
                if line.contains("ready to accept") {
                    sender.send(Ok(())).ok();
                }
                lines.push(line);
            }
            sender.send(Err(lines.join("\n"))).ok();
        });
        self.supervisor = Some(supervisor);
        match receiver.recv_timeout(START_TIMEOUT) {
            Ok(Ok(())) => {}
            Ok(Err(log)) => panic!("postgres ended:\n{log}"),
            Err(_) => panic!("postgres is not ready after {START_TIMEOUT:?}"),
        }
    }

    /// Kills the server like a crash: no statement is finished, and the next start recovers.
    pub fn kill(&mut self) {
        self.stop_supervisor("keep\n");
    }

    /// Returns the URL of the first database.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Returns the URL of the server behind a listener on another port.
    #[must_use]
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{port}/postgres?sslmode=disable")
    }

    /// Returns the port on which the server listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the file with the certificate authority of a TLS server.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.join("data/ca.crt")
    }

    /// Returns a schema name that is unique in this process.
    #[must_use]
    pub fn unique_schema_name() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs one SQL command and returns its output, values separated by `|`.
    ///
    /// # Panics
    /// If it fails.
    pub fn run_sql(&self, text: &str) -> String {
        let run = postgres_command("psql")
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args(["--set", "ON_ERROR_STOP=1", "--command", text])
            .arg(self.url())
            .output()
            .expect("psql runs");
        assert!(run.status.success(), "{text}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8_lossy(&run.stdout).trim().to_owned()
    }

    fn stop_supervisor(&mut self, command: &str) {
        let Some(mut supervisor) = self.supervisor.take() else {
            return;
        };
        if let Some(mut input) = supervisor.stdin.take() {
            input.write_all(command.as_bytes()).ok();
        }
        supervisor.wait().ok();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.supervisor.is_none() {
            std::fs::remove_dir_all(&self.dir).ok();
        }
        self.stop_supervisor("");
    }
}

/// A script that runs the server until this process sends `keep`, or ends in any way, and then ends the server by its
/// process id.
const SUPERVISOR_SCRIPT: &str = r#"
dir=$1; shift
exec 3<&0
"$@" </dev/null &
pid=$!
read word <&3
kill -QUIT "$pid"
wait "$pid"
[ "$word" = keep ] || rm -rf "$dir"
"#;

/// Creates a command of PostgreSQL, run by a user other than root, as the server requires.
fn postgres_command(name: &str) -> Command {
    let program = find_program(name);
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/").env_remove("PGPASSWORD").env_remove("PGHOST").env_remove("PGPORT");
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

/// Makes the server's user the owner of the directory.
fn chown_to_server_user(dir: &Path) {
    if is_root() {
        let owner = std::fs::read_to_string("/etc/passwd").expect("a list of users");
        let line = owner.lines().find(|line| line.starts_with("postgres:")).expect(INSTALL_HINT);
        let mut numbers = line.split(':').skip(2).map(str::parse);
        let (user, group) = (numbers.next(), numbers.next());
        std::os::unix::fs::chown(dir, user.and_then(Result::ok), group.and_then(Result::ok))
            .expect("the directory can be given away");
    }
}

const INSTALL_HINT: &str =
    "PostgreSQL is missing; install the package `postgresql` (scripts/setup.sh test)";

/// Finds a program in Debian's directory of the newest version, or in `PATH`.
fn find_program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut programs: Vec<(u32, PathBuf)> = versions
        .filter_map(|version| {
            let number = version.file_name().to_str()?.parse().ok()?;
            Some((number, version.path().join("bin").join(name)))
        })
        .filter(|(_, program)| program.is_file())
        .collect();
    programs.sort_unstable();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path =
        || std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    programs.pop().map(|(_, program)| program).or_else(in_path).expect(INSTALL_HINT)
}

/// Creates an authority, and a certificate signed by it in the server's default location.
fn create_certificates(dir: &Path) {
    let made = postgres_command("sh")
        .args(["-c", CREATE_CERTIFICATES_SCRIPT, "sh"])
        .arg(dir.join("data"))
        .output()
        .expect("a shell runs");
    assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
}

const CREATE_CERTIFICATES_SCRIPT: &str = r#"
set -e
cd "$1"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=authority" -keyout ca.key -out ca.crt
openssl req -newkey rsa:2048 -nodes -subj "/CN=localhost" -keyout server.key -out server.csr
echo subjectAltName=DNS:localhost >server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.crt
chmod 0600 server.key
"#;

fn find_free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}
