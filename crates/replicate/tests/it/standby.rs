//! A standby has every revision as its base wrote it, and never says more than it has.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_blobs::{BlobStore, LocalBlobStore, ReadOnlyBlobFolder};
use tympan_content::{NodePath, Property, Repository, Value};
use tympan_replicate::StandbyStore;
use tympan_store::disk::MemoryDisk;
use tympan_store::{
    ByteSize, ChunkStore, GarbageCollectionOptions, LocalStore, LocalStoreOptions,
    ReadOnlyLocalStore, RevisionRetention, check_store,
};

/// A base that is written here, and what a standby needs to follow it.
struct World {
    disk: MemoryDisk,
    store: Arc<LocalStore>,
    repository: Repository,
    dir: tempfile::TempDir,
}

fn options() -> LocalStoreOptions {
    LocalStoreOptions { pack_limit: ByteSize::from_kib(8), ..LocalStoreOptions::default() }
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = MemoryDisk::new();
        let store = Arc::new(LocalStore::open(Arc::new(disk.clone()), options()).unwrap());
        let blobs = LocalBlobStore::open(&dir.path().join("base"), store.clone()).unwrap();
        let repository = Repository::open(store.clone(), Arc::new(blobs)).unwrap();
        Self { disk, store, repository, dir }
    }

    /// Saves a page with a blob of some length.
    fn save(&self, n: u64, blob: usize) {
        let mut session = self.repository.session("ann").unwrap();
        let path = NodePath::new(&format!("/page-{}", n % 20)).unwrap();
        if session.node(&path).unwrap().is_none() {
            session.add_node(&path, "nt:unstructured").unwrap();
        }
        session.set_property(&path, "n", Property::text(n.to_string())).unwrap();
        let bytes = vec![n as u8; blob];
        let id = self.repository.blobs().put(&mut bytes.as_slice()).unwrap();
        session.set_property(&path, "data", Value::Binary(id).into()).unwrap();
        session.commit(&format!("save {n}"), at(n)).unwrap();
    }

    fn standby(&self, own: &Arc<LocalStore>) -> StandbyStore {
        let base = ReadOnlyLocalStore::open(Arc::new(self.disk.clone()), options()).unwrap();
        let blobs = ReadOnlyBlobFolder::new(&self.dir.path().join("base"));
        let opened = (Arc::new(base) as _, Arc::new(blobs) as _);
        let kept = LocalBlobStore::open(&self.blob_folder(), own.clone()).unwrap();
        StandbyStore::new(opened, (own.clone(), Arc::new(kept)), "standby".to_owned())
    }

    fn blob_folder(&self) -> std::path::PathBuf {
        self.dir.path().join("standby")
    }

    fn collect(&self, now: u64) {
        let options = GarbageCollectionOptions {
            retention: RevisionRetention::KEEP_NEWEST,
            min_live_share: 1.1,
            ..GarbageCollectionOptions::at_time(at(now))
        };
        self.store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    }

    /// Compares what the standby has with the base.
    fn check(&self, own: &Arc<LocalStore>) {
        assert_eq!(own.read_ref("main").unwrap(), self.store.read_ref("main").unwrap());
        let report = check_store(own).unwrap();
        assert!(report.is_clean(), "{report:?}");
        let blobs = LocalBlobStore::open(&self.blob_folder(), own.clone()).unwrap();
        for blob in &report.external_blobs {
            assert!(blobs.open(blob).unwrap().is_some(), "{blob}");
        }
    }
}

fn empty() -> Arc<LocalStore> {
    Arc::new(LocalStore::open(Arc::new(MemoryDisk::new()), options()).unwrap())
}

#[test]
fn every_revision_comes_as_it_was_written() {
    let world = World::new();
    world.save(0, 20_000);
    let own = empty();
    let standby = world.standby(&own);
    assert_eq!(standby.lag().complete_until, None);
    let first = standby.catch_up(at(100)).unwrap();
    assert_eq!((first.revisions, first.large_blobs), (1, 1));
    assert_eq!(standby.lag().complete_until, Some(at(100)));
    assert_eq!(standby.lag().age(at(107)), Some(Duration::from_secs(7)));
    (1..8).for_each(|n| world.save(n, 50));
    let next = standby.catch_up(at(110)).unwrap();
    assert_eq!((next.revisions, next.large_blobs), (7, 0));
    let theirs = world.store.ref_history("main", None, 8).unwrap();
    let ours = own.ref_history("main", None, 8).unwrap();
    assert_eq!(ours.len(), 8);
    for (left, right) in theirs.iter().zip(&ours).take(7) {
        assert_eq!(left.update, right.update);
    }
    // The first one has nothing before it here.
    let (left, right) = (&theirs[7].update, &ours[7].update);
    assert_eq!(
        (left.new_root, left.updated_at, &left.message),
        (right.new_root, right.updated_at, &right.message)
    );
    assert_eq!(standby.catch_up(at(120)).unwrap().revisions, 0);
    assert_eq!(standby.lag().complete_until, Some(at(120)));
    world.check(&own);
    // A standby that was stopped goes on where it was.
    drop(standby);
    (8..12).for_each(|n| world.save(n, 40_000));
    let again = world.standby(&own);
    let done = again.catch_up(at(130)).unwrap();
    assert_eq!((done.revisions, done.large_blobs), (4, 4));
    assert!(done.sync_stats.round_trips < 12, "{done:?}");
    world.check(&own);
}

#[test]
fn what_the_base_has_dropped_is_not_waited_for() {
    let world = World::new();
    world.save(0, 100);
    let own = empty();
    let standby = world.standby(&own);
    standby.catch_up(at(0)).unwrap();
    let mut freed = 0;
    for round in 1..6 {
        (0..30).for_each(|n| world.save(round * 30 + n, 3_000));
        world.collect(round * 30 + 40);
        let done = standby.catch_up(at(round * 30 + 50)).unwrap();
        assert!(done.revisions >= 1, "{done:?}");
        world.check(&own);
        let options = GarbageCollectionOptions {
            retention: RevisionRetention::KEEP_NEWEST,
            min_live_share: 1.1,
            ..GarbageCollectionOptions::at_time(at(round * 30 + 60))
        };
        freed += standby.collect_garbage(&options).unwrap().freed_bytes;
        world.check(&own);
    }
    assert!(freed > 10_000, "{freed} bytes");
    assert!(world.store.list_leases().unwrap().is_empty(), "no lease is left behind");
}

#[test]
fn a_blob_that_cannot_be_copied_stops_the_ref() {
    let world = World::new();
    world.save(0, 100);
    let own = empty();
    let standby = world.standby(&own);
    standby.catch_up(at(0)).unwrap();
    let before = own.read_ref("main").unwrap();
    world.save(1, 30_000);
    let file = walk(&world.dir.path().join("base"));
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, vec![9; bytes.len()]).unwrap();
    let error = standby.catch_up(at(10)).unwrap_err();
    assert!(error.to_string().contains("is damaged"), "{error}");
    assert_eq!(own.read_ref("main").unwrap(), before);
    assert_eq!(standby.lag().complete_until, Some(at(0)), "it says no more than it has");
    assert_eq!(standby.lag().revisions, 1);
    std::fs::write(&file, bytes).unwrap();
    standby.catch_up(at(20)).unwrap();
    world.check(&own);
}

/// Returns the only file with content below a folder.
fn walk(folder: &Path) -> std::path::PathBuf {
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        if next.is_file() {
            return next;
        }
        waiting.extend(std::fs::read_dir(&next).unwrap().map(|entry| entry.unwrap().path()));
    }
    panic!("no file below {}", folder.display());
}
