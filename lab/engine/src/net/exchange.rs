//! A request, and the outcome of its exchange.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::response_head::TargetResponseHead;
use super::target::LoadTarget;

/// The parts of a response to retain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseRetention {
    /// Status and sizes.
    Nothing,
    /// Also the head.
    Head,
    /// Also the body, up to this many bytes.
    Body(usize),
    /// The head, and the body of a style sheet, up to this many bytes.
    StyleSheet(usize),
}

/// A request that is ready to be written.
#[derive(Debug, Clone)]
pub struct TargetRequest {
    /// The server.
    pub target: Arc<LoadTarget>,
    /// Request line, headers and body.
    pub encoded_bytes: Arc<[u8]>,
    /// Set for HEAD: the response has no body, regardless of its headers.
    pub is_head: bool,
    /// The parts of the response to retain.
    pub retention: ResponseRetention,
    /// True if the connection may be reused.
    pub uses_keep_alive: bool,
    /// Time limit of connecting.
    pub connect_timeout: Option<Duration>,
    /// Maximum time between two reads.
    pub idle_timeout: Option<Duration>,
}

impl TargetRequest {
    /// Returns true if receiving the request twice has the same effect as receiving it once. PUT and DELETE are
    /// idempotent too, but a plan that counts created and deleted resources would count wrong.
    pub(crate) fn is_idempotent(&self) -> bool {
        [&b"GET "[..], b"HEAD ", b"OPTIONS ", b"TRACE "]
            .iter()
            .any(|method| self.encoded_bytes.starts_with(method))
    }
}

/// States if a server may have received a request already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendAttempt {
    /// No byte of it was sent before.
    First,
    /// It was sent on a persistent connection that the server closed without a response.
    Repeated,
}

/// The outcome of an exchange.
#[derive(Debug)]
pub struct ExchangeOutcome {
    /// Start of the exchange: of connecting if that was needed, otherwise of writing.
    pub started_at: Instant,
    /// Connect time, TLS included; zero on an open connection.
    pub connect_time: Duration,
    /// Arrival time of the first byte of the response; the end time if none arrived.
    pub first_byte_at: Instant,
    /// The time of the end.
    pub ended_at: Instant,
    /// Bytes written.
    pub sent_bytes: u64,
    /// Bytes read, headers and framing included.
    pub received_bytes: u64,
    /// The response, or the reason why there is none.
    pub result: Result<TargetResponse, ExchangeFailure>,
    /// True if the connection can be reused.
    pub is_connection_reusable: bool,
    /// The request and its next send attempt, if a persistent connection turned out to be closed. A request of which a
    /// byte was sent is here only if it is repeatable, and only once.
    pub(crate) retry: Option<(TargetRequest, SendAttempt)>,
}

/// A complete response.
#[derive(Debug, Default)]
pub struct TargetResponse {
    /// The status.
    pub status: u16,
    /// Size of the head in bytes.
    pub(crate) head_bytes: u64,
    /// Size of the body in bytes after removing the transfer coding.
    pub body_bytes: u64,
    /// Stored if requested.
    pub head: Option<TargetResponseHead>,
    /// Stored if requested, up to the limit; still compressed.
    pub(crate) body: Vec<u8>,
    /// The server's own timing.
    pub(crate) server_timing: Option<Box<str>>,
    /// The cache state that a header reports: true for a hit, false for none.
    pub(crate) is_cache_hit: Option<bool>,
}

/// The reason why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExchangeFailure {
    /// The host name cannot be resolved.
    Resolve,
    /// The connection was refused, or the network is unreachable.
    Connect,
    /// Connecting timed out.
    ConnectTimeout,
    /// The response timed out.
    ResponseTimeout,
    /// The connection ended before the first byte.
    NoResponse,
    /// The connection was reset.
    Reset,
    /// The body ended early.
    Truncated,
    /// The bytes are not valid HTTP.
    Malformed,
    /// The TLS handshake failed.
    Tls,
    /// The run ended first.
    RunEnded,
    /// The system has no free ports or file descriptors.
    ResourcesExhausted,
    /// Connections cannot be bound to the requested local address.
    BindFailed,
    /// The maximum number of redirects was exceeded.
    TooManyRedirects,
    /// The server does not support HTTP/2, which the run requires.
    Http2Unsupported,
}

impl ExchangeFailure {
    /// Returns JMeter's name of the failure, which plans and their scripts compare with.
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

    /// Returns a description of the failure.
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
