//! Complete exchanges, so that a person can inspect request and response.
//!
//! The first exchanges of each label are stored, and the first that failed. Values of headers with credentials are
//! removed, because reports are passed on.

use serde::{Deserialize, Serialize};

/// One exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeTrace {
    /// The sampler's name.
    pub label: String,
    /// The URL of the last hop.
    pub url: String,
    /// Start time in milliseconds since the epoch.
    pub started_ms: u64,
    /// Duration until the last byte in microseconds.
    pub elapsed_us: u64,
    /// The status, or the name of the Java exception.
    pub code: String,
    /// The reason phrase.
    pub message: String,
    /// True if it succeeded, assertions included.
    pub is_ok: bool,
    /// The first failed assertion's message.
    pub failure: String,
    /// The request as it was sent.
    pub request: String,
    /// Status line and headers of the response.
    pub head: String,
    /// The decoded response body.
    pub body: String,
    /// Its media type.
    pub media_type: String,
    /// Size of the body in bytes; `body` may hold fewer.
    pub body_bytes: u64,
}

/// Maximum stored length of a request, and of a body, in characters.
const MAX_TRACE_TEXT_LEN: usize = 256 * 1024;

/// Headers whose values are credentials.
const SECRET_HEADERS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "set-cookie"];

/// Returns a request as text, truncated if it is too long, without credentials.
pub(crate) fn trace_request_text(bytes: &[u8]) -> String {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(bytes.len());
    let (head, body) = bytes.split_at(end);
    let head = redact_head(&String::from_utf8_lossy(head));
    let body = body.strip_prefix(b"\r\n\r\n").unwrap_or_default();
    truncate_text(format!("{head}\n\n{}", String::from_utf8_lossy(body)))
}

/// Returns the header lines without credentials.
pub(crate) fn redact_head(head: &str) -> String {
    let mut out = String::with_capacity(head.len());
    for line in head.lines() {
        if !out.is_empty() {
            out.push('\n');
        }
        match line.split_once(':') {
            Some((name, value))
                if SECRET_HEADERS.contains(&name.trim().to_ascii_lowercase().as_str()) =>
            {
                out.push_str(&format!("{name}: (redacted, {} characters)", value.trim().len()));
            }
            _ => out.push_str(line),
        }
    }
    out
}

/// Truncates a text that is too long to store.
pub(crate) fn truncate_text(mut text: String) -> String {
    if text.len() > MAX_TRACE_TEXT_LEN {
        let end = (0..=MAX_TRACE_TEXT_LEN).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// The number of stored exchanges of a label.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TraceQuota {
    trace_count: usize,
    failed_trace_count: usize,
}

impl TraceQuota {
    /// Returns true if another exchange may be stored.
    pub(crate) fn is_open(self, most: usize) -> bool {
        self.trace_count < most || self.failed_trace_count < most
    }

    /// Counts an exchange if it is one of the first or one of the first that failed; returns true if it is to be
    /// stored.
    pub(crate) fn try_take(&mut self, is_ok: bool, most: usize) -> bool {
        let takes = self.trace_count < most || (!is_ok && self.failed_trace_count < most);
        self.trace_count += usize::from(takes && self.trace_count < most);
        self.failed_trace_count += usize::from(takes && !is_ok);
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_somebody_in_is_left_out() {
        let request = b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Basic YWRtaW46YWRtaW4=\r\ncookie: login=abc\r\n\r\na=b";
        let text = trace_request_text(request);
        assert_eq!(
            text,
            "GET / HTTP/1.1\nHost: h\nAuthorization: (redacted, 22 characters)\ncookie: (redacted, 9 characters)\n\na=b"
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = truncate_text("\u{20ac}".repeat(200_000));
        assert!(text.len() <= MAX_TRACE_TEXT_LEN && text.chars().all(|c| c == '\u{20ac}'));
    }

    #[test]
    fn the_first_are_kept_and_the_first_that_failed() {
        let mut quota = TraceQuota::default();
        let decisions: Vec<bool> =
            [true, true, true, false, false, false].map(|is_ok| quota.try_take(is_ok, 2)).to_vec();
        assert_eq!(decisions, [true, true, false, true, true, false]);
        assert!(!quota.is_open(2));
        assert!(!TraceQuota::default().is_open(0));
    }
}
