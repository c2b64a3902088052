//! Headers of all responses of an author: caches do not store what editors see, browsers do not guess its type, and
//! other sites cannot frame it.

use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};

/// Completes the headers of a response.
///
/// No cache may store a page. A browser may store a file, but must revalidate it for each use. A response that already
/// sets its own cache lifetime, such as a file of the interface, keeps it.
pub(crate) async fn add_author_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let has_tag = headers.contains_key(header::ETAG);
    if is_page_response(headers) && !has_tag && !is_store_forbidden(headers) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    let fallback = if has_tag { "private, no-cache" } else { "no-store" };
    let control = headers.entry(header::CACHE_CONTROL);
    control.or_insert(HeaderValue::from_static(fallback));
    if is_page_response(headers) || is_of_type(headers, "text/xml") {
        let policy = HeaderValue::from_static("frame-ancestors 'self'");
        headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(policy);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns true if the response already forbids storing it.
fn is_store_forbidden(headers: &HeaderMap) -> bool {
    let control = headers.get(header::CACHE_CONTROL).and_then(|value| value.to_str().ok());
    control.is_some_and(|control| control.contains("no-store"))
}

fn is_page_response(headers: &HeaderMap) -> bool {
    is_of_type(headers, "text/html") || is_of_type(headers, "application/xhtml+xml")
}

fn is_of_type(headers: &HeaderMap, essence: &str) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let start = media_type.and_then(|media_type| media_type.get(..essence.len()));
    start.is_some_and(|start| start.eq_ignore_ascii_case(essence.as_bytes()))
}
