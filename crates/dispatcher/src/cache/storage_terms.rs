//! The terms on which a shared HTTP cache may store and use a response (RFC 9111), for farms with `/x-http`.
//!
//! In: the head of a response, and the request that was sent for it. Out: its lifetime, its age, and what is allowed
//! after its lifetime; or the reason why it is not stored. Pure functions.
//!
//! Invariants
//! * The age of a response is never underestimated: it is counted from the request on, plus what other caches say, or
//!   from the origin's date, whichever is more (section 4.2.3).
//! * Terms are stored beside the file, so that a file is always used on the terms on which it was stored.
//!
//! Not here: the comparison of requests by `Vary` (`cache::vary`), flushes (`cache::freshness`).

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::cache_directives::{
    ApplicableDirectives, DirectiveScope, MAX_DELTA_SECONDS, ReceivedAge, SURROGATE_CONTROL,
    received_age,
};
use super::not_cacheable_reason::NotCacheableReason;
use super::ttl::StaleLenience;
use super::vary::VaryRule;

/// The name under which a header file stores the terms.
pub(crate) const STORED_TERMS_HEADER: HeaderName = HeaderName::from_static("x-tympan-http");

/// The terms of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StorageTerms {
    /// The end of its lifetime.
    pub(crate) expiry: SystemTime,
    /// Its age when its request was sent.
    pub(crate) initial_age: Duration,
    /// The allowances after its lifetime.
    pub(crate) lenience: StaleLenience,
    /// True if it must not be used after its lifetime, whatever the farm is configured to do.
    pub(crate) prohibits_stale: bool,
    /// True if it is for requests with and without `Authorization`.
    pub(crate) shares_authorized: bool,
    /// The headers that are not stored.
    pub(crate) omitted_headers: Vec<HeaderName>,
}

/// The facts about a response that is about to be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedResponse<'a> {
    pub(crate) status: StatusCode,
    pub(crate) headers: &'a HeaderMap,
    /// The time at which its request was sent.
    pub(crate) fetch_time: SystemTime,
    /// True if the request had `Authorization`.
    pub(crate) is_authorized: bool,
    /// The lifetime of responses that give none; zero if there is none.
    pub(crate) default_lifetime: Duration,
}

impl StorageTerms {
    /// Returns the terms of a response.
    ///
    /// # Errors
    /// Returns the reason why it must not be stored.
    pub(crate) fn of_response(response: &ReceivedResponse<'_>) -> Result<Self, NotCacheableReason> {
        let ReceivedResponse { status, headers, fetch_time, .. } = *response;
        if !is_storable_status(status) {
            return Err(NotCacheableReason::Status);
        }
        let is_for_dispatcher = headers.get("dispatcher").is_some_and(|value| {
            matches!(value.as_bytes().trim_ascii(), b"no-cache" | b"no_cache")
        });
        if is_for_dispatcher {
            return Err(NotCacheableReason::DispatcherNoCache);
        }
        let applicable = ApplicableDirectives::of_response(headers);
        let directives = applicable.directives();
        // Who understands the status may ignore `no-store` beside `must-understand` (RFC 9111, section 5.2.2.3).
        let is_understood = is_understood_status(status);
        let is_forbidden = match directives.must_understand {
            true => !is_understood,
            false => directives.no_store,
        };
        if is_forbidden || directives.private == DirectiveScope::Response {
            return Err(NotCacheableReason::CacheControl);
        }
        if response.is_authorized && !directives.shares_authorized() {
            return Err(NotCacheableReason::Authorization);
        }
        if VaryRule::parse(headers) == VaryRule::Own {
            return Err(NotCacheableReason::Vary);
        }
        let explicit_lifetime = explicit_lifetime(&applicable, headers, fetch_time);
        let may_guess = is_heuristic_status(status) || directives.is_public;
        let lifetime = match explicit_lifetime {
            _ if directives.no_cache == DirectiveScope::Response => Duration::ZERO,
            Some(lifetime) => lifetime,
            // A guess must not share what is meant for one visitor.
            None if may_guess && !headers.contains_key(header::SET_COOKIE) => {
                response.default_lifetime
            }
            None => Duration::ZERO,
        };
        let initial_age = initial_age(headers, fetch_time);
        let remaining = match initial_age {
            Some(age) => lifetime.saturating_sub(age),
            None => Duration::ZERO,
        };
        let prohibits_stale = directives.prohibits_stale();
        let lenience = match prohibits_stale {
            true => StaleLenience::default(),
            false => StaleLenience {
                while_revalidating: directives.stale_while_revalidate,
                if_error: directives.stale_if_error,
            },
        };
        let has_validator =
            headers.contains_key(header::ETAG) || headers.contains_key(header::LAST_MODIFIED);
        let is_useful = !remaining.is_zero() || lenience != StaleLenience::default();
        if !is_useful && (!has_validator || status != StatusCode::OK) {
            return Err(NotCacheableReason::NoLifetime);
        }
        let mut omitted_headers = directives.no_cache.names().to_vec();
        omitted_headers.extend_from_slice(directives.private.names());
        omitted_headers.push(SURROGATE_CONTROL);
        if explicit_lifetime.is_none() {
            omitted_headers.push(header::SET_COOKIE);
        }
        Ok(Self {
            expiry: fetch_time + remaining,
            initial_age: initial_age.unwrap_or_default(),
            lenience,
            prohibits_stale,
            shares_authorized: directives.shares_authorized(),
            omitted_headers,
        })
    }

