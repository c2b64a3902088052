//! A stored sample of each format version, which must stay readable.
//!
//! `tests/samples/v1` was written by this program once. When a version is released, its sample is never written again;
//! a new format version gets a sample of its own, made with `TYMPAN_SAMPLE=DIR cargo test -p tympan-store sample`.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tympan_store::disk::{FileDisk, MemoryDisk};
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkStore, GarbageCollectionOptions, LocalStore,
    LocalStoreOptions, MapValue, RevisionRetention, RootLease, SortedMap, StoreRoot, body,
    check_store,
};

use crate::map_model::{Edits, moves, value};

/// Writes a store with everything in it that the format knows: both kinds of packs, leaves and interior chunks, bodies
/// whole and in pieces, small blobs, several refs, folded and young revisions, leases, lz4 and plain records.
fn write(dir: &Path) {
    let disk = Arc::new(FileDisk::open(dir).unwrap());
    let options =
        LocalStoreOptions { pack_limit: ByteSize::from_kib(24), ..LocalStoreOptions::default() };
    let store = LocalStore::open(disk, options).unwrap();
    let (mut map, mut root) = (SortedMap::EMPTY_MAP, None);
    for save in 0..12_u64 {
        let mut batch = ChunkBatch::new();
        let mut edits = Edits::new();
        for n in 0..40 {
            edits.insert(key(n), Some(record(&mut batch, n, save)));
        }
        map = map.edit(&store, &mut batch, edits).unwrap();
        let maps = BTreeMap::from([("content".to_owned(), map)]);
        let new = StoreRoot { maps }.write(&mut batch).unwrap();
        let mut update = moves("main", root, Some(new));
        update.updated_at = UNIX_EPOCH + Duration::from_hours(save);
        update.message = format!("save {save}");
        batch.add_ref_update(update);
        if save == 3 {
            batch.add_ref_update(moves("branch/ä", None, Some(new)));
            batch.grant_lease(RootLease { holder: "ever".to_owned(), root: new, expires_at: None });
            let expires = Some(UNIX_EPOCH + Duration::from_hours(50));
            batch.grant_lease(RootLease {
                holder: "for a time".to_owned(),
                root: new,
                expires_at: expires,
            });
        }
        store.commit(batch).unwrap();
        root = Some(new);
        if save == 7 {
            let retention = RevisionRetention { hourly_count: 3, ..RevisionRetention::KEEP_NEWEST };
            let now = UNIX_EPOCH + Duration::from_hours(8);
            let options =
                GarbageCollectionOptions { retention, ..GarbageCollectionOptions::at_time(now) };
            store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        }
    }
    store.close().unwrap();
}

fn key(n: u64) -> Vec<u8> {
    format!("content\u{1}site\0page-{n:03}").into_bytes()
}

fn text(n: u64, save: u64) -> Vec<u8> {
    // Noise does not shrink, words do.
    match n % 4 {
        0 => (0..200).map(|at| blake3::hash(&[n as u8, save as u8, at]).as_bytes()[0]).collect(),
        1 => format!("page {n} as of save {} ", save / 3).repeat(30).into_bytes(),
        _ => format!("page {n}").into_bytes(),
    }
}

fn record(batch: &mut ChunkBatch, n: u64, save: u64) -> MapValue {
    let text = text(n, save);
    let blob = BlobId::hash_of(&text);
    batch.add_blob(blob, text.clone().into());
    let body = if n == 39 { text.repeat(9_000) } else { text };
    MapValue {
        body: Some(body::write_body(batch, &body, &[blob]).unwrap()),
        ..value(format!("{n} {save}"))
    }
}

#[test]
fn the_sample_of_version_1_is_read() {
    if let Some(dir) = std::env::var_os("TYMPAN_SAMPLE") {
        write(Path::new(&dir));
    }
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/v1");
    let disk = MemoryDisk::new();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(sample).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        disk.put_file(&name, std::fs::read(entry.path()).unwrap());
        names.push(name);
    }
    assert!(names.iter().any(|name| name.starts_with("live-")), "{names:?}");
    // With its index files, and without: then they are made again.
    for _ in 0..2 {
        let store = LocalStore::open(Arc::new(disk.clone()), LocalStoreOptions::default()).unwrap();
        let report = check_store(&store).unwrap();
        assert!(report.is_clean() && report.external_blobs.is_empty(), "{report:?}");
        let history = store.ref_history("main", None, 100).unwrap();
        let messages: Vec<&str> = history.iter().map(|one| one.update.message.as_str()).collect();
        let expected = [11, 10, 9, 8, 7, 6, 5].map(|save| format!("save {save}"));
        assert_eq!(messages, expected);
        let leases = store.list_leases().unwrap();
        assert_eq!(
            leases.iter().map(|one| one.holder.as_str()).collect::<Vec<_>>(),
            ["ever", "for a time"]
        );
        assert_eq!(leases[1].expires_at, Some(UNIX_EPOCH + Duration::from_hours(50)));
        for (name, save) in [("main", 11), ("branch/ä", 3)] {
            let root = store.read_ref(name).unwrap().unwrap();
            let map = StoreRoot::read(&store, &root).unwrap().map("content");
            let all = map.range(&store, (Bound::Unbounded, Bound::Unbounded));
            let records: Vec<_> = all.collect::<Result<_, _>>().unwrap();
            assert_eq!(records.len(), 40);
            for ((found, value), n) in records.iter().zip(0..) {
                assert_eq!(
                    (&found[..], &value.bytes[..]),
                    (&key(n)[..], format!("{n} {save}").as_bytes())
                );
                let body = body::read_body(&store, &value.body.unwrap()).unwrap();
                let expected = text(n, save);
                let blob = store.read_blob(&body.blobs[0]).unwrap().unwrap();
                assert_eq!(blob, expected);
                let whole = if n == 39 { expected.repeat(9_000) } else { expected };
                assert_eq!(body.payload, whole);
            }
        }
        drop(store);
        for name in names.iter().filter(|name| name.ends_with(".index")) {
            tympan_store::disk::Disk::remove_file(&disk, name).unwrap();
        }
    }
}
