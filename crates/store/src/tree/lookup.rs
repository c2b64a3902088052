//! Many keys at once: level by level, each chunk read once, one round trip per level.

use std::ops::Range;

use super::{Interior, Map, Node, Value};
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
        let mut level = Vec::new();
        if let Some(id) = self.root().filter(|_| !keys.is_empty()) {
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
                    match node {
                        Node::Leaf(leaf) => {
                            for (key, place) in sorted.get(below.keys.clone()).unwrap_or_default() {
                                if let Some(slot) = found.get_mut(*place) {
                                    *slot = leaf.find(key).ok().map(|at| leaf.value(chunk, at));
                                }
                            }
                        }
                        Node::Interior(interior) => {
                            distribute(&interior, below, &sorted, &mut next)
                        }
                    }
                }
            }
            (level, parent) = (next, height);
        }
        Ok(found)
    }
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
