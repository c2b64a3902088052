//! Content repositories that are saved, and become repositories again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tympan_backup::{
    BackupProgress, BackupRepositorySource, CopyDepth, CopyReport, CopyTarget, Error, HomeFile,
    ImportOptions, ImportReport, IndexedVault, SaveOptions, SaveSession, SaveSummary, VaultIndex,
    VaultLock, VaultLockMode, VaultSnapshot, VaultUser, copy_repository, find_path, import_folder,
    import_snapshot, read_home_files, save_repository,
};
use tympan_blobs::{BlobStore, LocalBlobStore, ReadOnlyBlobFolder};
use tympan_store::disk::FileDisk;
use tympan_store::{
    BaseStore, BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, Error as StoreError,
    GarbageCollectionOptions, LocalStore, LocalStoreOptions, MapValue, ReadChunks,
    ReadOnlyLocalStore, RefUpdate, Result as StoreResult, Revision, RevisionRetention, RootLease,
    StoreRoot, body,
};

use crate::vault_bench::{Bench, Far, noise, now};

/// A home, with what a test puts into it.
pub(crate) struct Home {
    pub(crate) store: Arc<LocalStore>,
    pub(crate) blobs: LocalBlobStore,
    pub(crate) dir: PathBuf,
}

impl Home {
    pub(crate) fn open(dir: PathBuf) -> Self {
        let disk = FileDisk::open(dir.join("store")).unwrap();
        let store =
            Arc::new(LocalStore::open(Arc::new(disk), LocalStoreOptions::default()).unwrap());
        let blobs = LocalBlobStore::open(&dir.join("blobs"), store.clone()).unwrap();
        Self { store, blobs, dir }
    }

    pub(crate) fn root(&self) -> Option<ChunkId> {
        self.store.read_ref("main").unwrap()
    }

    /// Moves `main` to a root that it had.
    fn go_back(&self, root: ChunkId) {
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(RefUpdate {
            name: "main".to_owned(),
            expected_root: self.root(),
            new_root: Some(root),
            updated_at: SystemTime::now(),
            author: "test".to_owned(),
            message: String::new(),
        });
        self.store.commit(batch).unwrap();
    }

    /// Writes records, some with blobs, and moves `main`.
    pub(crate) fn write(&self, records: impl Iterator<Item = u32>, seed: u8) {
        write_records((&*self.store, &self.blobs), records, seed);
    }
}

/// Returns the bytes of the large blob of a record; each fiftieth has one.
pub(crate) fn large_blob(number: u32, seed: u8) -> Vec<u8> {
    noise(20_000 + number as usize, u64::from(number) + u64::from(seed) + 1)
}

/// Writes records, some with blobs, and moves `main`.
pub(crate) fn write_records(
    (store, blobs): (&dyn ChunkStore, &dyn BlobStore),
    records: impl Iterator<Item = u32>,
    seed: u8,
) {
    let mut batch = ChunkBatch::new();
    let mut written = Vec::new();
    for number in records {
        let mut ids = Vec::new();
        if number % 50 == 0 {
            ids.push(blobs.put(&mut large_blob(number, seed).as_slice()).unwrap());
            let small = format!("small {number} {seed}").into_bytes();
            let id = BlobId::hash_of(&small);
            batch.add_blob(id, small.into());
            ids.push(id);
        }
        let text = format!("page {number} {seed} ").repeat(20);
        written.push((format!("/content/page{number:06}"), text, ids));
    }
    commit_records(store, batch, written);
}

/// Writes records with these texts, which refer to these blobs, and moves `main`.
pub(crate) fn commit_records(
    store: &dyn ChunkStore,
    mut batch: ChunkBatch,
    records: Vec<(String, String, Vec<BlobId>)>,
) {
    let old = store.read_ref("main").unwrap();
    let mut root = old.map_or_else(StoreRoot::default, |id| StoreRoot::read(store, &id).unwrap());
    let mut edits = BTreeMap::new();
    for (key, text, blobs) in records {
        let id = body::write_body(&mut batch, text.as_bytes(), &blobs).unwrap();
        let value = MapValue { bytes: b"x".to_vec().into(), body: Some(id) };
        edits.insert(key.into_bytes(), Some(value));
    }
    let map = root.map("content").edit(store, &mut batch, edits).unwrap();
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
    store.commit(batch).unwrap();
}

/// Saves what `main` points to, through readers that need no lock on the home.
fn save(bench: &Bench, home: &Home) -> (Option<SaveSummary>, u64) {
    let base = ReadOnlyLocalStore::open_dir(&home.dir.join("store"), LocalStoreOptions::default())
        .unwrap();
    save_from(bench, &base, home)
}

