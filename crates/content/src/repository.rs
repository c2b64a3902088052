//! The repository: the stores opened together, with content in them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tympan_blobs::{BlobStore, MemoryBlobs};
use tympan_store::{
    Batch, ChunkId, ChunkStore, Committer, Hold, LocalStore, Map, Pin, ReadChunks, RefUpdate, Root,
};

use crate::access::AccessCache;
use crate::body::Body;
use crate::changes::{KnownMoves, Recent};
use crate::index::ORDER;
use crate::index_build::{self, Builds};
use crate::order::OrderKey;
use crate::property_index::DefinitionCache;
use crate::record::Record;
use crate::snapshot::{ChildPlaces, Place, PlaceKey, View};
use crate::subtree::PRIMARY_TYPE;
use crate::types::{MAX_RULES, RulesCache};
use crate::{Error, NodePath, Property, Result, Session, Snapshot, Subtree, keys, siblings};

/// The branch that visitors and authors see.
pub(crate) const MAIN: &str = "main";
/// The type of the root node that a new repository begins with.
pub(crate) const ROOT_TYPE: &str = "rep:root";
/// The map of records by path.
pub(crate) const CONTENT: &str = "content";
/// Memory for opened bodies, in bytes.
const BODY_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// How many nodes are remembered with the place they were found at: about 500 bytes each.
const MAX_PLACES: usize = 16_384;
/// How many paths at which there is nothing are remembered: about 200 bytes each. Visitors make them up without end.
const MAX_ABSENT: usize = 8192;
/// How many children are remembered in lists of all children of a node, about 500 bytes each.
const MAX_LISTED: u64 = 16_384;
/// Up to this many documents, indexes are built when a repository is opened.
const SMALL: u64 = 1_000;

/// The content of one instance. Cloning is cheap; clones are the same repository.
#[derive(Clone)]
pub struct Repository(pub(crate) Arc<Shared>);

/// What all sessions of a repository share.
pub(crate) struct Shared {
    pub(crate) chunks: Arc<dyn ChunkStore>,
    pub(crate) blobs: Arc<dyn BlobStore>,
    /// The branch that is read and committed to.
    pub(crate) branch: String,
    pub(crate) bodies: Arc<BodyCache>,
    /// How sessions commit; nothing in what commits themselves read through.
    pub(crate) commits: Option<Commits>,
    /// The newest state that was asked for.
    latest: ArcSwapOption<Latest>,
    /// The newest revisions, for the change feed.
    pub(crate) recent: Recent,
}

struct Latest {
    pin: Pin,
    content: Map,
}

/// What brings the sessions of a process together in one commit.
pub(crate) struct Commits {
    pub(crate) committer: Committer,
    /// The repository as commits leave it that are not durable yet.
    pub(crate) staged: Arc<Shared>,
}

/// Opened bodies by hash, bounded in bytes; where nodes and their children were found, and where nothing was, by content map and path; compiled policies; what is
/// known about property indexes; and the moves of a revision that is read page by page.
pub(crate) struct BodyCache {
    bodies: Cache<ChunkId, Arc<Body>, BodyWeight>,
    pub(crate) places: Cache<PlaceKey, Arc<Place>>,
    /// Where there is nothing: addresses with extensions are looked for as they are before their nodes are.
    pub(crate) absent: Cache<PlaceKey, ()>,
    /// The children of nodes that do not have very many, in order: those that have records of their own, or, where none may
    /// have one, those inside the document.
    pub(crate) listings: Cache<PlaceKey, Arc<ChildPlaces>, ListingWeight>,
    pub(crate) rules: RulesCache,
    pub(crate) access: AccessCache,
    pub(crate) definitions: DefinitionCache,
    pub(crate) builds: Builds,
    pub(crate) moves: KnownMoves,
}

#[derive(Clone)]
struct BodyWeight;

impl Weighter<ChunkId, Arc<Body>> for BodyWeight {
    fn weight(&self, _: &ChunkId, body: &Arc<Body>) -> u64 {
        body.weight()
    }
}

