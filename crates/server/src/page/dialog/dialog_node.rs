//! The nodes of a dialog's tree.

use tympan_content::Property;

use super::dialog_context::COMPONENT_SEARCH_PATH;

/// Children of a dialog's node that are no items.
const DATA_NODES: [&str; 5] = ["items", "datasource", "rendercondition", "data", "cq:inherit"];

/// A node of a dialog.
#[derive(Debug, Clone, Default)]
pub(super) struct DialogNode {
    pub(super) name: String,
    pub(super) properties: Vec<(String, Property)>,
    pub(super) children: Vec<DialogNode>,
}

impl DialogNode {
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
