//! Status and counters of the index.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tympan_content::ChunkId;

/// The counters of the index since the start.
#[derive(Debug, Default)]
pub struct SearchIndexCounters {
    /// Documents written to the index; a steady rise without edits means that something rewrites content.
    pub indexed_documents: AtomicU64,
    /// Documents that could be read only in part; a rise means damaged or hostile uploads.
    pub failed_documents: AtomicU64,
    /// Commits of the index: the load of following.
    pub commits: AtomicU64,
    /// Rebuilds; a rise after the first means that the index was damaged or too far behind.
    pub rebuilds: AtomicU64,
    /// Times that the index could not be written or the content not be read; a rise means a full disk or a failing
    /// store.
    pub pauses: AtomicU64,
    /// Queries answered: the load of searches.
    pub queries: AtomicU64,
    /// Queries that failed.
    pub failed_queries: AtomicU64,
}

/// A document that is not completely in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexingFailure {
    /// The path of the document.
    pub path: String,
    /// The part that could not be read, and the reason.
    pub reason: String,
}

/// A build in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchIndexProgress {
    /// The number of documents read.
    pub done_documents: u64,
    /// The number of documents in the state of the build.
    pub total_documents: u64,
}

/// The status of the index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchIndexStatus {
    /// The root of the served index; `None` while the first build runs.
    pub indexed_root: Option<ChunkId>,
    /// The number of revisions that are not in the index yet, counted up to a thousand.
    pub lag_revisions: u64,
    /// The age of the oldest of them.
    pub lag: Duration,
    /// The number of documents in the index.
    pub documents: u64,
    /// The size of its files, in bytes.
    pub bytes: u64,
    /// The number of segments that a search reads, one after the other.
    pub segments: u64,
    /// The progress of a running rebuild.
    pub rebuild_progress: Option<SearchIndexProgress>,
    /// The reason why the index does not follow at the moment.
    pub pause_reason: Option<String>,
    /// The number of documents that are not completely in the index.
    pub failure_count: u64,
    /// The first of these documents.
    pub first_failures: Vec<IndexingFailure>,
}
