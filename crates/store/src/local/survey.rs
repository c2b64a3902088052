//! Re-reading every record of every pack against its checksum and its hash.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::index::Index;
use super::index_file::Location;
use super::pack_name;
use super::record::{self, Kind};
use super::scan::{has_id, record_at};
use crate::chunk::Chunk;
use crate::error::{Error, Result};

/// What reading all packs has shown.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) packs: usize,
    pub(crate) chunks: u64,
    pub(crate) blobs: u64,
    pub(crate) commits: u64,
    pub(crate) bytes: u64,
    /// What is wrong, in words, with file and place.
    pub(crate) faults: Vec<String>,
    /// Places, as pack and offset, that the index names and that cannot be read.
    pub(crate) damaged: HashSet<(u32, u32)>,
}

/// Reads all packs; the open one up to its end when the survey began.
pub(super) fn survey(index: &Index, (open, end): (u32, u64)) -> Result<Survey> {
    let packs = index.packs();
    let mut survey = Survey { packs: packs.files.len(), ..Survey::default() };
    for (pack, file) in &packs.files {
        let bytes = file.map().map_err(|source| Error::Read { file: pack_name(*pack), source })?;
        let mut entries: Vec<Location> =
            index.open_entries(*pack).into_iter().map(|(_, location)| location).collect();
        if let Some(known) = packs.indexes.get(pack) {
            if !known.is_intact() {
                let name = super::index_file::file_name(*pack);
                survey.faults.push(format!(
                    "`{name}` fails its checksum; remove it, and the next start makes it again"
                ));
            }
            entries.extend(known.entries().chain(known.commits()));
        }
        let length = if *pack == open { end } else { bytes.len() as u64 };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let covered = bytes.get(..length.min(bytes.len())).unwrap_or_default();
        survey.read_pack(*pack, covered, &entries, index);
    }
    Ok(survey)
}

impl Survey {
    fn read_pack(&mut self, pack: u32, bytes: &[u8], entries: &[Location], index: &Index) {
        let mut expected: HashMap<u32, &Location> =
            entries.iter().map(|location| (location.place.offset, location)).collect();
        let name = pack_name(pack);
        self.bytes += bytes.len() as u64;
        let mut offset = 0;
        while offset < bytes.len() {
            let Some(found) = record_at(pack, bytes, offset) else {
                let next = (offset + 1..bytes.len())
                    .find(|next| record_at(pack, bytes, *next).is_some())
                    .unwrap_or(bytes.len());
                self.faults.push(format!("`{name}` is damaged from byte {offset} to {next}"));
                offset = next;
                continue;
            };
            offset = found.end();
            let (kind, id) = (found.header.kind, found.header.id);
            match kind {
                Kind::Chunk => self.chunks += 1,
                Kind::Blob => self.blobs += 1,
                Kind::Commit => self.commits += 1,
                Kind::Head | Kind::Seal => {}
            }
            let at = found.place.offset;
            if let Err(fault) = check_record(&found.header, found.record) {
                let word = kind.word();
                self.faults.push(format!("`{name}`: the {word} at byte {at} {fault}"));
                self.damaged.insert((pack, at));
                continue;
            }
            let is_listed = expected.remove(&at).is_some_and(|location| location.kind == kind);
            let is_indexed = match kind {
                Kind::Head | Kind::Seal => true,
                Kind::Commit => is_listed,
                Kind::Chunk | Kind::Blob => index.find(kind, &id).is_some(),
            };
            if !is_indexed {
                let word = kind.word();
                self.faults.push(format!("`{name}`: the index lacks the {word} at byte {at}"));
            }
        }
        for location in expected.into_values() {
            let (word, at) = (location.kind.word(), location.place.offset);
            self.faults.push(format!("`{name}`: the {word} at byte {at} cannot be read"));
            self.damaged.insert((pack, at));
        }
    }
}

/// Checks what the checksum does not: that the payload has the hash that names it, and that a chunk is one.
fn check_record(header: &record::Header, bytes: &[u8]) -> Result<(), &'static str> {
    let payload =
        record::decode(header, &Bytes::copy_from_slice(bytes)).ok_or("cannot be decoded")?;
    if !has_id(header.kind, &payload, &header.id) {
        return Err("does not have the hash that names it");
    }
    match header.kind {
        Kind::Chunk => Chunk::parse(payload).map(drop).map_err(|_| "is not a chunk"),
        Kind::Head | Kind::Blob | Kind::Commit | Kind::Seal => Ok(()),
    }
}