/// The memory of a list: what it is found by counts as one child more.
#[derive(Clone)]
pub(crate) struct ListingWeight;

impl Weighter<PlaceKey, Arc<ChildPlaces>> for ListingWeight {
    fn weight(&self, _: &PlaceKey, children: &Arc<ChildPlaces>) -> u64 {
        children.len() as u64 + 1
    }
}

impl Shared {
    /// Returns the reading side of the chunk store.
    pub(crate) fn reads(&self) -> &dyn ReadChunks {
        &*self.chunks
    }
}

impl BodyCache {
    fn new() -> Self {
        Self {
            bodies: Cache::with_weighter(8192, BODY_CACHE_BYTES, BodyWeight),
            places: Cache::new(MAX_PLACES),
            absent: Cache::new(MAX_ABSENT),
            listings: Cache::with_weighter(1024, MAX_LISTED, ListingWeight),
            rules: RulesCache::new(MAX_RULES),
            access: AccessCache::default(),
            definitions: DefinitionCache::default(),
            builds: Builds::default(),
            moves: KnownMoves::default(),
        }
    }

    /// Returns the cached body, or loads and keeps it.
    pub(crate) fn get_or_insert_with(
        &self,
        id: &ChunkId,
        load: impl FnOnce() -> Result<Arc<Body>>,
    ) -> Result<Arc<Body>> {
        self.bodies.get_or_insert_with(id, load)
    }
}

impl Repository {
    /// Opens the content in these stores; an empty store gets a root node.
    ///
    /// # Errors
    /// If the store fails, or `main` is not a content root.
    pub fn open(chunks: Arc<dyn ChunkStore>, blobs: Arc<dyn BlobStore>) -> Result<Self> {
        if chunks.read_ref(MAIN)?.is_none() {
            begin(&*chunks)?;
        }
        index_at_open(&*chunks)?;
        Self::on(chunks, blobs, Arc::new(BodyCache::new()), MAIN)
    }

    /// Opens the content on one branch.
    pub(crate) fn on(
        chunks: Arc<dyn ChunkStore>,
        blobs: Arc<dyn BlobStore>,
        bodies: Arc<BodyCache>,
        branch: &str,
    ) -> Result<Self> {
        let committer = Committer::new(chunks.clone(), branch);
        let staged = Shared {
            chunks: committer.staged(),
            blobs: blobs.clone(),
            branch: branch.to_owned(),
            bodies: bodies.clone(),
            commits: None,
            latest: ArcSwapOption::empty(),
            recent: Recent::default(),
        };
        let commits = Some(Commits { committer, staged: Arc::new(staged) });
        let (latest, recent) = (ArcSwapOption::empty(), Recent::default());
        let branch = branch.to_owned();
        let shared = Shared { chunks, blobs, branch, bodies, commits, latest, recent };
        let repository = Self(Arc::new(shared));
        repository.snapshot()?;
        Ok(repository)
    }

    /// Makes a repository that forgets everything when it is dropped, for tests and trials.
    ///
    /// # Errors
    /// If the store refuses, which memory does not.
    pub fn memory() -> Result<Self> {
        Self::open(Arc::new(LocalStore::memory()?), Arc::new(MemoryBlobs::default()))
    }

