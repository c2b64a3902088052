//! The tree of a dialog for one resource: what it includes is in its place, and what is hidden is left out.

use tympan_content::{Node, NodePath, Property, Result, Snapshot, Subtree, Value};

use super::component_definition::{ComponentPart, read_component_part};
use super::expression::GraniteValue;
use super::render_condition::ConditionFacts;
use crate::page::container_policy::find_content_policy;
use crate::resource_merge::find_merged_tree;

/// The suffixes of types that include another resource in their place.
const INCLUDE_TYPES: [&str; 2] = ["/foundation/include", "granite/ui/components/include"];
/// An include of a part of the dialog of the component that draws images.
const IMAGE_DELEGATE_INCLUDE: &str = "core/wcm/components/include/imagedelegate";
/// The folder of the dialog's tab with the styles of the policy, which is not stored: whoever makes the form fills it.
const STYLE_TAB_FOLDER: &str = "/mnt/overlay/cq/gui/components/authoring/dialog/style/";
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

/// Reads the dialog of a component for a resource of its type, or for a policy of the component: merged along the super types of its component, with its includes, without what is
/// hidden from the viewer of the resource. The node exists in memory only. `None` if there is no dialog.
///
/// # Errors
/// [`tympan_content::Error::InvalidEdit`] if it is too large; if content cannot be read.
pub fn read_dialog(resource: &Node, resource_type: &str, part: DialogPart) -> Result<Option<Node>> {
    let component_part = match part {
        DialogPart::Edit => ComponentPart::Dialog,
        DialogPart::Design => ComponentPart::DesignDialog,
    };
    let snapshot = resource.snapshot();
    let Some(tree) = read_component_part(snapshot, resource_type, component_part)? else {
        return Ok(None);
    };
    let policy = find_content_policy(resource)?;
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
        for name in tree.properties.keys().cloned().collect::<Vec<_>>() {
            self.evaluate(&mut tree, &name);
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
        if path.starts_with(STYLE_TAB_FOLDER) {
            return Ok(Some(include.clone()));
        }
        let of_delegate = match is_image_delegate(include) {
            true => self.find_in_image_delegate(&path)?,
            false => None,
        };
        let included = match of_delegate {
            Some(tree) => Some(tree),
            None => self.find_included(&path)?,
        };
        let Some(mut tree) = included else { return Ok(None) };
        tree.name.clone_from(&include.name);
        if let Some(title) = include.properties.get("jcr:title")
            && !tree.properties.contains_key("jcr:title")
        {
            tree.properties.insert("jcr:title".to_owned(), title.clone());
        }
        self.build(tree, depth + 1)
    }

    /// Finds a part of a dialog in the component that the policy names for images.
    fn find_in_image_delegate(&self, path: &str) -> Result<Option<Subtree>> {
        let delegate = self.facts.policy.and_then(|policy| policy.text("imageDelegate"));
        match (delegate, path.split_once("/cq:dialog/")) {
            (Some(delegate), Some((_, below))) => {
                self.find_included(&format!("/mnt/override/apps/{delegate}/cq:dialog/{below}"))
            }
            _ => Ok(None),
        }
    }

    /// Puts the value of a property's expressions in place of its text; one without a value goes.
    fn evaluate(&self, part: &mut Subtree, name: &str) {
        let is_expression = |value: &Value| value.to_text().contains("${");
        let Some(property @ Property::Single(value)) = part.properties.get(name) else { return };
        if is_expression(value) {
            match self.facts.evaluate(property).and_then(GraniteValue::into_property) {
                Some(value) => part.properties.insert(name.to_owned(), value),
                None => part.properties.remove(name),
            };
        }
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
        || is_image_delegate(part)
}

/// Returns true if a part of a dialog stands for one of the component that draws images.
fn is_image_delegate(part: &Subtree) -> bool {
    part.text("sling:resourceType") == Some(IMAGE_DELEGATE_INCLUDE)
}
