//! Blob files whose bytes were verified against their hash.
//!
//! A file is read and hashed when it is first opened by this process, and again when the system reports a change. So
//! damaged bytes cause an error before the first of them is returned, and opening a file repeatedly costs no reading.
//!
//! Not here: bytes that change on the medium without the system's knowledge after the verification, which a check of
//! all blobs finds.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};
use tympan_store::BlobId;

use crate::blob_file::{self, disk_error};
use crate::{BlobContent, Error, Result};

/// Maximum number of remembered files; about 150 bytes each.
const MAX_REMEMBERED_FILES: usize = 65_536;
/// Number of bytes that are read and hashed at a time.
const HASH_BUFFER_BYTES: usize = 128 * 1024;
/// Maximum length of a file that is verified for a caller that may block only on the disk.
const MAX_INLINE_VERIFY_BYTES: u64 = 1 << 20;

/// The metadata of a file. It differs after any change of the file that the system knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device_and_inode: (u64, u64),
    length: u64,
    modified: (i64, i64),
    status_changed: (i64, i64),
}

impl FileStamp {
    /// Reads the metadata of an open file.
    pub(crate) fn from_file(file: &File) -> io::Result<Self> {
        let facts = file.metadata()?;
        Ok(Self {
            device_and_inode: (facts.dev(), facts.ino()),
            length: facts.len(),
            modified: (facts.mtime(), facts.mtime_nsec()),
            status_changed: (facts.ctime(), facts.ctime_nsec()),
        })
    }
}

/// The verified files of one folder.
pub(crate) struct VerifiedFiles {
    stamps: Cache<BlobId, FileStamp>,
}

impl VerifiedFiles {
    pub(crate) fn new() -> Self {
        Self { stamps: Cache::new(MAX_REMEMBERED_FILES) }
    }

    /// Opens the file of a blob and verifies its hash; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::HashMismatch`] if the file has other bytes.
    pub(crate) fn open(&self, path: &Path, id: &BlobId) -> Result<Option<BlobContent>> {
        let opened = blob_file::open_blob_file(path, id)?;
        if let Some(BlobContent::File { file, .. }) = &opened {
            self.verify(path, (id, file))?;
        }
        Ok(opened)
    }

    /// Like [`VerifiedFiles::open`], for a caller that may block only on the disk: also returns `None` if the file is
    /// damaged, or too long to be verified quickly.
    pub(crate) fn open_without_wait(&self, path: &Path, id: &BlobId) -> Option<File> {
        let Ok(Some(BlobContent::File { file, length })) = blob_file::open_blob_file(path, id)
        else {
            return None;
        };
        let is_known = length > MAX_INLINE_VERIFY_BYTES
            && self.is_verified(id, &FileStamp::from_file(&file).ok()?);
        (is_known || (length <= MAX_INLINE_VERIFY_BYTES && self.verify(path, (id, &file)).is_ok()))
            .then_some(file)
    }

    /// Verifies the bytes of a file against the hash, unless that was done since its last change.
    ///
    /// # Errors
    /// [`Error::HashMismatch`] if it has other bytes; if it cannot be read.
    pub(crate) fn verify(&self, path: &Path, (id, file): (&BlobId, &File)) -> Result<()> {
        let failed = || disk_error("read", path);
        let stamp = FileStamp::from_file(file).map_err(failed())?;
        if self.is_verified(id, &stamp) {
            return Ok(());
        }
        let actual = hash_file(file).map_err(failed())?;
        if actual != *id {
            self.stamps.remove(id);
            return Err(Error::HashMismatch { id: *id, path: path.to_owned() });
        }
        // A concurrent writer may have changed bytes that were already read.
        if FileStamp::from_file(file).map_err(failed())? == stamp {
            self.stamps.insert(*id, stamp);
        }
        Ok(())
    }

    /// Records a file as verified, because this process wrote it, or verified it before it was touched.
    pub(crate) fn mark_verified(&self, id: &BlobId, file: &File) {
        if let Ok(stamp) = FileStamp::from_file(file) {
            self.stamps.insert(*id, stamp);
        }
    }

    fn is_verified(&self, id: &BlobId, stamp: &FileStamp) -> bool {
        self.stamps.get(id).is_some_and(|stamp_entry| stamp_entry == *stamp)
    }
}

impl std::fmt::Debug for VerifiedFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerifiedFiles({})", self.stamps.len())
    }
}

/// Hashes a file from its start, regardless of its position.
fn hash_file(file: &File) -> io::Result<BlobId> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; HASH_BUFFER_BYTES];
    let mut offset = 0;
    loop {
        match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(BlobId::new(hash.finalize().into(), offset)),
            Ok(count) => {
                hash.update(buffer.get(..count).unwrap_or_default());
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
