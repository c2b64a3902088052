//! Many visitors at once, half of them slow or hostile: the others are served, memory stays bounded, and nothing leaks.
//!
//! `TYMPAN_CLIENTS` (default 400) and `TYMPAN_SECONDS` (default 8) make it long; 10,000 clients need a limit of 12,000
//! open files.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tympan_testkit::condition_wait::wait_for;
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::program::{Running, free_address, get};

/// What a connection may cost at most, and the process without any.
const CONNECTION_KIB: u64 = 48;
const PROCESS_KIB: u64 = 192 * 1024;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

struct Tally {
    started: Instant,
    served: AtomicU64,
    attacks: AtomicU64,
    is_over: watch::Sender<bool>,
    errors: std::sync::Mutex<Vec<String>>,
}

impl Tally {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            served: AtomicU64::new(0),
            attacks: AtomicU64::new(0),
            is_over: watch::Sender::new(false),
            errors: std::sync::Mutex::default(),
        }
    }

    fn goes_on(&self) -> bool {
        !*self.is_over.borrow()
    }

    /// Lets time pass between two requests, but no longer than the crowd lasts.
    async fn pause(&self, time: Duration) {
        let mut over = self.is_over.subscribe();
        tokio::time::timeout(time, over.wait_for(|is_over| *is_over)).await.ok();
    }
}

fn write_config(dir: &Path, origin: &OriginServer, clients: u64) {
    let config = format!(
        "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /clientheaders {{ \"*\" }}\n\
         /renders {{ /r0 {{ /hostname \"127.0.0.1\" /port \"{}\" }} }}\n\
         /filter {{ /0 {{ /type \"deny\" /url \"*\" }} /1 {{ /type \"allow\" /method \"GET\" /url \"*\" }} }}\n\
         /cache {{ /docroot \"{}\" /rules {{ /0 {{ /type \"allow\" /glob \"*\" }} }} /allowedClients {{ /0 {{ /type \"deny\" /glob \"*\" }} }} }} }} }}",
        origin.addr().port(),
        dir.join("docroot").display()
    );
    std::fs::create_dir_all(dir.join("docroot")).unwrap();
    std::fs::write(dir.join("dispatcher.any"), config).unwrap();
    // Visitors that a busy machine holds up must not count as idle ones, so slow heads stay as long as they like. Kept
    // connections to the render would count as files that are open after the run.
    let settings = format!(
        "[listen]\nmax_connections = {}\nheader_timeout = \"3600s\"\n[dispatcher]\nkeep_alive_timeout = \"2s\"\n",
        clients + 1000
    );
    std::fs::write(dir.join("tympan.toml"), settings).unwrap();
}

/// A visitor that keeps a connection and asks for a page every second or so.
async fn visit(addr: SocketAddr, index: u64, tally: Arc<Tally>) {
    let request = format!("GET /p{}.html HTTP/1.1\r\nHost: h\r\n\r\n", index % 50);
    let mut connection: Option<TcpStream> = None;
    // A thousand connections a second: what the kernel lets wait is soon full otherwise.
    let mut pause = Duration::from_millis(index * 2);
    while tally.goes_on() {
        tally.pause(pause).await;
        pause = Duration::from_millis(900 + index % 200);
        let is_new = connection.is_none();
        match ask(addr, &request, &mut connection).await {
            Ok(()) => drop(tally.served.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                let which = if is_new { "a new" } else { "an open" };
                let text =
                    format!("{error} on {which} connection after {:?}", tally.started.elapsed());
                tally.errors.lock().unwrap().push(text);
                connection = None;
            }
        }
    }
}

async fn ask(
    addr: SocketAddr,
    request: &str,
    connection: &mut Option<TcpStream>,
) -> std::io::Result<()> {
    if connection.is_none() {
        *connection = Some(TcpStream::connect(addr).await?);
    }
    let Some(stream) = connection else { return Ok(()) };
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::with_capacity(8192);
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(std::io::Error::other("the connection ended"));
        }
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") {
            return Err(std::io::Error::other(head));
        }
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or(0);
        if answer.len() < end + 4 + length {
            continue;
        }
        if head.contains("connection: close") {
            *connection = None;
        }
        return match &answer[end + 4..] {
            body if body.len() == PAGE_BYTES && body.iter().all(|byte| *byte == b'p') => Ok(()),
            _ => Err(std::io::Error::other("another page")),
        };
    }
}

const PAGE_BYTES: usize = 6000;
const LARGE_BYTES: usize = 2_000_000;

/// A client that means no good, of one of seven kinds; it comes again when it is shown out.
async fn attack(addr: SocketAddr, index: u64, tally: Arc<Tally>) {
    tally.pause(Duration::from_millis(index * 2)).await;
    while tally.goes_on() {
        if let Ok(stream) = TcpStream::connect(addr).await {
            tally.attacks.fetch_add(1, Ordering::Relaxed);
            // Whatever the server does with it is right, unless others feel it.
            once(stream, index, &tally).await.ok();
        }
        tally.pause(Duration::from_millis(200)).await;
    }
}

