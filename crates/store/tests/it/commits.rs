//! Commits, refs and small blobs, through the trait that every store has.

use std::sync::atomic::{AtomicBool, Ordering};

use tympan_store::disk::Disk;
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, Error, LocalStore, LocalStoreOptions,
    ReadChunks, RecordCompression, SortedMap, StagedView, body,
};
use tympan_testkit::crash_disk::CrashDisk;

use crate::map_model::{Edits, moves, value};

fn body_of(batch: &mut ChunkBatch, text: &str) -> ChunkId {
    body::write_body(batch, text.as_bytes(), &[]).unwrap()
}

#[test]
fn a_ref_moves_by_compare_and_swap() {
    let store = LocalStore::open_in_memory().unwrap();
    let ids = ["one", "two"].map(|text| {
        let mut batch = ChunkBatch::new();
        let id = body_of(&mut batch, text);
        store.commit(batch).unwrap();
        id
    });
    let check = |expected, new, outcome: Result<(), Option<ChunkId>>| {
        let mut batch = ChunkBatch::new();
        let staged = body_of(&mut batch, &format!("{expected:?} to {new:?}"));
        batch.add_ref_update(moves("main", expected, new));
        match (store.commit(batch), outcome) {
            (Ok(()), Ok(())) => assert_eq!(store.read_ref("main").unwrap(), new),
            (Err(error @ Error::RefMoved { .. }), Err(found)) => {
                let Error::RefMoved { name, expected: believed, actual } = &error else {
                    unreachable!()
                };
                assert_eq!((name.as_str(), *believed, *actual), ("main", expected, found));
                assert!(!error.is_transient());
                assert!(!store.contains_chunks(&[staged]).unwrap()[0], "nothing is stored");
            }
            (outcome, _) => panic!("{outcome:?}"),
        }
    };
    let [one, two] = ids.map(Some);
    check(one, two, Err(None));
    check(None, one, Ok(()));
    check(None, two, Err(one));
    check(two, one, Err(one));
    check(one, two, Ok(()));
    check(two, None, Ok(()));
    assert_eq!(store.list_refs().unwrap(), []);
}

#[test]
fn revisions_are_read_back_newest_first() {
    let disk = CrashDisk::new();
    let options =
        LocalStoreOptions { pack_limit: ByteSize::from_kib(2), ..LocalStoreOptions::default() };
    let open = || LocalStore::open(std::sync::Arc::new(disk.clone()), options).unwrap();
    let store = open();
    let mut expected = Vec::new();
    for n in 0..30_u64 {
        let mut batch = ChunkBatch::new();
        let new = Some(body_of(&mut batch, &format!("{n}")));
        let mut update = moves("main", expected.last().copied().flatten(), new);
        update.updated_at += std::time::Duration::from_micros(n);
        update.message = format!("revision {n}");
        batch.add_ref_update(update);
        store.commit(batch).unwrap();
        expected.push(new);
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(moves(&format!("pin/{n}"), None, new));
        store.commit(batch).unwrap();
    }
    expected.reverse();
    let check = |store: &LocalStore| {
        let found = store.ref_history("main", None, 100).unwrap();
        let roots: Vec<_> = found.iter().map(|one| one.update.new_root).collect();
        assert_eq!(roots, expected);
        assert_eq!(found[0].update.message, "revision 29");
        assert_eq!(found[0].update.expected_root, found[1].update.new_root);
        assert_eq!(store.ref_history("main", None, 3).unwrap(), found[..3]);
        assert_eq!(store.ref_history("main", Some(found[9].sequence), 3).unwrap(), found[10..13]);
        assert_eq!(store.ref_history("absent", None, 3).unwrap(), []);
    };
    check(&store);
    drop(store);
    check(&open());
    assert!(disk.list_folder("").unwrap().len() > 3, "several packs");
}

#[test]
fn names_and_texts_beyond_the_limits_are_refused() {
    let store = LocalStore::open_in_memory().unwrap();
    let commit = |change: fn(&mut tympan_store::RefUpdate)| {
        let mut update = moves("main", None, Some(ChunkId::hash_of(b"")));
        change(&mut update);
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(update);
        store.commit(batch)
    };
    assert!(matches!(commit(|update| update.name = "n".repeat(256)), Err(Error::TooLong { .. })));
    assert!(matches!(commit(|update| update.name.clear()), Err(Error::KeyMalformed { .. })));
    assert!(matches!(
        commit(|update| update.message = "m".repeat(65_536)),
        Err(Error::TooLong { .. })
    ));
    assert!(matches!(
        commit(|update| update.author = "a".repeat(65_536)),
        Err(Error::TooLong { .. })
    ));
    let mut batch = ChunkBatch::new();
    let large = vec![0; (1 << 20) + 1];
    batch.add_blob(BlobId::hash_of(&large), large.into());
    assert!(matches!(store.commit(batch), Err(Error::TooLong { .. })));
    let mut batch = ChunkBatch::new();
    batch.add_chunk("not a chunk".into());
    assert!(matches!(store.commit(batch), Err(Error::ChunkMalformed { .. })));
}

