//! Notes about blobs over HTTP: a repository that reads the blobs of a running instance tells it which of them it needs.
//!
//! In: notes of `tympan_blobs::collect`. Out: the same notes beside the blobs of the other instance, whose collection pays
//! heed to them. Both sides are here: [`RemoteNotes`] asks, the functions answer.
//!
//! Not here: what the notes say (`docs/formats/blob-notes.md`), and HTTP itself (`server`).

use std::fmt;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tympan_blobs::collect::GuestNotes;
use tympan_blobs::{BlobContent, BlobId, Listed, ReadBlobs, WriteBlobs};

use crate::remote::RemoteStore;
use crate::serve::micros;
use crate::{Error, Result};

/// No note is longer: a part of marks has 65,536 ids.
pub const MAX_NOTE: u64 = 4 << 20;

/// Reads a note.
///
/// # Errors
/// [`Error::Note`] for a name that is not for guests; errors of the places.
pub fn store_note(notes: &GuestNotes, name: &str) -> Result<Bytes> {
    let note = notes.read(name).map_err(of_note)?;
    note.map(Bytes::from).ok_or_else(|| Error::Absent(format!("the note `{name}`")))
}

/// Lists the parts of a guest's marks, with the times at which they were written in microseconds since 1970.
///
/// # Errors
/// As [`store_note`].
pub fn store_notes(notes: &GuestNotes, prefix: &str) -> Result<Vec<(String, i64)>> {
    let listed = notes.list(prefix).map_err(of_note)?;
    Ok(listed.into_iter().map(|(name, at)| (name, micros(at))).collect())
}

/// Writes a note.
///
/// # Errors
/// As [`store_note`]; [`Error::Note`] for a note of somebody else, too, and for one that makes no sense.
pub fn store_write_note(notes: &GuestNotes, name: &str, bytes: &[u8]) -> Result<()> {
    notes.write(name, bytes).map_err(of_note)
}

/// Removes a part of marks, if it is there.
///
/// # Errors
/// As [`store_write_note`].
pub fn store_remove_note(notes: &GuestNotes, name: &str) -> Result<()> {
    match notes.remove(name).map_err(of_note)? {
        true => Ok(()),
        false => Err(Error::Absent(format!("the note `{name}`"))),
    }
}

/// Tells a guest's mistake from a place that fails.
fn of_note(error: tympan_blobs::Error) -> Error {
    match error {
        tympan_blobs::Error::NoteName { .. } | tympan_blobs::Error::NoteRefused { .. } => {
            Error::Note(error)
        }
        error => error.into(),
    }
}

/// The notes beside the blobs of a running instance. Its blobs can be read, and nothing but notes can be written.
pub struct RemoteNotes(Arc<RemoteStore>);

impl RemoteNotes {
    /// Leaves notes at an instance whose store is read.
    #[must_use]
    pub fn new(store: Arc<RemoteStore>) -> Self {
        Self(store)
    }

    fn only_read<T>(&self) -> tympan_blobs::Result<T> {
        Err(tympan_blobs::Error::NothingWritable { roles: format!("{self:?}") })
    }
}

impl fmt::Debug for RemoteNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ReadBlobs for RemoteNotes {
    fn open(&self, id: &BlobId) -> tympan_blobs::Result<Option<BlobContent>> {
        self.0.open(id)
    }

    fn contains(&self, id: &BlobId) -> tympan_blobs::Result<bool> {
        self.0.contains(id)
    }

    fn open_note(&self, name: &str) -> tympan_blobs::Result<Option<BlobContent>> {
        Ok(self.0.read_note(name, MAX_NOTE)?.map(BlobContent::Bytes))
    }

    fn list_notes(&self, prefix: &str) -> tympan_blobs::Result<Vec<(String, SystemTime)>> {
        Ok(self.0.list_notes(prefix)?)
    }

    fn is_remote(&self) -> bool {
        true
    }
}

impl WriteBlobs for RemoteNotes {
    fn put(&self, _: &mut dyn Read) -> tympan_blobs::Result<BlobId> {
        self.only_read()
    }

    fn put_named(&self, _: &BlobId, _: &mut dyn Read) -> tympan_blobs::Result<()> {
        self.only_read()
    }

    fn touch(&self, _: &BlobId) -> tympan_blobs::Result<bool> {
        self.only_read()
    }

    fn delete(&self, _: &BlobId) -> tympan_blobs::Result<bool> {
        self.only_read()
    }

    fn discard(&self, _: &BlobId, _: SystemTime) -> tympan_blobs::Result<bool> {
        self.only_read()
    }

    fn undelete(&self, _: &BlobId) -> tympan_blobs::Result<bool> {
        self.only_read()
    }

    fn list_trash(&self, _: &mut dyn FnMut(Listed) -> ControlFlow<()>) -> tympan_blobs::Result<()> {
        self.only_read()
    }

    fn purge(&self, _: &BlobId) -> tympan_blobs::Result<bool> {
        self.only_read()
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> tympan_blobs::Result<()> {
        Ok(self.0.write_note(name, Bytes::copy_from_slice(bytes))?)
    }

    fn create_note(&self, _: &str, _: &[u8]) -> tympan_blobs::Result<bool> {
        // A guest takes no turns.
        self.only_read()
    }

    fn delete_note(&self, name: &str) -> tympan_blobs::Result<bool> {
        Ok(self.0.delete_note(name)?)
    }
}