fn save_from(bench: &Bench, base: &dyn BaseStore, home: &Home) -> (Option<SaveSummary>, u64) {
    let (saved, items) = try_save_from(bench, base, home);
    (saved.unwrap(), items)
}

fn try_save_from(
    bench: &Bench,
    base: &dyn BaseStore,
    home: &Home,
) -> (Result<Option<SaveSummary>, Error>, u64) {
    try_save_with(bench, base, home, &[])
}

fn try_save_with(
    bench: &Bench,
    base: &dyn BaseStore,
    home: &Home,
    files: &[HomeFile],
) -> (Result<Option<SaveSummary>, Error>, u64) {
    let options = SaveOptions::new(VaultUser::this_process(), now());
    try_save_by(bench, base, (home, files), &options)
}

fn try_save_by(
    bench: &Bench,
    base: &dyn BaseStore,
    (home, files): (&Home, &[HomeFile]),
    options: &SaveOptions,
) -> (Result<Option<SaveSummary>, Error>, u64) {
    let blobs = ReadOnlyBlobFolder::new(&home.dir.join("blobs"));
    let who = VaultUser::this_process();
    let lock =
        VaultLock::acquire(&bench.vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
    let index = Arc::new(VaultIndex::load(&bench.vault).unwrap());
    let progress = BackupProgress::default();
    let session = SaveSession::new(&bench.vault, &index, &lock, &progress);
    let source = BackupRepositorySource {
        base,
        blobs: &blobs,
        reference: "main",
        path: "/tympan/home",
        view: None,
        base_owner: None,
        files,
    };
    let saved = save_repository(&session, source, options);
    (saved, progress.items.into_inner())
}

#[test]
fn a_repository_comes_back_with_the_same_root() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..3_000, 1);
    let (saved, _) = save(&bench, &home);
    let saved = saved.unwrap();
    assert!(saved.faults.is_empty(), "{:?}", saved.faults);
    let root = home.root().unwrap();
    assert_eq!(saved.snapshot.repository_root(), Some(root.to_string().as_str()));

    let copy = Home::open(bench.path("copy"));
    let index = bench.index();
    let progress = BackupProgress::default();
    let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
    let imported = import_snapshot(
        IndexedVault::new(&bench.vault, &index),
        &saved.snapshot,
        target,
        (ImportOptions::default(), &progress),
    )
    .unwrap();
    assert_eq!((imported.root, copy.root()), (root, Some(root)));
    let again = import_snapshot(
        IndexedVault::new(&bench.vault, &index),
        &saved.snapshot,
        target,
        (ImportOptions::default(), &progress),
    );
    assert!(
        matches!(again, Err(Error::InvalidRequest(_))),
        "a home that holds something is left alone"
    );

    // The same through the stock restic, which knows nothing of repositories.
    bench.restic_ok(&["check", "--read-data"]);
    let out = bench.path("out");
    if bench.restic(&["restore", "latest", "--target", out.to_str().unwrap()]).is_none() {
        return;
    }
    let third = Home::open(bench.path("third"));
    let imported =
        import_folder(&out, (&*third.store, &third.blobs), (ImportOptions::default(), &progress))
            .unwrap();
    assert_eq!((imported.root, third.root()), (root, Some(root)));
}

/// A repository does not cost a round trip for each of its parts.
#[test]
fn a_repository_comes_from_afar_in_few_calls() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..3_000, 1);
    let saved = save(&bench, &home).0.unwrap();
    let calls = |together: bool| {
        let far = Far::new(&bench, 0);
        let vault = if together { bench.open_through(far.clone()) } else { bench.vault.clone() };
        let copy = Home::open(bench.path(if together { "far" } else { "near" }));
        let (index, progress) = (VaultIndex::load(&vault).unwrap(), BackupProgress::default());
        far.calls.store(0, Ordering::Relaxed);
        let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
        let options = (ImportOptions::default(), &progress);
        import_snapshot(IndexedVault::new(&vault, &index), &saved.snapshot, target, options)
            .unwrap();
        assert_eq!(copy.root(), home.root());
        (far.calls.load(Ordering::Relaxed) as u64, progress.items.into_inner())
    };
    let (_, files) = calls(false);
    let (calls, same) = calls(true);
    assert_eq!(files, same);
    let folders = saved.written.folders;
    assert!(calls <= folders + 20 && files > 60, "{calls} calls, {files} files, {folders} folders");
}

/// Moves a branch to a root.
fn set_branch(home: &Home, name: &str, root: ChunkId) {
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(RefUpdate {
        name: name.to_owned(),
        expected_root: home.store.read_ref(name).unwrap(),
        new_root: Some(root),
        updated_at: SystemTime::now(),
        author: "test".to_owned(),
        message: String::new(),
    });
    home.store.commit(batch).unwrap();
}

