//! The request headers that select a stored response, from its `Vary` (RFC 9111, section 4.1).
//!
//! In: the response of a render, and the headers of the request that was sent to it. Out: the selection that is stored
//! beside the response, and the comparison with later requests. The headers compared are those that a render gets: a
//! header that the farm does not pass on cannot make two requests differ. In a farm with `/x-http` the origin of the URL
//! (scheme, host and port) selects responses, too, as the file's name has only its path.
//!
//! Invariants
//! * A response is used only for requests whose selecting headers have the same values, after joining repeated lines and
//!   removing spaces around commas; a name or value that cannot be read matches nothing.
//! * A page has at most [`HEADER_VARIANT_SLOTS`] files besides its own, however many values visitors send.

use std::path::{Path, PathBuf};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use sha2::{Digest, Sha256};

use crate::cache::page_variant::header_variant_file;
use crate::config::ClientHeaderPolicy;
use crate::upstream::header_forwarding::may_differ_between_requests;

/// The name under which a header file stores the selection of its response.
pub(crate) const STORED_VARY_HEADER: HeaderName = HeaderName::from_static("x-tympan-vary");

/// The headers that tell a render the origin of the visitor's URL, sorted.
const ORIGIN_HEADERS: [HeaderName; 5] = [
    header::HOST,
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-ssl"),
];

/// The number of files for header variants of one page.
pub(crate) const HEADER_VARIANT_SLOTS: u8 = 128;

/// The maximum number of header names in a `Vary`; a response with more is not stored.
const MAX_SELECTING_NAMES: usize = 16;

/// The requests that a response may be used for, by its `Vary`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VaryRule {
    /// All.
    Any,
    /// Those with the same values of these headers; sorted.
    Same(Vec<HeaderName>),
    /// None but its own.
    Own,
}

impl VaryRule {
    /// Parses `Vary`. A member that is not a header name matches no later request, as `*` does.
    pub(crate) fn parse(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(header::VARY).into_iter();
        let members = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
        let mut names = Vec::new();
        for member in members.map(<[u8]>::trim_ascii).filter(|member| !member.is_empty()) {
            // The token grammar allows the star as a name.
            match HeaderName::from_bytes(member) {
                Ok(name) if name.as_str() != "*" => names.push(name),
                _ => return Self::Own,
            }
        }
        names.sort_by(|left, right| left.as_str().cmp(right.as_str()));
        names.dedup();
        match names.len() {
            0 => Self::Any,
            1..=MAX_SELECTING_NAMES => Self::Same(names),
            _ => Self::Own,
        }
    }

    /// Returns true if requests to a farm with this policy may differ in a selecting header.
    pub(crate) fn may_separate_requests(&self, client_headers: &ClientHeaderPolicy) -> bool {
        match self {
            Self::Any => false,
            Self::Same(names) => {
                names.iter().any(|name| may_differ_between_requests(client_headers, name))
            }
            Self::Own => true,
        }
    }
}

/// The selecting headers of a stored response, with a digest of their values in its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VarySelection {
    names: Vec<HeaderName>,
    digest: [u8; 16],
    /// The digest of the origin of its URL; `None` if it is for any origin of the farm.
    origin: Option<[u8; 16]>,
}

impl VarySelection {
    /// Returns the selection of a response to a request with these headers; `None` if it is for everyone. Headers that
    /// no request to a render contains, such as `Accept-Encoding`, are left out.
    pub(crate) fn of_response(response: &HeaderMap, request: &HeaderMap) -> Option<Self> {
        let names = selecting_names(response);
        let digest = digest_values(&names, request);
        (!names.is_empty()).then_some(Self { names, digest, origin: None })
    }

    /// As [`VarySelection::of_response`], for one origin only (RFC 9111, section 2).
    pub(crate) fn of_http_response(response: &HeaderMap, request: &HeaderMap) -> Self {
        let names = selecting_names(response);
        let (digest, origin) = (digest_values(&names, request), digest_origin(request));
        Self { names, digest, origin: Some(origin) }
    }

