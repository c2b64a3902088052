//! Edits, level by level: only the chunks that an edit touches are read and written.
//!
//! A region begins at the first chunk that a step of the script falls into. It ends where a new chunk ends together
//! with an old one: from there on the level is unchanged. The replacements of the regions form the script of the level
//! above. Old chunks in the middle of a removed range are skipped unread.
//!
//! Invariants
//! * The chunks of a level are those of a bulk build of the same entries.
//! * Only chunks that belong to the new map are staged, and only when the whole edit has succeeded.

use std::collections::{BTreeMap, HashSet};

use super::builder::{self, FinishedChunk, InteriorChunker, InteriorLevels, LeafChunker};
use super::cursor::{KeyBounds, LevelCursor, OldTree};
use super::edit_script::{EditOp, EditScript, EditSteps, OldEntryAction, RemovalReach};
use super::level_chunker::LevelChunker;
use super::lookup::PrefetchedChunks;
use super::sorted_map::SortedMap;
use crate::chunk::interior::{InteriorView, TreeChild};
use crate::chunk::{Chunk, MapValue, check_record_limits};
use crate::error::Result;
use crate::id::ChunkId;
use crate::interface::chunk_batch::{ChunkBatch, StagedView};
use crate::interface::chunk_reader::ReadChunks;

impl SortedMap {
    /// Applies edits (`None` deletes) and stages the chunks of the new map. Chunks are looked up in `batch` first, then
    /// in `reads`, so that several edits can follow each other in one batch.
    ///
    /// The root equals that of a bulk build of the same content. An edit that changes nothing returns the same map.
    ///
    /// # Errors
    /// [`Error::TooLong`](crate::Error::TooLong) for a key or value beyond its limit, or a failed read.
    pub fn edit(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut ChunkBatch,
        edits: BTreeMap<Vec<u8>, Option<MapValue>>,
    ) -> Result<Self> {
        for (key, value) in &edits {
            check_record_limits(key, value.as_ref().unwrap_or(&MapValue::default()))?;
        }
        let edited = {
            let staged = StagedView::new(batch, reads);
            let keys = edits.keys().map(Vec::as_slice);
            let keys = keys.filter(|_| reads.has_costly_round_trips());
            let warm = PrefetchedChunks::new(self, &staged, keys)?;
            let steps = edits.into_iter();
            let steps =
                steps.map(|(key, value)| Ok((key, value.map_or(EditOp::Remove, EditOp::Put))));
            prepare_edit(*self, &warm, steps)?
        };
        edited.stage_chunks(batch)
    }
}

/// A step of a script for the leaves.
pub(super) type EditStepResult = Result<(Vec<u8>, EditOp<MapValue>)>;

/// Applies a script to a map and stages the chunks of the result.
pub(super) fn edit_map(
    map: SortedMap,
    reads: &dyn ReadChunks,
    batch: &mut ChunkBatch,
    steps: impl Iterator<Item = EditStepResult>,
) -> Result<SortedMap> {
    let edited = {
        let staged = StagedView::new(batch, reads);
        prepare_edit(map, &staged, steps)?
    };
    edited.stage_chunks(batch)
}

