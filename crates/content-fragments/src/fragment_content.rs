//! The interface through which queries read content, so that a caller can record what an answer depends on.

use std::sync::Arc;

use tympan_content::{Node, NodePath, Property, Snapshot};

use crate::fragment_index::FragmentIndexCache;
use crate::fragment_list::{FragmentListQuery, FragmentPage};

/// Reads content for one request, as its user sees it.
pub trait FragmentContent: Send + Sync {
    /// Finds a node; only its existence and type count as read.
    fn node(&self, path: &NodePath) -> Option<Node>;

    /// Finds a child; only its existence and type count as read.
    fn child(&self, node: &Node, name: &str) -> Option<Node>;

    /// Returns the children in order.
    fn children(&self, node: &Node) -> Vec<Node>;

    /// Returns a property of a node.
    fn property(&self, node: &Node, name: &str) -> Option<Property>;

    /// Returns all properties of a node, sorted by name.
    fn properties(&self, node: &Node) -> Vec<(String, Property)>;

    /// Selects fragments. The result counts as read, and not what was read to find it.
    fn select_fragments(&self, query: &FragmentListQuery) -> FragmentPage;

    /// Returns the number of fragments of a model, for estimates.
    fn count_fragments(&self, model: &str) -> usize;
}

/// Reads a snapshot without recording.
#[derive(Debug)]
pub struct SnapshotContent {
    snapshot: Snapshot,
    indexes: Arc<FragmentIndexCache>,
}

impl SnapshotContent {
    /// Creates a reader of a snapshot.
    #[must_use]
    pub fn new(snapshot: Snapshot, indexes: Arc<FragmentIndexCache>) -> Self {
        Self { snapshot, indexes }
    }
}

impl FragmentContent for SnapshotContent {
    fn node(&self, path: &NodePath) -> Option<Node> {
        self.snapshot.node(path).ok().flatten()
    }

    fn child(&self, node: &Node, name: &str) -> Option<Node> {
        node.child(name).ok().flatten()
    }

    fn children(&self, node: &Node) -> Vec<Node> {
        node.children().unwrap_or_default()
    }

    fn property(&self, node: &Node, name: &str) -> Option<Property> {
        node.property(name)
    }

    fn properties(&self, node: &Node) -> Vec<(String, Property)> {
        node.properties()
    }

    fn select_fragments(&self, query: &FragmentListQuery) -> FragmentPage {
        match self.indexes.index_at(&self.snapshot).and_then(|index| query.evaluate(&index)) {
            Ok(page) => page,
            Err(error) => {
                tracing::error!(error = %error, "cannot read content fragments");
                FragmentPage::default()
            }
        }
    }

    fn count_fragments(&self, model: &str) -> usize {
        self.indexes.index_at(&self.snapshot).map_or(0, |index| index.fragments_of(model).len())
    }
}