    /// Parses the output of [`VarySelection::to_value`]; a malformed value matches no request.
    pub(crate) fn from_stored(stored: &HeaderMap) -> Option<Self> {
        let value = stored.get(STORED_VARY_HEADER)?;
        let parse = || {
            let mut words = value.to_str().ok()?.split(' ');
            let digest = hex::decode(words.next()?).ok()?.try_into().ok()?;
            let names = words.next()?.split(',').filter(|name| !name.is_empty()).map(str::parse);
            let names = names.collect::<Result<Vec<HeaderName>, _>>().ok()?;
            let origin = match words.next() {
                Some(origin) => Some(hex::decode(origin).ok()?.try_into().ok()?),
                None => None,
            };
            Some(Self { names, digest, origin })
        };
        Some(parse().unwrap_or(Self::MALFORMED))
    }

    /// The selection that matches nothing.
    const MALFORMED: Self = Self { names: Vec::new(), digest: [0; 16], origin: Some([0; 16]) };

    /// Returns the value for the header file.
    pub(crate) fn to_value(&self) -> Option<HeaderValue> {
        let names: Vec<&str> = self.names.iter().map(HeaderName::as_str).collect();
        let mut text = format!("{} {}", hex::encode(self.digest), names.join(","));
        if let Some(origin) = &self.origin {
            text = format!("{text} {}", hex::encode(origin));
        }
        HeaderValue::from_str(&text).ok()
    }

    /// Returns true if headers besides those of the origin select the response.
    pub(crate) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    fn is_for_origin_of(&self, request: &HeaderMap) -> bool {
        self.origin.is_none_or(|origin| origin == digest_origin(request))
    }

    /// Returns true if the response may be used for a request that would be sent with these headers.
    pub(crate) fn matches(&self, request: &HeaderMap) -> bool {
        self.digest == digest_values(&self.names, request) && self.is_for_origin_of(request)
    }

    /// Returns true if requests for one URL of a farm with this policy may differ in a selecting header.
    pub(crate) fn may_separate_requests(&self, client_headers: &ClientHeaderPolicy) -> bool {
        // Visitors who may name the scheme choose among the origins of one URL.
        let names_scheme = |policy: &ClientHeaderPolicy| match policy {
            ClientHeaderPolicy::All => false,
            ClientHeaderPolicy::Only(names) => names.iter().any(|name| name == "x-forwarded-proto"),
        };
        *self == Self::MALFORMED
            || self.origin.is_some() && names_scheme(client_headers)
            || self.names.iter().any(|name| may_differ_between_requests(client_headers, name))
    }

    /// Returns the two files that may hold the response for a request with other values than this one's, beside the
    /// file of the page. With two places for each value, a few values rarely displace each other.
    pub(crate) fn variant_files(&self, page: &Path, request: &HeaderMap) -> [PathBuf; 2] {
        let mut digest = digest_values(&self.names, request);
        if self.origin.is_some() {
            digest.iter_mut().zip(digest_origin(request)).for_each(|(own, other)| *own ^= other);
        }
        let [first, second, ..] = digest;
        let first = first % HEADER_VARIANT_SLOTS;
        let second = second % (HEADER_VARIANT_SLOTS - 1);
        // Never the same as the first.
        let second = if second >= first { second + 1 } else { second };
        [first, second].map(|slot| header_variant_file(page, slot))
    }
}

/// Puts the languages of `Accept-Language` into one order: the order of languages with the same weight has no meaning
/// (RFC 9110, section 12.5.4).
pub(crate) fn sort_languages(headers: &mut HeaderMap) {
    let lines: Vec<String> = headers
        .get_all(header::ACCEPT_LANGUAGE)
        .iter()
        .filter_map(|line| Some(line.to_str().ok()?.to_ascii_lowercase()))
        .collect();
    if lines.is_empty() {
        return;
    }
    let list = lines.join(",");
    let mut languages: Vec<(u16, &str)> = list.split(',').filter_map(weighted_language).collect();
    languages.sort_by(|left, right| right.0.cmp(&left.0).then(left.1.cmp(right.1)));
    let sorted: Vec<String> = languages
        .iter()
        .map(|(weight, language)| format!("{language};q={}.{:03}", weight / 1000, weight % 1000))
        .collect();
    if let Ok(value) = HeaderValue::from_str(&sorted.join(",")) {
        headers.insert(header::ACCEPT_LANGUAGE, value);
    }
}

