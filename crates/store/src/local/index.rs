//! Where each record is: a hash map for the open pack, index files for the sealed ones.
//!
//! Invariant: a lock here is never held while the disk is asked for anything.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::RwLock;

use super::index_file::{Entry, IndexFile, Location};
use super::record::Kind;
use crate::disk::DiskFile;
use crate::id::ChunkId;

/// How many entries are published under one lock.
const PUBLISH_STEP: usize = 256;

/// Where each record is.
#[derive(Debug, Default)]
pub(super) struct Index {
    open: RwLock<HashMap<ChunkId, Location>>,
    packs: ArcSwap<Packs>,
}

/// The packs of a store, replaced as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Packs {
    pub(super) files: BTreeMap<u32, Arc<dyn DiskFile>>,
    pub(super) indexes: BTreeMap<u32, Arc<IndexFile>>,
}

impl Index {
    /// Finds a chunk, blob or commit.
    pub(super) fn find(&self, kind: Kind, id: &[u8; 32]) -> Option<Location> {
        let is_kind = |location: &Location| location.kind == kind;
        let open = self.open.read().get(&ChunkId::from_bytes(*id)).copied();
        if let Some(found) = open.filter(is_kind) {
            return Some(found);
        }
        // The newest packs hold what is asked for most.
        let packs = self.packs.load();
        let found = packs.indexes.values().rev().find_map(|index| index.find(id));
        if let Some(found) = found {
            return Some(found).filter(is_kind);
        }
        // A pack that was sealed in between has moved from the one to the other, so the map is asked last again.
        let open = self.open.read().get(&ChunkId::from_bytes(*id)).copied();
        open.filter(is_kind)
    }

    /// Returns the file of a pack.
    pub(super) fn file(&self, pack: u32) -> Option<Arc<dyn DiskFile>> {
        self.packs.load().files.get(&pack).cloned()
    }

    /// Returns all packs.
    pub(super) fn packs(&self) -> Arc<Packs> {
        self.packs.load_full()
    }

    /// Makes records visible.
    pub(super) fn publish(&self, entries: &[Entry]) {
        for step in entries.chunks(PUBLISH_STEP) {
            let mut open = self.open.write();
            for (id, location) in step {
                open.insert(ChunkId::from_bytes(*id), *location);
            }
        }
    }

    /// Adds a pack's file.
    pub(super) fn add_file(&self, pack: u32, file: Arc<dyn DiskFile>) {
        let mut packs = Packs::clone(&self.packs.load());
        packs.files.insert(pack, file);
        self.packs.store(Arc::new(packs));
    }

    /// Replaces what the map holds of a pack by its index file.
    pub(super) fn add_index(&self, pack: u32, index: IndexFile) {
        let mut packs = Packs::clone(&self.packs.load());
        packs.indexes.insert(pack, Arc::new(index));
        self.packs.store(Arc::new(packs));
        let is_other = |location: &Location| location.place.pack != pack;
        let rest: HashMap<ChunkId, Location> = {
            let open = self.open.read();
            let rest = open.iter().filter(|(_, location)| is_other(location));
            rest.map(|(id, location)| (*id, *location)).collect()
        };
        // Only the writer changes the map, and it is the caller.
        *self.open.write() = rest;
    }

    /// Returns all commit records, newest first.
    pub(super) fn commits(&self) -> Vec<Location> {
        let packs = self.packs.load_full();
        let is_commit = |location: &Location| location.kind == Kind::Commit;
        let sealed = packs.indexes.values().flat_map(|index| index.entries());
        let sealed = sealed.map(|(_, location)| location);
        let mut commits: Vec<Location> = sealed.filter(is_commit).collect();
        commits.extend(self.open.read().values().copied().filter(is_commit));
        let place = |location: &Location| (location.place.pack, location.place.offset);
        commits.sort_unstable_by_key(|location| std::cmp::Reverse(place(location)));
        commits
    }

    /// Returns what the map holds of a pack.
    pub(super) fn open_entries(&self, pack: u32) -> Vec<Entry> {
        let open = self.open.read();
        let entries = open.iter().filter(|(_, at)| at.place.pack == pack);
        entries.map(|(id, location)| (*id.as_bytes(), *location)).collect()
    }
}
