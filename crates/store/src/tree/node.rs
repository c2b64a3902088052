//! A chunk of a tree, viewed by its kind.

use crate::chunk::interior::InteriorView;
use crate::chunk::leaf::LeafView;
use crate::chunk::{Chunk, ChunkKind};
use crate::error::{Error, Result};
use crate::id::ChunkId;

/// A chunk of a tree, by its kind.
pub(super) enum TreeNode<'a> {
    Leaf(LeafView<'a>),
    Interior(InteriorView<'a>),
}

impl<'a> TreeNode<'a> {
    /// Interprets a chunk as a part of a tree. `parent` is the level of the chunk that referred to it: levels must
    /// decrease, so that damaged references can never lead in a circle.
    pub(super) fn from_chunk(chunk: &'a Chunk, id: &ChunkId, parent: Option<u8>) -> Result<Self> {
        let node = match chunk.kind() {
            ChunkKind::Leaf => Self::Leaf(LeafView::view_chunk(chunk)),
            ChunkKind::Interior => Self::Interior(InteriorView::view_chunk(chunk)),
            ChunkKind::Body | ChunkKind::BodyList | ChunkKind::Root => {
                let expected = "part of a tree";
                return Err(Error::ChunkKindMismatch { id: *id, expected });
            }
        };
        if parent.is_some_and(|parent| node.level() + 1 != parent) {
            let fault = "it is at the wrong level of a tree";
            return Err(Error::ChunkDamaged { id: *id, fault });
        }
        Ok(node)
    }

    /// Returns the number of records in and below the chunk.
    pub(super) fn record_count(&self) -> u64 {
        match self {
            Self::Leaf(leaf) => leaf.len() as u64,
            Self::Interior(interior) => interior.total_records(),
        }
    }

    /// Returns the level of the chunk; 0 is a leaf.
    pub(super) fn level(&self) -> u8 {
        match self {
            Self::Leaf(_) => 0,
            Self::Interior(interior) => interior.level(),
        }
    }
}
