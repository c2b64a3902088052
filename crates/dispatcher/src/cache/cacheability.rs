//! The reasons why a request or response is not cacheable.
//!
//! The texts are those of the `X-Cache-Info` header; scripts compare them.

use std::fmt;
use std::path::PathBuf;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tympan_web::cache_path::{CanonicalPath, MAX_NAME_BYTES, MAX_PATH_BYTES};

use crate::cache::OWN_FILE_PREFIX;
use crate::cache::page_variant;
use crate::config::FarmConfig;
use crate::edge::visitor_session::VisitorSession;
use crate::request::view::RequestView;

/// The reason why a request or its response is not cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the texts below say it")]
pub enum NotCacheableReason {
    NoDocroot,
    PathTooLong,
    TemporaryPathTooLong,
    NoExtension,
    Method,
    Head,
    Query,
    SessionRequired,
    SessionInvalid,
    Authorization,
    TargetIsDirectory,
    TrailingSlash,
    Rules,
    AuthCheckerDenied,
    Status,
    DispatcherNoCache,
    CacheControl,
    Pragma,
    EmptyBody,
    Encoded,
    Incomplete,
    ReservedName,
    Flushed,
    ParentIsFile,
    Unwritable,
    TooManyVariants,
    PathParameters,
}

impl NotCacheableReason {
    /// Every reason, in the order of declaration.
    pub const ALL: [Self; 27] = [
        Self::NoDocroot,
        Self::PathTooLong,
        Self::TemporaryPathTooLong,
        Self::NoExtension,
        Self::Method,
        Self::Head,
        Self::Query,
        Self::SessionRequired,
        Self::SessionInvalid,
        Self::Authorization,
        Self::TargetIsDirectory,
        Self::TrailingSlash,
        Self::Rules,
        Self::AuthCheckerDenied,
        Self::Status,
        Self::DispatcherNoCache,
        Self::CacheControl,
        Self::Pragma,
        Self::EmptyBody,
        Self::Encoded,
        Self::Incomplete,
        Self::ReservedName,
        Self::Flushed,
        Self::ParentIsFile,
        Self::Unwritable,
        Self::TooManyVariants,
        Self::PathParameters,
    ];

    /// Returns true if the request's method is the reason.
    pub(crate) fn is_due_to_method(self) -> bool {
        matches!(self, Self::Method | Self::Head)
    }
}

impl fmt::Display for NotCacheableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoDocroot => "document root non-existent",
            Self::PathTooLong => "cache file path too long",
            Self::TemporaryPathTooLong => "temporary file path too long",
            Self::NoExtension => "request URL is missing extension",
            Self::Method => "request needed to be a GET or HEAD",
            Self::Head => "request was a HEAD, whose answer holds no page",
            Self::Query => "request contained a query string",
            Self::SessionRequired => "session manager needs to authenticate",
            Self::SessionInvalid => "session is invalid",
            Self::Authorization => "request contains authorization",
            Self::TargetIsDirectory => "target is a directory",
            Self::TrailingSlash => "request URL has a trailing slash",
            Self::Rules => "request URL is missing in cache rules",
            Self::AuthCheckerDenied => "authorization checker denied access",
            Self::Status => "response status is not 200",
            Self::DispatcherNoCache | Self::Pragma => "response contains no_cache",
            Self::CacheControl => "response contains cache-control that forbids it",
            Self::EmptyBody => "response content length is zero",
            Self::Encoded => "response is encoded",
            Self::Incomplete => "response is incomplete",
            Self::ReservedName => "file name is reserved",
            Self::Flushed => "flushed while it was fetched",
            Self::ParentIsFile => "parent folder is a file",
            Self::Unwritable => "cache file cannot be written",
            Self::PathParameters => "request URL has path parameters",
            Self::TooManyVariants => "too many variants of the page were asked for",
        })
    }
}

/// The number of bytes that a temporary file's name adds to the name of its cache file.
pub(crate) const TEMPORARY_SUFFIX_BYTES: usize = "_YYYYXXXXXX".len();

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
    if is_barred && has_credentials(request) {
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

pub(crate) fn has_credentials(request: &RequestView) -> bool {
    request.headers.contains_key(header::AUTHORIZATION)
        || request.cookie("authorization").is_some()
        || request.cookie("login-token").is_some()
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
