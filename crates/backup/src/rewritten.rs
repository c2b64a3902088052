//! Snapshots of repositories that somebody wrote anew: what may be taken over from them, and what is read again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tympan_blobs::{FolderBlobs, LocalBlobs};
use tympan_store::disk::FileDisk;
use tympan_store::{
    Batch, BlobId, ChunkId, ChunkStore, FollowedStore, LocalOptions, LocalStore, RefUpdate, Root,
    Value, body,
};

use crate::backend::{FileKind, LocalBackend};
use crate::id::Id;
use crate::save::{Progress, SaveOptions, Saved, Session};
use crate::source::import::{ImportOptions, import_snapshot};
use crate::source::repository::{RepositorySource, save_repository};
use crate::vault::index::{BlobKind, Index};
use crate::vault::lock::{Lock, LockMode};
use crate::vault::node::Tree;
use crate::vault::snapshot::{Clients, Snapshot};
use crate::vault::write::Writer;
use crate::vault::{KeyCost, Vault, Who};

const PAGES: u32 = 600;

/// A vault, and a home that is saved into it.
struct Bench {
    dir: tempfile::TempDir,
    vault: Arc<Vault>,
    store: Arc<LocalStore>,
}

fn open_store(dir: &std::path::Path) -> Arc<LocalStore> {
    let disk = FileDisk::open(dir.join("store")).unwrap();
    Arc::new(LocalStore::open(Arc::new(disk), LocalOptions::default()).unwrap())
}

impl Bench {
    /// Makes a home with pages, some of which have small blobs, and saves it.
    fn saved() -> (Self, Saved, u64) {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let by = (&Who::this_process(), Timestamp::UNIX_EPOCH);
        let vault = Vault::init(backend, b"x", KeyCost { log_rounds: 4 }, by).unwrap();
        let store = open_store(&dir.path().join("home"));
        let bench = Self { dir, vault: Arc::new(vault), store };
        bench.edit(0..PAGES, 0);
        let (saved, parts) = bench.save();
        (bench, saved.unwrap(), parts)
    }

    /// Writes pages and moves `main`.
    fn edit(&self, pages: impl IntoIterator<Item = u32>, version: u32) {
        let mut batch = Batch::new();
        let old = self.store.read_ref("main").unwrap();
        let mut root = old.map_or_else(Root::default, |id| Root::read(&*self.store, &id).unwrap());
        let mut changes = BTreeMap::new();
        for page in pages {
            let text = format!("page {page} {version} ").repeat(30);
            let small = format!("small {page} {version}").into_bytes();
            let blobs = if page % 20 == 0 { vec![BlobId::of(&small)] } else { Vec::new() };
            for id in &blobs {
                batch.add_blob(*id, small.clone().into());
            }
            let id = body::write(&mut batch, text.as_bytes(), &blobs).unwrap();
            let value = Value { bytes: b"x".to_vec().into(), body: Some(id) };
            changes.insert(format!("/content/page{page:06}").into_bytes(), Some(value));
        }
        let map = root.map("content").edit(&*self.store, &mut batch, changes).unwrap();
        root.maps.insert("content".to_owned(), map);
        let new = root.write(&mut batch).unwrap();
        self.move_main(batch, new);
    }

    /// Moves `main`, with what a batch writes.
    fn move_main(&self, mut batch: Batch, new: ChunkId) {
        batch.move_ref(RefUpdate {
            name: "main".to_owned(),
            expected: self.store.read_ref("main").unwrap(),
            new: Some(new),
            at: SystemTime::now(),
            author: "test".to_owned(),
            message: String::new(),
        });
        self.store.commit(batch).unwrap();
    }

    fn lock(&self) -> Lock {
        let who = Who::this_process();
        Lock::take(&self.vault, &who, LockMode::Shared, Duration::ZERO).unwrap()
    }

    fn index(&self) -> Arc<Index> {
        Arc::new(Index::load(&self.vault).unwrap())
    }

