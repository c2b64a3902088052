//! Endlessly slow clients: on each of their connections a request arrives one byte at a time and is never completed.
//!
//! The behavior of the server is reported, not evaluated: it may wait as long as it likes, if others are not affected.
//! A client whose connection ends opens another one, as an attacker does.
//!
//! Not here: the degradation of healthy traffic ([`super::error_trial`]).

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use serde_json::{Value, json};
use tympan_lab_engine::goal;
use tympan_lab_engine::net::LoadTarget;
use tympan_lab_engine::report::report_sheet::{ReportTable, ReportTone};
use tympan_lab_plan::AbsoluteUrl;

use crate::{Error, Result};

/// The time between two bytes.
const BYTE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Clients that run on a separate thread.
#[derive(Debug)]
pub(super) struct SlowClients {
    stop_sender: Sender<()>,
    thread: JoinHandle<SlowClientStats>,
}

/// Statistics of their connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SlowClientStats {
    /// Number of concurrent clients.
    client_count: usize,
    /// Total number of connections.
    opened: u64,
    /// Number of refused connections.
    rejected: u64,
    /// Number of connections with a response, by status.
    responses_by_status: BTreeMap<u16, u64>,
    /// Number of connections that ended without a response.
    closed_without_response: u64,
    /// Number of connections open at the end.
    open_at_end: u64,
    /// Longest duration of a connection.
    longest_connection: Duration,
}

impl SlowClients {
    /// Starts the given number of clients against the server of `url`.
    ///
    /// # Errors
    /// `Error::InvalidUrl`, `Error::Resolve`, [`Error::Tls`]; [`Error::Engine`] if no thread can be started.
    pub(super) fn start(url: &str, clients: usize) -> Result<Self> {
        let url = AbsoluteUrl::parse(url)?;
        let target = LoadTarget::resolve(url.is_tls, &url.host, url.port)?;
        let (stop, receiver) = channel::<()>();
        let work = move || {
            let mut crowd = SlowClientPool::new(target, clients);
            loop {
                crowd.advance_all(Instant::now());
                // Nothing is ever sent on this channel: the sender is dropped to stop the thread.
                if receiver.recv_timeout(BYTE_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return crowd.into_stats(Instant::now());
                }
            }
        };
        let thread = std::thread::Builder::new().name("slow clients".to_owned());
        Ok(Self { stop_sender: stop, thread: thread.spawn(work).map_err(Error::Engine)? })
    }

    /// Stops all clients.
    ///
    /// # Errors
    /// [`Error::Engine`] if their thread has already ended.
    pub(super) fn stop(self) -> Result<SlowClientStats> {
        drop(self.stop_sender);
        let ended = || Error::Engine(std::io::Error::other("the thread of slow clients panicked"));
        self.thread.join().map_err(|_| ended())
    }
}

impl SlowClientStats {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "clients": self.client_count, "connections": self.opened, "refused": self.rejected, "answered": self.responses_by_status,
            "closed": self.closed_without_response, "held": self.open_at_end, "longest_seconds": self.longest_connection.as_secs_f64(),
        })
    }

    pub(super) fn to_grid(&self) -> ReportTable {
        let head = [
            "clients",
            "connections",
            "refused",
            "responses",
            "closed",
            "held to the end",
            "longest",
        ];
        let mut grid = ReportTable::new("Slow clients", &head);
        let answered: Vec<String> = self
            .responses_by_status
            .iter()
            .map(|(status, count)| format!("{count} with {status}"))
            .collect();
        let answered = if answered.is_empty() { "0".to_owned() } else { answered.join(", ") };
        let count = |number: u64| number.to_string();
        grid.add_row(
            ReportTone::Plain,
            vec![
                self.client_count.to_string(),
                count(self.opened),
                count(self.rejected),
                answered,
                count(self.closed_without_response),
                count(self.open_at_end),
                goal::format_response_time(self.longest_connection),
            ],
        );
        grid
    }
}

struct SlowClient {
    socket: TcpStream,
    connected_at: Instant,
    sent_bytes: usize,
    /// The rest of the request head; made-up bytes follow it.
    remaining_head: Vec<u8>,
}

struct SlowClientPool {
    target: Arc<LoadTarget>,
    clients: Vec<Option<SlowClient>>,
    stats: SlowClientStats,
}

impl SlowClientPool {
    fn new(target: Arc<LoadTarget>, clients: usize) -> Self {
        let stats = SlowClientStats { client_count: clients, ..SlowClientStats::default() };
        Self { target, clients: (0..clients).map(|_| None).collect(), stats }
    }

    /// Lets each client send a byte or connect.
    fn advance_all(&mut self, now: Instant) {
        for slot in &mut self.clients {
            if let Some(client) = slot {
                if !client.send_byte(now, &mut self.stats) {
                    *slot = None;
                }
                continue;
            }
            self.stats.opened += 1;
            *slot = SlowClient::connect(&self.target, now);
            self.stats.rejected += u64::from(slot.is_none());
        }
    }

