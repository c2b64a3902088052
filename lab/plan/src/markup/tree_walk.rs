//! Traversals of a tree: descendants, ancestors, siblings.

use super::tree::{MarkupNodeId, MarkupTree};

impl MarkupTree {
    /// Returns all descendants of a node in document order.
    pub(super) fn descendants(&self, id: MarkupNodeId) -> impl Iterator<Item = MarkupNodeId> + '_ {
        let mut open: Vec<MarkupNodeId> = self.children(id).iter().rev().copied().collect();
        std::iter::from_fn(move || {
            let next = open.pop()?;
            open.extend(self.children(next).iter().rev());
            Some(next)
        })
    }

    /// Returns the ancestors of a node, the nearest first.
    pub(super) fn ancestors(&self, id: MarkupNodeId) -> impl Iterator<Item = MarkupNodeId> + '_ {
        std::iter::successors(self.parent(id), move |above| self.parent(*above))
    }

    /// Returns the siblings after a node, in document order.
    pub(super) fn following_siblings(&self, id: MarkupNodeId) -> &[MarkupNodeId] {
        let siblings = self.siblings(id);
        let at = siblings.iter().position(|sibling| *sibling == id);
        at.and_then(|at| siblings.get(at + 1..)).unwrap_or_default()
    }

    /// Returns the siblings before a node, in document order.
    pub(super) fn preceding_siblings(&self, id: MarkupNodeId) -> &[MarkupNodeId] {
        let siblings = self.siblings(id);
        let at = siblings.iter().position(|sibling| *sibling == id);
        at.and_then(|at| siblings.get(..at)).unwrap_or_default()
    }

    /// Returns the element children of a node's parent, including the node.
    pub(super) fn element_siblings(&self, id: MarkupNodeId) -> Vec<MarkupNodeId> {
        self.siblings(id).iter().copied().filter(|sibling| self.is_element(*sibling)).collect()
    }

    fn siblings(&self, id: MarkupNodeId) -> &[MarkupNodeId] {
        self.parent(id).map_or(&[], |parent| self.children(parent))
    }
}
