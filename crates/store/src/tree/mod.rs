//! The persistent sorted map: equal content has an equal root.
//!
//! In: records, sorted for a bulk build, as a set of edits, or as a stream for a whole range. Out: lookups, ranges,
//! counts, ranks, differences and merges of maps, all read in place from chunks.
//!
//! Invariants
//! * The root is a function of the content, never of the order of edits.
//! * An edit reads and writes only the paths it touches; the content of a removed range is not read.
//! * A difference loads only chunks that differ, and their neighbors where chunk limits moved.
//! * A walk holds the chunks of its path and, where it reads ahead, a bounded window, however long the walk is.
//! * The work of a walk is proportional to the number of chunks, also in a damaged tree.
//!
//! Not here: the storage of chunks (`local`). The format is `docs/formats/tree.md`.

mod builder;
mod cursor;
mod diff;
mod edit;
mod edit_script;
mod interior;
mod leaf;
mod level_chunker;
mod lookup;
mod merge;
mod range_edit;
mod rank;
mod read_ahead;
mod scan;
mod splitter;
mod verification;

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::chunk::{Chunk, ChunkKind};
use crate::chunk_batch::{ChunkBatch, StagedView};
use crate::chunk_store::ReadChunks;
use crate::error::{Error, Result};
use crate::id::ChunkId;

pub use diff::{MapChange, MapDiff};
pub(crate) use interior::check_interior_chunk;
pub(crate) use leaf::check_leaf_chunk;
pub use merge::{ConflictResolution, MapMerge, MapMergeConflict, MapMergeResult, MergeStep};
pub use scan::MapScan;
pub(crate) use verification::{ExpectedChild, TreeFault, check_tree_chunk};

use edit_script::EditOp;
use interior::InteriorView;
use leaf::LeafView;
use lookup::PrefetchedChunks;
use scan::ScanDirection;

/// The maximum length of a key in bytes.
pub const MAX_KEY_BYTES: usize = 2_048;
/// The maximum length of an inline value in bytes; longer ones go into a body.
pub const MAX_VALUE_BYTES: usize = 16_384;

/// The value of a key: inline bytes, and optionally a body beside them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MapValue {
    /// The inline bytes, shared with the chunk they were read from.
    pub bytes: Bytes,
    /// The body, written with [`body::write`](crate::body::write_body).
    pub body: Option<ChunkId>,
}

/// A persistent sorted map, identified by its root chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SortedMap {
    root: Option<ChunkId>,
}

impl SortedMap {
    /// The map without records.
    pub const EMPTY_MAP: Self = Self { root: None };

    /// Creates a map from its root chunk; `None` is the empty map.
    #[must_use]
    pub const fn from_root(root: Option<ChunkId>) -> Self {
        Self { root }
    }

    /// Returns the root chunk; `None` for the empty map.
    #[must_use]
    pub const fn root(&self) -> Option<ChunkId> {
        self.root
    }

    /// Returns true if the map has no records.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Builds a map from records in strictly ascending order of keys, staging its chunks.
    ///
    /// # Errors
    /// [`Error::Unsorted`], or [`Error::TooLong`] for a key or value beyond its limit.
    pub fn build(
        batch: &mut ChunkBatch,
        records: impl Iterator<Item = (Vec<u8>, MapValue)>,
    ) -> Result<Self> {
        builder::build_map(batch, records.map(Ok))
    }

    /// Returns the value of `key`, searched in place: one chunk per level is read.
    ///
    /// # Errors
    /// A failed read.
    pub fn get(&self, reads: &dyn ReadChunks, key: &[u8]) -> Result<Option<MapValue>> {
        let Some(mut id) = self.root else {
            return Ok(None);
        };
        let mut below = None;
        loop {
            let chunk = reads.read_chunk(&id)?;
            match TreeNode::from_chunk(&chunk, &id, below)? {
                TreeNode::Leaf(leaf) => {
                    let record_index = leaf.find_key(key).ok();
                    return Ok(record_index.map(|index| leaf.value(&chunk, index)));
                }
                TreeNode::Interior(interior) => {
                    id = interior.child(interior.find_child(key));
                    below = Some(interior.level());
                }
            }
        }
    }

