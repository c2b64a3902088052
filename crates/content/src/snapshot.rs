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

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use quick_cache::Equivalent;
use tympan_store::{ChunkId, Map, Pin, Value as Stored};

use crate::access::{Children, Gate, Inner, Mask, is_guarded_child};
use crate::body::{Body, BodyNode};
use crate::borrowed::{BorrowedNode, BorrowedProperty};
use crate::boundary::{has_ordered_children, is_container, is_own_content};
use crate::record::{BodyPlace, Record, Summary, summary_of};
use crate::repository::{MAIN, Shared};
use crate::siblings::OrderEdits;
use crate::subtree::JCR_CONTENT;
use crate::version::VersionEdits;
use crate::{Error, NodePath, Property, Repository, Result, Subtree, keys};

/// Longer lists of children are read anew each time: navigations have no such lists, and few of them would fill the memory.
const MAX_KEPT_CHILDREN: usize = 2048;

/// Pending edits by key: a record put, or nothing where one was removed.
pub(crate) type Overlay = BTreeMap<Vec<u8>, Option<Arc<Record>>>;

/// One state of the content, pinned, as the program itself or a viewer sees it.
#[derive(Clone)]
pub struct Snapshot(pub(crate) Arc<View>, pub(crate) Option<Arc<Gate>>);

/// What a snapshot reads from.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) shared: Arc<Shared>,
    pub(crate) root: ChunkId,
    pub(crate) content: Map,
    pub(crate) overlay: Overlay,
    /// What the overlay changes in the map of order keys.
    pub(crate) order: OrderEdits,
    /// Pending edits of the map of versions.
    pub(crate) versions: VersionEdits,
    /// Keeps the root from being collected while the view is read.
    _pin: Option<Pin>,
    failure: OnceLock<Arc<Error>>,
}

/// A node, with the snapshot it was found in.
#[derive(Clone)]
pub struct Node {
    snapshot: Snapshot,
    place: Arc<Place>,
    body: HeldBody,
    /// What of the document the viewer does not see, once something of it was asked for.
    mask: OnceLock<Option<Arc<Mask>>>,
    /// The header without what the viewer does not see.
    seen_summary: OnceLock<Summary>,
}

/// The body of a node's document.
enum HeldBody {
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

/// Where a node was found, kept for whoever looks for it in the same state of the content again.
pub(crate) struct Place {
    path: NodePath,
    kind: PlaceKind,
    seen: Seen,
}

/// What viewers saw of a place lately, who are bound by the rules with this number ([`Gate::number`]). A place belongs to one
/// content map, so that the same rules decide alike about it each time.
#[derive(Default)]
struct Seen {
    /// Rules by which the node is seen.
    node: AtomicU64,
    /// Rules by which all is seen that the record's header tells; of documents.
    header: AtomicU64,
    /// Rules by which all of the document is seen; of documents.
    document: AtomicU64,
}

/// Tells whether a viewer saw a place lately by the same rules.
fn is_known_to(gate: &Gate, known: &AtomicU64) -> bool {
    gate.number().is_some_and(|number| known.load(atomic::Ordering::Relaxed) == number)
}

/// Decides about a place, unless the same rules did so lately. What is not seen is asked about each time.
fn is_seen_by(gate: &Gate, known: &AtomicU64, decide: impl FnOnce() -> bool) -> bool {
    let Some(number) = gate.number() else { return decide() };
    if is_known_to(gate, known) {
        return true;
    }
    let is_seen = decide();
    if is_seen {
        known.store(number, atomic::Ordering::Relaxed);
    }
    is_seen
}

/// All children of a node of one kind, in order: those with records of their own, or those inside its document.
pub(crate) struct ChildPlaces {
    places: Box<[Arc<Place>]>,
    /// Whether access control decides about one of them by its name.
    has_guarded: bool,
}

impl ChildPlaces {
    fn new(places: Vec<Arc<Place>>) -> Self {
        let has_guarded = places.iter().any(|place| is_guarded_child(place.path.name()));
        Self { places: places.into(), has_guarded }
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns them in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Place>> {
        self.places.iter()
    }
}

/// The children of a node that a viewer sees, in order, which become nodes when they are reached.
pub struct ChildList(ListKind);

enum ListKind {
    /// All of them are seen.
    Places {
        snapshot: Snapshot,
        places: Arc<ChildPlaces>,
        /// The document's body, of children inside it.
        body: Option<Arc<Body>>,
    },
    Nodes(Vec<Node>),
}

impl ChildList {
    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            ListKind::Places { places, .. } => places.len(),
            ListKind::Nodes(nodes) => nodes.len(),
        }
    }

