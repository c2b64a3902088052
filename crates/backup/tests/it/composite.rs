//! A clone over production: its backup holds nothing of production's, and becomes a clone again over production alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_backup::{
    BackupProgress, BackupRepositorySource, BaseStoreReference, Error, ImportOptions, ImportReport,
    IndexedVault, LiveStore, MissingContentPolicy, OmittedCounts, Result, SaveOptions, SaveSession,
    SaveSummary, SeparateBase, VaultIndex, VaultLock, VaultLockMode, VaultUser, find_snapshot_base,
    import_folder, import_snapshot, save_repository, walk_tree,
};
use tympan_blobs::{LocalBlobStore, ReadBlobs, ReadOnlyBlobFolder};
use tympan_store::{
    BaseStore, BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, Error as StoreError, LayeredStore,
    LocalStoreOptions, ReadChunks, ReadOnlyLocalStore, RefUpdate, Result as StoreResult, Revision,
    RootLease, acquire_lease,
};

use crate::repository::{Home, commit_records, large_blob, write_records};
use crate::taken_over::Counting;
use crate::vault_bench::{Bench, now};

/// Production's records.
const PAGES: u32 = 3_000;
const HOUR: Duration = Duration::from_hours(1);

/// Production, and a home that stands on it.
struct Pair {
    bench: Bench,
    production: Home,
    base: Arc<ReadOnlyLocalStore>,
    own: Home,
    composite: Arc<LayeredStore>,
    /// The clone's blobs, small ones of production among them.
    blobs: LocalBlobStore,
    reference: BaseStoreReference,
}

/// What a save asks, or cannot ask, what it leaves things to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Known,
    Away,
    /// It has lost its chunks.
    Empty,
}

impl Pair {
    fn new() -> Self {
        let bench = Bench::new();
        let production = Home::open(bench.path("production"));
        production.write(0..PAGES, 1);
        let store = bench.path("production/store");
        let base =
            Arc::new(ReadOnlyLocalStore::open_dir(&store, LocalStoreOptions::default()).unwrap());
        let lease = acquire_lease(&*base, "staging", "main", SystemTime::now(), HOUR).unwrap();
        let own = Home::open(bench.path("staging"));
        let reference = BaseStoreReference {
            from: production.dir.display().to_string(),
            root: lease.root.to_string(),
            holder: "staging".to_owned(),
        };
        let composite = over(&own, &base, &lease);
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(RefUpdate {
            name: "main".to_owned(),
            expected_root: None,
            new_root: Some(lease.root),
            updated_at: SystemTime::now(),
            author: "test".to_owned(),
            message: String::new(),
        });
        composite.commit(batch).unwrap();
        let blobs = LocalBlobStore::open(&own.dir.join("blobs"), composite.clone()).unwrap();
        Self { bench, production, base, own, composite, blobs, reference }
    }

    /// Changes a hundred pages, two of which get blobs of their own, and one that shows two of production's.
    fn edit(&self, seed: u8) {
        write_records((&*self.composite, &self.blobs), 100..200, seed);
        let shown = [1_000, 1_050].map(|number| BlobId::hash_of(&large_blob(number, 1)));
        let record = ("/content/copy".to_owned(), format!("copy {seed}"), shown.to_vec());
        commit_records(&*self.composite, ChunkBatch::new(), vec![record]);
    }

    fn save(&self, reach: Reach) -> Result<Option<SaveSummary>> {
        self.save_counting(reach).0
    }

    /// Saves; returns how many chunks of the clone's own were read, too.
    fn save_counting(&self, reach: Reach) -> (Result<Option<SaveSummary>>, u64) {
        let blobs = ReadOnlyBlobFolder::new(&self.production.dir.join("blobs"));
        let (away, empty) = (Unlike { is_away: true }, Unlike { is_away: false });
        let base: &dyn BaseStore = match reach {
            Reach::Known => &*self.base,
            Reach::Away => &away,
            Reach::Empty => &empty,
        };
        let below = SeparateBase { reference: &self.reference, stores: Some((base, &blobs)) };
        let own = Counting::new(LiveStore::new(self.own.store.clone()));
        let own_blobs = ReadOnlyBlobFolder::new(&self.own.dir.join("blobs"));
        let saved = save_own(&self.bench, &own, &own_blobs, Some(below));
        (saved, own.read.into_inner())
    }

