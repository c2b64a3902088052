//! The state of property indexes, and the progress of their builds.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tympan_store::MapValue;

/// The state of an index.
#[derive(Debug, Clone, PartialEq)]
pub enum IndexState {
    /// It serves queries.
    Ready {
        /// The number of entries.
        entries: u64,
    },
    /// It waits to be built.
    Waiting,
    /// It is being built.
    Building {
        /// The number of documents read so far.
        documents_done: u64,
        /// The total number of documents.
        documents_total: u64,
    },
    /// The content does not allow the index.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// The progress of builds, by branch and map.
#[derive(Debug, Default)]
pub(crate) struct IndexBuildTracker(
    pub(super) Mutex<BTreeMap<(String, String), IndexBuildProgress>>,
);

/// The progress of one build.
#[derive(Debug, Clone)]
pub(super) struct IndexBuildProgress {
    pub(super) state: IndexState,
    /// For a failed build, the blocking documents with their stored values; the build restarts when one of them
    /// changes.
    pub(super) blocking_documents: Vec<(Vec<u8>, Option<MapValue>)>,
}
