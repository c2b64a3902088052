//! The fragment cache: drawn pieces of pages, reused while what they were drawn from is unchanged.
//!
//! In: what a component says ([`FragmentDirectives`]), what of the request its drawing used, and everything that it read. Out:
//! pieces of text with holes, where included components are looked up for themselves.
//!
//! Invariants
//! * A fragment is given out only for a state in which nothing that it was drawn from differs from its own state.
//! * What a drawing used of its request is a part of its variation, whatever the component says: a component that forgets
//!   to say `uri` shows nobody the navigation of another page.
//! * One request draws what many look for at the same time. The others wait, or get what was kept before and is only over
//!   its time. No two requests wait for each other.
//! * Memory stays below `max_bytes`; when it would not, what was not used for longest goes until `avg_bytes` are left.
//!
//! On failure: a fragment that cannot be kept is drawn again; a request never fails because of this cache.
//!
//! Not here: storing whole pages (`dispatcher`), what components say (`script`).

mod cache;
mod directive;
mod ghost;

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
