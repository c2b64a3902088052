//! The state that the sessions of a repository share: its stores, its caches and its committer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tympan_blobs::BlobStore;
use tympan_store::{ChunkId, ChunkStore, ReadChunks, RefCommitter, RootPin, SortedMap};

use crate::Result;
use crate::access::AccessPolicyCache;
use crate::change_feed::move_cache::MoveCache;
use crate::change_feed::recent_revisions::RecentRevisions;
use crate::document::body::DocumentBody;
use crate::index::build_progress::IndexBuildTracker;
use crate::index::property_index::IndexDefinitionCache;
use crate::node_type::{MAX_CACHED_RULES, NodeTypeRulesCache};
use crate::snapshot::{ChildLocations, NodeLocation, NodeLocationKey};

/// The capacity of the cache of opened bodies, in bytes.
const BODY_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// Bodies from this size in bytes on are found again while somebody holds them, whether or not the cache accepts them.
const MIN_LARGE_BODY_BYTES: u64 = 1024 * 1024;
/// The maximum number of such bodies.
const MAX_LARGE_BODIES: usize = 16;
/// The maximum number of cached node locations, about 500 bytes each.
const MAX_CACHED_LOCATIONS: usize = 16_384;
/// The maximum number of cached paths without a node, about 200 bytes each. Visitors can request an unlimited number of
/// such paths.
const MAX_CACHED_ABSENT_PATHS: usize = 8192;
/// The maximum number of children in cached child lists, about 500 bytes each.
const MAX_CACHED_LIST_CHILDREN: u64 = 16_384;

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
    pub(super) latest_revision: ArcSwapOption<LatestRevision>,
    /// The newest revisions, for the change feed.
    pub(crate) recent_revisions: RecentRevisions,
}

pub(super) struct LatestRevision {
    pub(super) pin: RootPin,
    pub(super) content_map: SortedMap,
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
    /// The large bodies that were opened last, as long as somebody holds them. The cache does not accept bodies that are
    /// larger than one of its parts, and a request reads many nodes of one body.
    large_bodies: Mutex<VecDeque<(ChunkId, Weak<DocumentBody>)>>,
    /// Number of stored bodies that were read and opened.
    pub(crate) decoded_documents: AtomicU64,
    /// Number of documents that sessions encoded.
    pub(crate) encoded_documents: AtomicU64,
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
    pub(super) fn new() -> Self {
        Self {
            bodies: Cache::with_weighter(8192, BODY_CACHE_BYTES, BodyWeighter),
            large_bodies: Mutex::default(),
            decoded_documents: AtomicU64::new(0),
            encoded_documents: AtomicU64::new(0),
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
        self.bodies.get_or_insert_with(id, || {
            if let Some(body) = self.find_large_body(id) {
                return Ok(body);
            }
            let body = load()?;
            self.decoded_documents.fetch_add(1, Ordering::Relaxed);
            if body.memory_size() >= MIN_LARGE_BODY_BYTES {
                let mut large_bodies = self.large_bodies.lock();
                large_bodies.truncate(MAX_LARGE_BODIES - 1);
                large_bodies.push_front((*id, Arc::downgrade(&body)));
            }
            Ok(body)
        })
    }

    fn find_large_body(&self, id: &ChunkId) -> Option<Arc<DocumentBody>> {
        let large_bodies = self.large_bodies.lock();
        large_bodies.iter().find(|(large, _)| large == id).and_then(|(_, body)| body.upgrade())
    }
}
