//! The difference of two maps, computed lazily: subtrees are compared by id before either is read.
//!
//! Where round trips are costly, the children that only one of two chunks lists are read with one call. Children that
//! both list are equal and are skipped. The children of both sides are read together, so that a change costs one round
//! trip per level.

use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};

use bytes::Bytes;

use super::cursor::KeyBounds;
use super::node::TreeNode;
use super::read_ahead::ReadAheadWindows;
use super::sorted_map::SortedMap;
use crate::chunk::interior::InteriorView;
use crate::chunk::leaf::LeafView;
use crate::chunk::{Chunk, MapValue};
use crate::error::Result;
use crate::id::ChunkId;
use crate::interface::chunk_reader::ReadChunks;

impl SortedMap {
    /// Returns the differences of `other`, in the order of keys; subtrees with equal hashes are never read.
    #[must_use]
    pub fn diff<'a>(&self, other: &Self, reads: &'a dyn ReadChunks) -> MapDiff<'a> {
        MapDiff::new(reads, self.root(), other.root())
    }
}

/// One key that differs between two maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapChange {
    /// The key.
    pub key: Bytes,
    /// The value in the left map; `None` if absent.
    pub left: Option<MapValue>,
    /// The value in the right map; `None` if absent.
    pub right: Option<MapValue>,
}

/// The changes from one map to another, in the order of keys. Ends after the first error.
pub struct MapDiff<'a> {
    chunk_reader: &'a dyn ReadChunks,
    roots: Option<(Option<ChunkId>, Option<ChunkId>)>,
    left: DiffSide,
    right: DiffSide,
    windows: ReadAheadWindows,
    /// Only keys after this one are returned.
    start_after: Option<Vec<u8>>,
}

/// The position of the walk in one map.
#[derive(Default)]
struct DiffSide {
    path: Vec<DiffFrame>,
}

struct DiffFrame {
    chunk: Chunk,
    level: u8,
    index: usize,
    /// The bounds of the keys of the chunk.
    bounds: KeyBounds,
    /// Children that have been read ahead, by their index.
    prefetched: VecDeque<(usize, Chunk)>,
}

/// The item at the head of a side.
enum DiffHead {
    End,
    Record,
    Subtree { id: ChunkId, level: u8 },
}

/// The action for the two heads.
enum DiffStep {
    EmitChange(MapChange),
    SkipBoth,
    DescendLeft,
    DescendRight,
    DescendBoth,
    Done,
}

impl<'a> MapDiff<'a> {
    fn new(reads: &'a dyn ReadChunks, left: Option<ChunkId>, right: Option<ChunkId>) -> Self {
        Self {
            chunk_reader: reads,
            roots: Some((left, right)),
            left: DiffSide::default(),
            right: DiffSide::default(),
            windows: ReadAheadWindows::new(reads),
            start_after: None,
        }
    }

    /// Skips the differences up to and including a key. Only the chunks on the path to the key are read.
    #[must_use]
    pub fn start_after(mut self, key: &[u8]) -> Self {
        self.start_after = Some(key.to_vec());
        self
    }

    fn next_change(&mut self) -> Result<Option<MapChange>> {
        if let Some((left, right)) = self.roots.take() {
            if left == right {
                return Ok(None);
            }
            self.enter_roots(left, right)?;
        }
        loop {
            if let Some(key) = self.start_after.take() {
                let is_passed = [&mut self.left, &mut self.right].map(|side| side.skip_to(&key));
                self.start_after = Some(key).filter(|_| is_passed != [true, true]);
            }
            match self.next_step() {
                DiffStep::EmitChange(change) => return Ok(Some(change)),
                DiffStep::SkipBoth => {
                    self.left.skip_head();
                    self.right.skip_head();
                }
                DiffStep::DescendLeft => {
                    self.read_ahead()?;
                    self.left.descend(self.chunk_reader)?;
                }
                DiffStep::DescendRight => {
                    self.read_ahead()?;
                    self.right.descend(self.chunk_reader)?;
                }
                DiffStep::DescendBoth => {
                    self.read_ahead()?;
                    self.left.descend(self.chunk_reader)?;
                    self.right.descend(self.chunk_reader)?;
                }
                DiffStep::Done => return Ok(None),
            }
        }
    }

    fn enter_roots(&mut self, left: Option<ChunkId>, right: Option<ChunkId>) -> Result<()> {
        let ids: Vec<ChunkId> = left.into_iter().chain(right).collect();
        let mut chunks = self.chunk_reader.read_chunks(&ids)?.into_iter();
        for (side, root) in [(&mut self.left, left), (&mut self.right, right)] {
            let Some(id) = root else { continue };
            let chunk = match chunks.next() {
                Some(chunk) => chunk,
                None => self.chunk_reader.read_chunk(&id)?,
            };
            side.enter_chunk(&id, chunk, None, KeyBounds::default())?;
        }
        Ok(())
    }

