//! The reasons for which a response is not cached.

use std::fmt;

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
    EncodedSlash,
    Vary,
    NoLifetime,
}

impl NotCacheableReason {
    /// Every reason, in the order of declaration.
    pub const ALL: [Self; 30] = [
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
        Self::EncodedSlash,
        Self::Vary,
        Self::NoLifetime,
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
            Self::Head => "request was a HEAD, whose response has no body",
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
            Self::EncodedSlash => "request URL has an encoded slash",
            Self::Vary => "response varies by more than the cache compares",
            Self::NoLifetime => "response has no lifetime and nothing to validate it by",
            Self::TooManyVariants => "too many variants of the page were requested",
        })
    }
}
