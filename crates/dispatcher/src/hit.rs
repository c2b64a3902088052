//! The answer from a cache file.

use std::path::Path;
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

use crate::cache::CacheFile;
use crate::page::{Body, empty, file_body};
use crate::plan::{Entity, Plan, plan, whole_seconds};
use crate::request::RequestView;

/// Answers `request` with the file `name`.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn answer(
    request: &RequestView,
    name: &Path,
    cached: CacheFile,
    now: SystemTime,
) -> std::io::Result<Response<Body>> {
    let mut headers = head(name, &cached, now);
    let etag = headers.get(header::ETAG).cloned().unwrap_or(HeaderValue::from_static("\"\""));
    let modified = headers
        .get(header::LAST_MODIFIED)
        .and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok())
        .unwrap_or_else(|| whole_seconds(cached.fetched));
    let entity = Entity { etag: &etag, modified, length: cached.length };
    let plan = plan(&request.headers, &entity);
    let (status, start, length) = match &plan {
        Plan::Whole => (StatusCode::OK, 0, cached.length),
        Plan::Part(range) => {
            let text = format!("bytes {}-{}/{}", range.start(), range.end(), cached.length);
            insert(&mut headers, header::CONTENT_RANGE, &text);
            let length = range.end() - range.start() + 1;
            (StatusCode::PARTIAL_CONTENT, *range.start(), length)
        }
        Plan::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
        Plan::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, 0, 0),
        Plan::Unsatisfiable => {
            let text = format!("bytes */{}", cached.length);
            insert(&mut headers, header::CONTENT_RANGE, &text);
            (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0)
        }
    };
    if status == StatusCode::NOT_MODIFIED {
        headers.remove(header::CONTENT_TYPE);
    } else {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let has_body = request.method != Method::HEAD && length > 0;
    let body = if has_body { file_body(cached.body, start, length)? } else { empty() };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

fn head(name: &Path, cached: &CacheFile, now: SystemTime) -> HeaderMap {
    let mut headers = match &cached.headers {
        Some(stored) => stored.headers.clone(),
        None => HeaderMap::new(),
    };
    if !headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, media_type(name));
    }
    if !headers.contains_key(header::LAST_MODIFIED) {
        let date = httpdate::fmt_http_date(cached.fetched);
        insert(&mut headers, header::LAST_MODIFIED, &date);
    }
    if !headers.contains_key(header::ETAG) {
        insert(&mut headers, header::ETAG, &etag(cached));
    }
    let age = now.duration_since(cached.fetched).unwrap_or_default().as_secs();
    headers.insert(header::AGE, HeaderValue::from(age));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // A stored date would make the answer look older than it is.
    headers.remove(header::DATE);
    headers.remove(header::CONTENT_LENGTH);
    headers
}

fn etag(cached: &CacheFile) -> String {
    let since = cached.fetched.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("\"{:x}-{:x}\"", since.as_nanos(), cached.length)
}

/// Returns the media type that a file's name tells.
pub(crate) fn media_type(name: &Path) -> HeaderValue {
    let guess = mime_guess::from_path(name).first_raw();
    let text = guess.unwrap_or("application/octet-stream");
    let is_text = text.starts_with("text/")
        || matches!(text, "application/javascript" | "application/json" | "application/xml");
    let named = if is_text { format!("{text}; charset=utf-8") } else { text.to_owned() };
    HeaderValue::from_str(&named).unwrap_or(HeaderValue::from_static("application/octet-stream"))
}

/// Tells whether two media types mean the same, whatever their case and spaces.
pub(crate) fn is_same_media_type(left: &HeaderValue, right: &HeaderValue) -> bool {
    let plain = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
        text.replace([' ', '"'], "")
    };
    plain(left) == plain(right)
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}
