//! The flush message: "this path changed", as a flush agent sends it and a dispatcher receives it.
//!
//! `docs/formats/flush-message.md` describes the bytes.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use http_body_util::Full;

/// Default URL to which agents send flushes; dispatchers recognize the headers, not the path.
pub const FLUSH_PATH: &str = "/dispatcher/invalidate.cache";

/// `CQ-Action`.
pub const ACTION_HEADER: HeaderName = HeaderName::from_static("cq-action");
/// `CQ-Handle`.
pub const HANDLE_HEADER: HeaderName = HeaderName::from_static("cq-handle");
/// `CQ-Path`.
pub const PATH_HEADER: HeaderName = HeaderName::from_static("cq-path");
/// `CQ-Action-Scope`.
pub const ACTION_SCOPE_HEADER: HeaderName = HeaderName::from_static("cq-action-scope");
/// `X-Tympan-Seq`: the number of the change at its publisher.
pub const SEQUENCE_HEADER: HeaderName = HeaderName::from_static("x-tympan-seq");
/// `X-Tympan-Order`: the sender and the number of its flush, so that a lost one is detected.
pub const NUMBERING_HEADER: HeaderName = HeaderName::from_static("x-tympan-order");

const LEGACY_ACTION_HEADER: HeaderName = HeaderName::from_static("action");
const LEGACY_HANDLE_HEADER: HeaderName = HeaderName::from_static("handle");

/// What happened to the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushAction {
    /// It was published or changed.
    Activate,
    /// It was taken offline.
    Deactivate,
    /// It was deleted.
    Delete,
    /// Nothing; the agent tests the connection.
    Test,
    /// Its children changed their order.
    Reorder,
}

impl FlushAction {
    /// All actions.
    pub const ALL_ACTIONS: [Self; 5] =
        [Self::Activate, Self::Deactivate, Self::Delete, Self::Test, Self::Reorder];

    /// Returns the name of the action in `CQ-Action`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Activate => "Activate",
            Self::Deactivate => "Deactivate",
            Self::Delete => "Delete",
            Self::Test => "Test",
            Self::Reorder => "Reorder",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL_ACTIONS
            .into_iter()
            .find(|action| action.as_str().eq_ignore_ascii_case(text.trim()))
    }
}

/// The scope of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushScope {
    /// Only the path's own files; no `.stat` file is touched.
    ResourceOnly,
}

const RESOURCE_ONLY_VALUE: &str = "ResourceOnly";

/// A flush message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlushMessage {
    /// The event.
    pub action: FlushAction,
    /// The absolute path that is affected.
    pub handle: String,
    /// The scope; `None` also makes other files below the same `.stat` files stale.
    pub scope: Option<FlushScope>,
    /// URIs to re-fetch while their old files stay in use.
    pub refetch: Vec<String>,
    /// The ascending number of the change at its publisher.
    pub sequence: Option<u64>,
    /// The position of the message among its sender's flushes.
    pub numbering: Option<FlushNumbering>,
}

/// The position of a message among its sender's flushes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlushNumbering {
    /// The sender: a publisher's agent, unchanged over restarts; visible ASCII without spaces, as is `run`.
    pub source: String,
    /// Distinguishes the current run of the sender's process from earlier ones.
    pub run: String,
    /// 1 for the first flush of a run, incremented for each one that is sent, whether or not it arrives.
    pub count: u64,
}

/// Maximum length of the name of a sender or run, in bytes.
const MAX_SENDER_NAME_BYTES: usize = 200;

impl FlushNumbering {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let mut name = || {
            let name = words.next()?;
            let is_sound = name.len() <= MAX_SENDER_NAME_BYTES
                && name.bytes().all(|byte| byte.is_ascii_graphic());
            is_sound.then(|| name.to_owned())
        };
        let (source, run) = (name()?, name()?);
        let count = words.next()?.parse().ok().filter(|count| *count > 0)?;
        words.next().is_none().then_some(Self { source, run, count })
    }
}

/// The reason why a message cannot be sent, or is refused with 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlushMessageError {
    /// `CQ-Action` is not a known action.
    #[error("unknown action `{0}`; expected Activate, Deactivate, Delete, Test or Reorder")]
    Action(String),
    /// `CQ-Handle` is missing, relative, contains `..`, or contains control characters.
    #[error("the handle must be an absolute path without `..` segments or control characters")]
    Handle,
    /// A URI to re-fetch contains a line break or does not begin with a slash.
    #[error("cannot re-fetch `{0}`: expected an absolute path on one line")]
    Refetch(String),
}

