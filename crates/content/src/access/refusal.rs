//! What a refused commit tells its viewer: nothing about what that one may not see.
//!
//! In: the refusal, and the states that it is about as the viewer sees them. Out: the refusal without paths and values of
//! what is hidden in both.

use crate::types::Violation;
use crate::{Conflict, Error, Node, NodePath, Property, Snapshot};

/// The state that a session began with and the newest one, as its viewer sees them.
pub(crate) struct Seen(pub(crate) [Snapshot; 2]);

impl Seen {
    /// Returns a refusal as the viewer may know it.
    pub(crate) fn told(&self, error: Error) -> Error {
        match error {
            Error::Constraint(violations) => {
                Error::Constraint(violations.into_iter().map(|one| self.violation(one)).collect())
            }
            Error::Conflicts(conflicts) => {
                Error::Conflicts(conflicts.into_iter().map(|one| self.conflict(one)).collect())
            }
            Error::NotUnique { property, path, other } => {
                Error::NotUnique { property, path, other: other.filter(|other| self.sees(other)) }
            }
            error => error,
        }
    }

    fn violation(&self, mut violation: Violation) -> Violation {
        let before = violation.referrers.len() + violation.others.len();
        violation.referrers.retain(|one| self.sees_property(&one.path, &one.property));
        violation.others.retain(|one| self.sees(one));
        violation.unseen = before - violation.referrers.len() - violation.others.len();
        violation
    }

    fn conflict(&self, mut conflict: Conflict) -> Conflict {
        if !self.sees(&conflict.path) {
            let mut above = conflict.path.parent();
            while let Some(path) = above.take_if(|path| !self.sees(path)) {
                above = path.parent();
            }
            let path = above.unwrap_or_else(NodePath::root);
            return Conflict {
                changed: conflict.changed,
                ..Conflict::of_node(&path, conflict.kind)
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
            // Where the sides have a node that both moved.
            for place in [&mut conflict.base, &mut conflict.theirs] {
                place.take_if(|place| !self.sees_place(place));
            }
        }
        conflict
    }

    /// Tells whether a value is the path of a node that is seen.
    fn sees_place(&self, place: &Property) -> bool {
        let path = place.first().map(|path| NodePath::new(&path.to_text()));
        path.is_some_and(|path| path.is_ok_and(|path| self.sees(&path)))
    }

    fn sees_property(&self, path: &NodePath, name: &str) -> bool {
        let holds = |node: &Node| node.property(name).is_some();
        self.0.iter().any(|snapshot| matches!(snapshot.node(path), Ok(Some(node)) if holds(&node)))
    }

    /// Tells whether a node is seen in one of the states. What cannot be read is not.
    fn sees(&self, path: &NodePath) -> bool {
        self.0.iter().any(|snapshot| matches!(snapshot.node(path), Ok(Some(_))))
    }
}
