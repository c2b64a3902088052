//! The interface of everything that chunks are read from: a store, or a batch over one.

use crate::chunk::Chunk;
use crate::error::Result;
use crate::id::ChunkId;

/// Reads chunks by their ids.
pub trait ReadChunks: Send + Sync {
    /// Returns one chunk; it is verified against its id when it comes from outside the cache.
    ///
    /// # Errors
    /// [`Error::ChunkMissing`](crate::Error::ChunkMissing), [`Error::ChunkDamaged`](crate::Error::ChunkDamaged), or a
    /// failed read.
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk>;

    /// Returns several chunks, in the order of `ids`. Stores on another machine read them in one round trip.
    ///
    /// # Errors
    /// As [`ReadChunks::read_chunk`], for the first that fails.
    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        ids.iter().map(|id| self.read_chunk(id)).collect()
    }

    /// Returns true if each call of [`ReadChunks::read_chunk`] can cost a round trip, so that walks read ahead with
    /// [`ReadChunks::read_chunks`].
    fn has_costly_round_trips(&self) -> bool {
        false
    }
}
