//! Snapshots of repositories that another program rewrote: what may be reused from them, and what is read again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tympan_blobs::{LocalBlobStore, ReadOnlyBlobFolder};
use tympan_store::disk::FileDisk;
use tympan_store::{
    BlobId, ChunkBatch, ChunkId, ChunkStore, LocalStore, LocalStoreOptions, MapValue,
    ReadOnlyLocalStore, RefUpdate, StoreRoot, body,
};

use crate::backend::{LocalBackend, VaultFileKind};
use crate::backup_progress::BackupProgress;
use crate::object_id::VaultObjectId;
use crate::save::{SaveOptions, SaveSession, SaveSummary};
use crate::source::import::{ImportOptions, import_snapshot};
use crate::source::repository::{BackupRepositorySource, save_repository};
use crate::vault::index::VaultIndex;
use crate::vault::lock::{VaultLock, VaultLockMode};
use crate::vault::node::SnapshotTree;
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::PackWriter;
use crate::vault::snapshot::{ClientFilter, VaultSnapshot};
use crate::vault::{IndexedVault, KeyDerivationCost, Vault, VaultUser};

const PAGE_COUNT: u32 = 600;

/// A vault, and a home that is saved to it.
struct RewrittenSnapshotFixture {
    dir: tempfile::TempDir,
    vault: Arc<Vault>,
    store: Arc<LocalStore>,
}

fn open_store(dir: &std::path::Path) -> Arc<LocalStore> {
    let disk = FileDisk::open(dir.join("store")).unwrap();
    Arc::new(LocalStore::open(Arc::new(disk), LocalStoreOptions::default()).unwrap())
}

impl RewrittenSnapshotFixture {
    /// Makes a home with pages, some of which have small blobs, and saves it.
    fn create_saved() -> (Self, SaveSummary, u64) {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let by = (&VaultUser::this_process(), Timestamp::UNIX_EPOCH);
        let vault = Vault::init(backend, b"x", KeyDerivationCost { log_rounds: 4 }, by).unwrap();
        let store = open_store(&dir.path().join("home"));
        let bench = Self { dir, vault: Arc::new(vault), store };
        bench.edit_pages(0..PAGE_COUNT, 0);
        let (saved, parts) = bench.save();
        (bench, saved.unwrap(), parts)
    }

    /// Writes pages and moves `main`.
    fn edit_pages(&self, pages: impl IntoIterator<Item = u32>, version: u32) {
        let mut batch = ChunkBatch::new();
        let old = self.store.read_ref("main").unwrap();
        let mut root =
            old.map_or_else(StoreRoot::default, |id| StoreRoot::read(&*self.store, &id).unwrap());
        let mut changes = BTreeMap::new();
        for page in pages {
            let text = format!("page {page} {version} ").repeat(30);
            let small = format!("small {page} {version}").into_bytes();
            let blobs = if page % 20 == 0 { vec![BlobId::hash_of(&small)] } else { Vec::new() };
            for id in &blobs {
                batch.add_blob(*id, small.clone().into());
            }
            let id = body::write_body(&mut batch, text.as_bytes(), &blobs).unwrap();
            let value = MapValue { bytes: b"x".to_vec().into(), body: Some(id) };
            changes.insert(format!("/content/page{page:06}").into_bytes(), Some(value));
        }
        let map = root.map("content").edit(&*self.store, &mut batch, changes).unwrap();
        root.maps.insert("content".to_owned(), map);
        let new = root.write(&mut batch).unwrap();
        self.move_main(batch, new);
    }

    /// Moves `main` and commits a batch.
    fn move_main(&self, mut batch: ChunkBatch, new: ChunkId) {
        batch.add_ref_update(RefUpdate {
            name: "main".to_owned(),
            expected_root: self.store.read_ref("main").unwrap(),
            new_root: Some(new),
            updated_at: SystemTime::now(),
            author: "test".to_owned(),
            message: String::new(),
        });
        self.store.commit(batch).unwrap();
    }

    fn lock(&self) -> VaultLock {
        let user = VaultUser::this_process();
        VaultLock::acquire(&self.vault, &user, VaultLockMode::Shared, Duration::ZERO).unwrap()
    }

    fn index(&self) -> Arc<VaultIndex> {
        Arc::new(VaultIndex::load(&self.vault).unwrap())
    }

