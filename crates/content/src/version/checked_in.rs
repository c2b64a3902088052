//! Checked-in nodes, which are read-only until they are checked out.
//!
//! A node is checked in if it is `mix:versionable` and its `jcr:isCheckedOut` is false. The rule covers everything
//! below it in the same document, except versionable nodes there, which have a state of their own. The commit enforces
//! it for every kind of edit; a check-out in the same commit counts.
//!
//! Not covered, because their OnParentVersion is IGNORE: the replication properties of a node, and its access control.

use std::collections::BTreeSet;

use crate::document::body::{BodyNode, DocumentBody};
use crate::document::borrowed_property::BorrowedValue;
use crate::model::subtree::MIXIN_TYPES;
use crate::{
    Error, Node, NodePath, Property, Result, Snapshot, Subtree, Value, document::record_key,
};

/// The property that is false while a versionable node is checked in.
pub(crate) const IS_CHECKED_OUT: &str = "jcr:isCheckedOut";

/// The edits of a session that bypass check-ins.
#[derive(Debug, Default)]
pub(crate) struct CheckInBypass {
    pub(super) is_for_all_nodes: bool,
    /// Nodes that were checked in or restored in the pending edits.
    pub(super) restored_paths: BTreeSet<NodePath>,
}

impl CheckInBypass {
    /// Clears the record of restored nodes, after a commit or refresh.
    pub(crate) fn clear(&mut self) {
        self.restored_paths.clear();
    }

    /// Rejects pending edits of checked-in nodes.
    ///
    /// `moves` lists the moves (source, target) in order: a checked-in node stays checked in at its new path.
    pub(crate) fn check_edits(
        &self,
        base: &Snapshot,
        pending: &Snapshot,
        moves: &[(NodePath, NodePath)],
    ) -> Result<()> {
        if self.is_for_all_nodes {
            return Ok(());
        }
        for (key, record) in &pending.view.record_edits {
            let path = record_key::record_path(key)?;
            let back = |path: NodePath, (from, to): &(NodePath, NodePath)| {
                path.rebase(to, from).unwrap_or(path)
            };
            let origin = moves.iter().rev().fold(path.clone(), back);
            let key = record_key::record_key(&origin)?;
            let Some(before) = base.view.read_record(&key, &origin)? else { continue };
            let before = base.view.load_body(&before, &origin)?;
            if !before.has_name(IS_CHECKED_OUT) {
                continue;
            }
            // Removing a document is an edit of its parent.
            let Some(record) = record else { continue };
            let after = pending.view.load_body(record, &path)?;
            let after = after.subtree(after.root());
            self.check_document(&path, &before, &after)?;
        }
        Ok(())
    }

    fn check_document(
        &self,
        path: &NodePath,
        before: &DocumentBody,
        after: &Subtree,
    ) -> Result<()> {
        let mut nodes = vec![(path.clone(), before.root(), Some(after))];
        while let Some((path, node, after)) = nodes.pop() {
            let Some(after) = after else { continue };
            if is_checked_in_body_node(before, node)
                && is_checked_in_subtree(after)
                && !self.restored_paths.contains(&path)
                && !is_same_content(&before.subtree(node), after, NestedVersionables::Separate)
            {
                let reason = "it is checked in; check it out first";
                return Err(Error::InvalidEdit { action: "change", path, reason });
            }
            nodes.extend(before.children(node).map(|child| {
                let name = before.name(child);
                (path.child_unchecked(name), child, after.child(name))
            }));
        }
        Ok(())
    }
}

/// Returns true if a node is read-only because it is checked in, or because the versionable node of its document to
/// which it belongs is.
pub(crate) fn is_read_only(node: &Node) -> Result<bool> {
    let mut next = Some(node.clone());
    while let Some(node) = next {
        if node.property(MIXIN_TYPES).is_some_and(|mixins| has_versionable_mixin(&mixins)) {
            return Ok(is_checked_in(&node));
        }
        next = if node.summary().is_some() { None } else { node.parent()? };
    }
    Ok(false)
}

/// Returns true if a node is checked in.
pub(super) fn is_checked_in(node: &Node) -> bool {
    node.property(IS_CHECKED_OUT).is_some_and(|property| is_false_property(&property))
}

pub(super) fn is_checked_in_body_node(body: &DocumentBody, node: BodyNode) -> bool {
    let is_out = body.property(node, IS_CHECKED_OUT).and_then(|property| property.first());
    let mixins = body.property(node, MIXIN_TYPES);
    matches!(is_out, Some(BorrowedValue::Boolean(false)))
        && mixins.is_some_and(|mixins| has_versionable_mixin(&mixins.to_property()))
}

pub(super) fn is_checked_in_subtree(tree: &Subtree) -> bool {
    tree.properties.get(IS_CHECKED_OUT).is_some_and(is_false_property)
        && is_versionable_subtree(tree)
}

fn is_versionable_subtree(tree: &Subtree) -> bool {
    tree.properties.get(MIXIN_TYPES).is_some_and(has_versionable_mixin)
}

fn is_false_property(property: &Property) -> bool {
    matches!(property, Property::Single(Value::Boolean(false)))
}

/// Returns true if a property is not part of a node's versions, and may change while the node is checked in.
pub(super) fn is_ignored_property(name: &str) -> bool {
    name == IS_CHECKED_OUT || name.starts_with("cq:lastReplicat")
}

/// Returns true if a child is not part of its parent's versions.
pub(super) fn is_ignored_child(name: &str) -> bool {
    matches!(name, "rep:policy" | "rep:cugPolicy")
}

/// The treatment of nested versionable nodes in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NestedVersionables {
    Compared,
    /// They are not compared, because they have a state of their own.
    Separate,
}

/// Returns true if two trees are equal except for what versions ignore.
pub(super) fn is_same_content(left: &Subtree, right: &Subtree, nested: NestedVersionables) -> bool {
    fn properties(tree: &Subtree) -> impl Iterator<Item = (&String, &Property)> {
        tree.properties.iter().filter(|(name, _)| !is_ignored_property(name))
    }
    fn children(tree: &Subtree) -> impl Iterator<Item = &Subtree> {
        tree.children.iter().filter(|child| !is_ignored_child(&child.name))
    }
    properties(left).eq(properties(right))
        && children(left).map(|child| &child.name).eq(children(right).map(|child| &child.name))
        && children(left).zip(children(right)).all(|(left, right)| {
            let is_apart = nested == NestedVersionables::Separate && is_versionable_subtree(left);
            is_apart || is_same_content(left, right, nested)
        })
}

/// Returns true if a list of mixins contains `mix:versionable`.
pub(super) fn has_versionable_mixin(mixins: &Property) -> bool {
    mixins.values().iter().any(|value| value.as_str() == Some("mix:versionable"))
}
