//! Following the packs of another process: what is committed is seen and verified, whatever its writer does meanwhile.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tympan_store::disk::{Disk, FileDisk, MemoryDisk};
use tympan_store::{
    BaseStore, BlobId, ByteSize, Chunk, ChunkBatch, ChunkId, ChunkStore, Error,
    GarbageCollectionMode, GarbageCollectionOptions, LocalStore, LocalStoreOptions, ReadChunks,
    ReadOnlyLocalStore, RefUpdate, Revision, RevisionRetention, RootLease, SortedMap, StoreRoot,
    acquire_lease, body, renew_lease,
};

use crate::map_model::{Edits, Numbers, value};

const HOUR: Duration = Duration::from_hours(1);

fn options() -> LocalStoreOptions {
    // Small packs, and no cache: every read goes to the disk.
    LocalStoreOptions {
        pack_limit: ByteSize::from_kib(6),
        cache_size: ByteSize::from_bytes(0),
        ..LocalStoreOptions::default()
    }
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn open(disk: &(impl Disk + Clone + 'static)) -> (LocalStore, ReadOnlyLocalStore) {
    let store = LocalStore::open(Arc::new(disk.clone()), options()).unwrap();
    (store, ReadOnlyLocalStore::open(Arc::new(disk.clone()), options()).unwrap())
}

/// Commits a change of `main` and returns its root.
fn save(store: &LocalStore, numbers: &mut Numbers, now: u64) -> ChunkId {
    let from = store.read_ref("main").unwrap();
    let map = match from {
        Some(root) => StoreRoot::read(store, &root).unwrap().map("content"),
        None => SortedMap::EMPTY_MAP,
    };
    let mut batch = ChunkBatch::new();
    let n = numbers.below(30);
    let mut text = vec![b'a'; 900];
    text.fill_with(|| b'a' + numbers.below(26) as u8);
    let blob = BlobId::hash_of(&text);
    batch.add_blob(blob, text.clone().into());
    let mut page = value(format!("page {n}"));
    page.body = Some(body::write_body(&mut batch, &text, &[blob]).unwrap());
    let edits = Edits::from([(format!("page-{n:03}").into_bytes(), Some(page))]);
    let map = map.edit(store, &mut batch, edits).unwrap();
    let maps = BTreeMap::from([("content".to_owned(), map)]);
    let root = StoreRoot { maps }.write(&mut batch).unwrap();
    batch.add_ref_update(RefUpdate {
        name: "main".to_owned(),
        expected_root: from,
        new_root: Some(root),
        updated_at: at(now),
        author: "Ada".to_owned(),
        message: format!("save {now}"),
    });
    store.commit(batch).unwrap();
    root
}

fn collect(store: &LocalStore, now: u64) -> Result<u64, Error> {
    let options = GarbageCollectionOptions {
        retention: RevisionRetention::KEEP_NEWEST,
        min_live_share: 1.1,
        mode: GarbageCollectionMode::Remove,
        ..GarbageCollectionOptions::at_time(at(now))
    };
    let done = store.collect_garbage(&options, &mut |_| ControlFlow::Continue(()))?;
    Ok(done.freed_bytes)
}

/// Reads everything that a root reaches; returns how many chunks that is.
fn read_all(base: &dyn BaseStore, root: ChunkId) -> Result<usize, Error> {
    let mut waiting = vec![root];
    let mut count = 0;
    while let Some(id) = waiting.pop() {
        let chunk = base.read_chunk(&id)?;
        assert_eq!(ChunkId::hash_of(chunk.bytes()), id);
        let blobs: Vec<BlobId> = chunk.blob_refs().collect();
        for (blob, bytes) in blobs.iter().zip(base.read_blobs(&blobs)?) {
            let bytes = bytes.ok_or(Error::ChunkMissing { id })?;
            assert_eq!(BlobId::hash_of(&bytes), *blob);
        }
        waiting.extend(chunk.chunk_refs());
        count += 1;
    }
    Ok(count)
}

#[test]
fn commits_are_seen_and_nothing_else_is() {
    let disk = MemoryDisk::new();
    let (store, followed) = open(&disk);
    assert_eq!(followed.list_refs().unwrap(), []);
    let mut numbers = Numbers(1);
    for now in 0..60 {
        let root = save(&store, &mut numbers, now);
        assert_eq!(followed.list_refs().unwrap(), [("main".to_owned(), root)]);
        assert!(read_all(&followed, root).unwrap() > 1);
    }
    assert_eq!(
        followed.ref_history("main", None, 100).unwrap(),
        store.ref_history("main", None, 100).unwrap()
    );
    // Stored, but not committed: a crash would lose it.
    let mut batch = ChunkBatch::new();
    let loose = body::write_body(&mut batch, b"loose", &[]).unwrap();
    store.commit(batch).unwrap();
    assert!(store.contains_chunks(&[loose]).unwrap()[0]);
    assert!(!followed.contains_chunks(&[loose]).unwrap()[0]);
    assert!(matches!(followed.read_chunk(&loose), Err(Error::ChunkMissing { .. })));
    store.sync().unwrap();
    assert!(followed.contains_chunks(&[loose]).unwrap()[0]);
    // A start of the writer uses index files; so does one that follows from now on.
    drop(store);
    let (store, late) = open(&disk);
    assert_eq!(late.list_refs().unwrap(), store.list_refs().unwrap());
    let root = save(&store, &mut numbers, 60);
    assert_eq!(read_all(&late, root).unwrap(), read_all(&followed, root).unwrap());
    assert_eq!(late.ref_history("main", None, 100).unwrap().len(), 61);
}

#[test]
fn a_write_that_is_on_its_way_is_not_seen() {
    let disk = MemoryDisk::new();
    let (store, _) = open(&disk);
    let mut numbers = Numbers(2);
    let before = save(&store, &mut numbers, 0);
    let length = disk.file_content("pack-000001").unwrap().len();
    let after = save(&store, &mut numbers, 1);
    let whole = disk.file_content("pack-000001").unwrap();
    for cut in length..=whole.len() {
        let torn = MemoryDisk::new();
        torn.put_file("pack-000001", whole[..cut].to_vec());
        let followed = ReadOnlyLocalStore::open(Arc::new(torn.clone()), options()).unwrap();
        let is_whole = cut == whole.len();
        assert_eq!(followed.list_refs().unwrap()[0].1, if is_whole { after } else { before });
        assert_eq!(followed.contains_chunks(&[after]).unwrap(), [is_whole], "cut {cut}");
        torn.open_file("pack-000001").unwrap().append(&whole[cut..]).unwrap();
        assert_eq!(followed.list_refs().unwrap()[0].1, after);
        read_all(&followed, after).unwrap();
        // Its writer lost power and cut what it had not synced.
        torn.open_file("pack-000001").unwrap().truncate(length as u64).unwrap();
        assert_eq!(followed.list_refs().unwrap()[0].1, before, "cut {cut}");
        assert!(!followed.contains_chunks(&[after]).unwrap()[0]);
    }
}

#[test]
fn a_reader_with_a_lease_reads_on_while_packs_are_collected() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FileDisk::open(dir.path()).unwrap();
    let (store, followed) = open(&disk);
    let mut numbers = Numbers(3);
    save(&store, &mut numbers, 0);
    let is_done = AtomicBool::new(false);
    let (mut freed, mut rounds) = (0, 0);
    std::thread::scope(|threads| {
        let reader = threads.spawn(|| {
            let mut rounds = 0;
            while !is_done.load(Ordering::Relaxed) || rounds < 5 {
                let lease = acquire_lease(&followed, "reader", "main", at(0), HOUR).unwrap();
                for _ in 0..3 {
                    read_all(&followed, lease.root).unwrap();
                }
                rounds += 1;
            }
            rounds
        });
        for now in 1..100 {
            save(&store, &mut numbers, now % 1_000);
            if now % 7 == 0 {
                freed += collect(&store, 1_000).unwrap();
            }
        }
        is_done.store(true, Ordering::Relaxed);
        rounds = reader.join().unwrap();
    });
    assert!(rounds >= 5 && freed > 10_000, "{rounds} rounds, {freed} bytes freed");
    followed.release_lease("reader").unwrap();
    collect(&store, 1_000).unwrap();
    let root = store.read_ref("main").unwrap().unwrap();
    read_all(&followed, root).unwrap();
}

#[test]
fn a_lease_file_keeps_its_root_until_it_expires() {
    let disk = MemoryDisk::new();
    let (store, followed) = open(&disk);
    let mut numbers = Numbers(4);
    let first = save(&store, &mut numbers, 0);
    let lease = acquire_lease(&followed, "staging of ann", "main", at(0), HOUR).unwrap();
    assert_eq!((lease.root, lease.expires_at), (first, Some(at(0) + HOUR)));
    assert_eq!(store.list_leases().unwrap(), std::slice::from_ref(&lease));
    let mut collected = 0;
    for now in 1..30 {
        save(&store, &mut numbers, now);
        collected += collect(&store, now).unwrap();
    }
    assert!(collected > 0);
    read_all(&followed, first).unwrap();
    let renewed = renew_lease(&followed, &lease, (at(60), HOUR)).unwrap();
    assert_eq!(renewed.expires_at, Some(at(60) + HOUR));
    collect(&store, 60 + 3_599).unwrap();
    read_all(&followed, first).unwrap();
    collect(&store, 60 + 3_600).unwrap();
    // A view that has not been looked after for a while may hold on to files that are gone.
    followed.list_refs().unwrap();
    assert!(matches!(read_all(&followed, first), Err(Error::ChunkMissing { .. })));
    let late = renew_lease(&followed, &renewed, (at(60 + 3_601), HOUR));
    assert!(
        matches!(&late, Err(Error::LeaseLost { holder, .. }) if holder == "staging of ann"),
        "{late:?}"
    );
    assert_eq!(store.list_leases().unwrap(), [], "a lease on nothing is not left behind");
    // One that has expired is as good as new while its root is there by chance.
    let lease = acquire_lease(&followed, "other", "main", at(0), HOUR).unwrap();
    renew_lease(&followed, &lease, (at(9_000), HOUR)).unwrap();
    assert!(matches!(
        acquire_lease(&followed, "other", "absent", at(0), HOUR),
        Err(Error::RefNotFound { .. })
    ));
}

/// A base whose writer commits and collects at a chosen call of a client that takes a lease.
struct Meddling<'a> {
    inner: ReadOnlyLocalStore,
    calls: AtomicU32,
    at: u32,
    meddle: &'a (dyn Fn() + Sync),
}