    /// Saves; returns how many parts were not taken over, too.
    fn save(&self) -> (Option<Saved>, u64) {
        let home = self.dir.path().join("home");
        let base = FollowedStore::open_dir(&home.join("store"), LocalOptions::default()).unwrap();
        let blobs = FolderBlobs::new(&home.join("blobs"));
        let (lock, index, progress) = (self.lock(), self.index(), Progress::default());
        let session = Session::new((&self.vault, &index), &lock, &progress);
        let source = RepositorySource {
            base: &base,
            blobs: &blobs,
            reference: "main",
            path: "/tympan/home",
            view: None,
            below: None,
            files: &[],
        };
        let options = SaveOptions::new(Who::this_process(), Timestamp::now());
        let saved = save_repository(&session, source, &options).unwrap();
        assert!(saved.iter().all(|saved| saved.faults.is_empty()), "{saved:?}");
        (saved, progress.items.load(Ordering::Relaxed))
    }

    /// Puts a snapshot in the place of another one.
    fn replace(&self, old: &Snapshot, new: &Snapshot) -> Id {
        let id = self.vault.write_json(FileKind::Snapshot, new).unwrap();
        self.vault.forget(&old.id).unwrap();
        id
    }

    /// Writes a folder anew with all below it, as `restic repair snapshots` does where the second piece of each file is lost:
    /// without it, and with the length that is left.
    fn without_second_pieces(&self, tree: &Id, (index, writer): (&Index, &Writer)) -> Id {
        let mut nodes = Vec::new();
        for mut node in self.vault.read_tree(index, tree).unwrap().nodes {
            let below = node.subtree.map(|tree| self.without_second_pieces(&tree, (index, writer)));
            node.subtree = below;
            if let Some(content) = node.content.as_mut().filter(|content| content.len() > 1) {
                content.remove(1);
                let length = |id: &Id| index.plain_length(BlobKind::Data, id).unwrap();
                node.size = content.iter().map(length).sum();
            }
            nodes.push(node);
        }
        writer.add(BlobKind::Tree, &Tree::of(nodes).to_bytes()).unwrap().0
    }

    /// Does what restic's repair does to a snapshot that has lost a piece of each file: beside what was there comes a new one
    /// that has all of its tags.
    fn repair_as_restic(&self, saved: &Snapshot) {
        let (lock, index) = (self.lock(), self.index());
        let writer = Writer::new(&self.vault, &index, &lock);
        let tree = self.without_second_pieces(&saved.tree, (&index, &writer));
        writer.finish(&lock).unwrap();
        assert_ne!(tree, saved.tree);
        self.write_anew(saved, &Snapshot { tree, ..saved.clone() });
    }

    /// Writes a snapshot that was made of another one, which stays.
    fn write_anew(&self, old: &Snapshot, new: &Snapshot) {
        let new = Snapshot { original: Some(old.id), ..new.clone() };
        self.vault.write_json(FileKind::Snapshot, &new).unwrap();
    }

    /// As [`Bench::repair_as_restic`] with `--forget`: what was there goes.
    fn repair_and_forget_as_restic(&self, saved: &Snapshot) {
        self.repair_as_restic(saved);
        self.vault.forget(&saved.id).unwrap();
    }

    fn import(&self, saved: &Saved, name: &str) -> ChunkId {
        let home = self.dir.path().join(name);
        let store = open_store(&home);
        let blobs = LocalBlobs::open(&home.join("blobs"), store.clone()).unwrap();
        let options = (ImportOptions::default(), &Progress::default());
        let (index, target) = (self.index(), (&*store as &dyn ChunkStore, &blobs as _));
        import_snapshot((&self.vault, &index), &saved.snapshot, target, options).unwrap().root
    }

    fn root(&self) -> ChunkId {
        self.store.read_ref("main").unwrap().unwrap()
    }
}

