//! Nodes: a document's own, known by its record alone, and those inside it, read in its body.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tympan_store::ChunkId;

use super::Snapshot;
use super::place::{Place, PlaceKind, is_known_to, is_seen_by};
use crate::access::{Inner, Mask};
use crate::body::{Body, BodyNode};
use crate::borrowed::{BorrowedNode, BorrowedProperty};
use crate::boundary::{is_container, is_own_content};
use crate::record::{Record, Summary, summary_of};
use crate::subtree::JCR_CONTENT;
use crate::{NodePath, Property, Result, Subtree};

/// A node, with the snapshot it was found in.
#[derive(Clone)]
pub struct Node {
    pub(super) snapshot: Snapshot,
    pub(super) place: Arc<Place>,
    body: HeldBody,
    /// What of the document the viewer does not see, once something of it was asked for.
    mask: OnceLock<Option<Arc<Mask>>>,
    /// The header without what the viewer does not see.
    seen_summary: OnceLock<Summary>,
}

/// The body of a node's document.
pub(super) enum HeldBody {
    /// Known when the node was made. Most nodes are, and to say so costs less than to find it out.
    Known(Arc<Body>),
    /// Loaded once something of it is asked for; nothing if that failed.
    Later(OnceLock<Option<Arc<Body>>>),
}

impl Default for HeldBody {
    fn default() -> Self {
        Self::Later(OnceLock::new())
    }
}

impl Clone for HeldBody {
    fn clone(&self) -> Self {
        match self {
            Self::Known(body) => Self::Known(Arc::clone(body)),
            Self::Later(later) => match later.get() {
                Some(Some(body)) => Self::Known(Arc::clone(body)),
                _ => Self::Later(later.clone()),
            },
        }
    }
}

/// A document that was read already, whose nodes need no looking up.
pub(crate) struct Opened {
    pub(super) snapshot: Snapshot,
    pub(super) document: Arc<Place>,
    pub(super) body: Arc<Body>,
}

impl Opened {
    /// Returns the document's path.
    pub(crate) fn path(&self) -> &NodePath {
        &self.document.path
    }

    /// Makes the node at a place in the body, seen or not.
    pub(crate) fn node(&self, path: NodePath, at: BodyNode) -> Node {
        let (snapshot, body) = (self.snapshot.clone(), self.body.clone());
        if at == body.root() {
            return Node::at_place(snapshot, self.document.clone(), HeldBody::Known(body));
        }
        Node::inside(snapshot, self.document.clone(), at, path, body)
    }
}

impl Node {
    /// Returns the absolute path.
    #[must_use]
    pub fn path(&self) -> &NodePath {
        &self.place.path
    }

