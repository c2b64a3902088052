//! Reads every record of every pack again and checks its checksum and its hash.
//!
//! Packs are read in pieces of bounded length, never mapped: a range that the disk cannot read is ordinary damage and
//! does not crash the process.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use bytes::Bytes;

use super::index_file::{self, PackIndexEntry, PackIndexFile, RecordLocation};
use super::local_store::LocalStore;
use super::pack_name::{pack_file_name, parse_pack_number};
use super::pack_scan::{ScannedRecord, index_entry, payload_matches_id};
use super::record::{self, RECORD_HEADER_BYTES, RecordHeader, RecordKind, RecordPosition};
use super::record_index::{RecordIndex, RecordLookupPurpose};
use crate::chunk::Chunk;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};

/// The maximum number of faults that a survey lists; further ones are only counted.
const MAX_LISTED_FAULTS: usize = 1_000;
/// The size in bytes of the pieces in which packs are read, unless a record is longer.
const READ_WINDOW_BYTES: usize = 1 << 20;
/// The size in bytes of the unit that a disk fails to read as a whole.
const SECTOR_BYTES: usize = 4_096;

/// The result of reading all packs.
#[derive(Debug, Default)]
pub(crate) struct PackSurvey {
    pub(crate) pack_count: usize,
    pub(crate) chunk_count: u64,
    pub(crate) blob_count: u64,
    pub(crate) commit_count: u64,
    pub(crate) pack_bytes: u64,
    /// A text for each fault, with file and offset.
    pub(crate) faults: Vec<String>,
    /// The number of faults beyond those listed in `faults`.
    pub(crate) unlisted_count: u64,
    /// Positions, as pack and offset, that the index names and that cannot be read.
    damaged_positions: HashSet<(u32, u32)>,
    /// Packs that cannot be read in full.
    pub(super) damaged_packs: BTreeSet<u32>,
    /// Packs whose index file is wrong.
    pub(super) damaged_indexes: BTreeSet<u32>,
    /// Index files whose pack is missing.
    pub(super) orphan_indexes: Vec<String>,
}

impl PackSurvey {
    fn record_fault(&mut self, fault: String) {
        if self.faults.contains(&fault) {
            return;
        }
        if self.faults.len() < MAX_LISTED_FAULTS {
            self.faults.push(fault);
        } else {
            self.unlisted_count += 1;
        }
    }

    /// Returns the names of the packs that a repair quarantines.
    pub(crate) fn packs_to_quarantine(&self) -> Vec<String> {
        self.damaged_packs.iter().map(|pack| pack_file_name(*pack)).collect()
    }

    /// Returns the names of the index files that a repair rebuilds.
    pub(crate) fn indexes_to_rebuild(&self) -> Vec<String> {
        let damaged = self.damaged_indexes.difference(&self.damaged_packs);
        damaged.map(|pack| index_file::index_file_name(*pack)).collect()
    }

    /// Returns true if the record at a position cannot be read.
    pub(super) fn is_position_damaged(&self, position: RecordPosition) -> bool {
        self.damaged_positions.contains(&(position.pack, position.offset))
    }
}

impl LocalStore {
    /// Reads a chunk past the cache; the inner error is the reason why it cannot be read. A record that the survey
    /// lists as damaged is not read.
    pub(crate) fn read_surveyed_chunk(
        &self,
        id: &ChunkId,
        survey: &PackSurvey,
    ) -> Result<Result<Chunk, String>> {
        if self.is_damaged_chunk(id, survey) {
            return Ok(Err(format!("chunk `{id}` is damaged")));
        }
        let loaded = self.load_chunk(id).or_else(|error| match (self.base.get(), error) {
            (Some(base), Error::ChunkMissing { .. }) => base.read_chunk(id),
            (_, error) => Err(error),
        });
        match loaded {
            Ok(chunk) => Ok(Ok(chunk)),
            Err(error @ (Error::ChunkMissing { .. } | Error::BaseChunkMissing { .. })) => {
                Ok(Err(error.to_string()))
            }
            Err(Error::ChunkDamaged { fault, .. }) => {
                Ok(Err(format!("chunk `{id}` is damaged: {fault}")))
            }
            Err(other) => Err(other),
        }
    }

