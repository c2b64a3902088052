//! Ranges: records in order or backwards, chunks read as the iterator gets to them.
//!
//! Invariants
//! * A scan holds one path of chunks, and where it reads ahead a window of chunks per level: never what it has passed.
//! * Records that are skipped are passed by the counts of their subtrees, unread.

use std::collections::VecDeque;
use std::ops::{Bound, Range};

use bytes::Bytes;

use super::ahead::Windows;
use super::path::Bounds;
use super::{Interior, Leaf, Node, Value};
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::error::Result;
use crate::id::ChunkId;

/// The records of a range, in order or backwards. Ends after the first error.
pub struct Scan<'a> {
    reads: &'a dyn ReadChunks,
    state: State,
    direction: Direction,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    /// Records to pass before the next one.
    skip: u64,
    path: Vec<Frame>,
    leaf: Option<LeafRange>,
    /// Of the chunk that was entered last.
    bounds: Bounds,
    windows: Windows,
}

enum State {
    NotStarted { root: Option<ChunkId> },
    Running,
    Done,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    Forward,
    Backward,
}

impl Direction {
    /// Takes the next of some places.
    fn take(self, places: &mut Range<usize>) -> Option<usize> {
        match self {
            Self::Forward => places.next(),
            Self::Backward => places.next_back(),
        }
    }

    /// Passes the next `count` of some places.
    fn pass(self, places: &mut Range<usize>, count: usize) {
        match self {
            Self::Forward => places.start = places.start.saturating_add(count),
            Self::Backward => places.end = places.end.saturating_sub(count),
        }
    }
}

struct Frame {
    chunk: Chunk,
    level: u8,
    /// The child that is being visited.
    at: usize,
    /// The children that are still to be visited.
    rest: Range<usize>,
    /// The first of these children, read already.
    ahead: VecDeque<Chunk>,
}

