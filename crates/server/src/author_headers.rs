//! Headers of everything that an author answers: what editors see is kept by no cache, and framed by no other site.

use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};

/// Completes the headers of an answer.
///
/// A page is stored by nobody. A stored file may be kept by the browser that got it, which has to ask each time whether it
/// still may have it. What says itself how long it may be kept, such as the files of the interface, keeps that.
pub(crate) async fn add_author_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let has_tag = headers.contains_key(header::ETAG);
    if is_page_response(headers) && !has_tag && !is_store_forbidden(headers) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    let fallback = if has_tag { "private, no-cache" } else { "no-store" };
    let control = headers.entry(header::CACHE_CONTROL);
    control.or_insert(HeaderValue::from_static(fallback));
    if is_page_response(headers) {
        let policy = HeaderValue::from_static("frame-ancestors 'self'");
        headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(policy);
    }
    response
}

/// Tells whether an answer says already that nobody stores it.
fn is_store_forbidden(headers: &HeaderMap) -> bool {
    let control = headers.get(header::CACHE_CONTROL).and_then(|value| value.to_str().ok());
    control.is_some_and(|control| control.contains("no-store"))
}

fn is_page_response(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let starts_with = |page: &str| {
        let start = media_type.and_then(|media_type| media_type.get(..page.len()));
        start.is_some_and(|start| start.eq_ignore_ascii_case(page.as_bytes()))
    };
    starts_with("text/html") || starts_with("application/xhtml+xml")
}