/// Earlier states are saved where that is asked for, come back as revisions in their order, and cost nothing once they are
/// saved.
#[test]
fn earlier_revisions_come_back() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    for version in 1..=4 {
        home.write(0..1_000, version);
    }
    let save = || {
        let base =
            ReadOnlyLocalStore::open_dir(&home.dir.join("store"), LocalStoreOptions::default())
                .unwrap();
        let options = SaveOptions::new(VaultUser::this_process(), now());
        let options =
            SaveOptions { revision_retention: Some(RevisionRetention::KEEP_ALL), ..options };
        let (saved, items) = try_save_by(&bench, &base, (&home, &[]), &options);
        (saved.unwrap(), items)
    };
    let first = save().0.unwrap();
    assert!(first.faults.is_empty(), "{:?}", first.faults);
    assert!(save().0.is_none(), "nothing has changed");
    home.write([3].into_iter(), 5);
    let (second, items) = save();
    let second = second.unwrap();
    assert!(items < 60, "{items} things were looked at for one edit");

    let restore = |snapshot: &VaultSnapshot, folder: &str| {
        let copy = Home::open(bench.path(folder));
        let (index, progress) = (bench.index(), BackupProgress::default());
        let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
        let options = (ImportOptions::default(), &progress);
        let imported =
            import_snapshot(IndexedVault::new(&bench.vault, &index), snapshot, target, options)
                .unwrap();
        (copy, imported)
    };
    for (saved, folder, count) in [(&first, "first", 3), (&second, "second", 4)] {
        let (copy, imported) = restore(&saved.snapshot, folder);
        assert_eq!(imported.revision_count, count);
        let then = copy.store.ref_history("main", None, 100).unwrap();
        let before = home.store.ref_history("main", None, 100).unwrap();
        let roots = |history: &[Revision]| -> Vec<_> {
            let mut roots: Vec<_> = history.iter().map(|one| one.update.new_root).collect();
            roots.reverse();
            roots
        };
        let expected = count as usize + 1;
        assert_eq!(roots(&then), roots(&before)[..expected], "oldest first");
        let millis = |one: &Revision| {
            one.update.updated_at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
        };
        // The newest move is the restore's own.
        let times = |history: &[Revision]| -> Vec<u128> {
            history.iter().rev().take(count as usize).map(millis).collect()
        };
        assert_eq!(times(&then), times(&before));
        for root in roots(&then).into_iter().flatten() {
            assert!(copy.store.read_chunk(&root).is_ok());
        }
    }
    // An earlier program, and whoever does not ask, has none.
    let (saved, _) = try_save_with(
        &bench,
        &ReadOnlyLocalStore::open_dir(&home.dir.join("store"), LocalStoreOptions::default())
            .unwrap(),
        &home,
        &[],
    );
    let (copy, imported) = restore(&saved.unwrap().unwrap().snapshot, "plain");
    assert_eq!((imported.revision_count, copy.root()), (0, home.root()));
}

/// Branches and files of the home are saved with the repository and come back with it; each save costs what changed in them.
#[test]
fn branches_and_files_of_a_home_come_back() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..3_000, 1);
    let first = home.root().unwrap();
    set_branch(&home, "branch/frühling", first);
    home.write([5].into_iter(), 2);
    let second = home.root().unwrap();
    set_branch(&home, "branch/same", second);
    let file = |name: &str, bytes: &[u8]| HomeFile { name: name.to_owned(), bytes: bytes.to_vec() };
    let files = [file("tympan.toml", b"[collect]\n"), file("state.db", &noise(9 << 20, 5))];
    let save = |files: &[HomeFile]| {
        let dir = home.dir.join("store");
        let base = ReadOnlyLocalStore::open_dir(&dir, LocalStoreOptions::default()).unwrap();
        let (saved, items) = try_save_with(&bench, &base, &home, files);
        (saved.unwrap(), items)
    };
    let (saved, all) = save(&files);
    let saved = saved.unwrap();
    assert!(saved.faults.is_empty(), "{:?}", saved.faults);
    assert!(save(&files).0.is_none(), "nothing changed");

    // A branch that moved by one edit costs one edit, and one that is gone nothing.
    home.write([7].into_iter(), 3);
    set_branch(&home, "branch/frühling", home.root().unwrap());
    home.go_back(second);
    let (saved, some) = save(&files);
    let saved = saved.unwrap();
    assert!(some * 4 < all, "{some} of {all}");
    assert!(saved.written.pieces < 20, "{:?}", saved.written);
    assert!(save(&files[..1]).0.is_some(), "a file that changed is saved");

    let check = |out: &str, import: &dyn Fn(&Home) -> Result<ImportReport, Error>| {
        let copy = Home::open(bench.path(out));
        let imported = import(&copy).unwrap();
        assert_eq!(imported.branches, ["branch/frühling", "branch/same"]);
        assert_eq!(copy.root(), home.root());
        for name in ["branch/frühling", "branch/same"] {
            let (there, here) = (copy.store.read_ref(name), home.store.read_ref(name));
            assert_eq!(there.unwrap(), here.unwrap(), "{name}");
        }
        let report = tympan_store::check_store(&copy.store).unwrap();
        assert!(report.is_clean(), "{report:?}");
    };
    let (index, progress) = (bench.index(), BackupProgress::default());
    let options = ImportOptions::default();
    check("copy", &|copy| {
        let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
        import_snapshot(
            IndexedVault::new(&bench.vault, &index),
            &saved.snapshot,
            target,
            (options, &progress),
        )
    });
    let mut restored =
        read_home_files(IndexedVault::new(&bench.vault, &index), &saved.snapshot).unwrap();
    restored.sort_by(|left, right| right.name.cmp(&left.name));
    assert_eq!(restored, files);
    // By hand, from a folder.
    let node = find_path(&bench.vault, &index, &saved.snapshot, "/").unwrap();
    assert!(bench.restore_node(&node, "out").faults.is_empty());
    check("by hand", &|copy| {
        let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
        import_folder(&bench.path("out"), target, (options, &progress))
    });
}

