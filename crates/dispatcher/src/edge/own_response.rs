//! Responses that the dispatcher itself creates.

use http::{HeaderValue, Response, StatusCode, header};

use crate::cache::response_memory::DispatcherResponse;
use crate::edge::response_body::full_body;

/// Returns a response created by the dispatcher.
pub(crate) fn own_response(status: StatusCode) -> DispatcherResponse {
    let reason = status.canonical_reason().unwrap_or("Error");
    let text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><title>{0} {reason}</title></head>\
         <body><h1>{reason}</h1></body></html>\n",
        status.as_u16()
    );
    let mut response = Response::new(full_body(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    DispatcherResponse::created_by_dispatcher(response)
}

/// Makes a response the last one of its connection.
pub(crate) fn with_connection_close(mut response: DispatcherResponse) -> DispatcherResponse {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
