//! Re-reading every record of every pack against its checksum and its hash.
//!
//! Packs are read in pieces of bounded length, never mapped: a place that the disk cannot read is damage like any
//! other, and takes no process with it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use bytes::Bytes;

use super::index::{Index, Purpose};
use super::index_file::{self, Entry, IndexFile, Location};
use super::record::{self, HEADER_BYTES, Header, Kind, Place};
use super::scan::{Found, entry, has_id};
use super::{LocalStore, pack_name, pack_number};
use crate::chunk::Chunk;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};

/// Faults that a survey lists; more are counted.
const MAX_FAULTS: usize = 1_000;
/// Packs are read in pieces of this many bytes, unless a record is longer.
const WINDOW_BYTES: usize = 1 << 20;
/// What a disk gives up on at once.
const SECTOR_BYTES: usize = 4_096;

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
    /// How many more faults there are than `faults` lists.
    pub(crate) unlisted: u64,
    /// Places, as pack and offset, that the index names and that cannot be read.
    damaged: HashSet<(u32, u32)>,
    /// Packs of which a part cannot be read.
    pub(super) damaged_packs: BTreeSet<u32>,
    /// Packs whose index file is wrong.
    pub(super) damaged_indexes: BTreeSet<u32>,
    /// Index files of packs that are gone.
    pub(super) orphans: Vec<String>,
}

impl Survey {
    fn note(&mut self, fault: String) {
        if self.faults.contains(&fault) {
            return;
        }
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(fault);
        } else {
            self.unlisted += 1;
        }
    }

    /// Returns the names of the packs that a repair sets aside.
    pub(crate) fn packs_to_set_aside(&self) -> Vec<String> {
        self.damaged_packs.iter().map(|pack| pack_name(*pack)).collect()
    }

    /// Returns the names of the index files that a repair makes again.
    pub(crate) fn indexes_to_remake(&self) -> Vec<String> {
        let damaged = self.damaged_indexes.difference(&self.damaged_packs);
        damaged.map(|pack| index_file::file_name(*pack)).collect()
    }

    /// Tells whether a place cannot be read.
    pub(super) fn is_damaged(&self, place: Place) -> bool {
        self.damaged.contains(&(place.pack, place.offset))
    }
}

impl LocalStore {
    /// Reads all packs. From then on look-ups go past index files that turn out to be wrong.
    pub(crate) fn survey(&self) -> Result<Survey> {
        let growing = self.writer.lock().growing();
        let mut survey = Survey::default();
        let packs = self.index.packs();
        survey.packs = packs.files.len();
        for (pack, file) in &packs.files {
            let length = file.len().map_err(|source| failed(*pack, source))?;
            let index = packs.indexes.get(pack);
            let end = growing.and_then(|(open, end)| (open == *pack).then_some(end));
            let covered = match end.or(index.map(|index| index.covered())) {
                Some(covered) => covered,
                // The index file of a pack that is shorter than it says is not in use, and the proof of it.
                None => self.covered_by_file(*pack)?.unwrap_or(length),
            };
            if length < covered {
                let name = pack_name(*pack);
                survey.note(format!("`{name}` is cut off at byte {length} of {covered} or more"));
                survey.damaged_packs.insert(*pack);
            }
            // What is appended during the survey is none of its business.
            let length = end.map_or(length, |end| length.min(end));
            let reader = PackReader::new(*pack, file.as_ref(), length);
            survey.read_pack(reader, index.map(AsRef::as_ref), &self.index)?;
        }
        survey.find_orphans(self.disk.as_ref(), &self.index)?;
        for fault in self.damage.lock().iter() {
            survey.note(fault.clone());
        }
        Ok(survey)
    }

    /// Returns how many bytes of a pack its index file covers; `None` without one that passes its checksum.
    fn covered_by_file(&self, pack: u32) -> Result<Option<u64>> {
        let known = IndexFile::open(self.disk.as_ref(), pack)?;
        Ok(known.filter(IndexFile::is_intact).map(|index| index.covered()))
    }

    /// Tells whether a survey has found the record of a chunk to be damaged.
    pub(crate) fn is_damaged_chunk(&self, id: &ChunkId, survey: &Survey) -> bool {
        let location = self.index.find(Kind::Chunk, id.as_bytes());
        location.is_some_and(|(at, _)| survey.is_damaged(at.place))
    }

    /// Tells whether a survey has found the record of a small blob to be damaged.
    pub(crate) fn is_damaged_blob(&self, id: &BlobId, survey: &Survey) -> bool {
        let location = self.index.find(Kind::Blob, id.digest());
        location.is_some_and(|(at, _)| survey.is_damaged(at.place))
    }