    /// Reads the next differing children with one call, before a side descends into a child that has not been read.
    fn read_ahead(&mut self) -> Result<()> {
        if !self.windows.is_enabled() || self.left.is_child_read() && self.right.is_child_read() {
            return Ok(());
        }
        let (Some(left), Some(right)) = (self.left.path.last_mut(), self.right.path.last_mut())
        else {
            return Ok(());
        };
        if left.level != right.level || left.level == 0 {
            return Ok(());
        }
        let window = self.windows.next_window(left.level - 1);
        let (from_left, from_right) =
            (left.unshared_children(right, window), right.unshared_children(left, window));
        let ids: Vec<ChunkId> = from_left.iter().chain(&from_right).map(|(_, id)| *id).collect();
        let mut chunks = self.chunk_reader.read_chunks(&ids)?.into_iter();
        for (frame, children) in [(left, from_left), (right, from_right)] {
            let indexes = children.into_iter().map(|(index, _)| index);
            frame.prefetched.extend(indexes.zip(chunks.by_ref()));
        }
        Ok(())
    }

    fn next_step(&mut self) -> DiffStep {
        match (self.left.current_head(), self.right.current_head()) {
            (DiffHead::End, DiffHead::End) => DiffStep::Done,
            (DiffHead::Record, DiffHead::Record) => self.compare_records(),
            (DiffHead::Record, DiffHead::End) => DiffStep::EmitChange(self.take_left()),
            (DiffHead::End, DiffHead::Record) => DiffStep::EmitChange(self.take_right()),
            (DiffHead::Subtree { .. }, DiffHead::End) => DiffStep::DescendLeft,
            (DiffHead::End, DiffHead::Subtree { .. }) => DiffStep::DescendRight,
            (DiffHead::Record, DiffHead::Subtree { .. }) => {
                if self.left.is_record_below(&self.right.lower_separator()) {
                    DiffStep::EmitChange(self.take_left())
                } else {
                    DiffStep::DescendRight
                }
            }
            (DiffHead::Subtree { .. }, DiffHead::Record) => {
                if self.right.is_record_below(&self.left.lower_separator()) {
                    DiffStep::EmitChange(self.take_right())
                } else {
                    DiffStep::DescendLeft
                }
            }
            (
                DiffHead::Subtree { id, level },
                DiffHead::Subtree { id: right_id, level: right_level },
            ) => {
                if id == right_id {
                    DiffStep::SkipBoth
                } else {
                    self.choose_descent(level, right_level)
                }
            }
        }
    }

    /// Selects the step for two different subtrees: descends into the one that cannot have a counterpart, otherwise
    /// into the taller one.
    fn choose_descent(&self, left: u8, right: u8) -> DiffStep {
        let ends_before = |first: &DiffSide, second: &DiffSide| {
            let upper = first.upper_separator();
            upper.is_some_and(|upper| upper <= second.lower_separator())
        };
        if ends_before(&self.left, &self.right) {
            return DiffStep::DescendLeft;
        }
        if ends_before(&self.right, &self.left) {
            return DiffStep::DescendRight;
        }
        match left.cmp(&right) {
            Ordering::Greater => DiffStep::DescendLeft,
            Ordering::Less => DiffStep::DescendRight,
            Ordering::Equal => DiffStep::DescendBoth,
        }
    }

    fn compare_records(&mut self) -> DiffStep {
        let (Some((left, i)), Some((right, j))) =
            (self.left.current_record(), self.right.current_record())
        else {
            return DiffStep::Done;
        };
        let order = left.compare_leaf_keys(i, &right, j);
        match order {
            Ordering::Less => DiffStep::EmitChange(self.take_left()),
            Ordering::Greater => DiffStep::EmitChange(self.take_right()),
            Ordering::Equal => {
                let is_same =
                    left.value_bytes(i) == right.value_bytes(j) && left.body(i) == right.body(j);
                if is_same {
                    return DiffStep::SkipBoth;
                }
                let change = self.take_left();
                let right = self.take_right();
                DiffStep::EmitChange(MapChange { right: right.right, ..change })
            }
        }
    }

    fn take_left(&mut self) -> MapChange {
        let (key, left) = self.left.take_record();
        MapChange { key, left, right: None }
    }

    fn take_right(&mut self) -> MapChange {
        let (key, right) = self.right.take_record();
        MapChange { key, left: None, right }
    }
}

impl DiffFrame {
    /// Returns the next children that `other` does not list and that have not been read. A child that begins after
    /// `other` ends is excluded, because it can be equal to one that follows `other`.
    fn unshared_children(&self, other: &Self, count: usize) -> Vec<(usize, ChunkId)> {
        let (own_view, other_view) =
            (InteriorView::view_chunk(&self.chunk), InteriorView::view_chunk(&other.chunk));
        let listed: HashSet<ChunkId> =
            (other.index..other_view.len()).map(|index| other_view.child(index)).collect();
        let first = self.prefetched.back().map_or(self.index, |(last, _)| last + 1).max(self.index);
        let end = other
            .bounds
            .upper
            .as_ref()
            .map_or(own_view.len(), |upper| own_view.find_last_child_below(upper) + 1);
        let next = (first..end).map(|index| (index, own_view.child(index)));
        next.filter(|(_, id)| !listed.contains(id)).take(count).collect()
    }
}