    /// Returns the value for the header file.
    pub(crate) fn to_value(&self) -> HeaderValue {
        let flag = |is_set, letter| if is_set { letter } else { "" };
        let text = format!(
            "{} {}{}",
            self.initial_age.as_secs(),
            flag(self.prohibits_stale, "r"),
            flag(self.shares_authorized, "a")
        );
        HeaderValue::from_str(text.trim_end()).unwrap_or(HeaderValue::from_static("0 r"))
    }
}

/// The terms of a stored file that decide on its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredTerms {
    /// The age of the response when its request was sent.
    pub(crate) initial_age: Duration,
    pub(crate) prohibits_stale: bool,
    pub(crate) shares_authorized: bool,
}

impl StoredTerms {
    /// Parses the output of [`StorageTerms::to_value`]; `None` if the file was not stored on such terms.
    pub(crate) fn from_stored(stored: &HeaderMap) -> Option<Self> {
        let text = stored.get(STORED_TERMS_HEADER)?.to_str().ok()?;
        let (age, flags) = text.split_once(' ').unwrap_or((text, ""));
        let age = age.parse::<u64>().ok()?.min(MAX_DELTA_SECONDS);
        Some(Self {
            initial_age: Duration::from_secs(age),
            prohibits_stale: flags.contains('r'),
            shares_authorized: flags.contains('a'),
        })
    }
}

/// Returns the lifetime that the response states (RFC 9111, section 4.2.1).
fn explicit_lifetime(
    applicable: &ApplicableDirectives,
    headers: &HeaderMap,
    fetch_time: SystemTime,
) -> Option<Duration> {
    let directives = applicable.directives();
    if let Some(lifetime) = directives.s_maxage.or(directives.max_age) {
        return Some(lifetime);
    }
    // A header for this kind of cache replaces `Expires`, too (RFC 9213, section 2.2).
    if matches!(applicable, ApplicableDirectives::Targeted(_)) {
        return None;
    }
    let mut lines = headers.get_all(header::EXPIRES).iter();
    let expires = http_date(lines.next()?);
    let (Some(expires), None) = (expires, lines.next()) else { return Some(Duration::ZERO) };
    let date = headers.get(header::DATE).and_then(http_date).unwrap_or(fetch_time);
    let lifetime = expires.duration_since(date).unwrap_or_default();
    Some(lifetime.min(Duration::from_secs(MAX_DELTA_SECONDS)))
}

