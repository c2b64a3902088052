//! Responses from a cache file: heads, conditions, ranges. Pure functions that all code paths share.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tympan_web::html_charset;
use tympan_web::http_date::format_http_date;

use crate::cache::OpenCacheFile;
use crate::cache::storage_terms::{STORED_TERMS_HEADER, StoredTerms};
use crate::cache::surrogate_key::STORED_KEYS_HEADER;
use crate::cache::ttl::STORED_LENIENCE_HEADER;
use crate::cache::vary::STORED_VARY_HEADER;
use crate::edge::response_plan::{ResponsePlan, StoredEntity, plan_response, truncate_to_seconds};

/// The name under which a header file stores a render's tag; visitors see it only where `/headers` names `ETag`.
pub(crate) const STORED_ETAG_HEADER: HeaderName = HeaderName::from_static("x-tympan-etag");
/// The name under which a header file stores a render's last modification date.
pub(crate) const STORED_LAST_MODIFIED_HEADER: HeaderName =
    HeaderName::from_static("x-tympan-last-modified");

/// The media type of a page that declares no other.
const HTML_MEDIA_TYPE: &str = "text/html; charset=utf-8";

/// A file as a response uses it: its head, and the values that conditions compare.
#[derive(Debug)]
pub(crate) struct CacheFileHead {
    /// All headers except length and date.
    pub(crate) headers: HeaderMap,
    pub(crate) etag: HeaderValue,
    pub(crate) modification_time: SystemTime,
}

/// The response to a request for a file.
#[derive(Debug)]
pub(crate) struct CacheFileResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The offset of the body in the file, and its length.
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// Builds the head of responses from `cached`.
pub(crate) fn read_cache_file_head(
    name: &Path,
    cached: &OpenCacheFile,
    now: SystemTime,
) -> CacheFileHead {
    let headers = build_headers(name, cached, now);
    let etag = headers.get(header::ETAG).cloned().unwrap_or(HeaderValue::from_static("\"\""));
    let date = |name| httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok();
    // A response without the first was current at its date (RFC 9111, section 4.3.2).
    let modified = date(header::LAST_MODIFIED)
        .or_else(|| date(header::DATE))
        .unwrap_or_else(|| truncate_to_seconds(cached.fetched_at));
    CacheFileHead { headers, etag, modification_time: modified }
}

/// Returns the response to a request with these `conditions`; `headers` are those of the whole file.
pub(crate) fn conditional_response(
    conditions: &HeaderMap,
    entity: &StoredEntity<'_>,
    mut headers: HeaderMap,
) -> CacheFileResponse {
    let all = entity.length;
    let (status, start, length) = match plan_response(conditions, entity) {
        ResponsePlan::Whole => (StatusCode::OK, 0, all),
        ResponsePlan::Part(range) => {
            let text = format!("bytes {}-{}/{all}", range.start(), range.end());
            insert_header(&mut headers, header::CONTENT_RANGE, &text);
            let length = range.end() - range.start() + 1;
            (StatusCode::PARTIAL_CONTENT, *range.start(), length)
        }
        ResponsePlan::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
        ResponsePlan::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, 0, 0),
        ResponsePlan::Unsatisfiable => {
            insert_header(&mut headers, header::CONTENT_RANGE, &format!("bytes */{all}"));
            (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0)
        }
    };
    if status == StatusCode::NOT_MODIFIED {
        headers.remove(header::CONTENT_TYPE);
        headers.remove(header::CONTENT_LENGTH);
    } else {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    CacheFileResponse { status, headers, start, length }
}

/// Returns the age of a file.
pub(crate) fn cache_age(fetched: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(fetched).unwrap_or_default()
}

