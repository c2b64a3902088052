//! The blobs that a repository needs, as it last declared: sorted ids in parts, and a note that names the parts.

use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tympan_store::BlobId;

use super::id_sorter::{BlobIdSorter, from_unix_micros, to_unix_micros};
use super::json_note::{malformed_note_error, read_note, write_json_note};
use super::member::StorageMember;
use crate::{Error, ReadBlobs, Result, WriteBlobs};

pub(super) const MARKS_NOTE_PREFIX: &str = "marks-";
/// Number of ids in a part: 2.5 MiB.
const MARK_PART_IDS: usize = 64 * 1024;
const MARK_ID_BYTES: usize = 40;
/// Maximum length of a part in bytes.
pub(super) const MAX_MARK_PART_BYTES: u64 = (MARK_PART_IDS * MARK_ID_BYTES) as u64;
/// Maximum number of attempts to read marks that are replaced concurrently.
const MAX_MARK_READ_ATTEMPTS: usize = 8;

/// The last marks of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkSummary {
    /// The time at which marking began: references made since then may be missing.
    pub started_at: SystemTime,
    /// The number of needed blobs.
    pub blob_count: u64,
    /// Identifies these marks among all of the repository.
    pub round: String,
}

/// The note that makes marks valid.
#[derive(Debug, Serialize, Deserialize)]
struct MarkHead {
    begun: u64,
    count: u64,
    turn: String,
    parts: u32,
    /// The SHA-256 of all ids.
    digest: String,
}

/// Collects the ids that a repository needs, in any order and with duplicates.
#[derive(Debug)]
pub struct MarkWriter {
    started_at: SystemTime,
    sorter: BlobIdSorter,
}

impl MarkWriter {
    /// Begins marks. `started_at` is the time before anything was read; `scratch` a folder for temporary files.
    #[must_use]
    pub fn begin(started_at: SystemTime, scratch: &Path) -> Self {
        Self { started_at, sorter: BlobIdSorter::new(scratch) }
    }

    /// Adds a needed blob.
    ///
    /// # Errors
    /// If the temporary files cannot be written.
    pub fn add(&mut self, id: &BlobId) -> Result<()> {
        self.sorter.add_id(id)
    }

    /// Publishes the marks in place of the repository's previous ones. `turn` is letters and digits that were never
    /// used before. Returns the number of needed blobs.
    ///
    /// # Errors
    /// If the storage fails: the previous marks stay valid then.
    pub fn publish(
        self,
        storage: &dyn WriteBlobs,
        member: &StorageMember,
        turn: &str,
    ) -> Result<u64> {
        let started_micros = to_unix_micros(self.started_at);
        let mut parts = MarkPartWriter::new(storage, &member.id, turn);
        let mut last = None;
        for blob in self.sorter.finish()? {
            let id = blob?.id;
            if last != Some(id) {
                parts.add(&id)?;
                last = Some(id);
            }
        }
        let head = parts.finish(started_micros)?;
        let count = head.count;
        write_json_note(storage, &format!("{MARKS_NOTE_PREFIX}{}", member.id), &head)?;
        remove_mark_parts(storage, &member.id, Some(turn))?;
        Ok(count)
    }
}

/// Writes parts of marks.
struct MarkPartWriter<'a> {
    storage: &'a dyn WriteBlobs,
    name_prefix: String,
    round: &'a str,
    part_bytes: Vec<u8>,
    part_count: u32,
    blob_count: u64,
    hasher: Sha256,
}

impl<'a> MarkPartWriter<'a> {
    fn new(storage: &'a dyn WriteBlobs, id: &str, turn: &'a str) -> Self {
        let stem = format!("{MARKS_NOTE_PREFIX}{id}.{turn}");
        Self {
            storage,
            name_prefix: stem,
            round: turn,
            part_bytes: Vec::new(),
            part_count: 0,
            blob_count: 0,
            hasher: Sha256::new(),
        }
    }

    fn add(&mut self, id: &BlobId) -> Result<()> {
        self.part_bytes.extend_from_slice(id.digest());
        self.part_bytes.extend_from_slice(&id.length().to_be_bytes());
        self.blob_count += 1;
        if self.part_bytes.len() == MARK_PART_IDS * MARK_ID_BYTES {
            self.write_part()
        } else {
            Ok(())
        }
    }

    fn write_part(&mut self) -> Result<()> {
        self.hasher.update(&self.part_bytes);
        self.storage
            .write_note(&format!("{}.{}", self.name_prefix, self.part_count), &self.part_bytes)?;
        self.part_count += 1;
        self.part_bytes.clear();
        Ok(())
    }

