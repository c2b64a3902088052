//! The tree of a dialog, as a form is made from it: includes followed, items of data sources put in, expressions
//! evaluated, and nodes left out that the dialog hides.
//!
//! In: the node of a dialog. Out: [`DialogNode`].
//!
//! Invariants
//! * A tree has at most [`MAX_DIALOG_NODES`] nodes; further ones are left out.
//! * Only nodes that the reader of the snapshot may read are in the tree.

use tympan_content::{Node, NodePath, Property, Snapshot};

use super::data_source::source_items;
use super::expression::{ExpressionScope, evaluate_text};
use super::native_include::native_include;
use super::{COMPONENT_SEARCH_PATH, DialogContext};
use crate::failure::Result;

/// Maximum number of nodes of a dialog, with what it includes.
const MAX_DIALOG_NODES: usize = 5000;
/// Maximum depth of a dialog's tree, with what it includes.
const MAX_DIALOG_DEPTH: usize = 40;
/// Children of a dialog's node that are no items.
const DATA_NODES: [&str; 5] = ["items", "datasource", "rendercondition", "data", "cq:inherit"];
/// Prefixes of paths that name a resource as merged along the search path.
const MERGED_PREFIXES: [&str; 2] = ["/mnt/overlay/", "/mnt/override/"];
/// The resource types of includes.
const INCLUDE_TYPES: [&str; 2] =
    ["granite/ui/components/coral/foundation/include", "granite/ui/components/foundation/include"];
/// An include of a part of the dialog of the component that draws images.
const IMAGE_DELEGATE_INCLUDE: &str = "core/wcm/components/include/imagedelegate";

/// A node of a dialog.
#[derive(Debug, Clone, Default)]
pub(super) struct DialogNode {
    pub(super) name: String,
    pub(super) properties: Vec<(String, Property)>,
    pub(super) children: Vec<DialogNode>,
}

impl DialogNode {
    /// Makes a node with texts as properties.
    pub(super) fn with(name: &str, properties: &[(&str, &str)]) -> Self {
        let properties =
            properties.iter().map(|(name, text)| ((*name).to_owned(), Property::text(*text)));
        Self { name: name.to_owned(), properties: properties.collect(), children: Vec::new() }
    }

    /// Returns a property.
    pub(super) fn property(&self, name: &str) -> Option<&Property> {
        self.properties.iter().find(|(own, _)| own == name).map(|(_, property)| property)
    }

    /// Returns the first value of a property as text.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        Some(self.property(name)?.first()?.to_text().into_owned())
    }

    /// Returns the values of a property as texts.
    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let values = self.property(name).map(Property::values).unwrap_or_default();
        values.iter().map(|value| value.to_text().into_owned()).collect()
    }

    /// Returns true for a property with the value `true`, as a truth value or a text.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some_and(|text| text == "true")
    }

    /// Returns a child.
    pub(super) fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Returns the resource type without a search path; empty if there is none.
    pub(super) fn resource_type(&self) -> String {
        let kind = self.text("sling:resourceType").unwrap_or_default();
        let prefixes = COMPONENT_SEARCH_PATH.iter();
        let mut relative = prefixes.filter_map(|root| kind.strip_prefix(root)?.strip_prefix('/'));
        relative.next().map(str::to_owned).unwrap_or(kind)
    }

    /// Returns the items: the children of `items` and the items that a data source put in; without `items`, the node's
    /// own children without its data.
    pub(super) fn items(&self) -> impl Iterator<Item = &Self> {
        let below = self.child("items").map(|items| items.children.as_slice()).unwrap_or_default();
        let has_items = self.child("items").is_some();
        let is_item = move |child: &&Self| {
            !child.name.starts_with("granite:")
                && !DATA_NODES.contains(&child.name.as_str())
                && !has_items
        };
        below.iter().chain(self.children.iter().filter(is_item))
    }

    /// Returns the classes of the node and of the element around it.
    pub(super) fn classes(&self) -> impl Iterator<Item = String> {
        let names = ["granite:class", "class", "wrapperClass"];
        let texts: Vec<String> = names.iter().filter_map(|name| self.text(name)).collect();
        let classes: Vec<String> =
            texts.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect();
        classes.into_iter()
    }

    /// Returns the data attributes: the properties of `granite:data`.
    pub(super) fn data(&self) -> impl Iterator<Item = (&str, String)> {
        let data = self.child("granite:data").map(|data| data.properties.as_slice());
        data.unwrap_or_default().iter().filter_map(|(name, property)| {
            Some((name.as_str(), property.first()?.to_text().into_owned()))
        })
    }

    /// Returns a data attribute.
    pub(super) fn data_text(&self, name: &str) -> Option<String> {
        self.data().find(|(own, _)| *own == name).map(|(_, text)| text)
    }

    /// Calls a function with each node of the tree, parents first.
    pub(super) fn visit(&self, visitor: &mut impl FnMut(&Self)) {
        visitor(self);
        for child in &self.children {
            child.visit(visitor);
        }
    }
}

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

/// Finds a node by a path below `/mnt/overlay`, an absolute path, or one relative to the search path.
pub(super) fn find_merged(snapshot: &Snapshot, path: &str) -> Result<Option<Node>> {
    let relative = MERGED_PREFIXES.iter().find_map(|prefix| path.strip_prefix(prefix));
    let candidates = match relative {
        // Below `/mnt/override` the path starts with that of the search path.
        Some(relative) if relative.starts_with("apps/") || relative.starts_with("libs/") => {
            vec![format!("/{relative}")]
        }
        None if path.starts_with('/') => vec![path.to_owned()],
        relative => {
            let relative = relative.unwrap_or(path);
            COMPONENT_SEARCH_PATH.iter().map(|root| format!("{root}/{relative}")).collect()
        }
    };
    for candidate in candidates {
        let Ok(path) = NodePath::new(&candidate) else { continue };
        if let Some(node) = snapshot.node(&path)? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}
