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

use super::index_file::{Entry, IndexFile, Location};
use super::record::{HEADER_BYTES, Header, Kind};
use super::{is_collected, pack_name};
use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::id::ChunkId;

/// How many entries are published under one lock.
const PUBLISH_STEP: usize = 256;

/// Where each record is.
#[derive(Debug, Default)]
pub(super) struct Index {
    open: RwLock<BTreeMap<u32, OpenPack>>,
    packs: ArcSwap<Packs>,
}

/// What is known of a pack without an index file.
#[derive(Debug, Default)]
struct OpenPack {
    records: HashMap<ChunkId, Location>,
    commits: Vec<Location>,
}

/// The packs of a store, replaced as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Packs {
    pub(super) files: BTreeMap<u32, Arc<dyn DiskFile>>,
    pub(super) indexes: BTreeMap<u32, Arc<IndexFile>>,
    /// Packs that the running collection is about to remove, after it has moved what is live in them.
    pub(super) condemned: BTreeMap<u32, Live>,
    /// How often packs have been condemned since the start.
    pub(super) condemnations: u64,
}

/// A bit for each entry of a pack's index file, by its ordinal: whether the record is live.
pub(super) type Live = Arc<[u64]>;

/// Tells whether the record of an ordinal is live.
pub(super) fn is_live(live: &[u64], ordinal: usize) -> bool {
    live.get(ordinal / 64).is_some_and(|word| word & (1 << (ordinal % 64)) != 0)
}

/// Who asks where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Someone who reads it: any place will do.
    Read,
    /// Someone who wants to rely on its staying.
    Keep,
}

/// A record's place, and its ordinal in its pack's index file if that has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) location: Location,
    pub(super) ordinal: Option<usize>,
}

impl Index {
    /// Finds a chunk or blob by what index files tell: with a chance that only malice makes real, the record found is
    /// another one. The file outlives its removal.
    pub(super) fn find(&self, kind: Kind, id: &[u8; 32]) -> Option<(Location, Arc<dyn DiskFile>)> {
        let mut found = None;
        let searched = self.search(kind, id, Purpose::Read, |packs, one| {
            found =
                packs.files.get(&one.location.place.pack).map(|file| (one.location, file.clone()));
            Ok(found.is_some())
        });
        debug_assert!(searched.is_ok(), "nothing fails without asking the disk");
        found
    }

    /// Finds a chunk or blob, and makes sure of it by its header on the disk.
    ///
    /// # Errors
    /// A failed read.
    pub(super) fn find_surely(
        &self,
        kind: Kind,
        id: &[u8; 32],
        purpose: Purpose,
    ) -> Result<Option<Found>> {
        let mut found = None;
        self.search(kind, id, purpose, |packs, one| {
            let is_it = one.ordinal.is_none() || packs.has_header(one.location, kind, id)?;
            if is_it {
                found = Some(one);
            }
            Ok(is_it)
        })?;
        Ok(found)
    }