/// A blob whose bytes are damaged is left out and told; all else is saved.
#[test]
fn a_damaged_blob_is_a_fault_of_its_save() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..200, 1);
    let id = BlobId::hash_of(&large_blob(50, 1)).to_string();
    let path = home.dir.join("blobs").join(&id[..2]).join(&id[2..4]).join(&id[..64]);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let saved = save(&bench, &home).0.unwrap();
    assert_eq!(saved.faults.len(), 1, "{:?}", saved.faults);
    let fault = saved.faults[0].to_string();
    assert!(fault.contains(&id[..64]) && fault.contains("tympan blobs check"), "{fault}");
    assert!(saved.snapshot.is_incomplete());
}

#[test]
fn a_save_costs_what_changed() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..20_000, 1);
    let (full, all) = save(&bench, &home);
    let full = full.unwrap().written;
    assert!(save(&bench, &home).0.is_none(), "the same root is saved once");

    home.write([7, 11_000].into_iter(), 2);
    let (saved, some) = save(&bench, &home);
    let saved = saved.unwrap();
    assert!(some * 20 < all, "{some} of {all} parts");
    assert!(saved.written.pieces < 40 && saved.written.folders < 20, "{:?}", saved.written);
    assert!(
        saved.written.stored_bytes * 50 < full.stored_bytes * 4,
        "{:?} {full:?}",
        saved.written
    );

    // What follows from differences is what follows from nothing.
    let other = Bench::new();
    let (whole, _) = save(&other, &home);
    assert_eq!(whole.unwrap().snapshot.tree, saved.snapshot.tree);
}

#[test]
fn an_incomplete_backup_becomes_no_home() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..200, 1);
    // A large blob is gone from the home.
    let blobs = home.dir.join("blobs");
    let mut folders = vec![blobs];
    let file = loop {
        let folder = folders.pop().unwrap();
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let (dirs, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
        if let Some(file) = files.into_iter().next() {
            break file;
        }
        folders.extend(dirs);
    };
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let saved = save(&bench, &home).0.unwrap();
    assert_eq!(saved.faults.len(), 1, "{:?}", saved.faults);
    assert!(saved.snapshot.is_incomplete());
    let copy = Home::open(bench.path("copy"));
    let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
    let refused = import_snapshot(
        IndexedVault::new(&bench.vault, &bench.index()),
        &saved.snapshot,
        target,
        (ImportOptions::default(), &BackupProgress::default()),
    );
    assert!(refused.unwrap_err().to_string().contains("the backup is incomplete: the blob `"));
    assert_eq!(copy.root(), None);

    // The blob is there again: the same root is saved once more, with nothing taken from what lacks it.
    std::fs::write(&file, bytes).unwrap();
    let again = save(&bench, &home).0.unwrap();
    assert!(again.faults.is_empty(), "{:?}", again.faults);
    assert_eq!((again.snapshot.is_incomplete(), again.snapshot.parent), (false, None));
    let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
    let index = bench.index();
    import_snapshot(
        IndexedVault::new(&bench.vault, &index),
        &again.snapshot,
        target,
        (ImportOptions::default(), &BackupProgress::default()),
    )
    .unwrap();
    assert_eq!(copy.root(), home.root());
}

