//! A store over a base: it holds what its refs reach, whatever becomes of the base, as long as the lease lives.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_store::disk::MemoryDisk;
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, Error, GarbageCollectionMode,
    GarbageCollectionOptions, GarbageCollectionReport, LayeredStore, LocalStore, LocalStoreOptions,
    ReadChunks, ReadOnlyLocalStore, RefUpdate, RevisionRetention, RootLease, SortedMap, StoreRoot,
    acquire_lease, body, check_store,
};

use crate::map_model::{Edits, Model, Numbers, value};

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);
const DAY: Duration = Duration::from_hours(24);

fn options() -> LocalStoreOptions {
    LocalStoreOptions {
        pack_limit: ByteSize::from_kib(6),
        cache_size: ByteSize::from_bytes(0),
        ..LocalStoreOptions::default()
    }
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn moved(expected: Option<ChunkId>, new: ChunkId, now: u64) -> RefUpdate {
    RefUpdate {
        name: "main".to_owned(),
        expected_root: expected,
        new_root: Some(new),
        updated_at: at(now),
        author: "Ada".to_owned(),
        message: "test".to_owned(),
    }
}

/// Writes pages with bodies and blobs; `None` takes one away. Returns the new root.
fn save(store: &dyn ChunkStore, pages: &[(u64, Option<&str>)], now: u64) -> ChunkId {
    let from = store.read_ref("main").unwrap();
    let map = match from {
        Some(root) => StoreRoot::read(store, &root).unwrap().map("content"),
        None => SortedMap::EMPTY_MAP,
    };
    let mut batch = ChunkBatch::new();
    let mut edits = Edits::new();
    for (page, text) in pages {
        let record = text.map(|text| {
            let bytes = text.repeat(200);
            let blob = BlobId::hash_of(bytes.as_bytes());
            batch.add_blob(blob, bytes.clone().into());
            let mut record = value(text);
            record.body = Some(body::write_body(&mut batch, bytes.as_bytes(), &[blob]).unwrap());
            record
        });
        edits.insert(format!("page-{page:04}").into_bytes(), record);
    }
    let map = map.edit(store, &mut batch, edits).unwrap();
    let maps = BTreeMap::from([("content".to_owned(), map)]);
    let root = StoreRoot { maps }.write(&mut batch).unwrap();
    batch.add_ref_update(moved(from, root, now));
    store.commit(batch).unwrap();
    root
}

/// Reads everything below `main`; returns the texts by page.
fn read_all(store: &dyn ChunkStore) -> Result<BTreeMap<String, String>, Error> {
    let root = store.read_ref("main")?.unwrap();
    let map = StoreRoot::read(store, &root)?.map("content");
    let mut texts = BTreeMap::new();
    for entry in map.range(store, ALL) {
        let (key, record) = entry?;
        let text = String::from_utf8(record.bytes.to_vec()).unwrap();
        let body = body::read_body(store, &record.body.unwrap())?.payload;
        assert_eq!(body, text.repeat(200).as_bytes());
        let blob = BlobId::hash_of(&body);
        assert_eq!(store.read_blob(&blob)?.expect("a blob that is referred to"), body);
        texts.insert(String::from_utf8(key.to_vec()).unwrap(), text);
    }
    Ok(texts)
}

fn collect(store: &dyn ChunkStore, now: u64) -> Result<GarbageCollectionReport, Error> {
    let options = GarbageCollectionOptions {
        retention: RevisionRetention::KEEP_NEWEST,
        min_live_share: 1.1,
        mode: GarbageCollectionMode::Remove,
        ..GarbageCollectionOptions::at_time(at(now))
    };
    store.collect_garbage(&options, &mut |_| ControlFlow::Continue(()))
}

/// A base with some pages, and a staging store over it.
struct World {
    base: LocalStore,
    base_disk: MemoryDisk,
    own_disk: MemoryDisk,
    staging: LayeredStore,
}

fn world(pages: u64) -> World {
    let disk = MemoryDisk::new();
    let base = LocalStore::open(Arc::new(disk.clone()), options()).unwrap();
    let texts: Vec<String> = (0..pages).map(|page| format!("text of {page}")).collect();
    let pages: Vec<_> = (0..).zip(texts.iter().map(|text| Some(text.as_str()))).collect();
    save(&base, &pages, 0);
    let followed = Arc::new(ReadOnlyLocalStore::open(Arc::new(disk.clone()), options()).unwrap());
    let lease = acquire_lease(followed.as_ref(), "staging", "main", at(0), DAY).unwrap();
    let own_disk = MemoryDisk::new();
    let own = Arc::new(LocalStore::open(Arc::new(own_disk.clone()), options()).unwrap());
    let root = lease.root;
    let staging = LayeredStore::new(own, followed, lease).unwrap();
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moved(None, root, 0));
    staging.commit(batch).unwrap();
    World { base, base_disk: disk, own_disk, staging }
}