    fn into_stats(mut self, now: Instant) -> SlowClientStats {
        for client in self.clients.iter().flatten() {
            self.stats.open_at_end += 1;
            self.stats.record_duration(client, now);
        }
        self.stats
    }
}

impl SlowClientStats {
    fn record_duration(&mut self, client: &SlowClient, now: Instant) {
        self.longest_connection =
            self.longest_connection.max(now.saturating_duration_since(client.connected_at));
    }
}

impl SlowClient {
    fn connect(target: &LoadTarget, now: Instant) -> Option<Self> {
        let socket = TcpStream::connect_timeout(&target.next_address()?, CONNECT_TIMEOUT).ok()?;
        socket.set_nonblocking(true).ok()?;
        // Otherwise the system collects bytes until the first is acknowledged.
        socket.set_nodelay(true).ok()?;
        let mut first = Vec::new();
        match &target.tls_config {
            None => {
                let head = format!("GET / HTTP/1.1\r\nHost: {}\r\nSlow: ", target.authority());
                first.extend_from_slice(head.as_bytes());
            }
            Some((config, name)) => {
                let mut session = ClientConnection::new(Arc::clone(config), name.clone()).ok()?;
                session.write_tls(&mut first).ok()?;
            }
        }
        Some(Self { socket, connected_at: now, sent_bytes: 0, remaining_head: first })
    }

    /// Sends a byte; returns false once the connection has ended.
    fn send_byte(&mut self, now: Instant, stats: &mut SlowClientStats) -> bool {
        let mut response = [0; 16];
        match self.socket.read(&mut response) {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                let byte = self.remaining_head.get(self.sent_bytes).copied().unwrap_or(b'x');
                // A write error is detected by the next read.
                self.sent_bytes += self.socket.write(&[byte]).unwrap_or(0);
                return true;
            }
            Err(_) => stats.closed_without_response += 1,
            Ok(length) => match parse_status(response.get(..length).unwrap_or_default()) {
                Some(status) => *stats.responses_by_status.entry(status).or_default() += 1,
                None => stats.closed_without_response += 1,
            },
        }
        stats.record_duration(self, now);
        false
    }
}

/// Parses the status from the first bytes of a response; `None` if it is not HTTP.
fn parse_status(response: &[u8]) -> Option<u16> {
    let text = response.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener};

    use super::*;

    fn crowd(clients: usize) -> (TcpListener, SlowClientPool) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        (
            listener,
            SlowClientPool::new(LoadTarget::resolve(false, "127.0.0.1", port).unwrap(), clients),
        )
    }

    /// Advances the clients until one of their connections has ended, which the system reports after an unspecified
    /// delay.
    fn until_ended(crowd: &mut SlowClientPool, now: Instant) {
        let opened_before = crowd.stats.opened;
        let mut rounds = 0..10_000_000;
        while crowd.stats.opened == opened_before && rounds.next().is_some() {
            crowd.advance_all(now);
        }
    }

    #[test]
    fn every_client_sends_a_byte_at_a_time_and_begins_again() {
        let (listener, mut crowd) = crowd(1);
        let started = Instant::now();
        crowd.advance_all(started);
        let (mut server, _) = listener.accept().unwrap();
        (0..5).for_each(|_| crowd.advance_all(started));
        let mut bytes = [0; 5];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"GET /");
        server.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
        server.shutdown(Shutdown::Both).unwrap();
        until_ended(&mut crowd, started + Duration::from_secs(7));
        drop(listener.accept().unwrap());
        until_ended(&mut crowd, started + Duration::from_secs(8));
        let stats = crowd.into_stats(started + Duration::from_secs(9));
        let (answered, longest) = (BTreeMap::from([(408, 1)]), Duration::from_secs(7));
        let expected = SlowClientStats {
            client_count: 1,
            opened: 3,
            rejected: 0,
            responses_by_status: answered,
            closed_without_response: 1,
            open_at_end: 1,
            longest_connection: longest,
        };
        assert_eq!(stats, expected);
        assert_eq!(stats.to_grid().rows[0].1[3], "1 with 408");
    }

    #[test]
    fn a_server_that_takes_no_connection_refuses_each() {
        let (listener, mut crowd) = crowd(2);
        drop(listener);
        crowd.advance_all(Instant::now());
        crowd.advance_all(Instant::now());
        let stats = crowd.into_stats(Instant::now());
        assert_eq!((stats.opened, stats.rejected, stats.open_at_end), (4, 4, 0));
    }

    #[test]
    fn what_is_no_answer_has_no_status() {
        assert_eq!(parse_status(b"HTTP/1.1 431 R"), Some(431));
        for response in [&b""[..], b"HTTP/1.1", b"\x15\x03\x03\0\x02\x02F", b"HTTP/1.1 4x"] {
            assert_eq!(parse_status(response), None, "{response:?}");
        }
    }
}