    /// Returns the records of a range in order, read as the iterator advances.
    #[must_use]
    pub fn range<'a>(
        &self,
        reads: &'a dyn ReadChunks,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> MapScan<'a> {
        MapScan::new(reads, self.root, range, ScanDirection::Forward)
    }

    /// Applies edits (`None` deletes) and stages the chunks of the new map. Chunks are looked up in `batch` first, then
    /// in `reads`, so that several edits can follow each other in one batch.
    ///
    /// The root equals that of a bulk build of the same content. An edit that changes nothing returns the same map.
    ///
    /// # Errors
    /// [`Error::TooLong`] for a key or value beyond its limit, or a failed read.
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
            edit::prepare_edit(*self, &warm, steps)?
        };
        edited.stage_chunks(batch)
    }

    /// Returns the differences of `other`, in the order of keys; subtrees with equal hashes are never read.
    #[must_use]
    pub fn diff<'a>(&self, other: &Self, reads: &'a dyn ReadChunks) -> MapDiff<'a> {
        MapDiff::new(reads, self.root, other.root)
    }

    /// Returns the merge of each key that `ours` or `theirs` changed since both were equal to this map, in the order of
    /// keys. Only chunks that differ from this map are read.
    #[must_use]
    pub fn merge<'a>(&self, ours: &Self, theirs: &Self, reads: &'a dyn ReadChunks) -> MapMerge<'a> {
        MapMerge::new(*self, *ours, *theirs, reads)
    }

    /// Returns the number of records, from the counts in the root chunk.
    ///
    /// # Errors
    /// A failed read.
    pub fn count_records(&self, reads: &dyn ReadChunks) -> Result<u64> {
        let Some(id) = self.root else {
            return Ok(0);
        };
        let chunk = reads.read_chunk(&id)?;
        Ok(TreeNode::from_chunk(&chunk, &id, None)?.record_count())
    }
}

/// A chunk of a tree, by its kind.
enum TreeNode<'a> {
    Leaf(LeafView<'a>),
    Interior(InteriorView<'a>),
}

impl<'a> TreeNode<'a> {
    /// Interprets a chunk as a part of a tree. `parent` is the level of the chunk that referred to it: levels must
    /// decrease, so that damaged references can never lead in a circle.
    fn from_chunk(chunk: &'a Chunk, id: &ChunkId, parent: Option<u8>) -> Result<Self> {
        let node = match chunk.kind() {
            ChunkKind::Leaf => Self::Leaf(LeafView::view_chunk(chunk)),
            ChunkKind::Interior => Self::Interior(InteriorView::view_chunk(chunk)),
            ChunkKind::Body | ChunkKind::BodyList | ChunkKind::Root => {
                let expected = "part of a tree";
                return Err(Error::ChunkKindMismatch { id: *id, expected });
            }
        };
        if parent.is_some_and(|parent| node.level() + 1 != parent) {
            let fault = "it is at the wrong level of a tree";
            return Err(Error::ChunkDamaged { id: *id, fault });
        }
        Ok(node)
    }

    /// Returns the number of records in and below the chunk.
    fn record_count(&self) -> u64 {
        match self {
            Self::Leaf(leaf) => leaf.len() as u64,
            Self::Interior(interior) => interior.total_records(),
        }
    }

    fn level(&self) -> u8 {
        match self {
            Self::Leaf(_) => 0,
            Self::Interior(interior) => interior.level(),
        }
    }
}

/// Returns an error for records beyond the limits of the format.
fn check_record_limits(key: &[u8], value: &MapValue) -> Result<()> {
    let limits = [("key", key.len(), MAX_KEY_BYTES), ("value", value.bytes.len(), MAX_VALUE_BYTES)];
    for (what, length, limit) in limits {
        if length > limit {
            return Err(Error::TooLong { what, length, limit });
        }
    }
    Ok(())
}

/// Returns the length of the common prefix of two keys.
fn common_prefix_length(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}