    /// Returns the pack of a chunk and its number in the pack's index file; `None` if it is in none that is final: the
    /// index of the open pack is replaced, and numbers its records anew.
    pub(crate) fn ordinal_of(&self, id: &ChunkId) -> Option<(u32, usize)> {
        let found = self.index.find_surely(Kind::Chunk, id.as_bytes(), Purpose::Read);
        let found = found.ok().flatten()?;
        let pack = found.location.place.pack;
        let is_final = self.index.packs().indexes.get(&pack).is_some_and(|index| index.is_sealed());
        is_final.then_some((pack, found.ordinal?))
    }

    /// Fails if an index file fails its checksum: what it says must not decide what is garbage.
    pub(super) fn check_indexes(&self) -> Result<()> {
        for (pack, index) in &self.index.packs().indexes {
            if !index.is_intact() {
                return Err(Error::FileMalformed {
                    file: index_file::file_name(*pack),
                    fault: "it fails its checksum; run `tympan repo check --repair`",
                });
            }
        }
        Ok(())
    }
}

impl Survey {
    fn read_pack(
        &mut self,
        mut reader: PackReader<'_>,
        known: Option<&IndexFile>,
        index: &Index,
    ) -> Result<()> {
        let pack = reader.pack;
        let mut sheet = Sheet::new(index, pack, known);
        if known.is_some() && !sheet.is_trusted {
            self.note_index(pack, "fails its checksum");
        }
        self.bytes += reader.end;
        let name = pack_name(pack);
        while let Some(item) = reader.next_item() {
            match item {
                Item::Damaged(range) => {
                    let Range { start, end } = range;
                    self.note(format!("`{name}` is damaged from byte {start} to {end}"));
                    self.damaged_packs.insert(pack);
                    sheet.damaged.push(start..end);
                }
                Item::Record(found) => self.read_record(&found, &mut sheet, index),
            }
        }
        sheet.damaged.push(reader.end..u64::MAX);
        let left: Vec<Location> = std::mem::take(&mut sheet.listed).into_values().collect();
        for location in left {
            let (word, at) = (location.kind.word(), location.place.offset);
            if sheet.damaged.iter().any(|range| range.contains(&u64::from(at))) {
                self.note(format!("`{name}`: the {word} at byte {at} cannot be read"));
                self.damaged.insert((pack, at));
                self.damaged_packs.insert(pack);
            } else {
                self.note_index(pack, "names records that are not there");
            }
        }
        if self.damaged_indexes.contains(&pack) {
            index.distrust(pack, &sheet.found);
        }
        Ok(())
    }

    fn read_record(&mut self, found: &Found<'_>, sheet: &mut Sheet, index: &Index) {
        let Header { kind, id, .. } = found.header;
        let Place { pack, offset: at } = found.place;
        match kind {
            Kind::Chunk => self.chunks += 1,
            Kind::Blob => self.blobs += 1,
            Kind::Commit => self.commits += 1,
            Kind::Head | Kind::Seal => {}
        }
        let is_listed = sheet.listed.remove(&at).is_some_and(|location| location.kind == kind);
        if let Err(fault) = check_record(&found.header, found.record) {
            let (name, word) = (pack_name(pack), kind.word());
            self.note(format!("`{name}`: the {word} at byte {at} {fault}"));
            self.damaged.insert((pack, at));
            self.damaged_packs.insert(pack);
            return;
        }
        let is_indexed = match kind {
            Kind::Head | Kind::Seal => return,
            Kind::Commit => is_listed,
            Kind::Chunk | Kind::Blob => is_listed || index.find(kind, &id).is_some(),
        };
        if sheet.is_trusted && !is_indexed {
            self.note_index(pack, "lacks records");
        }
        sheet.found.push(entry(found));
    }

    fn note_index(&mut self, pack: u32, fault: &str) {
        let name = index_file::file_name(pack);
        self.note(format!("`{name}` {fault}; `--repair` makes it again from its pack"));
        self.damaged_indexes.insert(pack);
    }

    /// Looks for index files whose pack is gone.
    fn find_orphans(&mut self, disk: &dyn Disk, index: &Index) -> Result<()> {
        let failed = |source| Error::Read { file: disk.dir().display().to_string(), source };
        let packs = index.packs();
        for name in disk.list("").map_err(failed)? {
            let pack = name.strip_suffix(".index").and_then(pack_number);
            if let Some(pack) = pack.filter(|pack| !packs.files.contains_key(pack)) {
                let file = pack_name(pack);
                self.note(format!("`{file}` is gone, and its index file is there"));
                self.orphans.push(name);
            }
        }
        Ok(())
    }
}

