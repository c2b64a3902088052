//! The counters of a request's lookups in the fragment cache.

/// Counters of a request's fragment lookups, by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FragmentLookupCounts {
    /// Served from the cache.
    pub hits: u32,
    /// Rendered and, mostly, cached.
    pub misses: u32,
    /// Rendered, and never cached.
    pub uncacheable: u32,
}