/// A store in which something happens when it is read from for the first time.
struct Meddling {
    inner: ReadOnlyLocalStore,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Leases that the repository never hears of, where it is not to keep anything.
    unheard: Option<Mutex<BTreeMap<String, RootLease>>>,
    /// Whether leases are never given back, as by a process that was killed.
    is_killed: bool,
}

impl std::fmt::Debug for Meddling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meddling")
    }
}

impl ReadChunks for Meddling {
    fn read_chunk(&self, id: &ChunkId) -> StoreResult<Chunk> {
        if let Some(then) = self.then.lock().unwrap().take() {
            then();
            // A pack that is gone can be read as long as its file is open; who looks at the folder again lets go of it.
            self.inner.list_refs()?;
        }
        self.inner.read_chunk(id)
    }
}

impl BaseStore for Meddling {
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
        match &self.unheard {
            Some(leases) => Ok(leases.lock().unwrap().get(holder).cloned()),
            None => self.inner.find_lease(holder),
        }
    }
    fn grant_lease(&self, lease: &RootLease) -> StoreResult<()> {
        match &self.unheard {
            Some(leases) => {
                leases.lock().unwrap().insert(lease.holder.clone(), lease.clone());
                Ok(())
            }
            None => self.inner.grant_lease(lease),
        }
    }
    fn release_lease(&self, holder: &str) -> StoreResult<()> {
        if self.is_killed {
            return Ok(());
        }
        match &self.unheard {
            Some(leases) => {
                leases.lock().unwrap().remove(holder);
                Ok(())
            }
            None => self.inner.release_lease(holder),
        }
    }
}

fn collect(store: &LocalStore) {
    collect_at(store, SystemTime::now());
}

fn collect_at(store: &LocalStore, now: SystemTime) {
    let retention = RevisionRetention::KEEP_NEWEST;
    // Every pack with garbage in it is rewritten.
    let options = GarbageCollectionOptions {
        retention,
        min_live_share: 1.1,
        ..GarbageCollectionOptions::at_time(now)
    };
    store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
}

fn holds(home: &Home, root: &ChunkId) -> bool {
    let base = ReadOnlyLocalStore::open_dir(&home.dir.join("store"), LocalStoreOptions::default())
        .unwrap();
    base.contains_chunks(&[*root]).unwrap() == [true]
}

/// The repository goes on and collects its garbage before the save has read anything.
fn meddled_with(home: &Arc<Home>, hears_of_leases: bool) -> Meddling {
    let inner = ReadOnlyLocalStore::open_dir(&home.dir.join("store"), LocalStoreOptions::default())
        .unwrap();
    let meddler = home.clone();
    let then = move || {
        meddler.write(0..2_000, 2);
        collect(&meddler.store);
    };
    let then = Mutex::new(Some(Box::new(then) as Box<dyn FnOnce() + Send>));
    let unheard = (!hears_of_leases).then(Mutex::default);
    Meddling { inner, then, unheard, is_killed: false }
}

#[test]
fn garbage_that_a_save_still_needs_stays_until_it_ends() {
    let bench = Bench::new();
    let home = Arc::new(Home::open(bench.path("home")));
    home.write(0..2_000, 1);
    let root = home.root().unwrap();
    let base = meddled_with(&home, true);
    let saved = save_from(&bench, &base, &home).0.unwrap();
    assert!(base.then.lock().unwrap().is_none(), "nothing happened meanwhile");
    assert_eq!(saved.snapshot.repository_root(), Some(root.to_string().as_str()));
    assert!(saved.faults.is_empty(), "{:?}", saved.faults);
    let copy = Home::open(bench.path("copy"));
    let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
    let progress = BackupProgress::default();
    import_snapshot(
        IndexedVault::new(&bench.vault, &bench.index()),
        &saved.snapshot,
        target,
        (ImportOptions::default(), &progress),
    )
    .unwrap();
    assert_eq!(copy.root(), Some(root));
    // The lease has ended with the save: now it goes.
    assert!(holds(&home, &root));
    collect(&home.store);
    assert!(!holds(&home, &root));
}

/// Nobody gives the lease of a killed process back; garbage is kept for less than an hour because of it.
#[test]
fn the_lease_of_a_killed_save_is_soon_over() {
    let bench = Bench::new();
    let home = Arc::new(Home::open(bench.path("home")));
    home.write(0..2_000, 1);
    let root = home.root().unwrap();
    let mut base = meddled_with(&home, true);
    base.is_killed = true;
    save_from(&bench, &base, &home).0.unwrap();
    let after = |minutes| SystemTime::now() + Duration::from_mins(minutes);
    for minutes in [0, 20] {
        collect_at(&home.store, after(minutes));
        assert!(holds(&home, &root), "after {minutes} min");
    }
    collect_at(&home.store, after(31));
    assert!(!holds(&home, &root));
}