/// An empty store over an empty base, for tests of what every store does.
pub(crate) fn fresh(options: LocalStoreOptions) -> Arc<dyn ChunkStore> {
    let disk = MemoryDisk::new();
    LocalStore::open(Arc::new(disk.clone()), options).unwrap();
    let base = Arc::new(ReadOnlyLocalStore::open(Arc::new(disk), options).unwrap());
    let own = LocalStore::open(Arc::new(MemoryDisk::new()), options).unwrap();
    let root = ChunkId::hash_of(b"nothing");
    let lease = RootLease { holder: "staging".to_owned(), root, expires_at: None };
    Arc::new(LayeredStore::new(Arc::new(own), base, lease).unwrap())
}

fn length(disk: &MemoryDisk) -> usize {
    disk.file_content("pack-000001").unwrap().len()
}

#[test]
fn a_clone_costs_one_commit_whatever_the_size() {
    let lengths: Vec<usize> = [1, 30, 600].map(|pages| length(&world(pages).own_disk)).into();
    assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{lengths:?}");
    assert!(lengths[0] < 400, "{lengths:?}");
    let world = world(600);
    assert_eq!(read_all(&world.staging).unwrap(), read_all(&world.base).unwrap());
    assert_eq!(length(&world.own_disk), lengths[0], "reading stores nothing");
}

#[test]
fn an_edit_stores_what_is_new_and_taking_it_back_stores_nothing() {
    let world = world(300);
    let first = world.staging.read_ref("main").unwrap().unwrap();
    save(&world.staging, &[(7, Some("edited"))], 1);
    let grown = length(&world.own_disk);
    assert!(grown < 14_000, "{grown} bytes for one page");
    let texts = read_all(&world.staging).unwrap();
    assert_eq!((texts["page-0007"].as_str(), texts["page-0008"].as_str()), ("edited", "text of 8"));
    assert_eq!(read_all(&world.base).unwrap()["page-0007"], "text of 7");
    // The body was read before it was edited, so that it is known to be below the leased root.
    assert_eq!(save(&world.staging, &[(7, Some("text of 7"))], 2), first);
    let commit = length(&world.own_disk) - grown;
    assert!(commit < 700, "{commit} bytes for going back");
    assert!(read_all(&world.staging).unwrap()["page-0007"] == "text of 7");
}

#[test]
fn nothing_is_relied_on_that_the_lease_does_not_keep() {
    let world = world(40);
    read_all(&world.staging).unwrap();
    // Production writes a page, staging writes the same one, production drops it.
    save(&world.base, &[(900, Some("news"))], 1);
    let staged = save(&world.staging, &[(900, Some("news"))], 1);
    assert_eq!(world.base.read_ref("main").unwrap(), Some(staged), "equal content, equal roots");
    let own = world.staging.overlay();
    assert_eq!(own.contains_chunks(&[staged]).unwrap(), [true], "stored although the base held it");
    save(&world.base, &[(900, None), (3, Some("other"))], 2);
    for now in 3..16 {
        save(&world.base, &[(3, Some(&format!("filler {now}")))], now);
        collect(&world.base, now).unwrap();
        collect(&world.staging, now).unwrap();
    }
    let root = world.base.read_ref("main").unwrap().unwrap();
    assert_eq!(world.base.contains_chunks(&[staged]).unwrap(), [false]);
    assert_eq!(read_all(&world.staging).unwrap()["page-0900"], "news");
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moved(Some(staged), root, 17));
    let refused = world.staging.commit(batch).unwrap_err();
    assert!(matches!(refused, Error::ChunkMissing { .. }), "a root of the base that is not leased");
    assert!(check_store(own).unwrap().is_clean());
}

#[test]
fn both_sides_edit_and_collect_and_staging_keeps_its_own() {
    for seed in 0..6 {
        let mut numbers = Numbers(seed);
        let mut world = world(20 + seed * 30);
        let mut model = read_all(&world.staging).unwrap();
        for now in 1..60 {
            let page = numbers.below(60);
            let text = format!("text of {}", numbers.below(8));
            match numbers.below(9) {
                0..=2 => {
                    save(&world.base, &[(page, Some(&text))], now);
                }
                3..=5 => {
                    save(&world.staging, &[(page, Some(&text))], now);
                    model.insert(format!("page-{page:04}"), text);
                }
                6 => {
                    collect(&world.base, now).unwrap();
                }
                7 => {
                    collect(&world.staging, now).unwrap();
                }
                _ => {
                    // The staging process ends and begins again.
                    let World { base, base_disk, own_disk, staging } = world;
                    let lease = staging.lease();
                    drop(staging);
                    let own = LocalStore::open(Arc::new(own_disk.clone()), options()).unwrap();
                    let disk = Arc::new(base_disk.clone());
                    let followed = Arc::new(ReadOnlyLocalStore::open(disk, options()).unwrap());
                    let staging = LayeredStore::new(Arc::new(own), followed, lease).unwrap();
                    world = World { base, base_disk, own_disk, staging };
                }
            }
            assert_eq!(read_all(&world.staging).unwrap(), model, "seed {seed}, step {now}");
        }
    }
}

