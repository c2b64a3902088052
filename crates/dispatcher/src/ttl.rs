//! The life that a render gives to its answer.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};

/// Returns when an answer that was fetched at `fetched` expires: by `s-maxage`, else `max-age`, else `Expires`.
pub(crate) fn expiry(headers: &HeaderMap, fetched: SystemTime) -> Option<SystemTime> {
    let seconds = directive(headers, "s-maxage").or_else(|| directive(headers, "max-age"));
    if let Some(seconds) = seconds {
        // A century is long enough, and adding more could leave the range of file times.
        const CENTURY: u64 = 100 * 365 * 24 * 60 * 60;
        return Some(fetched + Duration::from_secs(seconds.min(CENTURY)));
    }
    let expires = headers.get(header::EXPIRES)?.to_str().ok()?;
    // Anything but a date, such as `0`, means "already expired".
    Some(httpdate::parse_http_date(expires).unwrap_or(fetched))
}

fn directive(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers
        .get_all(header::CACHE_CONTROL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|directive| directive.split_once('='))
        .find(|(key, _)| key.trim().eq_ignore_ascii_case(name))
        .and_then(|(_, value)| value.trim().trim_matches('"').parse().ok())
}

#[cfg(test)]
mod tests {
    use super::expiry;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
            assert_eq!(expiry(&headers, fetched), expected, "{headers:?}");
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
        check(&[("cache-control", "max-age=99999999999999")], after(3_153_600_000));
    }
}
