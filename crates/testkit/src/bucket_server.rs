//! Servers of buckets that others wrote, started for a test: moto for S3, Azurite for Azure, and Versity's gateway for S3
//! over a folder, which can be killed; and a proxy before them that answers with faults.
//!
//! Where one is not installed, it is installed below a folder that tests keep, from PyPI, npm or Go's modules; where that
//! cannot be done, the test is skipped.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::origin::{Answer, Delivery, Origin, Seen, dead_addr, exchange};
use crate::tool::{installed, quiet, skip, works};

/// How long one may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const MOTO: &str = "moto[s3,server]==5.2.1";
const AZURITE: &str = "azurite@3.35.0";
const GATEWAY: &str = "github.com/versity/versitygw/cmd/versitygw@v1.0.14";
/// Seconds that npm may take: an unfinished installation counts as none.
const INSTALLING: &str = "600";
/// The same for Go.
const BUILDING: &str = "240";
/// The account that every Azurite has; its key is no secret.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// The name and the secret that servers of S3 are started with.
const S3_KEYS: (&str, &str) = ("ann", "secret");

/// A running server with one bucket, named `blobs`.
#[derive(Debug)]
pub struct BucketServer {
    child: Child,
    port: u16,
    kind: Kind,
    /// The folders of a server that keeps its objects on disk, and the program.
    kept: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Moto,
    Azurite,
    Gateway,
}

impl BucketServer {
    /// Starts moto; nothing, said aloud, where it cannot be installed. `tools` is a folder that tests keep.
    ///
    /// # Panics
    /// If it is installed and does not start.
    #[must_use]
    pub fn moto(tools: &Path) -> Option<Self> {
        let server = Self::start(Kind::Moto, tools)?;
        server.make_bucket();
        Some(server)
    }

    /// Starts Azurite; nothing, said aloud, where it cannot be installed. `tools` is a folder that tests keep.
    ///
    /// # Panics
    /// If it is installed and does not start.
    #[must_use]
    pub fn azurite(tools: &Path) -> Option<Self> {
        let server = Self::start(Kind::Azurite, tools)?;
        server.make_bucket();
        Some(server)
    }

