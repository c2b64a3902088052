//! The edits of a session to checked-in nodes: those that bypass the rule, and those of packages.
//!
//! A package can be installed over checked-in nodes: each one that it changes or adds is stored as a version.

use std::time::SystemTime;

use super::checked_in::{
    IS_CHECKED_OUT, NestedVersionables, is_checked_in_body_node, is_checked_in_subtree,
    is_same_content,
};
use super::version_entry::MAX_VERSIONED_PATH_BYTES;
use super::{CheckInOptions, CheckOutState};
use crate::document::body::{BodyNode, DocumentBody};
use crate::{NodePath, Result, Session, Snapshot, Subtree, Value, document::record_key};

impl Session {
    /// Lets the edits of this session change checked-in nodes. It is for complete content from elsewhere, such as
    /// received documents.
    pub fn bypass_check_ins(&mut self) {
        self.check_in_bypass.is_for_all_nodes = true;
    }

    /// Records that a node gets its state from a version.
    pub(super) fn record_restored(&mut self, path: &NodePath) {
        self.check_in_bypass.restored_paths.insert(path.clone());
    }

    /// Checks in again the checked-in nodes that the pending edits of a package change, and the nodes that the edits
    /// newly mark as checked in: each is stored as a version. A node whose path is too long for versions is changed
    /// without a version.
    pub(crate) fn check_in_installed(
        &mut self,
        base: &Snapshot,
        comment: &str,
        at: SystemTime,
    ) -> Result<()> {
        for path in newly_checked_in(base, &self.unrestricted_snapshot()?)? {
            // This node may have been processed before a failed commit.
            if self.check_in_bypass.restored_paths.contains(&path) {
                continue;
            }
            if path.as_str().len() > MAX_VERSIONED_PATH_BYTES {
                self.record_restored(&path);
                continue;
            }
            // A checked-in node keeps its version, so it is checked out first.
            self.set_property(&path, IS_CHECKED_OUT, Value::Boolean(true).into())?;
            self.versions().check_in(
                &path,
                &CheckInOptions {
                    comment,
                    created_at: at,
                    check_out_state: CheckOutState::CheckedIn,
                },
            )?;
        }
        Ok(())
    }
}

/// Returns the nodes that are checked in after the pending edits and were not checked in, or were different, before.
fn newly_checked_in(base: &Snapshot, pending: &Snapshot) -> Result<Vec<NodePath>> {
    let mut paths = Vec::new();
    for (key, record) in &pending.view.record_edits {
        let Some(record) = record else { continue };
        let path = record_key::record_path(key)?;
        let after = pending.view.load_body(record, &path)?;
        if !after.has_name(IS_CHECKED_OUT) {
            continue;
        }
        let before = base.view.read_record(key, &path)?;
        let before = before.map(|before| base.view.load_body(&before, &path)).transpose()?;
        let before = before.as_ref().map(|before| (&**before, before.root()));
        collect_checked_in(&path, before, &after.subtree(after.root()), &mut paths);
    }
    Ok(paths)
}

fn collect_checked_in(
    path: &NodePath,
    before: Option<(&DocumentBody, BodyNode)>,
    after: &Subtree,
    paths: &mut Vec<NodePath>,
) {
    let was_so = before.is_some_and(|(body, node)| {
        is_checked_in_body_node(body, node)
            && is_same_content(&body.subtree(node), after, NestedVersionables::Separate)
    });
    if is_checked_in_subtree(after) && !was_so {
        paths.push(path.clone());
    }
    for child in &after.children {
        let before = before.and_then(|(body, node)| {
            let old_child =
                body.children(node).find(|node_child| body.name(*node_child) == child.name)?;
            Some((body, old_child))
        });
        collect_checked_in(&path.child_unchecked(&child.name), before, child, paths);
    }
}
