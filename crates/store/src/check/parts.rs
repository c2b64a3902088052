//! A map in parts, as far as it can be read: records in order, and the spans that cannot.

use std::ops::Bound;

use bytes::Bytes;

use crate::chunk::{Chunk, ChunkKind};
use crate::error::Result;
use crate::id::ChunkId;
use crate::tree::{Expected, Map, TreeFault, Value, check_tree_chunk};

/// A span of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first key that can be in it.
    pub(crate) from: Vec<u8>,
    /// The first key behind it; `None` if it runs to the end.
    pub(crate) to: Option<Vec<u8>>,
}

impl Span {
    /// All keys.
    pub(crate) const ALL: Self = Self { from: Vec::new(), to: None };

    /// Returns the span of one key.
    pub(crate) fn of(key: &[u8]) -> Self {
        let mut to = key.to_vec();
        to.push(0);
        Self { from: key.to_vec(), to: Some(to) }
    }

    fn of_child(child: &Expected) -> Self {
        Self { from: child.lower.clone(), to: child.upper.clone() }
    }

    fn contains(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.to.as_deref().is_none_or(|to| key < to)
    }

    /// Returns what two spans share, if anything.
    fn and(&self, other: &Self) -> Option<Self> {
        let from = self.from.clone().max(other.from.clone());
        let to = match (&self.to, &other.to) {
            (Some(left), Some(right)) => Some(left.min(right).clone()),
            (left, right) => left.clone().or_else(|| right.clone()),
        };
        let is_empty = to.as_ref().is_some_and(|to| *to <= from);
        (!is_empty).then_some(Self { from, to })
    }
}

/// A part of a map.
pub(crate) enum Part {
    /// A record, whose body may or may not be readable.
    Record(Bytes, Value),
    /// A span of which nothing is known.
    Unreadable(Unreadable),
    /// A part that the caller passes over.
    Skipped,
}

/// A span of a map that cannot be read.
pub(crate) struct Unreadable {
    pub(crate) span: Span,
    /// How many records the chunk leads to, as far as its parent says so; otherwise 0.
    pub(crate) records: u64,
    pub(crate) fault: String,
}

/// Reads chunks: the inner error says why a chunk cannot be had, the outer one ends everything.
pub(crate) type Read<'a> = dyn Fn(&ChunkId) -> Result<Result<Chunk, String>> + 'a;

/// Visits what a map has in a span, in order.
pub(crate) fn parts(
    read: &Read<'_>,
    map: Map,
    span: &Span,
    visit: &mut dyn FnMut(Part) -> Result<()>,
) -> Result<()> {
    parts_but(read, map, span, &mut |_| false, visit)
}

/// Visits what a map has in a span, in order, but passes over the subtrees that `skips` tells.
pub(crate) fn parts_but(
    read: &Read<'_>,
    map: Map,
    span: &Span,
    skips: &mut dyn FnMut(&ChunkId) -> bool,
    visit: &mut dyn FnMut(Part) -> Result<()>,
) -> Result<()> {
    match map.root() {
        Some(root) => Walk { read, skips, visit }.subtree(root, None, span),
        None => Ok(()),
    }
}

struct Walk<'a> {
    read: &'a Read<'a>,
    skips: &'a mut dyn FnMut(&ChunkId) -> bool,
    visit: &'a mut dyn FnMut(Part) -> Result<()>,
}

impl Walk<'_> {
    /// Visits a subtree. Levels fall on the way down, so that this ends.
    fn subtree(&mut self, id: ChunkId, expected: Option<&Expected>, span: &Span) -> Result<()> {
        if (self.skips)(&id) {
            return (self.visit)(Part::Skipped);
        }
        let unreadable = |fault| {
            let records = expected.map_or(0, |expected| expected.count);
            Part::Unreadable(Unreadable { span: span.clone(), records, fault })
        };
        let chunk = match (self.read)(&id)? {
            Ok(chunk) => chunk,
            Err(fault) => return (self.visit)(unreadable(fault)),
        };
        let found = match check_tree_chunk(&chunk, &id, expected) {
            Ok(found) => found,
            Err(TreeFault(fault)) => return (self.visit)(unreadable(fault.to_owned())),
        };
        if chunk.kind() == ChunkKind::Leaf {
            return self.records(&chunk, id, span);
        }
        for child in &found.children {
            if let Some(shared) = span.and(&Span::of_child(child)) {
                self.subtree(child.id, Some(child), &shared)?;
            }
        }
        Ok(())
    }

    fn records(&mut self, leaf: &Chunk, id: ChunkId, span: &Span) -> Result<()> {
        let alone = One(leaf);
        let all = (Bound::Unbounded, Bound::Unbounded);
        for record in Map::from_root(Some(id)).range(&alone, all) {
            let (key, value) = record?;
            if span.contains(&key) {
                (self.visit)(Part::Record(key, value))?;
            }
        }
        Ok(())
    }
}

/// Reads one leaf, whatever the id.
struct One<'a>(&'a Chunk);

impl crate::chunk_store::ReadChunks for One<'_> {
    fn read(&self, _: &ChunkId) -> Result<Chunk> {
        Ok(self.0.clone())
    }
}
