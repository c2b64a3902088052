//! Nodes: a document's own node, known by its record alone, and nodes inside a document, read from its body.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tympan_store::ChunkId;

use super::node_location::{NodeLocation, NodeLocationKind, is_visibility_cached, is_visible_to};
use super::pinned_snapshot::Snapshot;
use crate::access::{AccessMask, RecordExtent, is_guarded_name};
use crate::document::body::{BodyNode, DocumentBody};
use crate::document::borrowed_node::BorrowedNode;
use crate::document::borrowed_property::BorrowedProperty;
use crate::document::boundary::{is_container, is_own_content};
use crate::document::record::{ContentRecord, NodeSummary, summarize_subtree};
use crate::model::subtree::JCR_CONTENT;
use crate::{NodePath, Property, Result, Subtree};

/// A node, with the snapshot in which it was found.
#[derive(Clone)]
pub struct Node {
    pub(super) snapshot: Snapshot,
    pub(super) location: Arc<NodeLocation>,
    body: NodeBody,
    /// The parts of the document that are hidden from the viewer, computed on first access.
    access_mask: OnceLock<Option<Arc<AccessMask>>>,
    /// The header without the parts hidden from the viewer.
    visible_summary: OnceLock<NodeSummary>,
}

/// The body of a node's document.
pub(super) enum NodeBody {
    /// Loaded when the node is created, as for most nodes; this variant is cheaper to check than the lazy one.
    Loaded(Arc<DocumentBody>),
    /// Loaded on first access; `None` if loading failed.
    Lazy(OnceLock<Option<Arc<DocumentBody>>>),
}

impl Default for NodeBody {
    fn default() -> Self {
        Self::Lazy(OnceLock::new())
    }
}

impl Clone for NodeBody {
    fn clone(&self) -> Self {
        match self {
            Self::Loaded(body) => Self::Loaded(Arc::clone(body)),
            Self::Lazy(later) => match later.get() {
                Some(Some(body)) => Self::Loaded(Arc::clone(body)),
                _ => Self::Lazy(later.clone()),
            },
        }
    }
}

/// The nodes and bytes of subtrees that may still be read into memory.
#[derive(Debug, Clone)]
pub struct SubtreeBudget {
    nodes: usize,
    bytes: u64,
    is_exceeded: bool,
}

impl SubtreeBudget {
    /// Creates a budget of nodes, and of bytes of the stored documents that hold them.
    #[must_use]
    pub fn new(nodes: usize, bytes: u64) -> Self {
        Self { nodes, bytes, is_exceeded: false }
    }

    /// Returns true if a subtree did not fit.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    /// Takes nodes and bytes; returns false if less is left.
    pub fn take(&mut self, nodes: usize, bytes: u64) -> bool {
        self.is_exceeded |= nodes > self.nodes || bytes > self.bytes;
        self.nodes = self.nodes.saturating_sub(nodes);
        self.bytes = self.bytes.saturating_sub(bytes);
        !self.is_exceeded
    }
}

/// A document that was read already, whose nodes are created without a lookup.
pub struct LoadedDocument {
    pub(super) snapshot: Snapshot,
    pub(super) document: Arc<NodeLocation>,
    pub(super) body: Arc<DocumentBody>,
}

impl LoadedDocument {
    /// Returns the document's path.
    #[must_use]
    pub fn path(&self) -> &NodePath {
        &self.document.path
    }

    /// Creates the node at a position in the document, visible or not.
    #[must_use]
    pub fn node_at(&self, path: NodePath, at: BodyNode) -> Node {
        let (snapshot, body) = (self.snapshot.clone(), self.body.clone());
        if at == body.root() {
            return Node::at_location(snapshot, self.document.clone(), NodeBody::Loaded(body));
        }
        Node::in_document(snapshot, self.document.clone(), at, path, body)
    }
}

impl Node {
    /// Returns the absolute path.
    #[must_use]
    pub fn path(&self) -> &NodePath {
        &self.location.path
    }