/// What is to be found in one pack, and what is.
struct Sheet {
    /// What the index names and no record has accounted for, by offset.
    listed: HashMap<u32, Location>,
    is_trusted: bool,
    found: Vec<Entry>,
    damaged: Vec<Range<u64>>,
}

impl Sheet {
    fn new(index: &Index, pack: u32, known: Option<&IndexFile>) -> Self {
        let is_trusted = known.is_none_or(IndexFile::is_intact);
        let in_memory = index.open_entries(pack).into_iter().map(|(_, location)| location);
        let in_file = known.filter(|_| is_trusted).into_iter();
        let in_file = in_file.flat_map(|index| index.entries().chain(index.commits()));
        let listed = in_memory.chain(in_file).map(|location| (location.place.offset, location));
        Self { listed: listed.collect(), is_trusted, found: Vec::new(), damaged: Vec::new() }
    }
}

/// Checks what the checksum does not: that the payload has the hash that names it, and that a chunk is one.
pub(super) fn check_record(header: &Header, bytes: &[u8]) -> Result<(), &'static str> {
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

/// What comes next in a pack.
pub(super) enum Item<'a> {
    Record(Found<'a>),
    Damaged(Range<u64>),
}

/// Reads a pack from end to end, whatever state it is in.
pub(super) struct PackReader<'a> {
    pack: u32,
    file: &'a dyn DiskFile,
    end: u64,
    offset: u64,
    window: Vec<u8>,
    /// Where the window begins.
    base: u64,
}

impl<'a> PackReader<'a> {
    pub(super) fn new(pack: u32, file: &'a dyn DiskFile, end: u64) -> Self {
        Self { pack, file, end, offset: 0, window: Vec::new(), base: 0 }
    }

    /// Returns the next record, or what lies in front of it and is none.
    pub(super) fn next_item(&mut self) -> Option<Item<'_>> {
        let start = self.offset;
        if start >= self.end {
            return None;
        }
        let Some(bytes) = self.record_bytes(start) else {
            let next = (start + 1..self.end).find(|next| self.record_bytes(*next).is_some());
            self.offset = next.unwrap_or(self.end);
            return Some(Item::Damaged(start..self.offset));
        };
        self.offset = start + bytes as u64;
        let place = self.place(start)?;
        let record = self.bytes(start, bytes)?;
        let header = Header::parse(record)?;
        Some(Item::Record(Found { header, record, place }))
    }

    /// Returns the length of the record at `offset` if it is valid.
    fn record_bytes(&mut self, offset: u64) -> Option<usize> {
        let place = self.place(offset)?;
        let header = Header::parse(self.bytes(offset, HEADER_BYTES)?)?;
        let length = header.record_bytes();
        record::is_valid(&header, self.bytes(offset, length)?, place).then_some(length)
    }

    fn place(&self, offset: u64) -> Option<Place> {
        Some(Place { pack: self.pack, offset: u32::try_from(offset).ok()? })
    }

    /// Returns a part of the pack; `None` if the pack ends before it does.
    fn bytes(&mut self, offset: u64, length: usize) -> Option<&[u8]> {
        let end = offset + length as u64;
        if end > self.end {
            return None;
        }
        if offset < self.base || end > self.base + self.window.len() as u64 {
            self.load(offset, length);
        }
        let start = usize::try_from(offset - self.base).ok()?;
        self.window.get(start..start + length)
    }

    /// Moves the window. What the disk cannot read becomes zeros, which are no record.
    fn load(&mut self, offset: u64, length: usize) {
        let left = usize::try_from(self.end - offset).unwrap_or(usize::MAX);
        self.base = offset;
        self.window.clear();
        self.window.resize(length.max(WINDOW_BYTES).min(left), 0);
        if self.file.read_at(offset, &mut self.window).is_ok() {
            return;
        }
        let mut at = offset;
        for sector in self.window.chunks_mut(SECTOR_BYTES) {
            if let Err(error) = self.file.read_at(at, sector) {
                tracing::warn!(file = pack_name(self.pack), at, reason = %error, "not readable");
                sector.fill(0);
            }
            at += sector.len() as u64;
        }
    }
}

fn failed(pack: u32, source: std::io::Error) -> Error {
    Error::Read { file: pack_name(pack), source }
}
