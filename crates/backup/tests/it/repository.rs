//! Content repositories that are saved, and become repositories again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_backup::{
    Error, Index, Lock, LockMode, Progress, RepositorySource, SaveOptions, Saved, Session, Who,
    import_folder, import_snapshot, save_repository,
};
use tympan_blobs::{BlobStore, FolderBlobs, LocalBlobs};
use tympan_store::disk::FileDisk;
use tympan_store::{
    Batch, BlobId, ChunkId, ChunkStore, FollowedStore, LocalOptions, LocalStore, RefUpdate, Root,
    Value, body,
};

use crate::support::{Bench, noise, now};

/// A home, with what a test puts into it.
struct Home {
    store: Arc<LocalStore>,
    blobs: LocalBlobs,
    dir: PathBuf,
}

impl Home {
    fn open(dir: PathBuf) -> Self {
        let disk = FileDisk::open(dir.join("store")).unwrap();
        let store = Arc::new(LocalStore::open(Arc::new(disk), LocalOptions::default()).unwrap());
        let blobs = LocalBlobs::open(&dir.join("blobs"), store.clone()).unwrap();
        Self { store, blobs, dir }
    }

    fn root(&self) -> Option<ChunkId> {
        self.store.read_ref("main").unwrap()
    }

    /// Writes records, some with blobs, and moves `main`.
    fn write(&self, records: impl Iterator<Item = u32>, seed: u8) {
        let old = self.root();
        let mut batch = Batch::new();
        let root = old.map_or_else(Root::default, |id| Root::read(&*self.store, &id).unwrap());
        let mut edits = BTreeMap::new();
        for number in records {
            let key = format!("/content/page{number:06}").into_bytes();
            let mut blobs = Vec::new();
            if number % 50 == 0 {
                let bytes =
                    noise(20_000 + number as usize, u64::from(number) + u64::from(seed) + 1);
                blobs.push(self.blobs.put(&mut bytes.as_slice()).unwrap());
                let small = format!("small {number} {seed}").into_bytes();
                let id = BlobId::of(&small);
                batch.add_blob(id, small.into());
                blobs.push(id);
            }
            let text = format!("page {number} {seed} ").repeat(20);
            let id = body::write(&mut batch, text.as_bytes(), &blobs).unwrap();
            edits.insert(key, Some(Value { bytes: b"x".to_vec().into(), body: Some(id) }));
        }
        let map = root.map("content").edit(&*self.store, &mut batch, edits).unwrap();
        let mut root = root;
        root.maps.insert("content".to_owned(), map);
        let new = root.write(&mut batch).unwrap();
        batch.move_ref(RefUpdate {
            name: "main".to_owned(),
            expected: old,
            new: Some(new),
            at: SystemTime::now(),
            author: "test".to_owned(),
            message: String::new(),
        });
        self.store.commit(batch).unwrap();
    }
}

/// Saves what `main` points to, through readers that need no lock on the home.
fn save(bench: &Bench, home: &Home) -> (Option<Saved>, u64) {
    let base = FollowedStore::open_dir(&home.dir.join("store"), LocalOptions::default()).unwrap();
    let blobs = FolderBlobs::new(&home.dir.join("blobs"));
    let who = Who::this_process();
    let lock = Lock::take(&bench.vault, &who, LockMode::Shared, Duration::ZERO).unwrap();
    let index = Arc::new(Index::load(&bench.vault).unwrap());
    let progress = Progress::default();
    let session = Session::new((&bench.vault, &index), &lock, &progress);
    let source = RepositorySource {
        base: &base,
        blobs: &blobs,
        reference: "main",
        path: "/tympan/home",
        view: None,
    };
    let saved = save_repository(&session, source, &SaveOptions::new(who, now())).unwrap();
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
    let progress = Progress::default();
    let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
    let imported =
        import_snapshot((&bench.vault, &index), &saved.snapshot, target, &progress).unwrap();
    assert_eq!((imported.root, copy.root()), (root, Some(root)));
    let again = import_snapshot((&bench.vault, &index), &saved.snapshot, target, &progress);
    assert!(matches!(again, Err(Error::Refused(_))), "a home that holds something is left alone");

    // The same through the stock restic, which knows nothing of repositories.
    bench.restic_ok(&["check", "--read-data"]);
    let out = bench.path("out");
    if bench.restic(&["restore", "latest", "--target", out.to_str().unwrap()]).is_none() {
        return;
    }
    let third = Home::open(bench.path("third"));
    let imported = import_folder(&out, (&*third.store, &third.blobs), &progress).unwrap();
    assert_eq!((imported.root, third.root()), (root, Some(root)));
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
        (&bench.vault, &bench.index()),
        &saved.snapshot,
        target,
        &Progress::default(),
    );
    assert!(refused.unwrap_err().to_string().contains("lacks the blob"));
    assert_eq!(copy.root(), None);

    // The blob is there again: the same root is saved once more, with nothing taken from what lacks it.
    std::fs::write(&file, bytes).unwrap();
    let again = save(&bench, &home).0.unwrap();
    assert!(again.faults.is_empty(), "{:?}", again.faults);
    assert_eq!((again.snapshot.is_incomplete(), again.snapshot.parent), (false, None));
    let target = (&*copy.store as &dyn ChunkStore, &copy.blobs as &dyn BlobStore);
    let index = bench.index();
    import_snapshot((&bench.vault, &index), &again.snapshot, target, &Progress::default()).unwrap();
    assert_eq!(copy.root(), home.root());
}
