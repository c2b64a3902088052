//! A base on another machine, with a cache of its chunks and small blobs on the local disk.
//!
//! In: a [`BaseStore`] and a folder. Out: a base that reads cached data without a request to the other machine. A clone
//! can therefore serve content it has read before while its origin cannot be reached, also after a restart.
//!
//! Invariants
//! * Only data named by a hash is cached. Refs, history, leases and the presence of chunks are requested each time.
//! * The folder stays within its size limit; data that it lacks is requested again.

use std::sync::Arc;

use bytes::Bytes;

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::base_store::BaseStore;
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::history::Revision;
use crate::interface::root_retention::RootLease;
use crate::layered::chunk_disk_cache::ChunkDiskCache;
use crate::layered::chunk_disk_cache::ChunkDiskCacheOptions;

/// A base with a disk cache in front.
#[derive(Debug)]
pub struct CachedBaseStore {
    base: Arc<dyn BaseStore>,
    /// `None` if the folder cannot be used; then every read is a request to the base.
    cache: Option<ChunkDiskCache>,
}

impl CachedBaseStore {
    /// Wraps `base` in a cache of what is read from it.
    #[must_use]
    pub fn new(base: Arc<dyn BaseStore>, cache: &ChunkDiskCacheOptions) -> Self {
        Self { base, cache: ChunkDiskCache::open(cache) }
    }

    fn find_cached(&self, id: &ChunkId) -> Option<Chunk> {
        self.cache.as_ref()?.find_chunk(id)
    }

    fn cache_chunks(&self, chunks: &[Chunk]) {
        if let Some(near) = &self.cache {
            near.add_chunks(chunks.iter());
        }
    }
}

impl ReadChunks for CachedBaseStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        let chunks = self.read_chunks(std::slice::from_ref(id))?;
        chunks.into_iter().next().ok_or(Error::ChunkMissing { id: *id })
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let mut chunks: Vec<Option<Chunk>> = ids.iter().map(|id| self.find_cached(id)).collect();
        let is_absent = |(id, chunk): (&ChunkId, &Option<Chunk>)| chunk.is_none().then_some(*id);
        let missing_ids: Vec<ChunkId> = ids.iter().zip(&chunks).filter_map(is_absent).collect();
        if missing_ids.is_empty() {
            return Ok(chunks.into_iter().flatten().collect());
        }
        let fetched_chunks = self.base.read_chunks(&missing_ids)?;
        self.cache_chunks(&fetched_chunks);
        let mut fetched_chunks = fetched_chunks.into_iter();
        for chunk in chunks.iter_mut().filter(|chunk| chunk.is_none()) {
            *chunk = fetched_chunks.next();
        }
        let all: Option<Vec<Chunk>> = chunks.into_iter().collect();
        let first = missing_ids.first().copied().unwrap_or(ChunkId::from_bytes([0; 32]));
        all.ok_or(Error::ChunkMissing { id: first })
    }

    fn has_costly_round_trips(&self) -> bool {
        self.base.has_costly_round_trips()
    }
}

impl BaseStore for CachedBaseStore {
    fn display_name(&self) -> String {
        self.base.display_name()
    }

    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.base.contains_chunks(ids)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let Some(near) = &self.cache else {
            return self.base.read_blobs(ids);
        };
        let mut blobs: Vec<Option<Bytes>> = ids.iter().map(|id| near.find_blob(id)).collect();
        let is_absent = |(id, blob): (&BlobId, &Option<Bytes>)| blob.is_none().then_some(*id);
        let missing_ids: Vec<BlobId> = ids.iter().zip(&blobs).filter_map(is_absent).collect();
        if missing_ids.is_empty() {
            return Ok(blobs);
        }
        let fetched_blobs = self.base.read_blobs(&missing_ids)?;
        let pairs = missing_ids.iter().zip(&fetched_blobs);
        near.add_blobs(pairs.filter_map(|(id, blob)| Some((*id, blob.clone()?))));
        let mut fetched_blobs = fetched_blobs.into_iter();
        for blob in blobs.iter_mut().filter(|blob| blob.is_none()) {
            *blob = fetched_blobs.next().flatten();
        }
        Ok(blobs)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.base.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.base.ref_history(name, before, limit)
    }

    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>> {
        self.base.find_lease(holder)
    }

    fn grant_lease(&self, lease: &RootLease) -> Result<()> {
        self.base.grant_lease(lease)
    }

    fn release_lease(&self, holder: &str) -> Result<()> {
        self.base.release_lease(holder)
    }

    fn outage_reason(&self) -> Option<String> {
        self.base.outage_reason()
    }
}
