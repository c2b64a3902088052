//! The locations of all records: hash maps for packs that are still written, index files for the sealed ones.
//!
//! Invariants
//! * No lock here is held during a disk access.
//! * A record reported to a writer as present is in no pack that the running collection has condemned, unless it is
//!   live there and about to be moved.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::RwLock;

use super::index_file::{PackIndexEntry, PackIndexFile, RecordLocation};
use super::pack_name::{is_collection_pack, pack_file_name};
use super::record::{RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::id::ChunkId;

/// The number of entries published under one lock.
const PUBLISH_BATCH_ENTRIES: usize = 256;

/// The locations of all records.
#[derive(Debug, Default)]
pub(super) struct RecordIndex {
    open_packs: RwLock<BTreeMap<u32, OpenPackIndex>>,
    packs: ArcSwap<PackSet>,
}

/// The known records of a pack without an index file.
#[derive(Debug, Default)]
struct OpenPackIndex {
    records: HashMap<ChunkId, RecordLocation>,
    commits: Vec<RecordLocation>,
}

/// The packs of a store. The set is replaced as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct PackSet {
    pub(super) files: BTreeMap<u32, Arc<dyn DiskFile>>,
    pub(super) indexes: BTreeMap<u32, Arc<PackIndexFile>>,
    /// Packs that the running collection will remove after it has moved their live records.
    condemned: BTreeMap<u32, LiveBits>,
    /// The number of condemnations since the start.
    pub(super) condemnation_count: u64,
}

/// One bit for each entry of a pack's index file, by its ordinal; set if the record is live.
pub(super) type LiveBits = Arc<[u64]>;

/// Returns true if the record with this ordinal is live.
pub(super) fn is_ordinal_live(live: &[u64], ordinal: usize) -> bool {
    live.get(ordinal / 64).is_some_and(|word| word & (1 << (ordinal % 64)) != 0)
}

/// The purpose of a record lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordLookupPurpose {
    /// The record is read: any location is valid.
    Read,
    /// The caller relies on the record being retained.
    Retain,
}

/// The location of a record, and its ordinal if its pack has an index file.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordMatch {
    pub(super) location: RecordLocation,
    pub(super) ordinal: Option<usize>,
}

impl RecordIndex {
    /// Finds a chunk or blob by the index files alone. The record found can be another one only in a deliberate
    /// collision. The returned file stays readable after its removal.
    pub(super) fn find_record(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
    ) -> Option<(RecordLocation, Arc<dyn DiskFile>)> {
        let mut located_file = None;
        let searched =
            self.visit_locations(kind, id, RecordLookupPurpose::Read, |packs, record_match| {
                located_file = packs
                    .files
                    .get(&record_match.location.position.pack)
                    .map(|file| (record_match.location, file.clone()));
                Ok(located_file.is_some())
            });
        debug_assert!(searched.is_ok(), "nothing fails without asking the disk");
        located_file
    }

    /// Finds a chunk or blob, and verifies it by its header on the disk.
    ///
    /// # Errors
    /// A failed read.
    pub(super) fn find_verified(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
        purpose: RecordLookupPurpose,
    ) -> Result<Option<RecordMatch>> {
        let mut verified_match = None;
        self.visit_locations(kind, id, purpose, |packs, record_match| {
            let is_it = record_match.ordinal.is_none()
                || packs.matches_header(record_match.location, kind, id)?;
            if is_it {
                verified_match = Some(record_match);
            }
            Ok(is_it)
        })?;
        Ok(verified_match)
    }