    /// Reads all packs. From then on lookups ignore index files found to be wrong.
    pub(crate) fn survey_packs(&self) -> Result<PackSurvey> {
        let growing = self.writer.lock().open_pack();
        let mut survey = PackSurvey::default();
        let packs = self.index.packs();
        survey.pack_count = packs.files.len();
        for (pack, file) in &packs.files {
            let length = file.len().map_err(|source| pack_read_error(*pack, source))?;
            let index = packs.indexes.get(pack);
            let end = growing.and_then(|(open, end)| (open == *pack).then_some(end));
            let covered = match end.or(index.map(|index| index.covered_bytes())) {
                Some(covered) => covered,
                // If the pack is shorter than its index file states, the index file is not in use, but proves the
                // missing length.
                None => self.indexed_length(*pack)?.unwrap_or(length),
            };
            if length < covered {
                let name = pack_file_name(*pack);
                survey.record_fault(format!(
                    "`{name}` is cut off at byte {length} of {covered} or more"
                ));
                survey.damaged_packs.insert(*pack);
            }
            // Records appended during the survey are not part of it.
            let length = end.map_or(length, |end| length.min(end));
            let reader = PackReader::new(*pack, file.as_ref(), length);
            survey.survey_pack(reader, index.map(AsRef::as_ref), &self.index)?;
        }
        survey.find_orphan_indexes(self.disk.as_ref(), &self.index)?;
        for fault in self.damage_found.lock().iter() {
            survey.record_fault(fault.clone());
        }
        Ok(survey)
    }

    /// Returns the number of bytes of a pack that its index file covers; `None` without an index file that passes its
    /// checksum.
    fn indexed_length(&self, pack: u32) -> Result<Option<u64>> {
        let pack_index = PackIndexFile::open(self.disk.as_ref(), pack)?;
        Ok(pack_index.filter(PackIndexFile::is_intact).map(|index| index.covered_bytes()))
    }

    /// Returns true if the survey found the record of the chunk to be damaged.
    fn is_damaged_chunk(&self, id: &ChunkId, survey: &PackSurvey) -> bool {
        let location = self.index.find_record(RecordKind::Chunk, id.as_bytes());
        location.is_some_and(|(at, _)| survey.is_position_damaged(at.position))
    }

    /// Returns true if the survey found the record of the small blob to be damaged.
    pub(crate) fn is_damaged_blob(&self, id: &BlobId, survey: &PackSurvey) -> bool {
        let location = self.index.find_record(RecordKind::Blob, id.digest());
        location.is_some_and(|(at, _)| survey.is_position_damaged(at.position))
    }

    /// Returns the pack of a chunk and the chunk's ordinal in the pack's index file; `None` if it is in no final index
    /// file. The index of the open pack is replaced, and its ordinals change.
    pub(crate) fn index_ordinal(&self, id: &ChunkId) -> Option<(u32, usize)> {
        let record_match =
            self.index.find_verified(RecordKind::Chunk, id.as_bytes(), RecordLookupPurpose::Read);
        let record_match = record_match.ok().flatten()?;
        let pack = record_match.location.position.pack;
        let is_final = self.index.packs().indexes.get(&pack).is_some_and(|index| index.is_sealed());
        is_final.then_some((pack, record_match.ordinal?))
    }

    /// Returns an error if an index file fails its checksum, because a wrong index must not decide what is garbage.
    pub(super) fn check_index_files(&self) -> Result<()> {
        for (pack, index) in &self.index.packs().indexes {
            if !index.is_intact() {
                return Err(Error::FileMalformed {
                    file: index_file::index_file_name(*pack),
                    fault: "it fails its checksum; run `tympan repo check --repair`",
                });
            }
        }
        Ok(())
    }
}