/// Another save of the same process, into another vault, ends meanwhile: it gives back its own lease alone.
#[test]
fn a_save_that_ends_leaves_the_lease_of_another_one() {
    let (bench, other) = (Bench::new(), Bench::new());
    let home = Arc::new(Home::open(bench.path("home")));
    home.write(0..2_000, 1);
    let mut base = meddled_with(&home, true);
    let meddler = home.clone();
    let then = move || {
        save(&other, &meddler).0.unwrap();
        meddler.write(0..2_000, 2);
        collect(&meddler.store);
    };
    base.then = Mutex::new(Some(Box::new(then)));
    let saved = save_from(&bench, &base, &home).0.unwrap();
    assert!(base.then.lock().unwrap().is_none(), "nothing happened meanwhile");
    assert!(saved.faults.is_empty(), "{:?}", saved.faults);
}

/// The control of the test above but one: with a lease that the repository does not hear of, the collection takes what is saved away.
#[test]
fn without_a_lease_a_collection_ends_a_save() {
    let bench = Bench::new();
    let home = Arc::new(Home::open(bench.path("home")));
    home.write(0..2_000, 1);
    let base = meddled_with(&home, false);
    let (saved, _) = try_save_from(&bench, &base, &home);
    assert!(base.then.lock().unwrap().is_none(), "nothing happened meanwhile");
    let error = saved.err().unwrap();
    assert!(matches!(error, Error::Store(StoreError::ChunkMissing { .. })), "{error:?}");
    assert_eq!(bench.vault.read_snapshots().unwrap().len(), 0);
}

/// Every snapshot is one state that was committed, whatever is written meanwhile, and the save ends.
#[test]
fn a_save_beside_writers_is_one_committed_state() {
    let bench = Bench::new();
    let home = Arc::new(Home::open(bench.path("home")));
    home.write(0..500, 1);
    let heads = Mutex::new(vec![home.root().unwrap()]);
    let stop = AtomicBool::new(false);
    let mut saved = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u32.. {
                // Two records and blobs in one commit.
                home.write([number % 500, (number * 50) % 500].into_iter(), (number % 250) as u8);
                heads.lock().unwrap().push(home.root().unwrap());
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        while saved.len() < 4 {
            saved.extend(save(&bench, &home).0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let heads: Vec<String> = heads.into_inner().unwrap().iter().map(ToString::to_string).collect();
    for (number, one) in saved.iter().enumerate() {
        let root = one.snapshot.repository_root().unwrap();
        assert!(heads.iter().any(|head| head == root), "{root} was never committed");
        assert!(one.faults.is_empty(), "{:?}", one.faults);
        let copy = Home::open(bench.path(&format!("copy{number}")));
        let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
        let progress = BackupProgress::default();
        import_snapshot(
            IndexedVault::new(&bench.vault, &bench.index()),
            &one.snapshot,
            target,
            (ImportOptions::default(), &progress),
        )
        .unwrap();
        assert_eq!(copy.root().unwrap().to_string(), root);
    }
}

/// Makes a plain copy of a home.
fn copy(home: &Home, target: &CopyTarget, depth: CopyDepth) -> Result<CopyReport, Error> {
    copy_of(&home.dir, target, depth)
}

fn copy_of(home: &Path, target: &CopyTarget, depth: CopyDepth) -> Result<CopyReport, Error> {
    let base =
        ReadOnlyLocalStore::open_dir(&home.join("store"), LocalStoreOptions::default()).unwrap();
    let blobs = ReadOnlyBlobFolder::new(&home.join("blobs"));
    let source = BackupRepositorySource {
        base: &base,
        blobs: &blobs,
        reference: "main",
        path: "/tympan/home",
        view: None,
        base_owner: None,
        files: &[],
    };
    copy_repository(source, target, (&VaultUser::this_process(), depth), &BackupProgress::default())
}

/// Makes a home of a copy, and returns its root.
fn home_of(bench: &Bench, copy: &str, name: &str) -> Result<ChunkId, Error> {
    let home = Home::open(bench.path(name));
    let target = (&*home.store as &dyn ChunkStore, &home.blobs as &dyn BlobStore);
    import_folder(&bench.path(copy), target, (ImportOptions::default(), &BackupProgress::default()))
        .map(|imported| imported.root)
}

fn files_of(dir: &std::path::Path) -> u64 {
    let state = std::fs::read_dir(dir.join("state")).unwrap();
    state.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count() as u64).sum()
}

#[test]
fn plain_copies_become_homes_of_the_same_root() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..3_000, 1);
    let root = home.root().unwrap();
    let folder = CopyTarget::Folder(bench.path("copy"));
    let zip = CopyTarget::Zip(bench.path("copy.zip"));
    let full = copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    assert!(full.faults.is_empty() && !full.is_incremental, "{full:?}");
    assert_eq!(full.written_files, files_of(&bench.path("copy")));
    assert_eq!(
        copy(&home, &zip, CopyDepth::MissingOnly).unwrap().written_files,
        full.written_files
    );
    assert_eq!(home_of(&bench, "copy", "first").unwrap(), root);
    assert_eq!(home_of(&bench, "copy.zip", "second").unwrap(), root);

    // Nothing changed; then a little did.
    let same = copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    assert_eq!((same.written_files, same.is_incremental), (0, true));
    home.write(100..110, 2);
    let some = copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    assert!(
        some.is_incremental && some.written_files * 5 < full.written_files,
        "{some:?} of {full:?}"
    );
    assert_eq!(home_of(&bench, "copy", "third").unwrap(), home.root().unwrap());

    // What the state needs no more goes when everything is looked at, and nothing else is written.
    let before = files_of(&bench.path("copy"));
    let swept = copy(&home, &folder, CopyDepth::Everything).unwrap();
    assert!(swept.written_files == 0 && swept.removed_files > 0, "{swept:?}");
    assert_eq!(files_of(&bench.path("copy")) + swept.removed_files, before);
    assert_eq!(home_of(&bench, "copy", "fourth").unwrap(), home.root().unwrap());

    // A ZIP file is never changed, and a folder with something else is nobody's copy.
    assert!(matches!(copy(&home, &zip, CopyDepth::MissingOnly), Err(Error::InvalidRequest(_))));
    let other = CopyTarget::Folder(bench.path("home"));
    assert!(matches!(copy(&home, &other, CopyDepth::MissingOnly), Err(Error::InvalidRequest(_))));
}

