//! The challenge of a response that requires a login, for scripts in a browser.
//!
//! A browser that receives the challenge `Basic` opens a dialog of its own above the page, and keeps the request of the
//! script waiting for it. The page has a login of its own.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};

/// Replaces the challenge of a 401 by one of a scheme that no browser knows, if a script or a part of a page sent the
/// request.
pub(crate) async fn replace_browser_challenge(request: Request, next: Next) -> Response {
    let is_of_page = is_sent_by_page(request.headers());
    let mut response = next.run(request).await;
    if is_of_page && response.status() == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Session realm=\"Tympan\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Returns true for a request that is no navigation of a browser. Browsers tell that themselves to sites that use TLS or
/// are on the same machine; the interface tells it to others.
fn is_sent_by_page(headers: &HeaderMap) -> bool {
    let mode = headers.get("sec-fetch-mode");
    let requested = headers.get("x-requested-with");
    mode.is_some_and(|mode| mode != "navigate")
        || requested.is_some_and(|requested| requested == "XMLHttpRequest")
}
