//! A node with everything below it, as plain values, for importers and editors.

use std::collections::{BTreeMap, BTreeSet};

use super::subtree_children::SubtreeChildren;
use crate::{Error, Property, Result, Value, check_item_name};

/// The name of the property that holds a node's primary type.
pub const PRIMARY_TYPE: &str = "jcr:primaryType";
/// The name of the property that lists a node's mixins.
pub const MIXIN_TYPES: &str = "jcr:mixinTypes";
/// The name of the property that holds a node's identifier.
pub(crate) const UUID_PROPERTY: &str = "jcr:uuid";
/// The name of the node that holds a page's or file's content.
pub const JCR_CONTENT: &str = "jcr:content";
/// The type of the root node of a new repository.
pub(crate) const ROOT_NODE_TYPE: &str = "rep:root";

/// The maximum depth of a tree. Deeper trees are rejected before any traversal, because a path has at most 1,000 bytes.
const MAX_SUBTREE_DEPTH: usize = 500;

/// A node with its properties, by name, and its children, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subtree {
    /// The node's name; empty for the root of the repository.
    pub name: String,
    /// The properties; `jcr:primaryType` is one of them.
    pub properties: BTreeMap<String, Property>,
    /// The children in order; no two have the same name.
    pub children: SubtreeChildren,
}

/// The extent of an operation on a subtree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubtreeScope {
    /// The document itself.
    Document,
    /// The document and every document below it.
    Subtree,
}

impl Subtree {
    /// Creates a node without children.
    #[must_use]
    pub fn new(name: impl Into<String>, primary_type: &str) -> Self {
        let mut node = Self { name: name.into(), ..Self::default() };
        node.properties.insert(PRIMARY_TYPE.to_owned(), Property::name(primary_type));
        node
    }

    /// Sets a property and returns the node, for building trees in one expression.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, property: impl Into<Property>) -> Self {
        self.properties.insert(name.into(), property.into());
        self
    }

    /// Adds or replaces a child and returns the node.
    #[must_use]
    pub fn with_child(mut self, child: Self) -> Self {
        self.put_child(child);
        self
    }

    /// Returns the primary type; `nt:unstructured` if none is set.
    #[must_use]
    pub fn primary_type(&self) -> &str {
        self.text(PRIMARY_TYPE).unwrap_or("nt:unstructured")
    }

    /// Returns a single text-like property.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.properties.get(name)?.first()?.as_str()
    }

    /// Finds a child.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.find(name)
    }

    /// Finds a child for modification.
    pub fn child_mut(&mut self, name: &str) -> Option<&mut Self> {
        self.children.find_mut(name)
    }

    /// Adds a child at the end, or replaces the child with the same name.
    pub fn put_child(&mut self, child: Self) {
        self.children.put(child);
    }

    /// Finds a child for modification; if there is none of this name, `create` makes the one that is added at the end.
    pub fn child_or_insert_with(&mut self, name: &str, create: impl FnOnce() -> Self) -> &mut Self {
        self.children.find_mut_or_push(name, create)
    }

    /// Removes a child and returns it.
    pub fn remove_child(&mut self, name: &str) -> Option<Self> {
        self.children.take(name)
    }

    /// Removes all children of some names.
    pub fn remove_children(&mut self, is_removed: impl Fn(&str) -> bool) {
        self.children.retain(|child| !is_removed(&child.name));
    }

    /// Finds a descendant by a relative path such as `jcr:content/root`; an empty path returns the node itself.
    #[must_use]
    pub fn find_descendant(&self, relative: &str) -> Option<&Self> {
        relative
            .split('/')
            .filter(|name| !name.is_empty())
            .try_fold(self, |node, name| node.child(name))
    }

    /// Finds a descendant for modification.
    pub fn find_descendant_mut(&mut self, relative: &str) -> Option<&mut Self> {
        relative
            .split('/')
            .filter(|name| !name.is_empty())
            .try_fold(self, |node, name| node.child_mut(name))
    }

    /// Counts the nodes, this one included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        1 + self.children.iter().map(Self::node_count).sum::<usize>()
    }

    /// Returns the number of bytes of all names and values as texts.
    pub(crate) fn text_bytes(&self) -> u64 {
        let properties = self.properties.iter();
        let own: u64 =
            properties.map(|(name, property)| name.len() as u64 + property.text_bytes()).sum();
        let below: u64 = self.children.iter().map(Self::text_bytes).sum();
        self.name.len() as u64 + own + below
    }

    /// Checks every name in the tree (except this node's own, which is part of its path) and every primary type.
    ///
    /// # Errors
    /// [`crate::Error::InvalidName`] for the first name that JCR rejects, and for a node deeper than any path can be.
    pub fn check_names(&self) -> Result<()> {
        self.check_names_from(0)
    }

    fn check_names_from(&self, depth: usize) -> Result<()> {
        if depth > MAX_SUBTREE_DEPTH {
            let reason = "it is nested deeper than 500 nodes";
            return Err(Error::InvalidName { text: self.name.clone(), subject: "tree", reason });
        }
        self.properties.keys().try_for_each(|name| check_item_name(name))?;
        if let Some(Property::Single(Value::String(name) | Value::Name(name))) =
            self.properties.get(PRIMARY_TYPE)
        {
            check_item_name(name)?;
        }
        let mut names = BTreeSet::new();
        for child in &self.children {
            check_item_name(&child.name)?;
            if !names.insert(&child.name) {
                let reason = "a sibling already has it, and same-name siblings are not supported";
                return Err(Error::InvalidName {
                    text: child.name.clone(),
                    subject: "name",
                    reason,
                });
            }
            child.check_names_from(depth + 1)?;
        }
        Ok(())
    }
}
