//! What a save of a repository takes over from the snapshot before without reading it, and that it is the same as if all
//! had been read.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tympan_backup::{
    BackupProgress, BackupRepositorySource, ClientFilter, Error, ImportOptions, IndexedVault,
    ParentSelection, SaveOptions, SaveSession, SaveSummary, VaultIndex, VaultLock, VaultLockMode,
    VaultUser, import_snapshot, save_repository,
};
use tympan_blobs::{BlobStore, ReadOnlyBlobFolder};
use tympan_store::{
    BaseStore, BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, GarbageCollectionOptions,
    LocalStoreOptions, MapValue, ReadChunks, ReadOnlyLocalStore, RefUpdate, Result as StoreResult,
    Revision, RevisionRetention, RootLease, StoreRoot, body,
};

use crate::repository::Home;
use crate::vault_bench::{Bench, noise, now};

/// A store that counts the chunks that are read from it.
#[derive(Debug)]
pub(crate) struct Counting<B> {
    inner: B,
    pub(crate) read: AtomicU64,
    stop: Option<Stop>,
}

/// Stops a run when some chunks among others have been read.
#[derive(Debug)]
struct Stop {
    among: HashSet<ChunkId>,
    after: u64,
    read: AtomicU64,
    progress: Arc<BackupProgress>,
}

impl Counting<ReadOnlyLocalStore> {
    fn open(home: &Home) -> Self {
        let store = home.dir.join("store");
        Self::new(ReadOnlyLocalStore::open_dir(&store, LocalStoreOptions::default()).unwrap())
    }
}

impl<B> Counting<B> {
    pub(crate) const fn new(inner: B) -> Self {
        Self { inner, read: AtomicU64::new(0), stop: None }
    }
}

impl<B: BaseStore> ReadChunks for Counting<B> {
    fn read_chunk(&self, id: &ChunkId) -> StoreResult<Chunk> {
        self.read.fetch_add(1, Ordering::Relaxed);
        if let Some(stop) = self.stop.as_ref().filter(|stop| stop.among.contains(id))
            && stop.read.fetch_add(1, Ordering::Relaxed) + 1 == stop.after
        {
            stop.progress.request_stop();
        }
        self.inner.read_chunk(id)
    }
}