/// A blob that rots in the home must not take the place of the one that an earlier copy has.
#[test]
fn a_damaged_blob_leaves_the_copy_before_as_it_is() {
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..300, 1);
    let target = CopyTarget::Folder(bench.path("copy"));
    let full = copy(&home, &target, CopyDepth::MissingOnly).unwrap();
    assert!(full.faults.is_empty(), "{full:?}");
    let mut folders = vec![home.dir.join("blobs")];
    let mut rotten = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let facts = std::fs::metadata(&path).unwrap();
            if facts.is_dir() {
                folders.push(path);
            } else if facts.len() >= 20_000 && rotten == 0 {
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[100] ^= 1;
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, bytes).unwrap();
                rotten += 1;
            }
        }
    }
    assert_eq!(rotten, 1);
    let again = copy(&home, &target, CopyDepth::Everything);
    match &again {
        Ok(copied) => assert_eq!(copied.faults.len(), 1, "{copied:?}"),
        Err(error) => println!("{error}"),
    }
    assert_eq!(home_of(&bench, "copy", "first").unwrap(), home.root().unwrap());
    let zip = CopyTarget::Zip(bench.path("copy.zip"));
    assert!(
        copy(&home, &zip, CopyDepth::MissingOnly).map_or(true, |copied| !copied.faults.is_empty())
    );
    assert!(!bench.path("copy.zip").exists());
}

/// What a copy that did not end has left is compared byte by byte, and the copy before counts until then.
#[test]
fn a_copy_that_was_cut_off_costs_nothing() {
    use std::fs;
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..1_000, 1);
    let first = home.root().unwrap();
    let dir = bench.path("copy");
    let folder = CopyTarget::Folder(dir.clone());
    copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    let saved = fs::read(dir.join("tympan.json")).unwrap();
    home.write(0..300, 2);
    copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    // As if it had ended before it said which state it is, and power loss had emptied and halved what was not yet synced.
    fs::write(dir.join("tympan.json"), &saved).unwrap();
    fs::write(dir.join("unfinished"), "").unwrap();
    let old: std::collections::HashSet<String> = {
        let whole = CopyTarget::Folder(bench.path("old"));
        let old = Home::open(bench.path("old home"));
        let target = (&*old.store as &dyn ChunkStore, &old.blobs as &dyn BlobStore);
        import_folder(&dir, target, (ImportOptions::default(), &BackupProgress::default()))
            .unwrap();
        assert_eq!(old.root().unwrap(), first);
        copy(&old, &whole, CopyDepth::MissingOnly).unwrap();
        names_below(&bench.path("old"))
    };
    let mut damaged = 0;
    for folder in fs::read_dir(dir.join("state")).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if !old.contains(path.file_name().unwrap().to_str().unwrap()) {
                let length = fs::metadata(&path).unwrap().len() / 2 * (damaged % 2);
                fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 2, "{damaged}");
    assert_eq!(home_of(&bench, "copy", "before").unwrap(), first);
    let again = copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    assert!(
        again.faults.is_empty() && again.written_files >= damaged,
        "{again:?}, {damaged} damaged"
    );
    assert!(!dir.join("unfinished").exists() && !dir.join("new").exists());
    assert_eq!(home_of(&bench, "copy", "after").unwrap(), home.root().unwrap());
}

