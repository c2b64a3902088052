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
    recorded,
    /// Renderings that read more than earlier ones of their URL; each stores a row.
    grown,
    /// Renderings repeated because a change overtook them, or may have.
    outdated,
    /// Renderings that could not be recorded; a rise means that the disk is full or broken.
    lost,
    /// Changes processed.
    changes,
    /// URLs in answers.
    named,
    /// Renderings made to see whether a URL shows a change.
    compared,
    /// URLs that depend on changed content, but do not show it.
    spared,
    /// Lists queried again because a change may have changed their results.
    asked,
    /// Repeated lists with an unchanged result.
    unchanged,
    /// Renderings of URLs without content that were not recorded, and so not cached; a rise means that a client invents
    /// addresses.
    crowded,
    /// URLs affected because of a copy of a skipped state; many mean that activations follow each other faster than
    /// they are processed.
    strays,
    /// Answers that named every URL, because access rights changed.
    everything,
    /// URLs evicted to bound memory; a rise means that the limit is too low.
    given_up,
    /// Renderings with so many reads that the ledger stores subtrees instead.
    coarse,
    /// URLs taken over from removed publishers.
    taken_over,
    /// Rows stored.
    stored,
}
