//! Writing of HTTP/1.1 response heads, for responses that are sent without hyper.
//!
//! Not here: the head of a refused connection, a constant (`listen::refusal`), and the heads that the dispatcher's fast
//! path sends: it copies heads that were written by this module earlier into a buffer that it reuses, so that a response
//! allocates nothing.

use std::cell::RefCell;
use std::time::SystemTime;

use http::StatusCode;

use crate::decimal_digits::DecimalDigits;

/// The initial capacity in bytes; few heads are longer.
const HEAD_CAPACITY: usize = 512;

/// A response head that is being written, like hyper writes it.
#[derive(Debug)]
pub struct Http1ResponseHead {
    bytes: Vec<u8>,
}

impl Http1ResponseHead {
    /// Begins a head with a status and its usual reason.
    #[must_use]
    pub fn new(status: StatusCode) -> Self {
        Self::with_reason(status.as_u16(), status.canonical_reason().unwrap_or_default())
    }

    /// Begins a head with a status and any reason.
    #[must_use]
    pub fn with_reason(status: u16, reason: &str) -> Self {
        let mut bytes = Vec::with_capacity(HEAD_CAPACITY);
        bytes.extend_from_slice(b"HTTP/1.1 ");
        bytes.extend_from_slice(DecimalDigits::from_number(status.into()).as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(reason.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        Self { bytes }
    }

    /// Adds a header. Name and value must not contain line breaks.
    pub fn add_header(&mut self, name: &str, value: &[u8]) {
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a header without a value; returns the offset at which the value is to be inserted.
    pub fn add_header_without_value(&mut self, name: &str) -> usize {
        self.add_header(name, b"");
        self.bytes.len() - b"\r\n".len()
    }

    /// Adds a header with a number.
    pub fn add_number(&mut self, name: &str, number: u64) {
        self.add_header(name, DecimalDigits::from_number(number).as_bytes());
    }

    /// Adds the header `date`.
    pub fn add_date(&mut self, now: SystemTime) {
        with_http_date(now, |date| self.add_header("date", date.as_bytes()));
    }

    /// Returns the head including the empty line at its end.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes
    }

    /// Returns the head without the empty line at its end.
    #[must_use]
    pub fn into_lines(self) -> Vec<u8> {
        self.bytes
    }
}

thread_local! {
    /// The second for which this thread last formatted a date, and the text.
    static LAST_DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// Calls a function with a time formatted as an HTTP date.
fn with_http_date(now: SystemTime, act: impl FnOnce(&str)) {
    let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    LAST_DATE.with_borrow_mut(|(last, text)| {
        if *last != second || text.is_empty() {
            (*last, *text) = (second, httpdate::fmt_http_date(now));
        }
        act(text);
    });
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use http::StatusCode;

    use super::Http1ResponseHead;

    #[test]
    fn writes_a_whole_head() {
        let mut head = Http1ResponseHead::new(StatusCode::NOT_FOUND);
        head.add_header("content-type", b"text/plain");
        head.add_number("content-length", 12);
        head.add_date(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        let text = String::from_utf8(head.finish()).unwrap();
        assert_eq!(
            text,
            "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\
             date: Thu, 01 Jan 1970 00:00:01 GMT\r\n\r\n"
        );
        assert_eq!(Http1ResponseHead::with_reason(299, "-").finish(), b"HTTP/1.1 299 -\r\n\r\n");
    }

    #[test]
    fn a_value_can_be_inserted_later() {
        let mut head = Http1ResponseHead::new(StatusCode::OK);
        let age_offset = head.add_header_without_value("age");
        head.add_header("vary", b"host");
        let lines = head.into_lines();
        let (before, after) = lines.split_at(age_offset);
        assert_eq!(before, b"HTTP/1.1 200 OK\r\nage: ");
        assert_eq!(after, b"\r\nvary: host\r\n");
    }
}
