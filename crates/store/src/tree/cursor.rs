//! Paths down a tree: interior chunks, each with the index of the next child.
//!
//! Invariants
//! * Each chunk on a path is one level below the previous one, and its keys are within the bounds that the chunks above
//!   define. So damaged references lead neither in circles nor to the same keys twice.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::node::TreeNode;
use crate::chunk::Chunk;
use crate::chunk::interior::{InteriorView, TreeChild};
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::chunk_reader::ReadChunks;

/// The bounds of the keys of a subtree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyBounds {
    /// The separator before the subtree: no key is below it.
    pub(super) lower: Vec<u8>,
    /// The separator after the subtree: all keys are below it; `None` at the end of the map.
    pub(super) upper: Option<Vec<u8>>,
}

impl KeyBounds {
    /// Returns the bounds of the subtree that a path leads to. The path is given from its lower end.
    fn from_path<'a>(path: impl Iterator<Item = (&'a Chunk, usize)> + Clone) -> Self {
        let mut bounds = Self::default();
        bounds.update_from_path(path);
        bounds
    }

    /// Replaces the bounds with those of another subtree, as [`KeyBounds::from_path`].
    pub(super) fn update_from_path<'a>(
        &mut self,
        path: impl Iterator<Item = (&'a Chunk, usize)> + Clone,
    ) {
        match path.clone().find(|(_, index)| *index > 0) {
            Some((chunk, index)) => {
                InteriorView::view_chunk(chunk).write_separator(index, &mut self.lower);
            }
            None => self.lower.clear(),
        }
        let mut next = path.map(|(chunk, index)| (InteriorView::view_chunk(chunk), index + 1));
        match next.find(|(interior, index)| *index < interior.len()) {
            Some((interior, index)) => {
                interior.write_separator(index, self.upper.get_or_insert_default());
            }
            None => self.upper = None,
        }
    }

    /// Returns an error for a chunk with keys outside the bounds.
    pub(super) fn check_node(&self, node: &TreeNode<'_>, id: &ChunkId) -> Result<()> {
        let is_within = |first: Ordering, last: &dyn Fn(&[u8]) -> Ordering| {
            let upper = self.upper.as_deref();
            first != Ordering::Less && upper.is_none_or(|upper| last(upper) == Ordering::Less)
        };
        let holds = match node {
            TreeNode::Leaf(leaf) => {
                let last = leaf.len().saturating_sub(1);
                is_within(leaf.compare_key(0, &self.lower), &|upper| leaf.compare_key(last, upper))
            }
            TreeNode::Interior(interior) if interior.len() > 1 => {
                let last = interior.len() - 1;
                is_within(interior.compare_separator(1, &self.lower), &|upper| {
                    interior.compare_separator(last, upper)
                })
            }
            TreeNode::Interior(_) => true,
        };
        if holds {
            return Ok(());
        }
        let fault = "it contains keys outside the range of its parent's entry";
        Err(Error::ChunkDamaged { id: *id, fault })
    }
}

/// The previous version of a map that is being edited. Interior chunks are read once.
pub(super) struct OldTree<'a> {
    root: ChunkId,
    height: u8,
    record_count: u64,
    chunk_reader: &'a dyn ReadChunks,
    checked_interiors: HashMap<ChunkId, CheckedInterior>,
}

/// An interior chunk that has been read and checked at its position: below a chunk, at an index.
struct CheckedInterior {
    chunk: Chunk,
    parent_position: Option<(ChunkId, usize)>,
}

impl<'a> OldTree<'a> {
    pub(super) fn open(root: ChunkId, reads: &'a dyn ReadChunks) -> Result<Self> {
        let mut tree = Self {
            root,
            height: 0,
            record_count: 0,
            chunk_reader: reads,
            checked_interiors: HashMap::new(),
        };
        let chunk = reads.read_chunk(&root)?;
        let node = TreeNode::from_chunk(&chunk, &root, None)?;
        (tree.height, tree.record_count) = (node.level(), node.record_count());
        tree.checked_interiors.insert(root, CheckedInterior { chunk, parent_position: None });
        Ok(tree)
    }

    /// Returns the level of the root.
    pub(super) fn height(&self) -> u8 {
        self.height
    }

    /// Returns the root in the form in which a parent would list it.
    pub(super) fn root_as_child(&self) -> TreeChild {
        TreeChild { id: self.root, record_count: self.record_count }
    }

