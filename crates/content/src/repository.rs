//! The repository: the chunk and blob stores opened together, and the content in them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tympan_blobs::{BlobStore, MemoryBlobStore};
use tympan_store::{
    ChunkBatch, ChunkId, ChunkStore, CollectionHold, LocalStore, ReadChunks, RefCommitter,
    RefUpdate, RootPin, SortedMap, StoreRoot,
};

use crate::access::AccessPolicyCache;
use crate::change_feed::{MoveCache, RecentRevisions};
use crate::document::body::DocumentBody;
use crate::document::record::ContentRecord;
use crate::index::ORDER_MAP;
use crate::index::build::{self, IndexBuildTracker};
use crate::index::property_index::IndexDefinitionCache;
use crate::model::order_key::OrderKey;
use crate::model::subtree::PRIMARY_TYPE;
use crate::node_type::{MAX_CACHED_RULES, NodeTypeRulesCache};
use crate::snapshot::{ChildLocations, NodeLocation, NodeLocationKey, SnapshotView};
use crate::{
    Error, NodePath, Property, Result, Session, Snapshot, Subtree, document::record_key,
    document::sibling,
};

/// The branch that visitors and authors see.
pub(crate) const MAIN_BRANCH: &str = "main";
/// The type of the root node of a new repository.
pub(crate) const ROOT_NODE_TYPE: &str = "rep:root";
/// The map of records by path.
pub(crate) const CONTENT_MAP: &str = "content";
/// The capacity of the cache of opened bodies, in bytes.
const BODY_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// The maximum number of cached node locations, about 500 bytes each.
const MAX_CACHED_LOCATIONS: usize = 16_384;
/// The maximum number of cached paths without a node, about 200 bytes each. Visitors can request an unlimited number of
/// such paths.
const MAX_CACHED_ABSENT_PATHS: usize = 8192;
/// The maximum number of children in cached child lists, about 500 bytes each.
const MAX_CACHED_LIST_CHILDREN: u64 = 16_384;
/// If a repository has at most this many documents, its indexes are built when it is opened.
const MAX_INDEXED_AT_OPEN: u64 = 1_000;

/// The content of one instance. Cloning is cheap; clones share the same repository.
#[derive(Clone)]
pub struct Repository(pub(crate) Arc<RepositoryState>);

/// The state shared by all sessions of a repository.
pub(crate) struct RepositoryState {
    pub(crate) chunks: Arc<dyn ChunkStore>,
    pub(crate) blobs: Arc<dyn BlobStore>,
    /// The branch for reads and commits.
    pub(crate) branch: String,
    pub(crate) cache: Arc<RepositoryCache>,
    /// The committer of sessions; `None` in the repository through which commits themselves read.
    pub(crate) session_committer: Option<SessionCommitter>,
    /// The newest state that was requested.
    latest_revision: ArcSwapOption<LatestRevision>,
    /// The newest revisions, for the change feed.
    pub(crate) recent_revisions: RecentRevisions,
}

struct LatestRevision {
    pin: RootPin,
    content_map: SortedMap,
}

/// Groups the sessions of a process into one commit.
pub(crate) struct SessionCommitter {
    pub(crate) committer: RefCommitter,
    /// The repository in the state of commits that are not durable yet.
    pub(crate) staged_state: Arc<RepositoryState>,
}

/// The caches of a repository: opened bodies by hash, bounded in bytes; the locations of nodes and their children, and
/// paths without a node, by content map and path; compiled policies; the state of property indexes; and the moves of a
/// revision that is read page by page.
pub(crate) struct RepositoryCache {
    bodies: Cache<ChunkId, Arc<DocumentBody>, BodyWeighter>,
    pub(crate) locations: Cache<NodeLocationKey, Arc<NodeLocation>>,
    /// Paths without a node. Paths with extensions are looked up unchanged before the lookup of their nodes.
    pub(crate) absent_paths: Cache<NodeLocationKey, ()>,
    /// The children, in order, of nodes with a limited number of them: those that have records of their own, or, where
    /// none may have one, those inside the document.
    pub(crate) child_locations: Cache<NodeLocationKey, Arc<ChildLocations>, ListingWeighter>,
    pub(crate) node_type_rules: NodeTypeRulesCache,
    pub(crate) access_policies: AccessPolicyCache,
    pub(crate) index_definitions: IndexDefinitionCache,
    pub(crate) index_builds: IndexBuildTracker,
    pub(crate) moves: MoveCache,
}

#[derive(Clone)]
struct BodyWeighter;

impl Weighter<ChunkId, Arc<DocumentBody>> for BodyWeighter {
    fn weight(&self, _: &ChunkId, body: &Arc<DocumentBody>) -> u64 {
        body.memory_size()
    }
}

