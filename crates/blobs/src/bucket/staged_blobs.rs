//! Read access to blobs that another process holds for their upload to a bucket.

use std::path::{Path, PathBuf};

use tympan_store::BlobId;

use super::staging::UPLOAD_DIR;
use crate::blob_file::{blob_hex_digest, is_complete_file, open_blob_file};
use crate::{BlobContent, ReadBlobs, Result};

/// The blobs that wait for upload in the cache folder of a bucket that another process has open. Nothing in the folder
/// is changed.
///
/// Query it before the bucket: a blob is removed here once the bucket has it.
#[derive(Debug)]
pub struct StagedBlobs {
    dir: PathBuf,
}

impl StagedBlobs {
    /// Reads below a bucket's cache folder; a missing folder counts as empty.
    #[must_use]
    pub fn new(cache_dir: &Path) -> Self {
        Self { dir: cache_dir.join(UPLOAD_DIR) }
    }
}

impl ReadBlobs for StagedBlobs {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        open_blob_file(&self.dir.join(blob_hex_digest(id)), id)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        is_complete_file(&self.dir.join(blob_hex_digest(id)), id)
    }
}
