//! Ranges: records in forward or reverse order, with chunks read as the iterator advances.
//!
//! Invariants
//! * A scan holds one path of chunks and, where it reads ahead, a window of chunks per level; never chunks that it has
//!   passed.
//! * Skipped records are passed by the counts of their subtrees, unread.

use std::collections::VecDeque;
use std::ops::{Bound, Range};

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
    /// Returns the records of a range in order, read as the iterator advances.
    #[must_use]
    pub fn range<'a>(
        &self,
        reads: &'a dyn ReadChunks,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> MapScan<'a> {
        MapScan::new(reads, self.root(), range, ScanDirection::Forward)
    }

    /// Returns the records of a range in reverse order, read as the iterator advances.
    #[must_use]
    pub fn range_reversed<'a>(
        &self,
        reads: &'a dyn ReadChunks,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> MapScan<'a> {
        MapScan::new(reads, self.root(), range, ScanDirection::Backward)
    }

    /// Returns the last record of a range; one chunk per level is read.
    ///
    /// # Errors
    /// A failed read.
    pub fn last_record_in(
        &self,
        reads: &dyn ReadChunks,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<Option<(Bytes, MapValue)>> {
        self.range_reversed(reads, range).next().transpose()
    }
}

/// The records of a range, in forward or reverse order. Ends after the first error.
pub struct MapScan<'a> {
    chunk_reader: &'a dyn ReadChunks,
    scan_state: MapScanState,
    direction: ScanDirection,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    /// The number of records to skip before the next one.
    pending_skip: u64,
    path: Vec<ScanFrame>,
    leaf: Option<LeafRange>,
    /// The bounds of the chunk that was entered last.
    bounds: KeyBounds,
    windows: ReadAheadWindows,
}

enum MapScanState {
    NotStarted { root: Option<ChunkId> },
    Running,
    Done,
}

#[derive(Clone, Copy, Debug)]
enum ScanDirection {
    Forward,
    Backward,
}

impl ScanDirection {
    /// Takes the next of some indexes.
    fn take_next(self, indexes: &mut Range<usize>) -> Option<usize> {
        match self {
            Self::Forward => indexes.next(),
            Self::Backward => indexes.next_back(),
        }
    }

    /// Skips the next `count` of some indexes.
    fn skip_next(self, indexes: &mut Range<usize>, count: usize) {
        match self {
            Self::Forward => indexes.start = indexes.start.saturating_add(count),
            Self::Backward => indexes.end = indexes.end.saturating_sub(count),
        }
    }
}

struct ScanFrame {
    chunk: Chunk,
    level: u8,
    /// The child that is being visited.
    current_child: usize,
    /// The children that are still to be visited.
    remaining_children: Range<usize>,
    /// The first of these children, already read.
    prefetched: VecDeque<Chunk>,
}

struct LeafRange {
    chunk: Chunk,
    remaining_records: Range<usize>,
}

impl<'a> MapScan<'a> {
    fn new(
        reads: &'a dyn ReadChunks,
        root: Option<ChunkId>,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
        direction: ScanDirection,
    ) -> Self {
        Self {
            chunk_reader: reads,
            scan_state: MapScanState::NotStarted { root },
            direction,
            start: start.map(<[u8]>::to_vec),
            end: end.map(<[u8]>::to_vec),
            pending_skip: 0,
            path: Vec::new(),
            leaf: None,
            bounds: KeyBounds::default(),
            windows: ReadAheadWindows::new(reads),
        }
    }

    /// Skips the next `count` records without reading them: only one path of chunks is read. [`Iterator::skip`] and
    /// [`Iterator::nth`] do the same.
    #[must_use]
    pub fn skip_records(mut self, count: u64) -> Self {
        self.pending_skip = self.pending_skip.saturating_add(count);
        self
    }

    fn next_record(&mut self) -> Result<Option<(Bytes, MapValue)>> {
        if let MapScanState::NotStarted { root } = self.scan_state {
            self.scan_state = MapScanState::Running;
            let Some(root) = root else { return Ok(None) };
            let chunk = self.chunk_reader.read_chunk(&root)?;
            self.enter_chunk(root, chunk)?;
            if self.pending_skip == 0 || self.starts_inside_subtree() {
                self.descend_to_leaf()?;
            }
        }
        if self.pending_skip > 0 {
            let count = std::mem::take(&mut self.pending_skip);
            self.skip_pending(count)?;
        }
        loop {
            let Some(leaf) = &mut self.leaf else {
                return Ok(None);
            };
            if let Some(index) = self.direction.take_next(&mut leaf.remaining_records) {
                return Ok(Some(leaf.record(index)));
            }
            self.leaf = None;
            self.descend_to_leaf()?;
        }
    }

    /// Moves to the next leaf, unless the scan is at one; there is none at the end of the range.
    fn descend_to_leaf(&mut self) -> Result<()> {
        while self.leaf.is_none() && self.enter_next_subtree()? {}
        Ok(())
    }

