//! `X-Tympan-Lab: <run>-<number>`: the lab run and sample to which a request belongs.
//!
//! The lab sends it if a run requires it, and servers log it with the time of the request, to distinguish the waiting
//! time of a client from the time spent by the server.
//!
//! Invariant: a mark is short and consists of ASCII letters, digits and one hyphen. Any other value of the header is
//! not a mark and is never logged.

use http::{HeaderMap, HeaderName};

/// The header with the mark.
pub static SAMPLE_MARK_HEADER: HeaderName = HeaderName::from_static("x-tympan-lab");

/// Maximum number of letters and digits in a run's name.
const MAX_RUN_NAME_CHARS: usize = 24;
/// Maximum number of digits in a sample's number.
const MAX_SAMPLE_DIGITS: usize = 16;

/// Parses the mark in a header's value; `None` for any other bytes.
#[must_use]
pub fn parse_sample_mark(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    let (run, number) = text.split_once('-')?;
    let is_run = (1..=MAX_RUN_NAME_CHARS).contains(&run.len())
        && run.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_number = (1..=MAX_SAMPLE_DIGITS).contains(&number.len())
        && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_run && is_number).then_some(text)
}

/// Returns the mark of a request; `None` if it has none or several.
#[must_use]
pub fn sample_mark_of(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(&SAMPLE_MARK_HEADER).into_iter();
    let (first, second) = (values.next()?, values.next());
    if second.is_some() { None } else { parse_sample_mark(first.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_short_plain_marks_are_read() {
        assert_eq!(parse_sample_mark(b"19ab03ff2c1-17"), Some("19ab03ff2c1-17"));
        assert_eq!(parse_sample_mark(b"Release7-0"), Some("Release7-0"));
        for mark in [
            &b""[..],
            b"-1",
            b"run-",
            b"run",
            b"run-1-2",
            b"run-1 ",
            b"run-1\t2",
            b"run-1\r\n01/Jan/1970:00:00:00 +0000 [2] <- 200 - 1ms",
            b"r;un-1",
            b"run-x",
            b"aaaaaaaaaaaaaaaaaaaaaaaaa-1",
            b"run-12345678901234567",
            "r\u{fc}n-1".as_bytes(),
            b"\xff-1",
        ] {
            assert_eq!(parse_sample_mark(mark), None, "{}", String::from_utf8_lossy(mark));
        }
    }

    #[test]
    fn a_request_has_one_mark_or_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(sample_mark_of(&headers), None);
        headers.append(&SAMPLE_MARK_HEADER, HeaderValue::from_static("run-1"));
        assert_eq!(sample_mark_of(&headers), Some("run-1"));
        headers.append(&SAMPLE_MARK_HEADER, HeaderValue::from_static("run-2"));
        assert_eq!(sample_mark_of(&headers), None);
    }
}
