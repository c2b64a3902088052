//! The form of the response from a cache file (whole, range, or neither), as a pure function of two heads.
//!
//! Follows RFC 9110, sections 13 and 14. Several ranges at once are answered with the whole file, as it allows.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The stored response as conditions see it.
#[derive(Debug, Clone)]
pub(crate) struct StoredEntity<'a> {
    pub(crate) etag: &'a HeaderValue,
    /// The modification time in whole seconds, as in headers.
    pub(crate) modification_time: SystemTime,
    pub(crate) length: u64,
    /// True if a range can be requested: only GET supports ranges (RFC 9110, section 14.2).
    pub(crate) supports_ranges: bool,
}

/// The form of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponsePlan {
    /// 200 with the whole body.
    Whole,
    /// 206 with these bytes.
    Part(RangeInclusive<u64>),
    /// 304.
    NotModified,
    /// 412.
    PreconditionFailed,
    /// 416.
    Unsatisfiable,
}

/// Returns the plan for the response to `request` from `entity`.
pub(crate) fn plan_response(request: &HeaderMap, entity: &StoredEntity<'_>) -> ResponsePlan {
    if let Some(refusal) = check_conditions(request, entity) {
        return refusal;
    }
    let mut ranges = request.get_all(header::RANGE).iter();
    // The header is not a list, so two of them are invalid.
    let (Some(range), None, true) = (ranges.next(), ranges.next(), entity.supports_ranges) else {
        return ResponsePlan::Whole;
    };
    let range = range.to_str().unwrap_or_default();
    if !is_range_applicable(request, entity) {
        return ResponsePlan::Whole;
    }
    match parse_range(range, entity.length) {
        RequestedRange::Bytes(range) => ResponsePlan::Part(range),
        RequestedRange::Unsatisfiable => ResponsePlan::Unsatisfiable,
        RequestedRange::Ignored => ResponsePlan::Whole,
    }
}

fn check_conditions(request: &HeaderMap, entity: &StoredEntity<'_>) -> Option<ResponsePlan> {
    if request.contains_key(header::IF_MATCH) {
        // A weak tag does not guarantee the same bytes, which this header requires (RFC 9110, section 13.1.1).
        let is_strong = !entity.etag.as_bytes().starts_with(b"W/");
        let is_same = |tag: &str| tag == "*" || is_strong && entity.etag == tag;
        if !listed_tags(request, header::IF_MATCH).any(is_same) {
            return Some(ResponsePlan::PreconditionFailed);
        }
    } else if let Some(since) = header_date(request, header::IF_UNMODIFIED_SINCE)
        && entity.modification_time > since
    {
        return Some(ResponsePlan::PreconditionFailed);
    }
    // A tag is more precise than a date, so a date next to it is ignored.
    let is_known = if request.contains_key(header::IF_NONE_MATCH) {
        let own = weak_comparison_tag(entity.etag.to_str().unwrap_or_default());
        listed_tags(request, header::IF_NONE_MATCH)
            .any(|tag| tag == "*" || weak_comparison_tag(tag) == own)
    } else {
        header_date(request, header::IF_MODIFIED_SINCE)
            .is_some_and(|since| entity.modification_time <= since)
    };
    is_known.then_some(ResponsePlan::NotModified)
}

/// Returns a tag for weak comparison.
fn weak_comparison_tag(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag)
}

/// Returns the tags listed in all headers of a name.
fn listed_tags(request: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lists = request.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| {
        let mut rest = list;
        std::iter::from_fn(move || {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            let (tag, behind) = rest.split_at_checked(first_tag_length(rest))?;
            rest = behind;
            (!tag.is_empty()).then(|| tag.trim_end())
        })
    })
}

/// Returns the length of the first tag of a list: commas within quotes belong to it.
fn first_tag_length(list: &str) -> usize {
    let quoted = weak_comparison_tag(list).strip_prefix('"').and_then(|inner| {
        let before = list.len() - inner.len();
        inner.find('"').map(|end| before + end + 1)
    });
    quoted.or_else(|| list.find(',')).unwrap_or(list.len())
}