/// Returns the weight in thousandths and the name of a language; 1000 without a valid weight.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
fn weighted_language(member: &str) -> Option<(u16, &str)> {
    let (language, parameters) = member.split_once(';').unwrap_or((member, ""));
    let weight =
        parameters.trim().strip_prefix("q=").and_then(|text| text.trim().parse::<f32>().ok());
    let weight = weight.map_or(1.0, |weight| weight.clamp(0.0, 1.0));
    let language = language.trim();
    (!language.is_empty()).then_some(((weight * 1000.0).round() as u16, language))
}

/// Returns true if a stored response is in the language that a request prefers to all others, and varies by nothing
/// else: its origin would choose the same.
fn is_in_preferred_language(
    selection: &VarySelection,
    stored: &HeaderMap,
    request: &HeaderMap,
) -> bool {
    if selection.names != [header::ACCEPT_LANGUAGE] {
        return false;
    }
    let text = |headers: &HeaderMap, name| {
        Some(headers.get(name)?.to_str().ok()?.trim().to_ascii_lowercase())
    };
    let (Some(own), Some(list)) =
        (text(stored, header::CONTENT_LANGUAGE), text(request, header::ACCEPT_LANGUAGE))
    else {
        return false;
    };
    let mut languages: Vec<(u16, &str)> = list.split(',').filter_map(weighted_language).collect();
    languages.sort_by_key(|language| std::cmp::Reverse(language.0));
    match languages.as_slice() {
        [(weight, language)] => *weight > 0 && *language == own,
        [(weight, language), (next, _), ..] => weight > next && *language == own,
        [] => false,
    }
}

impl VarySelection {
    /// As [`VarySelection::matches`]; in HTTP also for a response in the language that the request prefers.
    pub(crate) fn matches_in_http(&self, stored: &HeaderMap, request: &HeaderMap) -> bool {
        self.matches(request)
            || self.is_for_origin_of(request) && is_in_preferred_language(self, stored, request)
    }
}

/// Returns the headers that a response's `Vary` names, and that a request to a render may contain.
fn selecting_names(response: &HeaderMap) -> Vec<HeaderName> {
    let VaryRule::Same(mut names) = VaryRule::parse(response) else { return Vec::new() };
    names.retain(|name| may_differ_between_requests(&ClientHeaderPolicy::All, name));
    names
}

/// Returns a digest of the origin that a request to a render tells.
fn digest_origin(request: &HeaderMap) -> [u8; 16] {
    digest_values(&ORIGIN_HEADERS, request)
}

