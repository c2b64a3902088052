//! Asking a render whether a copy is still what it would send (RFC 9110, section 13), and renewing the copy if so.
//!
//! In: the copy that stands in the cache, and why it is out of date. Out: the conditions of the request, and after a 304
//! the head of the renewed copy (RFC 9111, section 4.3.4).
//!
//! Invariants
//! * A copy that a flush made out of date is confirmed by a strong tag only. A date counts whole seconds, in which a page
//!   can change twice, and a weak tag does not promise the same bytes.
//! * Whatever speaks against a 304 has the page asked for once more without conditions: nothing is kept on its word.
//!
//! Not here: whether the copy is still the one that the render was asked about when it is renewed (`fetch`).

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::cache::{CacheFile, Stamp};
use crate::cacheable::check_response;
use crate::config::Revalidate;
use crate::freshness::{Facts, Freshness, Patience, is_flushed, judge};
use crate::hit::remove_private;
use crate::tags::{KEPT_KEYS, SURROGATE_KEY};

/// The name under which a header file keeps a render's tag; visitors see it only where `/headers` names `ETag`.
pub(crate) const KEPT_TAG: HeaderName = HeaderName::from_static("x-tympan-etag");
/// The name under which a header file keeps a render's date of the last change.
pub(crate) const KEPT_DATE: HeaderName = HeaderName::from_static("x-tympan-last-modified");

/// A longer tag is not worth its place.
const MAX_TAG_BYTES: usize = 256;

/// What a render is asked about.
#[derive(Debug)]
pub(crate) struct Asked {
    /// What goes into the request.
    pub(crate) conditions: HeaderMap,
    /// Which file it is about.
    pub(crate) stamp: Stamp,
    stored: HeaderMap,
    had_expiry: bool,
}

impl Asked {
    /// Returns what to ask about a copy; nothing if it is fresh, or cannot be confirmed.
    pub(crate) fn about(
        copy: &CacheFile,
        (facts, patience): (Facts, Patience),
        mode: Revalidate,
    ) -> Option<Self> {
        let stored = &copy.headers.as_ref()?.headers;
        let wants_strong = is_flushed(facts);
        let is_asked = match mode {
            Revalidate::Never => false,
            Revalidate::Expired => !wants_strong,
            Revalidate::Flushed => true,
        };
        if !is_asked || judge(facts, patience) == Freshness::Valid {
            return None;
        }
        let mut conditions = HeaderMap::new();
        let tag = stored.get(KEPT_TAG).filter(|tag| !wants_strong || is_strong(tag));
        if let Some(tag) = tag {
            conditions.insert(header::IF_NONE_MATCH, tag.clone());
        }
        // A render that knows tags ignores the date then (RFC 9110, section 13.1.3).
        if let Some(date) = stored.get(KEPT_DATE).filter(|_| !wants_strong) {
            conditions.insert(header::IF_MODIFIED_SINCE, date.clone());
        }
        (!conditions.is_empty()).then(|| Self {
            conditions,
            stamp: copy.stamp,
            stored: stored.clone(),
            had_expiry: copy.expires.is_some(),
        })
    }

    /// Tells whether a copy that had an end would have none by the headers of its 304.
    pub(crate) fn lost_expiry(&self, expires: Option<SystemTime>) -> bool {
        self.had_expiry && expires.is_none()
    }

    /// Returns the head of the copy with what a 304 says anew; nothing if that does not fit what was asked, or the copy
    /// must not be kept any more.
    pub(crate) fn renewed(&self, told: &HeaderMap) -> Option<HeaderMap> {
        let wanted = self.conditions.get(header::IF_NONE_MATCH);
        if let (Some(wanted), Some(own)) = (wanted, told.get(header::ETAG))
            && plain(wanted) != plain(own)
        {
            return None;
        }
        let mut head = self.stored.clone();
        for (kept, public) in [
            (KEPT_KEYS, SURROGATE_KEY),
            (KEPT_TAG, header::ETAG),
            (KEPT_DATE, header::LAST_MODIFIED),
        ] {
            let values: Vec<HeaderValue> = head.get_all(&kept).iter().cloned().collect();
            if !values.is_empty() {
                head.remove(&public);
            }
            for value in values {
                head.append(public.clone(), value);
            }
        }
        remove_private(&mut head);
        for name in told.keys().filter(|name| !is_of_body(name)) {
            head.remove(name);
            for value in told.get_all(name) {
                head.append(name.clone(), value.clone());
            }
        }
        check_response(StatusCode::OK, &head).ok()?;
        Some(head)
    }
}

/// Adds to what a header file keeps the validators of a render's answer.
pub(crate) fn keep_validators(stored: &mut HeaderMap, answer: &HeaderMap) {
    if let Some(tag) = answer.get(header::ETAG).filter(|tag| is_tag(tag)) {
        stored.insert(KEPT_TAG, tag.clone());
    }
    let date = |name| httpdate::parse_http_date(answer.get(name)?.to_str().ok()?).ok();
    let (modified, sent) = (date(header::LAST_MODIFIED), date(header::DATE));
    // What was sent within the second of its last change may have changed once more in it (RFC 9110, section 8.8.2.2).
    let is_settled = modified
        .zip(sent)
        .is_some_and(|(modified, sent)| sent >= modified + Duration::from_secs(1));
    if let Some(date) = answer.get(header::LAST_MODIFIED).filter(|_| is_settled) {
        stored.insert(KEPT_DATE, date.clone());
    }
}

