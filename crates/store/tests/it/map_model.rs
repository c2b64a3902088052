//! Models and counters that the tests of the store share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use tympan_store::{
    Chunk, ChunkBatch, ChunkId, ChunkStore, LocalStore, MapValue, ReadChunks, RefUpdate, Result,
    SortedMap,
};

/// The plain model of a map.
pub(crate) type Model = BTreeMap<Vec<u8>, MapValue>;
/// Edits of a map; `None` deletes.
pub(crate) type Edits = BTreeMap<Vec<u8>, Option<MapValue>>;

/// Counts what is read.
pub(crate) struct Counting<'a> {
    store: &'a dyn ReadChunks,
    reads: AtomicU64,
}

impl<'a> Counting<'a> {
    pub(crate) fn new(store: &'a dyn ReadChunks) -> Self {
        Self { store, reads: AtomicU64::new(0) }
    }

    /// Returns the reads since the last call.
    pub(crate) fn take(&self) -> u64 {
        self.reads.swap(0, Ordering::Relaxed)
    }
}

impl ReadChunks for Counting<'_> {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.read_chunk(id)
    }
}

pub(crate) fn value(text: impl Into<Vec<u8>>) -> MapValue {
    MapValue { bytes: Bytes::from(text.into()), body: None }
}

/// Applies edits to the model.
pub(crate) fn apply(model: &mut Model, edits: &Edits) {
    for (key, edit) in edits {
        match edit {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
}

/// Builds the map of a model and stores it.
pub(crate) fn build(store: &LocalStore, model: &Model) -> SortedMap {
    let mut batch = ChunkBatch::new();
    let records = model.iter().map(|(key, value)| (key.clone(), value.clone()));
    let map = SortedMap::build(&mut batch, records).unwrap();
    store.commit(batch).unwrap();
    map
}

/// Edits a map and stores the result. Returns it with the number and bytes of the new chunks.
pub(crate) fn edit(store: &LocalStore, map: SortedMap, edits: &Edits) -> (SortedMap, usize, usize) {
    let mut batch = ChunkBatch::new();
    let edited = map.edit(store, &mut batch, edits.clone()).unwrap();
    let chunks = batch.chunks().len();
    let bytes = batch.chunks().map(|(_, bytes)| bytes.len()).sum();
    store.commit(batch).unwrap();
    (edited, chunks, bytes)
}

/// Moves a ref.
pub(crate) fn moves(name: &str, expected: Option<ChunkId>, new: Option<ChunkId>) -> RefUpdate {
    RefUpdate {
        name: name.to_owned(),
        expected_root: expected,
        new_root: new,
        updated_at: UNIX_EPOCH,
        author: "Ada".to_owned(),
        message: "test".to_owned(),
    }
}

/// A small generator of numbers that look random; the seed makes a test repeatable.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}
