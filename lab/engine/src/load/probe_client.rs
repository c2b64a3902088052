//! Sends one request at a time and waits for the complete response. Comparing, crawling and filling use it.
//!
//! In: a [`ProbeRequest`]. Out: an [`ProbeResponse`] with its body, or the reason why there is none.
//!
//! Redirects are not followed and bodies are not decompressed, because no caller needs either.

use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use tympan_lab_plan::AbsoluteUrl;

use crate::net::{
    ExchangeFailure, ExchangeOutcome, ExchangeProgress, ResponseRetention, SendAttempt,
    TargetConnection, TargetRegistry, TargetRequest, TargetResponseHead,
};
use crate::{Error, Result};

/// Maximum length of a stored body, in bytes.
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;
const READ_BUFFER_SIZE: usize = 64 * 1024;

/// A request to send.
#[derive(Debug, Clone, Copy)]
pub struct ProbeRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// The URL.
    pub url: &'a AbsoluteUrl,
    /// Headers that replace default headers of the same name.
    pub headers: &'a [(String, String)],
    /// The body; empty for none.
    pub body: &'a [u8],
}

/// A response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeResponse {
    /// The status.
    pub status: u16,
    /// Names and values of the headers, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Time from the start of the exchange to the last byte of the response.
    pub elapsed: Duration,
}

impl ProbeResponse {
    /// Returns the first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let entry = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        entry.map(|(_, value)| value.as_str())
    }

    /// Returns all values of a header.
    pub fn header_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Returns the media type in lower case, without parameters.
    pub fn media_type(&self) -> String {
        let text = self.header("Content-Type").unwrap_or_default();
        text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// Returns true if the media type is a text type.
    pub fn is_text(&self) -> bool {
        let kind = self.media_type();
        kind.starts_with("text/")
            || ["json", "xml", "javascript", "svg", "x-www-form-urlencoded"]
                .iter()
                .any(|part| kind.contains(part))
    }
}

/// A client with at most one open connection.
#[derive(Debug)]
pub struct ProbeClient {
    targets: TargetRegistry,
    connection: Option<TargetConnection>,
    buffer: Box<[u8]>,
    timeout: Duration,
}

impl ProbeClient {
    /// Creates a client whose exchanges have a time limit.
    pub fn new(timeout: Duration) -> Self {
        Self {
            targets: TargetRegistry::default(),
            connection: None,
            buffer: vec![0; READ_BUFFER_SIZE].into_boxed_slice(),
            timeout,
        }
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// [`Error::Resolve`], [`Error::Tls`], [`Error::Engine`]; [`Error::NoResponse`] if no complete response arrives.
    pub fn send(&mut self, question: &ProbeRequest<'_>) -> Result<ProbeResponse> {
        let mut request = (self.build_request(question)?, SendAttempt::First);
        loop {
            let mut reply = self.exchange(request)?;
            if let Some(again) = reply.retry.take() {
                self.connection = None;
                request = again;
                continue;
            }
            let elapsed = reply.ended_at.saturating_duration_since(reply.started_at);
            if !reply.is_connection_reusable {
                self.connection = None;
            }
            return match reply.result {
                Ok(response) => Ok(ProbeResponse {
                    status: response.status,
                    headers: response
                        .head
                        .iter()
                        .flat_map(TargetResponseHead::headers)
                        .map(|(name, value)| (name.to_owned(), value.to_owned()))
                        .collect(),
                    body: response.body,
                    elapsed,
                }),
                Err(failure) => Err(Error::NoResponse {
                    url: question.url.to_string(),
                    reason: failure.description().to_owned(),
                }),
            };
        }
    }

    fn build_request(&self, question: &ProbeRequest<'_>) -> Result<TargetRequest> {
        let url = question.url;
        let target = self.targets.get_or_resolve(url.is_tls, &url.host, url.port)?;
        let mut text = format!("{} {} HTTP/1.1\r\n", question.method, url.path_and_query);
        let mut add = |name: &str, value: &str| {
            if !question.headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name)) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        add("Host", &target.authority());
        add("User-Agent", concat!("tympan-lab/", env!("CARGO_PKG_VERSION")));
        add("Accept", "*/*");
        if !question.body.is_empty() || matches!(question.method, "POST" | "PUT" | "PATCH") {
            add("Content-Length", &question.body.len().to_string());
        }
        for (name, value) in question.headers {
            text.push_str(&format!("{name}: {}\r\n", value.replace(['\r', '\n'], " ")));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(question.body);
        Ok(TargetRequest {
            target,
            encoded_bytes: bytes.into(),
            is_head: question.method == "HEAD",
            retention: ResponseRetention::Body(MAX_BODY_BYTES),
            uses_keep_alive: true,
            connect_timeout: Some(self.timeout),
            idle_timeout: Some(self.timeout),
        })
    }

    /// Carries out one exchange, on the open connection if it has the same destination.
    fn exchange(&mut self, request: (TargetRequest, SendAttempt)) -> Result<Box<ExchangeOutcome>> {
        let started = Instant::now();
        let target = request.0.target.clone();
        let mut connection = match self.connection.take() {
            Some(connection) if connection.is_connected_to(&target) => connection,
            _ => match TargetConnection::open(&target) {
                Ok(connection) => connection,
                Err(failure) => return Ok(failed_outcome(failure, started)),
            },
        };
        let events = SocketEpoll::for_connection(&connection)?;
        let mut progress = connection.begin_exchange(request, started, &mut self.buffer);
        loop {
            match progress {
                ExchangeProgress::Done(reply) => {
                    self.connection = reply.is_connection_reusable.then_some(connection);
                    return Ok(reply);
                }
                ExchangeProgress::Closed => {
                    return Ok(failed_outcome(ExchangeFailure::NoResponse, started));
                }
                ExchangeProgress::Pending => {}
            }
            progress = match connection.timeout_failure(Instant::now()) {
                Some(failure) => connection.abandon_exchange(failure),
                None => {
                    events.wait_for_event()?;
                    connection.handle_ready(&mut self.buffer)
                }
            };
        }
    }
}

fn failed_outcome(failure: ExchangeFailure, started: Instant) -> Box<ExchangeOutcome> {
    let now = Instant::now();
    Box::new(ExchangeOutcome {
        started_at: started,
        connect_time: Duration::ZERO,
        first_byte_at: now,
        ended_at: now,
        sent_bytes: 0,
        received_bytes: 0,
        result: Err(failure),
        is_connection_reusable: false,
        retry: None,
    })
}

/// An epoll instance for one socket. The connection relies on edge-triggered events.
#[derive(Debug)]
struct SocketEpoll(rustix::fd::OwnedFd);

impl SocketEpoll {
    fn for_connection(connection: &TargetConnection) -> Result<Self> {
        let engine = |error: rustix::io::Errno| Error::Engine(error.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(engine)?;
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        epoll::add(&epoll, connection.socket(), epoll::EventData::new_u64(0), flags)
            .map_err(engine)?;
        Ok(Self(epoll))
    }

    /// Waits for an event, or for a short interval after which time limits are checked.
    fn wait_for_event(&self) -> Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(4);
        let poll_interval = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match epoll::wait(
            &self.0,
            rustix::buffer::spare_capacity(&mut events),
            Some(&poll_interval),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Engine(error.into())),
        }
    }
}
