//! Notes of remote guests: repositories on other machines that only read these blobs record which ones they need.
//!
//! In: the notes of such a repository. Out: the same notes in every storage that is written to here, where each sweep
//! finds them, whoever sweeps.
//!
//! Invariants
//! * A remote guest can write and remove only notes of guests. Notes of repositories that store blobs here, and leases
//!   of sweeps, are out of reach.
//! * A note that no sweep could parse is refused.
//!
//! On failure: some of several storages may have the note. It is written again with the next marks.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::SystemTime;

use super::mark::{self, MARKS_NOTE_PREFIX, MAX_MARK_PART_BYTES};
use super::member::{self, REPOSITORY_NOTE_PREFIX};
use crate::storage::check_note_name;
use crate::{Error, ReadBlobs, Result, WriteBlobs};

/// Prefix of the note that declares a repository a remote guest.
const GUEST_NOTE_PREFIX: &str = "guest-";

/// The storages in which guests store their notes: all that this home writes to.
#[derive(Clone)]
pub struct GuestNotes {
    storages: Vec<Arc<dyn WriteBlobs>>,
}

/// The content and owner of a note, by its name.
enum GuestNoteName<'a> {
    /// The registration of a repository that needs blobs.
    Repository(&'a str),
    /// The note that names the valid parts of marks.
    Marks(&'a str),
    /// A part of the ids of needed blobs.
    Part(&'a str),
}

impl<'a> GuestNoteName<'a> {
    /// Parses a name; no other notes are for guests.
    fn parse(name: &'a str) -> Result<Self> {
        check_note_name(name)?;
        let is_id =
            |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let id_and_note =
            match (name.strip_prefix(REPOSITORY_NOTE_PREFIX), name.strip_prefix(MARKS_NOTE_PREFIX))
            {
                (Some(id), _) => Some((id, Self::Repository(id))),
                (None, Some(rest)) => match rest.split_once('.') {
                    None => Some((rest, Self::Marks(rest))),
                    Some((id, part)) => {
                        let is_part = part.split_once('.').is_some_and(|(turn, number)| {
                            is_id(turn) && number.parse::<u32>().is_ok()
                        });
                        is_part.then_some((id, Self::Part(id)))
                    }
                },
                (None, None) => None,
            };
        let id_and_note = id_and_note.filter(|(id, _)| is_id(id)).map(|(_, note)| note);
        id_and_note.ok_or_else(|| note_refused_error(name, "it is not the name of a guest note"))
    }
}

impl GuestNotes {
    /// Manages guest notes in these storages.
    #[must_use]
    pub fn new(storages: Vec<Arc<dyn WriteBlobs>>) -> Self {
        Self { storages }
    }

    /// Reads a note; `None` if there is none with this name.
    ///
    /// # Errors
    /// [`Error::InvalidNoteName`], [`Error::RefusedNote`] for a name that is not for guests; if a storage fails.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        GuestNoteName::parse(name)?;
        let Some(content) = self.first_storage()?.open_note(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = content.into_reader().take(MAX_MARK_PART_BYTES).read_to_end(&mut bytes);
        read.map_err(Error::Source)?;
        Ok(Some(bytes))
    }

    /// Returns the names of the parts of a guest's marks, and when each was written. `prefix` is that of a part, such
    /// as `marks-<id>.`.
    ///
    /// # Errors
    /// As [`GuestNotes::read`].
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        // Completed to a full name, so that a listing covers the marks of at most one repository.
        GuestNoteName::parse(&format!("{}.0.0", prefix.split('.').next().unwrap_or_default()))?;
        if !prefix.contains('.') {
            return Err(note_refused_error(
                prefix,
                "only the parts of a guest's marks can be listed",
            ));
        }
        self.first_storage()?.list_notes(prefix)
    }

    /// Writes a note. A repository that is not known yet becomes a guest by its first one, `repository-<id>`.
    ///
    /// # Errors
    /// [`Error::RefusedNote`] for the note of a repository that is not a guest, and for an invalid note; otherwise as
    /// [`GuestNotes::read`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let is_sound = match GuestNoteName::parse(name)? {
            GuestNoteName::Repository(id) => {
                let is_sound = member::is_member_note(id, bytes);
                if is_sound {
                    self.register_guest(id, name)?;
                }
                is_sound
            }
            GuestNoteName::Marks(id) => {
                self.require_guest(id, name)?;
                mark::is_mark_head(bytes)
            }
            GuestNoteName::Part(id) => {
                self.require_guest(id, name)?;
                mark::is_mark_part(bytes)
            }
        };
        if !is_sound {
            return Err(note_refused_error(name, "its content is malformed"));
        }
        // Reads use the first storage, which is written last: what it has, all have.
        self.storages.iter().rev().try_for_each(|storage| storage.write_note(name, bytes))
    }

    /// Removes a part of marks that are no longer valid; `false` if it does not exist.
    ///
    /// # Errors
    /// As [`GuestNotes::write`].
    pub fn remove(&self, name: &str) -> Result<bool> {
        let GuestNoteName::Part(id) = GuestNoteName::parse(name)? else {
            return Err(note_refused_error(name, "use `tympan blobs forget` to remove a guest"));
        };
        self.require_guest(id, name)?;
        let mut was_there = false;
        for storage in self.storages.iter().rev() {
            was_there |= storage.delete_note(name)?;
        }
        Ok(was_there)
    }

    /// Registers a repository as a guest, unless it stores blobs here itself.
    fn register_guest(&self, id: &str, name: &str) -> Result<()> {
        let (guest, repository) =
            (format!("{GUEST_NOTE_PREFIX}{id}"), format!("{REPOSITORY_NOTE_PREFIX}{id}"));
        self.first_storage()?;
        for storage in self.storages.iter().rev() {
            if storage.open_note(&guest)?.is_some() {
                continue;
            }
            if storage.open_note(&repository)?.is_some() {
                let reason = "a repository of this name stores blobs here itself";
                return Err(note_refused_error(name, reason));
            }
            storage.write_note(&guest, b"{}")?;
        }
        Ok(())
    }

    fn require_guest(&self, id: &str, name: &str) -> Result<()> {
        match self.first_storage()?.open_note(&format!("{GUEST_NOTE_PREFIX}{id}"))? {
            Some(_) => Ok(()),
            None => Err(note_refused_error(name, "its repository is not registered as a guest")),
        }
    }

    fn first_storage(&self) -> Result<&dyn WriteBlobs> {
        let first = self.storages.first().map(|storage| &**storage);
        first.ok_or_else(|| Error::NoWritableDelegate { roles: "its storages".to_owned() })
    }
}

impl fmt::Debug for GuestNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestNotes({:?})", self.storages)
    }
}

/// Removes the registration of a guest.
pub(super) fn unregister_guest(storage: &dyn WriteBlobs, id: &str) -> Result<()> {
    storage.delete_note(&format!("{GUEST_NOTE_PREFIX}{id}")).map(drop)
}

/// Returns true if a repository is a remote guest of a storage.
///
/// # Errors
/// If the storage fails.
pub fn is_guest(storage: &dyn ReadBlobs, id: &str) -> Result<bool> {
    Ok(storage.open_note(&format!("{GUEST_NOTE_PREFIX}{id}"))?.is_some())
}

fn note_refused_error(name: &str, reason: &'static str) -> Error {
    Error::RefusedNote { name: name.to_owned(), reason }
}
