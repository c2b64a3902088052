//! Copies selected blobs to another home, for a package that refers to them.

use std::collections::BTreeSet;
use std::path::Path;

use tympan_blobs::{BlobId, SMALL_BLOB_BYTES};
use tympan_content::{NodePath, SubtreeScope};

use crate::access::HomeAccess;
use crate::blob_storage::open_other_home_blobs_to_write;
use crate::error::{Error, Result};
use crate::opened_home::{Home, require_home};

/// The result of a promotion.
#[derive(Debug, Default)]
pub struct BlobPromotionReport {
    /// The number of copied blobs.
    pub blob_count: u64,
    /// Their size.
    pub byte_count: u64,
    /// The number of blobs that the target already had.
    pub present_count: u64,
    /// The number of small blobs, which the target does not accept: a package contains them.
    pub small_count: u64,
}

impl Home {
    /// Returns the blobs that nodes refer to, with everything below them.
    ///
    /// # Errors
    /// [`Error::Refused`] if a path is invalid, or there is no such node.
    pub fn referenced_blobs(&self, paths: &[String]) -> Result<BTreeSet<BlobId>> {
        let failed = |error: tympan_content::Error| match error {
            tympan_content::Error::InvalidName { .. } | tympan_content::Error::NodeMissing(_) => {
                Error::refused(error.to_string())
            }
            error => error.into(),
        };
        let snapshot = self.repository.snapshot()?;
        let mut blob_ids = BTreeSet::new();
        for path in paths {
            let path = NodePath::new(path).map_err(failed)?;
            let documents = snapshot.stored_documents(&path, SubtreeScope::Subtree);
            for document in documents.map_err(failed)? {
                blob_ids.extend(snapshot.document_requirements(&document).map_err(failed)?.blobs);
            }
        }
        Ok(blob_ids)
    }
}

/// Copies blobs into the storage in which another home stores new ones.
///
/// # Errors
/// [`Error::Refused`] if `to` is no home, or is not registered in its storage; otherwise if a storage fails.
pub fn copy_blobs_to_home(
    access: &HomeAccess,
    home: &Home,
    blob_ids: &BTreeSet<BlobId>,
    to: &Path,
) -> Result<BlobPromotionReport> {
    require_home(to)?;
    let storage = open_other_home_blobs_to_write(access, to, &home.dir)?;
    let mut done = BlobPromotionReport::default();
    for id in blob_ids {
        if id.length() < SMALL_BLOB_BYTES as u64 {
            done.small_count += 1;
        } else if storage.touch(id)? {
            done.present_count += 1;
        } else {
            let content = home.repository.blobs().open(id)?;
            let content = content.ok_or_else(|| {
                Error::failed_alone(format!(
                    "the blob {id} is missing here; run `tympan blobs check`"
                ))
            })?;
            storage.put_named(id, &mut content.into_reader())?;
            done.blob_count += 1;
            done.byte_count += id.length();
        }
    }
    Ok(done)
}
