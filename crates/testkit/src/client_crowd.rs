//! A crowd of clients with persistent connections: all send one request in each round, and then wait until everyone has
//! a response.
//!
//! A client behaves like a browser (RFC 9112, section 9.3.1): it reconnects if the server announces a close or the
//! connection is closed, and retries once if a reused connection closes before the first byte of the response.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;

use crate::origin_server::WAIT_TIMEOUT;

/// The results of a crowd's requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrowdReport {
    /// Responses with status 200.
    pub succeeded: usize,
    /// All other results, by client and round.
    pub failures: Vec<String>,
    /// Connections that were made.
    pub connection_count: usize,
}

impl CrowdReport {
    fn merge(&mut self, other: Self) {
        self.succeeded += other.succeeded;
        self.failures.extend(other.failures);
        self.connection_count += other.connection_count;
    }
}

/// Runs `visitors` clients that send `rounds` requests each, for the path that `path` returns for client and round.
pub fn run_crowd(
    addr: SocketAddr,
    (visitors, rounds): (usize, usize),
    path: impl Fn(usize, usize) -> String + Sync,
) -> CrowdReport {
    let thought = Barrier::new(visitors);
    let visit = |number: usize| {
        let mut visitor = KeepAliveClient::new(addr);
        let mut met = CrowdReport::default();
        for round in 0..rounds {
            thought.wait();
            match visitor.send_request(&path(number, round)) {
                Ok(200) => met.succeeded += 1,
                Ok(status) => {
                    met.failures.push(format!("visitor {number}, round {round}: {status}"))
                }
                Err(error) => {
                    met.failures.push(format!("visitor {number}, round {round}: {error}"))
                }
            }
        }
        met.connection_count = visitor.connection_count;
        met
    };
    std::thread::scope(|scope| {
        let visit = &visit;
        let all: Vec<_> = (0..visitors).map(|number| scope.spawn(move || visit(number))).collect();
        let mut met = CrowdReport::default();
        for visitor in all {
            match visitor.join() {
                Ok(own) => met.merge(own),
                Err(_panic) => met.failures.push("a visitor panicked".to_owned()),
            }
        }
        met
    })
}

/// A client with a persistent connection.
#[derive(Debug)]
pub struct KeepAliveClient {
    addr: SocketAddr,
    idle_stream: Option<TcpStream>,
    /// Connections that were made.
    pub connection_count: usize,
}

impl KeepAliveClient {
    /// Creates a client without a connection.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, idle_stream: None, connection_count: 0 }
    }

    /// Requests a path; returns the status of the response.
    ///
    /// # Errors
    /// The error of the connection, if there is no response.
    pub fn send_request(&mut self, path: &str) -> Result<u16> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if let Some(stream) = self.idle_stream.take()
            && is_stream_open(&stream)
        {
            match self.send_request_on(stream, &request) {
                Err(error) if error.kind() == ErrorKind::NotConnected => {}
                answered => return answered,
            }
        }
        let stream = TcpStream::connect(self.addr)?;
        self.connection_count += 1;
        self.send_request_on(stream, &request)
    }

    /// Returns true if the connection is persistent and the server has not closed it.
    #[must_use]
    pub fn has_open_connection(&self) -> bool {
        self.idle_stream.as_ref().is_some_and(is_stream_open)
    }

    /// Sends a request on a connection, and retains the connection if it is persistent; [`ErrorKind::NotConnected`] if
    /// it closes before a response.
    fn send_request_on(&mut self, mut stream: TcpStream, request: &str) -> Result<u16> {
        stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
        let as_not_connected = |error: Error| match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => ErrorKind::NotConnected.into(),
            _ => error,
        };
        stream.write_all(request.as_bytes()).map_err(as_not_connected)?;
        let mut bytes = Vec::new();
        let head_end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if read_chunk(&mut stream, &mut bytes).map_err(as_not_connected)? == 0 {
                let kind = match bytes.is_empty() {
                    true => ErrorKind::NotConnected,
                    false => ErrorKind::UnexpectedEof,
                };
                return Err(kind.into());
            }
        };
        let head = String::from_utf8_lossy(bytes.get(..head_end).unwrap_or_default());
        let head = head.to_ascii_lowercase();
        let malformed = || Error::new(ErrorKind::InvalidData, head.clone());
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: Option<usize> = length.and_then(|length| length.trim().parse().ok());
        let is_whole = |bytes: &[u8]| match length {
            Some(length) => bytes.len() >= head_end + length,
            // Chunked transfer, which ends with an empty chunk.
            None => bytes.ends_with(b"\r\n0\r\n\r\n"),
        };
        while !is_whole(&bytes) {
            if read_chunk(&mut stream, &mut bytes)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        if !head.contains("\r\nconnection: close\r\n") {
            self.idle_stream = Some(stream);
        }
        status.ok_or_else(malformed)
    }
}

/// Returns true if an idle connection is still open.
fn is_stream_open(stream: &TcpStream) -> bool {
    let mut byte = [0; 1];
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let peeked = stream.peek(&mut byte);
    let is_silent = matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).is_ok() && is_silent
}

fn read_chunk(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<usize> {
    let mut piece = [0; 16 * 1024];
    let count = stream.read(&mut piece)?;
    bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
    Ok(count)
}
