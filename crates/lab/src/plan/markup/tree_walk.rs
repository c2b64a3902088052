//! Traversals of a tree: descendants, ancestors, siblings.

use super::{MarkupNodeId, MarkupTree};

impl MarkupTree {
    /// Returns all descendants of a node in document order.
    pub(super) fn descendants(
        &self,
        place: MarkupNodeId,
    ) -> impl Iterator<Item = MarkupNodeId> + '_ {
        let mut open: Vec<MarkupNodeId> = self.children(place).iter().rev().copied().collect();
        std::iter::from_fn(move || {
            let next = open.pop()?;
            open.extend(self.children(next).iter().rev());
            Some(next)
        })
    }

    /// Returns the ancestors of a node, the nearest first.
    pub(super) fn ancestors(&self, place: MarkupNodeId) -> impl Iterator<Item = MarkupNodeId> + '_ {
        std::iter::successors(self.parent(place), move |above| self.parent(*above))
    }

    /// Returns the siblings after a node, in document order.
    pub(super) fn following_siblings(&self, place: MarkupNodeId) -> &[MarkupNodeId] {
        let siblings = self.siblings(place);
        let at = siblings.iter().position(|one| *one == place);
        at.and_then(|at| siblings.get(at + 1..)).unwrap_or_default()
    }

    /// Returns the siblings before a node, in document order.
    pub(super) fn preceding_siblings(&self, place: MarkupNodeId) -> &[MarkupNodeId] {
        let siblings = self.siblings(place);
        let at = siblings.iter().position(|one| *one == place);
        at.and_then(|at| siblings.get(..at)).unwrap_or_default()
    }

    /// Returns the element children of a node's parent, including the node.
    pub(super) fn element_siblings(&self, place: MarkupNodeId) -> Vec<MarkupNodeId> {
        self.siblings(place).iter().copied().filter(|one| self.is_element(*one)).collect()
    }

    fn siblings(&self, place: MarkupNodeId) -> &[MarkupNodeId] {
        self.parent(place).map_or(&[], |parent| self.children(parent))
    }
}
