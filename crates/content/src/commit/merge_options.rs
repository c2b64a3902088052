//! The options of a merge: its scope, and the side that wins each conflict.

use std::collections::BTreeMap;

use crate::NodePath;

/// One of the two sides of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MergeSide {
    /// The state being merged: that of the branch, or the edits of a session
    /// ([`MergeConflict::ours`](crate::MergeConflict::ours)).
    Ours,
    /// The existing state: that of the branch that is merged into
    /// ([`MergeConflict::theirs`](crate::MergeConflict::theirs)).
    Theirs,
}

/// The scope of a merge of a branch, and the decisions about conflicts.
#[derive(Debug, Clone, Default)]
pub struct MergeOptions {
    /// The paths to merge: these nodes with everything below them, and the folders that the branch created above them.
    /// Everything if empty.
    pub included_paths: Vec<NodePath>,
    /// The side that wins a conflict for which `decisions` has no entry; if `None`, such conflicts are errors.
    pub default_side: Option<MergeSide>,
    /// The side that wins conflicts at a node and below it; the nearest decision above a conflict applies.
    pub decisions: BTreeMap<NodePath, MergeSide>,
}

impl MergeOptions {
    /// Returns true if a node is in the scope of the merge.
    pub(crate) fn is_included(&self, path: &NodePath) -> bool {
        self.included_paths.is_empty()
            || self.included_paths.iter().any(|included_path| path.is_within(included_path))
    }

    /// Returns the side that wins a conflict at a node; `None` without a decision.
    pub(crate) fn decided_side(&self, path: &NodePath) -> Option<MergeSide> {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            if let Some(side) = self.decisions.get(&path) {
                return Some(*side);
            }
            at = path.parent();
        }
        self.default_side
    }
}
