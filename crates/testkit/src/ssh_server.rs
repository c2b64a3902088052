//! A server of SSH for a test: Debian's `sshd` on a free port of the loopback, with keys of its own, for the user that
//! runs the test.
//!
//! Where it is not installed the test is skipped, said aloud.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::external_tool::{command_succeeds, report_skip, silence_command};
use crate::origin_server::refusing_addr;

/// How long it may take to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Where it must be named by, as it starts itself again for each connection.
const SSHD_PATHS: [&str; 3] = ["/usr/sbin/sshd", "/usr/bin/sshd", "/usr/local/sbin/sshd"];

/// A running server.
#[derive(Debug)]
pub struct SshServer {
    child: Child,
    port: u16,
    dir: PathBuf,
    user: String,
}

impl SshServer {
    /// Starts one that keeps its files in `dir`; nothing, said aloud, where it is not installed. `arguments` go to its
    /// SFTP server, such as `-R` for one that only reads.
    ///
    /// # Panics
    /// If it is installed and does not start.
    #[must_use]
    pub fn start(dir: &Path, arguments: &str) -> Option<Self> {
        let Some(program) = SSHD_PATHS.iter().find(|program| Path::new(program).is_file()) else {
            report_skip("vaults over SFTP", "openssh-server");
            return None;
        };
        fs::create_dir_all(dir).expect("a folder for the server");
        // A server of root separates its rights there; other users need no such folder.
        fs::create_dir_all("/run/sshd").ok();
        generate_key(&dir.join("host_key"));
        generate_key(&dir.join("user_key"));
        fs::copy(dir.join("user_key.pub"), dir.join("authorized_keys")).expect("a key is there");
        let user = Command::new("id").arg("-un").output().expect("`id` runs").stdout;
        let user = String::from_utf8_lossy(&user).trim().to_owned();
        for _ in 0..5 {
            let port = refusing_addr().port();
            fs::write(dir.join("config"), sshd_config(dir, port, arguments))
                .expect("a configuration");
            let mut command = Command::new(program);
            command.args(["-D", "-e", "-f"]).arg(dir.join("config"));
            let child = silence_command(&mut command).spawn().expect("the server is installed");
            let mut server = Self { child, port, dir: dir.to_owned(), user: user.clone() };
            if server.wait_until_ready() {
                return Some(server);
            }
        }
        panic!("the server is installed and does not start");
    }

    /// Waits until it answers; false if it ends instead, as when somebody else took the port.
    fn wait_until_ready(&mut self) -> bool {
        let begun = Instant::now();
        while TcpStream::connect(self.addr()).is_err() {
            assert!(begun.elapsed() < START_TIMEOUT, "the server does not answer");
            if !matches!(self.child.try_wait(), Ok(None)) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Returns where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Returns the name of the user that it lets in.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the file with the user's key.
    #[must_use]
    pub fn user_key(&self) -> PathBuf {
        self.dir.join("user_key")
    }

    /// Writes a file of known hosts in which the server is known at an address: its own, or that of a proxy before it.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn write_known_hosts(&self, addr: SocketAddr) -> PathBuf {
        let file = self.dir.join(format!("known_hosts_{}", addr.port()));
        let key = fs::read_to_string(self.dir.join("host_key.pub")).expect("a key is there");
        fs::write(&file, format!("[{}]:{} {key}", addr.ip(), addr.port()))
            .expect("a writable folder");
        file
    }

    /// Gives the server another key, and starts it again on the same port.
    ///
    /// # Panics
    /// If it does not start.
    pub fn change_host_key(&mut self) {
        self.stop();
        fs::remove_file(self.dir.join("host_key")).expect("a key is there");
        generate_key(&self.dir.join("host_key"));
        let program = SSHD_PATHS.iter().find(|program| Path::new(program).is_file());
        let mut command = Command::new(program.expect("it ran before"));
        command.args(["-D", "-e", "-f"]).arg(self.dir.join("config"));
        self.child = silence_command(&mut command).spawn().expect("the server is installed");
        assert!(self.wait_until_ready(), "the server does not start again");
    }

    fn stop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn generate_key(file: &Path) {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file);
    assert!(command_succeeds(&mut command), "a key can be made");
}

fn sshd_config(dir: &Path, port: u16, arguments: &str) -> String {
    let dir = dir.display();
    format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {dir}/host_key\nPidFile none\n\
         AuthorizedKeysFile {dir}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
         KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 200\nUseDNS no\n\
         LogLevel ERROR\nSubsystem sftp internal-sftp {arguments}\n"
    )
}
