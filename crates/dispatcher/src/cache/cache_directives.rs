//! The directives of a response about caching: `Cache-Control` (RFC 9111, section 5.2), `CDN-Cache-Control` (RFC 9213),
//! and `Surrogate-Control` (Edge Architecture Specification 1.0).
//!
//! In: header lines. Out: the directives that a shared cache obeys.
//!
//! Invariants
//! * Commas and directives within quoted strings are text.
//! * Of a repeated directive the first one counts (RFC 9111, section 4.2.1).
//! * A lifetime that is not a number is zero, and one that is too large is [`MAX_DELTA_SECONDS`] (sections 1.2.2, 4.2.1).

use std::time::Duration;

use http::{HeaderMap, HeaderName, header};

/// The greatest lifetime in seconds, one century: a longer one could exceed the range of file times.
pub(crate) const MAX_DELTA_SECONDS: u64 = 100 * 365 * 24 * 60 * 60;

/// The name of this cache in `Surrogate-Capability`, and as the target of directives.
pub(crate) const SURROGATE_NAME: &str = "tympan";

const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");
/// The header for the next surrogate only; caches behind it do not get it.
pub(crate) const SURROGATE_CONTROL: HeaderName = HeaderName::from_static("surrogate-control");

/// The part of a response that a directive concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum DirectiveScope {
    /// The directive is absent.
    #[default]
    Nothing,
    /// These headers.
    Headers(Vec<HeaderName>),
    /// The whole response.
    Response,
}

/// The directives of one header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CacheDirectives {
    pub(crate) no_store: bool,
    pub(crate) no_cache: DirectiveScope,
    pub(crate) private: DirectiveScope,
    pub(crate) is_public: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) proxy_revalidate: bool,
    pub(crate) must_understand: bool,
    pub(crate) max_age: Option<Duration>,
    pub(crate) s_maxage: Option<Duration>,
    pub(crate) stale_while_revalidate: Duration,
    pub(crate) stale_if_error: Duration,
}

/// The source of the directives that apply to a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ApplicableDirectives {
    /// A header for this kind of cache, which overrides `Cache-Control` and `Expires`.
    Targeted(CacheDirectives),
    /// `Cache-Control`.
    General(CacheDirectives),
}

impl ApplicableDirectives {
    /// Returns the directives for this cache.
    pub(crate) fn of_response(headers: &HeaderMap) -> Self {
        let targeted = CacheDirectives::parse_structured(headers, &CDN_CACHE_CONTROL)
            .or_else(|| CacheDirectives::parse_surrogate_control(headers));
        match targeted {
            Some(targeted) => Self::Targeted(targeted),
            None => Self::General(CacheDirectives::parse(headers, &header::CACHE_CONTROL)),
        }
    }

    pub(crate) fn directives(&self) -> &CacheDirectives {
        let (Self::Targeted(directives) | Self::General(directives)) = self;
        directives
    }
}

impl CacheDirectives {
    /// Parses a header in the syntax of `Cache-Control`; anything malformed is skipped.
    pub(crate) fn parse(headers: &HeaderMap, name: &HeaderName) -> Self {
        let mut directives = Self::default();
        let mut seen = Vec::new();
        for value in headers.get_all(name) {
            for member in split_outside_quotes(value.as_bytes(), b',') {
                let (key, argument) = match split_once(member, b'=') {
                    Some((key, argument)) => (key, Some(unquote(argument))),
                    None => (member, None),
                };
                let key = String::from_utf8_lossy(key).to_ascii_lowercase();
                if !seen.contains(&key) {
                    directives.set(&key, argument.as_deref());
                    seen.push(key);
                }
            }
        }
        directives
    }

    /// Parses a structured dictionary (RFC 9213, section 2.1); `None` if it is absent, empty or malformed.
    fn parse_structured(headers: &HeaderMap, name: &HeaderName) -> Option<Self> {
        let lines: Vec<&[u8]> = headers.get_all(name).iter().map(|line| line.as_bytes()).collect();
        if lines.is_empty() {
            return None;
        }
        let dictionary: sfv::Dictionary = sfv::Parser::new(&lines.join(&b","[..])).parse().ok()?;
        let mut directives = Self::default();
        for (key, entry) in &dictionary {
            let sfv::ListEntry::Item(item) = entry else { continue };
            match &item.bare_item {
                sfv::BareItem::Boolean(true) => directives.set(key.as_str(), None),
                // A directive with a value of another type is ignored.
                sfv::BareItem::Integer(number) => {
                    let number = i64::from(*number).to_string();
                    directives.set(key.as_str(), Some(number.as_bytes()));
                }
                sfv::BareItem::String(text) => {
                    let is_list = matches!(key.as_str(), "no-cache" | "private");
                    if is_list {
                        directives.set(key.as_str(), Some(text.as_str().as_bytes()));
                    }
                }
                _ => {}
            }
        }
        (!dictionary.is_empty()).then_some(directives)
    }

