//! Edits, level by level: only the chunks that an edit touches are read and written.
//!
//! A region begins at the first chunk that an edit falls into and ends where a new chunk ends together with an old
//! one: from there on the level goes on as before. What a region replaces are the edits of the level above.
//!
//! Invariants
//! * A level's chunks are those of a bulk build of the same entries.
//! * Only chunks that belong to the new map are staged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter::Peekable;

use super::build::{InteriorChunker, LeafChunker, Produced, Tower};
use super::interior::{Child, Interior};
use super::{Map, Node, Value, build, check_record};
use crate::batch::{Batch, Staged};
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::error::Result;
use crate::id::ChunkId;

type Edits<T> = BTreeMap<Vec<u8>, Option<T>>;

/// Applies edits to a map and stages the chunks of the result.
pub(super) fn edit(
    map: Map,
    reads: &dyn ReadChunks,
    batch: &mut Batch,
    edits: Edits<Value>,
) -> Result<Map> {
    for (key, value) in &edits {
        check_record(key, value.as_ref().unwrap_or(&Value::default()))?;
    }
    let Some(root) = map.root else {
        let records = edits.into_iter();
        let records = records.filter_map(|(key, value)| Some((key, value?)));
        return build::build(batch, records);
    };
    if edits.is_empty() {
        return Ok(map);
    }
    let mut tree = OldTree::open(root, Staged::new(batch, reads))?;
    let mut fresh = Fresh::default();
    let mut changes = rechunk(LeafChunker::new(), 0, edits, &mut tree, &mut fresh)?;
    let mut level = 0;
    while level < tree.height && !changes.is_empty() {
        level += 1;
        let chunker = InteriorChunker::new(level);
        changes = rechunk(chunker, level, changes, &mut tree, &mut fresh)?;
    }
    if changes.is_empty() {
        return Ok(map);
    }
    changes.entry(Vec::new()).or_insert(Some(tree.root_child()));
    let tops: Vec<(Vec<u8>, Child)> =
        changes.into_iter().filter_map(|(separator, child)| Some((separator, child?))).collect();
    match tops.as_slice() {
        [] => Ok(Map::EMPTY),
        [(_, child)] => {
            let (root, height) = lowest_root(child.id, &mut tree, &fresh)?;
            fresh.stage(height, batch);
            Ok(Map::from_root(Some(root)))
        }
        _ => {
            let height = tree.height;
            let mut tower = Tower::new(height);
            fresh.stage(height, batch);
            for (separator, child) in &tops {
                tower.push(separator, *child, batch);
            }
            Ok(Map::from_root(tower.finish(batch)))
        }
    }
}

