//! Components lie only where policies let them: what templates, their policies and components say to the editor holds for
//! every other program, too.
//!
//! In: the nodes that a request made components, moved or copied, the state before it and its pending state. Out: a refusal
//! of the first that lies in a container that does not allow it.
//!
//! Invariants
//! * Only what a request puts somewhere is judged: what lay there before stays editable, whatever a policy says now.
//! * Only containers refuse (`cq:isContainer`, paragraph systems, the plain nodes that group components).
//! * The rules are read with nobody's eyes: whoever may not read a component is bound by it all the same.
//!
//! Absent: packages, replication, versions and branches, which bring content that was judged or has to be taken as it is.
//! Not here: what a policy says (`tympan_render::ContainerPolicy`).

use std::collections::BTreeMap;

use tympan_content::{Node, NodePath, Snapshot, Viewer};
use tympan_render::ContainerPolicy;

use crate::dialog::{is_component_group, is_container};
use crate::failure::{RequestFailure, Result};
use crate::property_protection::{OperationRefusal, RelocationKind};

/// The nodes that a request put somewhere, with the operation of a batch that did.
#[derive(Debug, Default)]
pub(crate) struct PlacedComponents(Vec<(NodePath, usize)>);

impl PlacedComponents {
    /// Tells whether nothing was put anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes a node that became a component, or one of another kind.
    pub(crate) fn add(&mut self, path: &NodePath, operation: usize) {
        self.0.push((path.clone(), operation));
    }

    /// Notes a node that was moved or copied; what was put below it before lies at its new place.
    pub(crate) fn relocate(
        &mut self,
        from: &NodePath,
        to: &NodePath,
        way: RelocationKind,
        operation: usize,
    ) {
        let inside = self.0.iter().filter_map(|(path, by)| Some((path.rebase(from, to)?, *by)));
        let there: Vec<_> = inside.collect();
        if way == RelocationKind::Move {
            self.0.retain(|(path, _)| !path.is_within(from));
        }
        self.0.extend(there);
        // Another name in the same container is no other place.
        if way == RelocationKind::Copy || from.parent() != to.parent() {
            self.add(to, operation);
        }
    }

    /// Refuses a component in a container that does not allow it.
    ///
    /// # Errors
    /// 422 with component, container and rule; errors of the store.
    pub(crate) fn check_placements(
        &self,
        begun: &Snapshot,
        pending: &Snapshot,
    ) -> Result<(), OperationRefusal> {
        let pending = pending.as_viewer(&Viewer::system());
        let mut judged = BTreeMap::new();
        for (path, operation) in &self.0 {
            let at = |failure| OperationRefusal::new(*operation, failure);
            // What lies in a component is judged anew where that is another one now, or at another place.
            for child in components_in_container(&pending, path).map_err(at)? {
                judged.entry(child).or_insert(*operation);
            }
            judged.insert(path.clone(), *operation);
        }
        for (path, operation) in judged {
            check_placement(begun, &pending, &path)
                .map_err(|failure| OperationRefusal::new(operation, failure))?;
        }
        Ok(())
    }
}

/// Returns what lies in a node, if it holds components.
fn components_in_container(pending: &Snapshot, path: &NodePath) -> Result<Vec<NodePath>> {
    match pending.node(path)? {
        Some(node) if is_component_container(&node)? => {
            Ok(node.children()?.iter().map(|child| child.path().clone()).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// Judges one node by the container that it lies in.
fn check_placement(begun: &Snapshot, pending: &Snapshot, path: &NodePath) -> Result<()> {
    let Some(node) = pending.node(path)? else { return Ok(()) };
    let Some(resource_type) = node.resource_type() else { return Ok(()) };
    let Some(container) = node.parent()? else { return Ok(()) };
    if !is_component_container(&container)? {
        return Ok(());
    }
    let Some(policy) = ContainerPolicy::of_container(&container)? else { return Ok(()) };
    if policy.allows(pending, &resource_type)? || was_placed_there(begun, &node, &container)? {
        return Ok(());
    }
    let kind = container.resource_type();
    let kind = kind.as_deref().map_or_else(String::new, |kind| format!(" (`{kind}`)"));
    let entries: Vec<&str> = policy.entries().collect();
    let allowed = if entries.is_empty() { "nothing".to_owned() } else { entries.join(", ") };
    let rule = policy.source();
    let message = format!(
        "`{path}` is of the type `{resource_type}`, which may not lie in `{}`{kind}: `{rule}` allows {allowed}",
        container.path()
    );
    Err(RequestFailure::unprocessable(message)
        .with_detail("component", resource_type)
        .with_detail("container", container.path().as_str())
        .with_detail("rule", rule))
}

/// Tells whether the same component lay in the same container before.
fn was_placed_there(begun: &Snapshot, node: &Node, container: &Node) -> Result<bool> {
    let is_same = |now: &Node| -> Result<bool> {
        let before = begun.node(now.path())?;
        Ok(before.is_some_and(|before| before.resource_type() == now.resource_type()))
    };
    Ok(is_same(node)? && is_same(container)?)
}

/// Tells whether a node holds components.
fn is_component_container(node: &Node) -> Result<bool> {
    match node.resource_type() {
        Some(resource_type) => is_container(node.snapshot(), &resource_type),
        None => Ok(is_component_group(node)),
    }
}
