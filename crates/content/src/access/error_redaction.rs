//! Removes from the error of a refused commit everything that its viewer may not see.
//!
//! In: the error, and the two states that it concerns as the viewer sees them. Out: the error without paths and values
//! of items that are hidden in both states.

use crate::node_type::ConstraintViolation;
use crate::{Error, MergeConflict, Node, NodePath, Property, Snapshot};

/// The base state of a session and the newest state, as the session's viewer sees them.
pub(crate) struct ErrorRedactor(pub(crate) [Snapshot; 2]);

impl ErrorRedactor {
    /// Returns an error without the parts that the viewer may not see.
    pub(crate) fn redact_error(&self, error: Error) -> Error {
        match error {
            Error::ConstraintViolations(violations) => Error::ConstraintViolations(
                violations.into_iter().map(|violation| self.redact_violation(violation)).collect(),
            ),
            Error::Conflicts(conflicts) => Error::Conflicts(
                conflicts.into_iter().map(|conflict| self.redact_conflict(conflict)).collect(),
            ),
            Error::NotUnique { property, path, existing_path } => Error::NotUnique {
                property,
                path,
                existing_path: existing_path.filter(|holder| self.is_visible(holder)),
            },
            error => error,
        }
    }

    fn redact_violation(&self, mut violation: ConstraintViolation) -> ConstraintViolation {
        let before = violation.referrers.len() + violation.conflicting_paths.len();
        violation
            .referrers
            .retain(|referrer| self.is_property_visible(&referrer.path, &referrer.property));
        violation.conflicting_paths.retain(|path| self.is_visible(path));
        violation.hidden_count =
            before - violation.referrers.len() - violation.conflicting_paths.len();
        violation
    }

    fn redact_conflict(&self, mut conflict: MergeConflict) -> MergeConflict {
        if !self.is_visible(&conflict.path) {
            let mut above = conflict.path.parent();
            while let Some(path) = above.take_if(|path| !self.is_visible(path)) {
                above = path.parent();
            }
            let path = above.unwrap_or_else(NodePath::root);
            return MergeConflict {
                last_change: conflict.last_change,
                ..MergeConflict::for_node(&path, conflict.kind)
            };
        }
        if let Some(name) = &conflict.property {
            let [base, head] = &self.0;
            let stored = [(base, &mut conflict.base), (head, &mut conflict.theirs)];
            for (snapshot, value) in stored {
                let node = snapshot.node(&conflict.path).ok().flatten();
                *value = node.and_then(|node| node.property(name)).filter(|_| value.is_some());
            }
        } else {
            // The paths of a node that both sides moved.
            for side in [&mut conflict.base, &mut conflict.theirs] {
                side.take_if(|target| !self.is_visible_target(target));
            }
        }
        conflict
    }

    /// Returns true if a value is the path of a visible node.
    fn is_visible_target(&self, target: &Property) -> bool {
        let path = target.first().map(|path| NodePath::new(&path.to_text()));
        path.is_some_and(|path| path.is_ok_and(|path| self.is_visible(&path)))
    }

    fn is_property_visible(&self, path: &NodePath, name: &str) -> bool {
        let holds = |node: &Node| node.property(name).is_some();
        self.0.iter().any(|snapshot| matches!(snapshot.node(path), Ok(Some(node)) if holds(&node)))
    }

    /// Returns true if a node is visible in one of the states. An unreadable node is not visible.
    fn is_visible(&self, path: &NodePath) -> bool {
        self.0.iter().any(|snapshot| matches!(snapshot.node(path), Ok(Some(_))))
    }
}
