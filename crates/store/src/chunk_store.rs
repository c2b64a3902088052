//! What every chunk store can do: the local packs, memory, and later PostgreSQL.

use bytes::Bytes;

use crate::batch::Batch;
use crate::chunk::Chunk;
use crate::error::Result;
use crate::id::{BlobId, ChunkId};

/// Reading chunks by their ids.
pub trait ReadChunks: Send + Sync {
    /// Returns one chunk, verified against its id when it comes from outside the cache.
    ///
    /// # Errors
    /// [`Error::ChunkMissing`](crate::Error::ChunkMissing), [`Error::ChunkDamaged`](crate::Error::ChunkDamaged), or
    /// a failed read.
    fn read(&self, id: &ChunkId) -> Result<Chunk>;

    /// Returns several chunks, in the order of `ids`; one round trip where a round trip costs.
    ///
    /// # Errors
    /// As [`ReadChunks::read`], for the first that fails.
    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        ids.iter().map(|id| self.read(id)).collect()
    }
}

/// Chunks, small blobs and refs, changed by one kind of write: [`ChunkStore::commit`].
pub trait ChunkStore: ReadChunks {
    /// Tells for each id whether the store holds the chunk.
    ///
    /// # Errors
    /// A failed read.
    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>>;

    /// Returns a small blob, or `None` if the store does not hold it.
    ///
    /// # Errors
    /// [`Error::BlobDamaged`](crate::Error::BlobDamaged) or a failed read.
    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>>;

    /// Tells whether the store holds a small blob.
    ///
    /// # Errors
    /// A failed read.
    fn contains_blob(&self, id: &BlobId) -> Result<bool>;

    /// Stores everything in the batch and then moves its ref; all or nothing.
    ///
    /// With a [`RefUpdate`](crate::RefUpdate), everything stored so far is durable when the call returns. Without one, the chunks and
    /// blobs can be read at once, but outlive a crash only after the next commit that moves a ref, or
    /// [`ChunkStore::flush`].
    ///
    /// # Errors
    /// [`Error::RefMoved`](crate::Error::RefMoved): nothing was stored. [`Error::Write`](crate::Error::Write): nothing was stored; the same call can succeed
    /// when the disk has space again. [`Error::Poisoned`](crate::Error::Poisoned): an earlier failure closed the store for writing.
    fn commit(&self, batch: Batch) -> Result<()>;

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
    fn refs(&self) -> Result<Vec<(String, ChunkId)>>;
}