    /// Starts Versity's gateway to S3, which keeps its objects as files in `folder`, whole ones only: what it has
    /// acknowledged outlives [`kill`](Self::kill). Nothing, said aloud, where it cannot be installed. `tools` is a folder
    /// that tests keep.
    ///
    /// # Panics
    /// If it is installed and does not start.
    #[must_use]
    #[expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    pub fn gateway(tools: &Path, folder: &Path) -> Option<Self> {
        let program = gateway(tools)?;
        std::fs::create_dir_all(folder.join("blobs")).expect("a folder for the bucket");
        for _ in 0..5 {
            let port = dead_addr().port();
            let child = serve_folder(&program, folder, port);
            let kept = Some((program.clone(), folder.to_owned()));
            let mut server = Self { child, port, kind: Kind::Gateway, kept };
            if server.answers() {
                return Some(server);
            }
        }
        panic!("the server is installed and does not start");
    }

    /// Kills a server that keeps its objects on disk, with whatever it was doing.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Starts a killed server again, where it was, with what it has.
    ///
    /// # Panics
    /// If it does not start, or keeps nothing on disk.
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn start_again(&mut self) {
        let (program, folder) = self.kept.as_ref().expect("a server that keeps its objects");
        self.child = serve_folder(program, folder, self.port);
        assert!(self.answers(), "the server does not start again");
    }

    #[expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    fn start(kind: Kind, tools: &Path) -> Option<Self> {
        // Somebody else may take a port between its being found free and its use.
        for _ in 0..5 {
            let port = dead_addr().port();
            let mut command = match kind {
                Kind::Azurite => {
                    let mut command = azurite(tools)?;
                    command
                        .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
                        .args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"])
                        .arg("--inMemoryPersistence");
                    command
                }
                _ => {
                    let mut command = moto(tools)?;
                    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
                    command
                }
            };
            let child = quiet(&mut command).spawn().expect("the server is installed");
            let mut server = Self { child, port, kind, kept: None };
            if server.answers() {
                return Some(server);
            }
        }
        panic!("the server is installed and does not start");
    }

    /// Waits until it answers; false if it ends instead.
    fn answers(&mut self) -> bool {
        let begun = Instant::now();
        while TcpStream::connect(self.addr()).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the server does not answer");
            if !matches!(self.child.try_wait(), Ok(None)) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Returns where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Returns the URL of the bucket, with a prefix.
    #[must_use]
    pub fn url(&self, prefix: &str) -> String {
        let scheme = if self.kind == Kind::Azurite { "az" } else { "s3" };
        format!("{scheme}://blobs/{prefix}")
    }

    /// Returns the settings of a client that speaks to `addr`: this server, or a proxy before it.
    #[must_use]
    pub fn settings(&self, addr: SocketAddr) -> Vec<(String, String)> {
        let settings = match self.kind {
            Kind::Moto | Kind::Gateway => vec![
                ("AWS_ACCESS_KEY_ID", S3_KEYS.0.to_owned()),
                ("AWS_SECRET_ACCESS_KEY", S3_KEYS.1.to_owned()),
                ("AWS_REGION", "us-east-1".to_owned()),
                ("AWS_ENDPOINT_URL", format!("http://{addr}")),
            ],
            Kind::Azurite => vec![
                ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
                ("AZURE_STORAGE_ACCOUNT_KEY", KEY.to_owned()),
                ("AZURE_STORAGE_ENDPOINT", format!("http://{addr}/{ACCOUNT}")),
            ],
        };
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    fn make_bucket(&self) {
        match self.kind {
            Kind::Moto => {
                // A signature of the right form is all that it looks at.
                let request = format!(
                    "PUT /blobs HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\nAuthorization: \
                     AWS4-HMAC-SHA256 Credential=ann/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, \
                     Signature=0\r\n\r\n",
                    self.addr()
                );
                let answer = exchange(self.addr(), request.as_bytes());
                let answer = String::from_utf8_lossy(&answer);
                assert!(answer.contains(" 200 "), "{answer}");
            }
            // A folder is a bucket of it.
            Kind::Gateway => {}
            Kind::Azurite => {
                let mut node = Command::new("node");
                node.args(["-e", MAKE_CONTAINER, &self.port.to_string(), ACCOUNT, KEY]);
                let made = quiet(&mut node).status().expect("Azurite runs in it");
                assert!(made.success(), "the container cannot be made");
            }
        }
    }
}

impl Drop for BucketServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Makes the container `blobs`, with a request signed by the shared key.
const MAKE_CONTAINER: &str = "
const [port, account, key] = process.argv.slice(1);
const date = new Date().toUTCString(), version = '2021-08-06';
const text = ['PUT', '', '', '', '', '', '', '', '', '', '', '', `x-ms-date:${date}`, `x-ms-version:${version}`,
  `/${account}/${account}/blobs`, 'restype:container'].join('\\n');
const sign = require('crypto').createHmac('sha256', Buffer.from(key, 'base64')).update(text, 'utf8').digest('base64');
const headers = { 'x-ms-date': date, 'x-ms-version': version, Authorization: `SharedKey ${account}:${sign}` };
const options = { host: '127.0.0.1', port, method: 'PUT', path: `/${account}/blobs?restype=container`, headers };
require('http').request(options, answer => process.exit(answer.statusCode == 201 ? 0 : 1)).end();
";

fn moto(tools: &Path) -> Option<Command> {
    if works(Command::new("moto_server").arg("--help")) {
        return Some(Command::new("moto_server"));
    }
    let home = tools.join("moto-5.2.1");
    let python = |home: &Path| Command::new(home.join("bin/python3"));
    let is_here = installed(&home, |making| {
        works(Command::new("python3").args(["-m", "venv"]).arg(making))
            && works(python(making).args(["-m", "pip", "install", "--quiet", MOTO]))
    });
    if !is_here {
        skip(&format!("buckets of {MOTO}"), "python3-venv");
        return None;
    }
    // Its programs name the interpreter by the path that it had before it was renamed.
    let mut command = python(&home);
    command.args(["-m", "moto.server"]);
    Some(command)
}

fn azurite(tools: &Path) -> Option<Command> {
    if works(Command::new("azurite-blob").arg("--version")) {
        return Some(Command::new("azurite-blob"));
    }
    let home = tools.join(AZURITE.replace('@', "-"));
    let program = |home: &Path| {
        let mut command = Command::new("node");
        command.arg(home.join("node_modules/azurite/dist/src/blob/main.js"));
        command
    };
    // Scripts and optional packages are for other machines, and what takes most of the time.
    let is_here = installed(&home, |making| {
        let mut npm = Command::new("timeout");
        npm.args([INSTALLING, "npm", "install", AZURITE, "--prefix"]).arg(making);
        npm.args(["--omit=optional", "--no-audit", "--no-fund", "--ignore-scripts"]);
        works(&mut npm) && works(program(making).arg("--version"))
    });
    if !is_here {
        skip(&format!("containers of {AZURITE}"), "Node.js with npm");
        return None;
    }
    Some(program(&home))
}

/// Returns the gateway's program. A process tries once: where modules come slowly, each test would wait for them anew.
fn gateway(tools: &Path) -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| find_gateway(tools)).clone()
}

