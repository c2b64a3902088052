//! The control and progress of a rebuild.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::indexing::index_status::SearchIndexProgress;

/// The control and progress of a rebuild.
#[derive(Debug, Default)]
pub(crate) struct SearchIndexRebuildControl {
    pub(crate) done_documents: AtomicU64,
    pub(crate) total_documents: AtomicU64,
    pub(crate) is_cancelled: AtomicBool,
}

impl SearchIndexRebuildControl {
    pub(crate) fn progress(&self) -> SearchIndexProgress {
        SearchIndexProgress {
            done_documents: self.done_documents.load(Ordering::Relaxed),
            total_documents: self.total_documents.load(Ordering::Relaxed),
        }
    }
}
