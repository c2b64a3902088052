//! The cache outcome of a request, for the counters and the header `Cache-Status`.

use crate::cache::not_cacheable_reason::NotCacheableReason;

/// The cache outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheOutcome {
    /// The cache was not consulted.
    Bypassed,
    /// Served from a fresh file.
    Hit,
    /// Served with a cached error.
    NegativeHit,
    /// Served from a stale file.
    Stale,
    /// Fetched, or waited for the fetch of another request.
    Miss { is_collapsed: bool },
    /// Forwarded and not stored.
    Pass(NotCacheableReason),
    /// Neither forwarded nor served.
    Refused(NotCacheableReason),
}

impl CacheOutcome {
    /// Returns the header `Cache-Status` (RFC 9211).
    pub(crate) fn cache_status_header(self) -> Option<String> {
        Some(match self {
            Self::Bypassed => return None,
            // It was not forwarded (in RFC 9211, section 2.2, `fwd` is for forwarded requests).
            Self::Refused(reason) => format!("tympan; detail=\"{reason}\""),
            Self::Hit => "tympan; hit".to_owned(),
            Self::NegativeHit => "tympan; hit; detail=negative".to_owned(),
            Self::Stale => "tympan; hit; fwd=stale; detail=stale".to_owned(),
            Self::Miss { is_collapsed: false } => "tympan; fwd=uri-miss; stored".to_owned(),
            Self::Miss { is_collapsed: true } => "tympan; fwd=uri-miss; collapsed".to_owned(),
            Self::Pass(reason) => {
                let by = if reason.is_due_to_method() { "method" } else { "bypass" };
                format!("tympan; fwd={by}; detail=\"{reason}\"")
            }
        })
    }
}
