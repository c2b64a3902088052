//! Edits, level by level: only the chunks that an edit touches are read and written.
//!
//! A region begins at the first chunk that a step of the script falls into and ends where a new chunk ends together
//! with an old one: from there on the level goes on as before. What a region replaces is the script of the level
//! above. Old chunks in the midst of what is removed are passed over unread.
//!
//! Invariants
//! * A level's chunks are those of a bulk build of the same entries.
//! * Only chunks that belong to the new map are staged, and only when the whole edit has succeeded.

use std::collections::HashSet;

use super::build::{self, InteriorChunker, LeafChunker, Produced, Tower};
use super::interior::{Child, Interior};
use super::level::Level;
use super::path::{Bounds, Cursor, OldTree};
use super::script::{Op, Reach, Script, Steps, Verdict};
use super::{Map, Value};
use crate::batch::{Batch, Staged};
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::error::Result;
use crate::id::ChunkId;

/// A step of a script for the leaves.
pub(super) type Step = Result<(Vec<u8>, Op<Value>)>;

/// Applies a script to a map and stages the chunks of the result.
pub(super) fn edit(
    map: Map,
    reads: &dyn ReadChunks,
    batch: &mut Batch,
    steps: impl Iterator<Item = Step>,
) -> Result<Map> {
    let edited = {
        let staged = Staged::new(batch, reads);
        prepare(map, &staged, steps)?
    };
    edited.stage(batch)
}

/// Computes an edit without staging anything.
pub(super) fn prepare(
    map: Map,
    reads: &dyn ReadChunks,
    steps: impl Iterator<Item = Step>,
) -> Result<Edited> {
    let Some(root) = map.root() else {
        let mut batch = Batch::new();
        let records = steps.filter_map(|step| match step {
            Ok((key, Op::Put(value))) => Some(Ok((key, value))),
            Ok((_, Op::Remove | Op::RemoveTo(_))) => None,
            Err(error) => Some(Err(error)),
        });
        let map = build::build(&mut batch, records)?;
        return Ok(Edited::Built(map, Box::new(batch)));
    };
    let mut script = Script::new(steps)?;
    if script.next_key().is_none() {
        return Ok(Edited::Same(map));
    }
    let mut tree = OldTree::open(root, reads)?;
    let mut fresh = Fresh::default();
    let mut splices = rechunk(LeafChunker::new(), 0, &mut script, (&mut tree, &mut fresh))?;
    let mut level = 0;
    while level < tree.height() && !splices.is_empty() {
        level += 1;
        let mut script = Script::new(splices.into_iter().flat_map(Splice::into_steps))?;
        let chunker = InteriorChunker::new(level);
        splices = rechunk(chunker, level, &mut script, (&mut tree, &mut fresh))?;
    }
    let Some(splice) = splices.pop() else {
        return Ok(Edited::Same(map));
    };
    // The old root was the only chunk of its level. It is a part of the new level if all that is new follows it.
    let kept = (!splice.start.is_empty()).then(|| (Vec::new(), tree.root_child()));
    let tops: Vec<(Vec<u8>, Child)> = kept.into_iter().chain(splice.entries).collect();
    let height = tree.height();
    Ok(match tops.as_slice() {
        [] => Edited::Same(Map::EMPTY),
        [(_, child)] => {
            let (root, height) = lowest_root(child.id, &mut tree, &fresh)?;
            Edited::Lower { root, height, fresh }
        }
        _ => Edited::Higher { tops, height, fresh },
    })
}

/// The result of an edit, not staged yet.
pub(super) enum Edited {
    /// No chunk is new.
    Same(Map),
    /// Built from nothing.
    Built(Map, Box<Batch>),
    /// The root is at or below the level of the old one.
    Lower { root: ChunkId, height: u8, fresh: Fresh },
    /// These chunks stand side by side where the old root stood.
    Higher { tops: Vec<(Vec<u8>, Child)>, height: u8, fresh: Fresh },
}

impl Edited {
    /// Stages the new chunks and returns the map.
    pub(super) fn stage(self, batch: &mut Batch) -> Result<Map> {
        Ok(match self {
            Self::Same(map) => map,
            Self::Built(map, built) => {
                for (id, bytes) in built.chunks() {
                    batch.add_named(*id, bytes.clone());
                }
                map
            }
            Self::Lower { root, height, fresh } => {
                fresh.stage(height, batch);
                Map::from_root(Some(root))
            }
            Self::Higher { tops, height, fresh } => {
                fresh.stage(height, batch);
                let mut tower = Tower::new(height);
                for (separator, child) in &tops {
                    tower.push(separator, *child, batch);
                }
                Map::from_root(tower.finish(batch))
            }
        })
    }
}