    fn finish(mut self, started_at: u64) -> Result<MarkHead> {
        if !self.part_bytes.is_empty() {
            self.write_part()?;
        }
        let digest = hex::encode(self.hasher.finalize());
        let turn = self.round.to_owned();
        Ok(MarkHead {
            begun: started_at,
            count: self.blob_count,
            turn,
            parts: self.part_count,
            digest,
        })
    }
}

/// Returns the last marks of a repository; `None` if it never marked.
pub(super) fn read_last_marks(storage: &dyn ReadBlobs, id: &str) -> Result<Option<MarkSummary>> {
    Ok(read_mark_head(storage, id)?.map(|head| MarkSummary {
        started_at: from_unix_micros(head.begun),
        blob_count: head.count,
        round: head.turn,
    }))
}

fn read_mark_head(storage: &dyn ReadBlobs, id: &str) -> Result<Option<MarkHead>> {
    read_note(storage, &format!("{MARKS_NOTE_PREFIX}{id}"))
}

/// Adds the last marks of a repository to a sorter and returns when they were begun; `None` if it has none.
///
/// Marks that are published concurrently may add ids, too, which does no harm: the time is that of the older ones.
///
/// # Errors
/// [`Error::MalformedNote`] for invalid marks; if the storage fails.
pub(super) fn read_marks_into(
    storage: &dyn ReadBlobs,
    id: &str,
    sorter: &mut BlobIdSorter,
) -> Result<Option<SystemTime>> {
    for _ in 0..MAX_MARK_READ_ATTEMPTS {
        let Some(head) = read_mark_head(storage, id)? else {
            return Ok(None);
        };
        if read_mark_parts(storage, id, &head, sorter)? {
            return Ok(Some(from_unix_micros(head.begun)));
        }
        // A missing part was replaced, or never existed.
        if read_mark_head(storage, id)?.is_some_and(|now| now.turn == head.turn) {
            break;
        }
    }
    Err(malformed_note_error(&format!("{MARKS_NOTE_PREFIX}{id}")))
}

/// Adds all ids; `false` if a part is missing.
fn read_mark_parts(
    storage: &dyn ReadBlobs,
    id: &str,
    head: &MarkHead,
    sorter: &mut BlobIdSorter,
) -> Result<bool> {
    let mut hash = Sha256::new();
    let mut count = 0;
    let mut part = Vec::new();
    for number in 0..head.parts {
        let name = format!("{MARKS_NOTE_PREFIX}{id}.{}.{number}", head.turn);
        let Some(content) = storage.open_note(&name)? else {
            return Ok(false);
        };
        part.clear();
        let max = (MARK_PART_IDS * MARK_ID_BYTES) as u64 + 1;
        content.into_reader().take(max).read_to_end(&mut part).map_err(Error::Source)?;
        hash.update(&part);
        let (ids, rest) = part.as_chunks::<MARK_ID_BYTES>();
        if !rest.is_empty() {
            return Err(malformed_note_error(&name));
        }
        for id in ids {
            let (digest, length) = id.split_first_chunk::<32>().unwrap_or((&[0; 32], &[]));
            let length = length.first_chunk::<8>().copied().unwrap_or_default();
            sorter.add_id(&BlobId::new(*digest, u64::from_be_bytes(length)))?;
            count += 1;
        }
    }
    if count != head.count || hex::encode(hash.finalize()) != head.digest {
        return Err(malformed_note_error(&format!("{MARKS_NOTE_PREFIX}{id}")));
    }
    Ok(true)
}

/// Returns true if these bytes are a note that makes marks valid.
pub(super) fn is_mark_head(bytes: &[u8]) -> bool {
    serde_json::from_slice::<MarkHead>(bytes).is_ok()
}

/// Returns true if these bytes are a part of marks.
pub(super) fn is_mark_part(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(MARK_ID_BYTES) && bytes.len() as u64 <= MAX_MARK_PART_BYTES
}

/// Removes all marks of a repository.
pub(super) fn remove_marks(storage: &dyn WriteBlobs, id: &str) -> Result<()> {
    storage.delete_note(&format!("{MARKS_NOTE_PREFIX}{id}"))?;
    remove_mark_parts(storage, id, None)
}

/// Removes the parts of all rounds except `but`.
fn remove_mark_parts(storage: &dyn WriteBlobs, id: &str, but: Option<&str>) -> Result<()> {
    let retained_prefix = but.map(|turn| format!("{MARKS_NOTE_PREFIX}{id}.{turn}."));
    for (name, _) in storage.list_notes(&format!("{MARKS_NOTE_PREFIX}{id}."))? {
        if retained_prefix.as_ref().is_none_or(|prefix| !name.starts_with(prefix)) {
            storage.delete_note(&name)?;
        }
    }
    Ok(())
}
