//! Decides how a stored binary answers a request: in full, with "not modified", or as a range (RFC 9110, 13 and 14).
//!
//! Pure: takes header values, returns a [`BinaryResponsePlan`]. A request for several ranges gets the full binary, as
//! the RFC allows.

use std::time::SystemTime;

/// The request headers that the decision depends on, as sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConditionalHeaders<'a> {
    /// `If-None-Match`.
    pub if_none_match: Option<&'a str>,
    /// `If-Modified-Since`; ignored if `If-None-Match` is present.
    pub if_modified_since: Option<&'a str>,
    /// `Range`.
    pub range: Option<&'a str>,
    /// `If-Range`: the range applies only if this still names the binary.
    pub if_range: Option<&'a str>,
}

/// The form of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryResponsePlan {
    /// Send all bytes.
    Full,
    /// The client's copy is current; send no body.
    NotModified,
    /// Send `len` bytes from `start` on; never empty.
    Partial {
        /// The offset of the first byte.
        start: u64,
        /// The number of bytes.
        len: u64,
    },
    /// The range lies outside of the binary.
    Unsatisfiable,
}

/// Decides the response for a binary of `length` bytes with a strong `etag` (quotes included).
#[must_use]
pub fn plan_response(
    conditions: &ConditionalHeaders<'_>,
    length: u64,
    etag: &str,
    last_modified: Option<SystemTime>,
) -> BinaryResponsePlan {
    if is_not_modified(conditions, etag, last_modified) {
        return BinaryResponsePlan::NotModified;
    }
    match conditions.range {
        Some(range) if is_range_applicable(conditions.if_range, etag, last_modified) => {
            plan_range_response(range, length)
        }
        _ => BinaryResponsePlan::Full,
    }
}

/// Returns true if the client's copy is current.
fn is_not_modified(
    conditions: &ConditionalHeaders<'_>,
    etag: &str,
    last_modified: Option<SystemTime>,
) -> bool {
    if let Some(tags) = conditions.if_none_match {
        return tags
            .split(',')
            .map(str::trim)
            .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag);
    }
    let since = conditions.if_modified_since.and_then(|date| httpdate::parse_http_date(date).ok());
    matches!((since, last_modified), (Some(since), Some(modified)) if truncate_to_seconds(modified) <= truncate_to_seconds(since))
}

/// Returns true unless `If-Range` is present and names another binary.
fn is_range_applicable(
    if_range: Option<&str>,
    etag: &str,
    last_modified: Option<SystemTime>,
) -> bool {
    match if_range.map(str::trim) {
        None => true,
        Some(tag) if tag.starts_with('"') => tag == etag,
        Some(tag) if tag.starts_with("W/") => false,
        Some(date) => match (httpdate::parse_http_date(date), last_modified) {
            (Ok(date), Some(modified)) => {
                truncate_to_seconds(modified) == truncate_to_seconds(date)
            }
            _ => false,
        },
    }
}

/// Parses `bytes=a-b`, `bytes=a-` or `bytes=-n`; ignores anything else.
fn plan_range_response(range: &str, length: u64) -> BinaryResponsePlan {
    let Some((first, last)) = range
        .trim()
        .strip_prefix("bytes=")
        .filter(|ranges| !ranges.contains(','))
        .and_then(|range| range.split_once('-'))
    else {
        return BinaryResponsePlan::Full;
    };
    let number = |text: &str| text.trim().parse::<u64>();
    let (start, end) = match (first.trim().is_empty(), number(first), number(last)) {
        (true, _, Ok(0)) => return BinaryResponsePlan::Unsatisfiable,
        (true, _, Ok(suffix)) => (length.saturating_sub(suffix), length),
        (false, Ok(start), Ok(last)) if last < start => return BinaryResponsePlan::Full,
        (false, Ok(start), Ok(last)) => (start, last.saturating_add(1).min(length)),
        (false, Ok(start), Err(_)) if last.trim().is_empty() => (start, length),
        _ => return BinaryResponsePlan::Full,
    };
    if start >= length {
        return BinaryResponsePlan::Unsatisfiable;
    }
    BinaryResponsePlan::Partial { start, len: end - start }
}

