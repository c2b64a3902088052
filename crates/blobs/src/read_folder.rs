//! A folder of blobs that somebody else writes: that of another home, or of an Oak `FileDataStore`, as it is.
//!
//! Nothing in it is touched: files are opened for reading only, and folders are made nowhere.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tympan_store::BlobId;

use crate::files::{self, disk};
use crate::verified::VerifiedFiles;
use crate::{BlobContent, Listed, ReadBlobs, Result};

/// Blobs in a folder, below two folders each as here or below three as in Oak. Nothing in it is touched.
pub struct FolderBlobs {
    dir: PathBuf,
    presence: Presence,
    verified: VerifiedFiles,
}

/// What it means that the folder is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// It holds nothing.
    Optional,
    /// Its disk is not mounted: nobody can tell what it holds.
    Required,
}

impl FolderBlobs {
    /// Reads from a folder; one that does not exist holds nothing.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self::with(dir, Presence::Optional)
    }

    /// Reads from a folder whose disk may go: while it is missing or empty, what it does not hold cannot be told.
    #[must_use]
    pub fn required(dir: &Path) -> Self {
        Self::with(dir, Presence::Required)
    }

    fn with(dir: &Path, presence: Presence) -> Self {
        Self { dir: dir.to_owned(), presence, verified: VerifiedFiles::new() }
    }

    /// Looks whether the folder is there at all, after it did not hold something.
    fn check_presence(&self) -> Result<()> {
        if self.presence == Presence::Optional {
            return Ok(());
        }
        let mut entries = fs::read_dir(&self.dir).map_err(disk("list", &self.dir))?;
        if entries.next().is_some() {
            return Ok(());
        }
        // Every folder of blobs holds something else besides, such as the folder of temporary files.
        let nothing =
            io::Error::new(ErrorKind::NotFound, "the folder is empty; is its disk mounted?");
        Err(disk("find blobs in", &self.dir)(nothing))
    }
}

impl fmt::Debug for FolderBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dir.display())
    }
}

impl ReadBlobs for FolderBlobs {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        if let Some(content) = self.verified.open(&files::file_in(&self.dir, id), id)? {
            return Ok(Some(content));
        }
        let mut found = self.verified.open(&files::oak_file_in(&self.dir, id), id)?;
        if found.is_none() {
            // It may be on its way into the trash, or back out of it.
            found = self.verified.open(&files::trashed_in(&self.dir, id), id)?;
        }
        if found.is_none() {
            found = self.verified.open(&files::file_in(&self.dir, id), id)?;
        }
        if found.is_none() {
            self.check_presence()?;
        }
        Ok(found)
    }

    fn open_file(&self, id: &BlobId) -> Option<File> {
        let known = |path: &Path| self.verified.open_known(path, id);
        known(&files::file_in(&self.dir, id)).or_else(|| known(&files::oak_file_in(&self.dir, id)))
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        let is_here = files::is_whole(&files::file_in(&self.dir, id), id)?
            || files::is_whole(&files::oak_file_in(&self.dir, id), id)?;
        if !is_here {
            self.check_presence()?;
        }
        Ok(is_here)
    }

    fn list(&self, visit: &mut dyn FnMut(Listed) -> ControlFlow<()>) -> Result<()> {
        self.check_presence()?;
        files::list(&self.dir, visit).map(|_| ())
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        files::open_note(&self.dir, name)
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        files::list_notes(&self.dir, prefix)
    }

    /// Oak keeps all in it that its own configuration does not inline.
    fn least_bytes(&self) -> u64 {
        0
    }
}