    /// Parses `Surrogate-Control`; `None` if it has no directive for this cache. A directive with this cache's name
    /// overrides those for every surrogate.
    fn parse_surrogate_control(headers: &HeaderMap) -> Option<Self> {
        let (mut general, mut own) = (Self::default(), Self::default());
        let (mut has_general, mut has_own) = (false, false);
        for value in headers.get_all(&SURROGATE_CONTROL) {
            for member in split_outside_quotes(value.as_bytes(), b',') {
                let mut parts = split_outside_quotes(member, b';').into_iter();
                let directive = parts.next().unwrap_or_default();
                let (directives, has_any) = match parts.next() {
                    None => (&mut general, &mut has_general),
                    Some(target) if target == SURROGATE_NAME.as_bytes() => (&mut own, &mut has_own),
                    Some(_other_cache) => continue,
                };
                match split_once(directive, b'=') {
                    Some((key, argument)) if key.eq_ignore_ascii_case(b"max-age") => {
                        let (lifetime, stale) = match split_once(argument, b'+') {
                            Some((lifetime, stale)) => (lifetime, Some(stale)),
                            None => (argument, None),
                        };
                        directives.max_age = Some(parse_delta_seconds(lifetime));
                        directives.stale_while_revalidate =
                            stale.map(parse_delta_seconds).unwrap_or_default();
                        *has_any = true;
                    }
                    None if directive.eq_ignore_ascii_case(b"no-store") => {
                        directives.no_store = true;
                        *has_any = true;
                    }
                    _ => {}
                }
            }
        }
        if has_own { Some(own) } else { has_general.then_some(general) }
    }

    fn set(&mut self, key: &str, argument: Option<&[u8]>) {
        let seconds = || argument.map(parse_delta_seconds).unwrap_or_default();
        match key {
            "no-store" => self.no_store = true,
            "no-cache" => self.no_cache = DirectiveScope::parse(argument),
            "private" => self.private = DirectiveScope::parse(argument),
            "public" => self.is_public = true,
            "must-revalidate" => self.must_revalidate = true,
            "proxy-revalidate" => self.proxy_revalidate = true,
            "must-understand" => self.must_understand = true,
            "max-age" => self.max_age = Some(seconds()),
            "s-maxage" => self.s_maxage = Some(seconds()),
            "stale-while-revalidate" => self.stale_while_revalidate = seconds(),
            "stale-if-error" => self.stale_if_error = seconds(),
            _ => {}
        }
    }

    /// Returns true if the response must not be used after its lifetime without validation.
    pub(crate) fn prohibits_stale(&self) -> bool {
        // `s-maxage` implies `proxy-revalidate` (RFC 9111, section 5.2.2.10).
        self.must_revalidate
            || self.proxy_revalidate
            || self.s_maxage.is_some()
            || self.no_cache == DirectiveScope::Response
    }

    /// Returns true if the response to a request with `Authorization` may be used for others (RFC 9111, section 3.5).
    pub(crate) fn shares_authorized(&self) -> bool {
        self.is_public || self.must_revalidate || self.s_maxage.is_some()
    }
}

impl DirectiveScope {
    fn parse(argument: Option<&[u8]>) -> Self {
        let Some(list) = argument else { return Self::Response };
        let names: Result<Vec<HeaderName>, _> = list
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .filter(|name| !name.is_empty())
            .map(HeaderName::from_bytes)
            .collect();
        match names {
            Ok(names) if !names.is_empty() => Self::Headers(names),
            // It names nothing that can be left out.
            _ => Self::Response,
        }
    }

    /// Returns the headers that it names.
    pub(crate) fn names(&self) -> &[HeaderName] {
        match self {
            Self::Headers(names) => names,
            Self::Nothing | Self::Response => &[],
        }
    }
}

