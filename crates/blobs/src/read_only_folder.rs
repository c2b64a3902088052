//! A read-only folder of blobs that another owner writes: that of another home, or of an Oak `FileDataStore`,
//! unmodified.
//!
//! Nothing in it is changed: files are opened for reading only, and no folders are created.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tympan_store::BlobId;

use crate::blob_file::{self, disk_error};
use crate::verified_files::VerifiedFiles;
use crate::{BlobContent, ListedBlob, ReadBlobs, Result};

/// Blobs in a folder, below two folders each as here or below three as in Oak. Nothing in it is changed.
pub struct ReadOnlyBlobFolder {
    dir: PathBuf,
    presence: FolderPresence,
    verified: VerifiedFiles,
}

/// The meaning of a missing folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FolderPresence {
    /// The folder is empty.
    Optional,
    /// The disk of the folder is not mounted: its contents are unknown.
    Required,
}

impl ReadOnlyBlobFolder {
    /// Reads from a folder; a missing folder counts as empty.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self::with_presence(dir, FolderPresence::Optional)
    }

    /// Reads from a folder whose disk may be unmounted: while it is missing or empty, the absence of a blob is an
    /// error.
    #[must_use]
    pub fn new_required(dir: &Path) -> Self {
        Self::with_presence(dir, FolderPresence::Required)
    }

    fn with_presence(dir: &Path, presence: FolderPresence) -> Self {
        Self { dir: dir.to_owned(), presence, verified: VerifiedFiles::new() }
    }

    /// Checks that the folder exists at all, after a blob was not found in it.
    fn check_presence(&self) -> Result<()> {
        if self.presence == FolderPresence::Optional {
            return Ok(());
        }
        let mut entries = fs::read_dir(&self.dir).map_err(disk_error("list", &self.dir))?;
        if entries.next().is_some() {
            return Ok(());
        }
        // Every folder of blobs contains something else, too, such as the folder of temporary files.
        let nothing = io::Error::new(
            ErrorKind::NotFound,
            "the folder is empty; check that its disk is mounted",
        );
        Err(disk_error("find blobs in", &self.dir)(nothing))
    }
}

impl fmt::Debug for ReadOnlyBlobFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dir.display())
    }
}

impl ReadBlobs for ReadOnlyBlobFolder {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        if let Some(content) = self.verified.open(&blob_file::blob_path(&self.dir, id), id)? {
            return Ok(Some(content));
        }
        let mut blob_content = self.verified.open(&blob_file::oak_blob_path(&self.dir, id), id)?;
        if blob_content.is_none() {
            // It may be moving into the trash, or back out of it.
            blob_content = self.verified.open(&blob_file::trashed_blob_path(&self.dir, id), id)?;
        }
        if blob_content.is_none() {
            blob_content = self.verified.open(&blob_file::blob_path(&self.dir, id), id)?;
        }
        if blob_content.is_none() {
            self.check_presence()?;
        }
        Ok(blob_content)
    }

    fn open_file(&self, id: &BlobId) -> Option<File> {
        let open_verified = |path: &Path| self.verified.open_without_wait(path, id);
        open_verified(&blob_file::blob_path(&self.dir, id))
            .or_else(|| open_verified(&blob_file::oak_blob_path(&self.dir, id)))
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        let is_here = blob_file::is_complete_file(&blob_file::blob_path(&self.dir, id), id)?
            || blob_file::is_complete_file(&blob_file::oak_blob_path(&self.dir, id), id)?;
        if !is_here {
            self.check_presence()?;
        }
        Ok(is_here)
    }

    fn list(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        self.check_presence()?;
        blob_file::list_blobs(&self.dir, visit).map(|_| ())
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        blob_file::open_note(&self.dir, name)
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        blob_file::list_notes(&self.dir, prefix)
    }

    /// Oak stores all blobs in it that its own configuration does not inline.
    fn min_blob_bytes(&self) -> u64 {
        0
    }
}
