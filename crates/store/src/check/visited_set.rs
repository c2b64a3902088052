//! The set of chunks that a walk has found intact: one bit for each chunk in a pack with an index file.

use std::collections::{HashMap, HashSet};

use crate::id::ChunkId;
use crate::local::LocalStore;

/// A set of chunks of one store.
pub(crate) struct VisitedChunks<'a> {
    store: &'a LocalStore,
    /// By pack, one bit for each entry of its index file.
    pack_bits: HashMap<u32, Vec<u64>>,
    unindexed: HashSet<ChunkId>,
    chunk_count: u64,
}

impl<'a> VisitedChunks<'a> {
    pub(crate) fn new(store: &'a LocalStore) -> Self {
        Self { store, pack_bits: HashMap::new(), unindexed: HashSet::new(), chunk_count: 0 }
    }

    /// Returns the number of chunks.
    pub(crate) fn len(&self) -> u64 {
        self.chunk_count
    }

    pub(crate) fn contains(&self, id: &ChunkId) -> bool {
        let Some((pack, ordinal)) = self.store.index_ordinal(id) else {
            return self.unindexed.contains(id);
        };
        let word = self.pack_bits.get(&pack).and_then(|bits| bits.get(ordinal / 64));
        word.is_some_and(|word| word & 1 << (ordinal % 64) != 0)
    }

    pub(crate) fn insert(&mut self, id: ChunkId) {
        let is_new = match self.store.index_ordinal(&id) {
            None => self.unindexed.insert(id),
            Some((pack, ordinal)) => {
                let bits = self.pack_bits.entry(pack).or_default();
                if bits.len() <= ordinal / 64 {
                    bits.resize(ordinal / 64 + 1, 0);
                }
                let bit = 1 << (ordinal % 64);
                bits.get_mut(ordinal / 64).is_some_and(|word| {
                    let is_new = *word & bit == 0;
                    *word |= bit;
                    is_new
                })
            }
        };
        self.chunk_count += u64::from(is_new);
    }
}
