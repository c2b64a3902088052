//! Small notes of a storage, in JSON.

use std::io::Read;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, ReadBlobs, Result, WriteBlobs};

/// Maximum length of a note that is read as a whole.
pub(super) const MAX_NOTE_BYTES: u64 = 64 * 1024;

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
