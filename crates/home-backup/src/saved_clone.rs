//! A clone that is saved together with its base.

use std::sync::Arc;

use bytes::Bytes;
use tympan_store::{
    BaseStore, BlobId, Chunk, ChunkId, Error, ReadChunks, ReadOnlyLocalStore, Result, Revision,
    RootLease,
};

/// The packs of a clone layered over its base.
#[derive(Debug)]
pub(crate) struct SavedCloneStore {
    own_store: ReadOnlyLocalStore,
    base: Arc<dyn BaseStore>,
    /// The root of the base that the clone depends on.
    base_root: ChunkId,
}

impl SavedCloneStore {
    pub(crate) fn new(
        own_store: ReadOnlyLocalStore,
        base: Arc<dyn BaseStore>,
        base_root: ChunkId,
    ) -> Self {
        Self { own_store, base, base_root }
    }
}

impl ReadChunks for SavedCloneStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        match self.own_store.read_chunk(id) {
            Err(Error::ChunkMissing { .. }) => self.base.read_chunk(id),
            read => read,
        }
    }

    fn has_costly_round_trips(&self) -> bool {
        self.base.has_costly_round_trips()
    }
}

impl BaseStore for SavedCloneStore {
    fn display_name(&self) -> String {
        self.own_store.display_name()
    }

    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        let mut present = self.own_store.contains_chunks(ids)?;
        let below = self.base.contains_chunks(ids)?;
        present.iter_mut().zip(below).for_each(|(present, below)| *present |= below);
        Ok(present)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let mut blobs = self.own_store.read_blobs(ids)?;
        let lacking: Vec<BlobId> = ids
            .iter()
            .zip(&blobs)
            .filter(|(_, bytes)| bytes.is_none())
            .map(|(id, _)| *id)
            .collect();
        if lacking.is_empty() {
            return Ok(blobs);
        }
        let mut below = self.base.read_blobs(&lacking)?.into_iter();
        for bytes in blobs.iter_mut().filter(|bytes| bytes.is_none()) {
            *bytes = below.next().flatten();
        }
        Ok(blobs)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.own_store.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.own_store.ref_history(name, before, limit)
    }

    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>> {
        self.own_store.find_lease(holder)
    }

    /// Grants a lease on the clone's own data, and on its base.
    fn grant_lease(&self, lease: &RootLease) -> Result<()> {
        self.base.grant_lease(&RootLease { root: self.base_root, ..lease.clone() })?;
        self.own_store.grant_lease(lease)
    }

    fn release_lease(&self, holder: &str) -> Result<()> {
        self.own_store.release_lease(holder)?;
        self.base.release_lease(holder)
    }
}