#[test]
fn a_lost_lease_is_reported() {
    let world = world(80);
    save(&world.staging, &[(500, Some("mine"))], 1);
    let root = world.staging.read_ref("main").unwrap().unwrap();
    // Someone removes the lease; production goes on.
    let texts = (0..80).map(|page| (page, Some("changed"))).collect::<Vec<_>>();
    save(&world.base, &texts, 2);
    collect(&world.base, 2).unwrap();
    read_all(&world.staging).unwrap();
    world.staging.renew_lease(at(10), DAY).unwrap();
    assert_eq!(world.staging.lease().expires_at, Some(at(10) + DAY));
    let late = 2 * DAY.as_secs();
    collect(&world.base, late).unwrap();
    let refused = collect(&world.staging, late).unwrap_err();
    assert!(matches!(refused, Error::ChunkMissing { .. }), "a gap passes for no border");
    let error = read_all(&world.staging).unwrap_err();
    let holder = "staging";
    assert!(
        matches!(&error, Error::BaseChunkMissing { holder: it, .. } if it == holder),
        "{error}"
    );
    let lost = world.staging.renew_lease(at(late), DAY).unwrap_err();
    assert!(matches!(&lost, Error::LeaseLost { holder: it, .. } if it == holder), "{lost}");
    let mut batch = ChunkBatch::new();
    let next = StoreRoot::default().write(&mut batch).unwrap();
    batch.add_ref_update(moved(Some(root), next, 9));
    assert!(matches!(world.staging.commit(batch), Err(Error::LeaseLost { .. })));
    assert!(world.staging.read_chunk(&root).is_ok(), "what is own can be read");
}

#[test]
fn it_does_what_every_store_does() {
    let store = fresh(options());
    let mut batch = ChunkBatch::new();
    let root = StoreRoot::default().write(&mut batch).unwrap();
    let blob = BlobId::hash_of(b"small");
    batch.add_blob(blob, b"small".to_vec().into());
    batch.add_ref_update(moved(None, root, 0));
    store.commit(batch).unwrap();
    assert_eq!(store.list_refs().unwrap(), [("main".to_owned(), root)]);
    assert_eq!(store.read_blob(&blob).unwrap().unwrap(), &b"small"[..]);
    assert!(store.contains_blob(&blob).unwrap());
    let absent = ChunkId::hash_of(b"absent");
    assert_eq!(store.contains_chunks(&[root, absent]).unwrap(), [true, false]);
    assert!(matches!(store.read_chunk(&absent), Err(Error::BaseChunkMissing { .. })));
    assert!(matches!(store.read_chunks(&[root, absent]), Err(Error::BaseChunkMissing { .. })));
    assert_eq!(store.read_chunks(&[root]).unwrap(), [store.read_chunk(&root).unwrap()]);
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moved(None, root, 0));
    assert!(matches!(store.commit(batch), Err(Error::RefMoved { .. })));
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moved(Some(root), absent, 0));
    assert!(matches!(store.commit(batch), Err(Error::ChunkMissing { .. })));
    let mut batch = ChunkBatch::new();
    batch.grant_lease(RootLease { holder: "backup".to_owned(), root, expires_at: None });
    store.commit(batch).unwrap();
    assert_eq!(store.list_leases().unwrap().len(), 1);
    let mut model = Model::new();
    model.extend((0..300).map(|n| (format!("{n:05}").into_bytes(), value("v"))));
    let hold = store.begin_hold().unwrap();
    let mut batch = ChunkBatch::new();
    let map = SortedMap::build(&mut batch, model.clone().into_iter()).unwrap();
    store.commit(batch).unwrap();
    collect(store.as_ref(), 1).unwrap();
    let kept: Vec<_> = map.range(store.as_ref(), ALL).map(Result::unwrap).collect();
    assert_eq!(kept.len(), model.len(), "held while no ref reaches it");
    drop(hold);
    // What is in the pack that is still written stays for a while.
    for now in 2..12 {
        save(store.as_ref(), &[(now, Some("filler"))], now);
        collect(store.as_ref(), now).unwrap();
    }
    assert_eq!(store.contains_chunks(&[map.root().unwrap()]).unwrap(), [false]);
    assert_eq!(store.ref_history("main", None, 9).unwrap().len(), 1, "the newest is kept");
    store.sync().unwrap();
}
