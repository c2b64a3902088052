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

use super::{Change, Diff, Map, Value};
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

/// The steps of a three-way merge, in the order of keys. Ends after the first error.
pub struct Merge<'a> {
    ours: Peekable<Diff<'a>>,
    theirs: Peekable<Diff<'a>>,
    has_failed: bool,
}

impl<'a> Merge<'a> {
    pub(super) fn new(base: Map, ours: Map, theirs: Map, reads: &'a dyn ReadChunks) -> Self {
        Self {
            ours: base.diff(&ours, reads).peekable(),
            theirs: base.diff(&theirs, reads).peekable(),
            has_failed: false,
        }
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
