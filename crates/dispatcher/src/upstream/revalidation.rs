//! Revalidation of a copy with its render (RFC 9110, section 13), and renewal of the copy if it is unchanged.
//!
//! Input: the copy in the cache, and the reason why it is out of date. Output: the conditions of the request, and after
//! a 304 the head of the renewed copy (RFC 9111, section 4.3.4).
//!
//! Invariants
//! * A copy invalidated by a flush is confirmed by a strong tag only. A date has a precision of one second, in which a
//!   page can change twice, and a weak tag does not guarantee the same bytes.
//! * If a 304 is inconsistent in any way, the page is requested again without conditions, and nothing is stored because
//!   of it.
//!
//! Not here: the check that the copy is still the same one when it is renewed (`page_fetch`).

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::cache::cacheability::check_response_cacheable;
use crate::cache::file_response::{
    STORED_ETAG_HEADER, STORED_LAST_MODIFIED_HEADER, remove_internal_headers,
};
use crate::cache::freshness::{
    CacheFileFreshness, FreshnessInput, GracePeriod, assess_freshness, is_flushed,
};
use crate::cache::surrogate_key::{STORED_KEYS_HEADER, SURROGATE_KEY_HEADER};
use crate::cache::{CacheFileStamp, OpenCacheFile};
use crate::config::RevalidateMode;

/// The maximum length of a stored tag in bytes.
const MAX_ETAG_BYTES: usize = 256;

/// A revalidation request.
#[derive(Debug)]
pub(crate) struct RevalidationRequest {
    /// The conditions of the request.
    pub(crate) conditions: HeaderMap,
    /// The stamp of the file to revalidate.
    pub(crate) file_stamp: CacheFileStamp,
    stored_headers: HeaderMap,
    had_expiry: bool,
    /// True if HTTP decides about the updated copy.
    is_http_copy: bool,
}

impl RevalidationRequest {
    /// Returns the request for a copy; `None` if it is fresh, or cannot be confirmed.
    pub(crate) fn for_copy(
        copy: &OpenCacheFile,
        facts: FreshnessInput,
        grace_period: GracePeriod,
        mode: RevalidateMode,
    ) -> Option<Self> {
        let stored = &copy.headers.as_ref()?.headers;
        let wants_strong = is_flushed(facts);
        let is_asked = match mode {
            RevalidateMode::Never => false,
            RevalidateMode::Expired => !wants_strong,
            RevalidateMode::Flushed => true,
        };
        if !is_asked || assess_freshness(facts, grace_period) == CacheFileFreshness::Valid {
            return None;
        }
        let mut conditions = HeaderMap::new();
        let tag = stored.get(STORED_ETAG_HEADER).filter(|tag| !wants_strong || is_strong_etag(tag));
        if let Some(tag) = tag {
            conditions.insert(header::IF_NONE_MATCH, tag.clone());
        }
        // A render that supports tags then ignores the date (RFC 9110, section 13.1.3).
        if let Some(date) = stored.get(STORED_LAST_MODIFIED_HEADER).filter(|_| !wants_strong) {
            conditions.insert(header::IF_MODIFIED_SINCE, date.clone());
        }
        (!conditions.is_empty()).then(|| Self {
            conditions,
            file_stamp: copy.stamp,
            stored_headers: stored.clone(),
            had_expiry: copy.expires_at.is_some(),
            is_http_copy: copy.terms().is_some(),
        })
    }

    /// Returns true if a copy with an expiry time would have none according to the headers of its 304.
    pub(crate) fn loses_expiry(&self, expires: Option<SystemTime>) -> bool {
        self.had_expiry && expires.is_none()
    }

    /// Returns the head of the copy updated from a 304; `None` if the 304 does not match the request, or the copy must
    /// not be stored any more.
    pub(crate) fn renewed_headers(&self, render_headers: &HeaderMap) -> Option<HeaderMap> {
        let expected_tag = self.conditions.get(header::IF_NONE_MATCH);
        if let (Some(expected_tag), Some(own)) = (expected_tag, render_headers.get(header::ETAG))
            && weak_etag_value(expected_tag) != weak_etag_value(own)
        {
            return None;
        }
        let mut head = self.stored_headers.clone();
        for (stored_name, public) in [
            (STORED_KEYS_HEADER, SURROGATE_KEY_HEADER),
            (STORED_ETAG_HEADER, header::ETAG),
            (STORED_LAST_MODIFIED_HEADER, header::LAST_MODIFIED),
        ] {
            let values: Vec<HeaderValue> = head.get_all(&stored_name).iter().cloned().collect();
            if !values.is_empty() {
                head.remove(&public);
            }
            for value in values {
                head.append(public.clone(), value);
            }
        }
        remove_internal_headers(&mut head);
        let is_update = |name: &&HeaderName| match self.is_http_copy {
            true => !is_http_body_header(name),
            false => !is_body_header(name),
        };
        for name in render_headers.keys().filter(is_update) {
            head.remove(name);
            for value in render_headers.get_all(name) {
                head.append(name.clone(), value.clone());
            }
        }
        if !self.is_http_copy {
            check_response_cacheable(StatusCode::OK, &head).ok()?;
        }
        Some(head)
    }
}

