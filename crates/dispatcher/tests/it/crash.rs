//! SIGKILL while pages are stored and flushed: what is served afterwards is whole, and never older than a flush.
//!
//! The dispatcher runs in a process of its own: this test binary, started once more.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tympan_dispatcher::{Dispatcher, DispatcherRuntime};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};
use tympan_web::listen::{ListenerOptions, PortReuse, bind_listener};

use crate::front::{Reply, load};

/// Names the configuration to the second process.
const CONFIG: &str = "TYMPAN_TEST_DISPATCHER";

/// How often the dispatcher is killed; `make torture` sets more.
fn kills() -> u64 {
    std::env::var("TYMPAN_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(12)
}

/// The second process; in an ordinary run it has nothing to do.
#[test]
fn serves_until_killed() {
    let Some(file) = std::env::var_os(CONFIG) else { return };
    let text = std::fs::read_to_string(file).unwrap();
    let dispatcher = Dispatcher::new(load(&text).config, DispatcherRuntime::default()).unwrap();
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), PortReuse::Exclusive).unwrap();
    println!("\nlistens {}", listener.local_addr().unwrap());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let forever = std::future::pending();
    runtime
        .unwrap()
        .block_on(dispatcher.serve(listener, ListenerOptions::default(), forever))
        .unwrap();
}

struct Process {
    child: Child,
    addr: SocketAddr,
}

impl Process {
    fn start(config: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::serves_until_killed", "--nocapture", "--test-threads=1"])
            .env(CONFIG, config)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let addr = lines
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("listens ").map(|addr| addr.parse().unwrap()))
            .expect("the second process tells its address");
        Self { child, addr }
    }

    /// Sends a request; nothing if the process died meanwhile.
    fn ask(&self, head: &str) -> Option<Reply> {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.addr).ok()?;
        let request = format!("{head}\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).ok()?;
        let has_head = bytes.windows(4).any(|window| window == b"\r\n\r\n");
        has_head.then(|| Reply::parse(&bytes, false)).filter(|reply| reply.is_complete)
    }
}

/// Kills a process when it is dropped.
struct Killer(u32);

impl Drop for Killer {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.0).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A page that tells its version in every line, long enough to be written in several pieces.
fn page(version: u64) -> String {
    format!("version {version:08}\n").repeat(if version.is_multiple_of(3) { 90_000 } else { 500 })
}

/// Returns the version of a page, after making sure that it is whole and of one version.
fn version_of(body: &str) -> u64 {
    let first = body.lines().next().unwrap_or_default();
    let version: u64 = first.strip_prefix("version ").unwrap().parse().unwrap();
    assert_eq!(body.len(), page(version).len(), "the page of version {version} is cut or too long");
    assert!(body.lines().all(|line| line == first), "a page of mixed versions");
    version
}

const PAGES: u64 = 4;

#[test]
fn what_a_killed_dispatcher_leaves_is_whole_and_not_older_than_a_flush() {
    let current = Arc::new(AtomicU64::new(1));
    let drawn = Arc::clone(&current);
    let origin = OriginServer::start(move |_| {
        let version = drawn.load(Ordering::SeqCst);
        // The header has to fit the body, too.
        OriginResponse::html(page(version)).with_header("X-Version", &version.to_string())
    });
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("test.any");
    let setup = crate::front::Setup {
        cache: "/headers { \"X-Version\" } /x-compress 1",
        renders: vec![origin.addr()],
        ..crate::front::Setup::default()
    };
    std::fs::write(&config, setup.text(&folder.path().join("docroot"))).unwrap();
    let mut process = Process::start(&config);
    // Answers that were whole, and those that a kill cut off or kept back.
    let (whole, broken) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut flushes = 0;
    for kill in 0..kills() {
        let check = |reply: Reply, at_least: u64| {
            assert_eq!(reply.status, 200);
            let version = version_of(&reply.body);
            assert_eq!(reply.header("x-version"), Some(version.to_string().as_str()));
            assert!(version >= at_least, "version {version} after a flush of {at_least}");
        };
        std::thread::scope(|scope| {
            let (process, whole, broken) = (&process, &whole, &broken);
            // A failed assertion ends the visitors, who would ask for ever otherwise.
            let _killer = Killer(process.child.id());
            // Visitors store pages while flushes remove them, until the process dies under them.
            for number in 0..PAGES {
                scope.spawn(move || {
                    let plain = format!("GET /p{number}.html HTTP/1.1");
                    // Every other answer comes in an encoding, as soon as there is one.
                    let encoded = format!("{plain}\r\nAccept-Encoding: gzip");
                    while let Some(reply) = process.ask(&plain)
                        && process.ask(&encoded).is_some()
                    {
                        let version = version_of(&reply.body).to_string();
                        assert_eq!(reply.header("x-version"), Some(version.as_str()));
                        whole.fetch_add(2, Ordering::Relaxed);
                    }
                    broken.fetch_add(1, Ordering::Relaxed);
                });
            }
            for round in 0..=kill % 5 {
                let version = current.fetch_add(1, Ordering::SeqCst) + 1;
                for number in 0..PAGES {
                    let flush = format!(
                        "POST /dispatcher/invalidate.cache HTTP/1.1\r\nCQ-Action: Activate\r\nCQ-Handle: /p{number}"
                    );
                    assert_eq!(process.ask(&flush).unwrap().status, 200);
                    flushes += 1;
                    if round % 2 == 0 {
                        check(
                            process.ask(&format!("GET /p{number}.html HTTP/1.1")).unwrap(),
                            version,
                        );
                    }
                }
            }
            // A flush may be under way, too.
            scope.spawn(|| process.ask("POST / HTTP/1.1\r\nCQ-Action: Activate\r\nCQ-Handle: /p0"));
        });
        process = Process::start(&config);
        let acknowledged = current.load(Ordering::SeqCst);
        for number in 0..PAGES {
            check(process.ask(&format!("GET /p{number}.html HTTP/1.1")).unwrap(), acknowledged);
        }
    }
    eprintln!(
        "{} kills: {flushes} flushes acknowledged, {} pages drawn, {} answers whole, {} cut off by a kill; \
         none truncated, mixed or older than a flush afterwards",
        kills(),
        origin.request_count(),
        whole.into_inner(),
        broken.into_inner()
    );
}