impl<B: BaseStore> BaseStore for Counting<B> {
    fn display_name(&self) -> String {
        self.inner.display_name()
    }
    fn contains_chunks(&self, ids: &[ChunkId]) -> StoreResult<Vec<bool>> {
        self.inner.contains_chunks(ids)
    }
    fn read_blobs(&self, ids: &[BlobId]) -> StoreResult<Vec<Option<bytes::Bytes>>> {
        self.inner.read_blobs(ids)
    }
    fn list_refs(&self) -> StoreResult<Vec<(String, ChunkId)>> {
        self.inner.list_refs()
    }
    fn ref_history(
        &self,
        name: &str,
        before: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<Revision>> {
        self.inner.ref_history(name, before, limit)
    }
    fn find_lease(&self, holder: &str) -> StoreResult<Option<RootLease>> {
        self.inner.find_lease(holder)
    }
    fn grant_lease(&self, lease: &RootLease) -> StoreResult<()> {
        self.inner.grant_lease(lease)
    }
    fn release_lease(&self, holder: &str) -> StoreResult<()> {
        self.inner.release_lease(holder)
    }
}

/// A record to write: its text, and its blobs; or that it goes.
type Edit = Option<(Vec<u8>, Vec<Vec<u8>>)>;

/// Writes and removes records, and moves `main`.
fn edit(home: &Home, edits: impl IntoIterator<Item = (String, Edit)>) {
    let mut batch = ChunkBatch::new();
    let old = home.store.read_ref("main").unwrap();
    let mut root =
        old.map_or_else(StoreRoot::default, |id| StoreRoot::read(&*home.store, &id).unwrap());
    let mut changes = BTreeMap::new();
    for (key, edit) in edits {
        let value = edit.map(|(text, blobs)| {
            let put = |bytes: &Vec<u8>| {
                if bytes.len() < tympan_blobs::SMALL_BLOB_BYTES {
                    let id = BlobId::hash_of(bytes);
                    batch.add_blob(id, bytes.clone().into());
                    return id;
                }
                home.blobs.put(&mut bytes.as_slice()).unwrap()
            };
            let blobs: Vec<BlobId> = blobs.iter().map(put).collect();
            let id = body::write_body(&mut batch, &text, &blobs).unwrap();
            MapValue { bytes: b"x".to_vec().into(), body: Some(id) }
        });
        changes.insert(key.into_bytes(), value);
    }
    let map = root.map("content").edit(&*home.store, &mut batch, changes).unwrap();
    root.maps.insert("content".to_owned(), map);
    let new = root.write(&mut batch).unwrap();
    batch.add_ref_update(RefUpdate {
        name: "main".to_owned(),
        expected_root: old,
        new_root: Some(new),
        updated_at: SystemTime::now(),
        author: "test".to_owned(),
        message: String::new(),
    });
    home.store.commit(batch).unwrap();
}

/// Saves; returns how many chunks were read, too.
fn save(bench: &Bench, home: &Home, parent: ParentSelection) -> (SaveSummary, u64) {
    let options = SaveOptions::new(VaultUser::this_process(), now());
    save_by(bench, home, &SaveOptions { parent, ..options })
}

/// As [`save`], with no more than so many chunks in memory at once.
fn save_at_once(bench: &Bench, home: &Home, at_once: usize) -> (SaveSummary, u64) {
    let options = SaveOptions::new(VaultUser::this_process(), now());
    save_by(bench, home, &SaveOptions { chunk_batch_size: at_once, ..options })
}

fn save_by(bench: &Bench, home: &Home, options: &SaveOptions) -> (SaveSummary, u64) {
    let base = Counting::open(home);
    let saved =
        try_save(bench, (home, &base), options, &BackupProgress::default()).unwrap().unwrap();
    assert!(saved.faults.is_empty(), "{:?}", saved.faults);
    (saved, base.read.into_inner())
}

fn try_save(
    bench: &Bench,
    (home, base): (&Home, &dyn BaseStore),
    options: &SaveOptions,
    progress: &BackupProgress,
) -> Result<Option<SaveSummary>, Error> {
    let blobs = ReadOnlyBlobFolder::new(&home.dir.join("blobs"));
    let lock =
        VaultLock::acquire(&bench.vault, &options.user, VaultLockMode::Shared, Duration::ZERO)
            .unwrap();
    let index = Arc::new(VaultIndex::load(&bench.vault).unwrap());
    let session = SaveSession::new(&bench.vault, &index, &lock, progress);
    let source = BackupRepositorySource {
        base,
        blobs: &blobs,
        reference: "main",
        path: "/tympan/home",
        view: None,
        base_owner: None,
        files: &[],
    };
    save_repository(&session, source, options)
}

fn import(bench: &Bench, saved: &SaveSummary, name: &str) -> ChunkId {
    let copy = Home::open(bench.path(name));
    let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
    let options = (ImportOptions::default(), &BackupProgress::default());
    import_snapshot(
        IndexedVault::new(&bench.vault, &bench.index()),
        &saved.snapshot,
        target,
        options,
    )
    .unwrap()
    .root
}

fn page(number: u32) -> String {
    format!("/content/page{number:06}")
}

fn text(number: u32, version: u32) -> Vec<u8> {
    format!("page {number} {version} ").repeat(60).into_bytes()
}

/// One page among those of a leaf changes: what is beside it is neither read nor stored again, unless the piece is the same.
#[test]
fn of_a_changed_part_the_pieces_that_did_not_change_are_not_read() {
    let (bench, other) = (Bench::new(), Bench::new());
    let home = Home::open(bench.path("home"));
    edit(&home, (0..8_000).map(|number| (page(number), Some((text(number, 0), Vec::new())))));
    for bench in [&bench, &other] {
        save(bench, &home, ParentSelection::LatestMatching);
    }
    let changed = (0..10).map(|number| number * 797);
    edit(&home, changed.map(|number| (page(number), Some((text(number, 1), Vec::new())))));
    let (saved, few) = save(&bench, &home, ParentSelection::LatestMatching);
    // Where the chunks of the state before are gone, nobody knows what its pieces hold: all is read, and comes out the same.
    let at = GarbageCollectionOptions::at_time(SystemTime::now());
    let options = GarbageCollectionOptions {
        min_live_share: 1.1,
        retention: RevisionRetention::KEEP_NEWEST,
        ..at
    };
    home.store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    let (again, many) = save(&other, &home, ParentSelection::LatestMatching);
    assert_eq!(again.snapshot.tree, saved.snapshot.tree);
    assert_eq!(again.written.pieces, saved.written.pieces);
    assert!(few * 2 < many, "{few} chunks were read for 10 changes, {many} without what was known");
    assert_eq!(import(&bench, &saved, "copy"), home.root().unwrap());
}

/// Pages with long keys, so that few stand in a leaf, and few leaves below an interior chunk.
const LONG_KEYS: u32 = 3_000;

/// Writes such a page. Some texts are of several chunks.
fn with_long_key(number: u32, version: u32) -> (String, Edit) {
    let key = format!("/content/{number:06}/{}", format!("{number:06}").repeat(40));
    let text = match number % 25 {
        0 => noise(66_000, u64::from(number + version * LONG_KEYS) + 1),
        _ => text(number, version),
    };
    (key, Some((text, Vec::new())))
}

/// One page changes in each of many leaves, below many interior chunks: what stands below one of these is not gone because
/// another one does not refer to it, whether they are saved together or some after others.
#[test]
fn edits_in_many_places_cost_what_each_of_them_costs() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    edit(&home, (0..LONG_KEYS).map(|number| with_long_key(number, 0)));
    let (_, all) = save(&bench, &home, ParentSelection::LatestMatching);
    let edits = LONG_KEYS / 50;
    for (version, at_once) in [(1, 4096), (2, 64), (3, 16)] {
        // Half of them are texts of several chunks.
        let numbers = (0..edits).map(|number| number * 50 + number % 2);
        edit(&home, numbers.map(|number| with_long_key(number, version)));
        let (saved, read) = save_at_once(&bench, &home, at_once);
        // For each edit at most: the chunks on the way to it, now and before; its own; and those that share pieces with these.
        let most = u64::from(edits) * 12;
        assert!(
            read < most,
            "{at_once} at once: {read} chunks were read for {edits} edits, {all} at first"
        );
        assert!(most * 2 < all, "{all} chunks were read at first");
        let (whole, _) = save(&bench, &home, ParentSelection::Nothing);
        assert_eq!(whole.snapshot.tree, saved.snapshot.tree);
        assert_eq!(import(&bench, &saved, &format!("copy{version}")), home.root().unwrap());
    }
}

