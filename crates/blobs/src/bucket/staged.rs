//! Blobs that another process keeps for their upload to a bucket, read as they lie there.

use std::path::{Path, PathBuf};

use tympan_store::BlobId;

use super::UPLOAD;
use crate::files::{hex_of, is_whole, open_file};
use crate::{BlobContent, ReadBlobs, Result};

/// What waits in the cache folder of a bucket that another process has open. Nothing in it is touched.
///
/// Ask it before the bucket: a blob is removed here when it is there.
#[derive(Debug)]
pub struct StagedBlobs {
    dir: PathBuf,
}

impl StagedBlobs {
    /// Reads below a bucket's cache folder; one that does not exist holds nothing.
    #[must_use]
    pub fn new(cache_dir: &Path) -> Self {
        Self { dir: cache_dir.join(UPLOAD) }
    }
}

impl ReadBlobs for StagedBlobs {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        open_file(&self.dir.join(hex_of(id)), id)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        is_whole(&self.dir.join(hex_of(id)), id)
    }
}
