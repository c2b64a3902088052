//! Third-party object storage servers for tests: moto for S3, Azurite for Azure, and Versity's S3 gateway over a
//! folder, which can be killed; and a fault-injecting proxy for them.
//!
//! A missing server is installed from PyPI, npm or Go modules into a folder that is cached between test runs. If that
//! is not possible, the test is skipped.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::condition_wait::{WAIT_LIMIT, wait_for_server};
use crate::external_tool::{command_succeeds, install_once, report_skip, silence_command};
use crate::origin_server::{
    OriginRequest, OriginResponse, OriginServer, ResponseDelivery, exchange_bytes, refusing_addr,
};

const MOTO_PACKAGE: &str = "moto[s3,server]==5.2.1";
const AZURITE_PACKAGE: &str = "azurite@3.35.0";
const GATEWAY_MODULE: &str = "github.com/versity/versitygw/cmd/versitygw@v1.0.14";
/// Timeout of npm in seconds; an unfinished installation is discarded.
const NPM_TIMEOUT_SECONDS: &str = "600";
/// Timeout of the Go build in seconds.
const GO_BUILD_TIMEOUT_SECONDS: &str = "240";
/// The default account of Azurite; its key is public.
const AZURITE_ACCOUNT: &str = "devstoreaccount1";
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// The access key and the secret key of S3 servers.
const S3_KEYS: (&str, &str) = ("ann", "secret");

/// A running server with one bucket, named `blobs`.
#[derive(Debug)]
pub struct BucketServer {
    child: Child,
    port: u16,
    kind: BucketServerKind,
    /// The program and the data folder of a server that stores its objects on disk.
    folder_and_program: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BucketServerKind {
    Moto,
    Azurite,
    Gateway,
}

impl BucketServer {
    /// Starts moto; prints a message and returns `None` if it cannot be installed. `tools` is a folder cached between
    /// test runs.
    ///
    /// # Panics
    /// If it is installed and does not start.
    #[must_use]
    pub fn start_moto(tools: &Path) -> Option<Self> {
        let server = Self::start(BucketServerKind::Moto, tools)?;
        server.create_bucket();
        Some(server)
    }

    /// Starts Azurite; prints a message and returns `None` if it cannot be installed. `tools` is a folder cached
    /// between test runs.
    ///
    /// # Panics
    /// If it is installed and does not start.
    #[must_use]
    pub fn start_azurite(tools: &Path) -> Option<Self> {
        let server = Self::start(BucketServerKind::Azurite, tools)?;
        server.create_bucket();
        Some(server)
    }

    /// Starts Versity's S3 gateway, which stores its objects as complete files in `folder`: acknowledged writes survive
    /// [`kill`](Self::kill). Prints a message and returns `None` if it cannot be installed. `tools` is a folder cached
    /// between test runs.
    ///
    /// # Panics
    /// If it is installed and does not start.
    #[must_use]
    #[expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    pub fn start_gateway(tools: &Path, folder: &Path) -> Option<Self> {
        let program = cached_gateway_program(tools)?;
        std::fs::create_dir_all(folder.join("blobs")).expect("a folder for the bucket");
        for _ in 0..5 {
            let port = refusing_addr().port();
            let child = spawn_gateway(&program, folder, port);
            let program_folder = Some((program.clone(), folder.to_owned()));
            let mut server = Self {
                child,
                port,
                kind: BucketServerKind::Gateway,
                folder_and_program: program_folder,
            };
            if wait_for_server(server.addr(), &mut server.child) {
                return Some(server);
            }
        }
        panic!("the server is installed and does not start");
    }

    /// Kills a server that stores its objects on disk, including requests in progress.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Restarts a killed server at the same address with the same data.
    ///
    /// # Panics
    /// If it does not start, or stores nothing on disk.
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn restart(&mut self) {
        let (program, folder) =
            self.folder_and_program.as_ref().expect("a server that keeps its objects");
        self.child = spawn_gateway(program, folder, self.port);
        assert!(wait_for_server(self.addr(), &mut self.child), "the server does not start again");
    }

