//! Conversion of a rendering to an HTTP response: status, headers, body, and cacheability.

use std::borrow::Cow;

use axum::Extension;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tympan_render::{
    FileDelivery, ImageAddress, RedirectKind, RenderOutcome, RenderResponse, RenderResponseBody,
};

use super::blob_response::send_blob;
use super::request::{AdminPageOptions, PageRequest};
use crate::failure::Result;
use crate::{Instance, observe::timing};

/// The image that a response will have as its body: making it waits for a process, which a thread of page rendering
/// does not.
#[derive(Debug, Clone)]
pub(super) struct PendingImage(pub(super) ImageAddress);

/// Forbids storing a response for which no cache invalidation would be sent.
pub(crate) fn with_no_store(mut response: Response) -> Response {
    let headers = response.headers_mut();
    set_header(headers, header::CACHE_CONTROL, "no-store");
    set_header(headers, HeaderName::from_static("dispatcher"), "no-cache");
    response
}

/// Forbids shared caches to store a response.
pub(crate) fn with_private_cache(mut response: Response) -> Response {
    let headers = response.headers_mut();
    set_header(headers, header::CACHE_CONTROL, "private, no-cache");
    set_header(headers, HeaderName::from_static("dispatcher"), "no-cache");
    response
}

/// Converts a rendering to an HTTP response.
pub(super) fn to_http_response(
    instance: &Instance,
    render_response: RenderResponse,
    (page_request, options): (&PageRequest, AdminPageOptions),
) -> Result<Response> {
    let (repository, telling) = (&instance.repository, instance.timing_disclosure);
    let user = page_request.user.as_deref();
    let is_commented = options.is_profiled || telling.comment_audience.includes(user);
    let RenderResponse { outcome, content_type, headers, body, timing, fragment_counts, .. } =
        render_response;
    let status = match &outcome {
        RenderOutcome::Ok => StatusCode::OK,
        RenderOutcome::Redirect { kind, .. } => match kind {
            RedirectKind::Moved => StatusCode::MOVED_PERMANENTLY,
            RedirectKind::Found => StatusCode::FOUND,
            RedirectKind::SeeOther => StatusCode::SEE_OTHER,
            RedirectKind::Temporary => StatusCode::TEMPORARY_REDIRECT,
            RedirectKind::Permanent => StatusCode::PERMANENT_REDIRECT,
        },
        RenderOutcome::MultipleChoices => StatusCode::MULTIPLE_CHOICES,
        RenderOutcome::BadRequest => StatusCode::BAD_REQUEST,
        RenderOutcome::NotFound => StatusCode::NOT_FOUND,
        RenderOutcome::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        RenderOutcome::Error => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = match body {
        RenderResponseBody::Blob(blob) if status == StatusCode::OK => {
            send_blob(repository, &blob, &page_request.headers, page_request.method == "HEAD")?
        }
        RenderResponseBody::Blob(_) | RenderResponseBody::Empty => status.into_response(),
        RenderResponseBody::Bytes(bytes)
            if is_commented && content_type.starts_with("text/html") =>
        {
            let mut text = bytes.to_vec();
            text.extend_from_slice(timing::to_timing_comment(&timing, fragment_counts).as_bytes());
            (status, text).into_response()
        }
        RenderResponseBody::Bytes(bytes) => (status, bytes).into_response(),
        RenderResponseBody::Image(address) => {
            (status, Extension(PendingImage(address))).into_response()
        }
    };
    let target = response.headers_mut();
    add_render_headers(target, content_type, headers);
    instance.page_headers.add_to(target);
    if let RenderOutcome::Redirect { location, .. } = &outcome {
        set_header(target, header::LOCATION, location);
    }
    let times = match (options.is_profiled, telling.header_audience.includes(user)) {
        (true, _) => Some(timing::to_timing_header(&timing)),
        (false, true) => Some(timing::to_short_timing_header(&timing)),
        (false, false) => None,
    };
    if let Some(times) = times {
        set_header(target, HeaderName::from_static("server-timing"), &times);
    }
    add_common_headers(target);
    if options.is_administrator {
        let counts = timing::fragment_counts_text(fragment_counts);
        set_header(target, HeaderName::from_static("x-tympan-fragments"), &counts);
        return Ok(with_no_store(response));
    }
    Ok(response)
}

/// Adds the headers of a rendering.
pub(super) fn add_render_headers(
    target: &mut HeaderMap,
    content_type: Cow<'static, str>,
    headers: Vec<(&'static str, String)>,
) {
    match content_type {
        Cow::Borrowed("") => {}
        Cow::Borrowed(static_type) => {
            drop(target.insert(header::CONTENT_TYPE, HeaderValue::from_static(static_type)))
        }
        Cow::Owned(owned_type) if owned_type.is_empty() => {}
        Cow::Owned(owned_type) => set_header(target, header::CONTENT_TYPE, &owned_type),
    }
    for (name, value) in headers {
        set_header(target, HeaderName::from_static(name), &value);
    }
}

/// Adds the media type of a stored file, and the headers that isolate it.
pub(crate) fn add_delivery_headers(target: &mut HeaderMap, delivery: &FileDelivery) {
    set_header(target, header::CONTENT_TYPE, delivery.media_type());
    for (name, value) in delivery.headers() {
        target.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

/// The header that all renderings have.
pub(crate) static NOSNIFF_HEADER: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");

/// Adds the headers that all renderings have.
pub(super) fn add_common_headers(target: &mut HeaderMap) {
    let (name, value) = &NOSNIFF_HEADER;
    target.insert(name, HeaderValue::from_static(value));
}

/// Sets a header.
pub(super) fn set_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // Leave out a value that is invalid in a header: content must not break the response.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
