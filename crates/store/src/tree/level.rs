//! One level that is cut anew from a mix of old entries and new ones.

use super::build::{InteriorChunker, LeafChunker, Produced};
use super::interior::{Child, Interior};
use super::{Leaf, Value};
use crate::chunk::Chunk;
use crate::error::Result;

/// A chunker that can begin anywhere in its level and read old entries.
pub(super) trait Level {
    /// What an entry holds beside its key.
    type Item;

    /// Starts at a chunk with this separator in front of it.
    fn begin(&mut self, separator: &[u8]);

    /// Visits the entries of an old chunk; `separator` stands in front of it.
    fn each_entry(
        chunk: &Chunk,
        separator: &[u8],
        visit: impl FnMut(&[u8], Self::Item) -> Result<()>,
    ) -> Result<()>;

    /// Adds an entry; returns the chunk that ends with it, if one does.
    fn push(&mut self, key: &[u8], item: &Self::Item) -> Option<Produced>;

    /// Ends the current chunk, if there is one.
    fn finish(&mut self) -> Option<Produced>;

    /// Tells whether the last entry ended a chunk.
    fn is_between_chunks(&self) -> bool;

    /// Returns what the separator in front of the next old chunk becomes.
    fn next_separator(&self, separator: &[u8]) -> Vec<u8>;
}

impl Level for LeafChunker {
    type Item = Value;

    fn begin(&mut self, separator: &[u8]) {
        self.begin(separator);
    }

    fn each_entry(
        chunk: &Chunk,
        _: &[u8],
        mut visit: impl FnMut(&[u8], Value) -> Result<()>,
    ) -> Result<()> {
        let leaf = Leaf::view(chunk);
        let mut key = Vec::new();
        for index in 0..leaf.len() {
            leaf.key_into(index, &mut key);
            visit(&key, leaf.value(chunk, index))?;
        }
        Ok(())
    }

    fn push(&mut self, key: &[u8], value: &Value) -> Option<Produced> {
        self.push(key, &value.bytes, value.body)
    }

    fn finish(&mut self) -> Option<Produced> {
        self.finish()
    }

    fn is_between_chunks(&self) -> bool {
        self.is_empty()
    }

    fn next_separator(&self, separator: &[u8]) -> Vec<u8> {
        // Every key of the region is below the old separator, which the next chunk's first key begins with: the two
        // tell the same new separator.
        self.separator_before(separator).to_vec()
    }
}

impl Level for InteriorChunker {
    type Item = Child;

    fn begin(&mut self, _: &[u8]) {}

    fn each_entry(
        chunk: &Chunk,
        separator: &[u8],
        mut visit: impl FnMut(&[u8], Child) -> Result<()>,
    ) -> Result<()> {
        let interior = Interior::view(chunk);
        let mut key = separator.to_vec();
        for index in 0..interior.len() {
            if index > 0 {
                interior.separator_into(index, &mut key);
            }
            let id = interior.child(index);
            let count = interior.count(index);
            visit(&key, Child { id, count })?;
        }
        Ok(())
    }

    fn push(&mut self, key: &[u8], child: &Child) -> Option<Produced> {
        self.push(key, *child)
    }

    fn finish(&mut self) -> Option<Produced> {
        self.finish()
    }

    fn is_between_chunks(&self) -> bool {
        self.is_empty()
    }

    fn next_separator(&self, separator: &[u8]) -> Vec<u8> {
        separator.to_vec()
    }
}