fn build_headers(name: &Path, cached: &OpenCacheFile, now: SystemTime) -> HeaderMap {
    let mut headers = match &cached.headers {
        Some(stored) => stored.headers.clone(),
        None => HeaderMap::new(),
    };
    let terms = StoredTerms::from_stored(&headers);
    if let Some(terms) = terms {
        // The response of the origin, with its own date and validators.
        let age = terms.initial_age + cache_age(cached.fetched_at, now);
        headers.insert(header::AGE, HeaderValue::from(age.as_secs()));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        remove_internal_headers(&mut headers);
        return headers;
    }
    if !headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, media_type_of_file(name, &cached.body));
    }
    if !headers.contains_key(header::LAST_MODIFIED)
        && let Some(date) = format_http_date(cached.fetched_at)
    {
        insert_header(&mut headers, header::LAST_MODIFIED, &date);
    }
    if !headers.contains_key(header::ETAG) {
        insert_header(&mut headers, header::ETAG, &build_etag(cached));
    }
    headers.insert(header::AGE, HeaderValue::from(cache_age(cached.fetched_at, now).as_secs()));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // A stored date would make the response look older than it is.
    headers.remove(header::DATE);
    headers.remove(header::CONTENT_LENGTH);
    remove_internal_headers(&mut headers);
    headers
}

/// Removes the headers that a header file stores for the dispatcher only.
pub(crate) fn remove_internal_headers(headers: &mut HeaderMap) {
    for name in INTERNAL_HEADERS {
        headers.remove(name);
    }
}

/// The headers that a header file stores for the dispatcher only.
pub(crate) const INTERNAL_HEADERS: [HeaderName; 6] = [
    STORED_KEYS_HEADER,
    STORED_ETAG_HEADER,
    STORED_LAST_MODIFIED_HEADER,
    STORED_LENIENCE_HEADER,
    STORED_VARY_HEADER,
    STORED_TERMS_HEADER,
];

fn build_etag(cached: &OpenCacheFile) -> String {
    let since = cached.fetched_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("\"{:x}-{:x}\"", since.as_nanos(), cached.length)
}

/// Returns the media type for the extension of a file name.
pub(crate) fn media_type_of_name(name: &Path) -> HeaderValue {
    let guess = mime_guess::from_path(name).first_raw();
    let text = guess.unwrap_or("application/octet-stream");
    let is_text = text.starts_with("text/")
        || matches!(text, "application/javascript" | "application/json" | "application/xml");
    let named = if is_text { format!("{text}; charset=utf-8") } else { text.to_owned() };
    HeaderValue::from_str(&named).unwrap_or(HeaderValue::from_static("application/octet-stream"))
}

/// Returns the media type for a file name; for a page with the charset that its head declares. A document root may hold
/// pages that another dispatcher stored without their headers.
fn media_type_of_file(name: &Path, file: &File) -> HeaderValue {
    let kind = media_type_of_name(name);
    if kind != HTML_MEDIA_TYPE {
        return kind;
    }
    let mut head = [0; 1024];
    // A file that cannot be read fails when it is sent.
    let length = file.read_at(&mut head, 0).unwrap_or(0);
    with_declared_charset(kind, head.get(..length).unwrap_or_default())
}

/// Returns the given media type with the charset that the head of the page declares.
pub(crate) fn with_declared_charset(kind: HeaderValue, page: &[u8]) -> HeaderValue {
    let declared = html_charset::declared_charset(page).filter(|_| kind == HTML_MEDIA_TYPE);
    match declared.filter(|label| !label.eq_ignore_ascii_case("utf-8")) {
        Some(label) => {
            HeaderValue::from_str(&format!("text/html; charset={label}")).unwrap_or(kind)
        }
        None => kind,
    }
}

/// Returns true if two media types are equal, ignoring case and spaces.
pub(crate) fn is_same_media_type(left: &HeaderValue, right: &HeaderValue) -> bool {
    let plain = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
        text.replace([' ', '"'], "")
    };
    plain(left) == plain(right)
}

fn insert_header(headers: &mut HeaderMap, name: header::HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}
