//! The contents of one commit: chunks, small blobs, ref updates and lease updates.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use bytes::Bytes;

use crate::chunk::Chunk;
use crate::error::Result;
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::root_retention::RootLease;

/// Staged writes that are not stored yet. Each chunk and blob is held once.
#[derive(Debug, Default)]
pub struct ChunkBatch {
    chunks: Vec<(ChunkId, Bytes)>,
    chunk_positions: HashMap<ChunkId, usize>,
    blobs: Vec<(BlobId, Bytes)>,
    blob_positions: HashMap<BlobId, usize>,
    ref_updates: Vec<RefUpdate>,
    lease_updates: Vec<LeaseUpdate>,
}

impl ChunkBatch {
    /// Creates an empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stages a chunk and returns its id. The structure is checked by the commit.
    pub fn add_chunk(&mut self, bytes: Bytes) -> ChunkId {
        let id = ChunkId::hash_of(&bytes);
        self.add_chunk_with_id(id, bytes);
        id
    }

    /// Stages a chunk whose id the caller has computed from these bytes.
    pub(crate) fn add_chunk_with_id(&mut self, id: ChunkId, bytes: Bytes) {
        let chunks = &mut self.chunks;
        self.chunk_positions.entry(id).or_insert_with(|| {
            chunks.push((id, bytes));
            chunks.len() - 1
        });
    }

    /// Stages a small blob. The caller has computed `id` from `bytes`.
    pub fn add_blob(&mut self, id: BlobId, bytes: Bytes) {
        let blobs = &mut self.blobs;
        self.blob_positions.entry(id).or_insert_with(|| {
            blobs.push((id, bytes));
            blobs.len() - 1
        });
    }

    /// Stages a ref update after those staged so far; one ref can have several in a row.
    pub fn add_ref_update(&mut self, update: RefUpdate) {
        self.ref_updates.push(update);
    }

    /// Stages the grant or renewal of a lease.
    pub fn grant_lease(&mut self, lease: RootLease) {
        self.lease_updates.push(LeaseUpdate::Grant(lease));
    }

    /// Stages the end of a lease, if it exists.
    pub fn release_lease(&mut self, holder: impl Into<String>) {
        self.lease_updates.push(LeaseUpdate::Release { holder: holder.into() });
    }

    /// Appends everything that another batch stages.
    pub fn append(&mut self, other: Self) {
        for (id, bytes) in other.chunks {
            self.add_chunk_with_id(id, bytes);
        }
        for (id, bytes) in other.blobs {
            self.add_blob(id, bytes);
        }
        self.ref_updates.extend(other.ref_updates);
        self.lease_updates.extend(other.lease_updates);
    }

    /// Returns the staged chunks in the order of staging; children come before the chunks that refer to them.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = (&ChunkId, &Bytes)> {
        self.chunks.iter().map(|(id, bytes)| (id, bytes))
    }

    /// Returns the staged blobs in the order of staging.
    pub fn blobs(&self) -> impl ExactSizeIterator<Item = (&BlobId, &Bytes)> {
        self.blobs.iter().map(|(id, bytes)| (id, bytes))
    }

    /// Returns a staged blob, or `None` if the batch does not hold it.
    #[must_use]
    pub fn blob(&self, id: &BlobId) -> Option<&Bytes> {
        let (_, bytes) = self.blobs.get(*self.blob_positions.get(id)?)?;
        Some(bytes)
    }

    /// Returns the ref updates, in order.
    #[must_use]
    pub fn ref_updates(&self) -> &[RefUpdate] {
        &self.ref_updates
    }

    /// Returns the lease updates, in order.
    #[must_use]
    pub fn lease_updates(&self) -> &[LeaseUpdate] {
        &self.lease_updates
    }

    /// Returns the batch without the given chunks.
    pub(crate) fn without_chunks(mut self, chunks: &HashSet<ChunkId>) -> Self {
        if !chunks.is_empty() {
            self.chunks.retain(|(id, _)| !chunks.contains(id));
            let ids = self.chunks.iter().enumerate();
            self.chunk_positions = ids.map(|(position, (id, _))| (*id, position)).collect();
        }
        self
    }

    /// Returns true if the batch updates a ref or a lease and therefore must be durable.
    #[must_use]
    pub fn has_updates(&self) -> bool {
        !(self.ref_updates.is_empty() && self.lease_updates.is_empty())
    }

    /// Returns true if the batch stages nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.blobs.is_empty() && !self.has_updates()
    }

    /// Returns a staged chunk, or `None` if the batch does not hold it.
    #[must_use]
    pub fn chunk(&self, id: &ChunkId) -> Option<&Bytes> {
        let (_, bytes) = self.chunks.get(*self.chunk_positions.get(id)?)?;
        Some(bytes)
    }
}

/// The update of a ref from one root to another, by compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefUpdate {
    /// The name of the ref, 1 to 255 bytes.
    pub name: String,
    /// The root that the ref must point to now; `None` if the ref must be absent.
    pub expected_root: Option<ChunkId>,
    /// The root that the ref points to afterwards; `None` removes the ref.
    pub new_root: Option<ChunkId>,
    /// The time of the update.
    pub updated_at: SystemTime,
    /// The author of the update.
    pub author: String,
    /// The reason for the update.
    pub message: String,
}

/// A change of one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseUpdate {
    /// The lease is granted, or replaces the previous lease of the holder.
    Grant(RootLease),
    /// The lease ends.
    Release {
        /// The holder of the lease.
        holder: String,
    },
}

impl LeaseUpdate {
    /// Returns the holder of the lease.
    #[must_use]
    pub(crate) fn holder(&self) -> &str {
        let (Self::Grant(RootLease { holder, .. }) | Self::Release { holder }) = self;
        holder
    }
}

/// A view of a store as it will be after a batch: reads the batch first, then the store.
#[derive(Clone, Copy)]
pub struct StagedView<'a> {
    batch: &'a ChunkBatch,
    store: &'a dyn ReadChunks,
}

impl<'a> StagedView<'a> {
    /// Layers `batch` over `store`.
    #[must_use]
    pub fn new(batch: &'a ChunkBatch, store: &'a dyn ReadChunks) -> Self {
        Self { batch, store }
    }
}

impl std::fmt::Debug for StagedView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagedView")
            .field("chunks", &self.batch.chunks.len())
            .finish_non_exhaustive()
    }
}

impl ReadChunks for StagedView<'_> {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        match self.batch.chunk(id) {
            Some(bytes) => Chunk::parse(bytes.clone()),
            None => self.store.read_chunk(id),
        }
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        read_layered(self.store, ids, |id| self.batch.chunk(id).cloned())
    }

    fn has_costly_round_trips(&self) -> bool {
        self.store.has_costly_round_trips()
    }
}

/// Reads chunks from the upper layer where it has them, and all others from the store below in one call.
pub(crate) fn read_layered(
    below: &dyn ReadChunks,
    ids: &[ChunkId],
    find: impl Fn(&ChunkId) -> Option<Bytes>,
) -> Result<Vec<Chunk>> {
    let mut chunks: Vec<Option<Chunk>> = Vec::with_capacity(ids.len());
    let mut missing = Vec::new();
    for id in ids {
        let bytes = find(id);
        if bytes.is_none() {
            missing.push(*id);
        }
        chunks.push(bytes.map(Chunk::parse).transpose()?);
    }
    let mut rest = below.read_chunks(&missing)?.into_iter();
    Ok(chunks.into_iter().filter_map(|chunk| chunk.or_else(|| rest.next())).collect())
}