impl PackSurvey {
    fn survey_pack(
        &mut self,
        mut reader: PackReader<'_>,
        pack_index: Option<&PackIndexFile>,
        index: &RecordIndex,
    ) -> Result<()> {
        let pack = reader.pack;
        let mut sheet = PackChecklist::new(index, pack, pack_index);
        if pack_index.is_some() && !sheet.is_index_trusted {
            self.record_index_fault(pack, "fails its checksum");
        }
        self.pack_bytes += reader.end;
        let name = pack_file_name(pack);
        while let Some(item) = reader.next_item() {
            match item {
                PackItem::Damaged(range) => {
                    let Range { start, end } = range;
                    self.record_fault(format!("`{name}` is damaged from byte {start} to {end}"));
                    self.damaged_packs.insert(pack);
                    sheet.damaged_ranges.push(start..end);
                }
                PackItem::Record(scanned_record) => {
                    self.survey_record(&scanned_record, &mut sheet, index)
                }
            }
        }
        sheet.damaged_ranges.push(reader.end..u64::MAX);
        let left: Vec<RecordLocation> =
            std::mem::take(&mut sheet.unmatched_locations).into_values().collect();
        for location in left {
            let (label, at) = (location.kind.label(), location.position.offset);
            if sheet.damaged_ranges.iter().any(|range| range.contains(&u64::from(at))) {
                self.record_fault(format!("`{name}`: the {label} at byte {at} cannot be read"));
                self.damaged_positions.insert((pack, at));
                self.damaged_packs.insert(pack);
            } else {
                self.record_index_fault(pack, "lists records that do not exist");
            }
        }
        if self.damaged_indexes.contains(&pack) {
            index.replace_index(pack, &sheet.record_entries);
        }
        Ok(())
    }

    fn survey_record(
        &mut self,
        scanned_record: &ScannedRecord<'_>,
        sheet: &mut PackChecklist,
        index: &RecordIndex,
    ) {
        let RecordHeader { kind, id, .. } = scanned_record.header;
        let RecordPosition { pack, offset } = scanned_record.position;
        match kind {
            RecordKind::Chunk => self.chunk_count += 1,
            RecordKind::Blob => self.blob_count += 1,
            RecordKind::Commit => self.commit_count += 1,
            RecordKind::Head | RecordKind::Seal => {}
        }
        let is_listed =
            sheet.unmatched_locations.remove(&offset).is_some_and(|location| location.kind == kind);
        if let Err(fault) = check_record_payload(&scanned_record.header, scanned_record.record) {
            let (name, label) = (pack_file_name(pack), kind.label());
            self.record_fault(format!("`{name}`: the {label} at byte {offset} {fault}"));
            self.damaged_positions.insert((pack, offset));
            self.damaged_packs.insert(pack);
            return;
        }
        let is_indexed = match kind {
            RecordKind::Head | RecordKind::Seal => return,
            RecordKind::Commit => is_listed,
            RecordKind::Chunk | RecordKind::Blob => {
                is_listed || index.find_record(kind, &id).is_some()
            }
        };
        if sheet.is_index_trusted && !is_indexed {
            self.record_index_fault(pack, "is missing records");
        }
        sheet.record_entries.push(index_entry(scanned_record));
    }

    fn record_index_fault(&mut self, pack: u32, fault: &str) {
        let name = index_file::index_file_name(pack);
        self.record_fault(format!("`{name}` {fault}; `--repair` rebuilds it from its pack"));
        self.damaged_indexes.insert(pack);
    }

    /// Searches for index files whose pack is missing.
    fn find_orphan_indexes(&mut self, disk: &dyn Disk, index: &RecordIndex) -> Result<()> {
        let failed =
            |source| Error::FileRead { file: disk.display_path().display().to_string(), source };
        let packs = index.packs();
        for name in disk.list_folder("").map_err(failed)? {
            let pack = name.strip_suffix(".index").and_then(parse_pack_number);
            if let Some(pack) = pack.filter(|pack| !packs.files.contains_key(pack)) {
                let file = pack_file_name(pack);
                self.record_fault(format!("`{file}` is missing, but its index file exists"));
                self.orphan_indexes.push(name);
            }
        }
        Ok(())
    }
}

/// The expected and the actual contents of one pack.
struct PackChecklist {
    /// The locations, by offset, that the index names and no record has matched yet.
    unmatched_locations: HashMap<u32, RecordLocation>,
    is_index_trusted: bool,
    record_entries: Vec<PackIndexEntry>,
    damaged_ranges: Vec<Range<u64>>,
}

impl PackChecklist {
    fn new(index: &RecordIndex, pack: u32, pack_index: Option<&PackIndexFile>) -> Self {
        let is_trusted = pack_index.is_none_or(PackIndexFile::is_intact);
        let in_memory = index.open_pack_entries(pack).into_iter().map(|(_, location)| location);
        let in_file = pack_index.filter(|_| is_trusted).into_iter();
        let in_file = in_file.flat_map(|index| index.entries().chain(index.commits()));
        let listed = in_memory.chain(in_file).map(|location| (location.position.offset, location));
        Self {
            unmatched_locations: listed.collect(),
            is_index_trusted: is_trusted,
            record_entries: Vec::new(),
            damaged_ranges: Vec::new(),
        }
    }
}

