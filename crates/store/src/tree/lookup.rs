//! Lookup of one key, and of many at once: level by level, each chunk read once, one round trip per level.

use std::collections::HashMap;
use std::ops::Range;

use super::node::TreeNode;
use super::sorted_map::SortedMap;
use crate::chunk::interior::InteriorView;
use crate::chunk::{Chunk, MapValue};
use crate::error::Result;
use crate::id::ChunkId;
use crate::interface::chunk_reader::ReadChunks;

/// The maximum number of chunks requested with one call, so that memory stays bounded for any number of keys.
const MAX_LOOKUP_CHUNKS: usize = 1_024;

/// A subtree, and the sorted keys that fall into it.
struct SubtreeKeys {
    chunk_id: ChunkId,
    key_range: Range<usize>,
}

impl SortedMap {
    /// Returns the value of `key`, searched in place: one chunk per level is read.
    ///
    /// # Errors
    /// A failed read.
    pub fn get(&self, reads: &dyn ReadChunks, key: &[u8]) -> Result<Option<MapValue>> {
        let Some(mut id) = self.root() else {
            return Ok(None);
        };
        let mut below = None;
        loop {
            let chunk = reads.read_chunk(&id)?;
            match TreeNode::from_chunk(&chunk, &id, below)? {
                TreeNode::Leaf(leaf) => {
                    let record_index = leaf.find_key(key).ok();
                    return Ok(record_index.map(|index| leaf.value(index)));
                }
                TreeNode::Interior(interior) => {
                    id = interior.child(interior.find_child(key));
                    below = Some(interior.level());
                }
            }
        }
    }

    /// Returns the value of each key, in the order of `keys`. All chunks that one level needs are read with one call.
    ///
    /// # Errors
    /// A failed read.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        reads: &dyn ReadChunks,
        keys: &[K],
    ) -> Result<Vec<Option<MapValue>>> {
        let mut values = vec![None; keys.len()];
        let mut sorted: Vec<(&[u8], usize)> =
            keys.iter().enumerate().map(|(index, key)| (key.as_ref(), index)).collect();
        sorted.sort_unstable();
        walk_key_paths(self, reads, &sorted, |_, node, below| {
            let TreeNode::Leaf(leaf) = node else { return };
            for (key, index) in sorted.get(below.key_range.clone()).unwrap_or_default() {
                if let Some(slot) = values.get_mut(*index) {
                    *slot = leaf.find_key(key).ok().map(|at| leaf.value(at));
                }
            }
        })?;
        Ok(values)
    }
}

/// A store with prefetched chunks: those on the paths to some keys.
pub(super) struct PrefetchedChunks<'a> {
    chunk_reader: &'a dyn ReadChunks,
    prefetched: HashMap<ChunkId, Chunk>,
}

impl<'a> PrefetchedChunks<'a> {
    /// Reads the paths to the keys, which are in ascending order. If there are very many keys, only the first ones are
    /// used.
    pub(super) fn new<'k>(
        map: &SortedMap,
        reads: &'a dyn ReadChunks,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<Self> {
        let keys: Vec<_> = keys.take(MAX_LOOKUP_CHUNKS).map(|key| (key, 0)).collect();
        let mut chunks = HashMap::new();
        walk_key_paths(map, reads, &keys, |chunk, _, below| {
            drop(chunks.insert(below.chunk_id, chunk.clone()))
        })?;
        Ok(Self { chunk_reader: reads, prefetched: chunks })
    }
}

impl ReadChunks for PrefetchedChunks<'_> {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        match self.prefetched.get(id) {
            Some(chunk) => Ok(chunk.clone()),
            None => self.chunk_reader.read_chunk(id),
        }
    }
}

/// Visits the chunks on the paths to some keys, which are in ascending order, level by level.
fn walk_key_paths(
    map: &SortedMap,
    reads: &dyn ReadChunks,
    sorted: &[(&[u8], usize)],
    mut visit: impl FnMut(&Chunk, &TreeNode<'_>, &SubtreeKeys),
) -> Result<()> {
    let mut level = Vec::new();
    if let Some(id) = map.root().filter(|_| !sorted.is_empty()) {
        level.push(SubtreeKeys { chunk_id: id, key_range: 0..sorted.len() });
    }
    let mut parent = None;
    while !level.is_empty() {
        let mut next = Vec::new();
        let mut height = None;
        for part in level.chunks(MAX_LOOKUP_CHUNKS) {
            let ids: Vec<ChunkId> = part.iter().map(|below| below.chunk_id).collect();
            for (chunk, below) in reads.read_chunks(&ids)?.iter().zip(part) {
                let node = TreeNode::from_chunk(chunk, &below.chunk_id, parent)?;
                height = Some(node.level());
                visit(chunk, &node, below);
                if let TreeNode::Interior(interior) = node {
                    distribute_keys(&interior, below, sorted, &mut next);
                }
            }
        }
        (level, parent) = (next, height);
    }
    Ok(())
}

/// Distributes the keys below a chunk to its children.
fn distribute_keys(
    interior: &InteriorView<'_>,
    below: &SubtreeKeys,
    sorted: &[(&[u8], usize)],
    next: &mut Vec<SubtreeKeys>,
) {
    for index in below.key_range.clone() {
        let Some((key, _)) = sorted.get(index) else {
            return;
        };
        let id = interior.child(interior.find_child(key));
        match next.last_mut() {
            Some(last) if last.chunk_id == id => last.key_range.end = index + 1,
            _ => next.push(SubtreeKeys { chunk_id: id, key_range: index..index + 1 }),
        }
    }
}
