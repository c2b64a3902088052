//! The parts of a component that the editor reads: its dialogs, its edit configuration and its initial content.
//!
//! Dialogs are merged with those of the super types. The edit configuration and the initial content are those of the
//! component, or else of the nearest super type that has them; an edit configuration with `cq:inherit` is merged too.

use tympan_content::{Node, NodePath, Property, Result, Snapshot, Subtree};

use crate::resource_merge::{inherited_paths, read_override};

/// The roots under which components are searched, in order.
const COMPONENT_SEARCH_PATHS: [&str; 2] = ["/apps", "/libs"];

/// A part of a component that the editor reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComponentPart {
    /// The dialog that edits a resource.
    Dialog,
    /// The dialog that edits a policy.
    DesignDialog,
    /// The edit configuration.
    EditConfig,
    /// The edit configuration that components in this one get.
    ChildEditConfig,
    /// The initial content of a new resource.
    Template,
}

impl ComponentPart {
    /// Returns the name of the node below the component.
    #[must_use]
    pub const fn node_name(self) -> &'static str {
        match self {
            Self::Dialog => "cq:dialog",
            Self::DesignDialog => "cq:design_dialog",
            Self::EditConfig => "cq:editConfig",
            Self::ChildEditConfig => "cq:childEditConfig",
            Self::Template => "cq:template",
        }
    }
}

/// Finds the node of a component by its resource type.
///
/// # Errors
/// If content cannot be read.
pub fn find_component_node(snapshot: &Snapshot, resource_type: &str) -> Result<Option<Node>> {
    for path in component_paths(resource_type) {
        if let Some(node) = snapshot.node(&path)? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Returns the paths at which a component may lie, in order.
fn component_paths(resource_type: &str) -> Vec<NodePath> {
    if resource_type.starts_with('/') {
        return NodePath::new(resource_type).into_iter().collect();
    }
    let paths = COMPONENT_SEARCH_PATHS.iter().map(|root| format!("{root}/{resource_type}"));
    paths.filter_map(|path| NodePath::new(&path).ok()).collect()
}

/// Returns the path of a component: that of its node, or the last possible one, where this program may have one.
fn component_path(snapshot: &Snapshot, resource_type: &str) -> Result<Option<NodePath>> {
    match find_component_node(snapshot, resource_type)? {
        Some(node) => Ok(Some(node.path().clone())),
        None => Ok(component_paths(resource_type).pop()),
    }
}

/// Reads a part of a component as its viewer may read it and its super types; `None` if there is none.
///
/// # Errors
/// [`tympan_content::Error::InvalidEdit`] if it is too large to be merged; if content cannot be read.
pub fn read_component_part(
    snapshot: &Snapshot,
    resource_type: &str,
    part: ComponentPart,
) -> Result<Option<Subtree>> {
    let Some(component) = component_path(snapshot, resource_type)? else { return Ok(None) };
    let path = component.child(part.node_name())?;
    if matches!(part, ComponentPart::Dialog | ComponentPart::DesignDialog) {
        return read_override(snapshot, &path);
    }
    for path in inherited_paths(snapshot, &path)? {
        let Some(node) = snapshot.node(&path)? else { continue };
        let inherits = node.property("cq:inherit");
        let inherits = inherits.as_ref().and_then(Property::first);
        if inherits.is_some_and(|value| value.to_text() == "true") {
            return read_override(snapshot, &path);
        }
        return node.read_subtree().map(Some);
    }
    Ok(None)
}