impl FlushMessage {
    /// Returns the request that sends this message to the dispatcher at `host` (`host:port`).
    ///
    /// # Errors
    /// [`FlushMessageError::Handle`] and [`FlushMessageError::Refetch`] for values that cannot be written into a
    /// request.
    pub fn to_request(&self, host: &str) -> Result<Request<Full<Bytes>>, FlushMessageError> {
        check_handle(&self.handle)?;
        let handle = HeaderValue::from_bytes(self.handle.as_bytes())
            .map_err(|_invalid| FlushMessageError::Handle)?;
        let body = self.body_text()?;
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("http://{host}{FLUSH_PATH}")
            .parse()
            .map_err(|_invalid| FlushMessageError::Handle)?;
        let headers = request.headers_mut();
        headers.insert(ACTION_HEADER, HeaderValue::from_static(self.action.as_str()));
        headers.insert(HANDLE_HEADER, handle.clone());
        headers.insert(PATH_HEADER, handle);
        if self.scope == Some(FlushScope::ResourceOnly) {
            headers.insert(ACTION_SCOPE_HEADER, HeaderValue::from_static(RESOURCE_ONLY_VALUE));
        }
        if let Some(sequence) = self.sequence {
            headers.insert(SEQUENCE_HEADER, HeaderValue::from(sequence));
        }
        if let Some(FlushNumbering { source, run, count }) = &self.numbering {
            let number_header = HeaderValue::from_str(&format!("{source} {run} {count}"));
            headers.insert(
                NUMBERING_HEADER,
                number_header.map_err(|_invalid| FlushMessageError::Handle)?,
            );
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        Ok(request)
    }

    fn body_text(&self) -> Result<String, FlushMessageError> {
        let mut body = String::new();
        for uri in &self.refetch {
            if !uri.starts_with('/') || uri.contains(char::is_control) {
                return Err(FlushMessageError::Refetch(uri.clone()));
            }
            body.push_str(uri);
            body.push('\n');
        }
        Ok(body)
    }

    /// Returns true if a request with these headers is a flush.
    ///
    /// `CQ-Action` alone is sufficient. `Action` and `Handle` are too common to refuse a visitor for them, and
    /// count only in combination.
    #[must_use]
    pub fn is_flush(headers: &HeaderMap) -> bool {
        headers.contains_key(ACTION_HEADER)
            || (headers.contains_key(LEGACY_ACTION_HEADER)
                && headers.contains_key(LEGACY_HANDLE_HEADER))
    }

    /// Parses a message from the headers and the complete body of a request.
    ///
    /// # Errors
    /// [`FlushMessageError::Action`] and [`FlushMessageError::Handle`]; a line of the body that is not an absolute path
    /// is skipped, as old agents send their own text there.
    pub fn parse(headers: &HeaderMap, body: &[u8]) -> Result<Self, FlushMessageError> {
        let action =
            header_text(headers, &ACTION_HEADER, &LEGACY_ACTION_HEADER).unwrap_or_default();
        let action = FlushAction::parse(&action).ok_or(FlushMessageError::Action(action))?;
        let handle =
            header_text(headers, &HANDLE_HEADER, &LEGACY_HANDLE_HEADER).unwrap_or_default();
        // The path of a test has no meaning.
        if action != FlushAction::Test {
            check_handle(&handle)?;
        }
        let scope = headers
            .get(ACTION_SCOPE_HEADER)
            .is_some_and(|value| {
                value.as_bytes().eq_ignore_ascii_case(RESOURCE_ONLY_VALUE.as_bytes())
            })
            .then_some(FlushScope::ResourceOnly);
        let refetch =
            if has_plain_text_body(headers) { parse_refetch_lines(body) } else { Vec::new() };
        let sequence =
            headers.get(SEQUENCE_HEADER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let numbering = headers
            .get(NUMBERING_HEADER)
            .and_then(|value| FlushNumbering::parse(value.to_str().ok()?));
        Ok(Self { action, handle, scope, refetch, sequence, numbering })
    }
}

fn header_text(headers: &HeaderMap, name: &HeaderName, old: &HeaderName) -> Option<String> {
    let value = headers.get(name).or_else(|| headers.get(old))?;
    let bytes = value.as_bytes();
    // Bytes that are not UTF-8 are read as ISO 8859-1, the historical charset of HTTP/1.1 headers (RFC 9110, section
    // 5.5).
    let text = std::str::from_utf8(bytes)
        .map_or_else(|_| bytes.iter().map(|byte| char::from(*byte)).collect(), str::to_owned);
    Some(text.trim().to_owned())
}

fn check_handle(handle: &str) -> Result<(), FlushMessageError> {
    let is_sound = handle.starts_with('/')
        && !handle.contains(char::is_control)
        && handle.split('/').all(|segment| segment != ".." && segment != ".");
    is_sound.then_some(()).ok_or(FlushMessageError::Handle)
}

fn has_plain_text_body(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("text/plain"))
}

fn parse_refetch_lines(body: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(body)
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with('/') && !line.contains(char::is_control))
        .map(str::to_owned)
        .collect()
}