/// Computes an edit without staging anything.
pub(super) fn prepare_edit(
    map: SortedMap,
    reads: &dyn ReadChunks,
    steps: impl Iterator<Item = EditStepResult>,
) -> Result<MapEditOutcome> {
    let Some(root) = map.root() else {
        let mut batch = ChunkBatch::new();
        let records = steps.filter_map(|step| match step {
            Ok((key, EditOp::Put(value))) => Some(Ok((key, value))),
            Ok((_, EditOp::Remove | EditOp::RemoveRange(_))) => None,
            Err(error) => Some(Err(error)),
        });
        let map = builder::build_map(&mut batch, records)?;
        return Ok(MapEditOutcome::Built(map, Box::new(batch)));
    };
    let mut script = EditScript::new(steps)?;
    if script.next_key().is_none() {
        return Ok(MapEditOutcome::Unchanged(map));
    }
    let mut tree = OldTree::open(root, reads)?;
    let mut fresh = NewTreeChunks::default();
    let mut splices = rechunk_level(LeafChunker::new(), 0, &mut script, &mut tree, &mut fresh)?;
    let mut level = 0;
    while level < tree.height() && !splices.is_empty() {
        level += 1;
        let mut script = EditScript::new(splices.into_iter().flat_map(LevelSplice::into_steps))?;
        let chunker = InteriorChunker::new(level);
        splices = rechunk_level(chunker, level, &mut script, &mut tree, &mut fresh)?;
    }
    let Some(splice) = splices.pop() else {
        return Ok(MapEditOutcome::Unchanged(map));
    };
    // The old root was the only chunk of its level. It is part of the new level if all new chunks come after it.
    let retained_root = (!splice.start.is_empty()).then(|| (Vec::new(), tree.root_as_child()));
    let tops: Vec<(Vec<u8>, TreeChild)> = retained_root.into_iter().chain(splice.entries).collect();
    let height = tree.height();
    Ok(match tops.as_slice() {
        [] => MapEditOutcome::Unchanged(SortedMap::EMPTY_MAP),
        [(_, child)] => {
            let (root, height) = lowest_root(child.id, &mut tree, &fresh)?;
            MapEditOutcome::Lower { root, height, new_chunks: fresh }
        }
        _ => MapEditOutcome::Higher { top_children: tops, height, new_chunks: fresh },
    })
}

/// The result of an edit, not staged yet.
pub(super) enum MapEditOutcome {
    /// No chunk is new.
    Unchanged(SortedMap),
    /// The map was built from an empty one.
    Built(SortedMap, Box<ChunkBatch>),
    /// The root is at or below the level of the old one.
    Lower { root: ChunkId, height: u8, new_chunks: NewTreeChunks },
    /// These chunks are siblings in the place of the old root.
    Higher { top_children: Vec<(Vec<u8>, TreeChild)>, height: u8, new_chunks: NewTreeChunks },
}

impl MapEditOutcome {
    /// Stages the new chunks and returns the map.
    pub(super) fn stage_chunks(self, batch: &mut ChunkBatch) -> Result<SortedMap> {
        Ok(match self {
            Self::Unchanged(map) => map,
            Self::Built(map, built) => {
                for (id, bytes) in built.chunks() {
                    batch.add_chunk_with_id(*id, bytes.clone());
                }
                map
            }
            Self::Lower { root, height, new_chunks } => {
                new_chunks.stage_levels(height, batch);
                SortedMap::from_root(Some(root))
            }
            Self::Higher { top_children, height, new_chunks } => {
                new_chunks.stage_levels(height, batch);
                let mut tower = InteriorLevels::new(height);
                for (separator, child) in &top_children {
                    tower.push(separator, *child, batch);
                }
                SortedMap::from_root(tower.finish_root(batch))
            }
        })
    }
}

/// Descends from a single top chunk while it has a single child: the root is the only chunk of the lowest such level.
fn lowest_root(
    top: ChunkId,
    tree: &mut OldTree<'_>,
    fresh: &NewTreeChunks,
) -> Result<(ChunkId, u8)> {
    let (mut id, mut level) = (top, tree.height());
    while level > 0 {
        let chunk = match fresh.find_chunk(level, &id) {
            Some(bytes) => Chunk::parse(bytes.clone())?,
            None => tree.read_chunk_at_level(&id, level)?,
        };
        let interior = InteriorView::view_chunk(&chunk);
        if interior.len() > 1 {
            break;
        }
        id = interior.child(0);
        level -= 1;
    }
    Ok((id, level))
}

/// New chunks by level, staged when the levels of the new map are known.
#[derive(Default)]
pub(super) struct NewTreeChunks {
    levels: Vec<Vec<(ChunkId, bytes::Bytes)>>,
}

impl NewTreeChunks {
    fn add_chunk(&mut self, level: u8, id: ChunkId, bytes: bytes::Bytes) {
        let level = usize::from(level);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        if let Some(chunks) = self.levels.get_mut(level) {
            chunks.push((id, bytes));
        }
    }

    fn find_chunk(&self, level: u8, id: &ChunkId) -> Option<&bytes::Bytes> {
        let chunks = self.levels.get(usize::from(level))?;
        chunks.iter().find(|(chunk_id, _)| chunk_id == id).map(|(_, bytes)| bytes)
    }