/// Finds all chunks below one.
fn chunks_below(home: &Home, id: ChunkId, found: &mut HashSet<ChunkId>) {
    if found.insert(id) {
        let chunk = home.store.read_chunk(&id).unwrap();
        chunk.chunk_refs().for_each(|id| chunks_below(home, id, found));
    }
}

/// What is gone of the snapshot before may be much, and nothing is saved while that is looked into.
#[test]
fn a_save_stops_while_it_looks_for_what_is_gone() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    edit(&home, (0..LONG_KEYS).map(|number| with_long_key(number, 0)));
    save(&bench, &home, ParentSelection::LatestMatching);
    let [mut among, mut still] = [HashSet::new(), HashSet::new()];
    chunks_below(&home, home.root().unwrap(), &mut among);
    edit(&home, (1..LONG_KEYS).step_by(5).map(|number| with_long_key(number, 1)));
    chunks_below(&home, home.root().unwrap(), &mut still);
    among.retain(|id| !still.contains(id));
    let progress = Arc::new(BackupProgress::default());
    let mut base = Counting::open(&home);
    let (after, at_once) = (40, 8);
    let stop = Stop { among, after, read: AtomicU64::new(0), progress: progress.clone() };
    base.stop = Some(stop);
    let options = SaveOptions::new(VaultUser::this_process(), now());
    let options = SaveOptions { chunk_batch_size: at_once, ..options };
    let stopped = try_save(&bench, (&home, &base), &options, &progress);
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    let Stop { among, read, .. } = base.stop.unwrap();
    let read = read.into_inner();
    assert!(read <= after + at_once as u64, "{read} of {} chunks that are gone", among.len());
}