fn is_range_applicable(request: &HeaderMap, entity: &StoredEntity<'_>) -> bool {
    let Some(condition) = header_text(request, header::IF_RANGE) else {
        return true;
    };
    if condition.contains('"') {
        // Only a strong tag guarantees the same bytes.
        return !condition.starts_with("W/") && entity.etag == condition;
    }
    httpdate::parse_http_date(condition).is_ok_and(|date| date == entity.modification_time)
}

enum RequestedRange {
    Bytes(RangeInclusive<u64>),
    Unsatisfiable,
    Ignored,
}

fn parse_range(text: &str, length: u64) -> RequestedRange {
    let Some((unit, spec)) = text.split_once('=') else {
        return RequestedRange::Ignored;
    };
    if !unit.eq_ignore_ascii_case("bytes") {
        return RequestedRange::Ignored;
    }
    let Some((first, last)) = spec.trim().split_once('-') else {
        return RequestedRange::Ignored;
    };
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit is a position far beyond the end.
        is_number.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), None) if last.is_empty() && first < length => {
            RequestedRange::Bytes(first..=length - 1)
        }
        (Some(first), Some(last)) if first <= last && first < length => {
            RequestedRange::Bytes(first..=last.min(length - 1))
        }
        (Some(_), None) if last.is_empty() => RequestedRange::Unsatisfiable,
        (Some(first), Some(last)) if first <= last => RequestedRange::Unsatisfiable,
        (None, Some(0)) if first.is_empty() => RequestedRange::Unsatisfiable,
        (None, Some(suffix)) if first.is_empty() && length > 0 => {
            RequestedRange::Bytes(length.saturating_sub(suffix)..=length - 1)
        }
        (None, Some(_)) if first.is_empty() => RequestedRange::Unsatisfiable,
        _ => RequestedRange::Ignored,
    }
}

fn header_text(request: &HeaderMap, name: HeaderName) -> Option<&str> {
    request.get(name)?.to_str().ok()
}

fn header_date(request: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(header_text(request, name)?).ok()
}