    /// Stages the levels up to `height`.
    fn stage_levels(self, height: u8, batch: &mut ChunkBatch) {
        let levels = self.levels.into_iter().take(usize::from(height) + 1);
        for (id, bytes) in levels.flatten() {
            batch.add_chunk_with_id(id, bytes);
        }
    }
}

/// Consecutive old chunks of a level, and their replacement.
struct LevelSplice {
    /// The separator before the first chunk.
    start: Vec<u8>,
    /// The separator after the last chunk; `None` at the end of the level.
    end: Option<Vec<u8>>,
    entries: Vec<(Vec<u8>, TreeChild)>,
}

impl LevelSplice {
    fn into_steps(self) -> impl Iterator<Item = Result<(Vec<u8>, EditOp<TreeChild>)>> {
        let puts = self.entries.into_iter().map(|(key, child)| Ok((key, EditOp::Put(child))));
        std::iter::once(Ok((self.start, EditOp::RemoveRange(self.end)))).chain(puts)
    }
}

/// A region in progress, and its replacement.
#[derive(Default)]
struct EditRegion {
    /// The old chunks that were visited.
    visited_chunks: Vec<(KeyBounds, ChunkId)>,
    /// The number of visited chunks before the first chunk that was skipped unread.
    contiguous_count: Option<usize>,
    new_entries: Vec<(Vec<u8>, TreeChild)>,
    new_chunks: Vec<(ChunkId, bytes::Bytes)>,
    end_separator: Option<Vec<u8>>,
}

impl EditRegion {
    fn add_finished(&mut self, chunk: Option<FinishedChunk>) {
        if let Some(FinishedChunk { separator, child, bytes }) = chunk {
            self.new_entries.push((separator, child));
            self.new_chunks.push((child.id, bytes));
        }
    }

    /// Adds an old chunk that is reused with another separator before it.
    fn add_reused(&mut self, separator: Vec<u8>, cursor: &LevelCursor) {
        let bounds = cursor.bounds();
        self.end_separator.clone_from(&bounds.upper);
        self.visited_chunks.push((bounds, cursor.chunk_id));
        self.new_entries.push((separator, cursor.as_child()));
    }

    /// Moves the new chunks to `fresh` and returns the replacement, or `None` if nothing changed.
    fn into_splice(mut self, level: u8, fresh: &mut NewTreeChunks) -> Option<LevelSplice> {
        let old_ids: HashSet<ChunkId> = self.visited_chunks.iter().map(|(_, id)| *id).collect();
        for (id, bytes) in self.new_chunks {
            if !old_ids.contains(&id) {
                fresh.add_chunk(level, id, bytes);
            }
        }
        let before = self.contiguous_count.unwrap_or(self.visited_chunks.len());
        let pairs = self.visited_chunks.iter().take(before).zip(&self.new_entries);
        let same = pairs
            .take_while(|((bounds, id), (separator, child))| {
                bounds.lower == *separator && *id == child.id
            })
            .count();
        if self.contiguous_count.is_none()
            && same == self.visited_chunks.len()
            && same == self.new_entries.len()
        {
            return None;
        }
        let behind_same = same.checked_sub(1).and_then(|last| self.visited_chunks.get(last));
        let start = match behind_same {
            Some((bounds, _)) => bounds.upper.clone(),
            None => self.visited_chunks.first().map(|(bounds, _)| bounds.lower.clone()),
        };
        let entries = self.new_entries.split_off(same);
        // After the last chunk of a level there is no separator yet: the first new chunk provides it.
        let start = start.or_else(|| entries.first().map(|(separator, _)| separator.clone()))?;
        Some(LevelSplice { start, end: self.end_separator, entries })
    }
}

