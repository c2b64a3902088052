//! What the parts of a dialog ask for: the component that is edited.

use tympan_content::{Node, Snapshot};

/// Maximum depth of super types and containers; deeper nesting is treated as a loop.
pub(super) const MAX_NESTING_DEPTH: usize = 20;
/// The roots under which components are searched, in order.
pub(super) const COMPONENT_SEARCH_PATH: [&str; 2] = ["/apps", "/libs"];

/// What a form is made for: a component, or a content policy.
pub(super) struct DialogContext<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) resource: &'a Node,
    /// The policy of the component, if it has one.
    pub(super) policy: Option<Node>,
    /// True for a component that no dialog has saved yet.
    pub(super) is_fresh: bool,
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
