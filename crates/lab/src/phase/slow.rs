//! Clients that are slow without end: on each of their connections a request arrives a byte at a time and is never whole.
//!
//! What a server does with them is told, not judged: it may wait as long as it likes, if others do not notice. A client
//! whose connection ends begins another one, as one who means harm does.
//!
//! Not here: what healthy visitors lose meanwhile ([`super::errors`]).

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use serde_json::{Value, json};

use crate::net::{Target, Url};
use crate::report::sheet::{Grid, Tone};
use crate::{Error, Result, goal};

/// The time between two bytes.
const PACE: Duration = Duration::from_millis(500);
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(1);

/// Clients at work on a thread of their own.
#[derive(Debug)]
pub(super) struct Slow {
    stop: Sender<()>,
    thread: JoinHandle<Fates>,
}

/// What became of their connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fates {
    /// Clients at a time.
    clients: usize,
    /// Connections in all.
    begun: u64,
    /// Those that were not taken.
    refused: u64,
    /// Those that were answered, by status.
    answered: BTreeMap<u16, u64>,
    /// Those that ended without an answer.
    closed: u64,
    /// Those that stood at the end.
    held: u64,
    /// The longest time that one of them stood.
    longest: Duration,
}

impl Slow {
    /// Lets so many clients begin at the server of `url`.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Resolve`], [`Error::Tls`]; [`Error::Engine`] if there is no thread.
    pub(super) fn start(url: &str, clients: usize) -> Result<Self> {
        let url = Url::parse(url)?;
        let target = Target::resolve(url.is_tls, &url.host, url.port)?;
        let (stop, told) = channel::<()>();
        let work = move || {
            let mut crowd = Crowd::new(target, clients);
            loop {
                crowd.go_on(Instant::now());
                // Nobody sends anything: the other end goes away when it is time.
                if told.recv_timeout(PACE) != Err(RecvTimeoutError::Timeout) {
                    return crowd.end(Instant::now());
                }
            }
        };
        let thread = std::thread::Builder::new().name("slow clients".to_owned());
        Ok(Self { stop, thread: thread.spawn(work).map_err(Error::Engine)? })
    }

    /// Ends them all.
    ///
    /// # Errors
    /// [`Error::Engine`] if their thread has ended before.
    pub(super) fn stop(self) -> Result<Fates> {
        drop(self.stop);
        let ended = || Error::Engine(std::io::Error::other("the thread of slow clients has ended"));
        self.thread.join().map_err(|_| ended())
    }
}

impl Fates {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "clients": self.clients, "connections": self.begun, "refused": self.refused, "answered": self.answered,
            "closed": self.closed, "held": self.held, "longest_seconds": self.longest.as_secs_f64(),
        })
    }

    pub(super) fn grid(&self) -> Grid {
        let head = [
            "clients",
            "connections",
            "refused",
            "answered",
            "closed",
            "held to the end",
            "longest",
        ];
        let mut grid = Grid::new("Slow clients", &head);
        let answered: Vec<String> =
            self.answered.iter().map(|(status, count)| format!("{count} with {status}")).collect();
        let answered = if answered.is_empty() { "0".to_owned() } else { answered.join(", ") };
        let count = |number: u64| number.to_string();
        grid.add(
            Tone::Plain,
            vec![
                self.clients.to_string(),
                count(self.begun),
                count(self.refused),
                answered,
                count(self.closed),
                count(self.held),
                goal::show(self.longest),
            ],
        );
        grid
    }
}

struct Client {
    socket: TcpStream,
    since: Instant,
    sent: usize,
    /// What is left to send before bytes are made up.
    first: Vec<u8>,
}

struct Crowd {
    target: Arc<Target>,
    clients: Vec<Option<Client>>,
    fates: Fates,
}

impl Crowd {
    fn new(target: Arc<Target>, clients: usize) -> Self {
        let fates = Fates { clients, ..Fates::default() };
        Self { target, clients: (0..clients).map(|_| None).collect(), fates }
    }

    /// Lets everyone send a byte, or begin.
    fn go_on(&mut self, now: Instant) {
        for place in &mut self.clients {
            if let Some(client) = place {
                if !client.go_on(now, &mut self.fates) {
                    *place = None;
                }
                continue;
            }
            self.fates.begun += 1;
            *place = Client::begin(&self.target, now);
            self.fates.refused += u64::from(place.is_none());
        }
    }

