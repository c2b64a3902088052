//! The conflicts that a merge collects.

use crate::commit::conflict::MergeConflict;
use crate::commit::merge_options::{MergeOptions, MergeSide};

/// The conflicts of a merge, with the winning side of those that have a decision.
#[derive(Debug)]
pub(crate) struct MergeConflicts<'a> {
    options: &'a MergeOptions,
    /// Conflicts without a decision.
    pub(crate) unresolved: Vec<MergeConflict>,
    /// Conflicts with a decision.
    pub(crate) resolved: Vec<(MergeConflict, MergeSide)>,
}

impl<'a> MergeConflicts<'a> {
    pub(crate) fn new(choice: &'a MergeOptions) -> Self {
        Self { options: choice, unresolved: Vec::new(), resolved: Vec::new() }
    }

    /// Records a conflict and returns the winning side; ours if there is no decision, because the merge fails then.
    pub(crate) fn resolve(&mut self, conflict: MergeConflict) -> MergeSide {
        match self.options.decided_side(&conflict.path) {
            Some(side) => {
                self.resolved.push((conflict, side));
                side
            }
            None => {
                self.unresolved.push(conflict);
                MergeSide::Ours
            }
        }
    }
}