/// Returns the age of a response at the time of its request; `None` if it is unknown.
fn initial_age(headers: &HeaderMap, fetch_time: SystemTime) -> Option<Duration> {
    let received = match received_age(headers) {
        ReceivedAge::Absent => Duration::ZERO,
        ReceivedAge::Known(age) => age,
        ReceivedAge::Invalid => return None,
    };
    let date = headers.get(header::DATE).and_then(http_date);
    let since = date.and_then(|date| fetch_time.duration_since(date).ok()).unwrap_or_default();
    // Dates have a precision of one second.
    Some(received.max(Duration::from_secs(since.as_secs())))
}

fn http_date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// Returns true for final statuses whose response stands for the whole resource.
fn is_storable_status(status: StatusCode) -> bool {
    !status.is_informational()
        && !matches!(status, StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED)
        // A condition or range of one request.
        && !matches!(status, StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE)
}

/// Returns true for statuses of RFC 9110.
fn is_understood_status(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200..=205 | 300..=305 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 500..=505
    )
}

/// Returns true for statuses whose responses may have a guessed lifetime (RFC 9110, section 15.1).
fn is_heuristic_status(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

#[cfg(test)]
mod tests {
    use super::{ReceivedResponse, STORED_TERMS_HEADER, StorageTerms, StoredTerms};
    use crate::cache::not_cacheable_reason::NotCacheableReason;
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER_10: &str = "Sun, 06 Nov 1994 08:49:47 GMT";

    /// The time of [`DATE`].
    fn sent() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(784_111_777)
    }

    fn terms(
        status: u16,
        pairs: &[(&'static str, &'static str)],
        is_authorized: bool,
    ) -> Result<StorageTerms, NotCacheableReason> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        StorageTerms::of_response(&ReceivedResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: &headers,
            fetch_time: sent(),
            is_authorized,
            default_lifetime: Duration::ZERO,
        })
    }

    #[test]
    fn the_lifetime_counts_from_the_date_and_less_the_age() {
        let check = |pairs: &[(&'static str, &'static str)], expected: u64| {
            let mut pairs = pairs.to_vec();
            pairs.push(("etag", "\"1\""));
            let remaining = terms(200, &pairs, false).unwrap().expiry.duration_since(sent());
            assert_eq!(remaining.unwrap().as_secs(), expected, "{pairs:?}");
        };
        let control = |value| ("cache-control", value);
        check(&[control("max-age=60")], 60);
        check(&[control("max-age=60, s-maxage=30")], 30);
        check(&[control("max-age=60"), ("expires", "0")], 60);
        check(&[control("max-age=60"), ("age", "40")], 20);
        check(&[control("max-age=60"), ("age", "61")], 0);
        check(&[control("max-age=60"), ("age", "x")], 0);
        check(&[control("no-cache, max-age=60")], 0);
        check(&[control("no-cache=\"a\", max-age=60")], 60);
        check(&[control("public")], 0);
        check(&[("expires", AFTER_10)], 10);
        check(&[("expires", AFTER_10), ("date", DATE)], 10);
        check(&[("expires", AFTER_10), ("date", AFTER_10)], 0);
        check(&[("expires", AFTER_10), ("date", "x")], 10);
        check(&[("expires", AFTER_10), ("date", "Sun, 06 Nov 1994 08:49:27 GMT")], 10);
        check(&[("expires", "x")], 0);
        check(&[("expires", AFTER_10), ("expires", AFTER_10)], 0);
        check(&[("expires", AFTER_10), ("surrogate-control", "no-store;x")], 10);
        check(&[("expires", AFTER_10), ("surrogate-control", "max-age=0")], 0);
        // An origin in the past made it long ago.
        check(&[control("max-age=60"), ("date", "Sun, 06 Nov 1994 08:49:07 GMT")], 30);
    }

    #[test]
    fn responses_that_must_not_be_stored() {
        let check = |status, pairs: &[_], is_authorized, expected: Option<NotCacheableReason>| {
            assert_eq!(terms(status, pairs, is_authorized).err(), expected, "{status} {pairs:?}");
        };
        let control = |value| ("cache-control", value);
        use NotCacheableReason::{Authorization, CacheControl, NoLifetime, Status, Vary};
        for status in [200, 203, 204, 299, 301, 302, 307, 404, 410, 500, 503, 599] {
            check(status, &[control("max-age=60")], false, None);
            check(status, &[control("max-age=0")], false, Some(NoLifetime));
            check(status, &[control("no-store, max-age=60")], false, Some(CacheControl));
        }
        for status in [206, 304, 412, 416] {
            check(status, &[control("max-age=60")], false, Some(Status));
        }
        check(200, &[], false, Some(NoLifetime));
        check(200, &[("etag", "\"1\"")], false, None);
        check(404, &[("etag", "\"1\"")], false, Some(NoLifetime));
        check(200, &[control("private, max-age=60")], false, Some(CacheControl));
        check(200, &[control("private=\"a\", max-age=60")], false, None);
        check(200, &[control("max-age=60, no-store, must-understand")], false, None);
        check(599, &[control("max-age=60, must-understand")], false, Some(CacheControl));
        check(200, &[control("max-age=60"), ("vary", "*")], false, Some(Vary));
        check(200, &[control("max-age=60")], true, Some(Authorization));
        for shared in ["public, max-age=60", "must-revalidate, max-age=60", "s-maxage=60"] {
            check(200, &[control(shared)], true, None);
        }
    }

    #[test]
    fn only_a_stated_lifetime_shares_cookies() {
        let omits_cookie = |pairs: &[_]| {
            let terms = terms(200, pairs, false).unwrap();
            terms.omitted_headers.contains(&http::header::SET_COOKIE)
        };
        let (cookie, tag) = (("set-cookie", "a=b"), ("etag", "\"1\""));
        assert!(!omits_cookie(&[cookie, ("cache-control", "max-age=60")]));
        assert!(omits_cookie(&[cookie, ("cache-control", "max-age=60, no-cache=set-cookie")]));
        assert!(omits_cookie(&[cookie, tag]));
    }

    #[test]
    fn stale_use_is_allowed_and_prohibited() {
        let check = |control: &'static str, expected: (u64, u64, bool)| {
            let terms = terms(200, &[("cache-control", control)], false).unwrap();
            let lenience = terms.lenience;
            let seconds = (lenience.while_revalidating.as_secs(), lenience.if_error.as_secs());
            assert_eq!((seconds.0, seconds.1, terms.prohibits_stale), expected, "{control}");
            let stored = HeaderMap::from_iter([(STORED_TERMS_HEADER, terms.to_value())]);
            let read = StoredTerms::from_stored(&stored).unwrap();
            assert_eq!(read.prohibits_stale, terms.prohibits_stale);
            assert_eq!(read.shares_authorized, terms.shares_authorized);
        };
        check("max-age=1", (0, 0, false));
        check("max-age=1, stale-while-revalidate=5, stale-if-error=6", (5, 6, false));
        for prohibited in ["must-revalidate", "proxy-revalidate", "s-maxage=1"] {
            let control = format!("max-age=1, stale-if-error=6, {prohibited}");
            check(Box::leak(control.into_boxed_str()), (0, 0, true));
        }
        let aged = terms(200, &[("cache-control", "max-age=60"), ("age", "7")], false).unwrap();
        let stored = HeaderMap::from_iter([(STORED_TERMS_HEADER, aged.to_value())]);
        let read = StoredTerms::from_stored(&stored).unwrap();
        assert_eq!((read.initial_age.as_secs(), read.prohibits_stale), (7, false));
    }
}
