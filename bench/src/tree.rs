//! The large tree: pages of 25 nodes, stored three ways so that saves can be compared.
//!
//! * Through `content`, with its index maps.
//! * Its content map alone, in a store of its own: each save is replayed there chunk for chunk.
//! * As rows, one for each node, for the peers.
//!
//! Invariant: the replayed content map has the root of the original after every save.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tympan_content::{JcrDate, NodePath, Property, Repository, Subtree, Value};
use tympan_store::{
    ChunkBatch, ChunkId, ChunkStore, MapChange, ReadChunks, RefUpdate, SortedMap, StoreRoot, body,
};

use crate::Outcome;
use crate::counting::{CountingStore, SyncCost};
use crate::random::Random;

/// Nodes of a page: the page, `jcr:content`, `root`, and the components.
pub(crate) const NODES_PER_PAGE: usize = 25;
/// Components of a page.
pub(crate) const COMPONENTS: usize = NODES_PER_PAGE - 3;
/// How many components a save changes, besides the date in `jcr:content`: ten nodes together.
const CHANGED: usize = 9;
const PAGES_PER_SECTION: usize = 200;
const CONTENT_MAP: &str = "content";
/// Chunks that are copied by one commit.
const COPY_BATCH: usize = 1_000;

/// The tree in its two stores.
pub(crate) struct Tree {
    /// Number of pages.
    pub(crate) pages: usize,
    /// The store with index maps.
    pub(crate) full: Arc<CountingStore>,
    /// The store with the content map alone.
    pub(crate) plain: Arc<CountingStore>,
    /// The content in [`Tree::full`].
    pub(crate) repository: Repository,
    plain_root: ChunkId,
    saves: AtomicU64,
}

/// One save of a page, done in the full store.
#[derive(Debug)]
pub(crate) struct Save {
    /// How long it took, from the session's begin to the end of the commit.
    pub(crate) elapsed: Duration,
    /// The page.
    pub(crate) page: usize,
    /// The number of the save, which its texts are made from.
    pub(crate) version: u64,
    before: ChunkId,
    after: ChunkId,
}

/// What a save changes in the content map, with the chunks of the bodies.
#[derive(Debug)]
pub(crate) struct Replay {
    edits: Vec<MapChange>,
    bodies: Vec<bytes::Bytes>,
    expected: SortedMap,
}

impl Tree {
    /// Builds the tree in new stores below `folder`.
    ///
    /// # Errors
    /// If a store fails.
    pub(crate) fn build(folder: &Path, pages: usize) -> Outcome<Self> {
        eprintln!("building a tree of {} nodes", pages * NODES_PER_PAGE);
        let full = Arc::new(CountingStore::open(folder.join("full"))?);
        full.set_sync_cost(SyncCost::None);
        let repository =
            Repository::open(full.clone(), Arc::new(tympan_blobs::MemoryBlobStore::default()))?;
        let mut session = repository.session("bench")?;
        session.add_node(&NodePath::new("/content")?, "sling:Folder")?;
        session.add_node(&NodePath::new("/content/site")?, "sling:Folder")?;
        session.commit("begin", SystemTime::UNIX_EPOCH)?;
        for section in 0..pages.div_ceil(PAGES_PER_SECTION) {
            let mut session = repository.session("bench")?;
            let mut tree = Subtree::new(section_name(section), "sling:Folder");
            let first = section * PAGES_PER_SECTION;
            tree.children.extend((first..pages.min(first + PAGES_PER_SECTION)).map(page_tree));
            session.put_node(
                &NodePath::new(&format!("/content/site/{}", section_name(section)))?,
                tree,
            )?;
            session.commit("load", SystemTime::UNIX_EPOCH)?;
        }
        let plain = Arc::new(CountingStore::open(folder.join("plain"))?);
        plain.set_sync_cost(SyncCost::None);
        let content = content_map(&*full, &repository.head_root()?)?;
        copy_chunks(&*full, &*plain, content)?;
        let mut batch = ChunkBatch::new();
        let plain_root = write_root(&mut batch, content, None)?;
        plain.commit(batch)?;
        full.set_sync_cost(SyncCost::Real);
        plain.set_sync_cost(SyncCost::Real);
        Ok(Self { pages, full, plain, repository, plain_root, saves: AtomicU64::new(0) })
    }

