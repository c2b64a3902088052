//! Chunks in memory that were read or written recently, bounded by their bytes.

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::chunk::Chunk;
use crate::id::ChunkId;
use tympan_notation::ByteSize;

/// Chunks by their ids; the least used ones are evicted.
pub(crate) type ChunkCache = Cache<ChunkId, Chunk, ChunkWeigher>;

/// Creates a cache that holds chunks of at most `size` bytes.
pub(crate) fn new_chunk_cache(size: ByteSize) -> ChunkCache {
    // The internal tables of the cache are sized by an estimate of the number of chunks that fit.
    let items = usize::try_from(size.as_bytes() / 4_096).unwrap_or(usize::MAX);
    Cache::with_weighter(items.max(16), size.as_bytes(), ChunkWeigher)
}

/// Weighs a cached chunk by its memory in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkWeigher;

impl Weighter<ChunkId, Chunk> for ChunkWeigher {
    fn weight(&self, _: &ChunkId, chunk: &Chunk) -> u64 {
        // The internal tables of the cache take about this many bytes per chunk.
        const ENTRY: u64 = 128;
        chunk.bytes().len() as u64 + ENTRY
    }
}