    /// Tells whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the one at a place, counted from 0.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<Node> {
        match &self.0 {
            ListKind::Places { snapshot, places, body } => {
                let body = body.clone().map_or_else(HeldBody::default, HeldBody::Known);
                Some(Node::at_place(snapshot.clone(), places.places.get(index)?.clone(), body))
            }
            ListKind::Nodes(nodes) => nodes.get(index).cloned(),
        }
    }

    /// Returns them in order.
    pub fn iter(&self) -> impl Iterator<Item = Node> {
        (0..self.len()).filter_map(|index| self.at(index))
    }

    /// Returns their paths in order.
    pub fn paths(&self) -> impl Iterator<Item = &NodePath> {
        (0..self.len()).filter_map(|index| match &self.0 {
            ListKind::Places { places, .. } => Some(&places.places.get(index)?.path),
            ListKind::Nodes(nodes) => Some(nodes.get(index)?.path()),
        })
    }
}

impl fmt::Debug for ChildList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.paths()).finish()
    }
}

/// A document's own node, which needs no body to be known, or one inside a document.
enum PlaceKind {
    Document(Record),
    Inside {
        document: Arc<Place>,
        at: BodyNode,
        /// The body while the cache of bodies has it. One inside a record is small and opened again.
        body: Weak<Body>,
    },
}

impl Place {
    fn new(path: NodePath, kind: PlaceKind) -> Arc<Self> {
        Arc::new(Self { path, kind, seen: Seen::default() })
    }

    /// Tells whether a child of this name has a record of its own, if it is there.
    fn has_record_of(&self, name: &str) -> bool {
        let PlaceKind::Document(record) = &self.kind else { return false };
        let primary_type = record.summary.primary_type();
        is_container(self.path.name(), primary_type) && !is_own_content(primary_type, name)
    }

    /// Returns path and record of the document.
    fn document(&self) -> (&NodePath, &Record) {
        let (place, record) = self.document_place();
        (&place.path, record)
    }

    /// Returns place and record of the document.
    fn document_place(&self) -> (&Self, &Record) {
        match &self.kind {
            PlaceKind::Document(record) => (self, record),
            PlaceKind::Inside { document, .. } => document.document_place(),
        }
    }
}

/// A content map and a path in it.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PlaceKey(ChunkId, NodePath);

/// A [`PlaceKey`] that need not be made to look for it.
#[derive(Hash)]
struct PlaceQuery<'a>(&'a ChunkId, &'a NodePath);

impl Equivalent<PlaceKey> for PlaceQuery<'_> {
    fn equivalent(&self, key: &PlaceKey) -> bool {
        *self.0 == key.0 && *self.1 == key.1
    }
}

/// A record in a range, not decoded yet unless it is a pending edit.
pub(crate) enum Found<'a> {
    Edited(&'a Arc<Record>),
    Stored(Stored),
}

impl Found<'_> {
    pub(crate) fn record(self, key: &[u8]) -> Result<Record> {
        match self {
            Self::Edited(record) => Ok(Record::clone(record)),
            // Only an error needs the path, which costs more than the record.
            Self::Stored(stored) => {
                Record::decode(&stored).map_or_else(|| decode(&stored, &keys::path_of(key)?), Ok)
            }
        }
    }
}

