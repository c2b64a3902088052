//! Counts of blobs.

use crate::ListedBlob;

/// A number of blobs, and their total bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlobTally {
    /// The number of blobs.
    pub blob_count: u64,
    /// The total bytes.
    pub bytes: u64,
}

impl BlobTally {
    /// Counts a blob.
    pub(super) fn add(&mut self, listed: &ListedBlob) {
        self.blob_count += 1;
        self.bytes += listed.id.length();
    }
}
