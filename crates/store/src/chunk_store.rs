//! What every chunk store can do: the local packs, memory, PostgreSQL, a composite.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::chunk::Chunk;
use crate::chunk_batch::ChunkBatch;
use crate::error::Result;
use crate::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::root_retention::{CollectionHold, RootLease, RootPin};

/// Reading chunks by their ids.
pub trait ReadChunks: Send + Sync {
    /// Returns one chunk, verified against its id when it comes from outside the cache.
    ///
    /// # Errors
    /// [`Error::ChunkMissing`](crate::Error::ChunkMissing), [`Error::ChunkDamaged`](crate::Error::ChunkDamaged), or
    /// a failed read.
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk>;

    /// Returns several chunks, in the order of `ids`; one round trip where a round trip costs.
    ///
    /// # Errors
    /// As [`ReadChunks::read_chunk`], for the first that fails.
    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        ids.iter().map(|id| self.read_chunk(id)).collect()
    }

    /// Tells whether each call of [`ReadChunks::read_chunk`] can cost a round trip, so that walks read ahead with
    /// [`ReadChunks::read_chunks`].
    fn has_costly_round_trips(&self) -> bool {
        false
    }
}

/// Chunks, small blobs and refs, changed by one kind of write: [`ChunkStore::commit`].
pub trait ChunkStore: ReadChunks {
    /// Tells for each id whether the store holds the chunk and will go on holding it.
    ///
    /// What nothing reaches yet is kept only while a [`CollectionHold`] lives that was taken before the call. The answer is about
    /// the chunk alone: what it refers to may be gone, if it was never committed.
    ///
    /// # Errors
    /// A failed read.
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>>;

    /// Returns a small blob, or `None` if the store does not hold it.
    ///
    /// # Errors
    /// [`Error::BlobDamaged`](crate::Error::BlobDamaged) or a failed read.
    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>>;

    /// Tells whether the store holds a small blob, as [`ChunkStore::contains_chunks`] does.
    ///
    /// # Errors
    /// A failed read.
    fn contains_blob(&self, id: &BlobId) -> Result<bool>;

    /// Stores everything in the batch, then moves its refs and leases in order; all or nothing.
    ///
    /// If it moves anything, everything stored so far is durable when the call returns. Without that, the chunks and
    /// blobs can be read at once, but outlive a crash only after the next commit that moves a ref, or
    /// [`ChunkStore::flush`].
    ///
    /// # Errors
    /// [`Error::RefMoved`](crate::Error::RefMoved): nothing was stored. [`Error::FileWrite`](crate::Error::FileWrite): nothing
    /// was stored; the same call can succeed when the disk has space again. [`Error::WriteDisabled`](crate::Error::WriteDisabled):
    /// an earlier failure closed the store for writing.
    fn commit(&self, batch: ChunkBatch) -> Result<()>;

    /// Makes everything stored so far durable.
    ///
    /// # Errors
    /// As [`ChunkStore::commit`].
    fn flush(&self) -> Result<()>;

    /// Returns where a ref points to, or `None` if it is absent.
    ///
    /// # Errors
    /// A failed read.
    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>>;

    /// Returns all refs, sorted by name.
    ///
    /// # Errors
    /// A failed read.
    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>>;

    /// Returns the kept revisions of a ref with sequence numbers below `before` (all without it), newest first, at
    /// most `limit`.
    ///
    /// # Errors
    /// A failed read, or damage to what remembers them.
    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>>;

    /// Returns all leases, sorted by holder; expired ones too, until a collection ends them.
    ///
    /// # Errors
    /// A failed read.
    fn list_leases(&self) -> Result<Vec<RootLease>>;

    /// Keeps a root readable until the pin is dropped. The caller has it from a ref, its history, a lease or a pin.
    fn pin_root(&self, root: ChunkId) -> RootPin;

    /// Keeps from now on what is stored, or reported as present, until the hold is dropped.
    ///
    /// # Errors
    /// A failed write, where holds are shared by processes.
    fn begin_hold(&self) -> Result<CollectionHold>;

    /// Collects garbage: what no ref, kept revision, live lease, pin or hold reaches is removed.
    ///
    /// Reads and commits go on meanwhile. `pace` is asked again and again and may wait, or stop the collection, which
    /// leaves nothing undone that matters. Only one collection runs at a time.
    ///
    /// # Errors
    /// A failed read or write, damage met on the way (nothing is removed then), or
    /// [`Error::CollectionRunning`](crate::Error::CollectionRunning) while another runs.
    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport>;
}
