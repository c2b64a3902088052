//! What was drawn as an answer of HTTP: status, headers, body, and who may keep it.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tympan_render::{Body, FileDelivery, Outcome, Redirect, RenderResponse};

use super::asked::{Asked, Wishes};
use super::blob::send_blob;
use crate::failure::Result;
use crate::{Instance, timing};

/// Keeps everybody from storing an answer of which no change would be told.
pub(crate) fn unkept(mut response: Response) -> Response {
    let headers = response.headers_mut();
    set(headers, header::CACHE_CONTROL, "no-store");
    set(headers, HeaderName::from_static("dispatcher"), "no-cache");
    response
}

/// Keeps everybody but the visitor from storing an answer.
pub(crate) fn unshared(mut response: Response) -> Response {
    let headers = response.headers_mut();
    set(headers, header::CACHE_CONTROL, "private, no-cache");
    set(headers, HeaderName::from_static("dispatcher"), "no-cache");
    response
}

/// Makes an answer of what was drawn.
pub(super) fn to_http(
    instance: &Instance,
    drawn: RenderResponse,
    (asked, wishes): (&Asked, Wishes),
) -> Result<Response> {
    let (repository, telling) = (&instance.repository, instance.telling);
    let user = asked.user.as_deref();
    let is_commented = wishes.is_profiled || telling.comment.includes(user);
    let RenderResponse { outcome, content_type, headers, body, timing, fragments, .. } = drawn;
    let status = match &outcome {
        Outcome::Ok => StatusCode::OK,
        Outcome::Redirect { kind, .. } => match kind {
            Redirect::Moved => StatusCode::MOVED_PERMANENTLY,
            Redirect::Found => StatusCode::FOUND,
            Redirect::SeeOther => StatusCode::SEE_OTHER,
            Redirect::Temporary => StatusCode::TEMPORARY_REDIRECT,
            Redirect::Permanent => StatusCode::PERMANENT_REDIRECT,
        },
        Outcome::MultipleChoices => StatusCode::MULTIPLE_CHOICES,
        Outcome::BadRequest => StatusCode::BAD_REQUEST,
        Outcome::NotFound => StatusCode::NOT_FOUND,
        Outcome::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Outcome::Error => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = match body {
        Body::Blob(blob) if status == StatusCode::OK => {
            send_blob(repository, &blob, &asked.headers, asked.method == "HEAD")?
        }
        Body::Blob(_) | Body::Empty => status.into_response(),
        Body::Bytes(bytes) if is_commented && content_type.starts_with("text/html") => {
            let mut text = bytes.to_vec();
            text.extend_from_slice(timing::to_comment(&timing, fragments).as_bytes());
            (status, text).into_response()
        }
        Body::Bytes(bytes) => (status, bytes).into_response(),
    };
    let target = response.headers_mut();
    add_headers(target, content_type, headers);
    instance.page_headers.add_to(target);
    if let Outcome::Redirect { location, .. } = &outcome {
        set(target, header::LOCATION, location);
    }
    let times = match (wishes.is_profiled, telling.header.includes(user)) {
        (true, _) => Some(timing::to_header(&timing)),
        (false, true) => Some(timing::to_short_header(&timing)),
        (false, false) => None,
    };
    if let Some(times) = times {
        set(target, HeaderName::from_static("server-timing"), &times);
    }
    add_common(target);
    if wishes.is_trusted {
        let counts = timing::to_counts(fragments);
        set(target, HeaderName::from_static("x-tympan-fragments"), &counts);
        return Ok(unkept(response));
    }
    Ok(response)
}

/// Adds the headers that a drawing has.
pub(super) fn add_headers(
    target: &mut HeaderMap,
    content_type: Cow<'static, str>,
    headers: Vec<(&'static str, String)>,
) {
    match content_type {
        Cow::Borrowed("") => {}
        Cow::Borrowed(known) => {
            drop(target.insert(header::CONTENT_TYPE, HeaderValue::from_static(known)))
        }
        Cow::Owned(found) if found.is_empty() => {}
        Cow::Owned(found) => set(target, header::CONTENT_TYPE, &found),
    }
    for (name, value) in headers {
        set(target, HeaderName::from_static(name), &value);
    }
}

/// Adds the media type of a stored file, and what contains it.
pub(crate) fn add_delivery(target: &mut HeaderMap, delivery: &FileDelivery) {
    set(target, header::CONTENT_TYPE, delivery.media_type());
    for (name, value) in delivery.headers() {
        target.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

/// The header that all drawings have.
pub(crate) static COMMON: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");

/// Adds the headers that all drawings have.
pub(super) fn add_common(target: &mut HeaderMap) {
    let (name, value) = &COMMON;
    target.insert(name, HeaderValue::from_static(value));
}

/// Sets a header.
pub(super) fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // A value that no header can carry is left out: content must not break the answer.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
