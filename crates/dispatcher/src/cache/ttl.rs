//! The lifetime that a render gives to its response.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Returns the time at which a response that was fetched at `fetched` expires: by `s-maxage`, else `max-age`, else
/// `Expires`. An invalid value, such as `max-age=-1` or `Expires: 0`, means "already expired".
pub(crate) fn response_expiry(headers: &HeaderMap, fetched: SystemTime) -> Option<SystemTime> {
    let ages =
        [cache_directive_text(headers, "s-maxage"), cache_directive_text(headers, "max-age")];
    if let Some(seconds) = ages.iter().flatten().find_map(|text| text.parse::<u64>().ok()) {
        // A cache between here and the render has used up part of the lifetime.
        let used = headers.get(header::AGE).and_then(|age| age.to_str().ok()?.trim().parse().ok());
        let left = seconds.min(CENTURY_SECONDS).saturating_sub(used.unwrap_or(0));
        return Some(fetched + Duration::from_secs(left));
    }
    let Some(expires) = headers.get(header::EXPIRES) else {
        return ages.iter().any(Option::is_some).then_some(fetched);
    };
    let expires = expires.to_str().ok().and_then(|text| httpdate::parse_http_date(text).ok());
    Some(expires.unwrap_or(fetched))
}

/// The name under which a header file stores the render's allowance for the use of its copy after expiry.
pub(crate) const STORED_LENIENCE_HEADER: HeaderName = HeaderName::from_static("x-tympan-stale");

/// The time after expiry for which a render allows a copy to be used (RFC 5861).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StaleLenience {
    /// While it is fetched again (`stale-while-revalidate`).
    pub(crate) while_revalidating: Duration,
    /// While renders fail (`stale-if-error`).
    pub(crate) if_error: Duration,
}

impl StaleLenience {
    /// Reads the allowance of a response; zero if it forbids all use after its expiry.
    pub(crate) fn from_response(headers: &HeaderMap) -> Self {
        if has_cache_directive(headers, "proxy-revalidate") {
            return Self::default();
        }
        let time = |name| {
            Duration::from_secs(
                cache_directive_seconds(headers, name).unwrap_or(0).min(CENTURY_SECONDS),
            )
        };
        Self {
            while_revalidating: time("stale-while-revalidate"),
            if_error: time("stale-if-error"),
        }
    }

    /// Parses the output of [`StaleLenience::to_value`].
    pub(crate) fn from_stored(stored: &HeaderMap) -> Self {
        let text = stored.get(STORED_LENIENCE_HEADER).and_then(|value| value.to_str().ok());
        let Some((fetched, failing)) = text.and_then(|text| text.split_once(' ')) else {
            return Self::default();
        };
        let time = |text: &str| Duration::from_secs(text.parse().unwrap_or(0).min(CENTURY_SECONDS));
        Self { while_revalidating: time(fetched), if_error: time(failing) }
    }

    /// Returns the value for the header file; `None` if nothing is allowed.
    pub(crate) fn to_value(self) -> Option<HeaderValue> {
        let Self { while_revalidating, if_error } = self;
        let text = format!("{} {}", while_revalidating.as_secs(), if_error.as_secs());
        if self == Self::default() { None } else { HeaderValue::from_str(&text).ok() }
    }
}

/// The maximum lifetime, one century in seconds: a longer one could exceed the range of file times.
const CENTURY_SECONDS: u64 = 100 * 365 * 24 * 60 * 60;