/// Parses a number of seconds; zero if it is not a number.
pub(crate) fn parse_delta_seconds(text: &[u8]) -> Duration {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let seconds = text.iter().fold(0_u64, |sum, digit| {
        let digit = u64::from(digit.wrapping_sub(b'0'));
        sum.saturating_mul(10).saturating_add(digit).min(MAX_DELTA_SECONDS)
    });
    Duration::from_secs(if is_number { seconds } else { 0 })
}

/// The value of `Age`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceivedAge {
    /// There is none.
    Absent,
    /// This many seconds.
    Known(Duration),
    /// It cannot be read. Caches are encouraged to treat invalid freshness information as stale (RFC 9111, section
    /// 4.2.1).
    Invalid,
}

/// Parses `Age`. Of a list the first member counts (RFC 9111, section 5.1); several lines come from several senders, of
/// which it is unknown who is right.
pub(crate) fn received_age(headers: &HeaderMap) -> ReceivedAge {
    let mut lines = headers.get_all(header::AGE).iter();
    let Some(line) = lines.next() else { return ReceivedAge::Absent };
    let first = line.as_bytes().split(|byte| *byte == b',').next().unwrap_or_default();
    let first = first.trim_ascii();
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    if is_number && lines.next().is_none() {
        ReceivedAge::Known(parse_delta_seconds(first))
    } else {
        ReceivedAge::Invalid
    }
}

/// Splits at a separator outside quoted strings; parts are trimmed, and empty ones left out.
fn split_outside_quotes(value: &[u8], separator: u8) -> Vec<&[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = value.split(|byte| {
        let is_separator = *byte == separator && !is_quoted;
        is_quoted ^= *byte == b'"' && !is_escaped;
        is_escaped = is_quoted && *byte == b'\\' && !is_escaped;
        is_separator
    });
    parts.map(<[u8]>::trim_ascii).filter(|part| !part.is_empty()).collect()
}

fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == separator)?;
    let (before, after) = text.split_at_checked(at)?;
    Some((before, after.get(1..)?))
}

