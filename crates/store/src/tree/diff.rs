//! The difference of two maps, found lazily: subtrees are compared by id before either is read.
//!
//! Where round trips cost, the children that only one of two chunks lists are read with one call: what both list is
//! equal and passed by. Both sides' children count, so that a change costs one round trip per level.

use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};

use bytes::Bytes;

use super::ahead::Windows;
use super::path::Bounds;
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
    windows: Windows,
    /// Only keys behind this one are wanted.
    behind: Option<Vec<u8>>,
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
    /// What the keys of the chunk are within.
    bounds: Bounds,
    /// Children that are read already, by their index.
    ahead: VecDeque<(usize, Chunk)>,
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
        Self {
            reads,
            roots: Some((left, right)),
            left: Side::default(),
            right: Side::default(),
            windows: Windows::new(reads),
            behind: None,
        }
    }

    /// Passes over what differs up to a key, that included, without reading more than leads there.
    #[must_use]
    pub fn behind(mut self, key: &[u8]) -> Self {
        self.behind = Some(key.to_vec());
        self
    }

    fn advance(&mut self) -> Result<Option<Change>> {
        if let Some((left, right)) = self.roots.take() {
            if left == right {
                return Ok(None);
            }
            self.enter_roots(left, right)?;
        }
        loop {
            if let Some(key) = self.behind.take() {
                let is_passed = [&mut self.left, &mut self.right].map(|side| side.pass(&key));
                self.behind = Some(key).filter(|_| is_passed != [true, true]);
            }
            match self.step() {
                Step::Emit(change) => return Ok(Some(change)),
                Step::SkipBoth => {
                    self.left.skip();
                    self.right.skip();
                }
                Step::Left => {
                    self.read_ahead()?;
                    self.left.descend(self.reads)?;
                }
                Step::Right => {
                    self.read_ahead()?;
                    self.right.descend(self.reads)?;
                }
                Step::Both => {
                    self.read_ahead()?;
                    self.left.descend(self.reads)?;
                    self.right.descend(self.reads)?;
                }
                Step::Done => return Ok(None),
            }
        }
    }

    fn enter_roots(&mut self, left: Option<ChunkId>, right: Option<ChunkId>) -> Result<()> {
        let ids: Vec<ChunkId> = left.into_iter().chain(right).collect();
        let mut chunks = self.reads.read_many(&ids)?.into_iter();
        for (side, root) in [(&mut self.left, left), (&mut self.right, right)] {
            let Some(id) = root else { continue };
            let chunk = match chunks.next() {
                Some(chunk) => chunk,
                None => self.reads.read(&id)?,
            };
            side.enter(&id, chunk, None, Bounds::default())?;
        }
        Ok(())
    }

    /// Reads the next children that differ with one call, before a side goes down into a child that is not read yet.
    fn read_ahead(&mut self) -> Result<()> {
        if !self.windows.reads_ahead() || self.left.is_child_read() && self.right.is_child_read() {
            return Ok(());
        }
        let (Some(left), Some(right)) = (self.left.path.last_mut(), self.right.path.last_mut())
        else {
            return Ok(());
        };
        if left.level != right.level || left.level == 0 {
            return Ok(());
        }
        let window = self.windows.open(left.level - 1);
        let (from_left, from_right) =
            (left.only_here(right, window), right.only_here(left, window));
        let ids: Vec<ChunkId> = from_left.iter().chain(&from_right).map(|(_, id)| *id).collect();
        let mut chunks = self.reads.read_many(&ids)?.into_iter();
        for (frame, places) in [(left, from_left), (right, from_right)] {
            let places = places.into_iter().map(|(index, _)| index);
            frame.ahead.extend(places.zip(chunks.by_ref()));
        }
        Ok(())
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

impl Frame {
    /// Returns the next children that `other` does not list and that are not read yet. What begins behind `other` can
    /// be equal to what follows it.
    fn only_here(&self, other: &Self, count: usize) -> Vec<(usize, ChunkId)> {
        let (ours, theirs) = (Interior::view(&self.chunk), Interior::view(&other.chunk));
        let listed: HashSet<ChunkId> =
            (other.index..theirs.len()).map(|index| theirs.child(index)).collect();
        let first = self.ahead.back().map_or(self.index, |(last, _)| last + 1).max(self.index);
        let end =
            other.bounds.upper.as_ref().map_or(ours.len(), |upper| ours.find_below(upper) + 1);
        let next = (first..end).map(|index| (index, ours.child(index)));
        next.filter(|(_, id)| !listed.contains(id)).take(count).collect()
    }
}

impl Side {
    /// Goes into a chunk whose keys are within `bounds`.
    fn enter(
        &mut self,
        id: &ChunkId,
        chunk: Chunk,
        parent: Option<u8>,
        bounds: Bounds,
    ) -> Result<()> {
        let node = Node::of(&chunk, id, parent)?;
        bounds.check(&node, id)?;
        let level = node.level();
        self.path.push(Frame { chunk, level, index: 0, bounds, ahead: VecDeque::new() });
        Ok(())
    }

    /// Passes over records and subtrees that hold nothing behind a key. Tells whether all that follows is behind it.
    fn pass(&mut self, key: &[u8]) -> bool {
        loop {
            let is_before = match self.head() {
                Head::End => return true,
                Head::Record => match self.record() {
                    Some((leaf, index)) if leaf.compare(index, key) != Ordering::Greater => true,
                    _ => return true,
                },
                // Keys are below the separator behind them.
                Head::Subtree { .. } => self.upper().is_some_and(|upper| *upper <= *key),
            };
            if !is_before {
                return *self.lower() > *key;
            }
            self.skip();
        }
    }

    /// Tells whether the subtree at the head has been read ahead.
    fn is_child_read(&self) -> bool {
        let Some(frame) = self.path.last() else {
            return false;
        };
        frame.ahead.iter().any(|(index, _)| *index == frame.index)
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
            return frame.bounds.lower.clone();
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
        let bounds = Bounds { lower: self.lower(), upper: self.upper() };
        let Some(frame) = self.path.last_mut() else {
            return Ok(());
        };
        let id = Interior::view(&frame.chunk).child(frame.index);
        let level = frame.level;
        // What was read ahead before the head turned out to be equal to the other side's.
        while frame.ahead.pop_front_if(|(index, _)| *index < frame.index).is_some() {}
        let chunk = match frame.ahead.pop_front_if(|(index, _)| *index == frame.index) {
            Some((_, chunk)) => chunk,
            None => reads.read(&id)?,
        };
        self.enter(&id, chunk, Some(level), bounds)
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