#[test]
fn what_a_repair_of_restic_left_out_is_read_again() {
    let (bench, saved, all) = Bench::saved();
    bench.repair_and_forget_as_restic(&saved.snapshot);
    // The same root is saved once more.
    let (again, parts) = bench.save();
    let again = again.unwrap();
    assert_eq!((again.snapshot.parent, again.snapshot.tree), (None, saved.snapshot.tree));
    assert_eq!(parts, all);
    assert_eq!(bench.import(&again, "again"), bench.root());

    // Nor does the next root stand on what is lacking.
    bench.repair_and_forget_as_restic(&again.snapshot);
    bench.edit([7, 300], 1);
    let (next, _) = bench.save();
    let next = next.unwrap();
    assert_eq!(next.snapshot.parent, None);
    assert_eq!(bench.import(&next, "next"), bench.root());
    // What came of that is whole, and is compared with.
    bench.edit([8], 1);
    let (last, parts) = bench.save();
    assert_eq!(last.unwrap().snapshot.parent, Some(next.snapshot.id));
    assert!(parts * 2 < all, "{parts} of {all} parts");
}

/// Without `--forget`, the damaged snapshot stays beside what a repair made of it, and has all of its tags, too.
#[test]
fn what_a_repair_of_restic_began_with_is_no_parent() {
    let (bench, saved, all) = Bench::saved();
    bench.edit([7], 1);
    let (damaged, _) = bench.save();
    let damaged = damaged.unwrap();
    bench.repair_as_restic(&damaged.snapshot);
    // One before that, of which nothing was made, is as good as it was.
    bench.edit([8], 1);
    let (next, parts) = bench.save();
    let next = next.unwrap();
    assert_eq!(next.snapshot.parent, Some(saved.snapshot.id));
    assert!(parts * 2 < all, "{parts} of {all} parts");
    // Nothing else has a snapshot to stand on: the same root is saved once more.
    for one in [&saved, &next] {
        bench.repair_as_restic(&one.snapshot);
    }
    let (again, parts) = bench.save();
    let again = again.unwrap();
    assert_eq!((again.snapshot.parent, again.snapshot.tree), (None, next.snapshot.tree));
    assert!(parts * 10 > all * 9, "{parts} of {all} parts");
    assert_eq!(bench.import(&again, "again"), bench.root());
}

/// Where another state is `latest`, one that was saved before is saved once more: a rule that keeps the last snapshot would
/// remove the only one of what is there.
#[test]
fn a_state_that_came_back_is_saved_again() {
    let (bench, first, all) = Bench::saved();
    let root = bench.root();
    bench.edit([7], 1);
    let (second, _) = bench.save();
    let second = second.unwrap().snapshot;
    bench.write_anew(&second, &second);
    bench.vault.forget(&second.id).unwrap();
    bench.move_main(Batch::new(), root);
    let (third, parts) = bench.save();
    let third = third.unwrap().snapshot;
    assert_eq!((third.parent, third.tree), (Some(first.snapshot.id), first.snapshot.tree));
    assert_eq!(parts, 1, "of {all} parts");
    let latest = bench.vault.find_snapshot("latest", &Clients::All).unwrap();
    assert_eq!((latest.id, latest.repository_root()), (third.id, Some(root.to_string().as_str())));
    assert!(bench.save().0.is_none(), "the same root is saved once");
}

/// A snapshot whose pieces end elsewhere, as those of an earlier program, says nothing about what they hold.
#[test]
fn from_a_snapshot_of_another_layout_nothing_is_taken_over() {
    let (bench, saved, all) = Bench::saved();
    let is_known = |tag: &String| tag == "layout:2";
    assert_eq!(saved.snapshot.tags().iter().filter(|tag| is_known(tag)).count(), 1);
    let mut before = saved.snapshot.clone();
    before.tags.as_mut().unwrap().retain(|tag| !is_known(tag));
    let before = bench.replace(&saved.snapshot, &before);
    bench.edit([7], 1);
    let (next, parts) = bench.save();
    let next = next.unwrap();
    assert_eq!(next.snapshot.parent, Some(before));
    assert_eq!(parts, all);
    assert_eq!(bench.import(&next, "copy"), bench.root());
}
