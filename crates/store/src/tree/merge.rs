//! The three-way merge of maps: two lazy differences from a common base, joined by key.
//!
//! In: the base and the two maps that grew from it.
//! Out: one step for each key that either side changed; conflicts are values, and the caller decides about them.
//!
//! Invariants
//! * The cost follows the changes of both sides, never the size of the maps.
//! * Two sides that made the same change are not in conflict.

use std::cmp::Ordering;
use std::iter::Peekable;

use bytes::Bytes;

use super::script::Op;
use super::{Change, Diff, Map, Value, check_record, edit};
use crate::batch::Batch;
use crate::chunk_store::ReadChunks;
use crate::error::Result;

/// A key that both sides changed, each in its own way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The key.
    pub key: Bytes,
    /// What both sides began with; `None` if absent.
    pub base: Option<Value>,
    /// What our side has; `None` if it deleted the key.
    pub ours: Option<Value>,
    /// What their side has; `None` if it deleted the key.
    pub theirs: Option<Value>,
}

/// What became of one key. A [`Change`] goes from the base (left) to the changed side (right).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeStep {
    /// Only our side changed it.
    Ours(Change),
    /// Only their side changed it.
    Theirs(Change),
    /// Both sides changed it to the same.
    Same(Change),
    /// The sides disagree.
    Conflict(Conflict),
}

/// What to do about a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// What our side has stays.
    Ours,
    /// What their side has takes its place.
    Theirs,
    /// A new value takes its place.
    Write(Value),
    /// The key is deleted.
    Delete,
    /// Nobody knows: what our side has stays, and the conflict is reported.
    Unresolved,
}

/// What a merge made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Our map with what their side changed.
    pub map: Map,
    /// The conflicts that the resolver left, in the order of keys.
    pub unresolved: Vec<Conflict>,
}

/// The steps of a three-way merge, in the order of keys. Ends after the first error.
pub struct Merge<'a> {
    maps: [Map; 3],
    reads: &'a dyn ReadChunks,
    ours: Peekable<Diff<'a>>,
    theirs: Peekable<Diff<'a>>,
    has_failed: bool,
}

impl<'a> Merge<'a> {
    pub(super) fn new(base: Map, ours: Map, theirs: Map, reads: &'a dyn ReadChunks) -> Self {
        Self {
            maps: [base, ours, theirs],
            reads,
            ours: base.diff(&ours, reads).peekable(),
            theirs: base.diff(&theirs, reads).peekable(),
            has_failed: false,
        }
    }

    /// Applies what their side changed to our map, asks `resolve` about each conflict, and stages the chunks of the
    /// result. Steps that were taken before are taken again. The changes stream through; conflicts without a resolution
    /// are held.
    ///
    /// Where one side is the base, the other one is the result, and nothing is read.
    ///
    /// # Errors
    /// A failed read, [`Error::TooLong`](crate::Error::TooLong) for a resolution beyond the limits, or what `resolve`
    /// fails with; nothing is staged then.
    pub fn apply(
        self,
        batch: &mut Batch,
        mut resolve: impl FnMut(&Conflict) -> Result<Resolution>,
    ) -> Result<Merged> {
        let [base, ours, theirs] = self.maps;
        let mut unresolved = Vec::new();
        if theirs == base || theirs == ours {
            return Ok(Merged { map: ours, unresolved });
        }
        if ours == base {
            return Ok(Merged { map: theirs, unresolved });
        }
        let reads = self.reads;
        let steps = Self::new(base, ours, theirs, reads).filter_map(|step| {
            let edit = step.and_then(|step| match step {
                MergeStep::Ours(_) | MergeStep::Same(_) => Ok(None),
                MergeStep::Theirs(change) => Ok(Some((change.key, change.right))),
                MergeStep::Conflict(conflict) => {
                    let resolution = resolve(&conflict)?;
                    settle(conflict, resolution, &mut unresolved)
                }
            });
            let edit = edit.transpose()?;
            Some(edit.map(|(key, value)| (key.to_vec(), value.map_or(Op::Remove, Op::Put))))
        });
        let map = edit::edit(ours, reads, batch, steps)?;
        Ok(Merged { map, unresolved })
    }

    fn advance(&mut self) -> Result<Option<MergeStep>> {
        let order = match (self.ours.peek(), self.theirs.peek()) {
            (None, None) => return Ok(None),
            (Some(Ok(ours)), Some(Ok(theirs))) => ours.key.cmp(&theirs.key),
            // What failed on a side is taken first.
            (Some(Err(_)), _) | (Some(_), None) => Ordering::Less,
            (_, Some(_)) => Ordering::Greater,
        };
        let step = match order {
            Ordering::Less => self.ours.next().transpose()?.map(MergeStep::Ours),
            Ordering::Greater => self.theirs.next().transpose()?.map(MergeStep::Theirs),
            Ordering::Equal => {
                let (ours, theirs) = (self.ours.next(), self.theirs.next());
                ours.transpose()?.zip(theirs.transpose()?).map(|(ours, theirs)| join(ours, theirs))
            }
        };
        Ok(step)
    }
}

/// Returns what a resolution does to our map.
fn settle(
    conflict: Conflict,
    resolution: Resolution,
    unresolved: &mut Vec<Conflict>,
) -> Result<Option<(Bytes, Option<Value>)>> {
    match resolution {
        Resolution::Ours => Ok(None),
        Resolution::Theirs => Ok(Some((conflict.key, conflict.theirs))),
        Resolution::Delete => Ok(Some((conflict.key, None))),
        Resolution::Write(value) => {
            check_record(&conflict.key, &value)?;
            Ok(Some((conflict.key, Some(value))))
        }
        Resolution::Unresolved => {
            unresolved.push(conflict);
            Ok(None)
        }
    }
}

/// Joins the changes that both sides made to one key.
fn join(ours: Change, theirs: Change) -> MergeStep {
    if ours.right == theirs.right {
        return MergeStep::Same(ours);
    }
    MergeStep::Conflict(Conflict {
        key: ours.key,
        base: ours.left,
        ours: ours.right,
        theirs: theirs.right,
    })
}

impl Iterator for Merge<'_> {
    type Item = Result<MergeStep>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.advance().transpose();
        self.has_failed = matches!(next, Some(Err(_)));
        next
    }
}

impl std::fmt::Debug for Merge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merge").field("has_failed", &self.has_failed).finish_non_exhaustive()
    }
}