    /// Imports into a new home, over production or over nothing.
    fn restore(
        &self,
        saved: &SaveSummary,
        to: &str,
        (missing, is_over): (MissingContentPolicy, bool),
    ) -> (Result<ImportReport>, Home) {
        let home = Home::open(self.bench.path(to));
        let blobs = ReadOnlyBlobFolder::new(&self.production.dir.join("blobs"));
        let below = is_over.then_some((&*self.base as &dyn BaseStore, &blobs as &dyn ReadBlobs));
        if is_over {
            over(&home, &self.base, &self.lease());
        }
        let index = self.bench.index();
        let from = IndexedVault::new(&self.bench.vault, &index);
        let options = (ImportOptions { missing, base: below }, &BackupProgress::default());
        let imported = import_snapshot(from, &saved.snapshot, (&*home.store, &home.blobs), options);
        (imported, home)
    }

    fn lease(&self) -> RootLease {
        self.composite.lease()
    }
}

/// Lays a home over production.
fn over(home: &Home, base: &Arc<ReadOnlyLocalStore>, lease: &RootLease) -> Arc<LayeredStore> {
    Arc::new(LayeredStore::new(home.store.clone(), base.clone(), lease.clone()).unwrap())
}

fn save_own(
    bench: &Bench,
    base: &dyn BaseStore,
    blobs: &dyn ReadBlobs,
    below: Option<SeparateBase<'_>>,
) -> Result<Option<SaveSummary>> {
    let who = VaultUser::this_process();
    let lock = VaultLock::acquire(&bench.vault, &who, VaultLockMode::Shared, Duration::ZERO)?;
    let index = Arc::new(VaultIndex::load(&bench.vault)?);
    let progress = BackupProgress::default();
    let session = SaveSession::new(&bench.vault, &index, &lock, &progress);
    let (reference, path) = ("main", "/tympan/staging");
    let source = BackupRepositorySource {
        base,
        blobs,
        reference,
        path,
        view: None,
        base_owner: below,
        files: &[],
    };
    save_repository(&session, source, &SaveOptions::new(who, now()))
}

/// Follows everything from a root on; returns how many chunks and blobs there are.
fn everything(
    chunks: &dyn ChunkStore,
    blobs: &dyn Fn(&BlobId) -> bool,
    root: ChunkId,
) -> (usize, usize) {
    let (mut seen, mut known, mut left) = (HashSet::from([root]), HashSet::new(), vec![root]);
    while let Some(id) = left.pop() {
        let chunk = chunks.read_chunk(&id).unwrap();
        left.extend(chunk.chunk_refs().filter(|id| seen.insert(*id)));
        for id in chunk.blob_refs().filter(|id| known.insert(*id)) {
            let is_there = match id.length() < 16 << 10 {
                true => chunks.read_blob(&id).unwrap().is_some(),
                false => blobs(&id),
            };
            assert!(is_there, "{id}");
        }
    }
    (seen.len(), known.len())
}

/// Returns the names of all files of a snapshot.
fn names(bench: &Bench, saved: &SaveSummary) -> HashSet<String> {
    let mut names = HashSet::new();
    let index = bench.index();
    let at = IndexedVault::new(&bench.vault, &index);
    walk_tree(at, &saved.snapshot.tree, std::path::Path::new("/"), &mut |path, _| {
        names.insert(path.file_name().unwrap().to_string_lossy().into_owned());
        Ok(())
    })
    .unwrap();
    names
}

