//! HTTP/1.1 and HTTP/2 as a load generator needs them: non-blocking, exact about time, forgiving about responses.
//!
//! In: [`Request`]s, whose bytes are ready to be written. Out: a [`Reply`] each, with four time stamps.
//!
//! Invariants
//! * One exchange at a time on a connection; a connection is used again only after a response that ended by its own
//!   framing and left no bytes over.
//! * A request that a server may have received is sent again only if it is repeatable, once, and that is counted.
//! * A body is counted, and kept only as far as the request asks.
//!
//! Not here: when to send (`load`), what to send and what the answer means (`plan`).

mod connection;
mod http2;
mod response;
mod target;
mod tls;

pub(crate) use tls::{Agreed, Speech, client as tls_client, open_ssl_name, suites};

pub(crate) use connection::{Connection, Progress};
pub(crate) use response::{Head, Keep, cache_says};
pub(crate) use target::{Target, Targets, Url, user_info};

use std::sync::Arc;
use std::time::{Duration, Instant};

/// One request, ready to be written.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) target: Arc<Target>,
    /// Request line, headers and body.
    pub(crate) bytes: Arc<[u8]>,
    /// A response to HEAD has no body, whatever it says.
    pub(crate) is_head: bool,
    pub(crate) keep: Keep,
    /// Whether the connection may be used again.
    pub(crate) keep_alive: bool,
    pub(crate) connect_timeout: Option<Duration>,
    /// Longest silence between two reads.
    pub(crate) response_timeout: Option<Duration>,
}

impl Request {
    /// Reports whether a server that receives the request twice does no more than one that receives it once. PUT and
    /// DELETE are idempotent too, but a plan that counts what it creates and removes would count wrong.
    pub(crate) fn is_repeatable(&self) -> bool {
        [&b"GET "[..], b"HEAD ", b"OPTIONS ", b"TRACE "]
            .iter()
            .any(|method| self.bytes.starts_with(method))
    }
}

/// Whether a server may have received a request already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// No byte of it was sent before.
    First,
    /// It was sent on a kept connection that the server closed without an answer.
    Repeated,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    /// When the exchange began: with connecting if that was needed, else with writing.
    pub(crate) started: Instant,
    /// How long connecting took, TLS included; zero on a connection that stood.
    pub(crate) connect: Duration,
    /// When the first byte of the response arrived; `ended` if none did.
    pub(crate) first_byte: Instant,
    pub(crate) ended: Instant,
    /// Bytes written.
    pub(crate) sent: u64,
    /// Bytes read, head and framing included.
    pub(crate) received: u64,
    pub(crate) result: Result<Response, Failure>,
    /// Whether the connection can be used again.
    pub(crate) kept_alive: bool,
    /// The request and how it has to be sent next, if a kept connection turned out to be closed. A request of which a
    /// byte was sent is here only if it is repeatable, and only once.
    pub(crate) again: Option<(Request, Attempt)>,
}

/// A complete response.
#[derive(Debug, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Bytes of the head.
    pub(crate) head_bytes: u64,
    /// Bytes of the body after removing the transfer coding.
    pub(crate) body_bytes: u64,
    /// Kept if asked for.
    pub(crate) head: Option<Head>,
    /// Kept if asked for, up to the limit; still compressed.
    pub(crate) body: Vec<u8>,
    /// What the server says of its own time.
    pub(crate) server_timing: Option<Box<str>>,
    /// Whether a header says that a cache answered, or that none did.
    pub(crate) is_hit: Option<bool>,
}

/// Most redirects that are followed for one request, as JMeter follows them.
pub(crate) const MOST_HOPS: usize = 20;

/// Reports whether a header is for the server that it was given for and for no other: credentials, and the server's name.
pub(crate) fn is_for_one_server(header: &str) -> bool {
    header.eq_ignore_ascii_case("Host") || crate::redact::is_secret(header)
}

/// Why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// The host is unknown.
    Resolve,
    /// Nobody listens, or the network refuses.
    Connect,
    /// Connecting took too long.
    ConnectTimeout,
    /// The response took too long.
    ResponseTimeout,
    /// The connection ended before the first byte.
    NoResponse,
    /// The connection was reset.
    Reset,
    /// The body ended too early.
    Cut,
    /// The bytes are no HTTP.
    Malformed,
    /// The TLS handshake failed.
    Tls,
    /// The run ended first.
    Unfinished,
    /// The system has no ports or files left.
    Exhausted,
    /// Connections cannot begin at the wanted address of this machine.
    Bind,
    /// Every answer led on to another address.
    Redirects,
    /// The server does not speak HTTP/2, which the run asks for.
    NoHttp2,
}

impl Failure {
    /// Returns JMeter's name: plans and their scripts compare with it.
    pub(crate) fn exception(self) -> &'static str {
        match self {
            Self::Resolve => "java.net.UnknownHostException",
            Self::Connect => "org.apache.http.conn.HttpHostConnectException",
            Self::ConnectTimeout => "org.apache.http.conn.ConnectTimeoutException",
            Self::ResponseTimeout => "java.net.SocketTimeoutException",
            Self::NoResponse => "org.apache.http.NoHttpResponseException",
            Self::Reset | Self::Exhausted => "java.net.SocketException",
            Self::Cut => "org.apache.http.ConnectionClosedException",
            Self::Malformed => "org.apache.http.client.ClientProtocolException",
            Self::Tls => "javax.net.ssl.SSLHandshakeException",
            Self::Unfinished => "java.lang.InterruptedException",
            Self::Bind => "java.net.BindException",
            Self::Redirects | Self::NoHttp2 => "java.io.IOException",
        }
    }

    /// Returns what happened, in words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Resolve => "unknown host",
            Self::Connect => "connection refused",
            Self::ConnectTimeout => "connect timed out",
            Self::ResponseTimeout => "read timed out",
            Self::NoResponse => "the server closed the connection without a response",
            Self::Reset => "connection reset",
            Self::Cut => "premature end of the body",
            Self::Malformed => "the response is not HTTP",
            Self::Tls => "TLS handshake failed",
            Self::Unfinished => "not finished when the run ended",
            Self::Exhausted => "no ports or file descriptors left on the generator",
            Self::Redirects => "Exceeded maximum number of redirects: 20",
            Self::NoHttp2 => "the server does not speak HTTP/2",
            Self::Bind => "the generator has no such address to connect from",
        }
    }
}
