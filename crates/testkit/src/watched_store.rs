//! An instrumented chunk store: counts reads, and passes commits through a hook.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tympan_blobs::{BlobStore, LocalBlobStore};
use tympan_store::disk::FileDisk;
use tympan_store::{
    BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, CollectionHold, GarbageCollectionOptions,
    GarbageCollectionProgress, GarbageCollectionReport, LocalStore, LocalStoreOptions, ReadChunks,
    Result, Revision, RootLease, RootPin,
};

type CommitHook = dyn Fn(&ChunkBatch) -> Result<()> + Send + Sync;

/// An instrumented store.
pub struct WatchedStore {
    store: Arc<dyn ChunkStore>,
    before_commit: Box<CommitHook>,
    read_count: AtomicU64,
}

impl WatchedStore {
    /// Wraps a store. The hook gets each batch first; it may block, and reject the batch with an error.
    #[must_use]
    pub fn new(
        inner: Arc<dyn ChunkStore>,
        before_commit: impl Fn(&ChunkBatch) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { store: inner, before_commit: Box::new(before_commit), read_count: AtomicU64::new(0) }
    }

    /// Returns the number of chunks read since the last call.
    pub fn take_read_count(&self) -> u64 {
        self.read_count.swap(0, Ordering::Relaxed)
    }
}

impl fmt::Debug for WatchedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedStore").field("reads", &self.read_count).finish_non_exhaustive()
    }
}

impl ReadChunks for WatchedStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        self.read_count.fetch_add(1, Ordering::Relaxed);
        self.store.read_chunk(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        self.read_count.fetch_add(ids.len() as u64, Ordering::Relaxed);
        self.store.read_chunks(ids)
    }

    fn has_costly_round_trips(&self) -> bool {
        self.store.has_costly_round_trips()
    }
}

impl ChunkStore for WatchedStore {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.store.contains_chunks(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        self.store.read_blob(id)
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.store.contains_blob(id)
    }

    fn commit(&self, batch: ChunkBatch) -> Result<()> {
        (self.before_commit)(&batch)?;
        self.store.commit(batch)
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.store.read_ref(name)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.store.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.store.ref_history(name, before, limit)
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        self.store.list_leases()
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.store.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        self.store.begin_hold()
    }

    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        self.store.collect_garbage(options, pace)
    }
}

/// Opens a chunk store and a blob store on disk in the layout of a home: in the folders `store` and `blobs`.
///
/// # Panics
/// If they cannot be opened.
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn open_home_stores(home: &Path) -> (Arc<LocalStore>, Arc<dyn BlobStore>) {
    let disk = FileDisk::open(home.join("store")).expect("the folder can be made");
    let store = LocalStore::open(Arc::new(disk), LocalStoreOptions::default());
    let store = Arc::new(store.expect("the store opens"));
    let blobs = LocalBlobStore::open(&home.join("blobs"), store.clone());
    (store, Arc::new(blobs.expect("the blobs open")))
}