#[test]
fn what_is_held_is_not_written_again() {
    let disk = CrashDisk::new();
    let store =
        LocalStore::open(std::sync::Arc::new(disk.clone()), LocalStoreOptions::default()).unwrap();
    let stage = || {
        let mut batch = ChunkBatch::new();
        let id = body_of(&mut batch, "the same");
        let blob = BlobId::hash_of(b"icon");
        batch.add_blob(blob, "icon".into());
        (batch, id, blob)
    };
    let (batch, id, blob) = stage();
    store.commit(batch).unwrap();
    let appended = disk.appended_bytes();
    let (batch, ..) = stage();
    store.commit(batch).unwrap();
    assert_eq!(disk.appended_bytes(), appended);
    assert_eq!(store.contains_chunks(&[id, ChunkId::hash_of(b"")]).unwrap(), [true, false]);
    assert_eq!(store.read_blob(&blob).unwrap().unwrap(), "icon");
    // The digest of a chunk is not the name of a blob, nor the other way round.
    assert!(store.read_blob(&BlobId::new(*id.as_bytes(), 4)).unwrap().is_none());
    assert!(matches!(
        store.read_chunk(&ChunkId::from_bytes(*blob.digest())),
        Err(Error::ChunkMissing { .. })
    ));
    assert!(store.read_blob(&BlobId::new(*blob.digest(), 5)).unwrap().is_none());
}

#[test]
fn a_staged_batch_is_read_before_the_store() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    let map = SortedMap::build(&mut batch, [(b"a".to_vec(), value("1"))].into_iter()).unwrap();
    store.commit(batch).unwrap();
    let mut batch = ChunkBatch::new();
    let edits = Edits::from([(b"b".to_vec(), Some(value("2")))]);
    let edited = map.edit(&store, &mut batch, edits).unwrap();
    assert!(matches!(edited.get(&store, b"b"), Err(Error::ChunkMissing { .. })));
    let staged = StagedView::new(&batch, &store);
    assert_eq!(edited.get(&staged, b"b").unwrap(), Some(value("2")));
    assert_eq!(map.get(&staged, b"a").unwrap(), Some(value("1")));
}

#[test]
fn lz4_and_plain_hold_the_same() {
    for compression in [RecordCompression::None, RecordCompression::Lz4] {
        let disk = CrashDisk::new();
        let options = LocalStoreOptions {
            compression,
            cache_size: ByteSize::from_bytes(0),
            pack_limit: ByteSize::from_kib(2),
        };
        let open = || LocalStore::open(std::sync::Arc::new(disk.clone()), options).unwrap();
        let store = open();
        let mut batch = ChunkBatch::new();
        let ids: Vec<ChunkId> =
            (0..40).map(|n| body_of(&mut batch, &format!("{n} ").repeat(50))).collect();
        batch.add_ref_update(moves("main", None, Some(ids[0])));
        store.commit(batch).unwrap();
        drop(store);
        let packs = disk.list_folder("").unwrap().len();
        assert_eq!(packs > 8, compression == RecordCompression::None, "{packs} files");
        let store = open();
        for (n, id) in ids.iter().enumerate() {
            let text = format!("{n} ").repeat(50);
            assert_eq!(body::read_body(&store, id).unwrap().payload, text);
        }
    }
}

#[test]
fn readers_and_writers_share_a_store() {
    // Small packs, so that sealing goes on under the readers; no cache, so that they look every chunk up.
    let options = LocalStoreOptions {
        cache_size: ByteSize::from_bytes(0),
        pack_limit: ByteSize::from_kib(4),
        ..LocalStoreOptions::default()
    };
    let store = LocalStore::open(std::sync::Arc::new(CrashDisk::new()), options).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0_u32;
                while !is_done.load(Ordering::Relaxed) || seen == 0 {
                    for (_, root) in store.list_refs().unwrap() {
                        body::read_body(&store, &root).unwrap();
                        seen += 1;
                    }
                }
            });
        }
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    let name = format!("writer-{writer}");
                    let mut root = None;
                    for n in 0..60 {
                        let mut batch = ChunkBatch::new();
                        let next = Some(body_of(&mut batch, &format!("{writer} {n} ").repeat(20)));
                        batch.add_ref_update(moves(&name, root, next));
                        store.commit(batch).unwrap();
                        root = next;
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(store.list_refs().unwrap().len(), 3);
    assert!(tympan_store::check_store(&store).unwrap().is_clean());
}

#[test]
fn the_bytes_of_a_pack_are_pinned() {
    // Other bytes mean another format version: existing packs must still be read.
    let disk = CrashDisk::new();
    let options =
        LocalStoreOptions { compression: RecordCompression::None, ..LocalStoreOptions::default() };
    let store = LocalStore::open(std::sync::Arc::new(disk.clone()), options).unwrap();
    let mut batch = ChunkBatch::new();
    let body = body_of(&mut batch, "a body");
    batch.add_blob(BlobId::hash_of(b"icon"), "icon".into());
    batch.add_ref_update(moves("main", None, Some(body)));
    store.commit(batch).unwrap();
    let pack = disk.content("pack-000001").unwrap();
    assert_eq!(pack.len(), 93 + 56 + 64 + 130);
    let expected = "360439906b68d15beec7b56ba9f023abf78950b537dcf379dcdf6ca900145af3";
    assert_eq!(ChunkId::hash_of(&pack).to_string(), expected);
}