/// A document that was read already, whose nodes need no looking up.
pub(crate) struct Opened {
    snapshot: Snapshot,
    document: Arc<Place>,
    body: Arc<Body>,
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

impl View {
    pub(crate) fn new(shared: Arc<Shared>, root: ChunkId, content: Map) -> Self {
        let (overlay, order, versions) = (Overlay::new(), OrderEdits::new(), VersionEdits::new());
        let (_pin, failure) = (None, OnceLock::new());
        Self { shared, root, content, overlay, order, versions, _pin, failure }
    }

    /// Opens a state that stays readable as long as the view.
    pub(crate) fn pinned(shared: Arc<Shared>, pin: Pin, content: Map) -> Self {
        let root = pin.root();
        Self { _pin: Some(pin), ..Self::new(shared, root, content) }
    }

    /// Puts a record into the pending edits, or removes it.
    pub(crate) fn put(&mut self, key: Vec<u8>, record: Option<Arc<Record>>) -> Result<()> {
        let old = self.find(&key)?;
        let orders = [old.map(|old| old.order), record.as_ref().map(|new| new.order.clone())];
        for (order, is_there) in orders.into_iter().zip([false, true]) {
            if let Some(order) = order.filter(|order| !order.0.is_empty()) {
                self.order.insert(keys::order_entry(&key, &order), is_there);
            }
        }
        self.overlay.insert(key, record);
        Ok(())
    }

    /// Reads the record with this key, pending edits first.
    pub(crate) fn record(&self, key: &[u8], path: &NodePath) -> Result<Option<Arc<Record>>> {
        match self.overlay.get(key) {
            Some(edit) => Ok(edit.clone()),
            None => {
                Ok(self.stored(key)?.map(|stored| decode(&stored, path)).transpose()?.map(Arc::new))
            }
        }
    }

    /// Reads the record with this key, whose path is made only for an error.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Option<Record>> {
        match self.overlay.get(key) {
            Some(edit) => Ok(edit.as_deref().cloned()),
            None => self.stored(key)?.map(|stored| Found::Stored(stored).record(key)).transpose(),
        }
    }

    fn stored(&self, key: &[u8]) -> Result<Option<Stored>> {
        Ok(self.content.get(self.shared.reads(), key)?)
    }

    /// Lists the records with keys in a range, pending edits applied, sorted by key.
    pub(crate) fn records(&self, range: &keys::KeyRange) -> Result<Vec<(Vec<u8>, Arc<Record>)>> {
        let record = |(key, found): (Bytes, Found<'_>)| {
            let record = match found {
                Found::Edited(record) => record.clone(),
                found @ Found::Stored(_) => Arc::new(found.record(&key)?),
            };
            Ok((key.into(), record))
        };
        self.entries(range).map(|entry| entry.and_then(record)).collect()
    }

