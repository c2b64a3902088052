//! The authoring interface: the built files of `ui/`, embedded at build time.
//!
//! If Node is missing at build time, the folder contains only a notice page that explains how to build the interface.

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rust_embed::RustEmbed;

/// The files built by `ui/`, or the notice page.
#[derive(RustEmbed)]
#[folder = "$OUT_DIR/ui"]
struct InterfaceFiles;

/// Restricts the interface to resources of this server, and scripts to its own files.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; \
    object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'";

/// Serves the single page that renders all screens.
pub(crate) async fn serve_shell() -> Response {
    match InterfaceFiles::get("index.html") {
        Some(file) => {
            let mut response = (StatusCode::OK, file.data.into_owned()).into_response();
            let headers = response.headers_mut();
            headers
                .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            headers.insert(
                header::CONTENT_SECURITY_POLICY,
                HeaderValue::from_static(CONTENT_SECURITY_POLICY),
            );
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
            response
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Serves a file; files with a hash in their name are immutable.
pub(crate) async fn serve_interface_file(Path(name): Path<String>, request: HeaderMap) -> Response {
    let Some(file) = InterfaceFiles::get(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let tag = format!("\"{:.32}\"", hex::encode(file.metadata.sha256_hash()));
    if request
        .get(header::IF_NONE_MATCH)
        .is_some_and(|condition| condition.as_bytes() == tag.as_bytes())
    {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    let lifetime = if name.starts_with("assets/") {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let media_type = mime_guess::from_path(&name).first_or_octet_stream().to_string();
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, lifetime.to_owned()),
        (header::ETAG, tag),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    (headers, file.data.into_owned()).into_response()
}
