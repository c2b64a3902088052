//! Verifies properties that a lookup does not check: keys within the parent's bounds, levels, counts.

use super::node::TreeNode;
use crate::chunk::Chunk;
use crate::chunk::leaf::LeafView;
use crate::id::ChunkId;

/// The properties of a child as its parent states them.
pub(crate) struct ExpectedChild {
    pub(crate) id: ChunkId,
    /// The separator before the child.
    pub(crate) lower: Vec<u8>,
    /// The separator after the child; `None` at the end of the map.
    pub(crate) upper: Option<Vec<u8>>,
    pub(crate) record_count: u64,
    level: u8,
}

/// The references of a chunk of a tree.
#[derive(Default)]
pub(crate) struct TreeChunkParts {
    pub(crate) children: Vec<ExpectedChild>,
    /// Keys of the records with a body, each with its body.
    pub(crate) bodies: Vec<(Vec<u8>, ChunkId)>,
}

/// The fault of a chunk of a tree.
pub(crate) struct TreeFault(pub(crate) &'static str);

/// Verifies a chunk of a tree against the properties that its parent states; `None` for a root.
pub(crate) fn check_tree_chunk(
    chunk: &Chunk,
    id: &ChunkId,
    expected: Option<&ExpectedChild>,
) -> Result<TreeChunkParts, TreeFault> {
    let node =
        TreeNode::from_chunk(chunk, id, None).map_err(|_| TreeFault("it is not part of a tree"))?;
    if let Some(expected) = expected {
        if node.level() != expected.level {
            return Err(TreeFault("it is at the wrong level of its tree"));
        }
        if node.record_count() != expected.record_count {
            return Err(TreeFault("its record count differs from its parent's entry"));
        }
    }
    let lower = expected.map_or(&[][..], |expected| expected.lower.as_slice());
    let upper = expected.and_then(|expected| expected.upper.as_deref());
    let is_within = |key: &[u8]| key >= lower && upper.is_none_or(|upper| key < upper);
    let mut parts = TreeChunkParts::default();
    match node {
        TreeNode::Leaf(leaf) => {
            for index in 0..leaf.len() {
                let key = leaf_key(&leaf, index);
                if !is_within(&key) {
                    return Err(TreeFault(
                        "it contains keys outside the range of its parent's entry",
                    ));
                }
                parts.bodies.extend(leaf.body(index).map(|body| (key, body)));
            }
        }
        TreeNode::Interior(interior) => {
            if interior.len() < 2 && expected.is_none() {
                return Err(TreeFault("a root has fewer than two children"));
            }
            let separators: Vec<Vec<u8>> = (1..interior.len())
                .map(|index| {
                    let mut key = Vec::new();
                    interior.write_separator(index, &mut key);
                    key
                })
                .collect();
            if !separators.iter().all(|separator| is_within(separator)) {
                return Err(TreeFault("it contains keys outside the range of its parent's entry"));
            }
            let lowers = std::iter::once(lower.to_vec()).chain(separators.iter().cloned());
            let uppers = separators.iter().cloned().map(Some);
            let uppers = uppers.chain(std::iter::once(upper.map(<[u8]>::to_vec)));
            for (index, (lower, upper)) in lowers.zip(uppers).enumerate() {
                parts.children.push(ExpectedChild {
                    id: interior.child(index),
                    lower,
                    upper,
                    record_count: interior.child_record_count(index),
                    level: interior.level() - 1,
                });
            }
        }
    }
    Ok(parts)
}

fn leaf_key(leaf: &LeafView<'_>, index: usize) -> Vec<u8> {
    let mut key = Vec::new();
    leaf.write_key(index, &mut key);
    key
}
