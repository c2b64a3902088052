//! What a ledger counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// What a ledger counts.
        #[derive(Debug, Default)]
        pub struct LedgerCounters { $($(#[doc = $doc])+ pub $name: AtomicU64,)+ }

        impl LedgerCounters {
            /// Returns name, meaning and value of each counter.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name.load(Ordering::Relaxed)),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Drawings recorded.
    recorded,
    /// Drawings that read what no earlier one of their URL had read; rows are stored for these.
    grown,
    /// Drawings done again, as a change overtook them, or may have.
    outdated,
    /// Drawings that could not be noted; a rise means that the disk is full or broken.
    lost,
    /// Changes answered.
    changes,
    /// URLs named by answers.
    named,
    /// Drawings made to see whether a URL shows a change.
    compared,
    /// URLs that were drawn from what changed, and do not show it.
    spared,
    /// Lists that were asked again, as a change may have changed their answers.
    asked,
    /// Those of them with the same answer as before.
    unchanged,
    /// Drawings of URLs with nothing to show that were not noted, and so not cached; a rise means that somebody makes up
    /// addresses.
    crowded,
    /// URLs that a change concerns for a copy of a state that it passed over; many mean that activations follow each other
    /// faster than they are answered.
    strays,
    /// Answers that named every URL, as rights were changed.
    everything,
    /// URLs given up, so that memory stays bounded; a rise means that the bound is too low.
    given_up,
    /// Drawings that read so much that the ledger keeps subtrees instead.
    coarse,
    /// URLs taken over from publishers that are gone.
    taken_over,
    /// Rows stored.
    stored,
}