/// Goes down from a lone top while it has a single child: the root is the lowest level's only chunk.
fn lowest_root(top: ChunkId, tree: &mut OldTree<'_>, fresh: &Fresh) -> Result<(ChunkId, u8)> {
    let (mut id, mut level) = (top, tree.height());
    while level > 0 {
        let chunk = match fresh.find(level, &id) {
            Some(bytes) => Chunk::parse(bytes.clone())?,
            None => tree.read(&id, level)?,
        };
        let interior = Interior::view(&chunk);
        if interior.len() > 1 {
            break;
        }
        id = interior.child(0);
        level -= 1;
    }
    Ok((id, level))
}

/// New chunks by level, staged when it is known which levels the new map has.
#[derive(Default)]
pub(super) struct Fresh {
    levels: Vec<Vec<(ChunkId, bytes::Bytes)>>,
}

impl Fresh {
    fn add(&mut self, level: u8, id: ChunkId, bytes: bytes::Bytes) {
        let level = usize::from(level);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        if let Some(chunks) = self.levels.get_mut(level) {
            chunks.push((id, bytes));
        }
    }

    fn find(&self, level: u8, id: &ChunkId) -> Option<&bytes::Bytes> {
        let chunks = self.levels.get(usize::from(level))?;
        chunks.iter().find(|(found, _)| found == id).map(|(_, bytes)| bytes)
    }

    /// Stages the levels up to `height`.
    fn stage(self, height: u8, batch: &mut Batch) {
        let levels = self.levels.into_iter().take(usize::from(height) + 1);
        for (id, bytes) in levels.flatten() {
            batch.add_named(id, bytes);
        }
    }
}

/// Old chunks of a level, one after the other, and what stands in their place.
struct Splice {
    /// The separator in front of the first.
    start: Vec<u8>,
    /// The separator behind the last; `None` at the end of the level.
    end: Option<Vec<u8>>,
    entries: Vec<(Vec<u8>, Child)>,
}

impl Splice {
    fn into_steps(self) -> impl Iterator<Item = Result<(Vec<u8>, Op<Child>)>> {
        let puts = self.entries.into_iter().map(|(key, child)| Ok((key, Op::Put(child))));
        std::iter::once(Ok((self.start, Op::RemoveTo(self.end)))).chain(puts)
    }
}

/// What one region replaces, while it is worked on.
#[derive(Default)]
struct Region {
    /// The old chunks that were visited.
    old: Vec<(Bounds, ChunkId)>,
    /// How many of them come before the first chunk that was passed over unread.
    unbroken: Option<usize>,
    new: Vec<(Vec<u8>, Child)>,
    made: Vec<(ChunkId, bytes::Bytes)>,
    end: Option<Vec<u8>>,
}

impl Region {
    fn add(&mut self, chunk: Option<Produced>) {
        if let Some(Produced { separator, child, bytes }) = chunk {
            self.new.push((separator, child));
            self.made.push((child.id, bytes));
        }
    }

    /// Adds an old chunk that stays, with another separator in front of it.
    fn add_moved(&mut self, separator: Vec<u8>, cursor: &Cursor) {
        let bounds = cursor.bounds();
        self.end.clone_from(&bounds.upper);
        self.old.push((bounds, cursor.id));
        self.new.push((separator, cursor.child()));
    }

    /// Hands the new chunks over and returns what changed, if anything did.
    fn into_splice(mut self, level: u8, fresh: &mut Fresh) -> Option<Splice> {
        let old_ids: HashSet<ChunkId> = self.old.iter().map(|(_, id)| *id).collect();
        for (id, bytes) in self.made {
            if !old_ids.contains(&id) {
                fresh.add(level, id, bytes);
            }
        }
        let before = self.unbroken.unwrap_or(self.old.len());
        let pairs = self.old.iter().take(before).zip(&self.new);
        let same = pairs
            .take_while(|((bounds, id), (separator, child))| {
                bounds.lower == *separator && *id == child.id
            })
            .count();
        if self.unbroken.is_none() && same == self.old.len() && same == self.new.len() {
            return None;
        }
        let behind_same = same.checked_sub(1).and_then(|last| self.old.get(last));
        let start = match behind_same {
            Some((bounds, _)) => bounds.upper.clone(),
            None => self.old.first().map(|(bounds, _)| bounds.lower.clone()),
        };
        let entries = self.new.split_off(same);
        // Behind the last chunk of a level there is no separator yet: the first new chunk brings it.
        let start = start.or_else(|| entries.first().map(|(separator, _)| separator.clone()))?;
        Some(Splice { start, end: self.end, entries })
    }
}

