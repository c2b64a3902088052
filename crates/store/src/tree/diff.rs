//! The difference of two maps, found lazily: subtrees are compared by id before either is read.

use std::cmp::Ordering;

use bytes::Bytes;

use super::{Interior, Leaf, Node, Value};
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::error::Result;
use crate::id::ChunkId;

/// One key that two maps have differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// What the left map has; `None` if absent.
    pub left: Option<Value>,
    /// What the right map has; `None` if absent.
    pub right: Option<Value>,
}

/// The changes from one map to another, in the order of keys. Ends after the first error.
pub struct Diff<'a> {
    reads: &'a dyn ReadChunks,
    roots: Option<(Option<ChunkId>, Option<ChunkId>)>,
    left: Side,
    right: Side,
}

/// How far one map has been walked.
#[derive(Default)]
struct Side {
    path: Vec<Frame>,
}

struct Frame {
    chunk: Chunk,
    level: u8,
    index: usize,
    /// The separator in front of the chunk.
    lower: Vec<u8>,
}

/// What a side stands at.
enum Head {
    End,
    Record,
    Subtree { id: ChunkId, level: u8 },
}

/// What to do with the two heads.
enum Step {
    Emit(Change),
    SkipBoth,
    Left,
    Right,
    Both,
    Done,
}

impl<'a> Diff<'a> {
    pub(super) fn new(
        reads: &'a dyn ReadChunks,
        left: Option<ChunkId>,
        right: Option<ChunkId>,
    ) -> Self {
        Self { reads, roots: Some((left, right)), left: Side::default(), right: Side::default() }
    }

    fn advance(&mut self) -> Result<Option<Change>> {
        if let Some((left, right)) = self.roots.take() {
            if left == right {
                return Ok(None);
            }
            self.left.enter_root(self.reads, left)?;
            self.right.enter_root(self.reads, right)?;
        }
        loop {
            match self.step() {
                Step::Emit(change) => return Ok(Some(change)),
                Step::SkipBoth => {
                    self.left.skip();
                    self.right.skip();
                }
                Step::Left => self.left.descend(self.reads)?,
                Step::Right => self.right.descend(self.reads)?,
                Step::Both => {
                    self.left.descend(self.reads)?;
                    self.right.descend(self.reads)?;
                }
                Step::Done => return Ok(None),
            }
        }
    }

    fn step(&mut self) -> Step {
        match (self.left.head(), self.right.head()) {
            (Head::End, Head::End) => Step::Done,
            (Head::Record, Head::Record) => self.compare_records(),
            (Head::Record, Head::End) => Step::Emit(self.take_left()),
            (Head::End, Head::Record) => Step::Emit(self.take_right()),
            (Head::Subtree { .. }, Head::End) => Step::Left,
            (Head::End, Head::Subtree { .. }) => Step::Right,
            (Head::Record, Head::Subtree { .. }) => {
                if self.left.is_record_below(&self.right.lower()) {
                    Step::Emit(self.take_left())
                } else {
                    Step::Right
                }
            }
            (Head::Subtree { .. }, Head::Record) => {
                if self.right.is_record_below(&self.left.lower()) {
                    Step::Emit(self.take_right())
                } else {
                    Step::Left
                }
            }
            (Head::Subtree { id, level }, Head::Subtree { id: right_id, level: right_level }) => {
                if id == right_id {
                    Step::SkipBoth
                } else {
                    self.narrow(level, right_level)
                }
            }
        }
    }

    /// Two different subtrees: goes into what cannot have a counterpart, else into the taller one.
    fn narrow(&self, left: u8, right: u8) -> Step {
        let ends_before = |one: &Side, other: &Side| {
            let upper = one.upper();
            upper.is_some_and(|upper| upper <= other.lower())
        };
        if ends_before(&self.left, &self.right) {
            return Step::Left;
        }
        if ends_before(&self.right, &self.left) {
            return Step::Right;
        }
        match left.cmp(&right) {
            Ordering::Greater => Step::Left,
            Ordering::Less => Step::Right,
            Ordering::Equal => Step::Both,
        }
    }