/// Applies a script to one level; returns the replaced chunks, from which the script of the level above is built.
fn rechunk_level<L: LevelChunker>(
    mut chunker: L,
    level: u8,
    script: &mut EditScript<impl EditSteps<L::Item>, L::Item>,
    tree: &mut OldTree<'_>,
    fresh: &mut NewTreeChunks,
) -> Result<Vec<LevelSplice>> {
    let mut splices = Vec::new();
    while let Some(key) = script.next_key() {
        let mut cursor = tree.seek_chunk(level, key)?;
        let mut region = EditRegion::default();
        let mut bounds = cursor.bounds();
        chunker.begin_at(&bounds.lower);
        loop {
            let chunk = tree.read_chunk_at(&cursor)?;
            feed_chunk(&mut chunker, &chunk, &bounds, script, &mut region)?;
            let upper = bounds.upper.clone();
            region.visited_chunks.push((bounds, cursor.chunk_id));
            let (next, ahead) = match find_successor(&mut chunker, upper, script, &mut region)? {
                RegionSuccessor::End => {
                    region.add_finished(chunker.finish());
                    break;
                }
                RegionSuccessor::NextChunk(next) => (next, None),
                RegionSuccessor::RemovedUntil(next) => {
                    let next_cursor = tree.seek_chunk(level, &next)?;
                    bounds = next_cursor.bounds();
                    if bounds.lower != next {
                        // Some entries of that chunk remain.
                        cursor = next_cursor;
                        continue;
                    }
                    (next, Some(next_cursor))
                }
            };
            let is_done =
                chunker.is_between_chunks() && !next_step_falls_into(script, tree, level, &next)?;
            let separator = if is_done { chunker.next_separator(&next) } else { Vec::new() };
            if is_done && separator == next {
                region.end_separator = Some(next);
                break;
            }
            cursor = match ahead {
                Some(next_cursor) => next_cursor,
                None => tree.next_chunk(cursor)?,
            };
            if is_done {
                region.add_reused(separator, &cursor);
                break;
            }
            bounds = cursor.bounds();
        }
        splices.extend(region.into_splice(level, fresh));
    }
    Ok(splices)
}

/// Passes the edited entries of an old chunk to the chunker.
fn feed_chunk<L: LevelChunker>(
    chunker: &mut L,
    chunk: &Chunk,
    bounds: &KeyBounds,
    script: &mut EditScript<impl EditSteps<L::Item>, L::Item>,
    region: &mut EditRegion,
) -> Result<()> {
    L::visit_entries(chunk, &bounds.lower, |key, item| {
        let verdict =
            script.apply_to_entry(key, |key, item| region.add_finished(chunker.push(key, item)))?;
        if matches!(verdict, OldEntryAction::Keep) {
            region.add_finished(chunker.push(key, &item));
        }
        Ok(())
    })?;
    let upper = bounds.upper.as_deref();
    script.take_steps_below(upper, |key, item| region.add_finished(chunker.push(key, item)))
}

/// The successor of a chunk in a region.
enum RegionSuccessor {
    /// No chunk remains.
    End,
    /// The next chunk, with this separator before it.
    NextChunk(Vec<u8>),
    /// Chunks that are removed, up to this key.
    RemovedUntil(Vec<u8>),
}

/// Finds the successor of the chunk that ends at `upper`; adds the entries that replace chunks that are removed
/// completely.
fn find_successor<L: LevelChunker>(
    chunker: &mut L,
    upper: Option<Vec<u8>>,
    script: &mut EditScript<impl EditSteps<L::Item>, L::Item>,
    region: &mut EditRegion,
) -> Result<RegionSuccessor> {
    let Some(upper) = upper else {
        return Ok(RegionSuccessor::End);
    };
    if !script.removal_reach().covers_key(&upper) {
        return Ok(RegionSuccessor::NextChunk(upper));
    }
    region.contiguous_count.get_or_insert(region.visited_chunks.len());
    script.take_steps_in_removal(|key, item| region.add_finished(chunker.push(key, item)))?;
    Ok(match script.removal_reach() {
        RemovalReach::UntilEnd => RegionSuccessor::End,
        RemovalReach::UntilKey(end) => RegionSuccessor::RemovedUntil(end.clone()),
    })
}

/// Returns true if the next step falls into the chunk with this separator before it.
fn next_step_falls_into<T>(
    script: &EditScript<impl EditSteps<T>, T>,
    tree: &mut OldTree<'_>,
    level: u8,
    separator: &[u8],
) -> Result<bool> {
    match script.next_key() {
        Some(key) => Ok(tree.seek_chunk(level, key)?.bounds().lower == separator),
        None => Ok(false),
    }
}
