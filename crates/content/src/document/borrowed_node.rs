//! Nodes read in place: nothing is copied out of the document that holds them.
//!
//! In: a [`DocumentBody`], which was validated completely when it was opened. Out: names and properties that borrow
//! from it.

use std::fmt;

use crate::access::AccessMask;
use crate::document::body::{BodyNode, DocumentBody};
use crate::document::borrowed_property::BorrowedProperty;

/// A node of a document, read in place. Children with records of their own are not among its children.
#[derive(Clone, Copy)]
pub struct BorrowedNode<'a> {
    body: &'a DocumentBody,
    body_node: BodyNode,
    /// The hidden parts of the body.
    mask: Option<&'a AccessMask>,
}

impl<'a> BorrowedNode<'a> {
    pub(crate) fn new(body: &'a DocumentBody, at: BodyNode, mask: Option<&'a AccessMask>) -> Self {
        Self { body, body_node: at, mask }
    }

    /// Returns the node's position in its document.
    #[inline]
    #[must_use]
    pub fn body_node(self) -> BodyNode {
        self.body_node
    }

    /// Returns the name; it is empty for a document's own node, whose name is in its path.
    #[inline]
    #[must_use]
    pub fn name(self) -> &'a str {
        self.body.name(self.body_node)
    }

    /// Returns a property.
    #[inline]
    #[must_use]
    pub fn property(self, name: &str) -> Option<BorrowedProperty<'a>> {
        let is_shown = self.mask.is_none_or(|mask| mask.is_property_visible(self.body_node, name));
        self.body.property(self.body_node, name).filter(|_| is_shown)
    }

    /// Returns a single text-like property.
    #[inline]
    #[must_use]
    pub fn text(self, name: &str) -> Option<&'a str> {
        let is_shown = self.mask.is_none_or(|mask| mask.is_property_visible(self.body_node, name));
        self.body.text(self.body_node, name).filter(|_| is_shown)
    }

    /// Returns all properties, sorted by name.
    pub fn properties(self) -> impl Iterator<Item = (&'a str, BorrowedProperty<'a>)> {
        let Self { body, body_node, mask } = self;
        let is_shown =
            move |name: &str| mask.is_none_or(|mask| mask.is_property_visible(body_node, name));
        body.properties(body_node).filter(move |(name, _)| is_shown(name))
    }

    /// Returns the children in order.
    pub fn children(self) -> impl Iterator<Item = Self> {
        let Self { body, body_node: at, mask } = self;
        let is_shown = move |at: &BodyNode| mask.is_none_or(|mask| mask.is_visible(*at));
        body.children(at).filter(is_shown).map(move |at| Self { body, body_node: at, mask })
    }

    /// Finds a child by name.
    #[must_use]
    pub fn child(self, name: &str) -> Option<Self> {
        let at = self.body.child(self.body_node, name)?;
        let is_shown = self.mask.is_none_or(|mask| mask.is_visible(at));
        is_shown.then_some(Self { body_node: at, ..self })
    }
}

impl fmt::Debug for BorrowedNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BorrowedNode({})", self.name())
    }
}