/// Truncates a time to the precision of HTTP dates.
fn truncate_to_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ETAG: &str = "\"abc\"";
    /// Sun, 06 Nov 1994 08:49:37 GMT, plus a fraction that HTTP dates drop.
    const MODIFIED: Duration = Duration::from_millis(784_111_777_900);

    #[track_caller]
    fn check(headers: &[(&str, &str)], expected: &str) {
        let header = |name| {
            headers.iter().find(|(header_name, _)| *header_name == name).map(|(_, value)| *value)
        };
        let conditions = ConditionalHeaders {
            if_none_match: header("if-none-match"),
            if_modified_since: header("if-modified-since"),
            range: header("range"),
            if_range: header("if-range"),
        };
        let plan = plan_response(&conditions, 1000, ETAG, Some(SystemTime::UNIX_EPOCH + MODIFIED));
        let text = match plan {
            BinaryResponsePlan::Full => "full".to_owned(),
            BinaryResponsePlan::NotModified => "not modified".to_owned(),
            BinaryResponsePlan::Partial { start, len } => format!("{start}+{len}"),
            BinaryResponsePlan::Unsatisfiable => "unsatisfiable".to_owned(),
        };
        assert_eq!(text, expected, "{headers:?}");
    }

    #[test]
    fn conditions() {
        check(&[], "full");
        check(&[("if-none-match", "\"abc\"")], "not modified");
        check(&[("if-none-match", "\"x\", W/\"abc\"")], "not modified");
        check(&[("if-none-match", "*")], "not modified");
        check(&[("if-none-match", "\"x\"")], "full");
        check(&[("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT")], "not modified");
        check(&[("if-modified-since", "Sun, 06 Nov 1994 08:49:36 GMT")], "full");
        check(&[("if-modified-since", "yesterday")], "full");
        let both =
            [("if-none-match", "\"x\""), ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT")];
        check(&both, "full");
    }

    #[test]
    fn ranges() {
        check(&[("range", "bytes=0-99")], "0+100");
        check(&[("range", "bytes=900-")], "900+100");
        check(&[("range", "bytes=900-5000")], "900+100");
        check(&[("range", "bytes=-100")], "900+100");
        check(&[("range", "bytes=-5000")], "0+1000");
        check(&[("range", "bytes=999-999")], "999+1");
        check(&[("range", "bytes=1000-")], "unsatisfiable");
        check(&[("range", "bytes=-0")], "unsatisfiable");
        check(&[("range", "bytes=5-4")], "full");
        check(&[("range", "bytes=0-1,5-6")], "full");
        check(&[("range", "lines=0-1")], "full");
        check(&[("range", "bytes=a-b")], "full");
        check(&[("range", "bytes=0-18446744073709551615")], "0+1000");
    }

    #[test]
    fn a_range_counts_only_for_the_same_binary() {
        check(&[("range", "bytes=0-9"), ("if-range", "\"abc\"")], "0+10");
        check(&[("range", "bytes=0-9"), ("if-range", "\"x\"")], "full");
        check(&[("range", "bytes=0-9"), ("if-range", "W/\"abc\"")], "full");
        check(&[("range", "bytes=0-9"), ("if-range", "Sun, 06 Nov 1994 08:49:37 GMT")], "0+10");
        check(&[("range", "bytes=0-9"), ("if-range", "Sun, 06 Nov 1994 08:49:38 GMT")], "full");
        check(&[("range", "bytes=0-9"), ("if-none-match", "\"abc\"")], "not modified");
    }

    #[test]
    fn empty_binary_has_no_range() {
        let conditions =
            ConditionalHeaders { range: Some("bytes=0-"), ..ConditionalHeaders::default() };
        assert_eq!(plan_response(&conditions, 0, ETAG, None), BinaryResponsePlan::Unsatisfiable);
        let conditions =
            ConditionalHeaders { range: Some("bytes=-5"), ..ConditionalHeaders::default() };
        assert_eq!(plan_response(&conditions, 0, ETAG, None), BinaryResponsePlan::Unsatisfiable);
    }
}
