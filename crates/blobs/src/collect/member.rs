//! Who shares a place: a note for each repository.

use std::io::Read;
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::guest;
use super::marks::{self, Marked};
use super::sorter::{micros_of, time_of};
use crate::{Error, ReadBlobs, Result, WriteBlobs};

pub(super) const REPOSITORY: &str = "repository-";
/// No note that is read whole is longer.
const MAX_NOTE: u64 = 64 * 1024;

/// A repository that stores blobs in a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name for programs: letters and digits, different from that of any other.
    pub id: String,
    /// Its name for people, such as its home and host.
    pub name: String,
}

/// A repository as the place knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The repository.
    pub member: Member,
    /// When it was registered.
    pub since: SystemTime,
    /// What it marked last; nothing if it never did.
    pub marked: Option<Marked>,
}

/// The note of a repository.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    id: String,
    name: String,
    since: u64,
}

/// Registers a repository, unless it is. It must be registered before it stores its first blob.
///
/// # Errors
/// If the place fails.
pub fn register(place: &dyn WriteBlobs, member: &Member, now: SystemTime) -> Result<()> {
    let note = format!("{REPOSITORY}{}", member.id);
    let known: Option<Note> = read_note(place, &note)?;
    if known.as_ref().is_some_and(|known| known.name == member.name) {
        return Ok(());
    }
    let since = known.map_or_else(|| micros_of(now), |known| known.since);
    let text = Note { id: member.id.clone(), name: member.name.clone(), since };
    write_json(place, &note, &text)
}

/// Returns all repositories that share a place, sorted by id.
///
/// # Errors
/// If the place fails, or holds a note that cannot be understood: nobody knows then what is needed.
pub fn registered(place: &dyn ReadBlobs) -> Result<Vec<Registered>> {
    let mut members = Vec::new();
    for (note, _) in place.list_notes(REPOSITORY)? {
        // One that was removed a moment ago shares the place no more.
        let Some(Note { id, name, since }) = read_note(place, &note)? else { continue };
        if format!("{REPOSITORY}{id}") != note {
            return Err(malformed(&note));
        }
        let marked = marks::last(place, &id)?;
        members.push(Registered { member: Member { id, name }, since: time_of(since), marked });
    }
    Ok(members)
}

/// Takes a repository out: what only it needs is garbage from now on. `false` if it is not registered.
///
/// # Errors
/// If the place fails.
pub fn forget(place: &dyn WriteBlobs, id: &str) -> Result<bool> {
    let is_known = place.delete_note(&format!("{REPOSITORY}{id}"))?;
    marks::remove(place, id)?;
    guest::forget(place, id)?;
    Ok(is_known)
}

/// Tells whether these bytes are the note of the repository with this id.
pub(super) fn is_note_of(id: &str, bytes: &[u8]) -> bool {
    bytes.len() as u64 <= MAX_NOTE
        && serde_json::from_slice::<Note>(bytes).is_ok_and(|note| note.id == id)
}

/// Reads a small note.
pub(super) fn read_note<T: DeserializeOwned>(
    place: &dyn ReadBlobs,
    name: &str,
) -> Result<Option<T>> {
    let Some(content) = place.open_note(name)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let read = content.into_reader().take(MAX_NOTE).read_to_end(&mut bytes);
    read.map_err(Error::Source)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|_| malformed(name))
}

pub(super) fn write_json(place: &dyn WriteBlobs, name: &str, note: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(note).map_err(|error| Error::Source(error.into()))?;
    place.write_note(name, &text)
}

pub(super) fn malformed(name: &str) -> Error {
    Error::NoteMalformed { name: name.to_owned() }
}
