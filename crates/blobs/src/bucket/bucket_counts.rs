//! Counters of a bucket.

/// Counters since a bucket was opened, and the current backlog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketCounts {
    /// Reads that were served from the disk.
    pub cache_hits: u64,
    /// Reads that were requested from the bucket.
    pub cache_misses: u64,
    /// Bytes in the read cache now.
    pub cached_bytes: u64,
    /// Staged blobs that are not in the bucket yet.
    pub pending_uploads: u64,
    /// The bytes in staged blobs.
    pub pending_upload_bytes: u64,
    /// Blobs that were uploaded.
    pub uploaded: u64,
    /// Uploads that failed and will be retried. A rise means that the bucket refuses or cannot be reached.
    pub upload_failures: u64,
}
