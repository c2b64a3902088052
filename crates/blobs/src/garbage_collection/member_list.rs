//! The repositories that share a storage.

use std::time::SystemTime;

use super::guest;
use super::id_sorter::from_unix_micros;
use super::json_note::{malformed_note_error, read_note};
use super::mark::{self, MarkSummary};
use super::member::{MemberNote, REPOSITORY_NOTE_PREFIX, StorageMember};
use crate::{ReadBlobs, Result, WriteBlobs};

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