    /// Saves; also returns the number of parts that were not reused.
    fn save(&self) -> (Option<SaveSummary>, u64) {
        let home = self.dir.path().join("home");
        let base = ReadOnlyLocalStore::open_dir(&home.join("store"), LocalStoreOptions::default())
            .unwrap();
        let blobs = ReadOnlyBlobFolder::new(&home.join("blobs"));
        let (lock, index, progress) = (self.lock(), self.index(), BackupProgress::default());
        let session = SaveSession::new(&self.vault, &index, &lock, &progress);
        let source = BackupRepositorySource {
            base: &base,
            blobs: &blobs,
            reference: "main",
            path: "/tympan/home",
            view: None,
            base_owner: None,
            files: &[],
        };
        let options = SaveOptions::new(VaultUser::this_process(), Timestamp::now());
        let saved = save_repository(&session, source, &options).unwrap();
        assert!(saved.iter().all(|saved| saved.faults.is_empty()), "{saved:?}");
        (saved, progress.items.load(Ordering::Relaxed))
    }

    /// Replaces a snapshot by another one.
    fn replace_snapshot(&self, old: &VaultSnapshot, new: &VaultSnapshot) -> VaultObjectId {
        let id = self.vault.files().write_json(VaultFileKind::Snapshot, new).unwrap();
        self.vault.remove_snapshot(&old.id).unwrap();
        id
    }

    /// Rewrites a folder recursively, as `restic repair snapshots` does where the second piece of each file is lost:
    /// without that piece, and with the remaining length.
    fn without_second_pieces(
        &self,
        tree: &VaultObjectId,
        index: &VaultIndex,
        writer: &PackWriter,
    ) -> VaultObjectId {
        let mut nodes = Vec::new();
        for mut node in self.vault.read_tree(index, tree).unwrap().nodes {
            let below = node.subtree.map(|tree| self.without_second_pieces(&tree, index, writer));
            node.subtree = below;
            if let Some(content) = node.content.as_mut().filter(|content| content.len() > 1) {
                content.remove(1);
                let length =
                    |id: &VaultObjectId| index.plain_length(PackBlobKind::Data, id).unwrap();
                node.size = content.iter().map(length).sum();
            }
            nodes.push(node);
        }
        writer.add_blob(PackBlobKind::Tree, &SnapshotTree::from_nodes(nodes).to_bytes()).unwrap().0
    }

    /// Simulates restic's repair of a snapshot that has lost a piece of each file: writes a new snapshot with all tags
    /// of the old one, which stays.
    fn repair_as_restic(&self, saved: &VaultSnapshot) {
        let (lock, index) = (self.lock(), self.index());
        let writer = PackWriter::new(&self.vault, &index, &lock);
        let tree = self.without_second_pieces(&saved.tree, &index, &writer);
        writer.finish(&lock).unwrap();
        assert_ne!(tree, saved.tree);
        self.write_derived_snapshot(saved, &VaultSnapshot { tree, ..saved.clone() });
    }

    /// Writes a snapshot derived from another one, which stays.
    fn write_derived_snapshot(&self, old: &VaultSnapshot, new: &VaultSnapshot) {
        let new = VaultSnapshot { original: Some(old.id), ..new.clone() };
        self.vault.files().write_json(VaultFileKind::Snapshot, &new).unwrap();
    }

    /// Like [`RewrittenSnapshotFixture::repair_as_restic`] with `--forget`: the old snapshot is removed.
    fn repair_and_forget_as_restic(&self, saved: &VaultSnapshot) {
        self.repair_as_restic(saved);
        self.vault.remove_snapshot(&saved.id).unwrap();
    }

    fn import(&self, saved: &SaveSummary, name: &str) -> ChunkId {
        let home = self.dir.path().join(name);
        let store = open_store(&home);
        let blobs = LocalBlobStore::open(&home.join("blobs"), store.clone()).unwrap();
        let options = (ImportOptions::default(), &BackupProgress::default());
        let (index, target) = (self.index(), (&*store as &dyn ChunkStore, &blobs as _));
        import_snapshot(IndexedVault::new(&self.vault, &index), &saved.snapshot, target, options)
            .unwrap()
            .root
    }

    fn root(&self) -> ChunkId {
        self.store.read_ref("main").unwrap().unwrap()
    }
}

