//! Where each record is: hash maps for packs that are still written, index files for the sealed ones.
//!
//! Invariants
//! * No lock here is held while the disk is asked for anything.
//! * What a writer is told to be present is in no pack that the running collection has condemned, unless it is live
//!   there and about to be moved.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::RwLock;

use super::index_file::{PackIndexEntry, PackIndexFile, RecordLocation};
use super::record::{RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use super::{is_collection_pack, pack_file_name};
use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::id::ChunkId;

/// How many entries are published under one lock.
const PUBLISH_BATCH_ENTRIES: usize = 256;

/// Where each record is.
#[derive(Debug, Default)]
pub(super) struct RecordIndex {
    open_packs: RwLock<BTreeMap<u32, OpenPackIndex>>,
    packs: ArcSwap<PackSet>,
}

/// What is known of a pack without an index file.
#[derive(Debug, Default)]
struct OpenPackIndex {
    records: HashMap<ChunkId, RecordLocation>,
    commits: Vec<RecordLocation>,
}

/// The packs of a store, replaced as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct PackSet {
    pub(super) files: BTreeMap<u32, Arc<dyn DiskFile>>,
    pub(super) indexes: BTreeMap<u32, Arc<PackIndexFile>>,
    /// Packs that the running collection is about to remove, after it has moved what is live in them.
    pub(super) condemned: BTreeMap<u32, LiveBits>,
    /// How often packs have been condemned since the start.
    pub(super) condemnation_count: u64,
}

/// A bit for each entry of a pack's index file, by its ordinal: whether the record is live.
pub(super) type LiveBits = Arc<[u64]>;

/// Tells whether the record of an ordinal is live.
pub(super) fn is_ordinal_live(live: &[u64], ordinal: usize) -> bool {
    live.get(ordinal / 64).is_some_and(|word| word & (1 << (ordinal % 64)) != 0)
}

/// Who asks where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordLookupPurpose {
    /// Someone who reads it: any place will do.
    Read,
    /// Someone who wants to rely on its staying.
    Retain,
}

/// A record's place, and its ordinal in its pack's index file if that has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordMatch {
    pub(super) location: RecordLocation,
    pub(super) ordinal: Option<usize>,
}

impl RecordIndex {
    /// Finds a chunk or blob by what index files tell: with a chance that only malice makes real, the record found is
    /// another one. The file outlives its removal.
    pub(super) fn find_record(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
    ) -> Option<(RecordLocation, Arc<dyn DiskFile>)> {
        let mut found = None;
        let searched = self.visit_locations(kind, id, RecordLookupPurpose::Read, |packs, one| {
            found = packs
                .files
                .get(&one.location.position.pack)
                .map(|file| (one.location, file.clone()));
            Ok(found.is_some())
        });
        debug_assert!(searched.is_ok(), "nothing fails without asking the disk");
        found
    }

    /// Finds a chunk or blob, and makes sure of it by its header on the disk.
    ///
    /// # Errors
    /// A failed read.
    pub(super) fn find_verified(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
        purpose: RecordLookupPurpose,
    ) -> Result<Option<RecordMatch>> {
        let mut found = None;
        self.visit_locations(kind, id, purpose, |packs, one| {
            let is_it = one.ordinal.is_none() || packs.matches_header(one.location, kind, id)?;
            if is_it {
                found = Some(one);
            }
            Ok(is_it)
        })?;
        Ok(found)
    }

    /// Offers the places that a record can have until `visit` takes one.
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
        // One view from here on: a record that a collection moves is in the one pack or the other of each view.
        let packs = self.packs.load();
        // The newest packs hold what is asked for most.
        for (pack, index) in packs.indexes.iter().rev() {
            let live = packs.condemned.get(pack).filter(|_| purpose == RecordLookupPurpose::Retain);
            let stays = |ordinal| live.is_none_or(|live| is_ordinal_live(live, ordinal));
            for (ordinal, location) in index.find_entries(id).filter(|(ordinal, _)| stays(*ordinal))
            {
                let found = RecordMatch { location, ordinal: Some(ordinal) };
                if is_kind(&location) && visit(&packs, found)? {
                    return Ok(());
                }
            }
        }
        // A pack that got its index file in between has moved from the one to the other.
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
        super::read_record_from(file.as_ref(), location)
    }

    /// Forgets a pack and everything in it.
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

    /// Lets an index file stand for what the map holds of a pack.
    pub(super) fn add_pack_index(&self, pack: u32, index: PackIndexFile) {
        let index = Arc::new(index);
        // Under the lock of the map: a collection that knows the index must not find a record in the map, where it has
        // no mark, and none may outlive the pack there.
        let mut open = self.open_packs.write();
        self.packs.rcu(|packs| {
            let mut packs = PackSet::clone(packs);
            packs.indexes.insert(pack, Arc::clone(&index));
            packs
        });
        open.remove(&pack);
    }

    /// Lets the map stand for an index file that is wrong. Nothing collects from a pack without an index file.
    pub(super) fn replace_index(&self, pack: u32, entries: &[PackIndexEntry]) {
        if !self.packs.load().files.contains_key(&pack) {
            return;
        }
        let mut known = OpenPackIndex::default();
        for (id, location) in entries {
            if location.kind == RecordKind::Commit {
                known.commits.push(*location);
            } else {
                known.records.insert(ChunkId::from_bytes(*id), *location);
            }
        }
        let mut open = self.open_packs.write();
        open.insert(pack, known);
        self.packs.rcu(|packs| {
            let mut packs = PackSet::clone(packs);
            packs.indexes.remove(&pack);
            packs
        });
    }

    /// Puts a pack with its index in the place of one that is set aside.
    pub(super) fn replace_damaged_pack(
        &self,
        pack: u32,
        added: Option<(u32, Arc<dyn DiskFile>, PackIndexFile)>,
    ) {
        self.replace_packs(&BTreeSet::from([pack]), added);
        self.open_packs.write().remove(&pack);
    }

    /// Replaces the packs that the running collection is about to remove.
    pub(super) fn set_condemned(&self, condemned: &BTreeMap<u32, LiveBits>) {
        self.packs.rcu(|packs| {
            let mut packs = PackSet::clone(packs);
            packs.condemned.clone_from(condemned);
            packs.condemnation_count += u64::from(!condemned.is_empty());
            packs
        });
    }

    /// Puts a pack with its index in the place of others. Returns the files that nothing refers to any more.
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

    /// Returns the commit records that can hold moves from sequence number `folded` on, newest first.
    pub(super) fn commits_since(&self, folded: u64) -> Vec<RecordLocation> {
        let mut commits = Vec::new();
        // First the maps: a pack that gets its index file in between is then found twice rather than never.
        for pack in self.open_packs.read().values().rev() {
            commits.extend(pack.commits.iter().rev().copied());
        }
        let packs = self.packs.load_full();
        for index in packs.indexes.values().rev() {
            if index.tables().next_sequence > folded {
                commits.extend(index.commits().rev());
            }
        }
        let place = |location: &RecordLocation| (location.position.pack, location.position.offset);
        commits.sort_by_key(|location| std::cmp::Reverse(place(location)));
        commits.dedup_by_key(|location| place(location));
        commits
    }

    /// Returns what the maps hold of a pack.
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
    /// Tells whether the record at a place is the one that is looked for.
    fn matches_header(
        &self,
        location: RecordLocation,
        kind: RecordKind,
        id: &[u8; 32],
    ) -> Result<bool> {
        let pack = location.position.pack;
        // An open file outlives its removal.
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
