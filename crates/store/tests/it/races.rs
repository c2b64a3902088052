//! What one thread does between two steps of another: a disk that calls back makes each such moment happen.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use tympan_store::disk::{Disk, DiskFile, DiskLock, DiskLockError, MappedFile, MemoryDisk};
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, Error, GarbageCollectionOptions,
    GarbageCollectionPhase, LocalStore, LocalStoreOptions, ReadChunks, ReadOnlyLocalStore,
    RevisionRetention, RootLease, body, check_store,
};
use tympan_testkit::crash_disk::{CrashDisk, UnsyncedWrites};

use crate::map_model::moves;

type Hook = Box<dyn FnOnce() + Send>;

/// A folder in memory that calls back once, before a read of some file.
#[derive(Clone, Default)]
struct HookedDisk {
    inner: MemoryDisk,
    before_read: Arc<Mutex<Option<(String, Hook)>>>,
    reads: Arc<AtomicUsize>,
}

impl HookedDisk {
    /// Calls `hook` before the next read of a file.
    fn before_read(&self, name: &str, hook: impl FnOnce() + Send + 'static) {
        *self.before_read.lock().unwrap() = Some((name.to_owned(), Box::new(hook)));
    }

    fn wrap(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(HookedFile { file, name: name.to_owned(), disk: self.clone() })
    }
}

impl std::fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookedDisk")
    }
}

#[derive(Debug)]
struct HookedFile {
    file: Arc<dyn DiskFile>,
    name: String,
    disk: HookedDisk,
}

impl Disk for HookedDisk {
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.open_file(name).map(|file| self.wrap(name, file))
    }

    fn create_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.create_file(name).map(|file| self.wrap(name, file))
    }

    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename_file(from, to)
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        self.inner.remove_file(name)
    }

    fn list_folder(&self, folder: &str) -> io::Result<Vec<String>> {
        self.inner.list_folder(folder)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.inner.sync_folder(folder)
    }

    fn lock_folder(&self) -> Result<DiskLock, DiskLockError> {
        self.inner.lock_folder()
    }

    fn display_path(&self) -> PathBuf {
        self.inner.display_path()
    }
}

impl DiskFile for HookedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let hook = self.disk.before_read.lock().unwrap().take_if(|(name, _)| *name == self.name);
        if let Some((_, hook)) = hook {
            hook();
        }
        self.disk.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_at(offset, buffer)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn map_content(&self) -> io::Result<MappedFile> {
        self.file.map_content()
    }
}

fn open(disk: impl Disk + 'static) -> LocalStore {
    let (pack_limit, cache) = (ByteSize::from_kib(4), ByteSize::from_bytes(0));
    let options =
        LocalStoreOptions { pack_limit, cache_size: cache, ..LocalStoreOptions::default() };
    LocalStore::open(Arc::new(disk), options).unwrap()
}

/// Moves `main` to a state with some bytes of its own.
fn save(store: &LocalStore, n: u64) -> ChunkId {
    let old = store.read_ref("main").unwrap();
    let mut batch = ChunkBatch::new();
    let new = body::write_body(&mut batch, &noise(n), &[]).unwrap();
    let mut update = moves("main", old, Some(new));
    update.updated_at = UNIX_EPOCH + Duration::from_secs(1_000_000 + n);
    batch.add_ref_update(update);
    store.commit(batch).unwrap();
    new
}

/// Bytes that do not compress.
fn noise(n: u64) -> Vec<u8> {
    let mut numbers = crate::map_model::Numbers(n);
    (0..600).map(|_| numbers.below(256) as u8).collect()
}

fn options(retention: RevisionRetention) -> GarbageCollectionOptions {
    let now = UNIX_EPOCH + Duration::from_secs(2_000_000);
    GarbageCollectionOptions {
        retention,
        min_live_share: 1.1,
        ..GarbageCollectionOptions::at_time(now)
    }
}

fn collect(store: &LocalStore, retention: RevisionRetention) {
    store.collect_garbage(&options(retention), &mut |_| ControlFlow::Continue(())).unwrap();
}

const KEEP_ALL: RevisionRetention = RevisionRetention {
    full_period: Duration::from_hours(24 * 365),
    hourly_count: 0,
    daily_count: 0,
    weekly_count: 0,
};

#[test]
fn closing_beside_a_commit_keeps_the_commit() {
    for round in 0..600 {
        let disk = CrashDisk::new();
        let store = open(disk.clone());
        std::thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let store = &store;
                scope.spawn(move || {
                    let mut batch = ChunkBatch::new();
                    let text = format!("{name} {}", "x".repeat(2_000));
                    let new = body::write_body(&mut batch, text.as_bytes(), &[]).unwrap();
                    let mut update = moves(name, None, Some(new));
                    update.message = "m".repeat(1_100);
                    batch.add_ref_update(update);
                    store.commit(batch).unwrap();
                });
            }
            store.close().unwrap();
            store.close().unwrap();
        });
        let refs = store.list_refs().unwrap();
        let reopened = open(disk.crash(disk.call_count(), UnsyncedWrites::Lost));
        assert_eq!(reopened.list_refs().unwrap(), refs, "round {round}");
    }
}

