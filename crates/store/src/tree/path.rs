//! Ways down a tree: interior chunks, each with the child that leads on.
//!
//! Invariants
//! * Each chunk on a path stands one level below the one before, and its keys are within the bounds that those above
//!   give it. So damaged references lead neither in circles nor to the same keys twice.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::Node;
use super::interior::{Child, Interior};
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::error::{Error, Result};
use crate::id::ChunkId;

/// What a subtree's keys are within.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The separator in front: no key is below it.
    pub(super) lower: Vec<u8>,
    /// The separator behind: all keys are below it; `None` at the end of the map.
    pub(super) upper: Option<Vec<u8>>,
}

impl Bounds {
    /// Returns the bounds of the subtree that a path leads to. The path is given from its lower end.
    pub(super) fn below<'a>(path: impl Iterator<Item = (&'a Chunk, usize)> + Clone) -> Self {
        let mut bounds = Self::default();
        bounds.move_below(path);
        bounds
    }

    /// Changes to the bounds of another subtree, as [`Bounds::below`].
    pub(super) fn move_below<'a>(
        &mut self,
        path: impl Iterator<Item = (&'a Chunk, usize)> + Clone,
    ) {
        match path.clone().find(|(_, index)| *index > 0) {
            Some((chunk, index)) => {
                Interior::view(chunk).separator_into(index, &mut self.lower);
            }
            None => self.lower.clear(),
        }
        let mut next = path.map(|(chunk, index)| (Interior::view(chunk), index + 1));
        match next.find(|(interior, index)| *index < interior.len()) {
            Some((interior, index)) => {
                interior.separator_into(index, self.upper.get_or_insert_default());
            }
            None => self.upper = None,
        }
    }

    /// Refuses a chunk with keys outside the bounds.
    pub(super) fn check(&self, node: &Node<'_>, id: &ChunkId) -> Result<()> {
        let is_within = |first: Ordering, last: &dyn Fn(&[u8]) -> Ordering| {
            let upper = self.upper.as_deref();
            first != Ordering::Less && upper.is_none_or(|upper| last(upper) == Ordering::Less)
        };
        let holds = match node {
            Node::Leaf(leaf) => {
                let last = leaf.len().saturating_sub(1);
                is_within(leaf.compare(0, &self.lower), &|upper| leaf.compare(last, upper))
            }
            Node::Interior(interior) if interior.len() > 1 => {
                let last = interior.len() - 1;
                is_within(interior.compare(1, &self.lower), &|upper| interior.compare(last, upper))
            }
            Node::Interior(_) => true,
        };
        if holds {
            return Ok(());
        }
        let fault = "its parent leads to it for other keys";
        Err(Error::ChunkDamaged { id: *id, fault })
    }
}

/// A map that is being edited, as it was before. Interior chunks are read once.
pub(super) struct OldTree<'a> {
    root: ChunkId,
    height: u8,
    count: u64,
    reads: &'a dyn ReadChunks,
    known: HashMap<ChunkId, Known>,
}

/// An interior chunk that has been read and checked where it stands: below a chunk, at an index.
struct Known {
    chunk: Chunk,
    place: Option<(ChunkId, usize)>,
}

impl<'a> OldTree<'a> {
    pub(super) fn open(root: ChunkId, reads: &'a dyn ReadChunks) -> Result<Self> {
        let mut tree = Self { root, height: 0, count: 0, reads, known: HashMap::new() };
        let chunk = reads.read(&root)?;
        let node = Node::of(&chunk, &root, None)?;
        (tree.height, tree.count) = (node.level(), node.count());
        tree.known.insert(root, Known { chunk, place: None });
        Ok(tree)
    }

    /// Returns the level of the root.
    pub(super) fn height(&self) -> u8 {
        self.height
    }

    /// Returns the root as a level above would list it.
    pub(super) fn root_child(&self) -> Child {
        Child { id: self.root, count: self.count }
    }

    /// Reads a chunk of a level, wherever it stands.
    pub(super) fn read(&self, id: &ChunkId, level: u8) -> Result<Chunk> {
        let chunk = match self.known.get(id) {
            Some(known) => known.chunk.clone(),
            None => self.reads.read(id)?,
        };
        Node::of(&chunk, id, level.checked_add(1))?;
        Ok(chunk)
    }

    /// Finds the chunk of a level that `key` falls into.
    pub(super) fn seek(&mut self, level: u8, key: &[u8]) -> Result<Cursor> {
        let mut cursor = Cursor::at(self.root);
        while cursor.level(self.height) > level {
            let chunk = self.read_at(&cursor)?;
            let index = Interior::view(&chunk).find(key);
            cursor.enter(chunk, index);
        }
        Ok(cursor)
    }

    /// Goes to the next chunk of the same level, which the caller knows to exist.
    pub(super) fn next(&mut self, mut cursor: Cursor) -> Result<Cursor> {
        let mut depth = 0;
        while let Some(Place { id, chunk, index }) = cursor.path.pop() {
            cursor.id = id;
            if index + 1 < Interior::view(&chunk).len() {
                cursor.enter(chunk, index + 1);
                break;
            }
            depth += 1;
        }
        for _ in 0..depth {
            let chunk = self.read_at(&cursor)?;
            cursor.enter(chunk, 0);
        }
        Ok(cursor)
    }

    /// Reads the chunk that a cursor stands at.
    pub(super) fn read_at(&mut self, cursor: &Cursor) -> Result<Chunk> {
        let damaged = |fault| Error::ChunkDamaged { id: cursor.id, fault };
        let place = cursor.path.last().map(|step| (step.id, step.index));
        if let Some(known) = self.known.get(&cursor.id) {
            if known.place != place {
                return Err(damaged("it stands at two places of a tree"));
            }
            return Ok(known.chunk.clone());
        }
        let level = cursor.level(self.height);
        let chunk = self.read(&cursor.id, level)?;
        let node = Node::of(&chunk, &cursor.id, None)?;
        cursor.bounds().check(&node, &cursor.id)?;
        // A wrong count must not find its way into new chunks.
        if node.count() != cursor.child().count {
            return Err(damaged("its parent counts another number of records"));
        }
        if level > 0 {
            self.known.insert(cursor.id, Known { chunk: chunk.clone(), place });
        }
        Ok(chunk)
    }
}

/// A place on one level: the path to it, and the chunk there.
pub(super) struct Cursor {
    path: Vec<Place>,
    pub(super) id: ChunkId,
}

/// An interior chunk on a path, and which of its children leads on.
struct Place {
    id: ChunkId,
    chunk: Chunk,
    index: usize,
}

impl Cursor {
    fn at(root: ChunkId) -> Self {
        Self { path: Vec::new(), id: root }
    }

    fn level(&self, height: u8) -> u8 {
        // A path is as long as the levels between, of which there are few.
        height.saturating_sub(self.path.len() as u8)
    }

    fn enter(&mut self, chunk: Chunk, index: usize) {
        let id = Interior::view(&chunk).child(index);
        let id = std::mem::replace(&mut self.id, id);
        self.path.push(Place { id, chunk, index });
    }

    /// Returns what the keys of the chunk are within.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds::below(self.path.iter().rev().map(|place| (&place.chunk, place.index)))
    }

    /// Returns the chunk as its parent lists it.
    pub(super) fn child(&self) -> Child {
        let parent = self.path.last();
        let count = parent.map_or(0, |place| Interior::view(&place.chunk).count(place.index));
        Child { id: self.id, count }
    }
}