/// Returns a digest of the values of these headers.
fn digest_values(names: &[HeaderName], request: &HeaderMap) -> [u8; 16] {
    let mut hash = Sha256::new();
    for name in names {
        hash.update(name.as_str());
        // An absent header is not an empty one.
        hash.update([u8::from(request.contains_key(name))]);
        let separator: u8 = if *name == header::COOKIE { b';' } else { b',' };
        let mut members = Vec::new();
        for value in request.get_all(name) {
            members.extend(list_members(value.as_bytes(), separator));
        }
        for member in members {
            // The length keeps members apart whatever bytes they contain.
            hash.update((member.len() as u64).to_be_bytes());
            if is_case_insensitive(name) {
                hash.update(member.to_ascii_lowercase());
            } else {
                hash.update(member);
            }
        }
        hash.update(u64::MAX.to_be_bytes());
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(hash.finalize().get(..16).unwrap_or(&[0; 16]));
    digest
}

/// Splits a list outside quoted strings and trims its members.
fn list_members(value: &[u8], separator: u8) -> Vec<&[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value
        .split(|byte| {
            let is_separator = *byte == separator && !is_quoted;
            is_quoted ^= *byte == b'"' && !is_escaped;
            is_escaped = is_quoted && *byte == b'\\' && !is_escaped;
            is_separator
        })
        .map(<[u8]>::trim_ascii)
        .collect()
}

/// Returns true for headers whose values differ in case without another meaning (RFC 9110, sections 4.2.3, 12.5.2 and
/// 12.5.4).
fn is_case_insensitive(name: &HeaderName) -> bool {
    [header::ACCEPT_LANGUAGE, header::ACCEPT_CHARSET].contains(name)
        || ORIGIN_HEADERS.contains(name)
}

#[cfg(test)]
mod tests {
    use super::{HEADER_VARIANT_SLOTS, STORED_VARY_HEADER, VaryRule, VarySelection};
    use crate::config::ClientHeaderPolicy;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn lists_of_names_are_rules() {
        let check = |lists: &[&str], expected: &str| {
            let pairs: Vec<(&str, &str)> = lists.iter().map(|list| ("vary", *list)).collect();
            let rule = match VaryRule::parse(&headers(&pairs)) {
                VaryRule::Any => "any".to_owned(),
                VaryRule::Own => "own".to_owned(),
                VaryRule::Same(names) => {
                    names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(" ")
                }
            };
            assert_eq!(rule, expected, "{lists:?}");
        };
        check(&[], "any");
        check(&["", " , "], "any");
        check(&["Foo"], "foo");
        check(&["foo, Bar", "FOO"], "bar foo");
        check(&["*"], "own");
        check(&["foo", " , *"], "own");
        check(&["*, *"], "own");
        check(&["foo bar"], "own");
        check(&["a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"], "own");
    }

    #[test]
    fn equal_values_match_whatever_their_form() {
        let check = |first: &[(&str, &str)], second: &[(&str, &str)], expected: bool| {
            let response = headers(&[("vary", "foo, accept-language, cookie")]);
            let selection = VarySelection::of_response(&response, &headers(first)).unwrap();
            assert_eq!(selection.matches(&headers(second)), expected, "{first:?} {second:?}");
        };
        check(&[], &[("other", "1")], true);
        check(&[("foo", "1")], &[("foo", "1")], true);
        check(&[("foo", "1")], &[("foo", "2")], false);
        check(&[("foo", "1")], &[], false);
        check(&[("foo", "")], &[], false);
        check(&[("foo", "1, 2")], &[("foo", "1"), ("foo", "2")], true);
        check(&[("foo", "1,2")], &[("foo", " 1, 2 ")], true);
        check(&[("foo", "\"1, 2\"")], &[("foo", "\"1,2\"")], false);
        check(&[("foo", "\"a\\\", b\"")], &[("foo", "\"a\\\",b\"")], false);
        check(&[("foo", "1,2")], &[("foo", "2,1")], false);
        check(&[("foo", "a")], &[("foo", "A")], false);
        check(&[("accept-language", "en, de")], &[("accept-language", "eN,De")], true);
        check(&[("accept-language", "en, de")], &[("accept-language", "de, en")], false);
        check(&[("cookie", "a=1; b=2")], &[("cookie", "a=1"), ("cookie", "b=2")], true);
        check(&[("cookie", "a=1")], &[("cookie", "a=2")], false);
    }

    #[test]
    fn languages_have_one_order_and_the_preferred_one_is_known() {
        let sorted = |list: &str| {
            let mut map = headers(&[("accept-language", list)]);
            super::sort_languages(&mut map);
            map.get("accept-language").unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(sorted("en, de"), "de;q=1.000,en;q=1.000");
        assert_eq!(sorted("DE,en"), "de;q=1.000,en;q=1.000");
        assert_eq!(sorted("fr;q=0.5, de;q=1.0, *;q=0"), "de;q=1.000,fr;q=0.500,*;q=0.000");
        assert_eq!(sorted("en;q=x"), "en;q=1.000");
        let check = |own: &str, vary: &str, list: &str, expected: bool| {
            let response = headers(&[("vary", vary), ("content-language", own)]);
            let first = headers(&[("accept-language", "xx")]);
            let selection = VarySelection::of_response(&response, &first).unwrap();
            let request = headers(&[("accept-language", list)]);
            assert_eq!(selection.matches_in_http(&response, &request), expected, "{own} {list}");
        };
        check("de", "accept-language", "fr;q=0.5, de;q=1.0", true);
        check("de", "accept-language", "de", true);
        check("de", "accept-language", "fr, de", false);
        check("de", "accept-language", "de;q=0", false);
        check("de, en", "accept-language", "de", false);
        check("de", "accept-language, cookie", "de", false);
        check("de", "accept-language", "", false);
    }

    #[test]
    fn a_stored_selection_reads_back_and_a_broken_one_matches_nothing() {
        let response = headers(&[("vary", "Foo, Accept-Encoding, Bar")]);
        let request = headers(&[("foo", "1")]);
        let selection = VarySelection::of_response(&response, &request).unwrap();
        let value = selection.to_value().unwrap();
        assert!(value.to_str().unwrap().ends_with(" bar,foo"), "{value:?}");
        let stored = HeaderMap::from_iter([(STORED_VARY_HEADER, value)]);
        assert_eq!(VarySelection::from_stored(&stored), Some(selection));
        for broken in ["", "x", "00 foo", "0123456789abcdef0123456789abcdef", "zz foo"] {
            let broken = headers(&[("x-tympan-vary", broken)]);
            let selection = VarySelection::from_stored(&broken).unwrap();
            assert!(!selection.matches(&HeaderMap::new()) && !selection.matches(&request));
            assert!(selection.may_separate_requests(&ClientHeaderPolicy::Only(Vec::new())));
        }
        assert_eq!(VarySelection::from_stored(&HeaderMap::new()), None);
    }

    #[test]
    fn headers_that_no_render_sees_separate_no_requests() {
        let only = ClientHeaderPolicy::Only(vec!["cookie".to_owned()]);
        let check = |vary: &str, policy: &ClientHeaderPolicy, expected: bool| {
            let response = headers(&[("vary", vary)]);
            assert_eq!(VaryRule::parse(&response).may_separate_requests(policy), expected);
            let stored = VarySelection::of_response(&response, &HeaderMap::new());
            let separates = stored.is_some_and(|stored| stored.may_separate_requests(policy));
            assert_eq!(separates || vary == "*", expected, "{vary} {policy:?}");
        };
        check("accept-encoding, If-None-Match", &ClientHeaderPolicy::All, false);
        check("user-agent", &ClientHeaderPolicy::All, true);
        check("user-agent", &only, false);
        check("user-agent, Cookie", &only, true);
        check("X-Forwarded-For", &only, true);
        check("*", &only, true);
    }

    #[test]
    fn variants_of_a_page_have_a_bounded_number_of_files() {
        let response = headers(&[("vary", "foo")]);
        let selection = VarySelection::of_response(&response, &HeaderMap::new()).unwrap();
        let mut files = BTreeSet::new();
        for number in 0..4000 {
            let request = headers(&[("foo", &number.to_string())]);
            let pair = selection.variant_files(Path::new("a/list.html"), &request);
            assert_ne!(pair[0], pair[1]);
            files.extend(pair);
        }
        assert_eq!(files.len(), usize::from(HEADER_VARIANT_SLOTS));
        assert!(files.contains(&PathBuf::from("a/list.q~.~00.html")), "{files:?}");
    }

    proptest! {
        #[test]
        fn no_vary_panics_and_its_own_request_matches(
            vary in "[ -~é]{0,40}", name in "[a-z*, ]{0,12}", value in "[ -~]{0,20}",
        ) {
            let (Ok(vary), Ok(value)) =
                (HeaderValue::from_str(&format!("{vary},{name}")), HeaderValue::from_str(&value))
            else { return Ok(()) };
            let response = HeaderMap::from_iter([(http::header::VARY, vary)]);
            let mut request = HeaderMap::new();
            if let Ok(name) = HeaderName::from_bytes(name.trim().as_bytes()) {
                request.append(name, value);
            }
            if let Some(selection) = VarySelection::of_response(&response, &request) {
                prop_assert!(selection.matches(&request));
                let stored = selection.to_value().map(|value| (STORED_VARY_HEADER, value));
                let read = VarySelection::from_stored(&HeaderMap::from_iter(stored));
                prop_assert_eq!(read, Some(selection));
            }
        }
    }
}
