//! An SSH server for tests: Debian's `sshd` on a free loopback port, with its own keys, for the user that runs the
//! test.
//!
//! If it is not installed, the test prints a message and is skipped.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::condition_wait::wait_for_server;
use crate::external_tool::{command_succeeds, report_skip, silence_command};
use crate::origin_server::refusing_addr;

/// Possible absolute paths of `sshd`, which re-executes itself for each connection and needs its full path.
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
    /// Starts a server that stores its files in `dir`; prints a message and returns `None` if it is not installed.
    /// `arguments` are passed to its SFTP server, such as `-R` for a read-only one.
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
        // A server run by root uses this folder for privilege separation; other users do not need it.
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
            if wait_for_server(server.addr(), &mut server.child) {
                return Some(server);
            }
        }
        panic!("the server is installed and does not start");
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Returns the name of the user that may log in.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the file with the user's private key.
    #[must_use]
    pub fn user_key(&self) -> PathBuf {
        self.dir.join("user_key")
    }

    /// Writes a `known_hosts` file that lists the server's key for an address: its own, or that of a proxy for it.
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

    /// Replaces the server's host key, and restarts it on the same port.
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
        assert!(wait_for_server(self.addr(), &mut self.child), "the server does not start again");
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