/// Goes down from a lone top while it has a single child: the root is the lowest level's only chunk.
fn lowest_root(top: ChunkId, tree: &mut OldTree<'_>, fresh: &Fresh) -> Result<(ChunkId, u8)> {
    let (mut id, mut level) = (top, tree.height);
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
struct Fresh {
    levels: Vec<Vec<Produced>>,
}

impl Fresh {
    fn add(&mut self, level: u8, chunk: Produced) {
        let level = usize::from(level);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        if let Some(chunks) = self.levels.get_mut(level) {
            chunks.push(chunk);
        }
    }

    fn find(&self, level: u8, id: &ChunkId) -> Option<&bytes::Bytes> {
        let chunks = self.levels.get(usize::from(level))?;
        let found = chunks.iter().find(|chunk| chunk.child.id == *id)?;
        Some(&found.bytes)
    }

    /// Stages the levels up to `height`.
    fn stage(&mut self, height: u8, batch: &mut Batch) {
        let levels = self.levels.drain(..).take(usize::from(height) + 1);
        for chunk in levels.flatten() {
            batch.add_named(chunk.child.id, chunk.bytes);
        }
    }
}

/// One level that is cut anew from a mix of old entries and edits.
trait Level {
    /// What an entry holds beside its key.
    type Item;

    /// Starts at a chunk with this separator in front of it.
    fn begin(&mut self, separator: &[u8]);

    /// Visits the entries of an old chunk; `separator` stands in front of it.
    fn each_entry(chunk: &Chunk, separator: &[u8], visit: impl FnMut(&[u8], Self::Item));

    /// Adds an entry; returns the chunk that ends with it, if one does.
    fn push(&mut self, key: &[u8], item: &Self::Item) -> Option<Produced>;

    /// Ends the current chunk, if there is one.
    fn finish(&mut self) -> Option<Produced>;

    /// Tells whether the last entry ended a chunk.
    fn is_between_chunks(&self) -> bool;

    /// Returns what the separator in front of the next old chunk becomes.
    fn next_separator(&self, separator: &[u8]) -> Vec<u8>;
}

impl Level for LeafChunker {
    type Item = Value;

    fn begin(&mut self, separator: &[u8]) {
        self.begin(separator);
    }

    fn each_entry(chunk: &Chunk, _: &[u8], mut visit: impl FnMut(&[u8], Value)) {
        let leaf = super::Leaf::view(chunk);
        let mut key = Vec::new();
        for index in 0..leaf.len() {
            leaf.key_into(index, &mut key);
            visit(&key, leaf.value(chunk, index));
        }
    }

    fn push(&mut self, key: &[u8], value: &Value) -> Option<Produced> {
        self.push(key, &value.bytes, value.body)
    }

    fn finish(&mut self) -> Option<Produced> {
        self.finish()
    }

    fn is_between_chunks(&self) -> bool {
        self.is_empty()
    }

    fn next_separator(&self, separator: &[u8]) -> Vec<u8> {
        // Every key of the region is below the old separator, which the next chunk's first key begins with: the two
        // tell the same new separator.
        self.separator_before(separator).to_vec()
    }
}

impl Level for InteriorChunker {
    type Item = Child;

    fn begin(&mut self, _: &[u8]) {}

    fn each_entry(chunk: &Chunk, separator: &[u8], mut visit: impl FnMut(&[u8], Child)) {
        let interior = Interior::view(chunk);
        let mut key = separator.to_vec();
        for index in 0..interior.len() {
            if index > 0 {
                interior.separator_into(index, &mut key);
            }
            let id = interior.child(index);
            let count = interior.count(index);
            visit(&key, Child { id, count });
        }
    }

    fn push(&mut self, key: &[u8], child: &Child) -> Option<Produced> {
        self.push(key, *child)
    }

    fn finish(&mut self) -> Option<Produced> {
        self.finish()
    }

    fn is_between_chunks(&self) -> bool {
        self.is_empty()
    }

    fn next_separator(&self, separator: &[u8]) -> Vec<u8> {
        separator.to_vec()
    }
}

/// What one region replaces.
#[derive(Default)]
struct Region {
    old: Vec<(Vec<u8>, ChunkId)>,
    new: Vec<Produced>,
    /// An old chunk that stays, with another separator in front of it.
    moved: Option<(Vec<u8>, Child)>,
}

impl Region {
    /// Adds the differences between old and new to the edits of the level above.
    fn record(self, level: u8, changes: &mut Edits<Child>, fresh: &mut Fresh) {
        let old: HashMap<&[u8], ChunkId> =
            self.old.iter().map(|(separator, id)| (separator.as_slice(), *id)).collect();
        for separator in old.keys() {
            changes.insert(separator.to_vec(), None);
        }
        if let Some((separator, child)) = self.moved {
            changes.insert(separator, Some(child));
        }
        let old_ids: HashSet<ChunkId> = old.values().copied().collect();
        for chunk in self.new {
            if old.get(chunk.separator.as_slice()) == Some(&chunk.child.id) {
                changes.remove(&chunk.separator);
                continue;
            }
            changes.insert(chunk.separator.clone(), Some(chunk.child));
            if !old_ids.contains(&chunk.child.id) {
                fresh.add(level, chunk);
            }
        }
    }
}

/// Applies edits to one level; returns the edits of the level above.
fn rechunk<L: Level>(
    mut chunker: L,
    level: u8,
    edits: Edits<L::Item>,
    tree: &mut OldTree<'_>,
    fresh: &mut Fresh,
) -> Result<Edits<Child>> {
    let mut changes = Edits::new();
    let mut edits = edits.into_iter().peekable();
    while let Some((key, _)) = edits.peek() {
        let mut cursor = tree.seek(level, key)?;
        let mut region = Region::default();
        chunker.begin(&cursor.lower());
        loop {
            let (lower, upper) = (cursor.lower(), cursor.upper());
            let chunk = tree.read(&cursor.id, level)?;
            let within = std::iter::from_fn(|| {
                edits.next_if(|(key, _)| upper.as_ref().is_none_or(|upper| key < upper))
            });
            merge(&mut chunker, (&chunk, &lower), within.peekable(), &mut region.new);
            region.old.push((lower, cursor.id));
            let Some(upper) = upper else {
                region.new.extend(chunker.finish());
                break;
            };
            if chunker.is_between_chunks() {
                let is_next_edited = match edits.peek() {
                    Some((key, _)) => tree.seek(level, key)?.lower() == upper,
                    None => false,
                };
                if !is_next_edited {
                    let separator = chunker.next_separator(&upper);
                    if separator != upper {
                        cursor = tree.next(cursor)?;
                        region.old.push((upper, cursor.id));
                        region.moved = Some((separator, cursor.child()));
                    }
                    break;
                }
            }
            cursor = tree.next(cursor)?;
        }
        region.record(level, &mut changes, fresh);
    }
    Ok(changes)
}

/// Feeds the chunker with an old chunk's entries and the edits that fall into it.
fn merge<L: Level>(
    chunker: &mut L,
    (chunk, separator): (&Chunk, &[u8]),
    mut edits: Peekable<impl Iterator<Item = (Vec<u8>, Option<L::Item>)>>,
    made: &mut Vec<Produced>,
) {
    L::each_entry(chunk, separator, |key, item| {
        while let Some((key, edit)) = edits.next_if(|(edited, _)| edited.as_slice() < key) {
            made.extend(edit.and_then(|item| chunker.push(&key, &item)));
        }
        made.extend(match edits.next_if(|(edited, _)| edited == key) {
            Some((_, edit)) => edit.and_then(|item| chunker.push(key, &item)),
            None => chunker.push(key, &item),
        });
    });
    for (key, edit) in edits {
        made.extend(edit.and_then(|item| chunker.push(&key, &item)));
    }
}

/// The map before the edits. Each chunk is read once.
struct OldTree<'a> {
    root: ChunkId,
    height: u8,
    reads: Staged<'a>,
    known: HashMap<ChunkId, Chunk>,
}

