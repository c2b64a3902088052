//! Forms of visitors: a POST to a page of a publisher is answered by the page's own script for POST.
//!
//! In: an urlencoded form from a page of the same site. Out: what the script answers, mostly a redirect; nobody keeps it.
//!
//! Invariants
//! * Content is not changed: a script can only send what was typed to a back end that the configuration names.
//! * A form that another site made a browser send is refused.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use tympan_web::limit::limited;

use crate::Instance;
use crate::failure::{Failure, Result};
use crate::page::{self, Asked};

/// The largest form.
const MAX_FORM_BYTES: u64 = 64 * 1024;

/// Answers a POST to a page.
pub(crate) async fn post(instance: &Arc<Instance>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match answer(instance, &parts, body).await {
        Ok(response) => response,
        Err(failure) => page::show_failure(instance, &parts, failure).await,
    }
}

async fn answer(instance: &Arc<Instance>, parts: &Parts, body: Body) -> Result<Response> {
    check_site(&parts.headers)?;
    let identity = instance.identify(parts).await?;
    let form = read(&parts.headers, body).await?;
    let asked = Asked::by(identity.as_ref(), parts, instance)?.posting(form);
    let taken = instance.work(move |instance| page::take_form(instance, &asked)).await?;
    let mut response = taken.ok_or_else(|| {
        Failure::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "publish instances take content from replication only",
        )
    })?;
    if let Some(identity) = identity {
        response.extensions_mut().insert(identity);
    }
    Ok(response)
}

/// Refuses what another site made a browser send. Programs say nothing of where they come from.
pub(crate) fn check_site(headers: &HeaderMap) -> Result<()> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("x-forwarded-host").or_else(|| text("host")).unwrap_or_default();
    let is_foreign = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => !matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => origin.split_once("://").map(|(_, rest)| rest) != Some(host),
        (None, None) => false,
    };
    if is_foreign {
        return Err(Failure::new(StatusCode::FORBIDDEN, "this form comes from another site"));
    }
    Ok(())
}

async fn read(headers: &HeaderMap, body: Body) -> Result<String> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !essence.is_empty() && !essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let message = "the body must be a form: application/x-www-form-urlencoded";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let bytes = Body::new(limited(body, MAX_FORM_BYTES)).collect().await;
    let bytes = bytes.map_err(|error| crate::form::broken(&error))?.to_bytes();
    String::from_utf8(bytes.to_vec())
        .map_err(|_| Failure::bad_request("the form is not UTF-8; letters go as %C3%A4"))
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
            check_site(&pairs.collect()).is_ok()
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
