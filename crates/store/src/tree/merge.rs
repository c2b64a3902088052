//! The three-way merge of maps: two lazy differences from a common base, joined by key.
//!
//! In: the base and the two maps derived from it. Out: one step for each key that either side changed; conflicts are
//! values, and the caller decides about them.
//!
//! Invariants
//! * The cost is proportional to the changes of both sides, never to the size of the maps.
//! * The same change on both sides is not a conflict.

use std::cmp::Ordering;
use std::iter::Peekable;

use bytes::Bytes;

use super::diff::{MapChange, MapDiff};
use super::edit;
use super::edit_script::EditOp;
use super::sorted_map::SortedMap;
use crate::chunk::{MapValue, check_record_limits};
use crate::error::Result;
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_reader::ReadChunks;

impl SortedMap {
    /// Returns the merge of each key that `ours` or `theirs` changed since both were equal to this map, in the order of
    /// keys. Only chunks that differ from this map are read.
    #[must_use]
    pub fn merge<'a>(&self, ours: &Self, theirs: &Self, reads: &'a dyn ReadChunks) -> MapMerge<'a> {
        MapMerge::new(*self, *ours, *theirs, reads)
    }
}

/// A key that the two sides changed differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapMergeConflict {
    /// The key.
    pub key: Bytes,
    /// The value in the base; `None` if absent.
    pub base: Option<MapValue>,
    /// Our value; `None` if our side deleted the key.
    pub ours: Option<MapValue>,
    /// Their value; `None` if their side deleted the key.
    pub theirs: Option<MapValue>,
}

/// The merge of one key. A [`MapChange`] goes from the base (left) to the changed side (right).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeStep {
    /// Only our side changed it.
    Ours(MapChange),
    /// Only their side changed it.
    Theirs(MapChange),
    /// Both sides made the same change.
    Same(MapChange),
    /// The two sides made different changes.
    Conflict(MapMergeConflict),
}

/// The resolution of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictResolution {
    /// Our value is retained.
    Ours,
    /// Their value replaces ours.
    Theirs,
    /// A new value replaces ours.
    Replace(MapValue),
    /// The key is deleted.
    Delete,
    /// The conflict is not resolved: our value is retained, and the conflict is reported.
    Unresolved,
}

/// The result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapMergeResult {
    /// Our map with the changes of their side.
    pub map: SortedMap,
    /// The conflicts that the resolver did not resolve, in the order of keys.
    pub unresolved: Vec<MapMergeConflict>,
}

/// The steps of a three-way merge, in the order of keys. Ends after the first error.
pub struct MapMerge<'a> {
    maps: [SortedMap; 3],
    chunk_reader: &'a dyn ReadChunks,
    our_changes: Peekable<MapDiff<'a>>,
    their_changes: Peekable<MapDiff<'a>>,
    has_failed: bool,
}

impl<'a> MapMerge<'a> {
    fn new(base: SortedMap, ours: SortedMap, theirs: SortedMap, reads: &'a dyn ReadChunks) -> Self {
        Self {
            maps: [base, ours, theirs],
            chunk_reader: reads,
            our_changes: base.diff(&ours, reads).peekable(),
            their_changes: base.diff(&theirs, reads).peekable(),
            has_failed: false,
        }
    }

    /// Applies the changes of their side to our map, calls `resolve` for each conflict, and stages the chunks of the
    /// result. Steps already taken from the iterator are included. The changes are streamed; unresolved conflicts are
    /// held in memory.
    ///
    /// If one side equals the base, the other one is the result, and nothing is read.
    ///
    /// # Errors
    /// A failed read, [`Error::TooLong`](crate::Error::TooLong) for a resolution beyond the limits, or the error of
    /// `resolve`; nothing is staged then.
    pub fn apply_merge(
        self,
        batch: &mut ChunkBatch,
        mut resolve: impl FnMut(&MapMergeConflict) -> Result<ConflictResolution>,
    ) -> Result<MapMergeResult> {
        let [base, ours, theirs] = self.maps;
        let mut unresolved = Vec::new();
        if theirs == base || theirs == ours {
            return Ok(MapMergeResult { map: ours, unresolved });
        }
        if ours == base {
            return Ok(MapMergeResult { map: theirs, unresolved });
        }
        let reads = self.chunk_reader;
        let steps = Self::new(base, ours, theirs, reads).filter_map(|step| {
            let edit = step.and_then(|step| match step {
                MergeStep::Ours(_) | MergeStep::Same(_) => Ok(None),
                MergeStep::Theirs(change) => Ok(Some((change.key, change.right))),
                MergeStep::Conflict(conflict) => {
                    let resolution = resolve(&conflict)?;
                    apply_resolution(conflict, resolution, &mut unresolved)
                }
            });
            let edit = edit.transpose()?;
            Some(edit.map(|(key, value)| (key.to_vec(), value.map_or(EditOp::Remove, EditOp::Put))))
        });
        let map = edit::edit_map(ours, reads, batch, steps)?;
        Ok(MapMergeResult { map, unresolved })
    }

    fn next_step(&mut self) -> Result<Option<MergeStep>> {
        let order = match (self.our_changes.peek(), self.their_changes.peek()) {
            (None, None) => return Ok(None),
            (Some(Ok(ours)), Some(Ok(theirs))) => ours.key.cmp(&theirs.key),
            // A side that failed is taken first.
            (Some(Err(_)), _) | (Some(_), None) => Ordering::Less,
            (_, Some(_)) => Ordering::Greater,
        };
        let step = match order {
            Ordering::Less => self.our_changes.next().transpose()?.map(MergeStep::Ours),
            Ordering::Greater => self.their_changes.next().transpose()?.map(MergeStep::Theirs),
            Ordering::Equal => {
                let (ours, theirs) = (self.our_changes.next(), self.their_changes.next());
                ours.transpose()?
                    .zip(theirs.transpose()?)
                    .map(|(ours, theirs)| join_changes(ours, theirs))
            }
        };
        Ok(step)
    }
}

/// Returns the edit of our map for a resolution.
fn apply_resolution(
    conflict: MapMergeConflict,
    resolution: ConflictResolution,
    unresolved: &mut Vec<MapMergeConflict>,
) -> Result<Option<(Bytes, Option<MapValue>)>> {
    match resolution {
        ConflictResolution::Ours => Ok(None),
        ConflictResolution::Theirs => Ok(Some((conflict.key, conflict.theirs))),
        ConflictResolution::Delete => Ok(Some((conflict.key, None))),
        ConflictResolution::Replace(value) => {
            check_record_limits(&conflict.key, &value)?;
            Ok(Some((conflict.key, Some(value))))
        }
        ConflictResolution::Unresolved => {
            unresolved.push(conflict);
            Ok(None)
        }
    }
}

/// Joins the changes that both sides made to one key.
fn join_changes(ours: MapChange, theirs: MapChange) -> MergeStep {
    if ours.right == theirs.right {
        return MergeStep::Same(ours);
    }
    MergeStep::Conflict(MapMergeConflict {
        key: ours.key,
        base: ours.left,
        ours: ours.right,
        theirs: theirs.right,
    })
}

impl Iterator for MapMerge<'_> {
    type Item = Result<MergeStep>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.next_step().transpose();
        self.has_failed = matches!(next, Some(Err(_)));
        next
    }
}

impl std::fmt::Debug for MapMerge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapMerge").field("has_failed", &self.has_failed).finish_non_exhaustive()
    }
}
