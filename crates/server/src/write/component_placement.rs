//! Component placement: enforces for all clients the rules of templates, their policies and components that the page
//! editor applies.
//!
//! In: the nodes that a request turned into components, moved or copied; the state before the request and its pending
//! state. Out: an error for the first node in a container that does not allow it.
//!
//! Invariants
//! * Only nodes that the request placed are checked: existing nodes stay editable, whatever a policy says now.
//! * Only containers refuse (`cq:isContainer`, paragraph systems, the plain nodes that group components).
//! * The rules are read without access control: they also bind users who may not read a component.
//!
//! Absent: packages, replication, versions and branches, whose content was checked before or has to be accepted as it
//! is. Not here: the contents of a policy (`tympan_render::ContainerPolicy`).

use std::collections::BTreeMap;

use tympan_content::{Node, NodePath, Snapshot, Viewer};
use tympan_render::ContainerPolicy;

use crate::failure::{RequestFailure, Result};
use crate::page::dialog::{is_component_group, is_container};
use crate::write::property_protection::{OperationRefusal, RelocationKind};

/// The nodes that a request placed, each with the index of the operation in its batch.
#[derive(Debug, Default)]
pub(crate) struct PlacedComponents(Vec<(NodePath, usize)>);

impl PlacedComponents {
    /// Returns true if no nodes were placed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records a node that became a component, or a component of another type.
    pub(crate) fn add(&mut self, path: &NodePath, operation: usize) {
        self.0.push((path.clone(), operation));
    }

    /// Records a node that was moved or copied; nodes placed below it earlier move with it.
    pub(crate) fn relocate(
        &mut self,
        from: &NodePath,
        to: &NodePath,
        kind: RelocationKind,
        operation: usize,
    ) {
        let inside = self.0.iter().filter_map(|(path, by)| Some((path.rebase(from, to)?, *by)));
        let there: Vec<_> = inside.collect();
        if kind == RelocationKind::Move {
            self.0.retain(|(path, _)| !path.is_within(from));
        }
        self.0.extend(there);
        // Renaming a node within its container does not change its placement.
        if kind == RelocationKind::Copy || from.parent() != to.parent() {
            self.add(to, operation);
        }
    }

    /// Returns an error for a component in a container that does not allow it.
    ///
    /// # Errors
    /// 422 with component, container and rule; errors of the store.
    pub(crate) fn check_placements(
        &self,
        base: &Snapshot,
        pending: &Snapshot,
    ) -> Result<(), OperationRefusal> {
        let pending = pending.as_viewer(&Viewer::system());
        let mut judged = BTreeMap::new();
        for (path, operation) in &self.0 {
            let at = |failure| OperationRefusal::new(*operation, failure);
            // Children of a component are checked again if the component changed its type or moved.
            for child in components_in_container(&pending, path).map_err(at)? {
                judged.entry(child).or_insert(*operation);
            }
            judged.insert(path.clone(), *operation);
        }
        for (path, operation) in judged {
            check_placement(base, &pending, &path)
                .map_err(|failure| OperationRefusal::new(operation, failure))?;
        }
        Ok(())
    }
}

/// Returns the children of a node, if the node contains components.
fn components_in_container(pending: &Snapshot, path: &NodePath) -> Result<Vec<NodePath>> {
    match pending.node(path)? {
        Some(node) if is_component_container(&node)? => {
            Ok(node.children()?.iter().map(|child| child.path().clone()).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// Checks one node against the container that it is in.
fn check_placement(base: &Snapshot, pending: &Snapshot, path: &NodePath) -> Result<()> {
    let Some(node) = pending.node(path)? else { return Ok(()) };
    let Some(resource_type) = node.resource_type() else { return Ok(()) };
    let Some(container) = node.parent()? else { return Ok(()) };
    if !is_component_container(&container)? {
        return Ok(());
    }
    let Some(policy) = ContainerPolicy::of_container(&container)? else { return Ok(()) };
    if policy.allows(pending, &resource_type)? || was_placed_there(base, &node, &container)? {
        return Ok(());
    }
    let kind = container.resource_type();
    let kind = kind.as_deref().map_or_else(String::new, |kind| format!(" (`{kind}`)"));
    let entries: Vec<&str> = policy.entries().collect();
    let allowed = if entries.is_empty() { "nothing".to_owned() } else { entries.join(", ") };
    let rule = policy.source();
    let message = format!(
        "`{path}` has the type `{resource_type}`, which is not allowed in `{}`{kind}: `{rule}` allows \
         {allowed}",
        container.path()
    );
    Err(RequestFailure::unprocessable(message)
        .with_detail("component", resource_type)
        .with_detail("container", container.path().as_str())
        .with_detail("rule", rule))
}

/// Returns true if the same component was in the same container before.
fn was_placed_there(base: &Snapshot, node: &Node, container: &Node) -> Result<bool> {
    let is_same = |now: &Node| -> Result<bool> {
        let before = base.node(now.path())?;
        Ok(before.is_some_and(|before| before.resource_type() == now.resource_type()))
    };
    Ok(is_same(node)? && is_same(container)?)
}

/// Returns true if a node contains components.
fn is_component_container(node: &Node) -> Result<bool> {
    match node.resource_type() {
        Some(resource_type) => is_container(node.snapshot(), &resource_type),
        None => Ok(is_component_group(node)),
    }
}