/// Weighs a cached list by its memory; its key counts as one additional child.
#[derive(Clone)]
pub(crate) struct ListingWeighter;

impl Weighter<NodeLocationKey, Arc<ChildLocations>> for ListingWeighter {
    fn weight(&self, _: &NodeLocationKey, children: &Arc<ChildLocations>) -> u64 {
        children.len() as u64 + 1
    }
}

impl RepositoryState {
    /// Returns the read interface of the chunk store.
    pub(crate) fn chunk_reader(&self) -> &dyn ReadChunks {
        &*self.chunks
    }
}

impl RepositoryCache {
    fn new() -> Self {
        Self {
            bodies: Cache::with_weighter(8192, BODY_CACHE_BYTES, BodyWeighter),
            locations: Cache::new(MAX_CACHED_LOCATIONS),
            absent_paths: Cache::new(MAX_CACHED_ABSENT_PATHS),
            child_locations: Cache::with_weighter(1024, MAX_CACHED_LIST_CHILDREN, ListingWeighter),
            node_type_rules: NodeTypeRulesCache::new(MAX_CACHED_RULES),
            access_policies: AccessPolicyCache::default(),
            index_definitions: IndexDefinitionCache::default(),
            index_builds: IndexBuildTracker::default(),
            moves: MoveCache::default(),
        }
    }

    /// Returns the cached body, or loads and caches it.
    pub(crate) fn get_or_load_body(
        &self,
        id: &ChunkId,
        load: impl FnOnce() -> Result<Arc<DocumentBody>>,
    ) -> Result<Arc<DocumentBody>> {
        self.bodies.get_or_insert_with(id, load)
    }
}

impl Repository {
    /// Opens the content in these stores; creates a root node in an empty store.
    ///
    /// # Errors
    /// If the store fails, or `main` is not a content root.
    pub fn open(chunks: Arc<dyn ChunkStore>, blobs: Arc<dyn BlobStore>) -> Result<Self> {
        if chunks.read_ref(MAIN_BRANCH)?.is_none() {
            write_initial_state(&*chunks)?;
        }
        build_missing_indexes(&*chunks)?;
        Self::open_stores_on_branch(chunks, blobs, Arc::new(RepositoryCache::new()), MAIN_BRANCH)
    }

    /// Opens the content on one branch.
    pub(crate) fn open_stores_on_branch(
        chunks: Arc<dyn ChunkStore>,
        blobs: Arc<dyn BlobStore>,
        bodies: Arc<RepositoryCache>,
        branch: &str,
    ) -> Result<Self> {
        let committer = RefCommitter::new(chunks.clone(), branch);
        let staged = RepositoryState {
            chunks: committer.staged_store(),
            blobs: blobs.clone(),
            branch: branch.to_owned(),
            cache: bodies.clone(),
            session_committer: None,
            latest_revision: ArcSwapOption::empty(),
            recent_revisions: RecentRevisions::default(),
        };
        let commits = Some(SessionCommitter { committer, staged_state: Arc::new(staged) });
        let (latest, recent) = (ArcSwapOption::empty(), RecentRevisions::default());
        let branch = branch.to_owned();
        let shared = RepositoryState {
            chunks,
            blobs,
            branch,
            cache: bodies,
            session_committer: commits,
            latest_revision: latest,
            recent_revisions: recent,
        };
        let repository = Self(Arc::new(shared));
        repository.snapshot()?;
        Ok(repository)
    }

    /// Creates a repository in memory, for tests and experiments. Its content is lost when it is dropped.
    ///
    /// # Errors
    /// If the store fails, which an in-memory store does not.
    pub fn in_memory() -> Result<Self> {
        Self::open(Arc::new(LocalStore::open_in_memory()?), Arc::new(MemoryBlobStore::default()))
    }

