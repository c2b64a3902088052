//! Reads a map in parts as far as possible: the records in order, and the spans that cannot be read.

use std::ops::Bound;

use bytes::Bytes;

use crate::chunk::{Chunk, ChunkKind, MapValue};
use crate::error::Result;
use crate::id::ChunkId;
use crate::tree::{ExpectedChild, SortedMap, TreeFault, check_tree_chunk};

/// A span of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapKeySpan {
    /// The first key that can be in the span.
    pub(crate) start: Vec<u8>,
    /// The first key after the span; `None` if it runs to the end.
    pub(crate) end: Option<Vec<u8>>,
}

impl MapKeySpan {
    /// All keys.
    pub(crate) const ALL_KEYS: Self = Self { start: Vec::new(), end: None };

    /// Returns the span of one key.
    pub(crate) fn of_key(key: &[u8]) -> Self {
        let mut to = key.to_vec();
        to.push(0);
        Self { start: key.to_vec(), end: Some(to) }
    }

    fn of_child(child: &ExpectedChild) -> Self {
        Self { start: child.lower.clone(), end: child.upper.clone() }
    }

    fn contains_key(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.end.as_deref().is_none_or(|to| key < to)
    }

    /// Returns the intersection of two spans, or `None` if they do not overlap.
    fn intersection(&self, other: &Self) -> Option<Self> {
        let from = self.start.clone().max(other.start.clone());
        let to = match (&self.end, &other.end) {
            (Some(left), Some(right)) => Some(left.min(right).clone()),
            (left, right) => left.clone().or_else(|| right.clone()),
        };
        let is_empty = to.as_ref().is_some_and(|to| *to <= from);
        (!is_empty).then_some(Self { start: from, end: to })
    }
}

/// A part of a map.
pub(crate) enum MapPart {
    /// A record, whose body may or may not be readable.
    Record(Bytes, MapValue),
    /// A span that cannot be read.
    Unreadable(UnreadableSpan),
    /// A part that the caller skips.
    Skipped,
}

/// A span of a map that cannot be read.
pub(crate) struct UnreadableSpan {
    pub(crate) span: MapKeySpan,
    /// The number of records below the chunk, as its parent states it; 0 if unknown.
    pub(crate) record_count: u64,
    pub(crate) fault: String,
}

/// A function that reads chunks. The inner error is the reason why one chunk cannot be read; the outer error ends the
/// whole visit.
pub(crate) type ChunkReadFn<'a> = dyn Fn(&ChunkId) -> Result<Result<Chunk, String>> + 'a;

/// Visits the parts of a map in a span, in order.
pub(crate) fn visit_map_parts(
    read: &ChunkReadFn<'_>,
    map: SortedMap,
    span: &MapKeySpan,
    visit: &mut dyn FnMut(MapPart) -> Result<()>,
) -> Result<()> {
    visit_map_parts_except(read, map, span, &mut |_| false, visit)
}

/// Visits the parts of a map in a span, in order, but skips the subtrees that `skips` selects.
pub(crate) fn visit_map_parts_except(
    read: &ChunkReadFn<'_>,
    map: SortedMap,
    span: &MapKeySpan,
    skips: &mut dyn FnMut(&ChunkId) -> bool,
    visit: &mut dyn FnMut(MapPart) -> Result<()>,
) -> Result<()> {
    match map.root() {
        Some(root) => MapPartWalk { read_chunk: read, should_skip: skips, visit_part: visit }
            .visit_subtree(root, None, span),
        None => Ok(()),
    }
}

struct MapPartWalk<'a> {
    read_chunk: &'a ChunkReadFn<'a>,
    should_skip: &'a mut dyn FnMut(&ChunkId) -> bool,
    visit_part: &'a mut dyn FnMut(MapPart) -> Result<()>,
}

impl MapPartWalk<'_> {
    /// Visits a subtree. Levels decrease on the way down, so the recursion ends.
    fn visit_subtree(
        &mut self,
        id: ChunkId,
        expected: Option<&ExpectedChild>,
        span: &MapKeySpan,
    ) -> Result<()> {
        if (self.should_skip)(&id) {
            return (self.visit_part)(MapPart::Skipped);
        }
        let unreadable = |fault| {
            let records = expected.map_or(0, |expected| expected.record_count);
            MapPart::Unreadable(UnreadableSpan { span: span.clone(), record_count: records, fault })
        };
        let chunk = match (self.read_chunk)(&id)? {
            Ok(chunk) => chunk,
            Err(fault) => return (self.visit_part)(unreadable(fault)),
        };
        let parts = match check_tree_chunk(&chunk, &id, expected) {
            Ok(parts) => parts,
            Err(TreeFault(fault)) => return (self.visit_part)(unreadable(fault.to_owned())),
        };
        if chunk.kind() == ChunkKind::Leaf {
            return self.visit_leaf_records(&chunk, id, span);
        }
        for child in &parts.children {
            if let Some(shared) = span.intersection(&MapKeySpan::of_child(child)) {
                self.visit_subtree(child.id, Some(child), &shared)?;
            }
        }
        Ok(())
    }

    fn visit_leaf_records(&mut self, leaf: &Chunk, id: ChunkId, span: &MapKeySpan) -> Result<()> {
        let alone = SingleLeafReader(leaf);
        let all = (Bound::Unbounded, Bound::Unbounded);
        for record in SortedMap::from_root(Some(id)).range(&alone, all) {
            let (key, value) = record?;
            if span.contains_key(&key) {
                (self.visit_part)(MapPart::Record(key, value))?;
            }
        }
        Ok(())
    }
}

/// A reader that returns its one leaf for any id.
struct SingleLeafReader<'a>(&'a Chunk);

impl crate::interface::chunk_reader::ReadChunks for SingleLeafReader<'_> {
    fn read_chunk(&self, _: &ChunkId) -> Result<Chunk> {
        Ok(self.0.clone())
    }
}
