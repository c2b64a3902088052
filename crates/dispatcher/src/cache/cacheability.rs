//! The reasons why a request or response is not cacheable.
//!
//! The texts are those of the `X-Cache-Info` header; scripts compare them.

use std::path::PathBuf;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tympan_web::cache_path::{CanonicalPath, MAX_NAME_BYTES, MAX_PATH_BYTES};

use crate::cache::OWN_FILE_PREFIX;
use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::page_variant::{self, TEMPORARY_SUFFIX_BYTES};
use crate::cache::vary::VaryRule;
use crate::config::FarmConfig;
use crate::request::view::RequestView;
use crate::request::view::VisitorSession;

/// Returns the file below the document root for `request`, if the request is cacheable.
///
/// # Errors
/// Returns the first reason against caching, in the documented order.
pub(crate) fn check_request_cacheable(
    farm: &FarmConfig,
    request: &RequestView,
) -> Result<PathBuf, NotCacheableReason> {
    let cache = farm.cache.as_ref().ok_or(NotCacheableReason::NoDocroot)?;
    let docroot = cache.docroot.as_ref().ok_or(NotCacheableReason::NoDocroot)?;
    check_path_lengths(docroot.as_os_str().len(), &request.path)?;
    if !has_extension(&request.path) {
        return Err(NotCacheableReason::NoExtension);
    }
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return Err(NotCacheableReason::Method);
    }
    // Renders cut path parameters, so each made-up value would create a file that no flush names.
    if request.wire_path.contains(';') {
        return Err(NotCacheableReason::PathParameters);
    }
    // The name of its file would not lead back to its URL.
    if request.has_kept_slash() {
        return Err(NotCacheableReason::EncodedSlash);
    }
    let key = page_variant::variant_key(cache, request.query.as_deref())?;
    if farm.session_management.is_some() {
        match request.session {
            VisitorSession::Valid => {}
            VisitorSession::Expired => return Err(NotCacheableReason::SessionInvalid),
            VisitorSession::Absent => return Err(NotCacheableReason::SessionRequired),
        }
    }
    // Credentials of a managed session grant access to the cache.
    let is_barred = !cache.allow_authorized && farm.session_management.is_none();
    // The response decides about `Authorization` in HTTP (RFC 9111, section 3.5).
    let has_credentials = has_credential_cookie(request)
        || !cache.is_http_cache && request.headers.contains_key(header::AUTHORIZATION);
    if is_barred && has_credentials {
        return Err(NotCacheableReason::Authorization);
    }
    if request.path.is_directory() {
        return Err(NotCacheableReason::TrailingSlash);
    }
    if is_reserved_path(&request.path) {
        return Err(NotCacheableReason::ReservedName);
    }
    if !cache.rules.allows(request.path.as_str()) {
        return Err(NotCacheableReason::Rules);
    }
    page_variant::variant_file(&request.path, &key, docroot)
}

/// The maximum folder depth: removing a tree holds a file descriptor for each level.
const MAX_PATH_SEGMENTS: usize = 100;

fn check_path_lengths(
    docroot_bytes: usize,
    path: &CanonicalPath,
) -> Result<(), NotCacheableReason> {
    let whole = docroot_bytes + path.as_str().len();
    let is_name_too_long = path.segments().any(|segment| segment.len() > MAX_NAME_BYTES);
    if whole > MAX_PATH_BYTES || is_name_too_long || path.segments().count() > MAX_PATH_SEGMENTS {
        return Err(NotCacheableReason::PathTooLong);
    }
    let name = path.segments().next_back().map_or(0, str::len);
    if whole + TEMPORARY_SUFFIX_BYTES > MAX_PATH_BYTES
        || name + TEMPORARY_SUFFIX_BYTES > MAX_NAME_BYTES
    {
        return Err(NotCacheableReason::TemporaryPathTooLong);
    }
    Ok(())
}

fn has_extension(path: &CanonicalPath) -> bool {
    path.segments().next_back().is_some_and(|name| name.contains('.'))
}

/// Returns true if any segment is a name reserved for the cache itself.
pub(crate) fn is_reserved_path(path: &CanonicalPath) -> bool {
    path.segments().any(is_reserved_name)
}

/// Returns true for `.stat`, for the side files `.h` and `.ttl` of a file with an extension, and for the dispatcher's
/// own files: unfinished files, flush numbers, and event logs for siblings.
pub(crate) fn is_reserved_name(name: &str) -> bool {
    let is_side_file = [".h", ".ttl"]
        .iter()
        .any(|side| name.strip_suffix(side).is_some_and(|main| main.contains('.')));
    name == ".stat" || is_side_file || name.starts_with(OWN_FILE_PREFIX)
}

fn has_credential_cookie(request: &RequestView) -> bool {
    request.cookie("authorization").is_some() || request.cookie("login-token").is_some()
}

/// Checks if a response with this head may be stored.
///
/// # Errors
/// Returns the first reason against it.
pub(crate) fn check_response_cacheable(
    status: StatusCode,
    headers: &HeaderMap,
) -> Result<(), NotCacheableReason> {
    if status != StatusCode::OK {
        return Err(NotCacheableReason::Status);
    }
    if has_header_token(headers, "dispatcher", &["no-cache", "no_cache"]) {
        return Err(NotCacheableReason::DispatcherNoCache);
    }
    let forbidding = ["no-cache", "no-store", "must-revalidate", "private"];
    if has_header_token(headers, "cache-control", &forbidding) {
        return Err(NotCacheableReason::CacheControl);
    }
    if has_header_token(headers, "pragma", &["no-cache"]) {
        return Err(NotCacheableReason::Pragma);
    }
    if VaryRule::parse(headers) == VaryRule::Own {
        return Err(NotCacheableReason::Vary);
    }
    let is_empty =
        headers.get(header::CONTENT_LENGTH).is_some_and(|length| length.as_bytes() == b"0");
    if is_empty {
        return Err(NotCacheableReason::EmptyBody);
    }
    // A stored encoded body would reach clients that do not accept its encoding.
    let is_encoded = headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if is_encoded {
        return Err(NotCacheableReason::Encoded);
    }
    Ok(())
}

fn has_header_token(headers: &HeaderMap, name: &str, tokens: &[&str]) -> bool {
    headers
        .get_all(name)
        .iter()
        // A non-ASCII byte must not hide the values next to it.
        .flat_map(|value: &HeaderValue| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|directive| directive.split(|byte| *byte == b'=').next())
        .map(<[u8]>::trim_ascii)
        .any(|name| tokens.iter().any(|token| name.eq_ignore_ascii_case(token.as_bytes())))
}