async fn once(mut stream: TcpStream, index: u64, tally: &Tally) -> std::io::Result<()> {
    let second = Duration::from_secs(1);
    let head = b"GET /p1.html HTTP/1.1\r\nHost: h\r\nX-Long: ";
    match index % 7 {
        // A head that comes byte by byte.
        0 => {
            for byte in head.iter().cycle() {
                stream.write_all(&[*byte]).await?;
                tally.pause(second).await;
                if !tally.goes_on() {
                    break;
                }
            }
        }
        // A request, and then neither another one nor an end.
        1 => {
            stream.write_all(b"GET /p1.html HTTP/1.1\r\nHost: h\r\n\r\n").await?;
            stream.shutdown().await?;
            tally.pause(Duration::from_secs(5)).await;
        }
        // Garbage.
        2 => {
            let garbage: Vec<u8> = (0..2000_u64).map(|at| ((at * index) >> 3) as u8).collect();
            stream.write_all(&garbage).await?;
            while stream.read(&mut [0; 1024]).await? > 0 {}
        }
        // A head without end.
        3 => {
            stream.write_all(head).await?;
            while tally.goes_on() {
                stream.write_all(&[b'x'; 16 * 1024]).await?;
            }
        }
        // A large page, read byte by byte.
        4 => {
            stream.write_all(b"GET /large.html HTTP/1.1\r\nHost: h\r\n\r\n").await?;
            while tally.goes_on() && stream.read(&mut [0; 1]).await? > 0 {
                tally.pause(second).await;
            }
        }
        // Nothing at all.
        5 => tally.pause(Duration::from_secs(30)).await,
        // A body that is announced and does not come.
        _ => {
            stream
                .write_all(b"POST /form HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")
                .await?;
            while tally.goes_on() {
                stream.write_all(b"x").await?;
                tally.pause(second).await;
            }
        }
    }
    Ok(())
}

fn files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// A line of the process's status, in KiB.
fn memory(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// How many connections the kernel of this machine did not take as nobody accepted them in time.
fn overflows() -> u64 {
    let text = std::fs::read_to_string("/proc/net/netstat").unwrap_or_default();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs
        .find(|(name, _)| *name == "ListenOverflows")
        .map_or(0, |(_, value)| value.parse().unwrap_or(0))
}

#[test]
fn visitors_are_served_among_slow_and_hostile_ones() {
    let (clients, seconds) = (number("TYMPAN_CLIENTS", 400), number("TYMPAN_SECONDS", 8));
    let dir = tempfile::tempdir().unwrap();
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/large.html" => OriginResponse::html(vec![b'l'; LARGE_BYTES]),
        _ => OriginResponse::html(vec![b'p'; PAGE_BYTES]),
    });
    write_config(dir.path(), &origin, clients);
    let addr = free_address();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let running = Running::start(&[
        "dispatcher",
        "--config",
        &path("dispatcher.any"),
        "--settings",
        &path("tympan.toml"),
        "--listen",
        &addr.to_string(),
    ]);
    let pid = running.pid();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tally = Arc::new(Tally::new());
    // One request first, so that what is opened once is open.
    runtime.block_on(ask(addr, "GET /p0.html HTTP/1.1\r\nHost: h\r\n\r\n", &mut None)).unwrap();
    let before = files(pid);
    let overflows_before = overflows();
    let mut most = 0;
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for index in 0..clients {
            match index % 2 {
                0 => tasks.spawn(visit(addr, index / 2, Arc::clone(&tally))),
                _ => tasks.spawn(attack(addr, index / 2, Arc::clone(&tally))),
            };
        }
        let mut looks = tokio::time::interval(Duration::from_millis(200));
        for _ in 0..seconds * 5 {
            looks.tick().await;
            most = most.max(files(pid));
        }
        tally.is_over.send_replace(true);
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
    });
    let peak = memory(pid, "VmHWM:");
    let slack = 20;
    wait_for(|| match files(pid) {
        open if open <= before + slack => Ok(()),
        open => Err(format!("{open} files are open, {before} were before")),
    });
    let served = tally.served.load(Ordering::Relaxed);
    let errors = tally.errors.lock().unwrap();
    eprintln!(
        "{clients} clients for {seconds} s: {served} pages served, {} attacks, at most {most} files open, \
         {} after, peak of memory {} MiB, {} connections that the kernel did not take",
        tally.attacks.load(Ordering::Relaxed),
        files(pid),
        peak / 1024,
        overflows() - overflows_before
    );
    assert!(errors.is_empty(), "{} errors: {:?}", errors.len(), errors.first());
    assert!(served >= clients / 2, "{served}");
    let bound = PROCESS_KIB + clients * CONNECTION_KIB;
    assert!(peak <= bound, "{peak} KiB of memory, {bound} are allowed");
}

#[test]
fn idle_visitors_leave_for_others_where_few_files_may_be_open() {
    const FILES: u64 = 220;
    let dir = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("<p>page</p>"));
    write_config(dir.path(), &origin, 10_000);
    let address = free_address();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let running = Running::start_with_files(
        FILES,
        &[
            "dispatcher",
            "--config",
            &path("dispatcher.any"),
            "--settings",
            &path("tympan.toml"),
            "--listen",
            &address.to_string(),
        ],
    );
    // More than it could accept, and none of them asks for anything.
    let idle: Vec<_> =
        (0..2 * FILES).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    for round in 0..3 {
        let answer = get(address, &format!("/p{round}.html"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "<p>page</p>"));
    }
    assert!(files(running.pid()) < FILES as usize, "some are left to accept others with");
    drop(idle);
}
