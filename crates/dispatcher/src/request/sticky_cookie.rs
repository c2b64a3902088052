//! Sticky cookies: visitors of certain folders stay with one render.

use http::{HeaderMap, HeaderValue, header};

use crate::request::exchange::RequestExchange;

/// The cookie that names a render.
pub(crate) const STICKY_COOKIE: &str = "renderid";

/// Adds the cookie to a response from `render`, if the path is sticky and the visitor has no such cookie.
pub(crate) fn add_sticky_cookie(
    headers: &mut HeaderMap,
    exchange: &RequestExchange<'_>,
    render: &str,
) {
    let (sticky, view) = (&exchange.farm.config.sticky, exchange.view);
    let is_below = |folder: &String| {
        let rest = view.path.as_str().strip_prefix(folder.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with('.'))
    };
    let is_same = view.cookie(STICKY_COOKIE) == Some(render.as_bytes());
    if is_same || !sticky.paths.iter().any(is_below) {
        return;
    }
    let mut cookie = format!("{STICKY_COOKIE}={render}; Path=/");
    if sticky.is_http_only {
        cookie.push_str("; HttpOnly");
    }
    if sticky.is_always_secure || view.is_tls {
        cookie.push_str("; Secure");
    }
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// Returns true if a `Set-Cookie` value was created by [`add_sticky_cookie`].
pub(crate) fn is_sticky_cookie(value: &HeaderValue) -> bool {
    let rest = value.as_bytes().strip_prefix(STICKY_COOKIE.as_bytes());
    rest.is_some_and(|rest| rest.first() == Some(&b'='))
}
