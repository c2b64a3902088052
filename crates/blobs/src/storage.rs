//! The places that keep large blobs: folders, buckets, other instances, and composites of those.
//!
//! A place is read by [`ReadBlobs`], or read and written by [`WriteBlobs`]. What is only read is held as the former, so
//! that no code can write to it: there is no flag that somebody could forget to ask.

use std::fmt::Debug;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::time::SystemTime;

use tympan_store::BlobId;

use crate::local_store::SMALL_BLOB_BYTES;
use crate::{BlobContent, Error, Result};

/// Large blobs that someone keeps, perhaps someone else. No method here changes anything in the place: no time of a file,
/// no temporary one.
pub trait ReadBlobs: Send + Sync + Debug {
    /// Opens a blob to read; nothing if it is not there.
    ///
    /// # Errors
    /// If that cannot be told, or the blob is damaged: never "nothing" in place of an error.
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>>;

    /// Opens a blob's file that lies on a disk of this machine; nothing if it is not there, damaged, or lies elsewhere: then
    /// [`ReadBlobs::open`] says which. Waits for nothing but that disk.
    fn open_file(&self, _id: &BlobId) -> Option<File> {
        None
    }

    /// Tells whether the blob is there, whole as far as its length tells.
    ///
    /// # Errors
    /// If that cannot be told.
    fn contains(&self, id: &BlobId) -> Result<bool>;

    /// Shows every blob, in no order, until `visit` breaks. What is put or deleted meanwhile may be shown or not; what
    /// is there all the time is shown once.
    ///
    /// # Errors
    /// If the place cannot be listed in full; [`Error::Unlistable`] if it never can.
    fn list(&self, _visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        Err(Error::Unlistable { place: format!("{self:?}") })
    }

    /// Opens a note that the users of the place left for each other; nothing if there is none of this name.
    ///
    /// # Errors
    /// [`Error::InvalidNoteName`]; if the place fails.
    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        check_note_name(name)?;
        Ok(None)
    }

    /// Returns the names of the notes that begin with `prefix`, with the time at which each was written, sorted.
    ///
    /// # Errors
    /// If the place fails.
    fn list_notes(&self, _prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        Ok(Vec::new())
    }

    /// Tells whether reading costs so much that what was read is better kept.
    fn is_remote(&self) -> bool {
        false
    }

    /// Returns the length below which a blob is never here, as it lies in the chunk store of its home.
    fn min_blob_bytes(&self) -> u64 {
        SMALL_BLOB_BYTES as u64
    }
}

/// A place that blobs are written to, by this process and others at the same time.
pub trait WriteBlobs: ReadBlobs {
    /// Stores all bytes of `source` durably and returns their id. What is there already is touched instead, unless it is
    /// damaged: then it is healed.
    ///
    /// # Errors
    /// [`Error::Source`] if the source fails; other variants if the place does. Nothing is stored then.
    fn put(&self, source: &mut dyn Read) -> Result<BlobId>;

    /// Stores several blobs in no more waits for the disk than one would take, and returns their ids in order; after an
    /// error some may be stored.
    ///
    /// # Errors
    /// As [`WriteBlobs::put`].
    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        blobs.iter().map(|bytes| self.put(&mut &**bytes)).collect()
    }

    /// Stores bytes whose id their sender named. If the blob is there already, they are compared and nothing is written.
    ///
    /// # Errors
    /// [`Error::IdMismatch`] if other bytes came; otherwise as [`WriteBlobs::put`]. Nothing is stored then.
    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()>;

    /// Renews the time of a blob that garbage collection goes by, durably; `false` if the blob is not there, or was on its
    /// way out: then it has to be put again.
    ///
    /// # Errors
    /// If the place fails.
    fn touch(&self, id: &BlobId) -> Result<bool>;

    /// Removes a blob at once, whoever may need it; `false` if it is not there.
    ///
    /// # Errors
    /// If the place fails.
    fn delete(&self, id: &BlobId) -> Result<bool>;

    /// Moves a blob to the trash unless it was put or touched at `unused_since` or later; `false` if it stays or is not
    /// there. One that is touched at the same moment stays.
    ///
    /// # Errors
    /// If the place fails.
    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool>;

    /// Takes a blob back out of the trash; `false` if it is not in it. One that was put again meanwhile stays as it is.
    ///
    /// # Errors
    /// If the place fails.
    fn undelete(&self, id: &BlobId) -> Result<bool>;

    /// Shows what is in the trash, with the time at which it was discarded, until `visit` breaks.
    ///
    /// # Errors
    /// If the trash cannot be listed.
    fn list_trash(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()>;

    /// Removes a blob from the trash for good; `false` if it is not in it.
    ///
    /// # Errors
    /// If the place fails.
    fn purge(&self, id: &BlobId) -> Result<bool>;

    /// Writes a note that all who share the place can read, durably, in place of one with the same name. Names are 1 to
    /// 100 letters, digits, `-`, `_` and `.`, beginning with a letter, such as Oak's `repository-<id>`.
    ///
    /// # Errors
    /// [`Error::InvalidNoteName`]; if the place fails.
    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Writes a note unless there is one of this name; `false` if there is. Of all who try at the same time, one succeeds.
    ///
    /// # Errors
    /// As [`WriteBlobs::write_note`]; the note may be there then.
    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool>;

    /// Removes a note; `false` if there is none of this name.
    ///
    /// # Errors
    /// As [`WriteBlobs::write_note`].
    fn delete_note(&self, name: &str) -> Result<bool>;
}

/// A blob as a place lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedBlob {
    /// Its name; the length is that of what is stored, so that a shortened blob has another id than it should.
    pub id: BlobId,
    /// When it was put or touched last; in the trash, when it was discarded.
    pub modified: SystemTime,
}

/// Which of the delegates of a composite holds a blob: its place among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DelegateIndex(pub u16);

/// Refuses a name that no note can have: nothing that could leave its folder, or be a file of the place itself.
pub(crate) fn check_note_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = name.len() <= 100
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
        && name.bytes().all(is_plain)
        && !matches!(name, "tmp" | "trash");
    if is_name { Ok(()) } else { Err(Error::InvalidNoteName { name: name.to_owned() }) }
}

/// Compares bytes with the id that their sender named, without storing them.
pub(crate) fn verify_content(id: &BlobId, source: &mut dyn Read) -> Result<()> {
    let actual = crate::compute_blob_id(source).map_err(Error::Source)?;
    if actual == *id { Ok(()) } else { Err(Error::IdMismatch { expected: *id, actual }) }
}