    /// Reads a chunk of a level, whatever its position.
    pub(super) fn read_chunk_at_level(&self, id: &ChunkId, level: u8) -> Result<Chunk> {
        let chunk = match self.checked_interiors.get(id) {
            Some(interior) => interior.chunk.clone(),
            None => self.chunk_reader.read_chunk(id)?,
        };
        TreeNode::from_chunk(&chunk, id, level.checked_add(1))?;
        Ok(chunk)
    }

    /// Finds the chunk of a level whose key range contains `key`.
    pub(super) fn seek_chunk(&mut self, level: u8, key: &[u8]) -> Result<LevelCursor> {
        let mut cursor = LevelCursor::at_root(self.root);
        while cursor.level(self.height) > level {
            let chunk = self.read_chunk_at(&cursor)?;
            let index = InteriorView::view_chunk(&chunk).find_child(key);
            cursor.enter_child(chunk, index);
        }
        Ok(cursor)
    }

    /// Moves to the next chunk of the same level, which the caller knows to exist.
    pub(super) fn next_chunk(&mut self, mut cursor: LevelCursor) -> Result<LevelCursor> {
        let mut depth = 0;
        while let Some(CursorStep { chunk_id, chunk, index }) = cursor.path.pop() {
            cursor.chunk_id = chunk_id;
            if index + 1 < InteriorView::view_chunk(&chunk).len() {
                cursor.enter_child(chunk, index + 1);
                break;
            }
            depth += 1;
        }
        for _ in 0..depth {
            let chunk = self.read_chunk_at(&cursor)?;
            cursor.enter_child(chunk, 0);
        }
        Ok(cursor)
    }

    /// Reads the chunk at the cursor.
    pub(super) fn read_chunk_at(&mut self, cursor: &LevelCursor) -> Result<Chunk> {
        let damaged = |fault| Error::ChunkDamaged { id: cursor.chunk_id, fault };
        let parent_position = cursor.path.last().map(|step| (step.chunk_id, step.index));
        if let Some(interior) = self.checked_interiors.get(&cursor.chunk_id) {
            if interior.parent_position != parent_position {
                return Err(damaged("it is at two positions of a tree"));
            }
            return Ok(interior.chunk.clone());
        }
        let level = cursor.level(self.height);
        let chunk = self.read_chunk_at_level(&cursor.chunk_id, level)?;
        let node = TreeNode::from_chunk(&chunk, &cursor.chunk_id, None)?;
        cursor.bounds().check_node(&node, &cursor.chunk_id)?;
        // A wrong count must not be copied into new chunks.
        if node.record_count() != cursor.as_child().record_count {
            return Err(damaged("its record count differs from its parent's entry"));
        }
        if level > 0 {
            self.checked_interiors
                .insert(cursor.chunk_id, CheckedInterior { chunk: chunk.clone(), parent_position });
        }
        Ok(chunk)
    }
}

/// A position on one level: the path to it, and the chunk there.
pub(super) struct LevelCursor {
    path: Vec<CursorStep>,
    pub(super) chunk_id: ChunkId,
}

/// An interior chunk on a path, and the index of the next child.
struct CursorStep {
    chunk_id: ChunkId,
    chunk: Chunk,
    index: usize,
}

impl LevelCursor {
    fn at_root(root: ChunkId) -> Self {
        Self { path: Vec::new(), chunk_id: root }
    }

    fn level(&self, height: u8) -> u8 {
        // The length of a path is the number of levels between, which is small.
        height.saturating_sub(self.path.len() as u8)
    }

    fn enter_child(&mut self, chunk: Chunk, index: usize) {
        let id = InteriorView::view_chunk(&chunk).child(index);
        let id = std::mem::replace(&mut self.chunk_id, id);
        self.path.push(CursorStep { chunk_id: id, chunk, index });
    }

    /// Returns the bounds of the keys of the chunk.
    pub(super) fn bounds(&self) -> KeyBounds {
        KeyBounds::from_path(self.path.iter().rev().map(|step| (&step.chunk, step.index)))
    }

    /// Returns the chunk as its parent lists it.
    pub(super) fn as_child(&self) -> TreeChild {
        let parent = self.path.last();
        let count = parent
            .map_or(0, |step| InteriorView::view_chunk(&step.chunk).child_record_count(step.index));
        TreeChild { id: self.chunk_id, record_count: count }
    }
}
