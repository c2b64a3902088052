//! Bytes that nobody wrote: decoders refuse them, and nothing above them panics.

use std::collections::HashMap;
use std::ops::Bound;

use bytes::Bytes;
use proptest::prelude::*;
use tympan_store::disk::MemoryDisk;
use tympan_store::{
    Chunk, ChunkBatch, ChunkId, ChunkStore, Error, LocalStore, LocalStoreOptions, ReadChunks,
    Result, SortedMap, StoreRoot, body, check_store,
};

use crate::map_model::{Edits, moves, value};
use crate::tree::site;

/// Chunks under ids that are not their hashes, as a hostile or damaged store might serve them.
struct Forged(HashMap<ChunkId, Chunk>);

impl ReadChunks for Forged {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        self.0.get(id).cloned().ok_or(Error::ChunkMissing { id: *id })
    }
}

/// Does everything that can be done with chunks; errors are fine, panics are not, and neither is running forever.
fn exercise(reads: &dyn ReadChunks, id: ChunkId, other: ChunkId) {
    let map = SortedMap::from_root(Some(id));
    let all = (Bound::Unbounded, Bound::Unbounded);
    drop(map.get(reads, b"content"));
    drop(map.count_records(reads));
    assert!(map.range(reads, all).take(100_000).count() < 100_000);
    let diff = map.diff(&SortedMap::from_root(Some(other)), reads);
    assert!(diff.take(100_000).count() < 100_000);
    let edits = Edits::from([(b"content".to_vec(), Some(value("x"))), (b"zzz".to_vec(), None)]);
    drop(map.edit(reads, &mut ChunkBatch::new(), edits));
    drop(body::read_body(reads, &id));
    drop(StoreRoot::read(reads, &id));
}

fn samples() -> Vec<(ChunkId, Bytes)> {
    let mut batch = ChunkBatch::new();
    let map = SortedMap::build(&mut batch, site(300)).unwrap();
    let maps = [("content".to_owned(), map)].into();
    StoreRoot { maps }.write(&mut batch).unwrap();
    body::write_body(&mut batch, &[1; 70_000], &[]).unwrap();
    let chunks = batch.chunks().map(|(id, bytes)| (*id, bytes.clone()));
    chunks.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(kind in 0..7_u8, level in 0..3_u8, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut whole = vec![kind, 1];
        whole.extend_from_slice(&bytes);
        if let Some(byte) = whole.get_mut(6) {
            *byte = level;
        }
        if let Ok(chunk) = Chunk::parse(whole.into()) {
            let id = ChunkId::hash_of(chunk.bytes());
            exercise(&Forged([(id, chunk)].into()), id, ChunkId::hash_of(b""));
        }
    }

    #[test]
    fn chunks_with_changed_bytes(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..400_usize, any::<u8>()), 1..6),
    ) {
        let samples = samples();
        let mut forged: HashMap<ChunkId, Chunk> = samples
            .iter()
            .map(|(id, bytes)| (*id, Chunk::parse(bytes.clone()).unwrap()))
            .collect();
        for (index, offset, byte) in changes {
            let (id, bytes) = index.get(&samples);
            let mut bytes = bytes.to_vec();
            let offset = offset % bytes.len();
            bytes[offset] = byte;
            if let Ok(chunk) = Chunk::parse(bytes.into()) {
                forged.insert(*id, chunk);
            }
        }
        let reads = Forged(forged);
        for (id, _) in &samples {
            exercise(&reads, *id, samples[0].0);
        }
    }

    #[test]
    fn packs_of_any_bytes(
        pack in proptest::collection::vec(any::<u8>(), 0..300),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        // A real pack with changed bytes and something behind it.
        let disk = MemoryDisk::new();
        let open = |disk: &MemoryDisk| {
            LocalStore::open(std::sync::Arc::new(disk.clone()), LocalStoreOptions::default())
        };
        let store = open(&disk).unwrap();
        for n in 0..3_u8 {
            let mut batch = ChunkBatch::new();
            let body = body::write_body(&mut batch, &[n; 50], &[]).unwrap();
            batch.add_ref_update(moves(&format!("r{n}"), None, Some(body)));
            store.commit(batch).unwrap();
        }
        drop(store);
        let mut bytes = disk.file_content("pack-000001").unwrap();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend_from_slice(&pack);
        disk.put_file("pack-000001", bytes);
        if let Ok(store) = open(&disk) {
            drop(check_store(&store));
            for (_, root) in store.list_refs().unwrap() {
                drop(store.read_chunk(&root));
            }
        }
        disk.put_file("pack-000001", pack);
        drop(open(&disk));
    }
}