/// Returns the content of a quoted string, or the text itself.
fn unquote(text: &[u8]) -> Vec<u8> {
    let Some(inner) = text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else {
        return text.to_vec();
    };
    let mut plain = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        plain.extend(if *byte == b'\\' { bytes.next() } else { Some(byte) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{
        ApplicableDirectives, CacheDirectives, DirectiveScope, MAX_DELTA_SECONDS, ReceivedAge,
        received_age,
    };
    use http::{HeaderMap, HeaderName, HeaderValue, header};
    use proptest::prelude::*;
    use std::time::Duration;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn parse(values: &[&str]) -> CacheDirectives {
        let lines: Vec<(&'static str, &str)> =
            values.iter().map(|value| ("cache-control", *value)).collect();
        CacheDirectives::parse(&headers(&lines), &header::CACHE_CONTROL)
    }

    #[test]
    fn lifetimes_are_numbers_outside_of_other_strings() {
        let check = |values: &[&str], expected: Option<u64>| {
            let seconds = parse(values).max_age.map(|age| age.as_secs());
            assert_eq!(seconds, expected, "{values:?}");
        };
        check(&["max-age=60"], Some(60));
        check(&["MaX-aGe=60, public"], Some(60));
        check(&["max-age=\"60\""], Some(60));
        check(&["max-age=003600"], Some(3600));
        check(&["extension=\"max-age=3600\", max-age=1"], Some(1));
        check(&["extension=\"a, max-age=3600\""], None);
        check(&["extension=\"a\\\", max-age=3600\", max-age=2"], Some(2));
        check(&["max-age=1, max-age=1800"], Some(1));
        check(&["max-age=1800", "max-age=1"], Some(1800));
        check(&["max-age=2147483648"], Some(2_147_483_648));
        check(&["max-age=99999999999999999999999"], Some(MAX_DELTA_SECONDS));
        for invalid in ["'60'", "-1", "60.0", "a60", "60a", "", " 60"] {
            check(&[&format!("max-age={invalid}")], Some(0));
        }
        check(&["max-age"], Some(0));
        check(&["max-age =60"], None);
        check(&["s-maxage=60"], None);
    }

    #[test]
    fn directives_concern_the_response_or_some_headers() {
        let names = |names: &[&'static str]| {
            DirectiveScope::Headers(
                names.iter().map(|name| HeaderName::from_static(name)).collect(),
            )
        };
        let check = |values: &[&str], expected: DirectiveScope| {
            assert_eq!(parse(values).no_cache, expected, "{values:?}");
        };
        check(&["max-age=1"], DirectiveScope::Nothing);
        check(&["No-Cache"], DirectiveScope::Response);
        check(&["no-cache=\"a, B\", max-age=1"], names(&["a", "b"]));
        check(&["no-cache=Set-Cookie"], names(&["set-cookie"]));
        check(&["no-cache=\"\""], DirectiveScope::Response);
        check(&["no-cache=\"a b\""], DirectiveScope::Response);
        check(&["no-cache=\"a", "max-age=1"], DirectiveScope::Response);
    }

    #[test]
    fn a_header_for_this_cache_overrides_the_general_one() {
        let check = |pairs: &[(&'static str, &str)], targeted: bool, max_age, no_store| {
            let applicable = ApplicableDirectives::of_response(&headers(pairs));
            let directives = applicable.directives();
            let seconds = directives.max_age.map(|age| age.as_secs());
            assert_eq!((seconds, directives.no_store), (max_age, no_store), "{pairs:?}");
            let is_targeted = matches!(applicable, ApplicableDirectives::Targeted(_));
            assert_eq!(is_targeted, targeted, "{pairs:?}");
        };
        let general = ("cache-control", "max-age=1");
        let (cdn, surrogate) = ("cdn-cache-control", "surrogate-control");
        check(&[general], false, Some(1), false);
        check(&[general, (cdn, "max-age=60")], true, Some(60), false);
        check(&[general, (cdn, "no-store")], true, None, true);
        check(&[general, (cdn, "max-age=60, max-age=70")], true, Some(70), false);
        check(&[general, (cdn, "max-age=\"60\"")], true, None, false);
        check(&[general, (cdn, "max-age=60;")], false, Some(1), false);
        check(&[general, (cdn, "")], false, Some(1), false);
        check(&[general, (cdn, "max-age=60"), (surrogate, "max-age=9")], true, Some(60), false);
        check(&[general, (surrogate, "max-age=60")], true, Some(60), false);
        check(&[general, (surrogate, "foo, MaX-aGe=60")], true, Some(60), false);
        check(&[general, (surrogate, "max-age=60;other")], false, Some(1), false);
        check(&[general, (surrogate, "max-age=60, max-age=70;tympan")], true, Some(70), false);
        check(&[general, (surrogate, "no-store")], true, None, true);
        check(&[general, (surrogate, "no-store;other")], false, Some(1), false);
        check(&[general, (surrogate, "content=\"ESI/1.0\"")], false, Some(1), false);
        check(
            &[("cache-control", "no-store"), (surrogate, "max-age=9;tympan")],
            true,
            Some(9),
            false,
        );
    }

    #[test]
    fn an_age_is_one_number() {
        let check = |values: &[&str], expected: ReceivedAge| {
            let lines: Vec<(&'static str, &str)> =
                values.iter().map(|value| ("age", *value)).collect();
            assert_eq!(received_age(&headers(&lines)), expected, "{values:?}");
        };
        let known = |seconds| ReceivedAge::Known(Duration::from_secs(seconds));
        check(&[], ReceivedAge::Absent);
        check(&["0"], known(0));
        check(&["7200,0"], known(7200));
        check(&["0,7200"], known(0));
        check(&["99999999999999999999"], known(MAX_DELTA_SECONDS));
        for invalid in ["", "abc", "-7200", "7200.0", "7200;foo=bar", "7200;foo=111", "old, 0"] {
            check(&[invalid], ReceivedAge::Invalid);
        }
        check(&["0", "7200"], ReceivedAge::Invalid);
        check(&["0", "0"], ReceivedAge::Invalid);
    }

    proptest! {
        #[test]
        fn no_header_panics(value in "[ -~é]{0,60}") {
            let Ok(value) = HeaderValue::from_str(&value) else { return Ok(()) };
            for name in ["cache-control", "cdn-cache-control", "surrogate-control", "age"] {
                let name = HeaderName::from_static(name);
                let map = HeaderMap::from_iter([(name, value.clone())]);
                ApplicableDirectives::of_response(&map);
                received_age(&map);
            }
        }
    }
}