#[test]
fn what_a_kill_left_unsynced_is_durable_before_anything_is_built_on_it() {
    let disk = CrashDisk::new();
    let store = open(disk.clone());
    for n in 0..14 {
        save(&store, n);
        if n == 9 {
            collect(&store, RevisionRetention::KEEP_NEWEST);
        }
    }
    store.close().unwrap();
    for calls in 0..=disk.call_count() {
        let killed = disk.after_process_kill(calls);
        let store = open(killed.clone());
        let found = store.read_ref("main").unwrap();
        let shown = open(killed.crash(killed.call_count(), UnsyncedWrites::Lost));
        assert_eq!(shown.read_ref("main").unwrap(), found, "shown after a kill at call {calls}");
        if calls % 2 == 0 {
            let last = save(&store, 100);
            let after = open(killed.crash(killed.call_count(), UnsyncedWrites::Lost));
            assert_eq!(after.read_ref("main").unwrap(), Some(last), "after call {calls}");
        }
        store.close().unwrap();
        let expected = store.read_ref("main").unwrap();
        let after = open(killed.crash(killed.call_count(), UnsyncedWrites::Lost));
        assert_eq!(after.read_ref("main").unwrap(), expected, "after call {calls}");
        let report = check_store(&after).unwrap();
        assert!(report.is_clean(), "after a kill at call {calls}: {report:?}");
    }
}

#[test]
fn what_a_failed_sync_left_is_durable_before_an_index_covers_it() {
    let disk = CrashDisk::new();
    let store = open(disk.clone());
    let old = save(&store, 1);
    disk.fail_syncs(true);
    let mut batch = ChunkBatch::new();
    let unsure = body::write_body(&mut batch, &noise(99), &[]).unwrap();
    batch.add_ref_update(moves("main", Some(old), Some(unsure)));
    store.commit(batch).unwrap_err();
    drop(store);
    disk.fail_syncs(false);
    let store = open(disk.clone());
    let found = store.read_ref("main").unwrap();
    store.close().unwrap();
    let after = open(disk.crash(disk.call_count(), UnsyncedWrites::Lost));
    assert_eq!(after.read_ref("main").unwrap(), found);
    assert!(check_store(&after).unwrap().is_clean());
}

#[test]
fn a_live_root_takes_refs_and_leases_while_it_is_moved() {
    let store = open(MemoryDisk::new());
    let live = save(&store, 1_000);
    let mut gone = Vec::new();
    for n in 0..20 {
        let mut batch = ChunkBatch::new();
        gone.push(body::write_body(&mut batch, &noise(n), &[]).unwrap());
        batch.add_ref_update(moves(
            "other",
            gone.iter().rev().nth(1).copied(),
            gone.last().copied(),
        ));
        store.commit(batch).unwrap();
    }
    let mut tried = 0;
    let done = store.collect_garbage(&options(RevisionRetention::KEEP_NEWEST), &mut |progress| {
        if progress.phase == GarbageCollectionPhase::Sweep {
            let mut batch = ChunkBatch::new();
            batch.add_ref_update(moves(&format!("branch {tried}"), None, Some(live)));
            store.commit(batch).unwrap();
            let mut batch = ChunkBatch::new();
            batch.grant_lease(RootLease {
                holder: format!("{tried}"),
                root: live,
                expires_at: None,
            });
            store.commit(batch).unwrap();
            assert_eq!(store.contains_chunks(&[live, gone[0]]).unwrap(), [true, false]);
            let mut batch = ChunkBatch::new();
            batch.add_ref_update(moves("gone", None, Some(gone[0])));
            store.commit(batch).unwrap_err();
            tried += 1;
        }
        ControlFlow::Continue(())
    });
    assert!(done.unwrap().moved_bytes > 0);
    assert!(tried > 0, "the sweep is paced");
    store.read_chunk(&live).unwrap();
    assert!(check_store(&store).unwrap().is_clean());
}

/// A store whose first packs hold a chunk and a blob that nothing keeps; gives both.
fn with_garbage() -> (HookedDisk, Arc<LocalStore>, ChunkId, BlobId) {
    let disk = HookedDisk::default();
    let store = Arc::new(open(disk.clone()));
    let blob = BlobId::hash_of(b"icon");
    store.commit(garbage()).unwrap();
    let chunk = *garbage().chunks().next().unwrap().0;
    (0..20).for_each(|n| _ = save(&store, n));
    assert!(disk.list_folder("").unwrap().contains(&"pack-000001.index".to_owned()));
    (disk, store, chunk, blob)
}

fn garbage() -> ChunkBatch {
    let mut batch = ChunkBatch::new();
    body::write_body(&mut batch, b"came back", &[BlobId::hash_of(b"icon")]).unwrap();
    batch.add_blob(BlobId::hash_of(b"icon"), "icon".into());
    batch
}

