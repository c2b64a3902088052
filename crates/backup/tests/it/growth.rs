//! What a save of a repository costs by what changed, and by all that is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tympan_backup::{
    BackendWrapper, BackupProgress, BackupRepositorySource, LocalBackend, SaveOptions, SaveSession,
    Vault, VaultBackend, VaultFileKind, VaultIndex, VaultLock, VaultLockMode, VaultObjectId,
    VaultUser, save_repository,
};
use tympan_blobs::ReadOnlyBlobFolder;
use tympan_store::{LocalStoreOptions, ReadOnlyLocalStore};

use crate::repository::Home;
use crate::vault_bench::{Bench, PASSWORD, now};

/// Changes of each save.
const CHANGES: u32 = 20;

/// A vault's folder that counts what is read of packs, and of all else.
#[derive(Debug)]
struct Counting {
    inner: LocalBackend,
    packs: AtomicU64,
    pack_bytes: AtomicU64,
    other_bytes: AtomicU64,
}

impl BackendWrapper for Counting {
    fn inner(&self) -> &dyn VaultBackend {
        &self.inner
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> std::io::Result<Vec<u8>> {
        let bytes = self.inner.read(kind, id)?;
        self.other_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> std::io::Result<Vec<u8>> {
        self.packs.fetch_add(1, Ordering::Relaxed);
        self.pack_bytes.fetch_add(length as u64, Ordering::Relaxed);
        self.inner.read_range(kind, id, start, length)
    }
}

/// What a save did.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Folders that were read of the vault, and their stored bytes.
    folders_read: u64,
    folder_bytes: u64,
    /// Bytes of other files of the vault.
    other_bytes: u64,
    /// Chunks' bytes that were read of the repository.
    source_bytes: u64,
    /// Pieces and folders that were written, and their stored bytes.
    written: u64,
    stored_bytes: u64,
}

/// A repository of so many pages in a vault, with what each save keeps for the next one.
struct Kept {
    bench: Bench,
    home: Home,
}

impl Kept {
    fn new(pages: u32) -> Self {
        let bench = Bench::new();
        let home = Home::open(bench.path("home"));
        home.write((0..pages).map(|page| page * 50 + 1), 1);
        let kept = Self { bench, home };
        kept.save();
        // Whoever saves next reads the index files, and keeps what they say.
        kept.home.write([1].into_iter(), 2);
        kept.save();
        kept
    }

    fn save(&self) -> Work {
        let inner = LocalBackend::new(self.bench.path("vault"));
        let (packs, pack_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let counting =
            Arc::new(Counting { inner, packs, pack_bytes, other_bytes: AtomicU64::new(0) });
        let mut vault = Vault::open(counting.clone(), PASSWORD.as_bytes()).unwrap();
        vault.enable_index_table(&self.bench.path("tables")).unwrap();
        let (vault, who) = (Arc::new(vault), VaultUser::this_process());
        let lock = VaultLock::acquire(&vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
        let index = Arc::new(VaultIndex::load(&vault).unwrap());
        let progress = BackupProgress::default();
        let dir = self.home.dir.join("store");
        let base = ReadOnlyLocalStore::open_dir(&dir, LocalStoreOptions::default()).unwrap();
        let source = BackupRepositorySource {
            base: &base,
            blobs: &ReadOnlyBlobFolder::new(&self.home.dir.join("blobs")),
            reference: "main",
            path: "/tympan/home",
            view: None,
            base_owner: None,
            files: &[],
        };
        let session = SaveSession::new(&vault, &index, &lock, &progress);
        let saved = save_repository(&session, source, &SaveOptions::new(who, now())).unwrap();
        let written = saved.unwrap().written;
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Work {
            folders_read: count(&counting.packs),
            folder_bytes: count(&counting.pack_bytes),
            other_bytes: count(&counting.other_bytes),
            source_bytes: count(&progress.read_bytes),
            written: written.pieces + written.folders,
            stored_bytes: written.stored_bytes,
        }
    }
}

/// The same changes in ten times as many pages: what is read and written follows them, and not all that is there. Folders of the
/// vault list what is below them, and grow until their chunk of the repository is split.
#[test]
fn a_save_costs_what_changed_whatever_else_is_there() {
    let [few, many] = [2_000, 20_000].map(|pages| {
        let kept = Kept::new(pages);
        let change = |spread: u32, seed| {
            kept.home.write((0..CHANGES).map(|page| page * spread * 50 + 1), seed);
            kept.save()
        };
        // Side by side, and all over.
        [change(1, 3), change(pages / CHANGES / 2, 4)]
    });
    for (few, many) in few.into_iter().zip(many) {
        let told = format!("{few:?}, ten times as much: {many:?}");
        assert!(many.written <= few.written + 12, "{told}");
        assert!(many.folders_read <= few.folders_read + 3, "{told}");
        assert!(many.source_bytes <= 2 * few.source_bytes, "{told}");
        // What the index says of a vault that large is kept here; of the small one, its files are read.
        assert!(many.other_bytes <= few.other_bytes, "{told}");
        assert!(many.folder_bytes < 8 * few.folder_bytes, "{told}");
        assert!(many.stored_bytes < 4 * few.stored_bytes, "{told}");
    }
}
