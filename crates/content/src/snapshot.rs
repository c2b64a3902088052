//! Snapshots: reading one pinned root, node by node.
//!
//! In: a root of the repository (and, inside a session, its pending edits). Out: [`Node`]s, read lazily.
//!
//! Invariants
//! * Everything read through one snapshot belongs to one state; commits of others never show.
//! * Listing a folder or a page's sub-pages reads record headers only, no bodies.
//!
//! On failure: looking nodes up returns errors. A body that fails to load later, while properties are read, leaves
//! the properties absent and the error in [`Snapshot::failure`], which whoever answers a request must ask.

use std::collections::BTreeMap;
use std::fmt;

use std::sync::{Arc, OnceLock};

use tympan_store::{ChunkId, Map, Pin, Value as Stored};

use crate::body::{Body, BodyNode};
use crate::boundary::{has_ordered_children, is_container, is_own_content};
use crate::record::{BodyPlace, Record, Summary};
use crate::repository::Shared;
use crate::subtree::JCR_CONTENT;
use crate::{Error, NodePath, Property, Result, Subtree, keys};

/// Pending edits by key: a record put, or nothing where one was removed.
pub(crate) type Overlay = BTreeMap<Vec<u8>, Option<Arc<Record>>>;

/// One state of the content, pinned.
#[derive(Clone)]
pub struct Snapshot(pub(crate) Arc<View>);

/// What a snapshot reads from.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) shared: Arc<Shared>,
    pub(crate) root: ChunkId,
    pub(crate) content: Map,
    pub(crate) overlay: Overlay,
    /// Keeps the root from being collected while the view is read.
    _pin: Option<Pin>,
    failure: OnceLock<Arc<Error>>,
}

/// A node, with the snapshot it was found in.
#[derive(Clone)]
pub struct Node {
    snapshot: Snapshot,
    document: Arc<Document>,
    /// The place inside the body; nothing for the document's own node, which needs no body to be known.
    at: Option<BodyNode>,
    path: NodePath,
}

/// A record and its body, loaded when it is first needed.
struct Document {
    path: NodePath,
    record: Arc<Record>,
    body: OnceLock<Option<Arc<Body>>>,
}

impl View {
    pub(crate) fn new(shared: Arc<Shared>, root: ChunkId, content: Map) -> Self {
        Self {
            shared,
            root,
            content,
            overlay: Overlay::new(),
            _pin: None,
            failure: OnceLock::new(),
        }
    }

    /// Opens a state that stays readable as long as the view.
    pub(crate) fn pinned(shared: Arc<Shared>, pin: Pin, content: Map) -> Self {
        let root = pin.root();
        Self { _pin: Some(pin), ..Self::new(shared, root, content) }
    }

    /// Reads the record with this key, pending edits first.
    pub(crate) fn record(&self, key: &[u8], path: &NodePath) -> Result<Option<Arc<Record>>> {
        if let Some(edit) = self.overlay.get(key) {
            return Ok(edit.clone());
        }
        match self.content.get(self.shared.reads(), key)? {
            Some(stored) => Ok(Some(Arc::new(decode(&stored, path)?))),
            None => Ok(None),
        }
    }

    /// Lists the records with keys in a range, pending edits applied, sorted by key.
    pub(crate) fn records(&self, range: &keys::KeyRange) -> Result<Vec<(Vec<u8>, Arc<Record>)>> {
        let bounds = range.bounds();
        let mut found = Vec::new();
        let mut edits = self.overlay.range::<[u8], _>(bounds).peekable();
        let put = |found: &mut Vec<_>, key: &Vec<u8>, edit: &Option<Arc<Record>>| {
            if let Some(record) = edit {
                found.push((key.clone(), record.clone()));
            }
        };
        for entry in self.content.range(self.shared.reads(), bounds) {
            let (key, stored) = entry?;
            while let Some((edited, edit)) = edits.next_if(|(edited, _)| edited.as_slice() < &*key)
            {
                put(&mut found, edited, edit);
            }
            match edits.next_if(|(edited, _)| edited.as_slice() == &*key) {
                Some((edited, edit)) => put(&mut found, edited, edit),
                None => {
                    // Only an error needs the path, which costs more than the record.
                    let record = Record::decode(&stored)
                        .map_or_else(|| decode(&stored, &keys::path_of(&key)?), Ok)?;
                    found.push((key.to_vec(), Arc::new(record)));
                }
            }
        }
        edits.for_each(|(edited, edit)| put(&mut found, edited, edit));
        Ok(found)
    }

    /// Tells whether any record has a key in the range.
    fn has_records(&self, range: &keys::KeyRange) -> Result<bool> {
        if !self.overlay.is_empty() {
            return Ok(!self.records(range)?.is_empty());
        }
        let bounds = range.bounds();
        Ok(self.content.range(self.shared.reads(), bounds).next().transpose()?.is_some())
    }

