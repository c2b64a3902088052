//! Storages of large blobs: folders, buckets, other instances, and composites of those.
//!
//! A storage is read through [`ReadBlobs`], or read and written through [`WriteBlobs`]. A read-only storage is held as
//! the former, so that no code can write to it: there is no flag that could be ignored.

use std::fmt::Debug;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::time::SystemTime;

use tympan_store::BlobId;

use crate::{BlobContent, Error, Result};

/// Blobs shorter than this are pack records: one commit, no file, served from memory.
pub const SMALL_BLOB_BYTES: usize = 16 * 1024;

/// Read access to large blobs, which may belong to another owner. No method here changes anything in the storage: no
/// time of a file, no temporary one.
pub trait ReadBlobs: Send + Sync + Debug {
    /// Opens a blob for reading; `None` if it does not exist.
    ///
    /// # Errors
    /// If that cannot be determined, or the blob is damaged: never `None` in place of an error.
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>>;

    /// Opens a blob's file on a local disk; `None` if it does not exist, is damaged, or is stored elsewhere: then
    /// [`ReadBlobs::open`] distinguishes these. Blocks only on that disk.
    fn open_file(&self, _id: &BlobId) -> Option<File> {
        None
    }

    /// Returns true if the blob exists with its full length.
    ///
    /// # Errors
    /// If that cannot be determined.
    fn contains(&self, id: &BlobId) -> Result<bool>;

    /// Passes every blob to `visit`, in no order, until it breaks. A blob that is put or deleted concurrently may be
    /// listed or not; one that exists all the time is listed once.
    ///
    /// # Errors
    /// If the storage cannot be listed in full; [`Error::Unlistable`] if it never can.
    fn list(&self, _visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        Err(Error::Unlistable { place: format!("{self:?}") })
    }

    /// Opens a note that the users of the storage share; `None` if there is none with this name.
    ///
    /// # Errors
    /// [`Error::InvalidNoteName`]; if the storage fails.
    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        check_note_name(name)?;
        Ok(None)
    }

    /// Returns the names of the notes that begin with `prefix`, sorted, with the time at which each was written.
    ///
    /// # Errors
    /// If the storage fails.
    fn list_notes(&self, _prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        Ok(Vec::new())
    }

    /// Returns true if reading is so expensive that the result should be cached.
    fn is_remote(&self) -> bool {
        false
    }

    /// Returns the minimum length of a blob in this storage; shorter ones are in the chunk store of their home.
    fn min_blob_bytes(&self) -> u64 {
        SMALL_BLOB_BYTES as u64
    }
}

/// A storage that this process and others write to concurrently.
pub trait WriteBlobs: ReadBlobs {
    /// Stores all bytes of `source` durably and returns their id. An existing blob is touched instead, or repaired if
    /// it is damaged.
    ///
    /// # Errors
    /// [`Error::Source`] if the source fails; other variants if the storage does. Nothing is stored then.
    fn put(&self, source: &mut dyn Read) -> Result<BlobId>;

    /// Stores several blobs with no more disk syncs than one would take, and returns their ids in order; after an error
    /// some may be stored.
    ///
    /// # Errors
    /// As [`WriteBlobs::put`].
    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        blobs.iter().map(|bytes| self.put(&mut &**bytes)).collect()
    }

    /// Stores bytes whose id was given by the sender. If the blob exists, the bytes are compared and nothing is
    /// written.
    ///
    /// # Errors
    /// [`Error::IdMismatch`] if the bytes have another id; otherwise as [`WriteBlobs::put`]. Nothing is stored then.
    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()>;

    /// Renews the time of a blob that garbage collection uses, durably; `false` if the blob does not exist, or was
    /// being discarded: then it has to be put again.
    ///
    /// # Errors
    /// If the storage fails.
    fn touch(&self, id: &BlobId) -> Result<bool>;

    /// Removes a blob immediately, even if it is needed; `false` if it does not exist.
    ///
    /// # Errors
    /// If the storage fails.
    fn delete(&self, id: &BlobId) -> Result<bool>;

    /// Moves a blob to the trash unless it was put or touched at `unused_since` or later; `false` if it stays or does
    /// not exist. One that is touched concurrently stays.
    ///
    /// # Errors
    /// If the storage fails.
    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool>;

    /// Restores a blob from the trash; `false` if it is not in the trash. One that was put again in the meantime stays
    /// unchanged.
    ///
    /// # Errors
    /// If the storage fails.
    fn undelete(&self, id: &BlobId) -> Result<bool>;

    /// Passes the blobs in the trash to `visit`, with the time at which each was discarded, until it breaks.
    ///
    /// # Errors
    /// If the trash cannot be listed.
    fn list_trash(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()>;

    /// Removes a blob from the trash permanently; `false` if it is not in the trash.
    ///
    /// # Errors
    /// If the storage fails.
    fn purge(&self, id: &BlobId) -> Result<bool>;

    /// Writes a note that all users of the storage can read, durably, replacing one with the same name. Names are 1 to
    /// 100 letters, digits, `-`, `_` and `.`, beginning with a letter, such as Oak's `repository-<id>`.
    ///
    /// # Errors
    /// [`Error::InvalidNoteName`]; if the storage fails.
    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Writes a note unless one with this name exists; `false` if it does. Of several concurrent attempts, one
    /// succeeds.
    ///
    /// # Errors
    /// As [`WriteBlobs::write_note`]; the note may exist then.
    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool>;

    /// Removes a note; `false` if there is none with this name.
    ///
    /// # Errors
    /// As [`WriteBlobs::write_note`].
    fn delete_note(&self, name: &str) -> Result<bool>;
}

/// A blob in the listing of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedBlob {
    /// The id; its length is that of the stored file, so that a truncated blob has another id than it should.
    pub id: BlobId,
    /// The time at which it was last put or touched; in the trash, the time at which it was discarded.
    pub modified: SystemTime,
}

/// The index of a delegate in a composite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DelegateIndex(pub u16);

/// Rejects invalid note names, which could lead out of the folder or name a file of the storage itself.
pub(crate) fn check_note_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = name.len() <= 100
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
        && name.bytes().all(is_plain)
        && !matches!(name, "tmp" | "trash");
    if is_name { Ok(()) } else { Err(Error::InvalidNoteName { name: name.to_owned() }) }
}

/// Compares bytes with the id given by the sender, without storing them.
pub(crate) fn verify_content(id: &BlobId, source: &mut dyn Read) -> Result<()> {
    let actual = crate::compute_blob_id(source).map_err(Error::Source)?;
    if actual == *id { Ok(()) } else { Err(Error::IdMismatch { expected: *id, actual }) }
}
