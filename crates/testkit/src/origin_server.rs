//! A scripted HTTP server that records its requests, on plain threads.
//!
//! Input: a function from a request to a response; it may block on a [`OriginGate`] until the test opens it. Output:
//! the requests in the order of their arrival.
//!
//! Every wait ends after [`WAIT_TIMEOUT`] with a panic, so that a broken program fails a test instead of hanging it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a test waits for an expected event.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// One request as received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OriginRequest {
    /// `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names as sent, values trimmed.
    pub headers: Vec<(String, String)>,
    /// The complete body, decoded if it was chunked.
    pub body: Vec<u8>,
}

impl OriginRequest {
    /// Returns the first value of the header `name`, ignoring case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// The delivery of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseDelivery {
    /// The complete response.
    Complete,
    /// The head and this many bytes of the body, then the connection closes.
    CutAfter(usize),
    /// The head and this many bytes of the body; then the response stalls until the server is dropped.
    StallAfter(usize),
    /// Nothing: the connection closes.
    Hangup,
    /// Nothing until the server is dropped.
    NoResponse,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginResponse {
    /// The status.
    pub status: u16,
    /// The headers except `Content-Length`.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The delivery of the response.
    pub delivery: ResponseDelivery,
}

impl OriginResponse {
    /// Returns a response with status 200, type `text/html; charset=utf-8` and `body`.
    #[must_use]
    pub fn html(body: impl Into<Vec<u8>>) -> Self {
        Self::with_status(200)
            .with_body(body)
            .with_header("Content-Type", "text/html; charset=utf-8")
    }

    /// Returns an empty response with a status.
    #[must_use]
    pub fn with_status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), delivery: ResponseDelivery::Complete }
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the delivery of the response.
    #[must_use]
    pub fn with_delivery(mut self, delivery: ResponseDelivery) -> Self {
        self.delivery = delivery;
        self
    }
}

/// A gate at which scripts wait.
#[derive(Debug, Clone, Default)]
pub struct OriginGate(Arc<(Mutex<bool>, Condvar)>);

impl OriginGate {
    /// Opens the gate for current and later callers.
    pub fn open(&self) {
        *lock_unpoisoned(&self.0.0) = true;
        self.0.1.notify_all();
    }

    /// Closes the gate for later callers.
    pub fn close(&self) {
        *lock_unpoisoned(&self.0.0) = false;
    }

    /// Waits until the gate is open.
    ///
    /// # Panics
    /// After [`WAIT_TIMEOUT`].
    pub fn wait_open(&self) {
        wait_until(&self.0.0, &self.0.1, "the gate to open", |is_open| *is_open);
    }
}

/// The server; dropping it closes all its connections.
#[derive(Debug)]
pub struct OriginServer {
    addr: SocketAddr,
    shared: Arc<OriginServerState>,
}

type OriginScript = dyn Fn(&OriginRequest) -> OriginResponse + Send + Sync;

struct OriginServerState {
    script: Box<OriginScript>,
    requests: Mutex<Vec<OriginRequest>>,
    request_arrived: Condvar,
    connections: Mutex<Vec<TcpStream>>,
    is_stopped: AtomicBool,
}

impl std::fmt::Debug for OriginServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OriginServerState").field("seen", &self.requests).finish_non_exhaustive()
    }
}

impl OriginServer {
    /// Starts a server on a free port of this machine that responds as `script` returns.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn start(
        script: impl Fn(&OriginRequest) -> OriginResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let addr = listener.local_addr().expect("the socket is bound");
        let shared = Arc::new(OriginServerState {
            script: Box::new(script),
            requests: Mutex::default(),
            request_arrived: Condvar::new(),
            connections: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        });
        let server = Arc::clone(&shared);
        std::thread::spawn(move || accept_connections(&listener, &server));
        Self { addr, shared }
    }

    /// Starts a server that returns `response` for every request.
    #[must_use]
    pub fn start_constant(response: OriginResponse) -> Self {
        Self::start(move |_| response.clone())
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns all requests so far, in order of arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<OriginRequest> {
        lock_unpoisoned(&self.shared.requests).clone()
    }

    /// Returns the number of requests so far.
    #[must_use]
    pub fn request_count(&self) -> usize {
        lock_unpoisoned(&self.shared.requests).len()
    }

    /// Returns the number of requests for exactly `target` so far.
    #[must_use]
    pub fn request_count_for(&self, target: &str) -> usize {
        lock_unpoisoned(&self.shared.requests)
            .iter()
            .filter(|request| request.target == target)
            .count()
    }

    /// Waits until at least `count` requests arrived.
    ///
    /// # Panics
    /// After [`WAIT_TIMEOUT`].
    pub fn wait_for_requests(&self, count: usize) {
        let expectation = format!("{count} requests at the origin");
        wait_until(&self.shared.requests, &self.shared.request_arrived, &expectation, |requests| {
            requests.len() >= count
        });
    }
}