impl Meddling<'_> {
    fn call(&self) {
        if self.calls.fetch_add(1, Ordering::SeqCst) == self.at {
            (self.meddle)();
        }
    }
}

impl std::fmt::Debug for Meddling<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meddling")
    }
}

impl ReadChunks for Meddling<'_> {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk, Error> {
        self.inner.read_chunk(id)
    }
}

impl BaseStore for Meddling<'_> {
    fn display_name(&self) -> String {
        self.inner.display_name()
    }

    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>, Error> {
        self.inner.contains_chunks(ids)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>, Error> {
        self.inner.read_blobs(ids)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>, Error> {
        self.call();
        self.inner.list_refs()
    }

    fn ref_history(
        &self,
        name: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Revision>, Error> {
        self.call();
        self.inner.ref_history(name, before, limit)
    }

    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>, Error> {
        self.inner.find_lease(holder)
    }

    fn grant_lease(&self, lease: &RootLease) -> Result<(), Error> {
        self.call();
        self.inner.grant_lease(lease)
    }

    fn release_lease(&self, holder: &str) -> Result<(), Error> {
        self.call();
        self.inner.release_lease(holder)
    }
}

#[test]
fn a_lease_holds_whatever_happens_between_its_steps() {
    // The steps of a lease that nothing disturbs are three; one that comes too late takes more.
    let mut most = 0;
    for step in 0..12 {
        let disk = MemoryDisk::new();
        let (store, _) = open(&disk);
        let mut numbers = Numbers(7);
        for now in 0..20 {
            save(&store, &mut numbers, now);
        }
        let rest = Mutex::new(Numbers(8));
        let meddle = || {
            for now in 20..50 {
                save(&store, &mut rest.lock().unwrap(), now);
                collect(&store, now).unwrap();
            }
        };
        let inner = ReadOnlyLocalStore::open(Arc::new(disk), options()).unwrap();
        let base = Meddling { inner, calls: AtomicU32::new(0), at: step, meddle: &meddle };
        let lease = acquire_lease(&base, "reader", "main", at(0), HOUR).unwrap();
        most = most.max(base.calls.load(Ordering::SeqCst));
        meddle();
        base.inner.list_refs().unwrap();
        read_all(&base, lease.root).unwrap();
    }
    assert!(most > 6, "{most} calls: no lease came too late");
}

#[test]
fn a_collection_refuses_to_guess_what_a_damaged_lease_keeps() {
    let disk = MemoryDisk::new();
    let (store, followed) = open(&disk);
    let mut numbers = Numbers(5);
    let first = save(&store, &mut numbers, 0);
    acquire_lease(&followed, "ann", "main", at(0), HOUR).unwrap();
    for now in 1..20 {
        save(&store, &mut numbers, now);
    }
    let file = format!("leases/{}", disk.list_folder("leases").unwrap()[0]);
    let mut bytes = disk.file_content(&file).unwrap();
    bytes[20] ^= 1;
    disk.put_file(&file, bytes);
    let refused = collect(&store, 20).unwrap_err();
    assert!(refused.to_string().contains(&file), "{refused}");
    read_all(&followed, first).unwrap();
    // A lease on what was never there keeps nothing and hinders nobody.
    disk.remove_file(&file).unwrap();
    let root = ChunkId::hash_of(b"nothing");
    let lease = RootLease { holder: "lost".to_owned(), root, expires_at: None };
    followed.grant_lease(&lease).unwrap();
    assert!(collect(&store, 20).unwrap() > 0);
}

#[test]
fn damage_is_reported_and_never_served() {
    let disk = MemoryDisk::new();
    let (store, _) = open(&disk);
    let mut numbers = Numbers(6);
    let root = (0..12).map(|now| save(&store, &mut numbers, now)).last().unwrap();
    drop(store);
    let pack = disk.file_content("pack-000001").unwrap();
    let mut told = 0;
    for at in (0..pack.len()).step_by(37) {
        let damaged = MemoryDisk::new();
        for name in disk.list_folder("").unwrap() {
            damaged.put_file(&name, disk.file_content(&name).unwrap());
        }
        let mut bytes = pack.clone();
        bytes[at] ^= 0x40;
        damaged.put_file("pack-000001", bytes);
        let followed = ReadOnlyLocalStore::open(Arc::new(damaged), options()).unwrap();
        // What is read is compared with its hash by `read_all`.
        match read_all(&followed, root) {
            Ok(_) => {}
            Err(
                Error::ChunkDamaged { .. } | Error::BlobDamaged { .. } | Error::ChunkMissing { .. },
            ) => told += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(told > 0);
}
