//! What a repository needs, as it last said: sorted ids in parts, and a note that names them.

use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tympan_store::BlobId;

use super::member::{Member, malformed, read_note, write_json};
use super::sorter::{Sorter, micros_of, time_of};
use crate::{Error, ReadBlobs, Result, WriteBlobs};

pub(super) const MARKS: &str = "marks-";
/// Ids in a part: 2.5 MiB.
const PART_IDS: usize = 64 * 1024;
const ID_BYTES: usize = 40;
/// No part is longer.
pub(super) const MAX_PART_BYTES: u64 = (PART_IDS * ID_BYTES) as u64;
/// How often marks are read anew that were replaced while they were read.
const MAX_LOOKS: usize = 8;

/// The last marks of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// When it began to look: what it refers to since then may be missing.
    pub begun: SystemTime,
    /// How many blobs it needs.
    pub count: u64,
    /// Tells these marks from all others of the repository.
    pub turn: String,
}

/// The note that makes marks count.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    begun: u64,
    count: u64,
    turn: String,
    parts: u32,
    /// The SHA-256 of all ids.
    digest: String,
}

/// Takes the ids that a repository needs, in any order, some of them twice.
#[derive(Debug)]
pub struct MarkWriter {
    begun: SystemTime,
    sorter: Sorter,
}

impl MarkWriter {
    /// Begins marks. `begun` is the time before anything was looked at; `scratch` a folder for temporary files.
    #[must_use]
    pub fn begin(begun: SystemTime, scratch: &Path) -> Self {
        Self { begun, sorter: Sorter::new(scratch) }
    }

    /// Adds a blob that is needed.
    ///
    /// # Errors
    /// If the temporary files cannot be written.
    pub fn add(&mut self, id: &BlobId) -> Result<()> {
        self.sorter.add_id(id)
    }

    /// Lets the marks count in place of the former ones of the repository. `turn` is letters and digits that were never
    /// used before. Returns how many blobs are needed.
    ///
    /// # Errors
    /// If the place fails: the former marks count then.
    pub fn publish(self, place: &dyn WriteBlobs, member: &Member, turn: &str) -> Result<u64> {
        let begun = micros_of(self.begun);
        let mut parts = Parts::new(place, &member.id, turn);
        let mut last = None;
        for one in self.sorter.finish()? {
            let id = one?.id;
            if last != Some(id) {
                parts.add(&id)?;
                last = Some(id);
            }
        }
        let head = parts.end(begun)?;
        let count = head.count;
        write_json(place, &format!("{MARKS}{}", member.id), &head)?;
        remove_parts(place, &member.id, Some(turn))?;
        Ok(count)
    }
}

/// Parts on their way out.
struct Parts<'a> {
    place: &'a dyn WriteBlobs,
    stem: String,
    turn: &'a str,
    part: Vec<u8>,
    parts: u32,
    count: u64,
    hash: Sha256,
}

impl<'a> Parts<'a> {
    fn new(place: &'a dyn WriteBlobs, id: &str, turn: &'a str) -> Self {
        let stem = format!("{MARKS}{id}.{turn}");
        Self { place, stem, turn, part: Vec::new(), parts: 0, count: 0, hash: Sha256::new() }
    }

    fn add(&mut self, id: &BlobId) -> Result<()> {
        self.part.extend_from_slice(id.digest());
        self.part.extend_from_slice(&id.length().to_be_bytes());
        self.count += 1;
        if self.part.len() == PART_IDS * ID_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        self.hash.update(&self.part);
        self.place.write_note(&format!("{}.{}", self.stem, self.parts), &self.part)?;
        self.parts += 1;
        self.part.clear();
        Ok(())
    }

    fn end(mut self, begun: u64) -> Result<Head> {
        if !self.part.is_empty() {
            self.write()?;
        }
        let digest = hex(&self.hash.finalize());
        let turn = self.turn.to_owned();
        Ok(Head { begun, count: self.count, turn, parts: self.parts, digest })
    }
}

/// Returns what a repository marked last; nothing if it never did.
pub(super) fn last(place: &dyn ReadBlobs, id: &str) -> Result<Option<Marked>> {
    Ok(read_head(place, id)?.map(|head| Marked {
        begun: time_of(head.begun),
        count: head.count,
        turn: head.turn,
    }))
}

fn read_head(place: &dyn ReadBlobs, id: &str) -> Result<Option<Head>> {
    read_note(place, &format!("{MARKS}{id}"))
}

/// Adds the last marks of a repository to a sorter and returns when they were begun; nothing if it has none.
///
/// Marks that come meanwhile may add ids, too, which does no harm: the time is that of the older ones.
///
/// # Errors
/// [`Error::NoteMalformed`] for marks that are not what they should be; if the place fails.
pub(super) fn read_into(
    place: &dyn ReadBlobs,
    id: &str,
    sorter: &mut Sorter,
) -> Result<Option<SystemTime>> {
    for _ in 0..MAX_LOOKS {
        let Some(head) = read_head(place, id)? else {
            return Ok(None);
        };
        if read_parts(place, id, &head, sorter)? {
            return Ok(Some(time_of(head.begun)));
        }
        // A part that is not there was replaced, or never was.
        if read_head(place, id)?.is_some_and(|now| now.turn == head.turn) {
            break;
        }
    }
    Err(malformed(&format!("{MARKS}{id}")))
}

/// Adds all ids; `false` if a part is not there.
fn read_parts(place: &dyn ReadBlobs, id: &str, head: &Head, sorter: &mut Sorter) -> Result<bool> {
    let mut hash = Sha256::new();
    let mut count = 0;
    let mut part = Vec::new();
    for number in 0..head.parts {
        let name = format!("{MARKS}{id}.{}.{number}", head.turn);
        let Some(content) = place.open_note(&name)? else {
            return Ok(false);
        };
        part.clear();
        let max = (PART_IDS * ID_BYTES) as u64 + 1;
        content.into_reader().take(max).read_to_end(&mut part).map_err(Error::Source)?;
        hash.update(&part);
        let (ids, rest) = part.as_chunks::<ID_BYTES>();
        if !rest.is_empty() {
            return Err(malformed(&name));
        }
        for id in ids {
            let (digest, length) = id.split_first_chunk::<32>().unwrap_or((&[0; 32], &[]));
            let length = length.first_chunk::<8>().copied().unwrap_or_default();
            sorter.add_id(&BlobId::new(*digest, u64::from_be_bytes(length)))?;
            count += 1;
        }
    }
    if count != head.count || hex(&hash.finalize()) != head.digest {
        return Err(malformed(&format!("{MARKS}{id}")));
    }
    Ok(true)
}

/// Tells whether these bytes are a note that lets marks count.
pub(super) fn is_head(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Head>(bytes).is_ok()
}

/// Tells whether these bytes are a part of marks.
pub(super) fn is_part(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(ID_BYTES) && bytes.len() as u64 <= MAX_PART_BYTES
}

/// Removes all marks of a repository.
pub(super) fn remove(place: &dyn WriteBlobs, id: &str) -> Result<()> {
    place.delete_note(&format!("{MARKS}{id}"))?;
    remove_parts(place, id, None)
}

/// Removes the parts that belong to another turn.
fn remove_parts(place: &dyn WriteBlobs, id: &str, but: Option<&str>) -> Result<()> {
    let kept = but.map(|turn| format!("{MARKS}{id}.{turn}."));
    for (name, _) in place.list_notes(&format!("{MARKS}{id}."))? {
        if kept.as_ref().is_none_or(|kept| !name.starts_with(kept)) {
            place.delete_note(&name)?;
        }
    }
    Ok(())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
