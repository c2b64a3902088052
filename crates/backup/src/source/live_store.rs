//! A store that this process has open, as a source: an author that saves itself, or a repository in a database.
//!
//! Invariant: a granted lease retains its root by a pin until it is released or the [`LiveStore`] is dropped. It lasts
//! as long as the process, so it has no expiry and is not persisted.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tympan_store::{
    BaseStore, BlobId, Chunk, ChunkId, ChunkStore, ReadChunks, Result, Revision, RootLease, RootPin,
};

/// The reading side of an open store.
pub struct LiveStore {
    chunks: Arc<dyn ChunkStore>,
    leases: Mutex<BTreeMap<String, (RootLease, RootPin)>>,
}

impl std::fmt::Debug for LiveStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveStore").field("leases", &self.leases).finish_non_exhaustive()
    }
}

impl LiveStore {
    /// Creates a source that reads from a store.
    #[must_use]
    pub fn new(chunks: Arc<dyn ChunkStore>) -> Self {
        Self { chunks, leases: Mutex::default() }
    }
}

impl ReadChunks for LiveStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        self.chunks.read_chunk(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        self.chunks.read_chunks(ids)
    }

    fn has_costly_round_trips(&self) -> bool {
        self.chunks.has_costly_round_trips()
    }
}

impl BaseStore for LiveStore {
    fn display_name(&self) -> String {
        "the repository".to_owned()
    }

    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.chunks.contains_chunks(ids)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        ids.iter().map(|id| self.chunks.read_blob(id)).collect()
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.chunks.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.chunks.ref_history(name, before, limit)
    }

    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>> {
        Ok(self.leases.lock().get(holder).map(|(lease, _)| lease.clone()))
    }

    fn grant_lease(&self, lease: &RootLease) -> Result<()> {
        let pin = self.chunks.pin_root(lease.root);
        self.leases.lock().insert(lease.holder.clone(), (lease.clone(), pin));
        Ok(())
    }

    fn release_lease(&self, holder: &str) -> Result<()> {
        self.leases.lock().remove(holder);
        Ok(())
    }
}