    /// Saves a page through a session: ten of its nodes get new texts.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn save(&self, page: usize) -> Outcome<Save> {
        self.save_at(page, SystemTime::UNIX_EPOCH)
    }

    /// Saves a page at a time of the history's clock. Several threads may do so at once.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn save_at(&self, page: usize, at: SystemTime) -> Outcome<Save> {
        let version = self.saves.fetch_add(1, Ordering::Relaxed) + 1;
        let before = self.repository.head_root()?;
        let mut changes = vec![(content_path(page)?, "cq:lastModified", modified(page, version))];
        for component in changed_components(page, version) {
            let path = NodePath::new(&component_path(page, component))?;
            changes.push((path, "text", Property::text(text(page, component, version))));
        }
        let begin = Instant::now();
        let mut session = self.repository.session("bench")?;
        for (path, name, property) in changes {
            session.set_property(&path, name, property)?;
        }
        let after = session.commit("save", at)?;
        Ok(Save { elapsed: begin.elapsed(), page, version, before, after })
    }

    /// Reads what a save changed, so that it can be replayed.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn replay_of(&self, save: &Save) -> Outcome<Replay> {
        self.replay_between(
            content_map(&*self.full, &save.before)?,
            content_map(&*self.full, &save.after)?,
        )
    }

    /// Brings the store with the content map alone up to what the full store holds.
    ///
    /// # Errors
    /// If a store fails.
    pub(crate) fn catch_up(&mut self) -> Outcome<()> {
        let behind = content_map(&*self.plain, &self.plain_root)?;
        let replay = self.replay_between(behind, self.content_map()?)?;
        if !replay.edits.is_empty() {
            self.replay(&replay)?;
        }
        Ok(())
    }

    fn replay_between(&self, before: SortedMap, after: SortedMap) -> Outcome<Replay> {
        let edits = before.diff(&after, &*self.full).collect::<Result<Vec<_>, _>>()?;
        let mut bodies = Vec::new();
        for id in edits.iter().filter_map(|change| change.right.as_ref()?.body) {
            for chunk in body::list_body_chunks(&*self.full, &id)? {
                bodies.push(self.full.read_chunk(&chunk)?.bytes().clone());
            }
        }
        Ok(Replay { edits, bodies, expected: after })
    }

    /// Makes the same save in the store with the content map alone; gives how long edit and commit took.
    ///
    /// # Errors
    /// If the store fails or the content map comes out differently.
    pub(crate) fn replay(&mut self, replay: &Replay) -> Outcome<Duration> {
        let begin = Instant::now();
        let mut batch = ChunkBatch::new();
        let bodies = replay.bodies.iter().cloned();
        bodies.for_each(|bytes| _ = batch.add_chunk(bytes));
        let content = content_map(&*self.plain, &self.plain_root)?;
        let edits =
            replay.edits.iter().map(|change| (change.key.to_vec(), change.right.clone())).collect();
        let content = content.edit(&*self.plain, &mut batch, edits)?;
        let root = write_root(&mut batch, content, Some(self.plain_root))?;
        self.plain.commit(batch)?;
        let elapsed = begin.elapsed();
        if content != replay.expected {
            return Err("the replayed content map differs from the original".into());
        }
        self.plain_root = root;
        Ok(elapsed)
    }

    /// Returns the chunks that a replay would store, by id, without storing them.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn chunks_of(&self, save: &Save) -> Outcome<Vec<(ChunkId, bytes::Bytes)>> {
        let replay = self.replay_of(save)?;
        let mut batch = ChunkBatch::new();
        replay.bodies.iter().cloned().for_each(|bytes| _ = batch.add_chunk(bytes));
        let before = content_map(&*self.full, &save.before)?;
        let edits =
            replay.edits.into_iter().map(|change| (change.key.to_vec(), change.right)).collect();
        let content = before.edit(&*self.full, &mut batch, edits)?;
        StoreRoot { maps: [(CONTENT_MAP.to_owned(), content)].into() }.write(&mut batch)?;
        Ok(batch.chunks().map(|(id, bytes)| (*id, bytes.clone())).collect())
    }

    /// Visits every chunk of the newest content map.
    ///
    /// # Errors
    /// If the store or the visitor fails.
    pub(crate) fn each_chunk(
        &self,
        visit: &mut dyn FnMut(ChunkId, &bytes::Bytes) -> Outcome<()>,
    ) -> Outcome<()> {
        walk(&*self.full, self.content_map()?, visit)
    }

    /// Returns the newest content map of the full store.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn content_map(&self) -> Outcome<SortedMap> {
        content_map(&*self.full, &self.repository.head_root()?)
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("pages", &self.pages).finish_non_exhaustive()
    }
}

/// Returns the bytes of the tree's paths, names and values, as rows hold them.
pub(crate) fn raw_bytes(pages: usize) -> u64 {
    let row = |(path, node): (String, Subtree)| path.len() + crate::engine::encode(&node).len();
    let page = |page| page_rows(page).into_iter().map(row).sum::<usize>() as u64;
    (0..pages).map(page).sum()
}

/// Returns the path of a page.
pub(crate) fn page_path(page: usize) -> String {
    format!("/content/site/{}/page-{page:06}", section_name(page / PAGES_PER_SECTION))
}

/// Returns the path of a component.
pub(crate) fn component_path(page: usize, component: usize) -> String {
    format!("{}/jcr:content/root/text-{component:02}", page_path(page))
}