    /// Returns the name; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path().name()
    }

    /// Returns the snapshot in which the node was found.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the primary type.
    #[must_use]
    pub fn primary_type(&self) -> &str {
        match &self.location.kind {
            NodeLocationKind::Document(record) => record.summary.primary_type(),
            NodeLocationKind::Inside { body_node, .. } => self
                .load_body()
                .and_then(|body| body.text(*body_node, "jcr:primaryType"))
                .unwrap_or("nt:unstructured"),
        }
    }

    /// Returns `sling:resourceType`.
    #[must_use]
    pub fn resource_type(&self) -> Option<String> {
        self.text("sling:resourceType")
    }

    /// Returns the record header without reading the body; `None` for nodes inside a document.
    #[must_use]
    pub fn summary(&self) -> Option<&NodeSummary> {
        match &self.location.kind {
            NodeLocationKind::Document(record) if self.is_summary_visible() => {
                Some(&record.summary)
            }
            NodeLocationKind::Document(_) => Some(self.visible_summary.get_or_init(|| {
                self.read_own_subtree().map(|tree| summarize_subtree(&tree)).unwrap_or_default()
            })),
            NodeLocationKind::Inside { .. } => None,
        }
    }

    /// Returns true if the node is a page.
    #[must_use]
    pub fn is_page(&self) -> bool {
        self.primary_type() == "cq:Page"
    }

    /// Returns a borrowed view of the node, without copying; `None` if the body failed to load.
    ///
    /// Children with records of their own, those that [`Node::listed_children`] returns, are not among its children.
    #[must_use]
    pub fn as_borrowed(&self) -> Option<BorrowedNode<'_>> {
        let body = self.load_body()?;
        Some(BorrowedNode::new(body, self.body_node(body), self.access_mask()))
    }

    /// Returns a property.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<Property> {
        self.as_borrowed()?.property(name).map(BorrowedProperty::to_property)
    }

    /// Returns a single text-like property.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        self.as_borrowed()?.text(name).map(str::to_owned)
    }

    /// Returns all properties, sorted by name.
    #[must_use]
    pub fn properties(&self) -> Vec<(String, Property)> {
        let Some(node) = self.as_borrowed() else {
            return Vec::new();
        };
        node.properties()
            .map(|(name, property)| (name.to_owned(), property.to_property()))
            .collect()
    }

    /// Finds a child.
    ///
    /// # Errors
    /// If the store fails.
    pub fn child(&self, name: &str) -> Result<Option<Self>> {
        let Ok(path) = self.path().child(name) else { return Ok(None) };
        if self.is_folder() && !is_own_content(self.primary_type(), name) {
            return self.snapshot.node(&path);
        }
        let Some(body) = self.load_body() else {
            return Ok(None);
        };
        let at = body.child(self.body_node(body), name);
        let at = at.filter(|at| self.access_mask().is_none_or(|mask| mask.is_visible(*at)));
        Ok(at.map(|at| self.inner_node(body, at, path)))
    }

    /// Finds a descendant by a relative path; an empty path returns the node itself.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find_descendant(&self, relative: &str) -> Result<Option<Self>> {
        let mut node = self.clone();
        for name in relative.split('/').filter(|name| !name.is_empty()) {
            match node.child(name)? {
                Some(child) => node = child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// Returns the parent; `None` for the root.
    ///
    /// # Errors
    /// If the store fails.
    pub fn parent(&self) -> Result<Option<Self>> {
        match self.path().parent() {
            Some(parent) => self.snapshot.node(&parent),
            None => Ok(None),
        }
    }

    /// Decodes the node with everything below it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_subtree(&self) -> Result<Subtree> {
        let mut tree = self.read_own_subtree()?;
        for child in self.listed_children()? {
            tree.children.push(child.read_subtree()?);
        }
        Ok(tree)
    }

    /// Decodes the node with everything below it, and takes it from a budget; `None` if the budget is exceeded.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_subtree_within(&self, budget: &mut SubtreeBudget) -> Result<Option<Subtree>> {
        let (path, record) = self.location.document_record();
        let bytes = self.snapshot.view.load_body(record, path)?.bytes().len() as u64;
        let mut tree = self.read_own_subtree()?;
        let children = self.count_listed_children()?;
        // The children are taken one by one; a budget that has no place for them all is empty before they are listed.
        if !budget.take(tree.node_count(), bytes) || !budget.clone().take(children, 0) {
            budget.take(children, 0);
            return Ok(None);
        }
        for child in self.listed_children()? {
            let Some(child) = child.read_subtree_within(budget)? else { return Ok(None) };
            tree.children.push(child);
        }
        Ok(Some(tree))
    }

    /// Decodes the part of the node's subtree that is stored in its own record.
    pub(crate) fn read_own_subtree(&self) -> Result<Subtree> {
        let (path, record) = self.location.document_record();
        let body = self.snapshot.view.load_body(record, path)?;
        let mask = self
            .snapshot
            .node_gate()
            .and_then(|gate| gate.compute_mask(path, &body, record_extent(path, record)));
        let mut tree = match mask {
            Some(mask) => mask.visible_subtree(&body, self.body_node(&body)),
            None => body.subtree(self.body_node(&body)),
        };
        self.name().clone_into(&mut tree.name);
        Ok(tree)
    }

    /// Returns true if the viewer may read every node and property that is stored in the node's own document. Policies
    /// and password data do not count: they are hidden from nearly all viewers.
    ///
    /// # Errors
    /// If the store fails.
    pub fn is_document_fully_visible(&self) -> Result<bool> {
        let Some(gate) = self.snapshot.node_gate() else { return Ok(true) };
        let (path, record) = self.location.document_record();
        let body = self.snapshot.view.load_body(record, path)?;
        let Some(mask) = gate.compute_mask(path, &body, record_extent(path, record)) else {
            return Ok(true);
        };
        let mut all = body.subtree(body.root());
        let mut visible = mask.visible_subtree(&body, body.root());
        remove_guarded_items(&mut all);
        remove_guarded_items(&mut visible);
        Ok(all == visible)
    }

    /// Returns the page's content: the child `jcr:content`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn content_node(&self) -> Result<Option<Self>> {
        self.child(JCR_CONTENT)
    }

    /// Returns a hash of everything in the node's record, for entity tags; `None` for nodes inside a document or with
    /// pending edits.
    #[must_use]
    pub fn body_id(&self) -> Option<ChunkId> {
        if self.access_mask().is_some() {
            return None;
        }
        self.record().body_id()
    }

    /// Returns true if the node's document has the same position among its siblings as that of a node of another state.
    #[must_use]
    pub fn has_same_sibling_position(&self, other: &Self) -> bool {
        self.record().order_key == other.record().order_key
    }

    pub(crate) fn record(&self) -> &ContentRecord {
        self.location.document_record().1
    }

    /// Returns the path of the record that holds this node.
    #[must_use]
    pub fn record_path(&self) -> &NodePath {
        self.location.document_record().0
    }

    /// Creates a node inside a document.
    pub(super) fn in_document(
        snapshot: Snapshot,
        document: Arc<NodeLocation>,
        at: BodyNode,
        path: NodePath,
        body: Arc<DocumentBody>,
    ) -> Self {
        let kind =
            NodeLocationKind::Inside { document, body_node: at, body: Arc::downgrade(&body) };
        Self::at_location(snapshot, NodeLocation::new(path, kind), NodeBody::Loaded(body))
    }

    pub(super) fn at_location(
        snapshot: Snapshot,
        location: Arc<NodeLocation>,
        body: NodeBody,
    ) -> Self {
        Self {
            snapshot,
            location,
            body,
            access_mask: OnceLock::new(),
            visible_summary: OnceLock::new(),
        }
    }

    /// Releases the document's body, so that many nodes can be held; it is loaded again on the next access.
    pub fn release_body(&mut self) {
        self.body = NodeBody::default();
    }

    /// Returns true if the snapshot's viewer sees the node. A node that was found by a lookup is visible.
    #[must_use]
    pub fn is_visible(&self) -> bool {
        let Some(gate) = self.snapshot.node_gate() else { return true };
        let decide = || gate.can_see(self.path(), self.primary_type());
        is_visible_to(gate, &self.location.visibility.node_rules, decide)
    }

    /// Returns true if the snapshot's viewer sees the whole document that holds the node.
    #[must_use]
    pub fn is_document_visible(&self) -> bool {
        self.is_summary_visible() && self.access_mask().is_none()
    }

    /// Returns true if the snapshot's viewer sees everything in the record's header.
    fn is_summary_visible(&self) -> bool {
        let Some(gate) = self.snapshot.node_gate() else { return true };
        let (location, record) = self.location.document_location();
        let decide = || gate.can_see_record(&location.path, record_extent(&location.path, record));
        is_visible_to(gate, &location.visibility.header_rules, decide)
    }

    /// Returns the parts of the document that are hidden from the snapshot's viewer.
    pub(super) fn access_mask(&self) -> Option<&AccessMask> {
        let gate = self.snapshot.node_gate()?;
        if let Some(cached_mask) = self.access_mask.get() {
            return cached_mask.as_deref();
        }
        let (location, record) = self.location.document_location();
        // In most documents nothing is hidden, so nothing is stored per node for these.
        if is_visibility_cached(gate, &location.visibility.document_rules) {
            return None;
        }
        let find = || {
            let body = self.load_body()?;
            let mut mask = None;
            let decide = || {
                mask =
                    gate.compute_mask(&location.path, body, record_extent(&location.path, record));
                mask.is_none()
            };
            is_visible_to(gate, &location.visibility.document_rules, decide);
            mask
        };
        self.access_mask.get_or_init(find).as_deref()
    }

    /// Returns the location of the document that holds the node.
    pub(super) fn document_location(&self) -> &Arc<NodeLocation> {
        match &self.location.kind {
            NodeLocationKind::Document(_) => &self.location,
            NodeLocationKind::Inside { document, .. } => document,
        }
    }

    /// Creates the node of a child inside the same document.
    pub(super) fn inner_node(
        &self,
        body: &Arc<DocumentBody>,
        at: BodyNode,
        path: NodePath,
    ) -> Self {
        let document = self.document_location().clone();
        let node = Self::in_document(self.snapshot.clone(), document, at, path, body.clone());
        Self { access_mask: self.access_mask.clone(), ..node }
    }

    /// Returns the position of the node in its document's body.
    pub(super) fn body_node(&self, body: &DocumentBody) -> BodyNode {
        match &self.location.kind {
            NodeLocationKind::Document(_) => body.root(),
            NodeLocationKind::Inside { body_node, .. } => *body_node,
        }
    }

    /// Returns the body, loading it on the first call; a failure is recorded in the snapshot.
    pub(super) fn load_body(&self) -> Option<&Arc<DocumentBody>> {
        let load = || {
            let (path, record) = self.location.document_record();
            match self.snapshot.view.load_body(record, path) {
                Ok(body) => Some(body),
                Err(error) => {
                    tracing::error!(path = %path, error = %error, "cannot read a document");
                    self.snapshot.record_failure(error);
                    None
                }
            }
        };
        match &self.body {
            NodeBody::Loaded(body) => Some(body),
            NodeBody::Lazy(later) => later.get_or_init(load).as_ref(),
        }
    }
}

/// Returns the part of a subtree that is stored in the record at its top.
fn record_extent(path: &NodePath, record: &ContentRecord) -> RecordExtent {
    match record.summary.primary_type() {
        "cq:Page" if path.name() != JCR_CONTENT => RecordExtent::JcrContent,
        primary_type if is_container(path.name(), primary_type) => RecordExtent::None,
        _ => RecordExtent::All,
    }
}

impl fmt::Debug for LoadedDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedDocument({})", self.path())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.path())
    }
}

/// Removes the policies and password data of a subtree.
fn remove_guarded_items(tree: &mut Subtree) {
    tree.properties.retain(|name, _| !is_guarded_name(name));
    tree.children.retain(|child| !is_guarded_name(&child.name));
    tree.children.iter_mut().for_each(remove_guarded_items);
}