impl DiffSide {
    /// Enters a chunk whose keys are within `bounds`.
    fn enter_chunk(
        &mut self,
        id: &ChunkId,
        chunk: Chunk,
        parent: Option<u8>,
        bounds: KeyBounds,
    ) -> Result<()> {
        let node = TreeNode::from_chunk(&chunk, id, parent)?;
        bounds.check_node(&node, id)?;
        let level = node.level();
        self.path.push(DiffFrame { chunk, level, index: 0, bounds, prefetched: VecDeque::new() });
        Ok(())
    }

    /// Skips records and subtrees that contain no key after `key`. Returns true if all that follows is after it.
    fn skip_to(&mut self, key: &[u8]) -> bool {
        loop {
            let is_before = match self.current_head() {
                DiffHead::End => return true,
                DiffHead::Record => match self.current_record() {
                    Some((leaf, index)) if leaf.compare_key(index, key) != Ordering::Greater => {
                        true
                    }
                    _ => return true,
                },
                // The keys of a subtree are below the separator after it.
                DiffHead::Subtree { .. } => {
                    self.upper_separator().is_some_and(|upper| *upper <= *key)
                }
            };
            if !is_before {
                return *self.lower_separator() > *key;
            }
            self.skip_head();
        }
    }

    /// Returns true if the subtree at the head has been read ahead.
    fn is_child_read(&self) -> bool {
        let Some(frame) = self.path.last() else {
            return false;
        };
        frame.prefetched.iter().any(|(index, _)| *index == frame.index)
    }

    fn current_head(&self) -> DiffHead {
        match self.path.last() {
            None => DiffHead::End,
            Some(frame) if frame.level == 0 => DiffHead::Record,
            Some(frame) => DiffHead::Subtree {
                id: InteriorView::view_chunk(&frame.chunk).child(frame.index),
                level: frame.level - 1,
            },
        }
    }

    fn current_record(&self) -> Option<(LeafView<'_>, usize)> {
        let frame = self.path.last()?;
        Some((LeafView::view_chunk(&frame.chunk), frame.index))
    }

    fn is_record_below(&self, bound: &[u8]) -> bool {
        self.current_record()
            .is_some_and(|(leaf, index)| leaf.compare_key(index, bound) == Ordering::Less)
    }

    /// Returns the separator before the subtree at the head.
    fn lower_separator(&self) -> Vec<u8> {
        let Some(frame) = self.path.last() else {
            return Vec::new();
        };
        if frame.index == 0 {
            return frame.bounds.lower.clone();
        }
        let mut key = Vec::new();
        InteriorView::view_chunk(&frame.chunk).write_separator(frame.index, &mut key);
        key
    }

    /// Returns the separator after the subtree at the head; `None` if it is the last of the map.
    fn upper_separator(&self) -> Option<Vec<u8>> {
        self.path.iter().rev().find_map(|frame| {
            let interior = InteriorView::view_chunk(&frame.chunk);
            (frame.index + 1 < interior.len()).then(|| {
                let mut key = Vec::new();
                interior.write_separator(frame.index + 1, &mut key);
                key
            })
        })
    }

    /// Enters the subtree at the head.
    fn descend(&mut self, reads: &dyn ReadChunks) -> Result<()> {
        let bounds = KeyBounds { lower: self.lower_separator(), upper: self.upper_separator() };
        let Some(frame) = self.path.last_mut() else {
            return Ok(());
        };
        let id = InteriorView::view_chunk(&frame.chunk).child(frame.index);
        let level = frame.level;
        // Drops children that were read ahead and then skipped because they were equal to those of the other side.
        while frame.prefetched.pop_front_if(|(index, _)| *index < frame.index).is_some() {}
        let chunk = match frame.prefetched.pop_front_if(|(index, _)| *index == frame.index) {
            Some((_, chunk)) => chunk,
            None => reads.read_chunk(&id)?,
        };
        self.enter_chunk(&id, chunk, Some(level), bounds)
    }

    /// Advances past the head.
    fn skip_head(&mut self) {
        while let Some(frame) = self.path.last_mut() {
            frame.index += 1;
            let length = if frame.level == 0 {
                LeafView::view_chunk(&frame.chunk).len()
            } else {
                InteriorView::view_chunk(&frame.chunk).len()
            };
            if frame.index < length {
                return;
            }
            self.path.pop();
        }
    }

    /// Returns the record at the head and advances past it.
    fn take_record(&mut self) -> (Bytes, Option<MapValue>) {
        let Some(frame) = self.path.last() else {
            return (Bytes::new(), None);
        };
        let leaf = LeafView::view_chunk(&frame.chunk);
        let mut key = Vec::new();
        leaf.write_key(frame.index, &mut key);
        let value = leaf.value(frame.index);
        self.skip_head();
        (Bytes::from(key), Some(value))
    }
}

impl Iterator for MapDiff<'_> {
    type Item = Result<MapChange>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_change().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.left.path.clear();
            self.right.path.clear();
        }
        next
    }
}

impl std::fmt::Debug for MapDiff<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapDiff")
            .field("depth", &self.left.path.len().max(self.right.path.len()))
            .finish_non_exhaustive()
    }
}