/// Truncates a time to whole seconds, the precision of headers.
pub(crate) fn truncate_to_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::{ResponsePlan, StoredEntity, plan_response};
    use http::{HeaderMap, HeaderName, HeaderValue};
    use std::time::{Duration, UNIX_EPOCH};

    #[track_caller]
    fn check(headers: &[(&str, &str)], expected: &ResponsePlan) {
        check_of("\"abc\"", true, headers, expected);
    }

    #[track_caller]
    fn check_of(etag: &str, has_parts: bool, headers: &[(&str, &str)], expected: &ResponsePlan) {
        let request: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    HeaderValue::from_str(value).unwrap(),
                )
            })
            .collect();
        let entity = StoredEntity {
            etag: &HeaderValue::from_str(etag).unwrap(),
            modification_time: UNIX_EPOCH + Duration::from_secs(784_111_777),
            length: 100,
            supports_ranges: has_parts,
        };
        assert_eq!(plan_response(&request, &entity), *expected, "{headers:?}");
    }

    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const OLDER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    #[test]
    fn conditions() {
        check(&[], &ResponsePlan::Whole);
        check(&[("if-none-match", "\"abc\"")], &ResponsePlan::NotModified);
        check(&[("if-none-match", "\"x\", W/\"abc\"")], &ResponsePlan::NotModified);
        check(&[("if-none-match", "*")], &ResponsePlan::NotModified);
        check(&[("if-none-match", "\"x\"")], &ResponsePlan::Whole);
        check(&[("if-modified-since", SAME)], &ResponsePlan::NotModified);
        check(&[("if-modified-since", OLDER)], &ResponsePlan::Whole);
        check(&[("if-modified-since", "nonsense")], &ResponsePlan::Whole);
        check(&[("if-none-match", "\"x\""), ("if-modified-since", SAME)], &ResponsePlan::Whole);
        check(&[("if-match", "\"x\"")], &ResponsePlan::PreconditionFailed);
        check(&[("if-match", "\"abc\"")], &ResponsePlan::Whole);
        check(&[("if-unmodified-since", OLDER)], &ResponsePlan::PreconditionFailed);
        check(&[("if-unmodified-since", SAME)], &ResponsePlan::Whole);
    }

    #[test]
    fn ranges() {
        check(&[("range", "bytes=0-9")], &ResponsePlan::Part(0..=9));
        check(&[("range", "bytes=90-")], &ResponsePlan::Part(90..=99));
        check(&[("range", "bytes=90-500")], &ResponsePlan::Part(90..=99));
        check(&[("range", "bytes=-10")], &ResponsePlan::Part(90..=99));
        check(&[("range", "bytes=-500")], &ResponsePlan::Part(0..=99));
        check(&[("range", "bytes=0-99999999999999999999")], &ResponsePlan::Part(0..=99));
        check(&[("range", "bytes=100-")], &ResponsePlan::Unsatisfiable);
        check(&[("range", "bytes=99999999999999999999-")], &ResponsePlan::Unsatisfiable);
        check(&[("range", "bytes=-0")], &ResponsePlan::Unsatisfiable);
        check(&[("range", "bytes=9-0")], &ResponsePlan::Whole);
        check(&[("range", "bytes=0-1,5-6")], &ResponsePlan::Whole);
        check(&[("range", "bytes=a-b")], &ResponsePlan::Whole);
        check(&[("range", "lines=0-1")], &ResponsePlan::Whole);
        check(&[("range", "bytes=-")], &ResponsePlan::Whole);
    }

    #[test]
    fn tags_are_compared_as_tags() {
        let check_tag = |etag: &str, name: &str, list: &str, expected: &ResponsePlan| {
            check_of(etag, true, &[(name, list)], expected);
        };
        check_tag("W/\"abc\"", "if-none-match", "\"abc\"", &ResponsePlan::NotModified);
        check_tag("W/\"abc\"", "if-match", "W/\"abc\"", &ResponsePlan::PreconditionFailed);
        check_tag("\"abc\"", "if-match", "W/\"abc\"", &ResponsePlan::PreconditionFailed);
        check_tag("W/\"abc\"", "if-match", "*", &ResponsePlan::Whole);
        check_tag("\"a,b\"", "if-match", "\"x\",\"a,b\"", &ResponsePlan::Whole);
        check_tag("\"a,b\"", "if-none-match", "\"x\" , W/\"a,b\" ,", &ResponsePlan::NotModified);
        check_tag("\"b\"", "if-none-match", "\"a,\"b\",c\"", &ResponsePlan::Whole);
        check_tag("\"abc\"", "if-none-match", "W/W/\"abc\"", &ResponsePlan::Whole);
        check_tag("\"abc\"", "if-none-match", "abc", &ResponsePlan::Whole);
        check_tag("\"abc\"", "if-none-match", "\"abc", &ResponsePlan::Whole);
        check_tag("\"abc\"", "if-none-match", "", &ResponsePlan::Whole);
        check(
            &[("if-none-match", "\"x\""), ("if-none-match", "\"abc\"")],
            &ResponsePlan::NotModified,
        );
    }

    #[test]
    fn only_one_range_of_a_get_is_a_range() {
        let part = ResponsePlan::Part(0..=9);
        check(&[("range", "Bytes=0-9")], &part);
        check(&[("range", "bytes=0-9"), ("range", "bytes=0-9")], &ResponsePlan::Whole);
        check_of("\"abc\"", false, &[("range", "bytes=0-9")], &ResponsePlan::Whole);
        check_of("\"abc\"", false, &[("range", "bytes=500-")], &ResponsePlan::Whole);
        check_of("\"abc\"", false, &[("if-none-match", "*")], &ResponsePlan::NotModified);
    }

    #[test]
    fn ranges_of_another_version_are_not_cut() {
        let ranged = |condition| [("range", "bytes=0-9"), ("if-range", condition)];
        check(&ranged("\"abc\""), &ResponsePlan::Part(0..=9));
        check(&ranged("W/\"abc\""), &ResponsePlan::Whole);
        check(&ranged("\"x\""), &ResponsePlan::Whole);
        check(&ranged(SAME), &ResponsePlan::Part(0..=9));
        check(&ranged(OLDER), &ResponsePlan::Whole);
    }
}