    /// Loads a record's body, through the cache of bodies.
    pub(crate) fn body(&self, record: &Record, path: &NodePath) -> Result<Arc<Body>> {
        let chunks = self.shared.reads();
        let load =
            || record.read_body(chunks)?.ok_or_else(|| damaged(path, "its body does not decode"));
        match &record.body {
            BodyPlace::Stored(id) => self.shared.bodies.get_or_insert_with(id, load),
            BodyPlace::Inline(_) | BodyPlace::Pending(_) => load(),
        }
    }
}

impl Snapshot {
    /// Returns the hash of the pinned root. Pending edits of a session do not show in it.
    #[must_use]
    pub fn root_id(&self) -> ChunkId {
        self.0.root
    }

    /// Finds the node at a path.
    ///
    /// # Errors
    /// If the store fails or a record on the way is damaged.
    pub fn node(&self, path: &NodePath) -> Result<Option<Node>> {
        let mut candidate = first_candidate(path);
        loop {
            let key = keys::key_of(&candidate)?;
            if let Some(record) = self.0.record(&key, &candidate)? {
                return self.node_in(record, &candidate, path);
            }
            match candidate.parent() {
                Some(parent) => candidate = parent,
                None => return Ok(None),
            }
        }
    }

    /// Finds a node by its place in the document whose record was found.
    fn node_in(
        &self,
        record: Arc<Record>,
        owner: &NodePath,
        path: &NodePath,
    ) -> Result<Option<Node>> {
        let document = Arc::new(Document { path: owner.clone(), record, body: OnceLock::new() });
        let at = match path.relative_to(owner) {
            Some("") => None,
            Some(relative) => {
                let body = self.0.body(&document.record, owner)?;
                let Some(node) = body.find(relative) else {
                    return Ok(None);
                };
                document.body.get_or_init(|| Some(body));
                Some(node)
            }
            None => return Ok(None),
        };
        Ok(Some(Node { snapshot: self.clone(), document, at, path: path.clone() }))
    }

    /// Returns the root node.
    ///
    /// # Errors
    /// If the store fails.
    pub fn root_node(&self) -> Result<Node> {
        let root = NodePath::root();
        self.node(&root)?.ok_or(Error::NodeMissing(root))
    }

    /// Decodes the node at a path with everything below it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read(&self, path: &NodePath) -> Result<Option<Subtree>> {
        self.node(path)?.map(|node| node.read()).transpose()
    }

    /// Returns the first failure to load a body, if there was any; an answer drawn from this snapshot is then void.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.0.failure.get().map(|error| &**error)
    }
}

impl Node {
    /// Returns the absolute path.
    #[must_use]
    pub fn path(&self) -> &NodePath {
        &self.path
    }