impl Drop for OriginServer {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then checks the flag.
        drop(TcpStream::connect(self.addr));
        for connection in lock_unpoisoned(&self.shared.connections).drain(..) {
            connection.shutdown(Shutdown::Both).ok();
        }
    }
}

/// Returns an address of this machine that refuses connections.
///
/// # Panics
/// If no port is free.
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn refusing_addr() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    listener.local_addr().expect("the socket is bound")
}

/// Sends `bytes` to `addr` over one connection and returns all bytes received until the other side closes.
///
/// # Panics
/// If the connection cannot be made, or stays open longer than [`WAIT_TIMEOUT`].
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn exchange_bytes(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).expect("the server accepts");
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).expect("the time is not zero");
    // The server may close before it read everything; only its response up to then matters.
    stream.write_all(bytes).ok();
    let mut response = Vec::new();
    if let Err(error) = stream.read_to_end(&mut response) {
        assert!(
            error.kind() == std::io::ErrorKind::ConnectionReset,
            "the server neither answers nor closes: {error}"
        );
    }
    response
}

fn accept_connections(listener: &TcpListener, shared: &Arc<OriginServerState>) {
    for stream in listener.incoming().flatten() {
        if shared.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(handle) = stream.try_clone() {
            lock_unpoisoned(&shared.connections).push(handle);
        }
        let shared = Arc::clone(shared);
        std::thread::spawn(move || serve_connection(&stream, &shared));
    }
}

/// Answers requests until the peer or the script ends the connection.
fn serve_connection(stream: &TcpStream, shared: &OriginServerState) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let request = read_request(&mut reader, stream)?;
        lock_unpoisoned(&shared.requests).push(request.clone());
        shared.request_arrived.notify_all();
        let response = (shared.script)(&request);
        send_response(stream, &response, request.method == "HEAD")?;
        if request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            stream.shutdown(Shutdown::Both).ok()?;
            return None;
        }
    }
}

pub(crate) fn read_request(
    reader: &mut BufReader<TcpStream>,
    stream: &TcpStream,
) -> Option<OriginRequest> {
    let line = read_line(reader)?;
    let mut words = line.split(' ');
    let mut request = OriginRequest {
        method: words.next()?.to_owned(),
        target: words.next()?.to_owned(),
        ..OriginRequest::default()
    };
    loop {
        let line = read_line(reader)?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        request.headers.push((name.to_owned(), value.trim().to_owned()));
    }
    if request.header("expect").is_some() {
        let mut stream = stream;
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    request.body = read_body(reader, &request)?;
    Some(request)
}

fn read_body(reader: &mut BufReader<TcpStream>, request: &OriginRequest) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    if request.header("transfer-encoding").is_some() {
        loop {
            let size = usize::from_str_radix(&read_line(reader)?, 16).ok()?;
            let mut chunk = vec![0; size];
            reader.read_exact(&mut chunk).ok()?;
            body.extend(chunk);
            read_line(reader)?;
            if size == 0 {
                return Some(body);
            }
        }
    }
    let size = request.header("content-length").map_or(Some(0), |size| size.parse().ok())?;
    body.resize(size, 0);
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

fn read_line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    (reader.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
}

pub(crate) fn send_response(
    mut stream: &TcpStream,
    response: &OriginResponse,
    is_head: bool,
) -> Option<()> {
    let mut head = format!("HTTP/1.1 {} Scripted\r\n", response.status);
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !matches!(response.status, 204 | 304) {
        head.push_str(&format!("Content-Length: {}\r\n", response.body.len()));
    }
    head.push_str("\r\n");
    let whole = if is_head { 0 } else { response.body.len() };
    let (bytes, goes_on) = match response.delivery {
        ResponseDelivery::Complete => (Some(whole), true),
        ResponseDelivery::CutAfter(bytes) | ResponseDelivery::StallAfter(bytes) => {
            (Some(bytes.min(whole)), false)
        }
        ResponseDelivery::Hangup | ResponseDelivery::NoResponse => (None, false),
    };
    if let Some(bytes) = bytes {
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(response.body.get(..bytes)?).ok()?;
    }
    if matches!(response.delivery, ResponseDelivery::CutAfter(_) | ResponseDelivery::Hangup) {
        stream.shutdown(Shutdown::Both).ok()?;
    }
    goes_on.then_some(())
}

pub(crate) fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panicked script has failed its test already.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_until<T>(mutex: &Mutex<T>, event: &Condvar, expectation: &str, holds: impl Fn(&T) -> bool) {
    let (_guard, waited) = event
        .wait_timeout_while(lock_unpoisoned(mutex), WAIT_TIMEOUT, |value| !holds(value))
        .unwrap_or_else(PoisonError::into_inner);
    assert!(!waited.timed_out(), "waited in vain for {expectation}");
}
