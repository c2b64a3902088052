//! The repositories that share a storage: one note for each.

use std::io::Read;
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::guest;
use super::id_sorter::{from_unix_micros, to_unix_micros};
use super::mark::{self, MarkSummary};
use crate::{Error, ReadBlobs, Result, WriteBlobs};

pub(super) const REPOSITORY_NOTE_PREFIX: &str = "repository-";
/// Maximum length of a note that is read as a whole.
const MAX_NOTE_BYTES: u64 = 64 * 1024;

/// A repository that stores blobs in a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageMember {
    /// The unique machine-readable name: letters and digits.
    pub id: String,
    /// The name shown to users, such as its home and host.
    pub name: String,
}

/// A repository as registered in a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredMember {
    /// The repository.
    pub member: StorageMember,
    /// The time of registration.
    pub registered_at: SystemTime,
    /// The last marks; `None` if it never marked.
    pub last_marks: Option<MarkSummary>,
}

/// The registration note of a repository.
#[derive(Debug, Serialize, Deserialize)]
struct MemberNote {
    id: String,
    name: String,
    since: u64,
}

/// Registers a repository, unless it is registered. It must be registered before it stores its first blob.
///
/// # Errors
/// If the storage fails.
pub fn register_member(
    storage: &dyn WriteBlobs,
    member: &StorageMember,
    now: SystemTime,
) -> Result<()> {
    let note = format!("{REPOSITORY_NOTE_PREFIX}{}", member.id);
    let stored_note: Option<MemberNote> = read_note(storage, &note)?;
    if stored_note.as_ref().is_some_and(|stored_note| stored_note.name == member.name) {
        return Ok(());
    }
    let since = stored_note.map_or_else(|| to_unix_micros(now), |stored_note| stored_note.since);
    let text = MemberNote { id: member.id.clone(), name: member.name.clone(), since };
    write_json_note(storage, &note, &text)
}

/// Returns all repositories that share a storage, sorted by id.
///
/// # Errors
/// If the storage fails, or contains a note that cannot be parsed: then it is unknown which blobs are needed.
pub fn list_members(storage: &dyn ReadBlobs) -> Result<Vec<RegisteredMember>> {
    let mut members = Vec::new();
    for (note, _) in storage.list_notes(REPOSITORY_NOTE_PREFIX)? {
        // A concurrently removed repository no longer shares the storage.
        let Some(MemberNote { id, name, since }) = read_note(storage, &note)? else { continue };
        if format!("{REPOSITORY_NOTE_PREFIX}{id}") != note {
            return Err(malformed_note_error(&note));
        }
        let marked = mark::read_last_marks(storage, &id)?;
        members.push(RegisteredMember {
            member: StorageMember { id, name },
            registered_at: from_unix_micros(since),
            last_marks: marked,
        });
    }
    Ok(members)
}

/// Unregisters a repository: blobs that only it needs are garbage from now on. `false` if it is not registered.
///
/// # Errors
/// If the storage fails.
pub fn unregister_member(storage: &dyn WriteBlobs, id: &str) -> Result<bool> {
    let is_known = storage.delete_note(&format!("{REPOSITORY_NOTE_PREFIX}{id}"))?;
    mark::remove_marks(storage, id)?;
    guest::unregister_guest(storage, id)?;
    Ok(is_known)
}

/// Returns true if these bytes are the registration note of the repository with this id.
pub(super) fn is_member_note(id: &str, bytes: &[u8]) -> bool {
    bytes.len() as u64 <= MAX_NOTE_BYTES
        && serde_json::from_slice::<MemberNote>(bytes).is_ok_and(|note| note.id == id)
}

/// Reads a small note.
pub(super) fn read_note<T: DeserializeOwned>(
    storage: &dyn ReadBlobs,
    name: &str,
) -> Result<Option<T>> {
    let Some(content) = storage.open_note(name)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let read = content.into_reader().take(MAX_NOTE_BYTES).read_to_end(&mut bytes);
    read.map_err(Error::Source)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|_| malformed_note_error(name))
}

pub(super) fn write_json_note(
    storage: &dyn WriteBlobs,
    name: &str,
    note: &impl Serialize,
) -> Result<()> {
    let text = serde_json::to_vec(note).map_err(Error::NoteEncoding)?;
    storage.write_note(name, &text)
}

pub(super) fn malformed_note_error(name: &str) -> Error {
    Error::MalformedNote { name: name.to_owned() }
}