    /// Returns the name; it is empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.name()
    }

    /// Returns the snapshot that the node was found in.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the primary type.
    #[must_use]
    pub fn primary_type(&self) -> &str {
        match self.at {
            None => &self.document.record.summary.primary_type,
            Some(node) => self
                .body()
                .and_then(|body| body.text(node, "jcr:primaryType"))
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
        self.at.is_none().then_some(&self.document.record.summary)
    }

    /// Tells whether the node is a page.
    #[must_use]
    pub fn is_page(&self) -> bool {
        self.primary_type() == "cq:Page"
    }

    /// Returns a property.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<Property> {
        let body = self.body()?;
        body.property(self.place(body), name)
    }

    /// Returns a single text-like property.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        let body = self.body()?;
        body.text(self.place(body), name).map(str::to_owned)
    }

    /// Returns all properties, sorted by name.
    #[must_use]
    pub fn properties(&self) -> Vec<(String, Property)> {
        let Some(body) = self.body() else {
            return Vec::new();
        };
        body.properties(self.place(body))
            .map(|(name, property)| (name.to_owned(), property))
            .collect()
    }

    /// Finds a child.
    ///
    /// # Errors
    /// If the store fails.
    pub fn child(&self, name: &str) -> Result<Option<Self>> {
        let Ok(path) = self.path.child(name) else { return Ok(None) };
        if self.at.is_none()
            && is_container(self.name(), self.primary_type())
            && !is_own_content(self.primary_type(), name)
        {
            let Some(record) = self.snapshot.0.record(&keys::key_of(&path)?, &path)? else {
                return Ok(None);
            };
            return self.snapshot.node_in(record, &path, &path);
        }
        let Some(body) = self.body() else {
            return Ok(None);
        };
        Ok(body.child(self.place(body), name).map(|at| self.inner(at, path)))
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

    /// Returns the children in order: by name where the type has no order.
    ///
    /// # Errors
    /// If the store fails.
    pub fn children(&self) -> Result<Vec<Self>> {
        let mut children: Vec<Self> = match self.body() {
            Some(body) => body
                .children(self.place(body))
                .map(|at| self.inner(at, self.path.child_unchecked(body.name(at))))
                .collect(),
            None => Vec::new(),
        };
        children.extend(self.listed_children()?);
        Ok(children)
    }

    /// Returns the children that have records of their own, in order, without reading any body: all but `jcr:content`
    /// of a page, all of a folder, none of other nodes.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_children(&self) -> Result<Vec<Self>> {
        if self.at.is_some() || !is_container(self.name(), self.primary_type()) {
            return Ok(Vec::new());
        }
        let mut records = self.snapshot.0.records(&keys::children_of(&self.path)?)?;
        if has_ordered_children(self.primary_type()) {
            records
                .sort_by(|left, right| (&left.1.order, &left.0).cmp(&(&right.1.order, &right.0)));
        }
        records
            .into_iter()
            .map(|(key, record)| {
                let path = self.path.child_unchecked(keys::name_of(&key)?);
                let document =
                    Arc::new(Document { path: path.clone(), record, body: OnceLock::new() });
                Ok(Self { snapshot: self.snapshot.clone(), document, at: None, path })
            })
            .collect()
    }

    /// Tells whether the node has children with records of their own.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_listed_children(&self) -> Result<bool> {
        let is_folder = self.at.is_none() && is_container(self.name(), self.primary_type());
        Ok(is_folder && self.snapshot.0.has_records(&keys::children_of(&self.path)?)?)
    }

    /// Returns every node below that has a record of its own, in order of keys, without reading any body.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_descendants(&self) -> Result<Vec<Self>> {
        if self.at.is_some() || !is_container(self.name(), self.primary_type()) {
            return Ok(Vec::new());
        }
        let records = self.snapshot.0.records(&keys::below(&self.path)?)?;
        records
            .into_iter()
            .map(|(key, record)| {
                let path = keys::path_of(&key)?;
                let document =
                    Arc::new(Document { path: path.clone(), record, body: OnceLock::new() });
                Ok(Self { snapshot: self.snapshot.clone(), document, at: None, path })
            })
            .collect()
    }

    /// Returns the parent; nothing for the root.
    ///
    /// # Errors
    /// If the store fails.
    pub fn parent(&self) -> Result<Option<Self>> {
        match self.path.parent() {
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
        let body = self.snapshot.0.body(&self.document.record, &self.document.path)?;
        let mut tree = body.subtree(self.at.unwrap_or(body.root()));
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
        match &self.document.record.body {
            BodyPlace::Stored(id) => Some(*id),
            BodyPlace::Inline(bytes) => Some(ChunkId::of(bytes)),
            BodyPlace::Pending(_) => None,
        }
    }

    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.document.record
    }

    /// Returns the path of the record that holds this node.
    pub(crate) fn owner(&self) -> &NodePath {
        &self.document.path
    }

    fn inner(&self, at: BodyNode, path: NodePath) -> Self {
        Self {
            snapshot: self.snapshot.clone(),
            document: self.document.clone(),
            at: Some(at),
            path,
        }
    }

    fn place(&self, body: &Body) -> BodyNode {
        self.at.unwrap_or(body.root())
    }

    /// Returns the body, loading it at the first call; a failure is kept in the snapshot.
    fn body(&self) -> Option<&Body> {
        let load = || match self.snapshot.0.body(&self.document.record, &self.document.path) {
            Ok(body) => Some(body),
            Err(error) => {
                tracing::error!(path = %self.document.path, error = %error, "document cannot be read");
                // The first failure stands for all.
                drop(self.snapshot.0.failure.set(Arc::new(error)));
                None
            }
        };
        self.document.body.get_or_init(load).as_deref()
    }
}

/// Returns the longest path that can be a record's: below a `jcr:content` there are none.
fn first_candidate(path: &NodePath) -> NodePath {
    let text = path.as_str();
    match text.find("/jcr:content/") {
        Some(at) => text
            .get(..at + "/jcr:content".len())
            .and_then(|prefix| NodePath::new(prefix).ok())
            .unwrap_or_else(|| path.clone()),
        None => path.clone(),
    }
}

fn decode(stored: &Stored, path: &NodePath) -> Result<Record> {
    Record::decode(stored).ok_or_else(|| damaged(path, "its record does not decode"))
}

fn damaged(path: &NodePath, reason: &'static str) -> Error {
    Error::Damaged { path: path.clone(), reason }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.0.root)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.path)
    }
}
