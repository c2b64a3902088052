//! A base on another machine of which what was read stays at hand, on this one's disk.
//!
//! In: a [`Base`] and a folder. Out: a base that reads what it knows without asking. So a clone shows what was seen once
//! while its origin cannot be reached, also after a restart.
//!
//! Invariants
//! * Only what has a hash is kept. Refs, history and leases are asked for each time, and so is whether a chunk is there.
//! * The folder stays within its bound; what it lacks is asked for again.

use std::sync::Arc;

use bytes::Bytes;

use crate::base::Base;
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::keep::Lease;
use crate::near::Near;
use crate::postgres::NearCache;

/// A base with a cache in front.
#[derive(Debug)]
pub struct NearBase {
    base: Arc<dyn Base>,
    /// Nothing if the folder cannot be used, which only costs asking.
    near: Option<Near>,
}

impl NearBase {
    /// Keeps what is read of `base` at hand.
    #[must_use]
    pub fn new(base: Arc<dyn Base>, cache: &NearCache) -> Self {
        Self { base, near: Near::open(cache) }
    }

    fn find(&self, id: &ChunkId) -> Option<Chunk> {
        self.near.as_ref()?.find(id)
    }

    fn keep(&self, chunks: &[Chunk]) {
        if let Some(near) = &self.near {
            near.add(chunks.iter());
        }
    }
}

impl ReadChunks for NearBase {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        let chunks = self.read_many(std::slice::from_ref(id))?;
        chunks.into_iter().next().ok_or(Error::ChunkMissing { id: *id })
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let mut chunks: Vec<Option<Chunk>> = ids.iter().map(|id| self.find(id)).collect();
        let is_absent = |(id, chunk): (&ChunkId, &Option<Chunk>)| chunk.is_none().then_some(*id);
        let asked: Vec<ChunkId> = ids.iter().zip(&chunks).filter_map(is_absent).collect();
        if asked.is_empty() {
            return Ok(chunks.into_iter().flatten().collect());
        }
        let found = self.base.read_many(&asked)?;
        self.keep(&found);
        let mut found = found.into_iter();
        for chunk in chunks.iter_mut().filter(|chunk| chunk.is_none()) {
            *chunk = found.next();
        }
        let all: Option<Vec<Chunk>> = chunks.into_iter().collect();
        let first = asked.first().copied().unwrap_or(ChunkId::from_bytes([0; 32]));
        all.ok_or(Error::ChunkMissing { id: first })
    }

    fn has_costly_round_trips(&self) -> bool {
        self.base.has_costly_round_trips()
    }
}

impl Base for NearBase {
    fn name(&self) -> String {
        self.base.name()
    }

    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.base.contains_many(ids)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let Some(near) = &self.near else {
            return self.base.read_blobs(ids);
        };
        let mut blobs: Vec<Option<Bytes>> = ids.iter().map(|id| near.find_blob(id)).collect();
        let is_absent = |(id, blob): (&BlobId, &Option<Bytes>)| blob.is_none().then_some(*id);
        let asked: Vec<BlobId> = ids.iter().zip(&blobs).filter_map(is_absent).collect();
        if asked.is_empty() {
            return Ok(blobs);
        }
        let found = self.base.read_blobs(&asked)?;
        let known = asked.iter().zip(&found);
        near.add_blobs(known.filter_map(|(id, blob)| Some((*id, blob.clone()?))));
        let mut found = found.into_iter();
        for blob in blobs.iter_mut().filter(|blob| blob.is_none()) {
            *blob = found.next().flatten();
        }
        Ok(blobs)
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.base.refs()
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.base.history(name, before, limit)
    }

    fn lease(&self, holder: &str) -> Result<Option<Lease>> {
        self.base.lease(holder)
    }

    fn grant(&self, lease: &Lease) -> Result<()> {
        self.base.grant(lease)
    }

    fn release(&self, holder: &str) -> Result<()> {
        self.base.release(holder)
    }

    fn outage(&self) -> Option<String> {
        self.base.outage()
    }
}