    /// Returns what has keys in a range, pending edits applied, sorted by key; chunks are read as the iterator advances.
    pub(crate) fn entries<'a>(
        &'a self,
        range: &keys::KeyRange,
    ) -> impl Iterator<Item = Result<(Bytes, Found<'a>)>> + use<'a> {
        let mut stored = self.content.range(self.shared.reads(), range.bounds()).peekable();
        let mut edits = self.overlay.range::<[u8], _>(range.bounds()).peekable();
        std::iter::from_fn(move || {
            loop {
                let next = match (edits.peek(), stored.peek()) {
                    (None, _) | (Some(_), Some(Err(_))) => Ordering::Greater,
                    (Some(_), None) => Ordering::Less,
                    (Some((edited, _)), Some(Ok((key, _)))) => edited.as_slice().cmp(key),
                };
                if next == Ordering::Greater {
                    let (key, stored) = match stored.next()? {
                        Ok(entry) => entry,
                        Err(error) => return Some(Err(error.into())),
                    };
                    return Some(Ok((key, Found::Stored(stored))));
                }
                if next == Ordering::Equal {
                    stored.next();
                }
                if let (key, Some(record)) = edits.next()? {
                    return Some(Ok((Bytes::copy_from_slice(key), Found::Edited(record))));
                }
            }
        })
    }

    /// Returns a part of what [`View::entries`] gives. Without pending edits the map passes over what comes before it.
    fn page<'a>(
        &'a self,
        range: &keys::KeyRange,
        offset: usize,
        limit: usize,
    ) -> Box<dyn Iterator<Item = Result<(Bytes, Found<'a>)>> + 'a> {
        if self.overlay.range::<[u8], _>(range.bounds()).next().is_some() {
            return Box::new(self.entries(range).skip(offset).take(limit));
        }
        let page = self.content.range(self.shared.reads(), range.bounds()).skip(offset).take(limit);
        Box::new(page.map(|entry| {
            let (key, stored) = entry?;
            Ok((key, Found::Stored(stored)))
        }))
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
    /// Makes the snapshot of a view that the program itself has.
    pub(crate) fn of_view(view: View) -> Self {
        Self(Arc::new(view), None)
    }

    /// Returns the hash of the pinned root. Pending edits of a session do not show in it.
    #[must_use]
    pub fn root_id(&self) -> ChunkId {
        self.0.root
    }

    /// Returns the hash of the pinned root if what is seen follows from it alone; nothing while rights of a newer state of
    /// `main` decide, too.
    #[must_use]
    pub fn seen_root(&self) -> Option<ChunkId> {
        let is_alone = self.1.as_ref().is_none_or(|gate| gate.is_of_state());
        is_alone.then_some(self.0.root)
    }

    /// Pins another state of the same repository, as the program itself sees it; see [`crate::Repository::snapshot_at`].
    ///
    /// # Errors
    /// If the store fails or the root holds no content.
    pub fn state_at(&self, root: ChunkId) -> Result<Self> {
        Repository(self.0.shared.clone()).snapshot_at(root)
    }

    /// Tells whether this is the newest state of `main`, at this moment.
    ///
    /// # Errors
    /// If the store fails.
    pub fn is_newest(&self) -> Result<bool> {
        Ok(self.0.shared.chunks.read_ref(MAIN)? == Some(self.0.root))
    }

    /// Finds the node at a path.
    ///
    /// # Errors
    /// If the store fails or a record on the way is damaged.
    pub fn node(&self, path: &NodePath) -> Result<Option<Node>> {
        Ok(self.any_node(path)?.filter(Node::is_seen))
    }

    /// Finds the node at a path, seen or not.
    fn any_node(&self, path: &NodePath) -> Result<Option<Node>> {
        // Pending edits belong to one session, and an empty map has no nodes to remember.
        let content = self.0.content.root().filter(|_| self.0.overlay.is_empty());
        let Some(content) = content else {
            return self.find(path);
        };
        let places = &self.0.shared.bodies.places;
        if let Some(place) = places.get(&PlaceQuery(&content, path))
            && let Some(node) = self.node_at(place)
        {
            return Ok(Some(node));
        }
        let absent = &self.0.shared.bodies.absent;
        if absent.get(&PlaceQuery(&content, path)).is_some() {
            return Ok(None);
        }
        // Where a known node's children all have records, one look-up tells; addresses with extensions are looked for so.
        let parent = path.parent().and_then(|parent| places.get(&PlaceQuery(&content, &parent)));
        let node = if parent.is_some_and(|parent| parent.has_record_of(path.name())) {
            let record = self.0.find(&keys::key_at(path.as_str()))?;
            record.map(|record| self.own_node(path.clone(), record))
        } else {
            self.find(path)?
        };
        let key = PlaceKey(content, path.clone());
        match &node {
            Some(node) => places.insert(key, node.place.clone()),
            None => absent.insert(key, ()),
        }
        Ok(node)
    }

    /// Returns the node at a place that was found before, unless its body has to be loaded anew.
    fn node_at(&self, place: Arc<Place>) -> Option<Node> {
        let body = match &place.kind {
            PlaceKind::Document(_) => HeldBody::default(),
            PlaceKind::Inside { body, .. } => HeldBody::Known(body.upgrade()?),
        };
        Some(Node::at_place(self.clone(), place, body))
    }

    /// Finds the document that holds a node, and the node in it.
    ///
    /// Records stand at every depth from the root down to the document's, and nowhere below. The likeliest depths are
    /// tried first: the path's own, then its parent's; then the middle of what is left.
    fn find(&self, path: &NodePath) -> Result<Option<Node>> {
        let text = path.as_str();
        // Below `jcr:content` there are no records; mostly it belongs to a page or asset, so that is tried before it.
        let (deepest, mut depth) = match find_content(text) {
            Some(at) if text.get(at + "/jcr:content".len()..).is_some_and(is_end) => {
                let above = depth_of(text.get(..at).unwrap_or_default());
                (above + 1, above)
            }
            _ => (path.depth(), path.depth()),
        };
        // The document's depth is from `low` to below `high`.
        let (mut low, mut high) = (0, deepest + 1);
        let mut is_parent_tried = depth < deepest;
        while low < high {
            let owner = prefix_of(text, depth);
            match self.0.find(&keys::key_at(owner))? {
                Some(record) => {
                    let primary_type = record.summary.primary_type();
                    let name = owner.rsplit_once('/').map_or("", |(_, name)| name);
                    let rest = text.get(owner.len()..).unwrap_or_default().trim_start_matches('/');
                    let next = rest.split_once('/').map_or(rest, |(next, _)| next);
                    let has_record_below = !next.is_empty()
                        && is_container(name, primary_type)
                        && !is_own_content(primary_type, next);
                    if !has_record_below {
                        let owner =
                            if rest.is_empty() { path.clone() } else { NodePath::new(owner)? };
                        return self.node_in(record, owner, path);
                    }
                    low = depth + 1;
                }
                None => high = depth,
            }
            depth = if is_parent_tried || depth < low || depth == 0 {
                low.midpoint(high.saturating_sub(1))
            } else {
                depth - 1
            };
            is_parent_tried = true;
        }
        Ok(None)
    }

    /// Finds a node by its place in the document whose record was found.
    fn node_in(&self, record: Record, owner: NodePath, path: &NodePath) -> Result<Option<Node>> {
        let Some(relative) = path.relative_to(&owner) else {
            return Ok(None);
        };
        if relative.is_empty() {
            return Ok(Some(self.own_node(owner, record)));
        }
        let body = self.0.body(&record, &owner)?;
        let Some(at) = body.find(relative) else {
            return Ok(None);
        };
        let document = Place::new(owner, PlaceKind::Document(record));
        Ok(Some(Node::inside(self.clone(), document, at, path.clone(), body)))
    }

    /// Makes a document's own node.
    pub(crate) fn own_node(&self, path: NodePath, record: Record) -> Node {
        let place = Place::new(path, PlaceKind::Document(record));
        Node::at_place(self.clone(), place, HeldBody::default())
    }

    /// Makes the nodes of a document that was read already.
    pub(crate) fn opened(&self, path: NodePath, record: Record, body: Arc<Body>) -> Opened {
        let document = Place::new(path, PlaceKind::Document(record));
        Opened { snapshot: self.clone(), document, body }
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

    /// Notes why something could not be read. The first failure stands for all.
    pub(crate) fn fail(&self, error: Error) {
        drop(self.0.failure.set(Arc::new(error)));
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

    /// Returns the children in order: by name where the type has no order.
    ///
    /// # Errors
    /// If the store fails.
    pub fn children(&self) -> Result<Vec<Self>> {
        let mut children: Vec<Self> = match self.body() {
            Some(body) => body
                .children(self.at(body))
                .filter(|at| self.mask().is_none_or(|mask| mask.shows(*at)))
                .map(|at| self.inner(body, at, self.path().child_unchecked(body.name(at))))
                .collect(),
            None => Vec::new(),
        };
        let listed = self.listed_children()?;
        if children.is_empty() {
            return Ok(listed);
        }
        children.extend(listed);
        Ok(children)
    }

    /// Returns the children that have records of their own, in order, without reading any body: all but `jcr:content`
    /// of a page, all of a folder, none of other nodes.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_children(&self) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        match self.seen_children() {
            None => {
                let places = self.places_of_children()?;
                Ok(places.iter().map(|place| self.child_at(place)).collect())
            }
            Some(seen) => {
                let mut children = self.seen_listed_children(&seen)?;
                if has_ordered_children(self.primary_type()) {
                    // Stable: those with equal order keys stay sorted by name.
                    children.sort_by(|left, right| left.record().order.cmp(&right.record().order));
                }
                Ok(children)
            }
        }
    }

    /// Returns where the children are that have records of their own, seen or not, in order.
    pub(crate) fn places_of_children(&self) -> Result<Arc<ChildPlaces>> {
        let view = &self.snapshot.0;
        // As with single nodes, pending edits belong to one session.
        let content = view.content.root().filter(|_| view.overlay.is_empty());
        let listings = &view.shared.bodies.listings;
        if let Some(content) = content
            && let Some(known) = listings.get(&PlaceQuery(&content, self.path()))
        {
            return Ok(known);
        }
        let range = keys::children_of(self.path())?;
        let place = |entry: Result<(Bytes, Found<'_>)>| {
            let (key, found) = entry?;
            let path = self.path().child_unchecked(keys::name_of(&key)?);
            Ok(Place::new(path, PlaceKind::Document(found.record(&key)?)))
        };
        let mut places = view.entries(&range).map(place).collect::<Result<Vec<_>>>()?;
        if has_ordered_children(self.primary_type()) {
            places.sort_by(|left, right| left.document().1.order.cmp(&right.document().1.order));
        }
        let places = Arc::new(ChildPlaces::new(places));
        if let Some(content) = content.filter(|_| places.len() <= MAX_KEPT_CHILDREN) {
            listings.insert(PlaceKey(content, self.path().clone()), Arc::clone(&places));
        }
        Ok(places)
    }

    /// Returns where the children are that lie in the document, seen or not, in order.
    fn places_inside(&self, body: &Arc<Body>) -> Arc<ChildPlaces> {
        let view = &self.snapshot.0;
        let content = view.content.root().filter(|_| view.overlay.is_empty());
        let listings = &view.shared.bodies.listings;
        if let Some(content) = content
            && let Some(known) = listings.get(&PlaceQuery(&content, self.path()))
        {
            return known;
        }
        let place = |at| {
            let path = self.path().child_unchecked(body.name(at));
            let (document, body) = (self.document_place().clone(), Arc::downgrade(body));
            Place::new(path, PlaceKind::Inside { document, at, body })
        };
        let places = Arc::new(ChildPlaces::new(body.children(self.at(body)).map(place).collect()));
        if let Some(content) = content.filter(|_| places.len() <= MAX_KEPT_CHILDREN) {
            listings.insert(PlaceKey(content, self.path().clone()), Arc::clone(&places));
        }
        places
    }

    /// Returns what [`Node::children`] does, as a list whose nodes are made when they are reached.
    ///
    /// # Errors
    /// If the store fails.
    pub fn child_list(&self) -> Result<ChildList> {
        let snapshot = || self.snapshot.clone();
        if self.is_folder() {
            let has_inner = |body: &Arc<Body>| body.children(self.at(body)).next().is_some();
            if !self.body().is_some_and(has_inner) {
                let places = self.places_of_children()?;
                if self.sees_all_of(&places) {
                    return Ok(ChildList(ListKind::Places {
                        snapshot: snapshot(),
                        places,
                        body: None,
                    }));
                }
            }
        } else if let Some(body) = self.body()
            && self.mask().is_none()
        {
            let (places, body) = (self.places_inside(body), Some(Arc::clone(body)));
            return Ok(ChildList(ListKind::Places { snapshot: snapshot(), places, body }));
        }
        Ok(ChildList(ListKind::Nodes(self.children()?)))
    }

    /// Tells whether all children that have records of their own are seen. Gives `false` in doubt.
    fn sees_all_of(&self, places: &ChildPlaces) -> bool {
        match self.seen_children() {
            None => true,
            Some(Children::Alike { is_visible, others }) => {
                is_visible && others.is_empty() && !places.has_guarded
            }
            Some(Children::Each) => false,
        }
    }

    /// Makes the node of a child that has a record of its own.
    pub(crate) fn child_at(&self, place: &Arc<Place>) -> Self {
        Self::at_place(self.snapshot.clone(), Arc::clone(place), HeldBody::default())
    }

    /// Returns a page of what [`Node::listed_children`] gives: at most `limit` children, `offset` of them skipped. The
    /// headers of the others are not read where children have an order, and nothing behind the page is.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_page(&self, offset: usize, limit: usize) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        match self.seen_children() {
            None => self.any_listed_page(offset, limit),
            Some(seen) => self.seen_listed_page(&seen, offset, limit),
        }
    }

    /// Returns a page of all children that have records of their own, seen or not.
    pub(crate) fn any_listed_page(&self, offset: usize, limit: usize) -> Result<Vec<Self>> {
        let view = &self.snapshot.0;
        if !has_ordered_children(self.primary_type()) {
            let range = keys::children_of(self.path())?;
            return view
                .page(&range, offset, limit)
                .map(|entry| self.listed_child(entry))
                .collect();
        }
        let Some(siblings) = view.siblings(self.path())? else {
            return Ok(self.listed_children()?.into_iter().skip(offset).take(limit).collect());
        };
        let child = |entry: Vec<u8>| {
            let key = siblings.record_of(&entry)?;
            let record = view.find(&key)?;
            let missing = "its map of order keys lists a child that is not there";
            let record = record.ok_or_else(|| damaged(self.path(), missing))?;
            Ok(self.listed(self.path().child_unchecked(keys::name_of(&key)?), record))
        };
        siblings.page(offset, limit)?.into_iter().map(child).collect()
    }

    /// Counts what [`Node::listed_children`] gives, without decoding headers.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_listed_children(&self) -> Result<usize> {
        if !self.is_folder() {
            return Ok(0);
        }
        match self.seen_children() {
            None => self.count_any_listed_children(),
            Some(seen) => self.count_seen_listed_children(&seen),
        }
    }

    /// Counts all children that have records of their own, seen or not.
    pub(crate) fn count_any_listed_children(&self) -> Result<usize> {
        let range = keys::children_of(self.path())?;
        let view = &self.snapshot.0;
        if view.overlay.range::<[u8], _>(range.bounds()).next().is_some() {
            return view.entries(&range).try_fold(0, |count, entry| entry.map(|_| count + 1));
        }
        let count = view.content.count_in(view.shared.reads(), &range)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Makes the node of a child that the range of children gave.
    fn listed_child(&self, entry: Result<(Bytes, Found<'_>)>) -> Result<Self> {
        let (key, found) = entry?;
        let path = self.path().child_unchecked(keys::name_of(&key)?);
        Ok(self.listed(path, found.record(&key)?))
    }

    /// Makes the node of a record that a range gave.
    pub(crate) fn listed(&self, path: NodePath, record: Record) -> Self {
        self.snapshot.own_node(path, record)
    }

    /// Tells whether children of the node have records of their own.
    pub(crate) fn is_folder(&self) -> bool {
        match &self.place.kind {
            PlaceKind::Document(record) => is_container(self.name(), record.summary.primary_type()),
            PlaceKind::Inside { .. } => false,
        }
    }

    /// Tells whether the node has children with records of their own.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_listed_children(&self) -> Result<bool> {
        if !self.is_folder() {
            return Ok(false);
        }
        if let Some(seen) = self.seen_children() {
            return self.has_seen_listed_children(&seen);
        }
        let range = keys::children_of(self.path())?;
        Ok(self.snapshot.0.entries(&range).next().transpose()?.is_some())
    }

    /// Returns every node below that has a record of its own, in order of keys, without reading any body.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_descendants(&self) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        let range = keys::below(self.path())?;
        let nodes = self.snapshot.0.entries(&range).map(|entry| {
            let (key, found) = entry?;
            Ok(self.listed(keys::path_of(&key)?, found.record(&key)?))
        });
        nodes.filter(|node| node.as_ref().ok().is_none_or(Self::is_seen)).collect()
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
    pub(crate) fn owner(&self) -> &NodePath {
        self.place.document().0
    }

    /// Makes a node inside a document.
    fn inside(
        snapshot: Snapshot,
        document: Arc<Place>,
        at: BodyNode,
        path: NodePath,
        body: Arc<Body>,
    ) -> Self {
        let kind = PlaceKind::Inside { document, at, body: Arc::downgrade(&body) };
        Self::at_place(snapshot, Place::new(path, kind), HeldBody::Known(body))
    }

    fn at_place(snapshot: Snapshot, place: Arc<Place>, body: HeldBody) -> Self {
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

    /// Returns how the viewer sees the children; nothing if it is the program itself.
    fn seen_children(&self) -> Option<Children> {
        self.snapshot.1.as_ref().map(|gate| gate.children(self.path()))
    }

    /// Returns what of the document is hidden from the snapshot's viewer.
    fn mask(&self) -> Option<&Mask> {
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
    fn document_place(&self) -> &Arc<Place> {
        match &self.place.kind {
            PlaceKind::Document(_) => &self.place,
            PlaceKind::Inside { document, .. } => document,
        }
    }

    /// Makes the node of a child inside the same document.
    fn inner(&self, body: &Arc<Body>, at: BodyNode, path: NodePath) -> Self {
        let document = self.document_place().clone();
        let node = Self::inside(self.snapshot.clone(), document, at, path, body.clone());
        Self { mask: self.mask.clone(), ..node }
    }

    /// Returns where the node is in its document's body.
    fn at(&self, body: &Body) -> BodyNode {
        match &self.place.kind {
            PlaceKind::Document(_) => body.root(),
            PlaceKind::Inside { at, .. } => *at,
        }
    }

    /// Returns the body, loading it at the first call; a failure is kept in the snapshot.
    fn body(&self) -> Option<&Arc<Body>> {
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

/// Finds the first name that begins like a page's content. Paths are too short for a search that prepares itself.
fn find_content(path: &str) -> Option<usize> {
    const CONTENT: &[u8; 12] = b"/jcr:content";
    path.as_bytes().windows(CONTENT.len()).position(|text| text == CONTENT)
}

/// Tells whether a name ends before this rest of a path.
fn is_end(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

/// Returns how many names a path has that ends with a name, or that is empty for the root.
fn depth_of(path: &str) -> usize {
    path.bytes().filter(|byte| *byte == b'/').count()
}

/// Returns the path of the node `depth` names below the root, at or above the one at `path`.
fn prefix_of(path: &str, depth: usize) -> &str {
    if depth == 0 {
        return "/";
    }
    let mut slashes = path.bytes().enumerate().filter(|(_, byte)| *byte == b'/');
    let end = slashes.nth(depth).map_or(path.len(), |(at, _)| at);
    path.get(..end).unwrap_or(path)
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
        write!(f, "Node({})", self.path())
    }
}
