//! Forms of visitors: a POST to a page of a publisher is handled by the page's own script for POST.
//!
//! In: an urlencoded form from a page of the same site. Out: the response of the script, usually a redirect; it is not
//! cached.
//!
//! Invariants
//! * Content is not changed: a script can only send the submitted data to a back end that the configuration names.
//! * A form that another site made a browser send is refused.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use tympan_web::body_limit::limit_body;

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::page::{self, PageRequest};

/// Maximum size of a form, in bytes.
const MAX_VISITOR_FORM_BYTES: u64 = 64 * 1024;

/// Handles a POST to a page.
pub(crate) async fn serve_visitor_form(instance: &Arc<Instance>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match handle_visitor_form(instance, &parts, body).await {
        Ok(response) => response,
        Err(failure) => page::failure_response(instance, &parts, failure).await,
    }
}

async fn handle_visitor_form(
    instance: &Arc<Instance>,
    parts: &Parts,
    body: Body,
) -> Result<Response> {
    check_same_site(&parts.headers)?;
    let identity = instance.identify(parts).await?;
    let form = read_visitor_form(&parts.headers, body).await?;
    let page_request = PageRequest::from_identity(identity.as_ref(), parts).with_form(form);
    let form_response =
        instance.run_work(move |instance| page::handle_page_form(instance, &page_request)).await?;
    let mut response = form_response.ok_or_else(|| {
        RequestFailure::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "publish instances accept content from replication only",
        )
    })?;
    if let Some(identity) = identity {
        response.extensions_mut().insert(identity);
    }
    Ok(response)
}

/// Refuses requests that another site made a browser send. Clients other than browsers do not send an origin and are
/// accepted.
pub(crate) fn check_same_site(headers: &HeaderMap) -> Result<()> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("x-forwarded-host").or_else(|| text("host")).unwrap_or_default();
    let is_foreign = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => !matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => origin.split_once("://").map(|(_, rest)| rest) != Some(host),
        (None, None) => false,
    };
    if is_foreign {
        return Err(RequestFailure::new(StatusCode::FORBIDDEN, "cross-site forms are not allowed"));
    }
    Ok(())
}

async fn read_visitor_form(headers: &HeaderMap, body: Body) -> Result<String> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !essence.is_empty() && !essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let message = "the body must be a form: application/x-www-form-urlencoded";
        return Err(RequestFailure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let bytes = Body::new(limit_body(body, MAX_VISITOR_FORM_BYTES)).collect().await;
    let bytes = bytes.map_err(|error| crate::write::form::body_read_failure(&error))?.to_bytes();
    String::from_utf8(bytes.to_vec()).map_err(|_| {
        RequestFailure::bad_request(
            "the form is not UTF-8; percent-encode characters as UTF-8, \
            such as %C3%A4",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_other_sites_are_refused() {
        let check = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
            });
            check_same_site(&pairs.collect()).is_ok()
        };
        assert!(check(&[("host", "a.example:8080")]));
        assert!(check(&[("host", "a.example"), ("origin", "http://a.example")]));
        assert!(check(&[("host", "x"), ("sec-fetch-site", "same-origin"), ("origin", "http://y")]));
        assert!(!check(&[("host", "a.example"), ("origin", "http://b.example")]));
        assert!(!check(&[("host", "a.example"), ("origin", "null")]));
        assert!(!check(&[("host", "a.example"), ("sec-fetch-site", "cross-site")]));
        assert!(!check(&[("host", "a.example"), ("sec-fetch-site", "same-site")]));
    }
}