fn name(bytes: &[u8]) -> String {
    BlobId::hash_of(bytes).digest().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Production from which nothing can be had: it does not answer, or it has lost its chunks.
#[derive(Debug)]
struct Unlike {
    is_away: bool,
}

impl Unlike {
    fn refuse<T>(&self) -> StoreResult<T> {
        let reason = "it does not answer".to_owned();
        Err(StoreError::Remote { base: self.display_name(), reason, is_transient: true })
    }
}

impl ReadChunks for Unlike {
    fn read_chunk(&self, _: &ChunkId) -> StoreResult<Chunk> {
        self.refuse()
    }
}

impl BaseStore for Unlike {
    fn display_name(&self) -> String {
        "production".to_owned()
    }
    fn contains_chunks(&self, ids: &[ChunkId]) -> StoreResult<Vec<bool>> {
        if self.is_away { self.refuse() } else { Ok(vec![false; ids.len()]) }
    }
    fn read_blobs(&self, ids: &[BlobId]) -> StoreResult<Vec<Option<bytes::Bytes>>> {
        if self.is_away { self.refuse() } else { Ok(vec![None; ids.len()]) }
    }
    fn list_refs(&self) -> StoreResult<Vec<(String, ChunkId)>> {
        self.refuse()
    }
    fn ref_history(&self, _: &str, _: Option<u64>, _: usize) -> StoreResult<Vec<Revision>> {
        self.refuse()
    }
    fn find_lease(&self, _: &str) -> StoreResult<Option<RootLease>> {
        self.refuse()
    }
    fn grant_lease(&self, _: &RootLease) -> StoreResult<()> {
        self.refuse()
    }
    fn release_lease(&self, _: &str) -> StoreResult<()> {
        self.refuse()
    }
}

#[test]
fn a_clones_backup_holds_nothing_of_productions() {
    let pair = Pair::new();
    pair.edit(2);
    let saved = pair.save(Reach::Known).unwrap().unwrap();
    assert_eq!(saved.faults, []);
    assert!(saved.omitted.chunk_count > 0 && saved.omitted.blob_count == 2, "{:?}", saved.omitted);
    let index = pair.bench.index();
    let said =
        find_snapshot_base(IndexedVault::new(&pair.bench.vault, &index), &saved.snapshot).unwrap();
    assert_eq!(said, Some(pair.reference.clone()));
    // Its own large blobs are there, and none of production's.
    let held = names(&pair.bench, &saved);
    for number in [100, 150] {
        assert!(held.contains(&name(&large_blob(number, 2))), "{number}");
    }
    let of_production = (0..PAGES).step_by(50).map(|number| name(&large_blob(number, 1)));
    let of_production: Vec<String> = of_production.collect();
    assert_eq!(of_production.iter().filter(|name| held.contains(*name)).count(), 0);
    // With its base, all of that is there.
    let whole = Bench::new();
    let production = ReadOnlyBlobFolder::new(&pair.production.dir.join("blobs"));
    let all = LiveStore::new(pair.composite.clone());
    let both = Both(ReadOnlyBlobFolder::new(&pair.own.dir.join("blobs")), production);
    let all = save_own(&whole, &all, &both, None).unwrap().unwrap();
    assert_eq!((all.faults.len(), all.omitted), (0, OmittedCounts::default()));
    let held = names(&whole, &all);
    // Two have another blob on staging.
    let count = of_production.iter().filter(|name| held.contains(*name)).count();
    assert_eq!(count, of_production.len() - 2);
    let (own, all) = (saved.written, all.written);
    assert!(own.stored_bytes * 10 < all.stored_bytes, "{own:?} {all:?}");
    println!(
        "{} of {} pieces, {} of {} bytes; 0 of {} blobs of production; {:?}",
        own.pieces,
        all.pieces,
        own.stored_bytes,
        all.stored_bytes,
        of_production.len(),
        saved.omitted
    );
}

/// Large blobs in one place or the other.
#[derive(Debug)]
struct Both(ReadOnlyBlobFolder, ReadOnlyBlobFolder);

impl ReadBlobs for Both {
    fn open(&self, id: &BlobId) -> tympan_blobs::Result<Option<tympan_blobs::BlobContent>> {
        Ok(match self.0.open(id)? {
            None => self.1.open(id)?,
            found => found,
        })
    }

    fn contains(&self, id: &BlobId) -> tympan_blobs::Result<bool> {
        Ok(self.0.contains(id)? || self.1.contains(id)?)
    }
}

#[test]
fn it_becomes_a_clone_again_over_production_alone() {
    let pair = Pair::new();
    pair.edit(2);
    let root = pair.composite.read_ref("main").unwrap().unwrap();
    let saved = pair.save(Reach::Known).unwrap().unwrap();
    let large = |home: &Home| {
        let places = [home.dir.join("blobs"), pair.production.dir.join("blobs")];
        let places = places.map(|place| ReadOnlyBlobFolder::new(&place));
        move |id: &BlobId| places.iter().any(|place| place.contains(id).unwrap())
    };
    let before = everything(&*pair.composite, &large(&pair.own), root);

    let (refused, home) = pair.restore(&saved, "nothing", (MissingContentPolicy::Refuse, false));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::InvalidRequest(_)), "{refused:?}");
    assert!(refused.to_string().contains(&pair.reference.from), "{refused}");
    assert_eq!(home.root(), None);

    let (imported, home) = pair.restore(&saved, "over", (MissingContentPolicy::Refuse, true));
    let imported = imported.unwrap();
    assert_eq!((imported.root, imported.missing), (root, OmittedCounts::default()));
    assert_eq!(home.root(), Some(root));
    let again = over(&home, &pair.base, &pair.lease());
    assert_eq!(everything(&*again, &large(&home), root), before);

    // Without production, what staging had of its own is there; with it again, all.
    let (imported, home) = pair.restore(&saved, "missing", (MissingContentPolicy::Allow, false));
    let imported = imported.unwrap();
    assert_eq!((imported.root, home.root()), (root, Some(root)));
    assert!(
        imported.missing.chunk_count > 0 && imported.missing.blob_count == 2,
        "{:?}",
        imported.missing
    );
    let again = over(&home, &pair.base, &pair.lease());
    assert_eq!(everything(&*again, &large(&home), root), before);
    println!(
        "{} chunks and {} blobs, of which {} and {} were restored, and {:?} stood on production",
        before.0, before.1, imported.chunk_count, imported.blob_count, imported.missing
    );

    // The same through the stock restic.
    let out = pair.bench.path("out");
    if pair.bench.restic(&["restore", "latest", "--target", out.to_str().unwrap()]).is_none() {
        return;
    }
    let import = |to: &str, missing| {
        let home = Home::open(pair.bench.path(to));
        let options = (ImportOptions { missing, base: None }, &BackupProgress::default());
        import_folder(&out, (&*home.store, &home.blobs), options)
    };
    assert!(import("unpacked nothing", MissingContentPolicy::Refuse).is_err());
    let imported = import("unpacked", MissingContentPolicy::Allow).unwrap();
    assert!(imported.root == root && imported.missing.blob_count == 2, "{imported:?}");
}

