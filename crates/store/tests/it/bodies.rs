//! Bodies and roots of any size.

use std::collections::BTreeMap;

use tympan_store::{
    BlobId, ChunkBatch, ChunkKind, ChunkStore, Error, LocalStore, MAX_CHUNK_BYTES, ReadChunks,
    SortedMap, StagedView, StoreRoot, body,
};

use crate::map_model::{Numbers, moves, value};

fn blobs(count: usize) -> Vec<BlobId> {
    (0..count as u64).map(|n| BlobId::hash_of(&n.to_le_bytes())).collect()
}

fn check(bytes: usize, blob_count: usize, expected_chunks: usize) {
    let store = LocalStore::open_in_memory().unwrap();
    let mut numbers = Numbers(1);
    let payload: Vec<u8> = (0..bytes).map(|_| numbers.below(256) as u8).collect();
    let mut sorted = blobs(blob_count);
    let mut batch = ChunkBatch::new();
    let id = body::write_body(&mut batch, &payload, &sorted).unwrap();
    sorted.reverse();
    sorted.extend(blobs(blob_count.min(3)));
    let again = body::write_body(&mut batch, &payload, &sorted).unwrap();
    assert_eq!(id, again, "order and repetition of blobs do not matter");
    let found = body::read_body(&StagedView::new(&batch, &store), &id).unwrap();
    assert_eq!(found.payload, payload);
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(found.blobs, sorted);
    assert_eq!(batch.chunks().len(), expected_chunks, "{bytes} bytes");
    store.commit(batch).unwrap();
    let all = body::list_body_chunks(&store, &id).unwrap();
    assert_eq!(all.len(), expected_chunks);
    for chunk in store.read_chunks(&all).unwrap() {
        assert!(chunk.bytes().len() <= MAX_CHUNK_BYTES);
    }
}

#[test]
fn bodies_of_all_sizes_are_read_back() {
    check(0, 0, 1);
    check(10_000, 0, 1);
    check(MAX_CHUNK_BYTES - 6, 0, 1);
    check(MAX_CHUNK_BYTES - 5, 0, 3);
    check(MAX_CHUNK_BYTES - 46, 1, 1);
    check(MAX_CHUNK_BYTES - 45, 1, 3);
    check(1_000_000, 0, 32);
    check(0, 1_600, 1);
    check(0, 2_000, 5);
    check(40_000, 3_000, 7);
    // Two levels of lists: 1,100 pieces, 2 lists and the list of these.
    check(32_768 * 1_100, 0, 1_103);
}

#[test]
fn a_body_is_found_under_its_own_kind_only() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    let map = SortedMap::build(&mut batch, [(b"a".to_vec(), value("1"))].into_iter()).unwrap();
    let leaf = map.root().unwrap();
    let body = body::write_body(&mut batch, b"text", &[]).unwrap();
    store.commit(batch).unwrap();
    assert!(matches!(body::read_body(&store, &leaf), Err(Error::ChunkKindMismatch { .. })));
    assert!(matches!(StoreRoot::read(&store, &leaf), Err(Error::ChunkKindMismatch { .. })));
    let misnamed = SortedMap::from_root(Some(body));
    assert!(matches!(misnamed.get(&store, b"a"), Err(Error::ChunkKindMismatch { .. })));
}

#[test]
fn roots_list_maps_by_name_and_forget_empty_ones() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    let map = SortedMap::build(&mut batch, [(b"a".to_vec(), value("1"))].into_iter()).unwrap();
    let named = |names: &[(&str, SortedMap)]| StoreRoot {
        maps: names.iter().map(|(name, map)| ((*name).to_owned(), *map)).collect(),
    };
    let root = named(&[("content", map), ("by-id", SortedMap::EMPTY_MAP), ("tags", map)]);
    let id = root.write(&mut batch).unwrap();
    let without = named(&[("content", map), ("tags", map)]);
    assert_eq!(without.write(&mut batch).unwrap(), id);
    batch.add_ref_update(moves("main", None, Some(id)));
    store.commit(batch).unwrap();
    let found = StoreRoot::read(&store, &id).unwrap();
    assert_eq!(found, without);
    assert_eq!((found.map("tags"), found.map("by-id")), (map, SortedMap::EMPTY_MAP));
    let chunk = store.read_chunk(&id).unwrap();
    assert_eq!((chunk.kind(), chunk.chunk_refs().len()), (ChunkKind::Root, 2));
    let empty = StoreRoot { maps: BTreeMap::new() };
    let id = empty.write(&mut ChunkBatch::new()).unwrap();
    assert!(matches!(StoreRoot::read(&store, &id), Err(Error::ChunkMissing { .. })));
    let long = named(&[(&"n".repeat(256), map)]);
    assert!(matches!(long.write(&mut ChunkBatch::new()), Err(Error::TooLong { .. })));
    let names: Vec<String> = (0..=200).map(|number| format!("map-{number}")).collect();
    let maps: Vec<_> = names.iter().map(|name| (name.as_str(), map)).collect();
    let refused = named(&maps).write(&mut ChunkBatch::new()).unwrap_err().to_string();
    assert_eq!(refused, "201 maps of a root are too many: at most 200 are allowed");
}
