//! The interface that maps a publisher's content changes to the affected URLs.
//!
//! In: two states of content and the documents that differ. Out: the URLs whose responses may differ, if known.
//!
//! A ledger of the dependencies of each page implements [`AffectedUrlResolver`]. Without one, [`UntrackedUrlResolver`]
//! is used, and flushes reach as far as a dispatcher's `.stat` files.

use std::fmt::Debug;

use tympan_content::{ChunkId, NodePath, Snapshot};

use crate::Result;

/// Resolves content changes to the URLs that depend on them.
pub trait AffectedUrlResolver: Debug + Send + Sync {
    /// Returns the URLs affected by a change. It is called on a thread that may block, once for each step from one
    /// state to the next. After a crash, it is called again for the same step or for one that includes later changes.
    /// It is also called if nothing differs, because caches may hold responses rendered in between. A URL missing from
    /// the result stays stale, so the implementation includes a URL if in doubt, and returns `Unknown` if it does not
    /// know.
    ///
    /// # Errors
    /// If the result is currently unavailable; the step is then retried.
    fn find_affected_urls(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        changed: &[NodePath],
    ) -> Result<AffectedUrlSet>;

    /// Notifies the resolver that all flushes up to a state are stored: those of the last result, if it was for a step
    /// that ends at that state. If there is no cache to flush, the resolver was not called for the step. It is called
    /// on a thread that may block.
    fn mark_flushes_stored(&self, _root: ChunkId) {}

    /// Returns true if URLs are pending that no change concerns. The resolver is then called soon, even if nothing
    /// differs. It must not block.
    fn has_pending_urls(&self) -> bool {
        false
    }

    /// Returns the publishers on the same database that are permanently gone since the last call, and whose URLs are
    /// now resolved here; their follower positions are deleted. It must not block.
    fn take_gone_publishers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The set of URLs affected by a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffectedUrlSet {
    /// Exactly these URLs: absolute paths with extension, as visitors request them.
    Urls(Vec<String>),
    /// These URLs, and everything cached below these folders, whose dependencies are unknown.
    UrlsAndFolders {
        /// The known URLs.
        urls: Vec<String>,
        /// Absolute paths; `/` means that a cache must drop everything.
        folders: Vec<String>,
    },
    /// Dependencies are not tracked: the changed pages and everything under the same `.stat` files.
    Unknown,
}

impl AffectedUrlSet {
    /// Returns the set of everything that caches hold.
    #[must_use]
    pub fn everything() -> Self {
        Self::UrlsAndFolders { urls: Vec::new(), folders: vec!["/".to_owned()] }
    }
}

/// The resolver used without a ledger; the URLs that it returns are always unknown.
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