struct LeafRange {
    chunk: Chunk,
    rest: Range<usize>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        reads: &'a dyn ReadChunks,
        root: Option<ChunkId>,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
    ) -> Self {
        Self {
            reads,
            state: State::NotStarted { root },
            direction,
            start: start.map(<[u8]>::to_vec),
            end: end.map(<[u8]>::to_vec),
            skip: 0,
            path: Vec::new(),
            leaf: None,
            bounds: Bounds::default(),
            windows: Windows::new(reads),
        }
    }

    /// Passes the next `count` records without reading them: one path of chunks is read, wherever it leads.
    /// [`Iterator::skip`] and [`Iterator::nth`] do the same.
    #[must_use]
    pub fn skip_records(mut self, count: u64) -> Self {
        self.skip = self.skip.saturating_add(count);
        self
    }

    fn advance(&mut self) -> Result<Option<(Bytes, Value)>> {
        if let State::NotStarted { root } = self.state {
            self.state = State::Running;
            let Some(root) = root else { return Ok(None) };
            let chunk = self.reads.read(&root)?;
            self.enter(root, chunk)?;
            if self.skip == 0 || self.begins_within() {
                self.descend()?;
            }
        }
        if self.skip > 0 {
            let count = std::mem::take(&mut self.skip);
            self.pass(count)?;
        }
        loop {
            let Some(leaf) = &mut self.leaf else {
                return Ok(None);
            };
            if let Some(index) = self.direction.take(&mut leaf.rest) {
                return Ok(Some(leaf.record(index)));
            }
            self.leaf = None;
            self.descend()?;
        }
    }

    /// Goes to the next leaf, unless at one; there is none at the end of the range.
    fn descend(&mut self) -> Result<()> {
        while self.leaf.is_none() && self.enter_next()? {}
        Ok(())
    }

    /// Enters the next subtree of the lowest chunk on the path that has one; tells whether there was one.
    fn enter_next(&mut self) -> Result<bool> {
        while let Some(frame) = self.path.last_mut() {
            let before = frame.rest.clone();
            let Some(index) = self.direction.take(&mut frame.rest) else {
                self.path.pop();
                continue;
            };
            frame.at = index;
            let interior = Interior::view(&frame.chunk);
            let id = interior.child(index);
            if frame.ahead.is_empty() {
                let window = self.windows.open(frame.level - 1);
                let mut wanted = before;
                let next = std::iter::from_fn(|| self.direction.take(&mut wanted));
                let ids: Vec<ChunkId> = next.take(window).map(|at| interior.child(at)).collect();
                frame.ahead = match ids.as_slice() {
                    [id] => VecDeque::from([self.reads.read(id)?]),
                    ids => self.reads.read_many(ids)?.into(),
                };
            }
            let chunk = match frame.ahead.pop_front() {
                Some(chunk) => chunk,
                None => self.reads.read(&id)?,
            };
            self.enter(id, chunk)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Puts a chunk below the path, cut to the range.
    fn enter(&mut self, id: ChunkId, chunk: Chunk) -> Result<()> {
        let node = Node::of(&chunk, &id, self.path.last().map(|frame| frame.level))?;
        self.bounds.move_below(self.path.iter().rev().map(|frame| (&frame.chunk, frame.at)));
        self.bounds.check(&node, &id)?;
        match node {
            Node::Leaf(leaf) => {
                let rest = self.within(leaf);
                self.leaf = Some(LeafRange { chunk, rest });
            }
            Node::Interior(interior) => {
                let first = match &self.start {
                    Bound::Unbounded => 0,
                    Bound::Included(key) | Bound::Excluded(key) => interior.find(key),
                };
                let last = match &self.end {
                    Bound::Unbounded => interior.len() - 1,
                    Bound::Included(key) => interior.find(key),
                    Bound::Excluded(key) => interior.find_below(key),
                };
                let (level, rest) = (interior.level(), first..last + 1);
                self.path.push(Frame { chunk, level, at: first, rest, ahead: VecDeque::new() });
            }
        }
        Ok(())
    }

    /// Returns which records of a leaf are within the range.
    fn within(&self, leaf: Leaf<'_>) -> Range<usize> {
        let at = |key: &[u8]| leaf.find(key).unwrap_or_else(|index| index);
        let behind = |key: &[u8]| leaf.find(key).map_or_else(|index| index, |index| index + 1);
        let first = match &self.start {
            Bound::Unbounded => 0,
            Bound::Included(key) => at(key),
            Bound::Excluded(key) => behind(key),
        };
        let end = match &self.end {
            Bound::Unbounded => leaf.len(),
            Bound::Excluded(key) => at(key),
            Bound::Included(key) => behind(key),
        };
        first..end
    }

    /// Tells whether the first record can stand in the midst of a subtree.
    fn begins_within(&self) -> bool {
        let edge = match self.direction {
            Direction::Forward => &self.start,
            Direction::Backward => &self.end,
        };
        !matches!(edge, Bound::Unbounded)
    }

    /// Passes records. The leaf that the range begins in has been entered, so that all other subtrees count in full,
    /// except those in which the range ends anyway.
    fn pass(&mut self, mut count: u64) -> Result<()> {
        loop {
            if let Some(leaf) = &mut self.leaf {
                let here = leaf.rest.len() as u64;
                if count < here {
                    self.direction.pass(&mut leaf.rest, count as usize);
                    return Ok(());
                }
                count -= here;
                self.leaf = None;
            }
            self.pass_subtrees(&mut count);
            if !self.enter_next()? {
                return Ok(());
            }
        }
    }

    /// Passes the subtrees that hold no more than `count` records.
    fn pass_subtrees(&mut self, count: &mut u64) {
        while let Some(frame) = self.path.last_mut() {
            let interior = Interior::view(&frame.chunk);
            loop {
                let before = frame.rest.clone();
                let Some(index) = self.direction.take(&mut frame.rest) else {
                    break;
                };
                let below = interior.count(index);
                if below > *count {
                    frame.rest = before;
                    return;
                }
                *count -= below;
                frame.ahead.pop_front();
            }
            self.path.pop();
        }
    }
}

impl LeafRange {
    fn record(&self, index: usize) -> (Bytes, Value) {
        let leaf = Leaf::view(&self.chunk);
        (Bytes::from(leaf.key(index)), leaf.value(&self.chunk, index))
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Bytes, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        if matches!(self.state, State::Done) {
            return None;
        }
        let next = self.advance().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.state = State::Done;
            self.path.clear();
            self.leaf = None;
        }
        next
    }

    fn nth(&mut self, index: usize) -> Option<Self::Item> {
        self.skip = self.skip.saturating_add(index as u64);
        self.next()
    }
}

impl std::fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan")
            .field("direction", &self.direction)
            .field("depth", &self.path.len())
            .finish_non_exhaustive()
    }
}
