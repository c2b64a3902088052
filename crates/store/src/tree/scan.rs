//! Ranges: records in order, chunks read as the iterator gets to them.

use std::ops::Bound;

use bytes::Bytes;

use super::{Node, Value};
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::error::Result;
use crate::id::ChunkId;

/// The records of a range in order. Ends after the first error.
pub struct Scan<'a> {
    reads: &'a dyn ReadChunks,
    state: State,
    end: Bound<Vec<u8>>,
    path: Vec<Frame>,
    leaf: Option<LeafRange>,
}

enum State {
    NotStarted { root: Option<ChunkId>, start: Bound<Vec<u8>> },
    Running,
    Done,
}

struct Frame {
    chunk: Chunk,
    level: u8,
    next: usize,
}

struct LeafRange {
    chunk: Chunk,
    next: usize,
    stop: usize,
    is_last: bool,
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        reads: &'a dyn ReadChunks,
        root: Option<ChunkId>,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Self {
        Self {
            reads,
            state: State::NotStarted { root, start: start.map(<[u8]>::to_vec) },
            end: end.map(<[u8]>::to_vec),
            path: Vec::new(),
            leaf: None,
        }
    }

    fn advance(&mut self) -> Result<Option<(Bytes, Value)>> {
        if let State::NotStarted { root, start } =
            std::mem::replace(&mut self.state, State::Running)
        {
            let Some(root) = root else { return Ok(None) };
            self.descend(root, None, &start)?;
        }
        loop {
            match &mut self.leaf {
                Some(range) if range.next < range.stop => return Ok(Some(range.take())),
                Some(range) if range.is_last => return Ok(None),
                _ => {}
            }
            let Some(frame) = self.path.last_mut() else {
                return Ok(None);
            };
            let interior = super::Interior::view(&frame.chunk);
            if frame.next < interior.len() {
                let id = interior.child(frame.next);
                let level = frame.level;
                frame.next += 1;
                self.descend(id, Some(level), &Bound::Unbounded)?;
            } else {
                self.path.pop();
            }
        }
    }

    /// Goes down to the leaf where the range begins.
    fn descend(
        &mut self,
        mut id: ChunkId,
        mut parent: Option<u8>,
        start: &Bound<Vec<u8>>,
    ) -> Result<()> {
        loop {
            let chunk = self.reads.read(&id)?;
            let first = match Node::of(&chunk, &id, parent)? {
                Node::Leaf(leaf) => {
                    let next = match start {
                        Bound::Unbounded => 0,
                        Bound::Included(key) => leaf.find(key).unwrap_or_else(|index| index),
                        Bound::Excluded(key) => {
                            leaf.find(key).map_or_else(|index| index, |index| index + 1)
                        }
                    };
                    let stop = match &self.end {
                        Bound::Unbounded => leaf.len(),
                        Bound::Excluded(key) => leaf.find(key).unwrap_or_else(|index| index),
                        Bound::Included(key) => {
                            leaf.find(key).map_or_else(|index| index, |index| index + 1)
                        }
                    };
                    let is_last = stop < leaf.len();
                    self.leaf = Some(LeafRange { chunk, next, stop, is_last });
                    return Ok(());
                }
                Node::Interior(interior) => {
                    let index = match start {
                        Bound::Unbounded => 0,
                        Bound::Included(key) | Bound::Excluded(key) => interior.find(key),
                    };
                    (id, parent) = (interior.child(index), Some(interior.level()));
                    (index + 1, interior.level())
                }
            };
            let (next, level) = first;
            self.path.push(Frame { chunk, level, next });
        }
    }
}

impl LeafRange {
    fn take(&mut self) -> (Bytes, Value) {
        let leaf = super::Leaf::view(&self.chunk);
        let suffix = leaf.suffix(self.next);
        let mut key = Vec::with_capacity(leaf.prefix().len() + suffix.len());
        key.extend_from_slice(leaf.prefix());
        key.extend_from_slice(suffix);
        let value = leaf.value(&self.chunk, self.next);
        self.next += 1;
        (Bytes::from(key), value)
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
}

impl std::fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan").field("depth", &self.path.len()).finish_non_exhaustive()
    }
}