impl<'a> OldTree<'a> {
    fn open(root: ChunkId, reads: Staged<'a>) -> Result<Self> {
        let mut tree = Self { root, height: 0, reads, known: HashMap::new() };
        let chunk = tree.load(&root)?;
        tree.height = Node::of(&chunk, &root, None)?.level();
        Ok(tree)
    }

    fn load(&mut self, id: &ChunkId) -> Result<Chunk> {
        if let Some(chunk) = self.known.get(id) {
            return Ok(chunk.clone());
        }
        let chunk = self.reads.read(id)?;
        self.known.insert(*id, chunk.clone());
        Ok(chunk)
    }

    /// Reads a chunk of a level.
    fn read(&mut self, id: &ChunkId, level: u8) -> Result<Chunk> {
        let chunk = self.load(id)?;
        Node::of(&chunk, id, level.checked_add(1))?;
        Ok(chunk)
    }

    fn root_child(&self) -> Child {
        let count = self.known.get(&self.root).map_or(0, |chunk| {
            if self.height == 0 {
                super::Leaf::view(chunk).len() as u64
            } else {
                Interior::view(chunk).total()
            }
        });
        Child { id: self.root, count }
    }

    /// Finds the chunk of a level that `key` falls into.
    fn seek(&mut self, level: u8, key: &[u8]) -> Result<Cursor> {
        let mut cursor = Cursor { path: Vec::new(), id: self.root };
        for above in (level + 1..=self.height).rev() {
            let chunk = self.read(&cursor.id, above)?;
            let index = Interior::view(&chunk).find(key);
            cursor.enter(chunk, index);
        }
        Ok(cursor)
    }

    /// Goes to the next chunk of the same level, which the caller knows to exist.
    fn next(&mut self, mut cursor: Cursor) -> Result<Cursor> {
        let mut depth = 0;
        while let Some((chunk, index)) = cursor.path.pop() {
            if index + 1 < Interior::view(&chunk).len() {
                cursor.enter(chunk, index + 1);
                break;
            }
            depth += 1;
        }
        for _ in 0..depth {
            let chunk = self.load(&cursor.id)?;
            Node::of(&chunk, &cursor.id, None)?;
            cursor.enter(chunk, 0);
        }
        Ok(cursor)
    }
}

/// A place on one level: the interior chunks above it, and which child each of them leads to.
struct Cursor {
    path: Vec<(Chunk, usize)>,
    id: ChunkId,
}

impl Cursor {
    fn enter(&mut self, chunk: Chunk, index: usize) {
        self.id = Interior::view(&chunk).child(index);
        self.path.push((chunk, index));
    }

    /// Returns the separator in front of the chunk.
    fn lower(&self) -> Vec<u8> {
        let mut key = Vec::new();
        if let Some((chunk, index)) = self.path.iter().rev().find(|(_, index)| *index > 0) {
            Interior::view(chunk).separator_into(*index, &mut key);
        }
        key
    }

    /// Returns the separator behind the chunk; `None` for the last one of its level.
    fn upper(&self) -> Option<Vec<u8>> {
        self.path.iter().rev().find_map(|(chunk, index)| {
            let interior = Interior::view(chunk);
            (index + 1 < interior.len()).then(|| {
                let mut key = Vec::new();
                interior.separator_into(index + 1, &mut key);
                key
            })
        })
    }

    /// Returns the chunk as its parent lists it.
    fn child(&self) -> Child {
        let count =
            self.path.last().map_or(0, |(chunk, index)| Interior::view(chunk).count(*index));
        Child { id: self.id, count }
    }
}
