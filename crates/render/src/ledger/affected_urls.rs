//! The answer to a change: the URLs that it affects.

use std::collections::HashMap;

use tympan_content::{ChunkId, Snapshot};
use tympan_content_fragments::FragmentIndexCache;

use super::url_rendering::UnchangedUrl;
use crate::request::RenderRequest;
use crate::response::RenderResponse;

/// Renders a request from a state as visitors get it; `None` if that is not possible now.
pub type UrlRenderFn<'a> = &'a dyn Fn(&Snapshot, &RenderRequest<'_>) -> Option<RenderResponse>;

/// The URLs that a change affects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffectedUrls {
    /// Paths of URLs as they were requested, sorted.
    pub urls: Vec<String>,
    /// Paths below which there may be URLs that are not known individually; `/` means all.
    pub scopes: Vec<String>,
    /// Number of documents that differ.
    pub changed_documents: usize,
    /// Number of URLs that depend on changed content but look the same.
    pub unchanged_urls: usize,
    /// The number of this answer, for [`DependencyLedger::acknowledge`](super::DependencyLedger::acknowledge).
    pub(super) answer_number: u64,
    /// The time at which the effect of the change was computed, and the state in which it ends.
    pub(super) step_end: Option<(u64, ChunkId)>,
    pub(super) unchanged: Vec<UnchangedUrl>,
}

impl AffectedUrls {
    /// Returns true if there is nothing to flush.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.urls.is_empty() && self.scopes.is_empty()
    }
}

/// The results of lists in a state.
#[derive(Debug, Default)]
pub(super) struct ListQueryResults {
    pub(super) root: Option<ChunkId>,
    pub(super) result_by_query: HashMap<u64, u64>,
    /// The content fragments of the compared states.
    pub(super) fragments: FragmentIndexCache,
}
