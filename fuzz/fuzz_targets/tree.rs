//! Trees of forged chunks, as a hostile or damaged store might serve them: errors are fine, panics and endless walks are not.
//!
//! Input: chunks, each after its length in two bytes. A reference finds the chunk that its first byte tells.
#![no_main]

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tympan_store::{
    Chunk, ChunkBatch, ChunkId, Error, MapValue, ReadChunks, Result, SortedMap, StoreRoot, body,
};

const MANY: usize = 100_000;

struct Forged(Vec<Chunk>);

impl ReadChunks for Forged {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        let [first, ..] = id.as_bytes();
        let chunk = self.0.get(usize::from(*first));
        chunk.cloned().ok_or(Error::ChunkMissing { id: *id })
    }
}

fuzz_target!(|data: &[u8]| {
    let mut chunks = Vec::new();
    let mut rest = data;
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (chunk, after) = after.split_at(length);
        chunks.extend(Chunk::parse(Bytes::copy_from_slice(chunk)));
        rest = after;
    }
    let count = u8::try_from(chunks.len()).unwrap_or(u8::MAX);
    let reads = Forged(chunks);
    let map_of = |number: u8| SortedMap::from_root(Some(id_of(number)));
    for number in 0..count.min(4) {
        let map = map_of(number);
        let all = (Bound::Unbounded, Bound::Unbounded);
        drop(map.get(&reads, b"content"));
        drop(map.count_records(&reads));
        assert!(map.range(&reads, all).take(MANY).count() < MANY);
        assert!(map.diff(&map_of(number.wrapping_add(1)), &reads).take(MANY).count() < MANY);
        let value = MapValue { bytes: Bytes::from_static(b"x"), body: None };
        let edits = BTreeMap::from([(b"content".to_vec(), Some(value)), (b"zzz".to_vec(), None)]);
        drop(map.edit(&reads, &mut ChunkBatch::new(), edits));
        drop(body::read_body(&reads, &id_of(number)));
        drop(StoreRoot::read(&reads, &id_of(number)));
    }
});

fn id_of(number: u8) -> ChunkId {
    let mut id = [0; 32];
    id[0] = number;
    ChunkId::from_bytes(id)
}
