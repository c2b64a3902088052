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
//!
//! Here is how a path is found. `view` reads records with pending edits applied, `place` is what is remembered of where a
//! node was, `node` is what one node tells, and `children` lists.

mod children;
mod node;
mod place;
mod view;

use std::fmt;
use std::sync::Arc;

use tympan_store::ChunkId;

use self::node::HeldBody;
use self::place::{PlaceKind, PlaceQuery};
use crate::access::Gate;
use crate::body::Body;
use crate::boundary::{is_container, is_own_content};
use crate::record::Record;
use crate::repository::MAIN;
use crate::{Error, NodePath, Repository, Result, Subtree, keys};

pub use self::children::ChildList;
pub(crate) use self::children::ChildPlaces;
pub use self::node::Node;
pub(crate) use self::node::Opened;
pub(crate) use self::place::{Place, PlaceKey};
pub(crate) use self::view::{Found, Overlay, View};

/// One state of the content, pinned, as the program itself or a viewer sees it.
#[derive(Clone)]
pub struct Snapshot(pub(crate) Arc<View>, pub(crate) Option<Arc<Gate>>);

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
        let Some(content) = self.0.known_map() else {
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

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.0.root)
    }
}
