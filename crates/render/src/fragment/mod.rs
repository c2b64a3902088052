//! The fragment cache: rendered pieces of pages, reused while their dependencies are unchanged.
//!
//! Input: the component's directives ([`FragmentDirectives`]), the facts of the request that its rendering used, and
//! all its reads. Output: pieces of text with holes, where included components are looked up separately.
//!
//! Invariants
//! * A fragment is returned only for a state in which none of its dependencies differs from its own state.
//! * The facts of the request that a rendering used are part of its variation, regardless of the directives: a
//!   component that omits `uri` never shows the navigation of another page.
//! * Of concurrent requests for a fragment, one renders it. The others wait, or get the previous one if it is only
//!   expired. No two requests wait for each other.
//! * Memory stays below `max_bytes`. Above it, the least recently used fragments are evicted until `avg_bytes` are
//!   left.
//!
//! On failure: a fragment that cannot be cached is rendered again; this cache never fails a request.
//!
//! Not here: storing whole pages (`dispatcher`), directives in templates (`script`).

mod cache;
mod directive;
mod ghost;
mod lookup_counts;

pub(crate) use cache::{
    CachedFragment, FragmentHole, FragmentLookup, FragmentPiece, FragmentRenderPermit,
    FragmentRequester,
};
pub use cache::{
    ComponentCacheReport, FragmentCache, FragmentCacheOptions, FragmentCacheReport,
    FragmentInvalidationMode,
};
pub use directive::UncachedReason;
pub(crate) use directive::{FragmentDirectives, VariationInput};
pub use lookup_counts::FragmentLookupCounts;
