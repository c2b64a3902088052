//! The tree of a dialog for one resource: what it includes is in its place, and what is hidden is left out.

use tympan_content::{Node, NodePath, Property, Result, Snapshot, Subtree, Value};

use super::component_definition::{ComponentPart, read_component_part};
use super::render_condition::ConditionFacts;
use crate::page::container_policy::find_component_policy;
use crate::resource_merge::find_merged_tree;

/// The suffixes of types that include another resource in their place.
const INCLUDE_TYPES: [&str; 2] = ["/foundation/include", "granite/ui/components/include"];
/// The path of the dialog's tab with the styles of the policy.
const STYLE_TAB_PATH: &str =
    "/mnt/overlay/cq/gui/components/authoring/dialog/style/tab_edit/styletab";
/// Maximum depth of includes in includes.
const MAX_INCLUDE_DEPTH: usize = 10;
/// Maximum number of included resources of one dialog.
const MAX_INCLUDES: usize = 200;
/// Maximum number of nodes of one dialog.
const MAX_DIALOG_NODES: usize = 10_000;

/// The dialog of a component's resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialogPart {
    /// The dialog that edits the resource.
    Edit,
    /// The dialog that edits the policy.
    Design,
}

/// Reads the dialog for a resource: merged along the super types of its component, with its includes, without what is
/// hidden from the viewer of the resource. The node exists in memory only. `None` if there is no dialog.
///
/// # Errors
/// [`tympan_content::Error::InvalidEdit`] if it is too large; if content cannot be read.
pub fn read_dialog(resource: &Node, part: DialogPart) -> Result<Option<Node>> {
    let resource_type =
        resource.resource_type().unwrap_or_else(|| resource.primary_type().to_owned());
    let component_part = match part {
        DialogPart::Edit => ComponentPart::Dialog,
        DialogPart::Design => ComponentPart::DesignDialog,
    };
    let snapshot = resource.snapshot();
    let Some(tree) = read_component_part(snapshot, &resource_type, component_part)? else {
        return Ok(None);
    };
    let policy = find_component_policy(resource)?;
    let facts = ConditionFacts { resource, policy: policy.as_ref() };
    let mut builder = DialogTreeBuilder { snapshot, facts, include_count: 0, node_count: 0 };
    let Some(tree) = builder.build(tree, 0)? else { return Ok(None) };
    let component = resource_type.trim_start_matches('/');
    let path = format!("/mnt/override/{component}/{}", component_part.node_name());
    snapshot.detached_node(&NodePath::new(&path)?, tree)
}

/// Builds the tree of a dialog.
struct DialogTreeBuilder<'a> {
    snapshot: &'a Snapshot,
    facts: ConditionFacts<'a>,
    include_count: usize,
    node_count: usize,
}

impl DialogTreeBuilder<'_> {
    /// Replaces the includes in a tree, and leaves out what is hidden; `None` if all is.
    fn build(&mut self, mut tree: Subtree, include_depth: usize) -> Result<Option<Subtree>> {
        if self.facts.hides(&tree)? {
            return Ok(None);
        }
        if is_include(&tree) {
            return self.include(&tree, include_depth);
        }
        self.node_count += 1;
        if self.node_count > MAX_DIALOG_NODES {
            return Ok(None);
        }
        let mut children = Vec::new();
        for child in std::mem::take(&mut tree.children) {
            children.extend(self.build(child, include_depth)?);
        }
        tree.children = children.into();
        Ok(Some(tree))
    }

    /// Returns the resource that an include names, with the name of the include; `None` if there is none.
    fn include(&mut self, include: &Subtree, depth: usize) -> Result<Option<Subtree>> {
        self.include_count += 1;
        if depth >= MAX_INCLUDE_DEPTH || self.include_count > MAX_INCLUDES {
            return Ok(None);
        }
        let path = include.properties.get("path").and_then(|path| self.facts.evaluate(path));
        let Some(path) = path.map(|path| path.to_text()) else { return Ok(None) };
        if path == STYLE_TAB_PATH {
            return Ok(self.facts.policy.and_then(|policy| style_tab(policy, &include.name)));
        }
        let Some(mut tree) = self.find_included(&path)? else { return Ok(None) };
        tree.name.clone_from(&include.name);
        self.build(tree, depth + 1)
    }

    /// Reads an included resource: a merged one, or a stored one, relative to the search paths if it has no slash.
    fn find_included(&self, path: &str) -> Result<Option<Subtree>> {
        if !path.starts_with('/') {
            for root in ["/apps", "/libs"] {
                if let Some(tree) = self.find_included(&format!("{root}/{path}"))? {
                    return Ok(Some(tree));
                }
            }
            return Ok(None);
        }
        let Ok(path) = NodePath::new(path) else { return Ok(None) };
        find_merged_tree(self.snapshot, &path)
    }
}

/// Returns true if a part of a dialog stands for another resource.
fn is_include(part: &Subtree) -> bool {
    part.text("sling:resourceType")
        .is_some_and(|kind| INCLUDE_TYPES.iter().any(|include| kind.ends_with(include)))
}

/// Creates the tab in which an author selects styles of the policy; `None` if it has none.
fn style_tab(policy: &Node, name: &str) -> Option<Subtree> {
    let groups = policy.child("cq:styleGroups").ok()??;
    let mut options = Subtree::new("items", "nt:unstructured");
    for group in groups.children().ok()? {
        let group_label = group.text("cq:styleGroupLabel");
        let Some(styles) = group.child("cq:styles").ok()? else { continue };
        for style in styles.children().ok()? {
            let Some(id) = style.text("cq:styleId") else { continue };
            let label = style.text("cq:styleLabel").unwrap_or_else(|| id.clone());
            let text = match &group_label {
                Some(group_label) => format!("{group_label}: {label}"),
                None => label,
            };
            options.put_child(
                Subtree::new(format!("style{}", options.children.len()), "nt:unstructured")
                    .with_property("value", id.as_str())
                    .with_property("text", text.as_str()),
            );
        }
    }
    if options.children.is_empty() {
        return None;
    }
    let select = Subtree::new("styles", "nt:unstructured")
        .with_property("sling:resourceType", "granite/ui/components/coral/foundation/form/select")
        .with_property("name", "./cq:styleIds")
        .with_property("fieldLabel", "Styles")
        .with_property("multiple", Property::Single(Value::Boolean(true)))
        .with_child(options);
    let items = Subtree::new("items", "nt:unstructured").with_child(select);
    Some(
        Subtree::new(name, "nt:unstructured")
            .with_property("jcr:title", "Styles")
            .with_property("sling:resourceType", "granite/ui/components/coral/foundation/container")
            .with_child(items),
    )
}
