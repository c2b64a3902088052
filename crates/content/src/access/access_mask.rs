//! The parts of a document that are hidden from a viewer.

use std::collections::{HashMap, HashSet};

use crate::document::body::{BodyNode, DocumentBody};
use crate::model::subtree::Subtree;

/// The hidden parts of a document.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct AccessMask {
    /// Hidden nodes, by their offset in the body.
    pub(super) hidden_nodes: HashSet<u32>,
    /// Hidden properties by node; `None` means all properties of the node.
    pub(super) hidden_properties: HashMap<u32, Option<Vec<Box<str>>>>,
}

impl AccessMask {
    /// Returns true if a node is visible.
    pub(crate) fn is_visible(&self, node: BodyNode) -> bool {
        !self.hidden_nodes.contains(&node.offset_id())
    }

    /// Decodes the visible part of a node and its descendants.
    pub(crate) fn visible_subtree(&self, body: &DocumentBody, node: BodyNode) -> Subtree {
        let properties =
            body.properties(node).filter(|(name, _)| self.is_property_visible(node, name));
        let children = body.children(node).filter(|child| self.is_visible(*child));
        Subtree {
            name: body.name(node).to_owned(),
            properties: properties
                .map(|(name, property)| (name.to_owned(), property.to_property()))
                .collect(),
            children: children.map(|child| self.visible_subtree(body, child)).collect(),
        }
    }

    /// Returns true if a property of a node is visible.
    pub(crate) fn is_property_visible(&self, node: BodyNode, name: &str) -> bool {
        match self.hidden_properties.get(&node.offset_id()) {
            None => true,
            Some(None) => false,
            Some(Some(hidden)) => !hidden.iter().any(|hidden_name| **hidden_name == *name),
        }
    }
}
