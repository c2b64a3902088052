//! A chunk store that is watched: reads are counted, and commits go through a hook.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tympan_blobs::{BlobStore, LocalBlobs};
use tympan_store::disk::FileDisk;
use tympan_store::{
    Batch, BlobId, Chunk, ChunkId, ChunkStore, CollectOptions, Collected, Hold, Lease,
    LocalOptions, LocalStore, Pin, Progress, ReadChunks, Result, Revision,
};

type Hook = dyn Fn(&Batch) -> Result<()> + Send + Sync;

/// A store under watch.
pub struct WatchedStore {
    inner: Arc<dyn ChunkStore>,
    before_commit: Box<Hook>,
    reads: AtomicU64,
}

impl WatchedStore {
    /// Watches a store. The hook sees each batch first; it may wait, and refuse the batch with an error.
    #[must_use]
    pub fn new(
        inner: Arc<dyn ChunkStore>,
        before_commit: impl Fn(&Batch) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { inner, before_commit: Box::new(before_commit), reads: AtomicU64::new(0) }
    }

    /// Returns how many chunks were read since the last call.
    pub fn take_reads(&self) -> u64 {
        self.reads.swap(0, Ordering::Relaxed)
    }
}

impl fmt::Debug for WatchedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedStore").field("reads", &self.reads).finish_non_exhaustive()
    }
}

impl ReadChunks for WatchedStore {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read(id)
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        self.reads.fetch_add(ids.len() as u64, Ordering::Relaxed);
        self.inner.read_many(ids)
    }

    fn has_costly_round_trips(&self) -> bool {
        self.inner.has_costly_round_trips()
    }
}

impl ChunkStore for WatchedStore {
    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.inner.contains_many(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        self.inner.read_blob(id)
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.inner.contains_blob(id)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        (self.before_commit)(&batch)?;
        self.inner.commit(batch)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.inner.read_ref(name)
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.inner.refs()
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.inner.history(name, before, limit)
    }

    fn leases(&self) -> Result<Vec<Lease>> {
        self.inner.leases()
    }

    fn pin(&self, root: ChunkId) -> Pin {
        self.inner.pin(root)
    }

    fn hold(&self) -> Result<Hold> {
        self.inner.hold()
    }

    fn collect(
        &self,
        options: &CollectOptions,
        pace: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Collected> {
        self.inner.collect(options, pace)
    }
}

/// Opens a store and blobs on the disk, as a home has them: in the folders `store` and `blobs`.
///
/// # Panics
/// If they cannot be opened.
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn open_home(home: &Path) -> (Arc<LocalStore>, Arc<dyn BlobStore>) {
    let disk = FileDisk::open(home.join("store")).expect("the folder can be made");
    let store = LocalStore::open(Arc::new(disk), LocalOptions::default());
    let store = Arc::new(store.expect("the store opens"));
    let blobs = LocalBlobs::open(&home.join("blobs"), store.clone());
    (store, Arc::new(blobs.expect("the blobs open")))
}
