//! A slow back-end system: it returns the same JSON for every request after a fixed delay.
//!
//! Input: a delay, 50 ms in the figures of the sources. Output: the number of requests, and the maximum number of
//! concurrent ones. It stores nothing of a request, so that it can serve a load test of any length.

use std::io::BufReader;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::origin_server::{OriginResponse, lock_unpoisoned, read_request, send_response};

/// The delay of the system that the sources describe.
pub const LEGACY_DELAY: Duration = Duration::from_millis(50);

/// The system; dropping it closes all its connections, as if it had crashed.
#[derive(Debug)]
pub struct LegacySystem {
    addr: SocketAddr,
    shared: Arc<LegacySystemState>,
}

#[derive(Debug)]
struct LegacySystemState {
    response: OriginResponse,
    delay: Duration,
    request_count: AtomicUsize,
    active_requests: AtomicUsize,
    max_active_requests: AtomicUsize,
    is_stopped: AtomicBool,
    connections: std::sync::Mutex<Vec<TcpStream>>,
}

impl LegacySystem {
    /// Starts a system on a free port of this machine.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn start(delay: Duration, json: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let addr = listener.local_addr().expect("the socket is bound");
        let response = OriginResponse::with_status(200)
            .with_header("Content-Type", "application/json")
            .with_body(json);
        let shared = Arc::new(LegacySystemState {
            response,
            delay,
            request_count: AtomicUsize::new(0),
            active_requests: AtomicUsize::new(0),
            max_active_requests: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
            connections: std::sync::Mutex::default(),
        });
        let server = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if server.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(handle) = stream.try_clone() {
                    lock_unpoisoned(&server.connections).push(handle);
                }
                let server = Arc::clone(&server);
                std::thread::spawn(move || serve_connection(&stream, &server));
            }
        });
        Self { addr, shared }
    }

    /// Returns the address on which the system listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the number of requests received.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.shared.request_count.load(Ordering::SeqCst)
    }

    /// Returns the maximum number of concurrent requests.
    #[must_use]
    pub fn max_concurrent_requests(&self) -> usize {
        self.shared.max_active_requests.load(Ordering::SeqCst)
    }
}

impl Drop for LegacySystem {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then checks the flag.
        drop(TcpStream::connect(self.addr));
        for connection in lock_unpoisoned(&self.shared.connections).drain(..) {
            connection.shutdown(Shutdown::Both).ok();
        }
    }
}

/// Answers requests until the peer ends the connection.
fn serve_connection(stream: &TcpStream, shared: &LegacySystemState) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let request = read_request(&mut reader, stream)?;
        shared.request_count.fetch_add(1, Ordering::SeqCst);
        let running = shared.active_requests.fetch_add(1, Ordering::SeqCst) + 1;
        shared.max_active_requests.fetch_max(running, Ordering::SeqCst);
        std::thread::sleep(shared.delay);
        shared.active_requests.fetch_sub(1, Ordering::SeqCst);
        send_response(stream, &shared.response, request.method == "HEAD")?;
        if request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            stream.shutdown(Shutdown::Both).ok()?;
            return None;
        }
    }
}