    /// Offers the places that a record can have until `visit` takes one.
    fn search(
        &self,
        kind: Kind,
        id: &[u8; 32],
        purpose: Purpose,
        mut visit: impl FnMut(&Packs, Found) -> Result<bool>,
    ) -> Result<()> {
        let is_kind = |location: &Location| location.kind == kind;
        let in_open = || {
            let open = self.open.read();
            let id = ChunkId::from_bytes(*id);
            let mut newest_first = open.values().rev();
            newest_first.find_map(|pack| pack.records.get(&id).copied().filter(is_kind))
        };
        let in_map = |location| Found { location, ordinal: None };
        if let Some(location) = in_open()
            && visit(&self.packs.load(), in_map(location))?
        {
            return Ok(());
        }
        // One view from here on: a record that a collection moves is in the one pack or the other of each view.
        let packs = self.packs.load();
        // The newest packs hold what is asked for most.
        for (pack, index) in packs.indexes.iter().rev() {
            let live = packs.condemned.get(pack).filter(|_| purpose == Purpose::Keep);
            let stays = |ordinal| live.is_none_or(|live| is_live(live, ordinal));
            for (ordinal, location) in index.find(id).filter(|(ordinal, _)| stays(*ordinal)) {
                let found = Found { location, ordinal: Some(ordinal) };
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
    pub(super) fn read_record(&self, location: Location) -> Result<(Option<Header>, Bytes)> {
        let pack = location.place.pack;
        let missing =
            || Error::Read { file: pack_name(pack), source: std::io::ErrorKind::NotFound.into() };
        let file = self.file(pack).ok_or_else(missing)?;
        super::read_record(file.as_ref(), location)
    }

    /// Forgets a pack and everything in it.
    pub(super) fn forget(&self, pack: u32) {
        self.replace(&BTreeSet::from([pack]), None);
        self.open.write().remove(&pack);
    }

    /// Returns the file of a pack.
    pub(super) fn file(&self, pack: u32) -> Option<Arc<dyn DiskFile>> {
        self.packs.load().files.get(&pack).cloned()
    }

    /// Returns all packs.
    pub(super) fn packs(&self) -> Arc<Packs> {
        self.packs.load_full()
    }

    /// Returns the newest pack that commits are written to.
    pub(super) fn newest_pack(&self) -> u32 {
        let packs = self.packs.load();
        let mut written = packs.files.keys().rev().filter(|pack| !is_collected(**pack));
        written.next().copied().unwrap_or(0)
    }

    /// Makes records visible.
    pub(super) fn publish(&self, entries: &[Entry]) {
        for step in entries.chunks(PUBLISH_STEP) {
            let mut open = self.open.write();
            for (id, location) in step {
                let pack = open.entry(location.place.pack).or_default();
                if location.kind == Kind::Commit {
                    pack.commits.push(*location);
                } else {
                    pack.records.insert(ChunkId::from_bytes(*id), *location);
                }
            }
        }
    }

    /// Adds a pack's file.
    pub(super) fn add_file(&self, pack: u32, file: &Arc<dyn DiskFile>) {
        self.packs.rcu(|packs| {
            let mut packs = Packs::clone(packs);
            packs.files.insert(pack, Arc::clone(file));
            packs
        });
    }

    /// Lets an index file stand for what the map holds of a pack.
    pub(super) fn add_index(&self, pack: u32, index: IndexFile) {
        let index = Arc::new(index);
        // Under the lock of the map: a collection that knows the index must not find a record in the map, where it has
        // no mark, and none may outlive the pack there.
        let mut open = self.open.write();
        self.packs.rcu(|packs| {
            let mut packs = Packs::clone(packs);
            packs.indexes.insert(pack, Arc::clone(&index));
            packs
        });
        open.remove(&pack);
    }

    /// Lets the map stand for an index file that is wrong. Nothing collects from a pack without an index file.
    pub(super) fn distrust(&self, pack: u32, entries: &[Entry]) {
        if !self.packs.load().files.contains_key(&pack) {
            return;
        }
        let mut known = OpenPack::default();
        for (id, location) in entries {
            if location.kind == Kind::Commit {
                known.commits.push(*location);
            } else {
                known.records.insert(ChunkId::from_bytes(*id), *location);
            }
        }
        let mut open = self.open.write();
        open.insert(pack, known);
        self.packs.rcu(|packs| {
            let mut packs = Packs::clone(packs);
            packs.indexes.remove(&pack);
            packs
        });
    }

    /// Puts a pack with its index in the place of one that is set aside.
    pub(super) fn set_aside(&self, pack: u32, added: Option<(u32, Arc<dyn DiskFile>, IndexFile)>) {
        self.replace(&BTreeSet::from([pack]), added);
        self.open.write().remove(&pack);
    }

    /// Replaces the packs that the running collection is about to remove.
    pub(super) fn condemn(&self, condemned: &BTreeMap<u32, Live>) {
        self.packs.rcu(|packs| {
            let mut packs = Packs::clone(packs);
            packs.condemned.clone_from(condemned);
            packs.condemnations += u64::from(!condemned.is_empty());
            packs
        });
    }

    /// Puts a pack with its index in the place of others. Returns the files that nothing refers to any more.
    pub(super) fn replace(
        &self,
        removed: &BTreeSet<u32>,
        added: Option<(u32, Arc<dyn DiskFile>, IndexFile)>,
    ) {
        let added = added.map(|(pack, file, index)| (pack, file, Arc::new(index)));
        self.packs.rcu(|packs| {
            let mut packs = Packs::clone(packs);
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
    pub(super) fn commits_since(&self, folded: u64) -> Vec<Location> {
        let mut commits = Vec::new();
        // First the maps: a pack that gets its index file in between is then found twice rather than never.
        for pack in self.open.read().values().rev() {
            commits.extend(pack.commits.iter().rev().copied());
        }
        let packs = self.packs.load_full();
        for index in packs.indexes.values().rev() {
            if index.tables().sequence > folded {
                commits.extend(index.commits().rev());
            }
        }
        let place = |location: &Location| (location.place.pack, location.place.offset);
        commits.sort_by_key(|location| std::cmp::Reverse(place(location)));
        commits.dedup_by_key(|location| place(location));
        commits
    }

    /// Returns what the maps hold of a pack.
    pub(super) fn open_entries(&self, pack: u32) -> Vec<Entry> {
        let open = self.open.read();
        let Some(pack) = open.get(&pack) else {
            return Vec::new();
        };
        let records = pack.records.iter().map(|(id, location)| (*id.as_bytes(), *location));
        let commits = pack.commits.iter().map(|location| ([0; 32], *location));
        records.chain(commits).collect()
    }
}

impl Packs {
    /// Tells whether the record at a place is the one that is looked for.
    fn has_header(&self, location: Location, kind: Kind, id: &[u8; 32]) -> Result<bool> {
        let pack = location.place.pack;
        // An open file outlives its removal.
        let Some(file) = self.files.get(&pack) else {
            return Ok(false);
        };
        let mut bytes = [0; HEADER_BYTES];
        file.read_at(u64::from(location.place.offset), &mut bytes)
            .map_err(|source| Error::Read { file: pack_name(pack), source })?;
        Ok(Header::parse(&bytes).is_some_and(|header| header.kind == kind && header.id == *id))
    }
}