/// Whoever writes a snapshot anew may leave something out: what restic has tagged is not compared with.
#[test]
fn from_a_snapshot_that_restic_wrote_anew_nothing_is_taken_over() {
    let bench = Bench::new();
    if bench.restic(&["version"]).is_none() {
        return;
    }
    let home = Home::open(bench.path("home"));
    edit(&home, (0..3_000).map(|number| (page(number), Some((text(number, 0), Vec::new())))));
    let (first, all) = save(&bench, &home, ParentSelection::LatestMatching);
    bench.restic_ok(&["tag", "--add", "kept", "latest"]);
    let tagged = bench.vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    assert_eq!(tagged.original, Some(first.snapshot.id));
    edit(&home, [(page(7), Some((text(7, 1), Vec::new())))]);
    let (saved, read) = save(&bench, &home, ParentSelection::LatestMatching);
    assert_eq!(saved.snapshot.parent, None);
    assert!(read * 10 > all * 9, "{read} chunks were read, the first save read {all}");
    assert_eq!(import(&bench, &saved, "copy"), home.root().unwrap());
}

/// Pages that come, go and change at random, among others with blobs: each save is what a save of everything is.
#[test]
fn what_follows_from_differences_is_what_follows_from_nothing() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    let mut seed = 0x5eed_u32;
    let mut next = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    let pages = 1_500;
    // Pages have no blobs; assets have small ones, large ones, and some that they share; some texts are of several chunks.
    let write = |next: &mut dyn FnMut(u32) -> u32, number: u32| -> (String, Edit) {
        let version = next(1 << 20);
        match number % 10 {
            8 => {
                let small = noise(200 + next(9) as usize, u64::from(next(40)) + 1);
                let large = noise(20_000, u64::from(next(20)) + 1);
                let blobs = [vec![small], vec![large]].into_iter().take(next(3) as usize);
                let blobs = blobs.flatten().collect();
                (format!("/content/dam/asset{number:06}"), Some((text(number, version), blobs)))
            }
            9 => {
                let long = noise(70_000 + next(90_000) as usize, u64::from(version) + 1);
                (format!("/content/long{:06}", number % 100), Some((long, Vec::new())))
            }
            _ => (page(number), Some((text(number, version), Vec::new()))),
        }
    };
    let first: Vec<_> = (0..pages).map(|number| write(&mut next, number)).collect();
    edit(&home, first);
    save(&bench, &home, ParentSelection::LatestMatching);
    let mut last = None;
    for round in 0..12 {
        let mut edits = BTreeMap::new();
        for _ in 0..=next(30) {
            let number = next(pages + 200);
            let (key, value) = write(&mut next, number);
            let goes = next(4) == 0;
            edits.insert(key, if goes { None } else { value });
        }
        if round % 4 == 3 {
            // A whole stretch goes, so that parts come together, and a new one comes.
            let from = next(pages - 300);
            edits.extend((from..from + 250).map(|number| (page(number), None)));
            edits.extend((0..120).map(|number| write(&mut next, pages + 1_000 * round + number)));
        }
        edit(&home, edits);
        let at_once = [8, 40, 4096][round as usize % 3];
        let (from_differences, few) = save_at_once(&bench, &home, at_once);
        let (from_nothing, all) = save(&bench, &home, ParentSelection::Nothing);
        assert_eq!(
            from_differences.snapshot.tree, from_nothing.snapshot.tree,
            "round {round}, {few} of {all} chunks read"
        );
        last = Some(from_differences);
    }
    assert_eq!(import(&bench, &last.unwrap(), "copy"), home.root().unwrap());
    assert_eq!(bench.check().faults, Vec::<String>::new());
}
