//! What the index tells about itself.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tympan_content::ChunkId;

/// What the index counts since the start.
#[derive(Debug, Default)]
pub struct SearchIndexCounters {
    /// Documents written to the index; a steady rise without edits means that something rewrites content.
    pub indexed_documents: AtomicU64,
    /// Documents of which a part could not be read; a rise means damaged or hostile uploads.
    pub failed_documents: AtomicU64,
    /// Commits of the index; the load of following.
    pub commits: AtomicU64,
    /// Builds from nothing; a rise after the first means that the index was damaged or left behind.
    pub rebuilds: AtomicU64,
    /// Times that the index could not be written or content not read; a rise means a full disk or a failing store.
    pub pauses: AtomicU64,
    /// Queries answered; the load.
    pub queries: AtomicU64,
    /// Queries that failed.
    pub failed_queries: AtomicU64,
}

/// A document of which a part is not in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexingFailure {
    /// The document.
    pub path: String,
    /// What could not be read, and why.
    pub reason: String,
}

/// A build in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchIndexProgress {
    /// Documents that are read.
    pub done_documents: u64,
    /// Documents of the state that is built from.
    pub total_documents: u64,
}

/// The state of the index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchIndexStatus {
    /// The root that searches answer for; nothing while the first build runs.
    pub indexed_root: Option<ChunkId>,
    /// Revisions that are not in the index yet; counted up to a thousand.
    pub lag_revisions: u64,
    /// How old the oldest of them is.
    pub lag: Duration,
    /// Documents in the index.
    pub documents: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Segments that a search asks, one after the other.
    pub segments: u64,
    /// The build from nothing that runs.
    pub rebuild_progress: Option<SearchIndexProgress>,
    /// Why the index does not follow at the moment.
    pub pause_reason: Option<String>,
    /// Documents of which a part is not in the index.
    pub failure_count: u64,
    /// The first of them.
    pub first_failures: Vec<IndexingFailure>,
}