    /// Pins the newest state of the branch.
    ///
    /// # Errors
    /// If the store fails.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let root = self.head_root()?;
        if let Some(latest) = self.0.latest_revision.load().as_ref()
            && latest.pin.root() == root
        {
            return Ok(self.snapshot_of_pin(latest.pin.clone(), latest.content_map));
        }
        let pin = self.0.chunks.pin_root(root);
        let content = self.content_map_of(&root)?;
        self.0
            .latest_revision
            .store(Some(Arc::new(LatestRevision { pin: pin.clone(), content_map: content })));
        Ok(self.snapshot_of_pin(pin, content))
    }

    /// Pins the state with this root, which the caller got from `main`, its history or a lease.
    ///
    /// # Errors
    /// If the store fails or the root holds no content.
    pub fn snapshot_at(&self, root: ChunkId) -> Result<Snapshot> {
        let pin = self.0.chunks.pin_root(root);
        let content = self.content_map_of(&root)?;
        Ok(self.snapshot_of_pin(pin, content))
    }

    fn snapshot_of_pin(&self, pin: RootPin, content: SortedMap) -> Snapshot {
        Snapshot::from_view(SnapshotView::pinned(self.0.clone(), pin, content))
    }

    fn content_map_of(&self, root: &ChunkId) -> Result<SortedMap> {
        let maps = StoreRoot::read(self.0.chunk_reader(), root)?.maps;
        maps.get(CONTENT_MAP).copied().ok_or(Error::MissingContentMap(*root))
    }

    /// Returns the root of the newest state of the branch. Followers compare it with the root that they processed last.
    ///
    /// # Errors
    /// If the store fails.
    pub fn head_root(&self) -> Result<ChunkId> {
        self.0
            .chunks
            .read_ref(&self.0.branch)?
            .ok_or(Error::MissingContentMap(ChunkId::from_bytes([0; 32])))
    }

    /// Begins a session of `user` on the newest state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn session(&self, user: &str) -> Result<Session> {
        Ok(Session::new(self.clone(), self.snapshot()?, user))
    }

    /// Protects blobs stored from now on against collection until something refers to them. A session protects its own
    /// blobs.
    ///
    /// # Errors
    /// If the store fails.
    pub fn hold_blobs(&self) -> Result<CollectionHold> {
        Ok(self.0.chunks.begin_hold()?)
    }

    /// Returns the blob store.
    #[must_use]
    pub fn blobs(&self) -> &dyn BlobStore {
        &*self.0.blobs
    }

    /// Returns the chunk store, for callers that transfer chunks without decoding them.
    #[must_use]
    pub fn chunks(&self) -> &Arc<dyn ChunkStore> {
        &self.0.chunks
    }
}

/// Writes the initial state: only a root node.
fn write_initial_state(chunks: &dyn ChunkStore) -> Result<()> {
    let mut root = Subtree::default();
    root.properties.insert(PRIMARY_TYPE.to_owned(), Property::name(ROOT_NODE_TYPE));
    let mut batch = ChunkBatch::default();
    let record = ContentRecord::from_subtree(&root, OrderKey::default()).ok_or(Error::Damaged {
        path: NodePath::root(),
        reason: "the first record cannot be written",
    })?;
    let stored = record.encode(&mut batch)?;
    let content = SortedMap::build(
        &mut batch,
        std::iter::once((record_key::record_key(&NodePath::root())?, stored)),
    )?;
    let maps = [(CONTENT_MAP.to_owned(), content)].into();
    commit_to_main(chunks, batch, maps, None, "begin")
}

/// Builds what is missing in the newest state of `main` if an older version wrote it: the map of order keys, and the
/// property indexes of a small repository. The indexes of a large repository are built while it runs (`index_build`).
fn build_missing_indexes(chunks: &dyn ChunkStore) -> Result<()> {
    let head = chunks
        .read_ref(MAIN_BRANCH)?
        .ok_or(Error::MissingContentMap(ChunkId::from_bytes([0; 32])))?;
    let before = StoreRoot::read(chunks, &head)?.maps;
    let content = before.get(CONTENT_MAP).copied().ok_or(Error::MissingContentMap(head))?;
    let mut batch = ChunkBatch::default();
    let mut maps = before.clone();
    if !maps.contains_key(ORDER_MAP) {
        maps.insert(ORDER_MAP.to_owned(), sibling::build_order_map(chunks, &mut batch, content)?);
    }
    if content.count_records(chunks)? <= MAX_INDEXED_AT_OPEN {
        build::build_missing_maps(chunks, &mut batch, content, &mut maps)?;
    }
    if maps == before {
        return Ok(());
    }
    commit_to_main(chunks, batch, maps, Some(head), "index the order of children")
}

/// Commits a state that no user requested.
fn commit_to_main(
    chunks: &dyn ChunkStore,
    mut batch: ChunkBatch,
    maps: BTreeMap<String, SortedMap>,
    expected: Option<ChunkId>,
    message: &str,
) -> Result<()> {
    let new = StoreRoot { maps }.write(&mut batch)?;
    batch.add_ref_update(RefUpdate {
        name: MAIN_BRANCH.to_owned(),
        expected_root: expected,
        new_root: Some(new),
        updated_at: SystemTime::UNIX_EPOCH,
        author: "system".to_owned(),
        message: message.to_owned(),
    });
    match chunks.commit(batch) {
        // Another process initialized the store at the same time.
        Ok(()) | Err(tympan_store::Error::RefMoved { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Repository")
    }
}
