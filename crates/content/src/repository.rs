//! The repository: the chunk and blob stores opened together, and the content in them.

pub(crate) mod repository_state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use tympan_blobs::{BlobStore, MemoryBlobStore};
use tympan_store::{
    ChunkBatch, ChunkId, ChunkStore, CollectionHold, LocalStore, RefCommitter, RefUpdate, RootPin,
    SortedMap, StoreRoot,
};

use crate::branch::branch_ref::MAIN_BRANCH;
use crate::change_feed::recent_revisions::RecentRevisions;
use crate::document::record::ContentRecord;
use crate::document::record_key::{CONTENT_MAP, ORDER_MAP};
use crate::index::missing_maps::build_missing_maps;
use crate::model::order_key::OrderKey;
use crate::model::subtree::{PRIMARY_TYPE, ROOT_NODE_TYPE};
use crate::repository::repository_state::{
    LatestRevision, RepositoryCache, RepositoryState, SessionCommitter,
};
use crate::snapshot::SnapshotView;
use crate::{
    Error, NodePath, Property, Result, Snapshot, Subtree, document::record_key, document::sibling,
};

/// If a repository has at most this many documents, its indexes are built when it is opened.
const MAX_INDEXED_AT_OPEN: u64 = 1_000;

/// The content of one instance. Cloning is cheap; clones share the same repository.
#[derive(Clone)]
pub struct Repository(pub(crate) Arc<RepositoryState>);

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

    /// Protects blobs stored from now on against collection until something refers to them. A session protects its own
    /// blobs.
    ///
    /// # Errors
    /// If the store fails.
    pub fn hold_blobs(&self) -> Result<CollectionHold> {
        Ok(self.0.chunks.begin_hold()?)
    }

    /// Returns how many stored documents were read and decoded since the repository was opened. It grows with the number
    /// of different documents that are read, not with the number of their nodes.
    #[must_use]
    pub fn documents_decoded(&self) -> u64 {
        self.0.cache.decoded_documents.load(Ordering::Relaxed)
    }

    /// Returns how many documents sessions have encoded since the repository was opened. It grows with the number of
    /// documents that are edited, not with the number of their nodes.
    #[must_use]
    pub fn documents_encoded(&self) -> u64 {
        self.0.cache.encoded_documents.load(Ordering::Relaxed)
    }

    pub(crate) fn count_encoded_document(&self) {
        self.0.cache.encoded_documents.fetch_add(1, Ordering::Relaxed);
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

impl Snapshot {
    /// Pins another state of the same repository for the program itself; see [`crate::Repository::snapshot_at`].
    ///
    /// # Errors
    /// If the store fails or the root holds no content.
    pub fn snapshot_at(&self, root: ChunkId) -> Result<Self> {
        Repository(self.view.repository_state.clone()).snapshot_at(root)
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
/// property indexes of a small repository. The indexes of a large repository are built while it runs (`index::build`).
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
        build_missing_maps(chunks, &mut batch, content, &mut maps)?;
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
