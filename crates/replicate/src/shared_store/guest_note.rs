//! Notes about blobs over HTTP: a repository that reads the blobs of a running instance notes there which of them it
//! needs.
//!
//! In: notes of `tympan_blobs::garbage_collection`. Out: the same notes beside the blobs of the other instance, whose
//! collection respects them. Both sides are here: [`RemoteGuestNotes`] is the client, the functions are the server
//! side.
//!
//! Not here: the content of the notes (`docs/formats/blob-notes.md`), and HTTP itself (`server`).

use std::fmt;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tympan_blobs::garbage_collection::GuestNotes;
use tympan_blobs::{BlobContent, BlobId, ListedBlob, ReadBlobs, WriteBlobs};

use crate::shared_store::remote_store::RemoteStore;
use crate::shared_store::store_service::to_unix_micros;
use crate::{Error, Result};

/// The maximum length of a note, in bytes: a part of marks has 65,536 ids.
pub const MAX_GUEST_NOTE_BYTES: u64 = 4 << 20;

/// Reads a note.
///
/// # Errors
/// [`Error::InvalidGuestNote`] for a name that guests may not use; errors of the storage locations.
pub fn read_guest_note(notes: &GuestNotes, name: &str) -> Result<Bytes> {
    let note = notes.read(name).map_err(classify_note_error)?;
    note.map(Bytes::from).ok_or_else(|| Error::Absent(format!("the note `{name}`")))
}

/// Lists the parts of a guest's marks, with the times at which they were written, in microseconds since 1970.
///
/// # Errors
/// As [`read_guest_note`].
pub fn list_guest_notes(notes: &GuestNotes, prefix: &str) -> Result<Vec<(String, i64)>> {
    let listed = notes.list(prefix).map_err(classify_note_error)?;
    Ok(listed.into_iter().map(|(name, at)| (name, to_unix_micros(at))).collect())
}

/// Writes a note.
///
/// # Errors
/// As [`read_guest_note`]; [`Error::InvalidGuestNote`] also for a note of another owner, and for a malformed one.
pub fn write_guest_note(notes: &GuestNotes, name: &str, bytes: &[u8]) -> Result<()> {
    notes.write(name, bytes).map_err(classify_note_error)
}

/// Removes a part of marks, if it exists.
///
/// # Errors
/// As [`write_guest_note`].
pub fn remove_guest_note(notes: &GuestNotes, name: &str) -> Result<()> {
    match notes.remove(name).map_err(classify_note_error)? {
        true => Ok(()),
        false => Err(Error::Absent(format!("the note `{name}`"))),
    }
}

/// Distinguishes an invalid request of a guest from a failure of the storage.
fn classify_note_error(error: tympan_blobs::Error) -> Error {
    match error {
        tympan_blobs::Error::InvalidNoteName { .. } | tympan_blobs::Error::RefusedNote { .. } => {
            Error::InvalidGuestNote(error)
        }
        error => error.into(),
    }
}

/// The notes beside the blobs of a running instance. The instance's blobs can be read; only notes can be written.
pub struct RemoteGuestNotes(Arc<RemoteStore>);

impl RemoteGuestNotes {
    /// Creates a client for notes at an instance whose store is read.
    #[must_use]
    pub fn new(store: Arc<RemoteStore>) -> Self {
        Self(store)
    }

    fn read_only_error<T>(&self) -> tympan_blobs::Result<T> {
        Err(tympan_blobs::Error::NoWritableDelegate { roles: format!("{self:?}") })
    }
}

impl fmt::Debug for RemoteGuestNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ReadBlobs for RemoteGuestNotes {
    fn open(&self, id: &BlobId) -> tympan_blobs::Result<Option<BlobContent>> {
        self.0.open(id)
    }

    fn contains(&self, id: &BlobId) -> tympan_blobs::Result<bool> {
        self.0.contains(id)
    }

    fn open_note(&self, name: &str) -> tympan_blobs::Result<Option<BlobContent>> {
        Ok(self.0.read_note(name, MAX_GUEST_NOTE_BYTES)?.map(BlobContent::Bytes))
    }

    fn list_notes(&self, prefix: &str) -> tympan_blobs::Result<Vec<(String, SystemTime)>> {
        Ok(self.0.list_notes(prefix)?)
    }

    fn is_remote(&self) -> bool {
        true
    }
}

impl WriteBlobs for RemoteGuestNotes {
    fn put(&self, _: &mut dyn Read) -> tympan_blobs::Result<BlobId> {
        self.read_only_error()
    }

    fn put_named(&self, _: &BlobId, _: &mut dyn Read) -> tympan_blobs::Result<()> {
        self.read_only_error()
    }

    fn touch(&self, _: &BlobId) -> tympan_blobs::Result<bool> {
        self.read_only_error()
    }

    fn delete(&self, _: &BlobId) -> tympan_blobs::Result<bool> {
        self.read_only_error()
    }

    fn discard(&self, _: &BlobId, _: SystemTime) -> tympan_blobs::Result<bool> {
        self.read_only_error()
    }

    fn undelete(&self, _: &BlobId) -> tympan_blobs::Result<bool> {
        self.read_only_error()
    }

    fn list_trash(
        &self,
        _: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>,
    ) -> tympan_blobs::Result<()> {
        self.read_only_error()
    }

    fn purge(&self, _: &BlobId) -> tympan_blobs::Result<bool> {
        self.read_only_error()
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> tympan_blobs::Result<()> {
        Ok(self.0.write_note(name, Bytes::copy_from_slice(bytes))?)
    }

    fn create_note(&self, _: &str, _: &[u8]) -> tympan_blobs::Result<bool> {
        // A guest does not take part in the turns of the collection.
        self.read_only_error()
    }

    fn delete_note(&self, name: &str) -> tympan_blobs::Result<bool> {
        Ok(self.0.delete_note(name)?)
    }
}