/// Checks what the checksum does not cover: that the payload has the hash that names it, and that a chunk is valid.
pub(super) fn check_record_payload(
    header: &RecordHeader,
    bytes: &[u8],
) -> Result<(), &'static str> {
    let payload =
        record::decode_record(header, &Bytes::copy_from_slice(bytes)).ok_or("cannot be decoded")?;
    if !payload_matches_id(header.kind, &payload, &header.id) {
        return Err("does not match its hash");
    }
    match header.kind {
        RecordKind::Chunk => Chunk::parse(payload).map(drop).map_err(|_| "is not a chunk"),
        RecordKind::Head | RecordKind::Blob | RecordKind::Commit | RecordKind::Seal => Ok(()),
    }
}

/// The next item in a pack.
pub(super) enum PackItem<'a> {
    Record(ScannedRecord<'a>),
    Damaged(Range<u64>),
}

/// Reads a pack from start to end, whatever its state.
pub(super) struct PackReader<'a> {
    pack: u32,
    file: &'a dyn DiskFile,
    end: u64,
    offset: u64,
    window: Vec<u8>,
    /// The offset in the pack at which the window begins.
    window_start: u64,
}

impl<'a> PackReader<'a> {
    pub(super) fn new(pack: u32, file: &'a dyn DiskFile, end: u64) -> Self {
        Self { pack, file, end, offset: 0, window: Vec::new(), window_start: 0 }
    }

    /// Returns the next record, or the bytes before it that are not a record.
    pub(super) fn next_item(&mut self) -> Option<PackItem<'_>> {
        let start = self.offset;
        if start >= self.end {
            return None;
        }
        let Some(bytes) = self.valid_record_length(start) else {
            let next = (start + 1..self.end).find(|next| self.valid_record_length(*next).is_some());
            self.offset = next.unwrap_or(self.end);
            return Some(PackItem::Damaged(start..self.offset));
        };
        self.offset = start + bytes as u64;
        let position = self.record_position(start)?;
        let record = self.read_range(start, bytes)?;
        let header = RecordHeader::parse(record)?;
        Some(PackItem::Record(ScannedRecord { header, record, position }))
    }

    /// Returns the length of the record at `offset` if it is valid.
    fn valid_record_length(&mut self, offset: u64) -> Option<usize> {
        let position = self.record_position(offset)?;
        let header = RecordHeader::parse(self.read_range(offset, RECORD_HEADER_BYTES)?)?;
        let length = header.record_length();
        record::is_record_valid(&header, self.read_range(offset, length)?, position)
            .then_some(length)
    }

    fn record_position(&self, offset: u64) -> Option<RecordPosition> {
        Some(RecordPosition { pack: self.pack, offset: u32::try_from(offset).ok()? })
    }

    /// Returns a range of the pack; `None` if the pack ends before the range does.
    fn read_range(&mut self, offset: u64, length: usize) -> Option<&[u8]> {
        let end = offset + length as u64;
        if end > self.end {
            return None;
        }
        if offset < self.window_start || end > self.window_start + self.window.len() as u64 {
            self.load_window(offset, length);
        }
        let start = usize::try_from(offset - self.window_start).ok()?;
        self.window.get(start..start + length)
    }

    /// Moves the window. Bytes that the disk cannot read become zeros, which are never a valid record.
    fn load_window(&mut self, offset: u64, length: usize) {
        let left = usize::try_from(self.end - offset).unwrap_or(usize::MAX);
        self.window_start = offset;
        self.window.clear();
        self.window.resize(length.max(READ_WINDOW_BYTES).min(left), 0);
        if self.file.read_at(offset, &mut self.window).is_ok() {
            return;
        }
        let mut at = offset;
        for sector in self.window.chunks_mut(SECTOR_BYTES) {
            if let Err(error) = self.file.read_at(at, sector) {
                tracing::warn!(file = pack_file_name(self.pack), at, reason = %error, "cannot read a sector \
                    of a pack");
                sector.fill(0);
            }
            at += sector.len() as u64;
        }
    }
}

fn pack_read_error(pack: u32, source: std::io::Error) -> Error {
    Error::FileRead { file: pack_file_name(pack), source }
}