/// Applies a script to one level; returns what it replaces, from which the script of the level above is made.
fn rechunk<L: Level>(
    mut chunker: L,
    level: u8,
    script: &mut Script<impl Steps<L::Item>, L::Item>,
    (tree, fresh): (&mut OldTree<'_>, &mut Fresh),
) -> Result<Vec<Splice>> {
    let mut splices = Vec::new();
    while let Some(key) = script.next_key() {
        let mut cursor = tree.seek(level, key)?;
        let mut region = Region::default();
        let mut bounds = cursor.bounds();
        chunker.begin(&bounds.lower);
        loop {
            let chunk = tree.read_at(&cursor)?;
            feed(&mut chunker, (&chunk, &bounds), script, &mut region)?;
            let upper = bounds.upper.clone();
            region.old.push((bounds, cursor.id));
            let (next, ahead) = match behind(&mut chunker, upper, script, &mut region)? {
                Behind::End => {
                    region.add(chunker.finish());
                    break;
                }
                Behind::Chunk(next) => (next, None),
                Behind::Removed(next) => {
                    let found = tree.seek(level, &next)?;
                    bounds = found.bounds();
                    if bounds.lower != next {
                        // Some entries of that chunk stay.
                        cursor = found;
                        continue;
                    }
                    (next, Some(found))
                }
            };
            let is_done = chunker.is_between_chunks() && !falls_into(script, tree, level, &next)?;
            let separator = if is_done { chunker.next_separator(&next) } else { Vec::new() };
            if is_done && separator == next {
                region.end = Some(next);
                break;
            }
            cursor = match ahead {
                Some(found) => found,
                None => tree.next(cursor)?,
            };
            if is_done {
                region.add_moved(separator, &cursor);
                break;
            }
            bounds = cursor.bounds();
        }
        splices.extend(region.into_splice(level, fresh));
    }
    Ok(splices)
}

/// Feeds the chunker with what becomes of an old chunk's entries.
fn feed<L: Level>(
    chunker: &mut L,
    (chunk, bounds): (&Chunk, &Bounds),
    script: &mut Script<impl Steps<L::Item>, L::Item>,
    region: &mut Region,
) -> Result<()> {
    L::each_entry(chunk, &bounds.lower, |key, item| {
        let verdict = script.pass(key, |key, item| region.add(chunker.push(key, item)))?;
        if matches!(verdict, Verdict::Keep) {
            region.add(chunker.push(key, &item));
        }
        Ok(())
    })?;
    let upper = bounds.upper.as_deref();
    script.take_below(upper, |key, item| region.add(chunker.push(key, item)))
}

/// What a region finds behind a chunk.
enum Behind {
    /// Nothing that stays.
    End,
    /// The next chunk, with this separator in front of it.
    Chunk(Vec<u8>),
    /// Chunks that are removed, up to this key.
    Removed(Vec<u8>),
}

/// Looks behind the chunk that ends at `upper`; puts what stands in place of chunks that are removed whole.
fn behind<L: Level>(
    chunker: &mut L,
    upper: Option<Vec<u8>>,
    script: &mut Script<impl Steps<L::Item>, L::Item>,
    region: &mut Region,
) -> Result<Behind> {
    let Some(upper) = upper else {
        return Ok(Behind::End);
    };
    if !script.removed().covers(&upper) {
        return Ok(Behind::Chunk(upper));
    }
    region.unbroken.get_or_insert(region.old.len());
    script.take_removed(|key, item| region.add(chunker.push(key, item)))?;
    Ok(match script.removed() {
        Reach::End => Behind::End,
        Reach::Key(end) => Behind::Removed(end.clone()),
    })
}

/// Tells whether the next step is about the chunk with this separator in front of it.
fn falls_into<T>(
    script: &Script<impl Steps<T>, T>,
    tree: &mut OldTree<'_>,
    level: u8,
    separator: &[u8],
) -> Result<bool> {
    match script.next_key() {
        Some(key) => Ok(tree.seek(level, key)?.bounds().lower == separator),
        None => Ok(false),
    }
}
