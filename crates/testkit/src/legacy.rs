//! A slow system behind a site: it answers every request with the same JSON, a set time after it came.
//!
//! In: a delay, 50 ms in the figures of the sources. Out: how many requests came, and how many were answered at once at
//! most. It keeps nothing of a request, so that it can serve a load test of any length.

use std::io::BufReader;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::origin::{Answer, lock, read_request, send};

/// The delay of the system that the sources tell of.
pub const LEGACY_DELAY: Duration = Duration::from_millis(50);

/// The system; dropping it closes all its connections, as if it had died.
#[derive(Debug)]
pub struct Legacy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    answer: Answer,
    delay: Duration,
    requests: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
    stopped: AtomicBool,
    connections: std::sync::Mutex<Vec<TcpStream>>,
}

impl Legacy {
    /// Starts a system on a free port of this machine.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn start(delay: Duration, json: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let addr = listener.local_addr().expect("the socket is bound");
        let answer = Answer::status(200).header("Content-Type", "application/json").body(json);
        let shared = Arc::new(Shared {
            answer,
            delay,
            requests: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            connections: std::sync::Mutex::default(),
        });
        let server = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if server.stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(handle) = stream.try_clone() {
                    lock(&server.connections).push(handle);
                }
                let server = Arc::clone(&server);
                std::thread::spawn(move || converse(&stream, &server));
            }
        });
        Self { addr, shared }
    }

    /// Returns where the system listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns how many requests came.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Returns how many requests it worked on at once, at most.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.shared.most.load(Ordering::SeqCst)
    }
}

impl Drop for Legacy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then sees the flag.
        drop(TcpStream::connect(self.addr));
        for connection in lock(&self.shared.connections).drain(..) {
            connection.shutdown(Shutdown::Both).ok();
        }
    }
}

/// Answers requests until the peer ends the connection.
fn converse(stream: &TcpStream, shared: &Shared) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let seen = read_request(&mut reader, stream)?;
        shared.requests.fetch_add(1, Ordering::SeqCst);
        let running = shared.running.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most.fetch_max(running, Ordering::SeqCst);
        std::thread::sleep(shared.delay);
        shared.running.fetch_sub(1, Ordering::SeqCst);
        send(stream, &shared.answer, seen.method == "HEAD")?;
        if seen.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            stream.shutdown(Shutdown::Both).ok()?;
            return None;
        }
    }
}