#[test]
fn production_need_not_be_there_for_a_save() {
    let pair = Pair::new();
    pair.edit(2);
    write_records((&*pair.composite, &pair.blobs), 400..1_000, 2);
    let (saved, first) = pair.save_counting(Reach::Away);
    let saved = saved.unwrap().unwrap();
    assert_eq!(saved.faults, []);
    assert!(saved.omitted.chunk_count > 0 && saved.omitted.blob_count == 2, "{:?}", saved.omitted);
    let (imported, _) = pair.restore(&saved, "over", (MissingContentPolicy::Refuse, true));
    assert_eq!(imported.unwrap().missing, OmittedCounts::default());
    assert!(pair.save(Reach::Known).unwrap().is_none(), "the same root is saved once");

    // The next one costs what changed, and is compared with the one before.
    pair.edit(3);
    let (next, some) = pair.save_counting(Reach::Away);
    let next = next.unwrap().unwrap();
    assert_eq!(next.snapshot.parent, Some(saved.snapshot.id));
    // A hundred of the 700 pages that are the clone's own.
    assert!(some * 2 < first, "{some} chunks were read, {first} at first");
    let (imported, home) = pair.restore(&next, "next", (MissingContentPolicy::Refuse, true));
    assert_eq!(Some(imported.unwrap().root), home.root());

    // One with all that the clone reads takes nothing from one that lacks it, nor the other way round.
    let production = ReadOnlyBlobFolder::new(&pair.production.dir.join("blobs"));
    let both = Both(ReadOnlyBlobFolder::new(&pair.own.dir.join("blobs")), production);
    let all = LiveStore::new(pair.composite.clone());
    let whole = save_own(&pair.bench, &all, &both, None).unwrap().unwrap();
    assert_eq!((whole.snapshot.parent, whole.faults.len()), (None, 0));
    let (imported, _) = pair.restore(&whole, "whole", (MissingContentPolicy::Refuse, false));
    assert_eq!(imported.unwrap().missing, OmittedCounts::default());
    pair.edit(4);
    let own = pair.save(Reach::Known).unwrap().unwrap();
    assert_eq!(own.snapshot.parent, Some(next.snapshot.id));
}