/// Returns the directives of `Cache-Control`; a non-ASCII byte invalidates only its own directive.
fn cache_control_directives(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(header::CACHE_CONTROL).into_iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Returns true if `Cache-Control` holds a directive without a value.
pub(crate) fn has_cache_directive(headers: &HeaderMap, name: &str) -> bool {
    cache_control_directives(headers).any(|own| own.eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns the value in seconds of a directive of `Cache-Control`.
pub(crate) fn cache_directive_seconds(headers: &HeaderMap, name: &str) -> Option<u64> {
    cache_directive_text(headers, name)?.parse().ok()
}

/// Returns the value of a directive of `Cache-Control`, without its quotes.
fn cache_directive_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let value = cache_control_directives(headers).find_map(|own| {
        let at = own.iter().position(|byte| *byte == b'=')?;
        let (key, value) = own.split_at(at);
        key.trim_ascii().eq_ignore_ascii_case(name.as_bytes()).then_some(value)
    })?;
    let text = std::str::from_utf8(value.get(1..)?).ok()?;
    Some(text.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::{STORED_LENIENCE_HEADER, StaleLenience, response_expiry};
    use http::{HeaderMap, HeaderName, HeaderValue};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    #[test]
    fn a_render_allows_use_after_expiry_by_two_directives() {
        let check = |control: &'static str, (fetched, failing)| {
            let value = HeaderValue::from_static(control);
            let headers = HeaderMap::from_iter([(http::header::CACHE_CONTROL, value)]);
            let allowed = StaleLenience {
                while_revalidating: Duration::from_secs(fetched),
                if_error: Duration::from_secs(failing),
            };
            assert_eq!(StaleLenience::from_response(&headers), allowed, "{control}");
            let stored_header = allowed.to_value().map(|value| (STORED_LENIENCE_HEADER, value));
            assert_eq!(stored_header.is_some(), fetched + failing > 0, "{control}");
            assert_eq!(
                StaleLenience::from_stored(&HeaderMap::from_iter(stored_header)),
                allowed,
                "{control}"
            );
        };
        check("max-age=60", (0, 0));
        check("max-age=60, stale-while-revalidate=30", (30, 0));
        check("s-maxage=60, Stale-If-Error=\"600\", stale-while-revalidate=30", (30, 600));
        check("max-age=60, stale-if-error=600, proxy-revalidate", (0, 0));
        check("max-age=60, stale-if-error=x, stale-while-revalidate", (0, 0));
        check("stale-if-error=99999999999999", (0, 3_153_600_000));
        let odd = HeaderMap::from_iter([(STORED_LENIENCE_HEADER, HeaderValue::from_static("30"))]);
        assert_eq!(StaleLenience::from_stored(&odd), StaleLenience::default());
    }

    #[test]
    fn fr94_the_shared_age_goes_before_the_age_and_the_date() {
        let fetched = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let check = |headers: &[(&'static str, &'static str)], expected: Option<SystemTime>| {
            let headers: HeaderMap = headers
                .iter()
                .map(|(name, value)| {
                    (HeaderName::from_static(name), HeaderValue::from_static(value))
                })
                .collect();
            assert_eq!(response_expiry(&headers, fetched), expected, "{headers:?}");
        };
        let after = |seconds| Some(fetched + Duration::from_secs(seconds));
        const DATE: (&str, &str) = ("expires", "Sun, 06 Nov 1994 08:49:47 GMT");
        check(&[], None);
        check(&[("cache-control", "public")], None);
        check(&[("cache-control", "max-age=60, s-maxage=30"), DATE], after(30));
        check(&[("cache-control", "public, Max-Age=60"), DATE], after(60));
        check(&[("cache-control", "max-age=0")], after(0));
        check(&[DATE], after(10));
        check(&[("expires", "0")], after(0));
        check(&[("cache-control", "max-age=x"), DATE], after(10));
        check(&[("cache-control", "max-age=-1")], after(0));
        check(&[("cache-control", "s-maxage=x, max-age=60")], after(60));
        check(&[("cache-control", "max-age=60"), ("age", "40")], after(20));
        check(&[("cache-control", "s-maxage=60"), ("age", "99")], after(0));
        check(&[("cache-control", "max-age=60"), ("age", "x")], after(60));
        check(&[DATE, ("age", "40")], after(10));
        check(&[("cache-control", "max-age=99999999999999")], after(3_153_600_000));
    }
}
