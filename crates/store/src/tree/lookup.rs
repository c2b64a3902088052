//! Many keys at once: level by level, each chunk read once, one round trip per level.

use std::collections::HashMap;
use std::ops::Range;

use super::{Interior, Map, Node, Value};
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::error::Result;
use crate::id::ChunkId;

/// Chunks that are asked for with one call at most, so that memory stays bounded for any number of keys.
const MAX_CHUNKS_PER_CALL: usize = 1_024;

/// A subtree, and which of the sorted keys fall into it.
struct Below {
    id: ChunkId,
    keys: Range<usize>,
}

impl Map {
    /// Returns the value of each key, in the order of `keys`. All chunks that are needed of one level are read with one
    /// call.
    ///
    /// # Errors
    /// A failed read.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        reads: &dyn ReadChunks,
        keys: &[K],
    ) -> Result<Vec<Option<Value>>> {
        let mut found = vec![None; keys.len()];
        let mut sorted: Vec<(&[u8], usize)> =
            keys.iter().enumerate().map(|(place, key)| (key.as_ref(), place)).collect();
        sorted.sort_unstable();
        walk(self, reads, &sorted, |chunk, node, below| {
            let Node::Leaf(leaf) = node else { return };
            for (key, place) in sorted.get(below.keys.clone()).unwrap_or_default() {
                if let Some(slot) = found.get_mut(*place) {
                    *slot = leaf.find(key).ok().map(|at| leaf.value(chunk, at));
                }
            }
        })?;
        Ok(found)
    }
}

/// A store of which the chunks on the way to some keys are held already.
pub(super) struct Warm<'a> {
    reads: &'a dyn ReadChunks,
    held: HashMap<ChunkId, Chunk>,
}

impl<'a> Warm<'a> {
    /// Reads the paths to the keys, which are in ascending order. Of very many keys, only the first ones.
    pub(super) fn new<'k>(
        map: &Map,
        reads: &'a dyn ReadChunks,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<Self> {
        let keys: Vec<_> = keys.take(MAX_CHUNKS_PER_CALL).map(|key| (key, 0)).collect();
        let mut held = HashMap::new();
        walk(map, reads, &keys, |chunk, _, below| drop(held.insert(below.id, chunk.clone())))?;
        Ok(Self { reads, held })
    }
}

impl ReadChunks for Warm<'_> {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        match self.held.get(id) {
            Some(chunk) => Ok(chunk.clone()),
            None => self.reads.read(id),
        }
    }
}

/// Visits the chunks on the way to some keys, which are in ascending order, level by level.
fn walk(
    map: &Map,
    reads: &dyn ReadChunks,
    sorted: &[(&[u8], usize)],
    mut visit: impl FnMut(&Chunk, &Node<'_>, &Below),
) -> Result<()> {
    let mut level = Vec::new();
    if let Some(id) = map.root().filter(|_| !sorted.is_empty()) {
        level.push(Below { id, keys: 0..sorted.len() });
    }
    let mut parent = None;
    while !level.is_empty() {
        let mut next = Vec::new();
        let mut height = None;
        for part in level.chunks(MAX_CHUNKS_PER_CALL) {
            let ids: Vec<ChunkId> = part.iter().map(|below| below.id).collect();
            for (chunk, below) in reads.read_many(&ids)?.iter().zip(part) {
                let node = Node::of(chunk, &below.id, parent)?;
                height = Some(node.level());
                visit(chunk, &node, below);
                if let Node::Interior(interior) = node {
                    distribute(&interior, below, sorted, &mut next);
                }
            }
        }
        (level, parent) = (next, height);
    }
    Ok(())
}

/// Hands the keys below a chunk to its children.
fn distribute(
    interior: &Interior<'_>,
    below: &Below,
    sorted: &[(&[u8], usize)],
    next: &mut Vec<Below>,
) {
    for index in below.keys.clone() {
        let Some((key, _)) = sorted.get(index) else {
            return;
        };
        let id = interior.child(interior.find(key));
        match next.last_mut() {
            Some(last) if last.id == id => last.keys.end = index + 1,
            _ => next.push(Below { id, keys: index..index + 1 }),
        }
    }
}
