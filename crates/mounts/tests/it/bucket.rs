//! Buckets of moto, an independent implementation of S3.
//!
//! Where it is not installed it is installed from PyPI below the target folder. Without Python or a network the test says
//! that it was skipped, past what catches the output of tests.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tympan_jobs::OsgiConfigs;
use tympan_mounts::MountLocation;
use tympan_testkit::condition_wait::wait_for_server;
use tympan_testkit::origin_server::refusing_addr;

use crate::source::{Office, place};

/// The version that is installed.
const PACKAGE: &str = "moto[s3,server]==5.2.1";
/// Returns a command for the server, installed once for all runs; nothing, said aloud, where that cannot be done.
fn server() -> Option<Command> {
    let works = |command: &mut Command| {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    };
    if works(Command::new("moto_server").arg("--help")) {
        return Some(Command::new("moto_server"));
    }
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("moto-5.2.1");
    let python = |home: &Path| Command::new(home.join("bin/python3"));
    if !home.is_dir() {
        // What runs at the same time makes its own, and the first one in place stays. So half of one is never used.
        let making = home.with_file_name(format!("moto-{}", std::process::id()));
        let is_made = works(Command::new("python3").args(["-m", "venv"]).arg(&making))
            && works(python(&making).args(["-m", "pip", "install", "--quiet", PACKAGE]));
        if is_made {
            std::fs::rename(&making, &home).ok();
        }
        std::fs::remove_dir_all(&making).ok();
    }
    // Its programs name the interpreter by the path that it had before it was renamed.
    let mut command = python(&home);
    command.args(["-m", "moto.server"]);
    if home.is_dir() {
        return Some(command);
    }
    let reason = "it takes python3-venv and a network";
    let said = format!("skipped: buckets of {PACKAGE}, which cannot be installed: {reason}\n");
    std::io::stderr().write_all(said.as_bytes()).unwrap();
    None
}

/// A running server.
struct Moto {
    child: Child,
    port: u16,
}

impl Moto {
    /// Starts one; nothing where there is none.
    fn start() -> Option<Self> {
        // Somebody else may take a port between its being found free and its use.
        for _ in 0..5 {
            let port = refusing_addr().port();
            let child = server()?
                .args(["-H", "127.0.0.1", "-p", &port.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut moto = Self { child, port };
            if wait_for_server(([127, 0, 0, 1], port).into(), &mut moto.child) {
                return Some(moto);
            }
        }
        panic!("moto is installed and does not start");
    }

    /// Sends a request with a signature of the right form, which is all that it looks at.
    fn send(&self, method: &str, path: &str, body: &str) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Length: {}\r\nAuthorization: \
             AWS4-HMAC-SHA256 Credential=ann/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\n\r\n\
             {body}",
            self.port,
            body.len()
        );
        let addr = ([127, 0, 0, 1], self.port).into();
        let answer = tympan_testkit::origin_server::exchange_bytes(addr, request.as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains(" 200 ") || answer.contains(" 204 "), "{answer}");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_bucket_of_a_real_server_is_followed() {
    let Some(moto) = Moto::start() else { return };
    moto.send("PUT", "/press", "");
    for number in 0..1003 {
        moto.send("PUT", &format!("/press/2024/{number}.txt"), &number.to_string());
    }
    moto.send("PUT", "/press/2024/with%20blank%2Band%C3%A9.txt", "odd");
    moto.send("PUT", "/press/outside.txt", "outside");
    let source = "s3://press/2024";
    let endpoint = Some(format!("http://127.0.0.1:{}", moto.port));
    let office = Office::new(source, MountLocation { endpoint, ..place(source) });
    office.mounts.load_configs(&OsgiConfigs::default());
    assert_eq!(office.added().added, 1004);
    assert_eq!(office.desk.original("/content/dam/archive/with blank+andé.txt"), b"odd");
    moto.send("PUT", "/press/2024/renamed.txt", "7");
    moto.send("DELETE", "/press/2024/7.txt", "");
    moto.send("PUT", "/press/2024/8.txt", "changed");
    let report = office.added();
    // The renamed one has the tag that it had, so that it is not read again.
    assert_eq!(
        (report.moved, report.changed, report.added, report.bytes),
        (1, 1, 0, 7),
        "{report:?}"
    );
}