/// Adds the validators of a render's response to the stored headers.
pub(crate) fn store_validators(stored: &mut HeaderMap, response_headers: &HeaderMap) {
    if let Some(tag) = response_headers.get(header::ETAG).filter(|tag| is_valid_etag(tag)) {
        stored.insert(STORED_ETAG_HEADER, tag.clone());
    }
    let date = |name| httpdate::parse_http_date(response_headers.get(name)?.to_str().ok()?).ok();
    let (modified, sent) = (date(header::LAST_MODIFIED), date(header::DATE));
    // A page sent within the second of its last change may change again in that second (RFC 9110, section 8.8.2.2).
    let is_settled = modified
        .zip(sent)
        .is_some_and(|(modified, sent)| sent >= modified + Duration::from_secs(1));
    if let Some(date) = response_headers.get(header::LAST_MODIFIED).filter(|_| is_settled) {
        stored.insert(STORED_LAST_MODIFIED_HEADER, date.clone());
    }
}

/// Returns true for headers that describe a body, which a 304 does not have.
fn is_body_header(name: &HeaderName) -> bool {
    [
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::CONTENT_RANGE,
        header::TRANSFER_ENCODING,
    ]
    .contains(name)
}

/// Returns true for headers that a 304 does not update in HTTP (RFC 9111, sections 3.2 and 4.3.4): those of the stored
/// bytes.
fn is_http_body_header(name: &HeaderName) -> bool {
    let own = [
        header::CONTENT_LENGTH,
        header::CONTENT_ENCODING,
        header::CONTENT_RANGE,
        header::TRANSFER_ENCODING,
    ];
    own.contains(name) || name.as_str() == "content-md5"
}

fn is_valid_etag(value: &HeaderValue) -> bool {
    let bytes = weak_etag_value(value);
    let inner = bytes.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    bytes.len() <= MAX_ETAG_BYTES && inner.is_some_and(|inner| !inner.contains(&b'"'))
}

/// Returns true if a tag identifies the bytes of a response.
pub(crate) fn is_strong_etag(value: &HeaderValue) -> bool {
    !value.as_bytes().starts_with(b"W/")
}

fn weak_etag_value(value: &HeaderValue) -> &[u8] {
    let bytes = value.as_bytes();
    bytes.strip_prefix(b"W/").unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::{RevalidationRequest, store_validators};
    use crate::cache::freshness::{FreshnessInput, GracePeriod};
    use crate::cache::{CacheFileLookup, Docroot, NewCacheFile};
    use crate::config::RevalidateMode;
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

    /// Builds the request for a copy with these stored headers, invalidated by expiry or by a flush.
    fn ask(
        stored: &HeaderMap,
        is_flushed: bool,
        mode: RevalidateMode,
    ) -> Option<RevalidationRequest> {
        let folder = tempfile::tempdir().unwrap();
        let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
        let docroot = Arc::new(docroot);
        let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let mut temporary = docroot.create_temporary(0o644).unwrap();
        temporary.write(b"page").unwrap();
        let file = Path::new("a.html");
        let (fetched, expires) = (at(100), Some(at(200)));
        let new = NewCacheFile {
            destination: file.to_owned(),
            fetched_at: fetched,
            headers: stored.clone(),
            expires_at: expires,
            mode: 0o755,
        };
        temporary.commit_file(&new).unwrap();
        let CacheFileLookup::File(copy) = docroot.look_up_file(file, true).unwrap() else {
            panic!("no file")
        };
        let facts = FreshnessInput {
            now: at(300),
            fetch_time: fetched,
            is_marked: is_flushed,
            flush_time: None,
            previous_flush_time: None,
            expiry: expires,
        };
        let grace_period = GracePeriod { grace: Duration::ZERO, has_window: false };
        RevalidationRequest::for_copy(&copy, facts, grace_period, mode)
    }

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn a_flushed_copy_is_asked_about_by_a_strong_tag_only() {
        let check = |stored: &[_], is_flushed, mode, expected: &[&str]| {
            let revalidation = ask(&headers(stored), is_flushed, mode);
            let mut names: Vec<String> = revalidation
                .map(|revalidation| {
                    revalidation.conditions.keys().map(ToString::to_string).collect()
                })
                .unwrap_or_default();
            names.sort();
            assert_eq!(names, expected, "{stored:?} {is_flushed} {mode:?}");
        };
        let (strong, weak) = (("x-tympan-etag", "\"a\""), ("x-tympan-etag", "W/\"a\""));
        let date = ("x-tympan-last-modified", DATE);
        let both = ["if-modified-since", "if-none-match"];
        for mode in [RevalidateMode::Expired, RevalidateMode::Flushed] {
            check(&[strong, date], false, mode, &both);
            check(&[weak, date], false, mode, &both);
            check(&[date], false, mode, &both[..1]);
            check(&[("etag", "\"shown\"")], false, mode, &[]);
        }
        check(&[strong, date], true, RevalidateMode::Expired, &[]);
        check(&[strong, date], true, RevalidateMode::Flushed, &both[1..]);
        check(&[weak, date], true, RevalidateMode::Flushed, &[]);
        check(&[strong, date], false, RevalidateMode::Never, &[]);
    }

    #[test]
    fn a_date_within_its_own_second_is_not_stored() {
        let check = |response_headers: &[_], expected: &[(&'static str, &'static str)]| {
            let mut stored = HeaderMap::new();
            store_validators(&mut stored, &headers(response_headers));
            assert_eq!(stored, headers(expected), "{response_headers:?}");
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
        let check = |render_headers: &[_], expected: Option<&[_]>| {
            let revalidation = ask(&stored, true, RevalidateMode::Flushed).unwrap();
            assert_eq!(
                revalidation.renewed_headers(&headers(render_headers)),
                expected.map(headers),
                "{render_headers:?}"
            );
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
