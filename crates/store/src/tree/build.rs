//! From entries in order to chunks: one chunker per level, and the tower of them that a bulk build is.

use bytes::Bytes;

use super::interior::{Child, InteriorBuilder};
use super::leaf::LeafBuilder;
use super::split::{Measure, Splitter};
use super::{Map, Value, check_record, common_prefix};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::id::ChunkId;

/// A finished chunk, with the separator in front of it.
pub(super) struct Produced {
    pub(super) separator: Vec<u8>,
    pub(super) child: Child,
    pub(super) bytes: Bytes,
}

/// Cuts records into leaves.
pub(super) struct LeafChunker {
    builder: LeafBuilder,
    splitter: Splitter,
    /// In front of the first leaf that this chunker makes.
    bound: Vec<u8>,
    last: Option<Vec<u8>>,
    separator: Vec<u8>,
}

impl LeafChunker {
    pub(super) fn new() -> Self {
        Self {
            builder: LeafBuilder::default(),
            splitter: Splitter::new(0),
            bound: Vec::new(),
            last: None,
            separator: Vec::new(),
        }
    }

    /// Starts at a leaf with the separator `bound` in front of it.
    pub(super) fn begin(&mut self, bound: &[u8]) {
        self.bound.clear();
        self.bound.extend_from_slice(bound);
        self.last = None;
    }

    /// Returns the last key since [`LeafChunker::begin`].
    pub(super) fn last_key(&self) -> Option<&[u8]> {
        self.last.as_deref()
    }

    /// Returns the separator in front of a leaf that begins with `first`, or with anything that begins so.
    pub(super) fn separator_before<'k>(&self, first: &'k [u8]) -> &'k [u8] {
        let length = match &self.last {
            Some(last) => common_prefix(last, first) + 1,
            // What stands before the bound has not changed and differs from it in its last byte only.
            None => match self.bound.len().checked_sub(1) {
                Some(shared) => common_prefix(&self.bound, first).min(shared) + 1,
                None => 0,
            },
        };
        first.get(..length).unwrap_or(first)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.builder.len() == 0
    }

    /// Adds a record; returns the leaf that ends with it, if one does.
    pub(super) fn push(
        &mut self,
        key: &[u8],
        value: &[u8],
        body: Option<ChunkId>,
    ) -> Option<Produced> {
        let before = if self.is_empty() {
            self.separator = self.separator_before(key).to_vec();
            0
        } else {
            self.builder.size()
        };
        self.builder.push(key, value, body);
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        let measure = Measure {
            entries: self.builder.len(),
            full: self.builder.full_size(),
            size: self.builder.size(),
            before,
        };
        self.splitter.ends_after(key, measure).then(|| self.finish())?
    }

    /// Ends the current leaf, if there is one.
    pub(super) fn finish(&mut self) -> Option<Produced> {
        let count = self.builder.len() as u64;
        (count > 0).then(|| {
            let bytes = self.builder.finish();
            let id = ChunkId::of(&bytes);
            Produced {
                separator: std::mem::take(&mut self.separator),
                child: Child { id, count },
                bytes,
            }
        })
    }
}

/// Cuts children into interior chunks of one level.
pub(super) struct InteriorChunker {
    builder: InteriorBuilder,
    splitter: Splitter,
}

impl InteriorChunker {
    pub(super) fn new(level: u8) -> Self {
        Self { builder: InteriorBuilder::new(level), splitter: Splitter::new(level) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.builder.len() == 0
    }

    /// Adds a child; returns the chunk that ends with it, if one does.
    pub(super) fn push(&mut self, separator: &[u8], child: Child) -> Option<Produced> {
        let before = if self.is_empty() { 0 } else { self.builder.size() };
        self.builder.push(separator, child);
        let measure = Measure {
            entries: self.builder.len(),
            full: self.builder.full_size(),
            size: self.builder.size(),
            before,
        };
        self.splitter.ends_after(separator, measure).then(|| self.finish())?
    }

    /// Ends the current chunk, if there is one.
    pub(super) fn finish(&mut self) -> Option<Produced> {
        (!self.is_empty()).then(|| {
            let separator = self.builder.first().to_vec();
            let (bytes, count) = self.builder.finish();
            let id = ChunkId::of(&bytes);
            Produced { separator, child: Child { id, count }, bytes }
        })
    }
}

/// The interior levels above a level that is pushed in order.
pub(super) struct Tower {
    levels: Vec<Floor>,
    /// The level that is pushed.
    base: u8,
    pushed: u64,
    newest: Option<ChunkId>,
}

struct Floor {
    chunker: InteriorChunker,
    finished: u64,
    newest: Option<ChunkId>,
}

impl Tower {
    pub(super) fn new(base: u8) -> Self {
        Self { levels: Vec::new(), base, pushed: 0, newest: None }
    }

    /// Adds a chunk of the base level; stages the chunks above that it completes.
    pub(super) fn push(&mut self, separator: &[u8], child: Child, batch: &mut Batch) {
        self.pushed += 1;
        self.newest = Some(child.id);
        self.push_at(0, separator, child, batch);
    }

    fn push_at(&mut self, floor: usize, separator: &[u8], child: Child, batch: &mut Batch) {
        if floor == self.levels.len() {
            let level = self.base.saturating_add(1).saturating_add(floor as u8);
            self.levels.push(Floor {
                chunker: InteriorChunker::new(level),
                finished: 0,
                newest: None,
            });
        }
        let Some(at) = self.levels.get_mut(floor) else {
            return;
        };
        if let Some(done) = at.chunker.push(separator, child) {
            self.finished(floor, done, batch);
        }
    }

    fn finished(&mut self, floor: usize, done: Produced, batch: &mut Batch) {
        if let Some(at) = self.levels.get_mut(floor) {
            at.finished += 1;
            at.newest = Some(done.child.id);
        }
        batch.add_named(done.child.id, done.bytes);
        self.push_at(floor + 1, &done.separator, done.child, batch);
    }

    /// Ends all levels and returns the root: the chunk of the lowest level that has only one.
    pub(super) fn finish(mut self, batch: &mut Batch) -> Option<ChunkId> {
        let (mut count, mut newest) = (self.pushed, self.newest);
        let mut floor = 0;
        while count > 1 {
            let rest = self.levels.get_mut(floor).and_then(|at| at.chunker.finish());
            if let Some(done) = rest {
                self.finished(floor, done, batch);
            }
            (count, newest) =
                self.levels.get(floor).map_or((0, None), |at| (at.finished, at.newest));
            floor += 1;
        }
        newest
    }
}

/// Builds a map from records in order.
pub(super) fn build(
    batch: &mut Batch,
    records: impl Iterator<Item = Result<(Vec<u8>, Value)>>,
) -> Result<Map> {
    let mut leaves = LeafChunker::new();
    let mut tower = Tower::new(0);
    for (position, record) in records.enumerate() {
        let (key, value) = record?;
        check_record(&key, &value)?;
        if leaves.last_key().is_some_and(|last| last >= key.as_slice()) {
            let position = position as u64;
            return Err(Error::Unsorted { position });
        }
        if let Some(leaf) = leaves.push(&key, &value.bytes, value.body) {
            add(leaf, &mut tower, batch);
        }
    }
    if let Some(leaf) = leaves.finish() {
        add(leaf, &mut tower, batch);
    }
    Ok(Map::from_root(tower.finish(batch)))
}

fn add(leaf: Produced, tower: &mut Tower, batch: &mut Batch) {
    batch.add_named(leaf.child.id, leaf.bytes);
    tower.push(&leaf.separator, leaf.child, batch);
}