    /// Passes the possible locations of a record to `visit` until it accepts one.
    fn visit_locations(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
        purpose: RecordLookupPurpose,
        mut visit: impl FnMut(&PackSet, RecordMatch) -> Result<bool>,
    ) -> Result<()> {
        let is_kind = |location: &RecordLocation| location.kind == kind;
        let in_open = || {
            let open = self.open_packs.read();
            let id = ChunkId::from_bytes(*id);
            let mut newest_first = open.values().rev();
            newest_first.find_map(|pack| pack.records.get(&id).copied().filter(is_kind))
        };
        let in_map = |location| RecordMatch { location, ordinal: None };
        if let Some(location) = in_open()
            && visit(&self.packs.load(), in_map(location))?
        {
            return Ok(());
        }
        // From here on, one snapshot of the packs is used: a record that a collection moves is in one of its two packs
        // in each snapshot.
        let packs = self.packs.load();
        // The newest packs hold the records requested most.
        for (pack, index) in packs.indexes.iter().rev() {
            let live = packs.condemned.get(pack).filter(|_| purpose == RecordLookupPurpose::Retain);
            let stays = |ordinal| live.is_none_or(|live| is_ordinal_live(live, ordinal));
            for (ordinal, location) in index.find_entries(id).filter(|(ordinal, _)| stays(*ordinal))
            {
                let record_match = RecordMatch { location, ordinal: Some(ordinal) };
                if is_kind(&location) && visit(&packs, record_match)? {
                    return Ok(());
                }
            }
        }
        // A pack that got its index file in between has moved from the maps to the index files.
        match in_open() {
            Some(location) => visit(&packs, in_map(location)).map(drop),
            None => Ok(()),
        }
    }

    /// Reads a whole record.
    pub(super) fn read_record(
        &self,
        location: RecordLocation,
    ) -> Result<(Option<RecordHeader>, Bytes)> {
        let pack = location.position.pack;
        let missing = || Error::FileRead {
            file: pack_file_name(pack),
            source: std::io::ErrorKind::NotFound.into(),
        };
        let file = self.pack_file(pack).ok_or_else(missing)?;
        read_record_from(file.as_ref(), location)
    }

    /// Removes a pack and all its records from the index.
    pub(super) fn remove_pack(&self, pack: u32) {
        self.replace_packs(&BTreeSet::from([pack]), None);
        self.open_packs.write().remove(&pack);
    }

    /// Returns the file of a pack.
    pub(super) fn pack_file(&self, pack: u32) -> Option<Arc<dyn DiskFile>> {
        self.packs.load().files.get(&pack).cloned()
    }

    /// Returns all packs.
    pub(super) fn packs(&self) -> Arc<PackSet> {
        self.packs.load_full()
    }

    /// Returns the newest pack that commits are written to.
    pub(super) fn newest_pack(&self) -> u32 {
        let packs = self.packs.load();
        let mut written = packs.files.keys().rev().filter(|pack| !is_collection_pack(**pack));
        written.next().copied().unwrap_or(0)
    }

    /// Makes records visible.
    pub(super) fn publish_entries(&self, entries: &[PackIndexEntry]) {
        for step in entries.chunks(PUBLISH_BATCH_ENTRIES) {
            let mut open = self.open_packs.write();
            for (id, location) in step {
                let pack = open.entry(location.position.pack).or_default();
                if location.kind == RecordKind::Commit {
                    pack.commits.push(*location);
                } else {
                    pack.records.insert(ChunkId::from_bytes(*id), *location);
                }
            }
        }
    }

    /// Adds a pack's file.
    pub(super) fn add_pack_file(&self, pack: u32, file: &Arc<dyn DiskFile>) {
        self.packs.rcu(|packs| {
            let mut packs = PackSet::clone(packs);
            packs.files.insert(pack, Arc::clone(file));
            packs
        });
    }

    /// Replaces the map entries of a pack with its index file.
    pub(super) fn add_pack_index(&self, pack: u32, index: PackIndexFile) {
        let index = Arc::new(index);
        // Done under the lock of the map: a collection that knows the index must not find a record in the map, where it
        // has no mark, and no record may stay there after its pack is removed.
        let mut open = self.open_packs.write();
        self.packs.rcu(|packs| {
            let mut packs = PackSet::clone(packs);
            packs.indexes.insert(pack, Arc::clone(&index));
            packs
        });
        open.remove(&pack);
    }

    /// Replaces a wrong index file with map entries. A pack without an index file is not collected.
    pub(super) fn replace_index(&self, pack: u32, entries: &[PackIndexEntry]) {
        if !self.packs.load().files.contains_key(&pack) {
            return;
        }
        let mut open_index = OpenPackIndex::default();
        for (id, location) in entries {
            if location.kind == RecordKind::Commit {
                open_index.commits.push(*location);
            } else {
                open_index.records.insert(ChunkId::from_bytes(*id), *location);
            }
        }
        let mut open = self.open_packs.write();
        open.insert(pack, open_index);
        self.packs.rcu(|packs| {
            let mut packs = PackSet::clone(packs);
            packs.indexes.remove(&pack);
            packs
        });
    }

