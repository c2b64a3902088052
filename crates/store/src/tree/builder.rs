//! Builds chunks from entries in order: one chunker per level, and the stack of chunkers that a bulk build uses.

use bytes::Bytes;

use super::sorted_map::SortedMap;
use super::splitter::{ChunkMeasure, ChunkSplitter};
use crate::chunk::interior::{InteriorBuilder, TreeChild};
use crate::chunk::leaf::LeafBuilder;
use crate::chunk::{MapValue, check_record_limits, common_prefix_length};
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::chunk_batch::ChunkBatch;

/// A finished chunk, with the separator before it.
pub(super) struct FinishedChunk {
    pub(super) separator: Vec<u8>,
    pub(super) child: TreeChild,
    pub(super) bytes: Bytes,
}

/// Cuts records into leaves.
pub(super) struct LeafChunker {
    builder: LeafBuilder,
    splitter: ChunkSplitter,
    /// The separator before the first leaf that this chunker creates.
    start_separator: Vec<u8>,
    last_key: Option<Vec<u8>>,
    separator: Vec<u8>,
}

impl LeafChunker {
    pub(super) fn new() -> Self {
        Self {
            builder: LeafBuilder::default(),
            splitter: ChunkSplitter::new(0),
            start_separator: Vec::new(),
            last_key: None,
            separator: Vec::new(),
        }
    }

    /// Starts at a leaf with the separator `bound` before it.
    pub(super) fn begin_at(&mut self, bound: &[u8]) {
        self.start_separator.clear();
        self.start_separator.extend_from_slice(bound);
        self.last_key = None;
    }

    /// Returns the last key since [`LeafChunker::begin_at`].
    pub(super) fn last_key(&self) -> Option<&[u8]> {
        self.last_key.as_deref()
    }

    /// Returns the separator before a leaf that begins with `first`, or with any key that has `first` as its prefix.
    pub(super) fn separator_for<'k>(&self, first: &'k [u8]) -> &'k [u8] {
        let length = match &self.last_key {
            Some(last) => common_prefix_length(last, first) + 1,
            // The entry before the bound is unchanged and differs from it only in its last byte.
            None => match self.start_separator.len().checked_sub(1) {
                Some(shared) => common_prefix_length(&self.start_separator, first).min(shared) + 1,
                None => 0,
            },
        };
        first.get(..length).unwrap_or(first)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.builder.len() == 0
    }

    /// Adds a record; returns a leaf if the record completes it.
    pub(super) fn push(
        &mut self,
        key: &[u8],
        value: &[u8],
        body: Option<ChunkId>,
    ) -> Option<FinishedChunk> {
        let before = if self.is_empty() {
            self.separator = self.separator_for(key).to_vec();
            0
        } else {
            self.builder.encoded_size()
        };
        self.builder.push(key, value, body);
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        let measure = ChunkMeasure {
            entry_count: self.builder.len(),
            unshared_size: self.builder.unshared_size(),
            encoded_size: self.builder.encoded_size(),
            previous_size: before,
        };
        self.splitter.is_boundary(key, measure).then(|| self.finish())?
    }

    /// Ends the current leaf and returns it, or `None` if it is empty.
    pub(super) fn finish(&mut self) -> Option<FinishedChunk> {
        let count = self.builder.len() as u64;
        (count > 0).then(|| {
            let bytes = self.builder.finish_chunk();
            let id = ChunkId::hash_of(&bytes);
            FinishedChunk {
                separator: std::mem::take(&mut self.separator),
                child: TreeChild { id, record_count: count },
                bytes,
            }
        })
    }
}

/// Cuts children into interior chunks of one level.
pub(super) struct InteriorChunker {
    builder: InteriorBuilder,
    splitter: ChunkSplitter,
}

