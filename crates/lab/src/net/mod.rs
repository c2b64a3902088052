//! HTTP/1.1 and HTTP/2 as a load generator needs them: non-blocking, exact about time, forgiving about responses.
//!
//! In: [`TargetRequest`]s, whose bytes are ready to be written. Out: a [`ExchangeOutcome`] each, with four time stamps.
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

pub(crate) use tls::{
    NegotiatedTls, TlsClientOptions, client_tls_config as tls_client, openssl_cipher_name,
    supported_cipher_suites,
};

pub(crate) use connection::{ExchangeProgress, TargetConnection};
pub(crate) use response::{ResponseRetention, TargetResponseHead, cache_hit_from_header};
pub(crate) use target::{AbsoluteUrl, LoadTarget, TargetRegistry, parse_user_info};

use std::sync::Arc;
use std::time::{Duration, Instant};

/// One request, ready to be written.
#[derive(Debug, Clone)]
pub(crate) struct TargetRequest {
    pub(crate) target: Arc<LoadTarget>,
    /// Request line, headers and body.
    pub(crate) encoded_bytes: Arc<[u8]>,
    /// A response to HEAD has no body, whatever it says.
    pub(crate) is_head: bool,
    pub(crate) retention: ResponseRetention,
    /// Whether the connection may be used again.
    pub(crate) uses_keep_alive: bool,
    pub(crate) connect_timeout: Option<Duration>,
    /// Longest silence between two reads.
    pub(crate) idle_timeout: Option<Duration>,
}

impl TargetRequest {
    /// Reports whether a server that receives the request twice does no more than one that receives it once. PUT and
    /// DELETE are idempotent too, but a plan that counts what it creates and removes would count wrong.
    pub(crate) fn is_idempotent(&self) -> bool {
        [&b"GET "[..], b"HEAD ", b"OPTIONS ", b"TRACE "]
            .iter()
            .any(|method| self.encoded_bytes.starts_with(method))
    }
}

/// Whether a server may have received a request already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendAttempt {
    /// No byte of it was sent before.
    First,
    /// It was sent on a kept connection that the server closed without an answer.
    Repeated,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct ExchangeOutcome {
    /// When the exchange began: with connecting if that was needed, else with writing.
    pub(crate) started_at: Instant,
    /// How long connecting took, TLS included; zero on a connection that stood.
    pub(crate) connect_time: Duration,
    /// When the first byte of the response arrived; `ended` if none did.
    pub(crate) first_byte_at: Instant,
    pub(crate) ended_at: Instant,
    /// Bytes written.
    pub(crate) sent_bytes: u64,
    /// Bytes read, head and framing included.
    pub(crate) received_bytes: u64,
    pub(crate) result: Result<TargetResponse, ExchangeFailure>,
    /// Whether the connection can be used again.
    pub(crate) is_connection_reusable: bool,
    /// The request and how it has to be sent next, if a kept connection turned out to be closed. A request of which a
    /// byte was sent is here only if it is repeatable, and only once.
    pub(crate) retry: Option<(TargetRequest, SendAttempt)>,
}

/// A complete response.
#[derive(Debug, Default)]
pub(crate) struct TargetResponse {
    pub(crate) status: u16,
    /// Bytes of the head.
    pub(crate) head_bytes: u64,
    /// Bytes of the body after removing the transfer coding.
    pub(crate) body_bytes: u64,
    /// Kept if asked for.
    pub(crate) head: Option<TargetResponseHead>,
    /// Kept if asked for, up to the limit; still compressed.
    pub(crate) body: Vec<u8>,
    /// What the server says of its own time.
    pub(crate) server_timing: Option<Box<str>>,
    /// Whether a header says that a cache answered, or that none did.
    pub(crate) is_cache_hit: Option<bool>,
}

/// Most redirects that are followed for one request, as JMeter follows them.
pub(crate) const MAX_REDIRECTS: usize = 20;

/// Reports whether a header is for the server that it was given for and for no other: credentials, and the server's name.
pub(crate) fn is_server_specific(header: &str) -> bool {
    header.eq_ignore_ascii_case("Host") || crate::redaction::is_secret_name(header)
}

/// Why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ExchangeFailure {
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
    Truncated,
    /// The bytes are no HTTP.
    Malformed,
    /// The TLS handshake failed.
    Tls,
    /// The run ended first.
    RunEnded,
    /// The system has no ports or files left.
    ResourcesExhausted,
    /// Connections cannot begin at the wanted address of this machine.
    BindFailed,
    /// Every answer led on to another address.
    TooManyRedirects,
    /// The server does not speak HTTP/2, which the run asks for.
    Http2Unsupported,
}

impl ExchangeFailure {
    /// Returns JMeter's name: plans and their scripts compare with it.
    pub(crate) fn jmeter_exception(self) -> &'static str {
        match self {
            Self::Resolve => "java.net.UnknownHostException",
            Self::Connect => "org.apache.http.conn.HttpHostConnectException",
            Self::ConnectTimeout => "org.apache.http.conn.ConnectTimeoutException",
            Self::ResponseTimeout => "java.net.SocketTimeoutException",
            Self::NoResponse => "org.apache.http.NoHttpResponseException",
            Self::Reset | Self::ResourcesExhausted => "java.net.SocketException",
            Self::Truncated => "org.apache.http.ConnectionClosedException",
            Self::Malformed => "org.apache.http.client.ClientProtocolException",
            Self::Tls => "javax.net.ssl.SSLHandshakeException",
            Self::RunEnded => "java.lang.InterruptedException",
            Self::BindFailed => "java.net.BindException",
            Self::TooManyRedirects | Self::Http2Unsupported => "java.io.IOException",
        }
    }

    /// Returns what happened, in words.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Resolve => "unknown host",
            Self::Connect => "connection refused",
            Self::ConnectTimeout => "connect timed out",
            Self::ResponseTimeout => "read timed out",
            Self::NoResponse => "the server closed the connection without a response",
            Self::Reset => "connection reset",
            Self::Truncated => "premature end of the body",
            Self::Malformed => "the response is not HTTP",
            Self::Tls => "TLS handshake failed",
            Self::RunEnded => "not finished when the run ended",
            Self::ResourcesExhausted => "no ports or file descriptors left on the generator",
            Self::TooManyRedirects => "Exceeded maximum number of redirects: 20",
            Self::Http2Unsupported => "the server does not speak HTTP/2",
            Self::BindFailed => "the generator has no such address to connect from",
        }
    }
}
