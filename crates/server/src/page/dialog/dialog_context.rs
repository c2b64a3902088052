//! What the parts of a dialog ask for: the component that is edited, and components by their type.

use tympan_content::{Node, NodePath, Snapshot};

use super::expression::ExpressionScope;
use crate::failure::Result;

/// Maximum depth of super types and containers; deeper nesting is treated as a loop.
pub(super) const MAX_NESTING_DEPTH: usize = 20;
/// The roots under which components are searched, in order.
pub(super) const COMPONENT_SEARCH_PATH: [&str; 2] = ["/apps", "/libs"];

/// What a form is made for: a component, or a content policy.
pub(super) struct DialogContext<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) resource: &'a Node,
    pub(super) scope: ExpressionScope,
    /// True for a component that no dialog has saved yet.
    pub(super) is_fresh: bool,
}

/// Finds the node of a component by its resource type.
pub(crate) fn find_component(snapshot: &Snapshot, resource_type: &str) -> Result<Option<Node>> {
    if resource_type.starts_with('/') {
        return Ok(NodePath::new(resource_type)
            .ok()
            .map(|path| snapshot.node(&path))
            .transpose()?
            .flatten());
    }
    for root in COMPONENT_SEARCH_PATH {
        let Ok(path) = NodePath::new(&format!("{root}/{resource_type}")) else { continue };
        if let Some(node) = snapshot.node(&path)? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Returns the display title of a component.
pub(crate) fn component_title(component: Option<&Node>, resource_type: &str) -> String {
    let title = component.and_then(|component| component.text("jcr:title"));
    title.unwrap_or_else(|| resource_type.rsplit('/').next().unwrap_or_default().to_owned())
}

/// Returns the path of a property below the component, from the name of a field.
pub(super) fn property_name(name: &str) -> &str {
    name.trim_start_matches("./")
}
