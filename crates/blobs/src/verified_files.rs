//! Files of blobs whose bytes were compared with the hash that they are named by.
//!
//! A file is read and hashed when it is opened for the first time since this process began, and again when the system says
//! that it changed. So damaged bytes are an error before the first of them is given out, and what is opened again and again
//! costs no reading.
//!
//! Not here: bytes that change on the medium without the system's knowledge after they were compared, which a check of all
//! blobs finds.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};
use tympan_store::BlobId;

use crate::blob_file::{self, disk_error};
use crate::{BlobContent, Error, Result};

/// Files that are remembered; about 150 bytes each.
const MAX_REMEMBERED_FILES: usize = 65_536;
/// How much is read and hashed at a time.
const HASH_BUFFER_BYTES: usize = 128 * 1024;
/// Up to this length a file is compared while somebody waits who is to wait for nothing but the disk.
const MAX_INLINE_VERIFY_BYTES: u64 = 1 << 20;

/// What the system says of a file. It differs after any change of the file that the system knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device_and_inode: (u64, u64),
    length: u64,
    modified: (i64, i64),
    status_changed: (i64, i64),
}

impl FileStamp {
    /// Asks the system about an open file.
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

/// The files of one folder that were compared with their hashes.
pub(crate) struct VerifiedFiles {
    stamps: Cache<BlobId, FileStamp>,
}

impl VerifiedFiles {
    pub(crate) fn new() -> Self {
        Self { stamps: Cache::new(MAX_REMEMBERED_FILES) }
    }

    /// Opens the file of a blob, whose bytes have its hash; nothing if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::HashMismatch`] if the file holds other bytes.
    pub(crate) fn open(&self, path: &Path, id: &BlobId) -> Result<Option<BlobContent>> {
        let opened = blob_file::open_blob_file(path, id)?;
        if let Some(BlobContent::File { file, .. }) = &opened {
            self.verify(path, (id, file))?;
        }
        Ok(opened)
    }

    /// As [`VerifiedFiles::open`], for somebody who waits for nothing but the disk: nothing also if the file is damaged, or so
    /// long that comparing it takes a while.
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

    /// Compares the bytes of a file with its hash, unless that was done since it changed last.
    ///
    /// # Errors
    /// [`Error::HashMismatch`] if it holds other bytes; if it cannot be read.
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
        // Whoever writes to it meanwhile may have changed what was read already.
        if FileStamp::from_file(file).map_err(failed())? == stamp {
            self.stamps.insert(*id, stamp);
        }
        Ok(())
    }

    /// Notes that a file holds what it should, as this process has written it, or has compared it before it was touched.
    pub(crate) fn mark_verified(&self, id: &BlobId, file: &File) {
        if let Ok(stamp) = FileStamp::from_file(file) {
            self.stamps.insert(*id, stamp);
        }
    }

    fn is_verified(&self, id: &BlobId, stamp: &FileStamp) -> bool {
        self.stamps.get(id).is_some_and(|known| known == *stamp)
    }
}

impl std::fmt::Debug for VerifiedFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerifiedFiles({})", self.stamps.len())
    }
}

/// Hashes a file from its start, whatever its position.
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