    /// Enters the next subtree of the lowest chunk on the path that has one; returns false if there is none.
    fn enter_next_subtree(&mut self) -> Result<bool> {
        while let Some(frame) = self.path.last_mut() {
            let before = frame.remaining_children.clone();
            let Some(index) = self.direction.take_next(&mut frame.remaining_children) else {
                self.path.pop();
                continue;
            };
            frame.current_child = index;
            let interior = InteriorView::view_chunk(&frame.chunk);
            let id = interior.child(index);
            if frame.prefetched.is_empty() {
                let window = self.windows.next_window(frame.level - 1);
                let mut child_indexes = before;
                let next = std::iter::from_fn(|| self.direction.take_next(&mut child_indexes));
                let ids: Vec<ChunkId> = next.take(window).map(|at| interior.child(at)).collect();
                frame.prefetched = match ids.as_slice() {
                    [id] => VecDeque::from([self.chunk_reader.read_chunk(id)?]),
                    ids => self.chunk_reader.read_chunks(ids)?.into(),
                };
            }
            let chunk = match frame.prefetched.pop_front() {
                Some(chunk) => chunk,
                None => self.chunk_reader.read_chunk(&id)?,
            };
            self.enter_chunk(id, chunk)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Adds a chunk to the end of the path, limited to the range.
    fn enter_chunk(&mut self, id: ChunkId, chunk: Chunk) -> Result<()> {
        let node = TreeNode::from_chunk(&chunk, &id, self.path.last().map(|frame| frame.level))?;
        self.bounds.update_from_path(
            self.path.iter().rev().map(|frame| (&frame.chunk, frame.current_child)),
        );
        self.bounds.check_node(&node, &id)?;
        match node {
            TreeNode::Leaf(leaf) => {
                let rest = self.records_in_range(leaf);
                self.leaf = Some(LeafRange { chunk, remaining_records: rest });
            }
            TreeNode::Interior(interior) => {
                let first = match &self.start {
                    Bound::Unbounded => 0,
                    Bound::Included(key) | Bound::Excluded(key) => interior.find_child(key),
                };
                let last = match &self.end {
                    Bound::Unbounded => interior.len() - 1,
                    Bound::Included(key) => interior.find_child(key),
                    Bound::Excluded(key) => interior.find_last_child_below(key),
                };
                let (level, rest) = (interior.level(), first..last + 1);
                self.path.push(ScanFrame {
                    chunk,
                    level,
                    current_child: first,
                    remaining_children: rest,
                    prefetched: VecDeque::new(),
                });
            }
        }
        Ok(())
    }

    /// Returns the indexes of the records of a leaf that are within the range.
    fn records_in_range(&self, leaf: LeafView<'_>) -> Range<usize> {
        let at = |key: &[u8]| leaf.find_key(key).unwrap_or_else(|index| index);
        let behind = |key: &[u8]| leaf.find_key(key).map_or_else(|index| index, |index| index + 1);
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

    /// Returns true if the first record can be in the middle of a subtree.
    fn starts_inside_subtree(&self) -> bool {
        let edge = match self.direction {
            ScanDirection::Forward => &self.start,
            ScanDirection::Backward => &self.end,
        };
        !matches!(edge, Bound::Unbounded)
    }

    /// Skips records. The leaf in which the range begins has been entered, so all other subtrees count in full, except
    /// those in which the range ends.
    fn skip_pending(&mut self, mut count: u64) -> Result<()> {
        loop {
            if let Some(leaf) = &mut self.leaf {
                let here = leaf.remaining_records.len() as u64;
                if count < here {
                    self.direction.skip_next(&mut leaf.remaining_records, count as usize);
                    return Ok(());
                }
                count -= here;
                self.leaf = None;
            }
            self.skip_subtrees(&mut count);
            if !self.enter_next_subtree()? {
                return Ok(());
            }
        }
    }

    /// Skips the subtrees that contain no more than `count` records.
    fn skip_subtrees(&mut self, count: &mut u64) {
        while let Some(frame) = self.path.last_mut() {
            let interior = InteriorView::view_chunk(&frame.chunk);
            loop {
                let before = frame.remaining_children.clone();
                let Some(index) = self.direction.take_next(&mut frame.remaining_children) else {
                    break;
                };
                let below = interior.child_record_count(index);
                if below > *count {
                    frame.remaining_children = before;
                    return;
                }
                *count -= below;
                frame.prefetched.pop_front();
            }
            self.path.pop();
        }
    }
}

impl LeafRange {
    fn record(&self, index: usize) -> (Bytes, MapValue) {
        let leaf = LeafView::view_chunk(&self.chunk);
        (Bytes::from(leaf.key(index)), leaf.value(index))
    }
}

impl Iterator for MapScan<'_> {
    type Item = Result<(Bytes, MapValue)>;

    fn next(&mut self) -> Option<Self::Item> {
        if matches!(self.scan_state, MapScanState::Done) {
            return None;
        }
        let next = self.next_record().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.scan_state = MapScanState::Done;
            self.path.clear();
            self.leaf = None;
        }
        next
    }

    fn nth(&mut self, index: usize) -> Option<Self::Item> {
        self.pending_skip = self.pending_skip.saturating_add(index as u64);
        self.next()
    }
}

impl std::fmt::Debug for MapScan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapScan")
            .field("direction", &self.direction)
            .field("depth", &self.path.len())
            .finish_non_exhaustive()
    }
}
