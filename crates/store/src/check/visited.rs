//! The chunks that a walk has found whole: a bit for each, as far as they lie in packs with an index file.

use std::collections::{HashMap, HashSet};

use crate::id::ChunkId;
use crate::local::LocalStore;

/// A set of chunks of one store.
pub(crate) struct Visited<'a> {
    store: &'a LocalStore,
    /// By pack, a bit for each entry of its index file.
    packs: HashMap<u32, Vec<u64>>,
    elsewhere: HashSet<ChunkId>,
    count: u64,
}

impl<'a> Visited<'a> {
    pub(crate) fn new(store: &'a LocalStore) -> Self {
        Self { store, packs: HashMap::new(), elsewhere: HashSet::new(), count: 0 }
    }

    /// Returns the number of chunks.
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    pub(crate) fn contains(&self, id: &ChunkId) -> bool {
        let Some((pack, ordinal)) = self.store.ordinal_of(id) else {
            return self.elsewhere.contains(id);
        };
        let word = self.packs.get(&pack).and_then(|bits| bits.get(ordinal / 64));
        word.is_some_and(|word| word & 1 << (ordinal % 64) != 0)
    }

    pub(crate) fn insert(&mut self, id: ChunkId) {
        let is_new = match self.store.ordinal_of(&id) {
            None => self.elsewhere.insert(id),
            Some((pack, ordinal)) => {
                let bits = self.packs.entry(pack).or_default();
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
        self.count += u64::from(is_new);
    }
}