    fn compare_records(&mut self) -> Step {
        let (Some((left, i)), Some((right, j))) = (self.left.record(), self.right.record()) else {
            return Step::Done;
        };
        let order = left.compare_with(i, &right, j);
        match order {
            Ordering::Less => Step::Emit(self.take_left()),
            Ordering::Greater => Step::Emit(self.take_right()),
            Ordering::Equal => {
                let is_same =
                    left.value_bytes(i) == right.value_bytes(j) && left.body(i) == right.body(j);
                if is_same {
                    return Step::SkipBoth;
                }
                let change = self.take_left();
                let right = self.take_right();
                Step::Emit(Change { right: right.right, ..change })
            }
        }
    }

    fn take_left(&mut self) -> Change {
        let (key, left) = self.left.take();
        Change { key, left, right: None }
    }

    fn take_right(&mut self) -> Change {
        let (key, right) = self.right.take();
        Change { key, left: None, right }
    }
}

impl Side {
    fn enter_root(&mut self, reads: &dyn ReadChunks, root: Option<ChunkId>) -> Result<()> {
        match root {
            Some(id) => self.enter(reads, &id, None, Vec::new()),
            None => Ok(()),
        }
    }

    fn enter(
        &mut self,
        reads: &dyn ReadChunks,
        id: &ChunkId,
        parent: Option<u8>,
        lower: Vec<u8>,
    ) -> Result<()> {
        let chunk = reads.read(id)?;
        let level = Node::of(&chunk, id, parent)?.level();
        self.path.push(Frame { chunk, level, index: 0, lower });
        Ok(())
    }

    fn head(&self) -> Head {
        match self.path.last() {
            None => Head::End,
            Some(frame) if frame.level == 0 => Head::Record,
            Some(frame) => Head::Subtree {
                id: Interior::view(&frame.chunk).child(frame.index),
                level: frame.level - 1,
            },
        }
    }

    fn record(&self) -> Option<(Leaf<'_>, usize)> {
        let frame = self.path.last()?;
        Some((Leaf::view(&frame.chunk), frame.index))
    }

    fn is_record_below(&self, bound: &[u8]) -> bool {
        self.record().is_some_and(|(leaf, index)| leaf.compare(index, bound) == Ordering::Less)
    }

    /// Returns the separator in front of the subtree at the head.
    fn lower(&self) -> Vec<u8> {
        let Some(frame) = self.path.last() else {
            return Vec::new();
        };
        if frame.index == 0 {
            return frame.lower.clone();
        }
        let mut key = Vec::new();
        Interior::view(&frame.chunk).separator_into(frame.index, &mut key);
        key
    }

    /// Returns the separator behind the subtree at the head; `None` if it is the last of the map.
    fn upper(&self) -> Option<Vec<u8>> {
        self.path.iter().rev().find_map(|frame| {
            let interior = Interior::view(&frame.chunk);
            (frame.index + 1 < interior.len()).then(|| {
                let mut key = Vec::new();
                interior.separator_into(frame.index + 1, &mut key);
                key
            })
        })
    }

    /// Goes into the subtree at the head.
    fn descend(&mut self, reads: &dyn ReadChunks) -> Result<()> {
        let lower = self.lower();
        let Some(frame) = self.path.last() else {
            return Ok(());
        };
        let id = Interior::view(&frame.chunk).child(frame.index);
        let level = frame.level;
        self.enter(reads, &id, Some(level), lower)
    }

    /// Goes past the head.
    fn skip(&mut self) {
        while let Some(frame) = self.path.last_mut() {
            frame.index += 1;
            let length = if frame.level == 0 {
                Leaf::view(&frame.chunk).len()
            } else {
                Interior::view(&frame.chunk).len()
            };
            if frame.index < length {
                return;
            }
            self.path.pop();
        }
    }

    /// Returns the record at the head and goes past it.
    fn take(&mut self) -> (Bytes, Option<Value>) {
        let Some(frame) = self.path.last() else {
            return (Bytes::new(), None);
        };
        let leaf = Leaf::view(&frame.chunk);
        let mut key = Vec::new();
        leaf.key_into(frame.index, &mut key);
        let value = leaf.value(&frame.chunk, frame.index);
        self.skip();
        (Bytes::from(key), Some(value))
    }
}

impl Iterator for Diff<'_> {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.left.path.clear();
            self.right.path.clear();
        }
        next
    }
}

impl std::fmt::Debug for Diff<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Diff")
            .field("depth", &self.left.path.len().max(self.right.path.len()))
            .finish_non_exhaustive()
    }
}
