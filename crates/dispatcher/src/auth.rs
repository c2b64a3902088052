//! Asking a render whether a visitor may see a cached page (`/auth_checker`).

use http::{HeaderMap, Method, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::answer::Exchange;
use crate::dispatcher::Inner;
use crate::forward::{Purpose, clean_response, proxy_headers};
use crate::upstream::{Call, CallBody};

/// What a render said.
#[derive(Debug)]
pub(crate) enum Permission {
    /// The visitor may see the page, and gets these headers with it.
    Granted(HeaderMap),
    /// The render must answer itself.
    Denied,
}

/// What a value in a query must not hold bare.
const IN_QUERY: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'&').add(b'+').add(b'<').add(b'>');

impl Inner {
    /// Tells whether the page is shown only after asking.
    pub(crate) fn is_private(&self, exchange: &Exchange<'_>) -> bool {
        let checker = exchange.farm.farm.auth_checker.as_ref();
        checker.is_some_and(|checker| checker.filter.allows(exchange.view.path.as_str()))
    }

    /// Asks whether the visitor may see a cached page; pages that need no asking are granted.
    pub(crate) async fn ask_permission(&self, exchange: &Exchange<'_>) -> Permission {
        let farm = exchange.farm;
        let checker = match &farm.farm.auth_checker {
            Some(checker) if self.is_private(exchange) => checker,
            _ => return Permission::Granted(HeaderMap::new()),
        };
        let uri = utf8_percent_encode(exchange.view.path.as_str(), IN_QUERY);
        let call = Call {
            method: Method::HEAD,
            target: format!("{}?uri={uri}", checker.url),
            headers: proxy_headers(&farm.farm.client_headers, exchange.view, Purpose::Cache),
            body: CallBody::empty(),
            sticky: None,
        };
        let mut answer = match farm.upstream.send(&call).await {
            Ok(answer) if answer.response.status() == StatusCode::OK => answer,
            _ => return Permission::Denied,
        };
        clean_response(answer.response.headers_mut());
        let mut extra = HeaderMap::new();
        for (name, value) in answer.response.headers() {
            let line = format!("{name}:{}", value.to_str().unwrap_or_default());
            // Names compare without regard to case, and patterns are written as `Set-Cookie:*`.
            let is_wanted = checker.headers.allows(&line) || {
                let title = title_case(name.as_str());
                checker.headers.allows(&line.replacen(name.as_str(), &title, 1))
            };
            if is_wanted {
                extra.append(name, value.clone());
            }
        }
        Permission::Granted(extra)
    }
}

fn title_case(name: &str) -> String {
    let mut is_first = true;
    name.chars()
        .map(|char| {
            let shown = if is_first { char.to_ascii_uppercase() } else { char };
            is_first = char == '-';
            shown
        })
        .collect()
}