/// What neither has is no production's: it is told, and nothing is taken over from such a snapshot.
#[test]
fn what_neither_holds_is_a_fault() {
    let pair = Pair::new();
    pair.edit(2);
    let saved = pair.save(Reach::Empty).unwrap().unwrap();
    assert!(
        saved.snapshot.is_incomplete() && saved.omitted.chunk_count == 0,
        "{:?}",
        saved.omitted
    );
    assert!(saved.faults.len() > 10, "{} faults", saved.faults.len());
    let again = pair.save(Reach::Known).unwrap().unwrap();
    assert_eq!((again.snapshot.parent, again.faults.len()), (None, 0));
}

#[test]
fn a_clone_to_which_nothing_was_written_is_saved_by_its_name() {
    let pair = Pair::new();
    let root = pair.composite.read_ref("main").unwrap().unwrap();
    let saved = pair.save(Reach::Known).unwrap().unwrap();
    assert_eq!(saved.omitted, OmittedCounts { chunk_count: 1, blob_count: 0 });
    let (imported, home) = pair.restore(&saved, "over", (MissingContentPolicy::Refuse, true));
    assert_eq!((imported.unwrap().root, home.root()), (root, Some(root)));
    // Its ref is made when production is there: nothing of it is here.
    let (imported, home) = pair.restore(&saved, "missing", (MissingContentPolicy::Allow, false));
    let imported = imported.unwrap();
    assert_eq!((imported.root, home.root()), (root, None));
    assert_eq!(imported.missing, OmittedCounts { chunk_count: 1, blob_count: 0 });
}

/// Of any backup, blobs may be missing if that is allowed; chunks may not.
#[test]
fn blobs_may_be_missing_where_that_is_allowed() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..200, 1);
    let base = LiveStore::new(home.store.clone());
    // None of its four large blobs can be found.
    let nowhere = ReadOnlyBlobFolder::new(&bench.path("nowhere"));
    let saved = save_own(&bench, &base, &nowhere, None).unwrap().unwrap();
    assert_eq!(saved.faults.len(), 4);
    let index = bench.index();
    let import = |to: &str, missing| {
        let copy = Home::open(bench.path(to));
        let options = (ImportOptions { missing, base: None }, &BackupProgress::default());
        let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as _);
        let imported = import_snapshot(
            IndexedVault::new(&bench.vault, &index),
            &saved.snapshot,
            target,
            options,
        );
        imported.map(|imported| (imported.missing, copy.root()))
    };
    assert!(import("refused", MissingContentPolicy::Refuse).is_err());
    let (missing, root) = import("allowed", MissingContentPolicy::Allow).unwrap();
    assert_eq!((missing, root), (OmittedCounts { chunk_count: 0, blob_count: 4 }, home.root()));
}
