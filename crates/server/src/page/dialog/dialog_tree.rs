//! The tree of a dialog, as a form is made from it: includes followed, items of data sources put in, expressions
//! evaluated, and nodes left out that the dialog hides.
//!
//! In: the node of a dialog. Out: [`DialogNode`].
//!
//! Invariants
//! * A tree has at most [`MAX_DIALOG_NODES`] nodes; further ones are left out.
//! * Only nodes that the reader of the snapshot may read are in the tree.

use tympan_content::{Node, Property};

use super::data_source::source_items;
use super::dialog_context::DialogContext;
use super::dialog_node::{DialogNode, find_merged};
use super::expression::{ExpressionScope, evaluate_text};
use super::native_include::native_include;
use crate::failure::Result;

/// Maximum number of nodes of a dialog, with what it includes.
const MAX_DIALOG_NODES: usize = 5000;
/// Maximum depth of a dialog's tree, with what it includes.
const MAX_DIALOG_DEPTH: usize = 40;
/// The resource types of includes.
const INCLUDE_TYPES: [&str; 2] =
    ["granite/ui/components/coral/foundation/include", "granite/ui/components/foundation/include"];
/// An include of a part of the dialog of the component that draws images.
const IMAGE_DELEGATE_INCLUDE: &str = "core/wcm/components/include/imagedelegate";

/// Reads the tree of a dialog.
///
/// # Errors
/// If content cannot be read.
pub(super) fn read_dialog_tree(context: &DialogContext<'_>, dialog: &Node) -> Result<DialogNode> {
    let mut reader = DialogTreeReader { context, nodes_left: MAX_DIALOG_NODES };
    Ok(reader.read(dialog, 0)?.unwrap_or_default())
}

struct DialogTreeReader<'a> {
    context: &'a DialogContext<'a>,
    nodes_left: usize,
}

impl DialogTreeReader<'_> {
    /// Reads a node; `None` if the dialog hides it or the tree is full.
    fn read(&mut self, node: &Node, depth: usize) -> Result<Option<DialogNode>> {
        if depth > MAX_DIALOG_DEPTH || self.nodes_left == 0 {
            return Ok(None);
        }
        self.nodes_left -= 1;
        let mut read = DialogNode {
            name: node.name().to_owned(),
            properties: evaluated_properties(node, &self.context.scope),
            children: Vec::new(),
        };
        if read.is_set("granite:hide") || read.is_set("cq:hideOnEdit") {
            return Ok(None);
        }
        let kind = read.resource_type();
        if let Some(target) = self.included_node(&read, &kind)? {
            let Some(mut included) = self.read(&target, depth + 1)? else { return Ok(None) };
            // An include places the node under its own name and title.
            included.name = read.name;
            if included.text("jcr:title").is_none()
                && let Some(title) = read.properties.iter().find(|(name, _)| name == "jcr:title")
            {
                included.properties.push(title.clone());
            }
            return Ok(Some(included));
        }
        if let Some(included) = read.text("path").as_deref().and_then(native_include) {
            return Ok(INCLUDE_TYPES.contains(&kind.as_str()).then_some(included));
        }
        for child in node.children()? {
            read.children.extend(self.read(&child, depth + 1)?);
        }
        let condition = read.child("granite:rendercondition").or(read.child("rendercondition"));
        if condition.is_some_and(|condition| !is_rendered(condition)) {
            return Ok(None);
        }
        let source = read.child("datasource").or(read.child("granite:datasource"));
        if let Some(nodes) = source.map(|source| source_items(self.context, source)).transpose()? {
            for item in nodes {
                read.children.extend(self.read(&item, depth + 1)?);
            }
        }
        Ok(Some(read))
    }

    /// Returns the node that an include names.
    fn included_node(&self, include: &DialogNode, kind: &str) -> Result<Option<Node>> {
        let snapshot = self.context.snapshot;
        let Some(path) = include.text("path") else { return Ok(None) };
        if INCLUDE_TYPES.contains(&kind) {
            return find_merged(snapshot, &path);
        }
        if kind != IMAGE_DELEGATE_INCLUDE {
            return Ok(None);
        }
        // The path is that of a dialog; the component whose dialog it is may be replaced by the policy.
        let delegate =
            self.context.scope.policy.as_ref().and_then(|policy| policy.text("imageDelegate"));
        let own = match (delegate, path.split_once("/cq:dialog/")) {
            (Some(delegate), Some((_, below))) => {
                find_merged(snapshot, &format!("{delegate}/cq:dialog/{below}"))?
            }
            _ => None,
        };
        own.map_or_else(|| find_merged(snapshot, &path), |node| Ok(Some(node)))
    }
}

/// Returns the properties of a node with the values of their expressions.
fn evaluated_properties(node: &Node, scope: &ExpressionScope) -> Vec<(String, Property)> {
    let evaluated = |(name, property): (String, Property)| {
        let text = match &property {
            Property::Single(value) => value.to_text().into_owned(),
            Property::List(..) => return Some((name, property)),
        };
        match evaluate_text(&text, scope) {
            Some(value) => Some((name, value.into_property()?)),
            None => Some((name, property)),
        }
    };
    node.properties().into_iter().filter_map(evaluated).collect()
}

/// Returns true if a condition for showing a node holds. Conditions that ask for services of Adobe's cloud do not.
fn is_rendered(condition: &DialogNode) -> bool {
    let kind = condition.resource_type();
    let mut inner =
        condition.items().filter(|child| child.property("sling:resourceType").is_some());
    match kind.rsplit('/').next().unwrap_or_default() {
        "simple" => condition.is_set("expression"),
        "and" => inner.all(is_rendered),
        "or" => inner.any(is_rendered),
        "not" => !inner.all(is_rendered),
        "feature" | "isAssetDeliveryEnabled" | "isNGDMEnabled" => false,
        // Of the two fields for elements of a fragment, the list also takes a single one.
        "elementnames" => condition.text("displayMode").is_none_or(|mode| mode != "singleText"),
        // Any other condition, such as a right, is not known here; saving checks rights again.
        _ => true,
    }
}