    fn end(mut self, now: Instant) -> Fates {
        for client in self.clients.iter().flatten() {
            self.fates.held += 1;
            self.fates.stood(client, now);
        }
        self.fates
    }
}

impl Fates {
    fn stood(&mut self, client: &Client, now: Instant) {
        self.longest = self.longest.max(now.saturating_duration_since(client.since));
    }
}

impl Client {
    fn begin(target: &Target, now: Instant) -> Option<Self> {
        let socket = TcpStream::connect_timeout(&target.address()?, CONNECT).ok()?;
        socket.set_nonblocking(true).ok()?;
        // Else the system gathers bytes until the first is confirmed.
        socket.set_nodelay(true).ok()?;
        let mut first = Vec::new();
        match &target.tls {
            None => {
                let head = format!("GET / HTTP/1.1\r\nHost: {}\r\nSlow: ", target.authority());
                first.extend_from_slice(head.as_bytes());
            }
            Some((config, name)) => {
                let mut session = ClientConnection::new(Arc::clone(config), name.clone()).ok()?;
                session.write_tls(&mut first).ok()?;
            }
        }
        Some(Self { socket, since: now, sent: 0, first })
    }

    /// Sends a byte; false once the connection has ended.
    fn go_on(&mut self, now: Instant, fates: &mut Fates) -> bool {
        let mut answer = [0; 16];
        match self.socket.read(&mut answer) {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                let byte = self.first.get(self.sent).copied().unwrap_or(b'x');
                // What cannot be sent is told by the next read.
                self.sent += self.socket.write(&[byte]).unwrap_or(0);
                return true;
            }
            Err(_) => fates.closed += 1,
            Ok(length) => match status(answer.get(..length).unwrap_or_default()) {
                Some(status) => *fates.answered.entry(status).or_default() += 1,
                None => fates.closed += 1,
            },
        }
        fates.stood(self, now);
        false
    }
}

/// Reads the status of an answer's first bytes; `None` if it is no HTTP.
fn status(answer: &[u8]) -> Option<u16> {
    let text = answer.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener};

    use super::*;

    fn crowd(clients: usize) -> (TcpListener, Crowd) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, Crowd::new(Target::resolve(false, "127.0.0.1", port).unwrap(), clients))
    }

    /// Lets the clients go on until one of their connections has ended, which the system tells them in its own time.
    fn until_ended(crowd: &mut Crowd, now: Instant) {
        let begun = crowd.fates.begun;
        let mut rounds = 0..10_000_000;
        while crowd.fates.begun == begun && rounds.next().is_some() {
            crowd.go_on(now);
        }
    }

    #[test]
    fn every_client_sends_a_byte_at_a_time_and_begins_again() {
        let (listener, mut crowd) = crowd(1);
        let started = Instant::now();
        crowd.go_on(started);
        let (mut server, _) = listener.accept().unwrap();
        (0..5).for_each(|_| crowd.go_on(started));
        let mut bytes = [0; 5];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"GET /");
        server.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
        server.shutdown(Shutdown::Both).unwrap();
        until_ended(&mut crowd, started + Duration::from_secs(7));
        drop(listener.accept().unwrap());
        until_ended(&mut crowd, started + Duration::from_secs(8));
        let fates = crowd.end(started + Duration::from_secs(9));
        let (answered, longest) = (BTreeMap::from([(408, 1)]), Duration::from_secs(7));
        let wanted =
            Fates { clients: 1, begun: 3, refused: 0, answered, closed: 1, held: 1, longest };
        assert_eq!(fates, wanted);
        assert_eq!(fates.grid().rows[0].1[3], "1 with 408");
    }

    #[test]
    fn a_server_that_takes_no_connection_refuses_each() {
        let (listener, mut crowd) = crowd(2);
        drop(listener);
        crowd.go_on(Instant::now());
        crowd.go_on(Instant::now());
        let fates = crowd.end(Instant::now());
        assert_eq!((fates.begun, fates.refused, fates.held), (4, 4, 0));
    }

    #[test]
    fn what_is_no_answer_has_no_status() {
        assert_eq!(status(b"HTTP/1.1 431 R"), Some(431));
        for answer in [&b""[..], b"HTTP/1.1", b"\x15\x03\x03\0\x02\x02F", b"HTTP/1.1 4x"] {
            assert_eq!(status(answer), None, "{answer:?}");
        }
    }
}