fn names_below(dir: &std::path::Path) -> std::collections::HashSet<String> {
    let folders = std::fs::read_dir(dir.join("state")).unwrap();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// What a sweep that was cut off has removed is missed by the next copy, even where what refers to it is still there.
#[test]
fn a_sweep_that_was_cut_off_leaves_nothing_to_be_trusted() {
    use std::fs;
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..1_000, 1);
    let first = home.root().unwrap();
    let dir = bench.path("copy");
    let folder = CopyTarget::Folder(dir.clone());
    copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    home.write(0..1_000, 2);
    copy(&home, &CopyTarget::Folder(bench.path("second")), CopyDepth::MissingOnly).unwrap();
    let needed = names_below(&bench.path("second"));
    let top = first.to_string();
    let top = dir.join("state").join(&top[..2]).join(top);
    let bytes = fs::read(&top).unwrap();
    // A folder is nothing that the sweep can remove.
    let in_the_way = top.parent().unwrap().join("in the way");
    fs::create_dir(&in_the_way).unwrap();
    assert!(copy(&home, &folder, CopyDepth::Everything).is_err());
    fs::remove_dir(&in_the_way).unwrap();
    // The worst moment: all is gone but what refers to it.
    let mut removed = 0;
    for name in names_below(&dir) {
        if !needed.contains(&name) {
            fs::remove_file(dir.join("state").join(&name[..2]).join(name)).unwrap();
            removed += 1;
        }
    }
    fs::write(&top, bytes).unwrap();
    assert_eq!(home_of(&bench, "copy", "second home").unwrap(), home.root().unwrap());
    home.go_back(first);
    let copied = copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    assert!(copied.written_files > 2, "{copied:?}, {removed} removed by hand");
    assert_eq!(home_of(&bench, "copy", "first home").unwrap(), first);
}

/// The variable that makes a run of [`a_process_that_copies`] the process that is killed: the test's folder.
const KILLED: &str = "TYMPAN_TEST_COPY";

/// What the killed process runs; without the variable it is no test.
#[test]
fn a_process_that_copies() {
    let Some(dir) = std::env::var_os(KILLED).map(PathBuf::from) else { return };
    let folder = CopyTarget::Folder(dir.join("copy"));
    copy_of(&dir.join("home"), &folder, CopyDepth::Everything).unwrap();
}

/// A copy that is killed at any moment leaves a whole copy of the state before or of the new one, and the next one is whole.
/// `TYMPAN_KILLS` sets how often.
#[test]
fn killed_copies_leave_the_one_before() {
    use std::process::{Command, Stdio};
    use std::time::Instant;
    let bench = Bench::new();
    let home = Home::open(bench.path("home"));
    home.write(0..600, 1);
    let mut roots = vec![home.root().unwrap()];
    let folder = CopyTarget::Folder(bench.path("copy"));
    copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
    home.write(0..400, 2);
    roots.push(home.root().unwrap());
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["repository::a_process_that_copies", "--exact", "--nocapture"])
            .env(KILLED, bench.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let begin = Instant::now();
    assert!(start().wait().unwrap().success());
    let span = begin.elapsed();
    assert_eq!(home_of(&bench, "copy", "whole").unwrap(), roots[1]);
    let kills: u32 =
        std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(6);
    let (mut seed, mut unfinished) = (0x5eed_c0b1_u64, 0);
    for round in 0..kills {
        let (before, after) = (roots[(round as usize + 1) % 2], roots[round as usize % 2]);
        home.go_back(after);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let moment = Instant::now() + span * u32::try_from((seed >> 33) % 1000).unwrap() / 1000;
        let mut child = start();
        while Instant::now() < moment && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        unfinished += u32::from(bench.path("copy/unfinished").exists());
        let left = home_of(&bench, "copy", &format!("left{round}")).unwrap();
        assert!(left == before || left == after, "round {round}: {left}");
        // Cut off or not, the next one goes on from there, and to the state before, too.
        for root in [before, after] {
            home.go_back(root);
            copy(&home, &folder, CopyDepth::MissingOnly).unwrap();
        }
        assert_eq!(home_of(&bench, "copy", &format!("next{round}")).unwrap(), after);
    }
    println!("{kills} kills, {unfinished} while the copy was under way: nothing lost");
}