    /// Replaces a quarantined pack with a new pack and its index.
    pub(super) fn replace_damaged_pack(
        &self,
        pack: u32,
        added: Option<(u32, Arc<dyn DiskFile>, PackIndexFile)>,
    ) {
        self.replace_packs(&BTreeSet::from([pack]), added);
        self.open_packs.write().remove(&pack);
    }

    /// Sets the packs that the running collection will remove.
    pub(super) fn set_condemned(&self, condemned: &BTreeMap<u32, LiveBits>) {
        self.packs.rcu(|packs| {
            let mut packs = PackSet::clone(packs);
            packs.condemned.clone_from(condemned);
            packs.condemnation_count += u64::from(!condemned.is_empty());
            packs
        });
    }

    /// Replaces packs with one pack and its index. Returns the files that are no longer referenced.
    pub(super) fn replace_packs(
        &self,
        removed: &BTreeSet<u32>,
        added: Option<(u32, Arc<dyn DiskFile>, PackIndexFile)>,
    ) {
        let added = added.map(|(pack, file, index)| (pack, file, Arc::new(index)));
        self.packs.rcu(|packs| {
            let mut packs = PackSet::clone(packs);
            if let Some((pack, file, index)) = &added {
                packs.files.insert(*pack, Arc::clone(file));
                packs.indexes.insert(*pack, Arc::clone(index));
            }
            packs.files.retain(|pack, _| !removed.contains(pack));
            packs.indexes.retain(|pack, _| !removed.contains(pack));
            packs.condemned.retain(|pack, _| !removed.contains(pack));
            packs
        });
    }

    /// Returns the commit records that can hold updates from sequence number `folded` on, newest first.
    pub(super) fn commits_since(&self, folded: u64) -> Vec<RecordLocation> {
        let mut commits = Vec::new();
        // The maps come first: a pack that gets its index file in between is then found twice rather than never.
        for pack in self.open_packs.read().values().rev() {
            commits.extend(pack.commits.iter().rev().copied());
        }
        let packs = self.packs.load_full();
        for index in packs.indexes.values().rev() {
            if index.tables().next_sequence > folded {
                commits.extend(index.commits().rev());
            }
        }
        let sort_key =
            |location: &RecordLocation| (location.position.pack, location.position.offset);
        commits.sort_by_key(|location| std::cmp::Reverse(sort_key(location)));
        commits.dedup_by_key(|location| sort_key(location));
        commits
    }

    /// Returns the map entries of a pack.
    pub(super) fn open_pack_entries(&self, pack: u32) -> Vec<PackIndexEntry> {
        let open = self.open_packs.read();
        let Some(pack) = open.get(&pack) else {
            return Vec::new();
        };
        let records = pack.records.iter().map(|(id, location)| (*id.as_bytes(), *location));
        let commits = pack.commits.iter().map(|location| ([0; 32], *location));
        records.chain(commits).collect()
    }
}

impl PackSet {
    /// Returns true if the record at a location is the requested one.
    fn matches_header(
        &self,
        location: RecordLocation,
        kind: RecordKind,
        id: &[u8; 32],
    ) -> Result<bool> {
        let pack = location.position.pack;
        // An open file stays readable after its removal.
        let Some(file) = self.files.get(&pack) else {
            return Ok(false);
        };
        let mut bytes = [0; RECORD_HEADER_BYTES];
        file.read_at(u64::from(location.position.offset), &mut bytes)
            .map_err(|source| Error::FileRead { file: pack_file_name(pack), source })?;
        Ok(RecordHeader::parse(&bytes)
            .is_some_and(|header| header.kind == kind && header.id == *id))
    }
}

/// Reads a whole record. The header is absent if it does not match the location.
pub(super) fn read_record_from(
    file: &dyn DiskFile,
    location: RecordLocation,
) -> Result<(Option<RecordHeader>, Bytes)> {
    let mut record = vec![0; RECORD_HEADER_BYTES + location.stored_bytes as usize];
    file.read_at(u64::from(location.position.offset), &mut record).map_err(|source| {
        Error::FileRead { file: pack_file_name(location.position.pack), source }
    })?;
    let header = RecordHeader::parse(&record)
        .filter(|header| header.kind == location.kind && header.record_length() == record.len());
    Ok((header, Bytes::from(record)))
}