    #[expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    fn start(kind: BucketServerKind, tools: &Path) -> Option<Self> {
        // Another process may take a free port before it is used.
        for _ in 0..5 {
            let port = refusing_addr().port();
            let mut command = match kind {
                BucketServerKind::Azurite => {
                    let mut command = azurite_command(tools)?;
                    command
                        .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
                        .args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"])
                        .arg("--inMemoryPersistence");
                    command
                }
                _ => {
                    let mut command = moto_command(tools)?;
                    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
                    command
                }
            };
            let child = silence_command(&mut command).spawn().expect("the server is installed");
            let mut server = Self { child, port, kind, folder_and_program: None };
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

    /// Returns the URL of the bucket, with a prefix.
    #[must_use]
    pub fn url(&self, prefix: &str) -> String {
        let scheme = if self.kind == BucketServerKind::Azurite { "az" } else { "s3" };
        format!("{scheme}://blobs/{prefix}")
    }

    /// Returns the settings of a client that connects to `addr`: this server, or a proxy for it.
    #[must_use]
    pub fn client_settings(&self, addr: SocketAddr) -> Vec<(String, String)> {
        let settings = match self.kind {
            BucketServerKind::Moto | BucketServerKind::Gateway => vec![
                ("AWS_ACCESS_KEY_ID", S3_KEYS.0.to_owned()),
                ("AWS_SECRET_ACCESS_KEY", S3_KEYS.1.to_owned()),
                ("AWS_REGION", "us-east-1".to_owned()),
                ("AWS_ENDPOINT_URL", format!("http://{addr}")),
            ],
            BucketServerKind::Azurite => vec![
                ("AZURE_STORAGE_ACCOUNT_NAME", AZURITE_ACCOUNT.to_owned()),
                ("AZURE_STORAGE_ACCOUNT_KEY", AZURITE_KEY.to_owned()),
                ("AZURE_STORAGE_ENDPOINT", format!("http://{addr}/{AZURITE_ACCOUNT}")),
            ],
        };
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    fn create_bucket(&self) {
        match self.kind {
            BucketServerKind::Moto => {
                // It only checks the format of the signature.
                let request = format!(
                    "PUT /blobs HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\nAuthorization: \
                     AWS4-HMAC-SHA256 Credential=ann/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, \
                     Signature=0\r\n\r\n",
                    self.addr()
                );
                let response = exchange_bytes(self.addr(), request.as_bytes());
                let response = String::from_utf8_lossy(&response);
                assert!(response.contains(" 200 "), "{response}");
            }
            // Each folder is a bucket.
            BucketServerKind::Gateway => {}
            BucketServerKind::Azurite => {
                let mut node = Command::new("node");
                node.args([
                    "-e",
                    CREATE_CONTAINER_SCRIPT,
                    &self.port.to_string(),
                    AZURITE_ACCOUNT,
                    AZURITE_KEY,
                ]);
                let made = silence_command(&mut node).status().expect("Azurite runs in it");
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

/// A script that creates the container `blobs` with a request signed with the shared key.
const CREATE_CONTAINER_SCRIPT: &str = "
const [port, account, key] = process.argv.slice(1);
const date = new Date().toUTCString(), version = '2021-08-06';
const text = ['PUT', '', '', '', '', '', '', '', '', '', '', '', `x-ms-date:${date}`, `x-ms-version:${version}`,
  `/${account}/${account}/blobs`, 'restype:container'].join('\\n');
const sign = require('crypto').createHmac('sha256', Buffer.from(key, 'base64')).update(text, 'utf8').digest('base64');
const headers = { 'x-ms-date': date, 'x-ms-version': version, Authorization: `SharedKey ${account}:${sign}` };
const options = { host: '127.0.0.1', port, method: 'PUT', path: `/${account}/blobs?restype=container`, headers };
require('http').request(options, answer => process.exit(answer.statusCode == 201 ? 0 : 1)).end();
";

fn moto_command(tools: &Path) -> Option<Command> {
    if command_succeeds(Command::new("moto_server").arg("--help")) {
        return Some(Command::new("moto_server"));
    }
    let home = tools.join("moto-5.2.1");
    let python = |home: &Path| Command::new(home.join("bin/python3"));
    let is_here = install_once(&home, |making| {
        command_succeeds(Command::new("python3").args(["-m", "venv"]).arg(making))
            && command_succeeds(python(making).args([
                "-m",
                "pip",
                "install",
                "--quiet",
                MOTO_PACKAGE,
            ]))
    });
    if !is_here {
        report_skip(&format!("buckets of {MOTO_PACKAGE}"), "python3-venv");
        return None;
    }
    // Its programs contain the interpreter's path from before the folder was renamed.
    let mut command = python(&home);
    command.args(["-m", "moto.server"]);
    Some(command)
}

fn azurite_command(tools: &Path) -> Option<Command> {
    if command_succeeds(Command::new("azurite-blob").arg("--version")) {
        return Some(Command::new("azurite-blob"));
    }
    let home = tools.join(AZURITE_PACKAGE.replace('@', "-"));
    let program = |home: &Path| {
        let mut command = Command::new("node");
        command.arg(home.join("node_modules/azurite/dist/src/blob/main.js"));
        command
    };
    // Skip install scripts and optional packages, which are for other platforms and take most of the time.
    let is_here = install_once(&home, |making| {
        let mut npm = Command::new("timeout");
        npm.args([NPM_TIMEOUT_SECONDS, "npm", "install", AZURITE_PACKAGE, "--prefix"]).arg(making);
        npm.args(["--omit=optional", "--no-audit", "--no-fund", "--ignore-scripts"]);
        command_succeeds(&mut npm) && command_succeeds(program(making).arg("--version"))
    });
    if !is_here {
        report_skip(&format!("containers of {AZURITE_PACKAGE}"), "Node.js with npm");
        return None;
    }
    Some(program(&home))
}

/// Returns the gateway's program. Each process tries the installation once: with a slow module download, each test
/// would wait for it again.
fn cached_gateway_program(tools: &Path) -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| install_gateway(tools)).clone()
}

fn install_gateway(tools: &Path) -> Option<PathBuf> {
    const NAME: &str = "versitygw";
    if command_succeeds(Command::new(NAME).arg("--version")) {
        return Some(PathBuf::from(NAME));
    }
    let home =
        tools.join(format!("{NAME}-{}", GATEWAY_MODULE.rsplit('@').next().unwrap_or_default()));
    let is_here = install_once(&home, |making| {
        let mut go = Command::new("timeout");
        go.args([GO_BUILD_TIMEOUT_SECONDS, "go", "install", GATEWAY_MODULE]).env("GOBIN", making);
        // Module files are read-only by default, and could not be removed with `rm`.
        go.env("GOFLAGS", "-modcacherw").env("GOPATH", making.join("path"));
        let is_made = command_succeeds(&mut go)
            && command_succeeds(Command::new(making.join(NAME)).arg("--version"));
        std::fs::remove_dir_all(making.join("path")).ok();
        is_made
    });
    if !is_here {
        report_skip(&format!("buckets of {GATEWAY_MODULE}"), "Go");
        return None;
    }
    Some(home.join(NAME))
}

#[expect(clippy::expect_used, reason = "a test fails by panicking")]
fn spawn_gateway(program: &Path, folder: &Path, port: u16) -> Child {
    let mut command = Command::new(program);
    command.args(["--access", S3_KEYS.0, "--secret", S3_KEYS.1, "--quiet", "--port"]);
    command.arg(format!("127.0.0.1:{port}")).arg("posix").arg(folder);
    silence_command(&mut command).spawn().expect("the server is installed")
}

/// The treatment of one request by the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyFault {
    /// Forwards the request, and returns the response.
    Forward,
    /// Responds with this status without forwarding the request.
    Status(u16),
    /// Closes the connection without forwarding the request.
    RefuseConnection,
    /// Forwards the request; closes the connection before the response.
    DropResponse,
    /// Forwards the request; truncates the response after this many bytes of its body.
    CutAfter(usize),
    /// Forwards the request; stalls the response after this many bytes of its body.
    StallAfter(usize),
}

/// Starts a proxy for a server that injects faults: `script` gets the number of each request, from 0.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn start_faulty_proxy(
    server: SocketAddr,
    script: impl Fn(usize, &OriginRequest) -> ProxyFault + Send + Sync + 'static,
) -> OriginServer {
    let count = AtomicUsize::new(0);
    OriginServer::start(move |request| {
        let fault = script(count.fetch_add(1, Ordering::SeqCst), request);
        let delivery = match fault {
            ProxyFault::Status(status) => return OriginResponse::with_status(status),
            ProxyFault::RefuseConnection => {
                return OriginResponse::with_status(200).with_delivery(ResponseDelivery::Hangup);
            }
            ProxyFault::Forward => ResponseDelivery::Complete,
            ProxyFault::DropResponse => ResponseDelivery::Hangup,
            ProxyFault::CutAfter(bytes) => ResponseDelivery::CutAfter(bytes),
            ProxyFault::StallAfter(bytes) => ResponseDelivery::StallAfter(bytes),
        };
        match forward_request(server, request) {
            Ok(response) => response.with_delivery(delivery),
            // The server is down.
            Err(_) => OriginResponse::with_status(503),
        }
    })
}

fn forward_request(server: SocketAddr, request: &OriginRequest) -> io::Result<OriginResponse> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(WAIT_LIMIT))?;
    let mut head =
        format!("{} {} HTTP/1.1\r\nConnection: close\r\n", request.method, request.target);
    for (name, value) in &request.headers {
        let is_ours = ["connection", "content-length", "transfer-encoding", "expect"]
            .iter()
            .any(|own_name| name.eq_ignore_ascii_case(own_name));
        if !is_ours {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    if !request.body.is_empty() || request.header("content-length").is_some() {
        head.push_str(&format!("Content-Length: {}\r\n", request.body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&request.body)?;
    read_response(&mut BufReader::new(stream), request.method == "HEAD")
}

fn read_response(reader: &mut BufReader<TcpStream>, is_head: bool) -> io::Result<OriginResponse> {
    let malformed = || io::Error::other("the server's answer is malformed");
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let mut response = OriginResponse::with_status(status.ok_or_else(malformed)?);
    let (mut length, mut is_chunked) = (None, false);
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse::<usize>().ok(),
            "transfer-encoding" => is_chunked = true,
            "connection" | "keep-alive" => {}
            _ => response.headers.push((name.to_owned(), value.to_owned())),
        }
    }
    if is_head {
        // The length is sent, but not the bytes.
        response.body = vec![0; length.unwrap_or(0)];
    } else if is_chunked {
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16).map_err(|_| malformed())?;
            let mut piece = vec![0; size];
            reader.read_exact(&mut piece)?;
            response.body.extend(piece);
            line.clear();
            reader.read_line(&mut line)?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = length {
        response.body.resize(length, 0);
        reader.read_exact(&mut response.body)?;
    } else if response.status != 204 && response.status != 304 {
        reader.read_to_end(&mut response.body)?;
    }
    Ok(response)
}
