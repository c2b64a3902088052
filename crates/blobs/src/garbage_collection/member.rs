//! The registration of a repository that stores blobs in a storage: a note.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::id_sorter::to_unix_micros;
use super::json_note::{MAX_NOTE_BYTES, read_note, write_json_note};
use crate::{Result, WriteBlobs};

pub(super) const REPOSITORY_NOTE_PREFIX: &str = "repository-";
/// A repository that stores blobs in a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageMember {
    /// The unique machine-readable name: letters and digits.
    pub id: String,
    /// The name shown to users, such as its home and host.
    pub name: String,
}

/// The registration note of a repository.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MemberNote {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) since: u64,
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

/// Returns true if these bytes are the registration note of the repository with this id.
pub(super) fn is_member_note(id: &str, bytes: &[u8]) -> bool {
    bytes.len() as u64 <= MAX_NOTE_BYTES
        && serde_json::from_slice::<MemberNote>(bytes).is_ok_and(|note| note.id == id)
}
