//! Responses that the dispatcher itself creates.

use http::{HeaderValue, Response, StatusCode, header};

use crate::edge::response_body::{ResponseBody, full_body};

/// Marks responses that the dispatcher itself created.
#[derive(Debug, Clone, Copy)]
struct OwnResponseMarker;

/// Returns a response created by the dispatcher.
pub(crate) fn own_response(status: StatusCode) -> Response<ResponseBody> {
    let reason = status.canonical_reason().unwrap_or("Error");
    let text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><title>{0} {reason}</title></head>\
         <body><h1>{reason}</h1></body></html>\n",
        status.as_u16()
    );
    let mut response = Response::new(full_body(text));
    *response.status_mut() = status;
    response.extensions_mut().insert(OwnResponseMarker);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// Returns true if the dispatcher itself created the response.
pub(crate) fn is_own_response(response: &Response<ResponseBody>) -> bool {
    response.extensions().get::<OwnResponseMarker>().is_some()
}

/// Makes a response the last one of its connection.
pub(crate) fn with_connection_close(
    mut response: Response<ResponseBody>,
) -> Response<ResponseBody> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