    /// Returns the name; it is empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path().name()
    }

    /// Returns the snapshot that the node was found in.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the primary type.
    #[must_use]
    pub fn primary_type(&self) -> &str {
        match &self.place.kind {
            PlaceKind::Document(record) => record.summary.primary_type(),
            PlaceKind::Inside { at, .. } => self
                .body()
                .and_then(|body| body.text(*at, "jcr:primaryType"))
                .unwrap_or("nt:unstructured"),
        }
    }

    /// Returns `sling:resourceType`.
    #[must_use]
    pub fn resource_type(&self) -> Option<String> {
        self.text("sling:resourceType")
    }

    /// Returns what listings show, without reading the body; nothing for nodes inside a document.
    #[must_use]
    pub fn summary(&self) -> Option<&Summary> {
        match &self.place.kind {
            PlaceKind::Document(record) if self.sees_record() => Some(&record.summary),
            PlaceKind::Document(_) => {
                Some(self.seen_summary.get_or_init(|| {
                    self.read_own().map(|tree| summary_of(&tree)).unwrap_or_default()
                }))
            }
            PlaceKind::Inside { .. } => None,
        }
    }

    /// Tells whether the node is a page.
    #[must_use]
    pub fn is_page(&self) -> bool {
        self.primary_type() == "cq:Page"
    }

    /// Returns the node to read in place, without copying; nothing if the body failed to load.
    ///
    /// Children with records of their own, those that [`Node::listed_children`] gives, are not among its children.
    #[must_use]
    pub fn borrowed(&self) -> Option<BorrowedNode<'_>> {
        let body = self.body()?;
        Some(BorrowedNode::new(body, self.at(body), self.mask()))
    }

    /// Returns a property.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<Property> {
        self.borrowed()?.property(name).map(BorrowedProperty::to_property)
    }

    /// Returns a single text-like property.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        self.borrowed()?.text(name).map(str::to_owned)
    }

    /// Returns all properties, sorted by name.
    #[must_use]
    pub fn properties(&self) -> Vec<(String, Property)> {
        let Some(node) = self.borrowed() else {
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
        let Some(body) = self.body() else {
            return Ok(None);
        };
        let at = body.child(self.at(body), name);
        let at = at.filter(|at| self.mask().is_none_or(|mask| mask.shows(*at)));
        Ok(at.map(|at| self.inner(body, at, path)))
    }

    /// Finds a node below by a relative path; an empty one is the node itself.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find(&self, relative: &str) -> Result<Option<Self>> {
        let mut node = self.clone();
        for name in relative.split('/').filter(|name| !name.is_empty()) {
            match node.child(name)? {
                Some(child) => node = child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// Returns the parent; nothing for the root.
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
    pub fn read(&self) -> Result<Subtree> {
        let mut tree = self.read_own()?;
        for child in self.listed_children()? {
            tree.children.push(child.read()?);
        }
        Ok(tree)
    }

    /// Decodes the part of the node's subtree that lies in its own record.
    pub(crate) fn read_own(&self) -> Result<Subtree> {
        let (path, record) = self.place.document();
        let body = self.snapshot.0.body(record, path)?;
        let mask = self
            .snapshot
            .1
            .as_ref()
            .and_then(|gate| gate.mask(path, &body, inner_of(path, record)));
        let mut tree = match mask {
            Some(mask) => mask.subtree(&body, self.at(&body)),
            None => body.subtree(self.at(&body)),
        };
        self.name().clone_into(&mut tree.name);
        Ok(tree)
    }

    /// Returns the page's content: the child `jcr:content`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn content(&self) -> Result<Option<Self>> {
        self.child(JCR_CONTENT)
    }

    /// Returns a hash of everything in the node's record, for entity tags; nothing for nodes inside a document or
    /// with pending edits.
    #[must_use]
    pub fn body_id(&self) -> Option<ChunkId> {
        if self.mask().is_some() {
            return None;
        }
        self.record().body_id()
    }

    /// Tells whether the node's document has the same place among its siblings as that of a node of another state.
    #[must_use]
    pub fn is_placed_like(&self, other: &Self) -> bool {
        self.record().order == other.record().order
    }

    pub(crate) fn record(&self) -> &Record {
        self.place.document().1
    }

    /// Returns the path of the record that holds this node.
    #[must_use]
    pub fn owner(&self) -> &NodePath {
        self.place.document().0
    }

    /// Makes a node inside a document.
    pub(super) fn inside(
        snapshot: Snapshot,
        document: Arc<Place>,
        at: BodyNode,
        path: NodePath,
        body: Arc<Body>,
    ) -> Self {
        let kind = PlaceKind::Inside { document, at, body: Arc::downgrade(&body) };
        Self::at_place(snapshot, Place::new(path, kind), HeldBody::Known(body))
    }

    pub(super) fn at_place(snapshot: Snapshot, place: Arc<Place>, body: HeldBody) -> Self {
        Self { snapshot, place, body, mask: OnceLock::new(), seen_summary: OnceLock::new() }
    }

    /// Returns the path of the document that holds the node.
    pub(crate) fn document_path(&self) -> &NodePath {
        self.place.document().0
    }

    /// Lets go of the document's body, which is loaded anew when something of it is asked for.
    pub(crate) fn release_body(&mut self) {
        self.body = HeldBody::default();
    }

    /// Tells whether the snapshot's viewer sees the node.
    pub(crate) fn is_seen(&self) -> bool {
        let Some(gate) = &self.snapshot.1 else { return true };
        let decide = || gate.sees(self.path(), self.primary_type());
        is_seen_by(gate, &self.place.seen.node, decide)
    }

    /// Tells whether the snapshot's viewer sees all of the document that holds the node.
    pub(crate) fn is_whole(&self) -> bool {
        self.sees_record() && self.mask().is_none()
    }

    /// Tells whether the snapshot's viewer sees all that the record's header tells.
    fn sees_record(&self) -> bool {
        let Some(gate) = &self.snapshot.1 else { return true };
        let (place, record) = self.place.document_place();
        let decide = || gate.sees_record(&place.path, inner_of(&place.path, record));
        is_seen_by(gate, &place.seen.header, decide)
    }

    /// Returns what of the document is hidden from the snapshot's viewer.
    pub(super) fn mask(&self) -> Option<&Mask> {
        let gate = self.snapshot.1.as_ref()?;
        if let Some(known) = self.mask.get() {
            return known.as_deref();
        }
        let (place, record) = self.place.document_place();
        // Nothing is hidden of most documents, which is not worth a note of each node.
        if is_known_to(gate, &place.seen.document) {
            return None;
        }
        let find = || {
            let body = self.body()?;
            let mut mask = None;
            let decide = || {
                mask = gate.mask(&place.path, body, inner_of(&place.path, record));
                mask.is_none()
            };
            is_seen_by(gate, &place.seen.document, decide);
            mask
        };
        self.mask.get_or_init(find).as_deref()
    }

    /// Returns the place of the document that holds the node.
    pub(super) fn document_place(&self) -> &Arc<Place> {
        match &self.place.kind {
            PlaceKind::Document(_) => &self.place,
            PlaceKind::Inside { document, .. } => document,
        }
    }

    /// Makes the node of a child inside the same document.
    pub(super) fn inner(&self, body: &Arc<Body>, at: BodyNode, path: NodePath) -> Self {
        let document = self.document_place().clone();
        let node = Self::inside(self.snapshot.clone(), document, at, path, body.clone());
        Self { mask: self.mask.clone(), ..node }
    }

    /// Returns where the node is in its document's body.
    pub(super) fn at(&self, body: &Body) -> BodyNode {
        match &self.place.kind {
            PlaceKind::Document(_) => body.root(),
            PlaceKind::Inside { at, .. } => *at,
        }
    }

    /// Returns the body, loading it at the first call; a failure is kept in the snapshot.
    pub(super) fn body(&self) -> Option<&Arc<Body>> {
        let load = || {
            let (path, record) = self.place.document();
            match self.snapshot.0.body(record, path) {
                Ok(body) => Some(body),
                Err(error) => {
                    tracing::error!(path = %path, error = %error, "document cannot be read");
                    self.snapshot.fail(error);
                    None
                }
            }
        };
        match &self.body {
            HeldBody::Known(body) => Some(body),
            HeldBody::Later(later) => later.get_or_init(load).as_ref(),
        }
    }
}

/// Returns what of a subtree lies in the record at its top.
fn inner_of(path: &NodePath, record: &Record) -> Inner {
    match record.summary.primary_type() {
        "cq:Page" if path.name() != JCR_CONTENT => Inner::Content,
        primary_type if is_container(path.name(), primary_type) => Inner::None,
        _ => Inner::All,
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.path())
    }
}
