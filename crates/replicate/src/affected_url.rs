//! The seam between a publisher's changes and the URLs that show them.
//!
//! In: two states of content and the documents that differ. Out: the URLs whose answers may differ, if anybody knows.
//!
//! A ledger of what each page was drawn from implements [`AffectedUrlResolver`]; without one [`UntrackedUrlResolver`] stands in, and flushes
//! reach as far as a dispatcher's `.stat` files.

use std::fmt::Debug;

use tympan_content::{ChunkId, NodePath, Snapshot};

use crate::Result;

/// Knows which URLs show what.
pub trait AffectedUrlResolver: Debug + Send + Sync {
    /// Returns what a change reaches. It is asked on a thread that may block, once for each step from one state to the
    /// next; after a crash again, for the same step or one that takes in later changes. It is asked also where nothing
    /// differs, as caches may hold what was drawn in between. What it leaves out stays stale, so that where it is not sure of
    /// a URL it names it, and where it does not know it says so.
    ///
    /// # Errors
    /// If the answer cannot be found out now; the step is then tried again.
    fn find_affected_urls(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        changed: &[NodePath],
    ) -> Result<AffectedUrlSet>;

    /// Takes note that all flushes for what led to a state are stored: those of the last answer, if that was about a step
    /// that ends there. Where no cache is to be told, nobody was asked. It is told on a thread that may block.
    fn mark_flushes_stored(&self, _root: ChunkId) {}

    /// Tells whether something waits to be named although no change concerns it: it is then asked soon, also where nothing
    /// differs. It answers without waiting.
    fn has_pending_urls(&self) -> bool {
        false
    }

    /// Returns the publishers on the same database that are gone for good since the last call, and whose URLs are named
    /// here from now on: their places among the states of content are forgotten. It answers without waiting.
    fn take_gone_publishers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What a change reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedUrlSet {
    /// These URLs and no others: absolute paths with extension, as visitors ask for them.
    Urls(Vec<String>),
    /// These URLs, and whatever caches hold below these folders, of which nobody knows what it was drawn from.
    UrlsAndFolders {
        /// The URLs that are known.
        urls: Vec<String>,
        /// Absolute paths; `/` means that a cache has to drop everything.
        folders: Vec<String>,
    },
    /// Nobody keeps account: the changed pages and what lies under the same `.stat` files.
    Unknown,
}

impl AffectedUrlSet {
    /// Everything that caches hold.
    #[must_use]
    pub fn everything() -> Self {
        Self::UrlsAndFolders { urls: Vec::new(), folders: vec!["/".to_owned()] }
    }
}

/// Stands in for a ledger: knows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct UntrackedUrlResolver;

impl AffectedUrlResolver for UntrackedUrlResolver {
    fn find_affected_urls(
        &self,
        _: &Snapshot,
        _: &Snapshot,
        _: &[NodePath],
    ) -> Result<AffectedUrlSet> {
        Ok(AffectedUrlSet::Unknown)
    }
}
