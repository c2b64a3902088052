//! Chunks one level again from a mix of old and new entries.

use super::builder::{FinishedChunk, InteriorChunker, LeafChunker};
use crate::chunk::interior::{InteriorView, TreeChild};
use crate::chunk::leaf::LeafView;
use crate::chunk::{Chunk, MapValue};
use crate::error::Result;

/// A chunker that can begin anywhere in its level and read old entries.
pub(super) trait LevelChunker {
    /// The content of an entry beside its key.
    type Item;

    /// Starts at a chunk with this separator before it.
    fn begin_at(&mut self, separator: &[u8]);

    /// Visits the entries of an old chunk; `separator` is the separator before it.
    fn visit_entries(
        chunk: &Chunk,
        separator: &[u8],
        visit: impl FnMut(&[u8], Self::Item) -> Result<()>,
    ) -> Result<()>;

    /// Adds an entry; returns a chunk if the entry completes it.
    fn push(&mut self, key: &[u8], item: &Self::Item) -> Option<FinishedChunk>;

    /// Ends the current chunk and returns it, or `None` if it is empty.
    fn finish(&mut self) -> Option<FinishedChunk>;

    /// Returns true if the last entry completed a chunk.
    fn is_between_chunks(&self) -> bool;

    /// Returns the new separator before the next old chunk.
    fn next_separator(&self, separator: &[u8]) -> Vec<u8>;
}

impl LevelChunker for LeafChunker {
    type Item = MapValue;

    fn begin_at(&mut self, separator: &[u8]) {
        self.begin_at(separator);
    }

    fn visit_entries(
        chunk: &Chunk,
        _: &[u8],
        mut visit: impl FnMut(&[u8], MapValue) -> Result<()>,
    ) -> Result<()> {
        let leaf = LeafView::view_chunk(chunk);
        let mut key = Vec::new();
        for index in 0..leaf.len() {
            leaf.write_key(index, &mut key);
            visit(&key, leaf.value(index))?;
        }
        Ok(())
    }

    fn push(&mut self, key: &[u8], value: &MapValue) -> Option<FinishedChunk> {
        self.push(key, &value.bytes, value.body)
    }

    fn finish(&mut self) -> Option<FinishedChunk> {
        self.finish()
    }

    fn is_between_chunks(&self) -> bool {
        self.is_empty()
    }

    fn next_separator(&self, separator: &[u8]) -> Vec<u8> {
        // Every key of the region is below the old separator, which is a prefix of the next chunk's first key. Both
        // yield the same new separator.
        self.separator_for(separator).to_vec()
    }
}

impl LevelChunker for InteriorChunker {
    type Item = TreeChild;

    fn begin_at(&mut self, _: &[u8]) {}

    fn visit_entries(
        chunk: &Chunk,
        separator: &[u8],
        mut visit: impl FnMut(&[u8], TreeChild) -> Result<()>,
    ) -> Result<()> {
        let interior = InteriorView::view_chunk(chunk);
        let mut key = separator.to_vec();
        for index in 0..interior.len() {
            if index > 0 {
                interior.write_separator(index, &mut key);
            }
            let id = interior.child(index);
            let count = interior.child_record_count(index);
            visit(&key, TreeChild { id, record_count: count })?;
        }
        Ok(())
    }

    fn push(&mut self, key: &[u8], child: &TreeChild) -> Option<FinishedChunk> {
        self.push(key, *child)
    }

    fn finish(&mut self) -> Option<FinishedChunk> {
        self.finish()
    }

    fn is_between_chunks(&self) -> bool {
        self.is_empty()
    }

    fn next_separator(&self, separator: &[u8]) -> Vec<u8> {
        separator.to_vec()
    }
}