/// Headers that tell of a body, which a 304 has none of.
fn is_of_body(name: &HeaderName) -> bool {
    [
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::CONTENT_RANGE,
        header::TRANSFER_ENCODING,
    ]
    .contains(name)
}

fn is_tag(value: &HeaderValue) -> bool {
    let bytes = plain(value);
    let inner = bytes.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    bytes.len() <= MAX_TAG_BYTES && inner.is_some_and(|inner| !inner.contains(&b'"'))
}

fn is_strong(value: &HeaderValue) -> bool {
    !value.as_bytes().starts_with(b"W/")
}

fn plain(value: &HeaderValue) -> &[u8] {
    let bytes = value.as_bytes();
    bytes.strip_prefix(b"W/").unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Asked, keep_validators};
    use crate::cache::{Docroot, Lookup, NewFile};
    use crate::config::Revalidate;
    use crate::freshness::{Facts, Patience};
    use http::{HeaderMap, HeaderName, HeaderValue};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    /// Asks about a copy with these stored headers, made out of date by expiry or by a flush.
    fn ask(stored: &HeaderMap, is_flushed: bool, mode: Revalidate) -> Option<Asked> {
        let folder = tempfile::tempdir().unwrap();
        let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
        let docroot = Arc::new(docroot);
        let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let mut temporary = docroot.begin(0o644).unwrap();
        temporary.write(b"page").unwrap();
        let file = Path::new("a.html");
        let (fetched, expires) = (at(100), Some(at(200)));
        let new = NewFile { file, fetched, headers: stored.clone(), expires, mode: 0o755 };
        temporary.commit(&new).unwrap();
        let Lookup::File(copy) = docroot.look_up(file, true).unwrap() else { panic!("no file") };
        let facts = Facts {
            now: at(300),
            fetched,
            is_marked: is_flushed,
            flushed: None,
            flushed_before: None,
            expires,
        };
        let patience = Patience { grace: Duration::ZERO, has_window: false };
        Asked::about(&copy, (facts, patience), mode)
    }

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn a_flushed_copy_is_asked_about_by_a_strong_tag_only() {
        let check = |stored: &[_], is_flushed, mode, expected: &[&str]| {
            let asked = ask(&headers(stored), is_flushed, mode);
            let mut names: Vec<String> = asked
                .map(|asked| asked.conditions.keys().map(ToString::to_string).collect())
                .unwrap_or_default();
            names.sort();
            assert_eq!(names, expected, "{stored:?} {is_flushed} {mode:?}");
        };
        let (strong, weak) = (("x-tympan-etag", "\"a\""), ("x-tympan-etag", "W/\"a\""));
        let date = ("x-tympan-last-modified", DATE);
        let both = ["if-modified-since", "if-none-match"];
        for mode in [Revalidate::Expired, Revalidate::Flushed] {
            check(&[strong, date], false, mode, &both);
            check(&[weak, date], false, mode, &both);
            check(&[date], false, mode, &both[..1]);
            check(&[("etag", "\"shown\"")], false, mode, &[]);
        }
        check(&[strong, date], true, Revalidate::Expired, &[]);
        check(&[strong, date], true, Revalidate::Flushed, &both[1..]);
        check(&[weak, date], true, Revalidate::Flushed, &[]);
        check(&[strong, date], false, Revalidate::Never, &[]);
    }

    #[test]
    fn a_date_within_its_own_second_is_not_kept() {
        let check = |answer: &[_], expected: &[(&'static str, &'static str)]| {
            let mut stored = HeaderMap::new();
            keep_validators(&mut stored, &headers(answer));
            assert_eq!(stored, headers(expected), "{answer:?}");
        };
        let modified = ("last-modified", DATE);
        check(
            &[modified, ("date", "Sun, 06 Nov 1994 08:49:38 GMT")],
            &[("x-tympan-last-modified", DATE)],
        );
        check(&[modified, ("date", DATE)], &[]);
        check(&[modified], &[]);
        check(&[("last-modified", "x"), ("date", DATE)], &[]);
        check(&[("etag", "W/\"a\"")], &[("x-tympan-etag", "W/\"a\"")]);
        check(&[("etag", "a")], &[]);
        check(&[("etag", "\"a\"b\"")], &[]);
    }

    #[test]
    fn a_304_changes_the_head_or_counts_for_nothing() {
        let stored = headers(&[
            ("content-type", "text/html; charset=gbk"),
            ("x-shown", "old"),
            ("x-tympan-keys", "a b"),
            ("x-tympan-etag", "\"1\""),
        ]);
        let check = |told: &[_], expected: Option<&[_]>| {
            let asked = ask(&stored, true, Revalidate::Flushed).unwrap();
            assert_eq!(asked.renewed(&headers(told)), expected.map(headers), "{told:?}");
        };
        let kind = ("content-type", "text/html; charset=gbk");
        let (old, keys, tag) = (("x-shown", "old"), ("surrogate-key", "a b"), ("etag", "\"1\""));
        check(&[], Some(&[kind, old, keys, tag]));
        check(&[("content-type", "x/y"), ("content-length", "0")], Some(&[kind, old, keys, tag]));
        check(
            &[("x-shown", "new"), ("surrogate-key", "c"), ("etag", "W/\"1\"")],
            Some(&[kind, ("x-shown", "new"), ("surrogate-key", "c"), ("etag", "W/\"1\"")]),
        );
        for against in [
            ("etag", "\"2\""),
            ("cache-control", "no-store"),
            ("cache-control", "private"),
            ("dispatcher", "no-cache"),
        ] {
            check(&[against], None);
        }
    }
}
