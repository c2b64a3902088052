//! Counters of a ledger.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// Counters of a ledger.
        #[derive(Debug, Default)]
        pub struct LedgerCounters { $($(#[doc = $doc])+ pub $name: AtomicU64,)+ }

        impl LedgerCounters {
            /// Returns name, description and value of each counter.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name.load(Ordering::Relaxed)),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Renderings recorded.
    renderings_recorded,
    /// Renderings that read more than earlier ones of their URL; each stores a row.
    dependency_additions,
    /// Renderings repeated because a change overtook them, or may have.
    renderings_overtaken,
    /// Renderings that could not be recorded; a rise means that the disk is full or broken.
    record_failures,
    /// Changes processed.
    changes,
    /// URLs in answers.
    urls_affected,
    /// Renderings made to see whether a URL shows a change.
    comparison_renderings,
    /// URLs that depend on changed content, but do not show it.
    urls_unchanged,
    /// Lists queried again because a change may have changed their results.
    lists_requeried,
    /// Repeated lists with an unchanged result.
    lists_unchanged,
    /// Renderings of URLs without content that were not recorded, and so not cached; a rise means that a client invents
    /// addresses.
    renderings_refused,
    /// URLs affected because of a copy of a skipped state; many mean that activations follow each other faster than
    /// they are processed.
    skipped_state_urls,
    /// Answers that named every URL, because access rights changed.
    full_invalidations,
    /// URLs evicted to bound memory; a rise means that the limit is too low.
    evictions,
    /// URLs taken over from removed publishers.
    urls_taken_over,
    /// Rows stored.
    rows_stored,
}