/// Returns a page's nodes as rows: path and properties.
pub(crate) fn page_rows(page: usize) -> Vec<(String, Subtree)> {
    let mut rows = Vec::with_capacity(NODES_PER_PAGE);
    add_rows(&page_path(page), page_tree(page), &mut rows);
    rows
}

/// Returns the rows that a save changes.
pub(crate) fn changed_rows(page: usize, version: u64) -> Outcome<Vec<(String, Subtree)>> {
    let path = content_path(page)?;
    let mut rows = vec![(path.to_string(), content_tree(page, version))];
    rows.extend(changed_components(page, version).map(|component| {
        (component_path(page, component), component_tree(page, component, version))
    }));
    Ok(rows)
}

fn add_rows(path: &str, mut node: Subtree, rows: &mut Vec<(String, Subtree)>) {
    let children = std::mem::take(&mut node.children);
    rows.push((path.to_owned(), node));
    for child in children {
        add_rows(&format!("{path}/{}", child.name), child, rows);
    }
}

fn section_name(section: usize) -> String {
    format!("section-{section:03}")
}

fn changed_components(page: usize, version: u64) -> impl Iterator<Item = usize> {
    let first = Random::new(version ^ ((page as u64) << 32)).below(COMPONENTS);
    (0..CHANGED).map(move |step| (first + step * 2) % COMPONENTS)
}

fn text(page: usize, component: usize, version: u64) -> String {
    let seed = ((page as u64) << 8) + component as u64;
    Random::new(seed ^ (version << 40)).words(160)
}

fn component_tree(page: usize, component: usize, version: u64) -> Subtree {
    Subtree::new(format!("text-{component:02}"), "nt:unstructured")
        .with_property("sling:resourceType", "site/components/text")
        .with_property("jcr:lastModifiedBy", "editor")
        .with_property("created", "2020-07-15T08:00:00.000Z")
        .with_property("text", Property::text(text(page, component, version)))
}

fn content_tree(page: usize, version: u64) -> Subtree {
    Subtree::new("jcr:content", "cq:PageContent")
        .with_property("jcr:title", Property::text(Random::new(page as u64).words(30)))
        .with_property("sling:resourceType", "site/components/page")
        .with_property("cq:lastModified", modified(page, version))
        .with_property("jcr:description", Property::text(Random::new(page as u64 + 1).words(120)))
}

fn content_path(page: usize) -> Outcome<NodePath> {
    Ok(NodePath::new(&format!("{}/jcr:content", page_path(page)))?)
}

/// Returns when a page was changed: the newest version last.
fn modified(page: usize, version: u64) -> Property {
    let seconds = 1_600_000_000 + page as u64 + version * 100_000;
    let date = JcrDate::from_system_time(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    Property::Single(Value::Date(date))
}

fn page_tree(page: usize) -> Subtree {
    let mut root = Subtree::new("root", "nt:unstructured")
        .with_property("sling:resourceType", "site/components/container");
    root.children.extend((0..COMPONENTS).map(|component| component_tree(page, component, 0)));
    let content = content_tree(page, 0).with_child(root);
    Subtree::new(format!("page-{page:06}"), "cq:Page").with_child(content)
}

fn content_map(reads: &dyn ReadChunks, root: &ChunkId) -> Outcome<SortedMap> {
    Ok(StoreRoot::read(reads, root)?.map(CONTENT_MAP))
}

fn write_root(
    batch: &mut ChunkBatch,
    content: SortedMap,
    expected: Option<ChunkId>,
) -> Outcome<ChunkId> {
    let root = StoreRoot { maps: [(CONTENT_MAP.to_owned(), content)].into() }.write(batch)?;
    batch.add_ref_update(RefUpdate {
        name: "main".to_owned(),
        expected_root: expected,
        new_root: Some(root),
        updated_at: SystemTime::UNIX_EPOCH,
        author: "bench".to_owned(),
        message: "save".to_owned(),
    });
    Ok(root)
}

/// Copies the chunks of a map, several in one commit.
fn copy_chunks(from: &dyn ReadChunks, to: &dyn ChunkStore, map: SortedMap) -> Outcome<()> {
    let mut batch = ChunkBatch::new();
    walk(from, map, &mut |_, bytes| {
        batch.add_chunk(bytes.clone());
        if batch.chunks().len() >= COPY_BATCH {
            to.commit(std::mem::take(&mut batch))?;
        }
        Ok(())
    })?;
    to.commit(batch)?;
    Ok(())
}

fn walk(
    reads: &dyn ReadChunks,
    map: SortedMap,
    visit: &mut dyn FnMut(ChunkId, &bytes::Bytes) -> Outcome<()>,
) -> Outcome<()> {
    let mut open: Vec<ChunkId> = map.root().into_iter().collect();
    while let Some(id) = open.pop() {
        let chunk = reads.read_chunk(&id)?;
        open.extend(chunk.chunk_refs());
        visit(id, chunk.bytes())?;
    }
    Ok(())
}