    /// Pins the newest state of the branch.
    ///
    /// # Errors
    /// If the store fails.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let root = self.head()?;
        if let Some(latest) = self.0.latest.load().as_ref()
            && latest.pin.root() == root
        {
            return Ok(self.open_pinned(latest.pin.clone(), latest.content));
        }
        let pin = self.0.chunks.pin(root);
        let content = self.content_of(&root)?;
        self.0.latest.store(Some(Arc::new(Latest { pin: pin.clone(), content })));
        Ok(self.open_pinned(pin, content))
    }

    /// Pins the state with this root, which the caller has from `main`, its history or a lease.
    ///
    /// # Errors
    /// If the store fails or the root holds no content.
    pub fn snapshot_at(&self, root: ChunkId) -> Result<Snapshot> {
        let pin = self.0.chunks.pin(root);
        let content = self.content_of(&root)?;
        Ok(self.open_pinned(pin, content))
    }

    fn open_pinned(&self, pin: Pin, content: Map) -> Snapshot {
        Snapshot::of_view(View::pinned(self.0.clone(), pin, content))
    }

    fn content_of(&self, root: &ChunkId) -> Result<Map> {
        let maps = Root::read(self.0.reads(), root)?.maps;
        maps.get(CONTENT).copied().ok_or(Error::NotContent(*root))
    }

    /// Returns the root of the newest state of the branch: what followers compare with the root they have digested.
    ///
    /// # Errors
    /// If the store fails.
    pub fn head(&self) -> Result<ChunkId> {
        self.0
            .chunks
            .read_ref(&self.0.branch)?
            .ok_or(Error::NotContent(ChunkId::from_bytes([0; 32])))
    }

    /// Begins a session of `user` on the newest state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn session(&self, user: &str) -> Result<Session> {
        Ok(Session::new(self.clone(), self.snapshot()?, user))
    }

    /// Keeps what is stored from now on until something refers to it. A session holds its own blobs.
    ///
    /// # Errors
    /// If the store fails.
    pub fn hold(&self) -> Result<Hold> {
        Ok(self.0.chunks.hold()?)
    }

    /// Returns the blob store.
    #[must_use]
    pub fn blobs(&self) -> &dyn BlobStore {
        &*self.0.blobs
    }

    /// Returns the chunk store, for those who move chunks unopened.
    #[must_use]
    pub fn chunks(&self) -> &Arc<dyn ChunkStore> {
        &self.0.chunks
    }
}

/// Writes the first state: a root node and nothing else.
fn begin(chunks: &dyn ChunkStore) -> Result<()> {
    let mut root = Subtree::default();
    root.properties.insert(PRIMARY_TYPE.to_owned(), Property::name(ROOT_TYPE));
    let mut batch = Batch::default();
    let record = Record::of(&root, OrderKey::default()).ok_or(Error::Damaged {
        path: NodePath::root(),
        reason: "the first record cannot be written",
    })?;
    let stored = record.encode(&mut batch)?;
    let content =
        Map::build(&mut batch, std::iter::once((keys::key_of(&NodePath::root())?, stored)))?;
    let maps = [(CONTENT.to_owned(), content)].into();
    write_main(chunks, batch, maps, None, "begin")
}

/// Builds what the newest state of `main` lacks if it is from before it: the map of order keys, and the property indexes
/// of a repository that is small. Those of a large one are built while it runs (`index_build`).
fn index_at_open(chunks: &dyn ChunkStore) -> Result<()> {
    let head = chunks.read_ref(MAIN)?.ok_or(Error::NotContent(ChunkId::from_bytes([0; 32])))?;
    let before = Root::read(chunks, &head)?.maps;
    let content = before.get(CONTENT).copied().ok_or(Error::NotContent(head))?;
    let mut batch = Batch::default();
    let mut maps = before.clone();
    if !maps.contains_key(ORDER) {
        maps.insert(ORDER.to_owned(), siblings::build(chunks, &mut batch, content)?);
    }
    if content.count(chunks)? <= SMALL {
        index_build::build_missing(chunks, &mut batch, content, &mut maps)?;
    }
    if maps == before {
        return Ok(());
    }
    write_main(chunks, batch, maps, Some(head), "index the order of children")
}

/// Writes a state that no user asked for.
fn write_main(
    chunks: &dyn ChunkStore,
    mut batch: Batch,
    maps: BTreeMap<String, Map>,
    expected: Option<ChunkId>,
    message: &str,
) -> Result<()> {
    let new = Root { maps }.write(&mut batch)?;
    batch.move_ref(RefUpdate {
        name: MAIN.to_owned(),
        expected,
        new: Some(new),
        at: SystemTime::UNIX_EPOCH,
        author: "system".to_owned(),
        message: message.to_owned(),
    });
    match chunks.commit(batch) {
        // Another process has begun at the same time.
        Ok(()) | Err(tympan_store::Error::RefMoved { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Repository")
    }
}
