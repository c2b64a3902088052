//! Permission checks with a render before a cached page is served (`/auth_checker`).

use http::{HeaderMap, Method, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::request::exchange::RequestExchange;
use crate::upstream::header_forwarding::{ForwardPurpose, clean_response_headers, proxy_headers};
use crate::upstream::{UpstreamRequest, VisitorBody};

/// The result of a permission check.
#[derive(Debug)]
pub(crate) enum AuthCheckResult {
    /// The visitor may see the page; these headers are added to the response.
    Granted(HeaderMap),
    /// The request must be forwarded to the render.
    Denied,
}

/// The characters that must be escaped in a query value.
const QUERY_VALUE_ESCAPES: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'&').add(b'+').add(b'<').add(b'>');

/// Returns true if the page is served only after a permission check.
pub(crate) fn needs_permission(exchange: &RequestExchange<'_>) -> bool {
    let checker = exchange.farm.config.auth_checker.as_ref();
    checker.is_some_and(|checker| checker.filter.allows(exchange.view.path.as_str()))
}

/// Checks if the visitor may see a cached page; a page that needs no check is granted.
pub(crate) async fn check_permission(exchange: &RequestExchange<'_>) -> AuthCheckResult {
    let farm = exchange.farm;
    let checker = match &farm.config.auth_checker {
        Some(checker) if needs_permission(exchange) => checker,
        _ => return AuthCheckResult::Granted(HeaderMap::new()),
    };
    let uri = utf8_percent_encode(exchange.view.path.as_str(), QUERY_VALUE_ESCAPES);
    let call = UpstreamRequest {
        method: Method::HEAD,
        target: format!("{}?uri={uri}", checker.url),
        headers: proxy_headers(&farm.config.client_headers, exchange.view, ForwardPurpose::Cache),
        body: VisitorBody::empty(),
        sticky_render: None,
    };
    let mut response = match farm.upstream.send(&call).await {
        Ok(response) if response.response.status() == StatusCode::OK => response,
        _ => return AuthCheckResult::Denied,
    };
    clean_response_headers(response.response.headers_mut());
    let mut extra = HeaderMap::new();
    for (name, value) in response.response.headers() {
        let line = format!("{name}:{}", value.to_str().unwrap_or_default());
        // Names compare case-insensitively, and patterns are written as `Set-Cookie:*`.
        let is_wanted = checker.headers.allows(&line) || {
            let title = title_case(name.as_str());
            checker.headers.allows(&line.replacen(name.as_str(), &title, 1))
        };
        if is_wanted {
            extra.append(name, value.clone());
        }
    }
    AuthCheckResult::Granted(extra)
}

fn title_case(name: &str) -> String {
    let mut is_first = true;
    name.chars()
        .map(|char| {
            let letter = if is_first { char.to_ascii_uppercase() } else { char };
            is_first = char == '-';
            letter
        })
        .collect()
}