#[test]
fn what_a_repair_of_restic_left_out_is_read_again() {
    let (bench, saved, all) = RewrittenSnapshotFixture::create_saved();
    bench.repair_and_forget_as_restic(&saved.snapshot);
    // The same root is saved again.
    let (again, parts) = bench.save();
    let again = again.unwrap();
    assert_eq!((again.snapshot.parent, again.snapshot.tree), (None, saved.snapshot.tree));
    assert_eq!(parts, all);
    assert_eq!(bench.import(&again, "again"), bench.root());

    // The next root does not reuse the damaged parts either.
    bench.repair_and_forget_as_restic(&again.snapshot);
    bench.edit_pages([7, 300], 1);
    let (next, _) = bench.save();
    let next = next.unwrap();
    assert_eq!(next.snapshot.parent, None);
    assert_eq!(bench.import(&next, "next"), bench.root());
    // The resulting snapshot is complete, and serves as parent.
    bench.edit_pages([8], 1);
    let (last, parts) = bench.save();
    assert_eq!(last.unwrap().snapshot.parent, Some(next.snapshot.id));
    assert!(parts * 2 < all, "{parts} of {all} parts");
}

/// Without `--forget`, the damaged snapshot stays beside the repaired one, and has the same tags.
#[test]
fn what_a_repair_of_restic_began_with_is_no_parent() {
    let (bench, saved, all) = RewrittenSnapshotFixture::create_saved();
    bench.edit_pages([7], 1);
    let (damaged, _) = bench.save();
    let damaged = damaged.unwrap();
    bench.repair_as_restic(&damaged.snapshot);
    // An earlier snapshot that was not rewritten is still usable.
    bench.edit_pages([8], 1);
    let (next, parts) = bench.save();
    let next = next.unwrap();
    assert_eq!(next.snapshot.parent, Some(saved.snapshot.id));
    assert!(parts * 2 < all, "{parts} of {all} parts");
    // No usable parent is left: the same root is saved again.
    for summary in [&saved, &next] {
        bench.repair_as_restic(&summary.snapshot);
    }
    let (again, parts) = bench.save();
    let again = again.unwrap();
    assert_eq!((again.snapshot.parent, again.snapshot.tree), (None, next.snapshot.tree));
    assert!(parts * 10 > all * 9, "{parts} of {all} parts");
    assert_eq!(bench.import(&again, "again"), bench.root());
}

/// If another state is `latest`, a state that was saved before is saved again: otherwise a policy that keeps the last
/// snapshot would remove the only one of the current state.
#[test]
fn a_state_that_came_back_is_saved_again() {
    let (bench, first, all) = RewrittenSnapshotFixture::create_saved();
    let root = bench.root();
    bench.edit_pages([7], 1);
    let (second, _) = bench.save();
    let second = second.unwrap().snapshot;
    bench.write_derived_snapshot(&second, &second);
    bench.vault.remove_snapshot(&second.id).unwrap();
    bench.move_main(ChunkBatch::new(), root);
    let (third, parts) = bench.save();
    let third = third.unwrap().snapshot;
    assert_eq!((third.parent, third.tree), (Some(first.snapshot.id), first.snapshot.tree));
    assert_eq!(parts, 1, "of {all} parts");
    let latest = bench.vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    assert_eq!((latest.id, latest.repository_root()), (third.id, Some(root.to_string().as_str())));
    assert!(bench.save().0.is_none(), "the same root is saved once");
}

/// A snapshot with another layout, as earlier programs wrote, gives no information about what its pieces contain.
#[test]
fn from_a_snapshot_of_another_layout_nothing_is_taken_over() {
    let (bench, saved, all) = RewrittenSnapshotFixture::create_saved();
    let is_known = |tag: &String| tag == "layout:2";
    assert_eq!(saved.snapshot.tags().iter().filter(|tag| is_known(tag)).count(), 1);
    let mut before = saved.snapshot.clone();
    before.tags.as_mut().unwrap().retain(|tag| !is_known(tag));
    let before = bench.replace_snapshot(&saved.snapshot, &before);
    bench.edit_pages([7], 1);
    let (next, parts) = bench.save();
    let next = next.unwrap();
    assert_eq!(next.snapshot.parent, Some(before));
    assert_eq!(parts, all);
    assert_eq!(bench.import(&next, "copy"), bench.root());
}
