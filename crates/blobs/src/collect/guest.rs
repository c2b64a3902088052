//! Notes of guests that come from elsewhere: repositories on other machines that only read these blobs say which they need.
//!
//! In: the notes of such a repository. Out: the same notes in every place that is written to here, where each sweep finds
//! them, whoever sweeps.
//!
//! Invariants
//! * Who comes this way writes and removes notes of guests alone. Those of who stores blobs here, and turns of sweeps, are
//!   out of reach.
//! * A note that no sweep could understand is refused.
//!
//! On failure: some of several places may have the note. It is written anew with the next marks.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::SystemTime;

use super::marks::{self, MARKS, MAX_PART_BYTES};
use super::member::{self, REPOSITORY};
use crate::place::check_note_name;
use crate::{Error, ReadBlobs, Result, WriteBlobs};

/// Says that a repository comes from elsewhere.
const GUEST: &str = "guest-";

/// The places in which guests leave their notes: all that this home writes to.
#[derive(Clone)]
pub struct GuestNotes {
    places: Vec<Arc<dyn WriteBlobs>>,
}

/// What a note says, and of whom.
enum Note<'a> {
    /// That a repository needs blobs.
    Repository(&'a str),
    /// Which part counts.
    Marks(&'a str),
    /// Some of the blobs.
    Part(&'a str),
}

impl<'a> Note<'a> {
    /// Reads a name; no other notes are for guests.
    fn of(name: &'a str) -> Result<Self> {
        check_note_name(name)?;
        let is_id =
            |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let found = match (name.strip_prefix(REPOSITORY), name.strip_prefix(MARKS)) {
            (Some(id), _) => Some((id, Self::Repository(id))),
            (None, Some(rest)) => match rest.split_once('.') {
                None => Some((rest, Self::Marks(rest))),
                Some((id, part)) => {
                    let is_part = part
                        .split_once('.')
                        .is_some_and(|(turn, number)| is_id(turn) && number.parse::<u32>().is_ok());
                    is_part.then_some((id, Self::Part(id)))
                }
            },
            (None, None) => None,
        };
        let found = found.filter(|(id, _)| is_id(id)).map(|(_, note)| note);
        found.ok_or_else(|| refused(name, "no note of this name is for guests"))
    }
}

impl GuestNotes {
    /// Takes notes for these places.
    #[must_use]
    pub fn new(places: Vec<Arc<dyn WriteBlobs>>) -> Self {
        Self { places }
    }

    /// Reads a note; nothing if there is none of this name.
    ///
    /// # Errors
    /// [`Error::NoteName`], [`Error::NoteRefused`] for a name that is not for guests; if a place fails.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Note::of(name)?;
        let Some(content) = self.first()?.open_note(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = content.into_reader().take(MAX_PART_BYTES).read_to_end(&mut bytes);
        read.map_err(Error::Source)?;
        Ok(Some(bytes))
    }

    /// Returns the names of the parts of a guest's marks, and when each was written. `prefix` is that of a part, such as
    /// `marks-<id>.`.
    ///
    /// # Errors
    /// As [`GuestNotes::read`].
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        // As if the name went on: what lists less than one repository's marks is for nobody.
        Note::of(&format!("{}.0.0", prefix.split('.').next().unwrap_or_default()))?;
        if !prefix.contains('.') {
            return Err(refused(prefix, "only the parts of a guest's marks are listed"));
        }
        self.first()?.list_notes(prefix)
    }

    /// Writes a note. A repository that is not known yet becomes a guest by its first one, `repository-<id>`.
    ///
    /// # Errors
    /// [`Error::NoteRefused`] for the note of somebody who is no guest, and for what is none; otherwise as
    /// [`GuestNotes::read`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let is_sound = match Note::of(name)? {
            Note::Repository(id) => {
                let is_sound = member::is_note_of(id, bytes);
                if is_sound {
                    self.admit(id, name)?;
                }
                is_sound
            }
            Note::Marks(id) => {
                self.require(id, name)?;
                marks::is_head(bytes)
            }
            Note::Part(id) => {
                self.require(id, name)?;
                marks::is_part(bytes)
            }
        };
        if !is_sound {
            return Err(refused(name, "its content makes no sense"));
        }
        // The first one is read: what it has, all have.
        self.places.iter().rev().try_for_each(|place| place.write_note(name, bytes))
    }

    /// Removes a part of marks that count no more; `false` if it is not there.
    ///
    /// # Errors
    /// As [`GuestNotes::write`].
    pub fn remove(&self, name: &str) -> Result<bool> {
        let Note::Part(id) = Note::of(name)? else {
            return Err(refused(name, "a guest is taken out with `tympan blobs forget`"));
        };
        self.require(id, name)?;
        let mut was_there = false;
        for place in self.places.iter().rev() {
            was_there |= place.delete_note(name)?;
        }
        Ok(was_there)
    }

    /// Notes that a repository is a guest, unless it stores blobs here itself.
    fn admit(&self, id: &str, name: &str) -> Result<()> {
        let (guest, repository) = (format!("{GUEST}{id}"), format!("{REPOSITORY}{id}"));
        self.first()?;
        for place in self.places.iter().rev() {
            if place.open_note(&guest)?.is_some() {
                continue;
            }
            if place.open_note(&repository)?.is_some() {
                let reason = "a repository of this name stores blobs here itself";
                return Err(refused(name, reason));
            }
            place.write_note(&guest, b"{}")?;
        }
        Ok(())
    }

    fn require(&self, id: &str, name: &str) -> Result<()> {
        match self.first()?.open_note(&format!("{GUEST}{id}"))? {
            Some(_) => Ok(()),
            None => Err(refused(name, "its repository is no guest")),
        }
    }

    fn first(&self) -> Result<&dyn WriteBlobs> {
        let first = self.places.first().map(|place| &**place);
        first.ok_or_else(|| Error::NothingWritable { roles: "its places".to_owned() })
    }
}

impl fmt::Debug for GuestNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestNotes({:?})", self.places)
    }
}

/// Forgets that a repository is a guest.
pub(super) fn forget(place: &dyn WriteBlobs, id: &str) -> Result<()> {
    place.delete_note(&format!("{GUEST}{id}")).map(drop)
}

/// Tells whether a repository is a guest of a place that came from elsewhere.
///
/// # Errors
/// If the place fails.
pub fn is_guest(place: &dyn ReadBlobs, id: &str) -> Result<bool> {
    Ok(place.open_note(&format!("{GUEST}{id}"))?.is_some())
}

fn refused(name: &str, reason: &'static str) -> Error {
    Error::NoteRefused { name: name.to_owned(), reason }
}