fn find_gateway(tools: &Path) -> Option<PathBuf> {
    const NAME: &str = "versitygw";
    if works(Command::new(NAME).arg("--version")) {
        return Some(PathBuf::from(NAME));
    }
    let home = tools.join(format!("{NAME}-{}", GATEWAY.rsplit('@').next().unwrap_or_default()));
    let is_here = installed(&home, |making| {
        let mut go = Command::new("timeout");
        go.args([BUILDING, "go", "install", GATEWAY]).env("GOBIN", making);
        // Modules are read-only files, which nobody could clean up with `rm` in a folder of ours.
        go.env("GOFLAGS", "-modcacherw").env("GOPATH", making.join("path"));
        let is_made = works(&mut go) && works(Command::new(making.join(NAME)).arg("--version"));
        std::fs::remove_dir_all(making.join("path")).ok();
        is_made
    });
    if !is_here {
        skip(&format!("buckets of {GATEWAY}"), "Go");
        return None;
    }
    Some(home.join(NAME))
}

#[expect(clippy::expect_used, reason = "a test fails by panicking")]
fn serve_folder(program: &Path, folder: &Path, port: u16) -> Child {
    let mut command = Command::new(program);
    command.args(["--access", S3_KEYS.0, "--secret", S3_KEYS.1, "--quiet", "--port"]);
    command.arg(format!("127.0.0.1:{port}")).arg("posix").arg(folder);
    quiet(&mut command).spawn().expect("the server is installed")
}

/// What the proxy does with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It goes on to the server, and the answer comes back.
    Pass,
    /// The server is not asked; the answer is this status.
    Status(u16),
    /// The server is not asked; the connection breaks.
    Refused,
    /// The server did it; the connection breaks before the answer.
    Unheard,
    /// The server did it; the answer breaks off after this many bytes of its body.
    CutAfter(usize),
    /// The server did it; the answer stops after this many bytes of its body.
    StallAfter(usize),
}

/// A server before another one that lets faults happen: `script` is told the number of each request, from 0.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn faulty_proxy(
    server: SocketAddr,
    script: impl Fn(usize, &Seen) -> Fault + Send + Sync + 'static,
) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |seen| {
        let fault = script(count.fetch_add(1, Ordering::SeqCst), seen);
        let delivery = match fault {
            Fault::Status(status) => return Answer::status(status),
            Fault::Refused => return Answer::status(200).deliver(Delivery::Hangup),
            Fault::Pass => Delivery::Whole,
            Fault::Unheard => Delivery::Hangup,
            Fault::CutAfter(bytes) => Delivery::CutAfter(bytes),
            Fault::StallAfter(bytes) => Delivery::StallAfter(bytes),
        };
        match forward(server, seen) {
            Ok(answer) => answer.deliver(delivery),
            // The server is down.
            Err(_) => Answer::status(503),
        }
    })
}

fn forward(server: SocketAddr, seen: &Seen) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!("{} {} HTTP/1.1\r\nConnection: close\r\n", seen.method, seen.target);
    for (name, value) in &seen.headers {
        let is_ours = ["connection", "content-length", "transfer-encoding", "expect"]
            .iter()
            .any(|ours| name.eq_ignore_ascii_case(ours));
        if !is_ours {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    if !seen.body.is_empty() || seen.header("content-length").is_some() {
        head.push_str(&format!("Content-Length: {}\r\n", seen.body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&seen.body)?;
    read_answer(&mut BufReader::new(stream), seen.method == "HEAD")
}

fn read_answer(reader: &mut BufReader<TcpStream>, is_head: bool) -> io::Result<Answer> {
    let malformed = || io::Error::other("the server's answer is malformed");
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let mut answer = Answer::status(status.ok_or_else(malformed)?);
    let (mut length, mut is_chunked) = (None, false);
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse::<usize>().ok(),
            "transfer-encoding" => is_chunked = true,
            "connection" | "keep-alive" => {}
            _ => answer.headers.push((name.to_owned(), value.to_owned())),
        }
    }
    if is_head {
        // Its length is told, its bytes are not sent.
        answer.body = vec![0; length.unwrap_or(0)];
    } else if is_chunked {
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16).map_err(|_| malformed())?;
            let mut piece = vec![0; size];
            reader.read_exact(&mut piece)?;
            answer.body.extend(piece);
            line.clear();
            reader.read_line(&mut line)?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = length {
        answer.body.resize(length, 0);
        reader.read_exact(&mut answer.body)?;
    } else if answer.status != 204 && answer.status != 304 {
        reader.read_to_end(&mut answer.body)?;
    }
    Ok(answer)
}