impl InteriorChunker {
    pub(super) fn new(level: u8) -> Self {
        Self { builder: InteriorBuilder::new(level), splitter: ChunkSplitter::new(level) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.builder.len() == 0
    }

    /// Adds a child; returns a chunk if the child completes it.
    pub(super) fn push(&mut self, separator: &[u8], child: TreeChild) -> Option<FinishedChunk> {
        let before = if self.is_empty() { 0 } else { self.builder.encoded_size() };
        self.builder.push(separator, child);
        let measure = ChunkMeasure {
            entry_count: self.builder.len(),
            unshared_size: self.builder.unshared_size(),
            encoded_size: self.builder.encoded_size(),
            previous_size: before,
        };
        self.splitter.is_boundary(separator, measure).then(|| self.finish())?
    }

    /// Ends the current chunk and returns it, or `None` if it is empty.
    pub(super) fn finish(&mut self) -> Option<FinishedChunk> {
        (!self.is_empty()).then(|| {
            let separator = self.builder.first_separator().to_vec();
            let (bytes, count) = self.builder.finish_chunk();
            let id = ChunkId::hash_of(&bytes);
            FinishedChunk { separator, child: TreeChild { id, record_count: count }, bytes }
        })
    }
}

/// The interior levels above a level that is pushed in order.
pub(super) struct InteriorLevels {
    levels: Vec<InteriorLevel>,
    /// The level whose chunks are pushed.
    base_level: u8,
    pushed_count: u64,
    newest_chunk: Option<ChunkId>,
}

struct InteriorLevel {
    chunker: InteriorChunker,
    finished_count: u64,
    newest_chunk: Option<ChunkId>,
}

impl InteriorLevels {
    pub(super) fn new(base: u8) -> Self {
        Self { levels: Vec::new(), base_level: base, pushed_count: 0, newest_chunk: None }
    }

    /// Adds a chunk of the base level; stages the chunks above that it completes.
    pub(super) fn push(&mut self, separator: &[u8], child: TreeChild, batch: &mut ChunkBatch) {
        self.pushed_count += 1;
        self.newest_chunk = Some(child.id);
        self.push_to_level(0, separator, child, batch);
    }

    fn push_to_level(
        &mut self,
        floor: usize,
        separator: &[u8],
        child: TreeChild,
        batch: &mut ChunkBatch,
    ) {
        if floor == self.levels.len() {
            let level = self.base_level.saturating_add(1).saturating_add(floor as u8);
            self.levels.push(InteriorLevel {
                chunker: InteriorChunker::new(level),
                finished_count: 0,
                newest_chunk: None,
            });
        }
        let Some(at) = self.levels.get_mut(floor) else {
            return;
        };
        if let Some(done) = at.chunker.push(separator, child) {
            self.add_finished_chunk(floor, done, batch);
        }
    }

    fn add_finished_chunk(&mut self, floor: usize, done: FinishedChunk, batch: &mut ChunkBatch) {
        if let Some(at) = self.levels.get_mut(floor) {
            at.finished_count += 1;
            at.newest_chunk = Some(done.child.id);
        }
        batch.add_chunk_with_id(done.child.id, done.bytes);
        self.push_to_level(floor + 1, &done.separator, done.child, batch);
    }

    /// Ends all levels and returns the root: the chunk of the lowest level that has only one.
    pub(super) fn finish_root(mut self, batch: &mut ChunkBatch) -> Option<ChunkId> {
        let (mut count, mut newest) = (self.pushed_count, self.newest_chunk);
        let mut floor = 0;
        while count > 1 {
            let rest = self.levels.get_mut(floor).and_then(|at| at.chunker.finish());
            if let Some(done) = rest {
                self.add_finished_chunk(floor, done, batch);
            }
            (count, newest) =
                self.levels.get(floor).map_or((0, None), |at| (at.finished_count, at.newest_chunk));
            floor += 1;
        }
        newest
    }
}

impl SortedMap {
    /// Builds a map from records in strictly ascending order of keys, staging its chunks.
    ///
    /// # Errors
    /// [`Error::Unsorted`], or [`Error::TooLong`] for a key or value beyond its limit.
    pub fn build(
        batch: &mut ChunkBatch,
        records: impl Iterator<Item = (Vec<u8>, MapValue)>,
    ) -> Result<Self> {
        build_map(batch, records.map(Ok))
    }
}

/// Builds a map from records in order.
pub(super) fn build_map(
    batch: &mut ChunkBatch,
    records: impl Iterator<Item = Result<(Vec<u8>, MapValue)>>,
) -> Result<SortedMap> {
    let mut leaves = LeafChunker::new();
    let mut tower = InteriorLevels::new(0);
    for (position, record) in records.enumerate() {
        let (key, value) = record?;
        check_record_limits(&key, &value)?;
        if leaves.last_key().is_some_and(|last| last >= key.as_slice()) {
            let position = position as u64;
            return Err(Error::Unsorted { position });
        }
        if let Some(leaf) = leaves.push(&key, &value.bytes, value.body) {
            add_leaf(leaf, &mut tower, batch);
        }
    }
    if let Some(leaf) = leaves.finish() {
        add_leaf(leaf, &mut tower, batch);
    }
    Ok(SortedMap::from_root(tower.finish_root(batch)))
}

fn add_leaf(leaf: FinishedChunk, tower: &mut InteriorLevels, batch: &mut ChunkBatch) {
    batch.add_chunk_with_id(leaf.child.id, leaf.bytes);
    tower.push(&leaf.separator, leaf.child, batch);
}