#[test]
fn what_a_collection_took_between_two_steps_of_a_commit_is_written_again() {
    let (disk, store, chunk, blob) = with_garbage();
    let other = Arc::clone(&store);
    // The commit finds both present; then they go; then it writes.
    disk.before_read("pack-000001", move || collect(&other, RevisionRetention::KEEP_NEWEST));
    let mut batch = garbage();
    batch.add_ref_update(moves("back", None, Some(chunk)));
    store.commit(batch).unwrap();
    assert!(disk.before_read.lock().unwrap().is_none(), "the commit looks for what is there");
    store.read_chunk(&chunk).unwrap();
    assert!(store.read_blob(&blob).unwrap().is_some());
    collect(&store, RevisionRetention::KEEP_NEWEST);
    drop(store);
    let store = open(disk);
    store.read_chunk(&chunk).unwrap();
    assert!(store.read_blob(&blob).unwrap().is_some());
    assert!(check_store(&store).unwrap().is_clean());
}

#[test]
fn what_a_writer_was_acknowledged_under_a_hold_stays() {
    let (_, store, chunk, blob) = with_garbage();
    let hold = store.begin_hold().unwrap();
    assert!(store.contains_blob(&blob).unwrap());
    for _ in 0..2 {
        collect(&store, RevisionRetention::KEEP_NEWEST);
        assert!(store.read_blob(&blob).unwrap().is_some());
        store.read_chunk(&chunk).unwrap_err();
    }
    let mut batch = ChunkBatch::new();
    let page = body::write_body(&mut batch, b"came back", &[blob]).unwrap();
    batch.add_ref_update(moves("back", None, Some(page)));
    store.commit(batch).unwrap();
    drop(hold);
    collect(&store, RevisionRetention::KEEP_NEWEST);
    assert!(store.read_blob(&blob).unwrap().is_some());
    assert!(check_store(&store).unwrap().is_clean());
}

#[test]
fn history_is_whole_while_a_collection_folds_it() {
    let disk = HookedDisk::default();
    let store = Arc::new(open(disk.clone()));
    let read_beside_a_collection = |file: &str, retention| {
        let other = Arc::clone(&store);
        disk.before_read(file, move || collect(&other, retention));
        let found = store.ref_history("main", None, 100).unwrap();
        assert!(disk.before_read.lock().unwrap().is_none(), "`{file}` is read");
        found.len()
    };
    (0..20).for_each(|n| _ = save(&store, n));
    // The commit records go while they are read, then the map that stands for them.
    assert_eq!(read_beside_a_collection("pack-000001", KEEP_ALL), 20);
    let is_pack = |name: &String| name.starts_with("pack-") && !name.ends_with(".index");
    let map = disk.list_folder("").unwrap().into_iter().rfind(is_pack).unwrap();
    (20..40).for_each(|n| _ = save(&store, n));
    assert_eq!(read_beside_a_collection(&map, RevisionRetention::KEEP_NEWEST), 1);
}

#[test]
fn what_no_commit_record_holds_is_refused() {
    let disk = CrashDisk::new();
    let store = open(disk.clone());
    let root = save(&store, 1);
    let mut many = ChunkBatch::new();
    (0..70_000).for_each(|n| many.release_lease(format!("client {n}")));
    let error = store.commit(many).unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    let mut long = ChunkBatch::new();
    for n in 0..1_100 {
        let mut update = moves(&format!("branch {n}"), None, Some(root));
        update.message = "m".repeat(7_900);
        update.author = "a".repeat(7_900);
        long.add_ref_update(update);
    }
    store.commit(long).unwrap_err();
    // Nor more refs than the head of the next pack can hold.
    let mut refused = 0;
    for batch_of in 0..6 {
        let mut batch = ChunkBatch::new();
        for n in 0..15_000 {
            batch.add_ref_update(moves(&format!("{batch_of} {n:0>240}"), None, Some(root)));
        }
        refused += usize::from(store.commit(batch).is_err());
    }
    assert!(refused > 0, "90,000 refs with long names");
    let last = save(&store, 2);
    let refs = store.list_refs().unwrap().len();
    drop(store);
    let reopened = open(disk.crash(disk.call_count(), UnsyncedWrites::Persisted));
    assert_eq!(reopened.list_refs().unwrap().len(), refs);
    assert_eq!(reopened.read_ref("main").unwrap(), Some(last));
    assert!(check_store(&reopened).unwrap().is_clean());
}

/// Index files tell where a record is and how long: whoever follows asks the disk once for each.
#[test]
fn a_follower_reads_each_record_by_one_call() {
    let disk = HookedDisk::default();
    let store = open(disk.clone());
    let roots: Vec<ChunkId> = (0..20).map(|n| save(&store, n)).collect();
    drop(store);
    let options =
        LocalStoreOptions { cache_size: ByteSize::from_bytes(0), ..LocalStoreOptions::default() };
    let followed = ReadOnlyLocalStore::open(Arc::new(disk.clone()), options).unwrap();
    for root in roots {
        let before = disk.reads.load(Ordering::Relaxed);
        followed.read_chunk(&root).unwrap();
        assert_eq!(disk.reads.load(Ordering::Relaxed) - before, 1, "{root}");
    }
}
