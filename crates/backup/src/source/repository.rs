//! A content repository as a source: exactly one root of it, read through the store's own readers.
//!
//! In: a store that another process may be writing, its blobs, and the parent snapshot. Out: a snapshot whose folders
//! follow the chunks: a folder or file per chunk that refers to others, named by its hash.
//!
//! Invariants
//! * The contents of a chunk's folder depend on the chunk alone. So an unchanged part is reused from the parent
//!   snapshot by its name, unread, and of a changed one, the unchanged pieces are reused; the cost of a save is
//!   proportional to the change. For a clone that leaves something to its base, whole parts are reused and no pieces: a
//!   piece contains what was the clone's own then, which no chunk records.
//! * Nothing is reused from an incomplete snapshot, from one that another program rewrote and may have removed data
//!   from, or from the original of such a one.
//! * Parts are saved level by level where something is reused: what was removed since the parent snapshot is known when
//!   a whole level is. Below a level that is too large to be read at once, that is known for two more levels, and
//!   further below, changed parts are read anew.
//! * Memory is bounded. Facts about the parent snapshot beyond the bound are not loaded, and the parts concerned are
//!   read anew.
//! * The root stays readable until the snapshot is written: the store retains it under a lease.
//! * What belongs to the base of a clone is left to it, if the source says so, and named (`base_store`).
//!
//! Layout: `tympan.json` names the root. `state` is the root's folder. A folder contains `chunks` (`frames` of the
//! chunk itself, of the leaf chunks below it, and of their small blobs), large blobs by their hash, and the other parts
//! below. A part without large blobs and without parts of its own is one file of frames. Beside it, `content` is
//! human-readable (`document_view`). `branches` contains a folder like `state` for each other ref, which `tympan.json`
//! names with its root; `home` contains files of the home. `revisions` contains a folder for each saved earlier state,
//! named by its root.
//!
//! Not here: the meaning of chunks; importing a saved repository (`import`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Read;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use rayon::prelude::*;
use tracing::warn;
use tympan_blobs::{ReadBlobs, SMALL_BLOB_BYTES};
use tympan_notation::error_chain_text;
use tympan_store::{BaseStore, BlobId, Chunk, ChunkId, Revision, RootLease};

use super::base_store::{
    BASE_STORE_FILE_NAME, BaseStoreReference, OmissionTracker, SeparateBase, has_base,
    lost_chunk_name,
};
use super::document_view::{BlobPieceMap, CONTENT_FOLDER, DocumentView, PreviousView, save_view};
use super::frame::{
    FRAME_FILE_NAME, FramePieceWriter, LAYOUT_TAG, PreviousChunks, PreviousPiece, parse_part_id,
    split_chunks, write_chunk_piece,
};
use super::repository_layout::{
    BRANCHES_FOLDER, HOME_FOLDER, METADATA_FILE_NAME, README_FILE_NAME, README_TEXT,
    REPOSITORY_FORMAT_VERSION, REVISIONS_FOLDER, STATE_FOLDER, SavedBranchMetadata,
    SavedRepositoryMetadata, SavedRevisionMetadata,
};
use super::root_lease::{RootLeaseRequest, run_with_root_lease};
use crate::deep_stack;
use crate::error::{Error, Result};
use crate::fault::FaultCollector;
use crate::id_map::IdMap;
use crate::object_id::VaultObjectId;
use crate::piece_splitter::{MAX_PIECE_BYTES, PieceReader};
use crate::save::{EarlierSnapshots, ParentSelection, SaveOptions, SaveSession, SaveSummary};
use crate::vault::IndexedVault;
use crate::vault::node::{SnapshotNode, SnapshotNodeKind, SnapshotTree, go_mode};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::PackWriter;
use crate::vault::snapshot::{EXTRAS_TAG_PREFIX, INCOMPLETE_TAG, VaultSnapshot};

/// Maximum number of revisions of a ref that are scanned for those to save.
const MAX_SCANNED_REVISIONS: usize = 100_000;
/// The file that lists the documents that could not be rendered.
const UNRENDERED_FILE_NAME: &str = "undrawn.json";
/// Number of chunks that are read together.
pub(crate) const CHUNK_READ_BATCH_SIZE: usize = 256;
/// Approximate maximum number of chunks and parts of the parent snapshot that are known, for each chunk that may be
/// read anew at once.
const PREVIOUS_CHUNKS_PER_CHUNK: usize = 128;

/// A file of a home that is saved with its repository, such as its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeFile {
    /// The file name in the home.
    pub name: String,
    /// The content of the file.
    pub bytes: Vec<u8>,
}

/// A repository to save.
#[derive(Clone, Copy)]
pub struct BackupRepositorySource<'a> {
    /// Its chunks and small blobs.
    pub base: &'a dyn BaseStore,
    /// Its large blobs.
    pub blobs: &'a dyn ReadBlobs,
    /// The ref whose root is saved.
    pub reference: &'a str,
    /// The path in its snapshots, such as `/tympan/srv/author`.
    pub path: &'a str,
    /// The human-readable view to save beside what an import reads.
    pub view: Option<&'a dyn DocumentView>,
    /// The base that another owner saves: what `base` and `blobs` do not have is left to it.
    pub base_owner: Option<SeparateBase<'a>>,
    /// Files of the home that are saved with the repository.
    pub files: &'a [HomeFile],
}

impl std::fmt::Debug for BackupRepositorySource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupRepositorySource").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Saves the root that a ref points to, with those of all other refs, and files of the home; `None` if the last
/// snapshot has the same content.
///
/// # Errors
/// If the repository or the vault fails.
pub fn save_repository(
    session: &SaveSession<'_>,
    source: BackupRepositorySource<'_>,
    options: &SaveOptions,
) -> Result<Option<SaveSummary>> {
    let BackupRepositorySource { base, reference, .. } = source;
    let request = RootLeaseRequest { base, reference, operation: "backup", user: &options.user };
    run_with_root_lease(request, session.progress, |lease| {
        deep_stack::run_on_deep_stack(|| save_leased_root(session, source, options, lease))
    })
}

fn save_leased_root(
    session: &SaveSession<'_>,
    source: BackupRepositorySource<'_>,
    options: &SaveOptions,
    lease: &RootLease,
) -> Result<Option<SaveSummary>> {
    let root = lease.root.to_string();
    let paths = vec![source.path.to_owned()];
    // Missing data in a parent would also be missing in all later snapshots, because a part is reused whole, by its
    // name. A program that rewrites a snapshot, as `restic repair snapshots`, may omit pieces and keep names and tags;
    // and it had a reason to, so that its original, if it still exists, may lack them, too.
    let reference = source.base_owner.map(|below| below.reference);
    let EarlierSnapshots { mut comparable, originals } =
        session.list_earlier_snapshots(options, &paths)?;
    let is_as_saved = |candidate: &VaultSnapshot| {
        candidate.original.is_none() && !originals.contains(&candidate.id)
    };
    let fits = |candidate: &VaultSnapshot| {
        !candidate.is_incomplete() && is_as_saved(candidate) && has_base(candidate, reference)
    };
    let position = comparable.iter().rposition(fits);
    // If a newer snapshot is `latest`, it has another state, or may be incomplete.
    let is_latest = position.is_some_and(|position| position + 1 == comparable.len());
    let parent = position.map(|position| comparable.swap_remove(position));
    let revisions = list_saved_revisions(&source, options, &lease.root)?;
    let beside = extras_tag(&list_other_refs(&source)?, &revisions, source.files);
    let has_root = |candidate: &VaultSnapshot| {
        let tag = candidate.tags().iter().find(|tag| tag.starts_with(EXTRAS_TAG_PREFIX));
        candidate.repository_root() == Some(root.as_str()) && tag == beside.as_ref()
    };
    if is_latest && parent.as_ref().is_some_and(has_root) {
        return Ok(None);
    }
    let writer = PackWriter::new(session.vault, session.index, session.lock);
    let (faults, cuts) = (FaultCollector::default(), BlobPieceMap::default());
    let leaving = OmissionTracker::new(source.base_owner);
    let saver = RepositorySaver {
        session,
        source,
        options,
        writer: &writer,
        faults,
        blob_pieces: cuts,
        omissions: leaving,
    };
    let old = match (&parent, &options.parent) {
        (Some(parent), ParentSelection::LatestMatching) => saver.read_previous_state(parent)?,
        _ => ReuseCandidates::default(),
    };
    let top = saver.read_own_chunks(&[lease.root])?;
    let saved = saver.save_parts(
        &top,
        ReuseScope { candidates: &old, child_candidates: None },
        PartShape::Folder,
    )?;
    let mut state = saver.new_folder_node(STATE_FOLDER.into());
    state.subtree = match saved.into_iter().next() {
        Some(saved) => saved.subtree,
        // A clone to which nothing was written.
        None => Some(writer.add_blob(PackBlobKind::Tree, &SnapshotTree::default().to_bytes())?.0),
    };
    let branches = saver.save_branches(parent.as_ref(), (&lease.root, &state))?;
    let (branches, folders): (Vec<SavedBranchMetadata>, Vec<SnapshotNode>) =
        branches.into_iter().unzip();
    let name = source.reference.to_owned();
    let revisions = saver.save_revisions(revisions, parent.as_ref(), &old)?;
    let (revisions, states): (Vec<SavedRevisionMetadata>, Vec<SnapshotNode>) =
        revisions.into_iter().unzip();
    let beside = extras_tag(&branches, &revisions, source.files);
    let root_text = root.clone();
    let facts = SavedRepositoryMetadata {
        format: REPOSITORY_FORMAT_VERSION,
        name,
        root: root_text,
        branches,
        revisions,
        copy: None,
    };
    let facts = serde_json::to_vec_pretty(&facts).unwrap_or_default();
    let facts = saver.save_file_bytes(METADATA_FILE_NAME, &facts)?;
    let readme = saver.save_file_bytes(README_FILE_NAME, README_TEXT.as_bytes())?;
    let mut nodes = vec![state, facts, readme];
    if !folders.is_empty() {
        nodes.push(saver.save_node_folder(BRANCHES_FOLDER, folders)?);
    }
    if !states.is_empty() {
        // The same state may occur again.
        let mut states = states;
        states.sort_by(|left, right| left.name.cmp(&right.name));
        states.dedup_by(|left, right| left.name == right.name);
        nodes.push(saver.save_node_folder(REVISIONS_FOLDER, states)?);
    }
    if !source.files.is_empty() {
        let files = source.files.iter().map(|file| saver.save_home_file(file));
        nodes.push(saver.save_node_folder(HOME_FOLDER, files.collect::<Result<_>>()?)?);
    }
    if let Some(reference) = reference {
        nodes.push(saver.save_file_bytes(BASE_STORE_FILE_NAME, &reference.to_json())?);
    }
    if let Some(view) = source.view {
        let before = parent.as_ref().and_then(|parent| saver.find_previous_view(parent));
        if let Some((node, undrawn)) = save_view(&saver, view, &lease.root, before)? {
            nodes.push(node);
            if !undrawn.is_empty() {
                let list = serde_json::to_vec_pretty(&undrawn).unwrap_or_default();
                nodes.push(saver.save_file_bytes(UNRENDERED_FILE_NAME, &list)?);
            }
        }
    }
    let (tree, _) =
        writer.add_blob(PackBlobKind::Tree, &SnapshotTree::from_nodes(nodes).to_bytes())?;
    let left_out = saver.omissions.counts();
    let faults = saver.faults.into_sorted();
    let mut options = options.clone();
    options.tags.extend(["tympan".to_owned(), LAYOUT_TAG.to_owned(), format!("root:{root}")]);
    options.tags.extend(reference.map(BaseStoreReference::tag));
    options.tags.extend(beside);
    if !faults.is_empty() {
        options.tags.push(INCOMPLETE_TAG.to_owned());
    }
    let (snapshot, written, _) = session.finish_snapshot(writer, tree, &options, paths, parent)?;
    Ok(Some(SaveSummary { snapshot, written, faults, omitted: left_out }))
}

/// Lists the refs other than the saved one, by name.
fn list_other_refs(source: &BackupRepositorySource<'_>) -> Result<Vec<SavedBranchMetadata>> {
    let refs = source.base.list_refs()?.into_iter().filter(|(name, _)| name != source.reference);
    let mut refs: Vec<SavedBranchMetadata> =
        refs.map(|(name, root)| SavedBranchMetadata { name, root: root.to_string() }).collect();
    refs.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(refs)
}

/// Lists the earlier states of the ref that are saved with it, oldest first. Those that belong to the base of a clone
/// are left to it, including its history.
fn list_saved_revisions(
    source: &BackupRepositorySource<'_>,
    options: &SaveOptions,
    root: &ChunkId,
) -> Result<Vec<SavedRevisionMetadata>> {
    let Some(retention) = options.revision_retention.filter(|_| source.base_owner.is_none()) else {
        return Ok(Vec::new());
    };
    let history = source.base.ref_history(source.reference, None, MAX_SCANNED_REVISIONS)?;
    let times = history.iter().map(|revision| (revision.sequence, revision.update.updated_at));
    let retained_revisions = retention.select_retained(times, options.started_at.into());
    let mut revisions = Vec::new();
    for Revision { sequence, update } in history.into_iter().rev() {
        let Some(new) =
            update.new_root.filter(|new| new != root && retained_revisions.contains(&sequence))
        else {
            continue;
        };
        let at = update.updated_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        revisions.push(SavedRevisionMetadata {
            root: new.to_string(),
            at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            author: update.author,
            message: update.message,
        });
    }
    Ok(revisions)
}

/// Returns the tag that identifies what is saved beside the root; `None` if there is nothing.
fn extras_tag(
    branches: &[SavedBranchMetadata],
    revisions: &[SavedRevisionMetadata],
    files: &[HomeFile],
) -> Option<String> {
    if branches.is_empty() && revisions.is_empty() && files.is_empty() {
        return None;
    }
    let mut text = String::new();
    for SavedBranchMetadata { name, root } in branches {
        text.push_str(&format!("{root} {name}\n"));
    }
    for SavedRevisionMetadata { root, at_ms, .. } in revisions {
        text.push_str(&format!("{root} {at_ms}\n"));
    }
    for HomeFile { name, bytes } in files {
        text.push_str(&format!("{} {name}\n", VaultObjectId::of(bytes)));
    }
    Some(format!("{EXTRAS_TAG_PREFIX}{}", VaultObjectId::of(text.as_bytes()).short()))
}

/// What a level of this snapshot may reuse from the parent snapshot.
#[derive(Default)]
struct ReuseCandidates {
    /// Parts and large blobs, by the hash that they are named by.
    nodes: IdMap<ChunkId, PreviousNode>,
    /// Known facts about the chunks of the parts that contain them.
    chunks: PreviousChunks,
}

/// A node of the parent snapshot.
struct PreviousNode {
    node: SnapshotNode,
    /// True if the vault still has everything that the node refers to. The result is stored because most reused nodes
    /// are examined several times.
    is_complete: bool,
}

/// The data read from a part of the parent snapshot: the nodes of its folder, if it is one, and the facts about its
/// chunks.
type PreviousPart = (Vec<(ChunkId, PreviousNode)>, PreviousChunks);

impl ReuseCandidates {
    fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.chunks.is_empty()
    }

    /// Returns the number of known chunks and parts.
    fn candidate_count(&self) -> usize {
        self.nodes.len() + self.chunks.count_refs()
    }

    fn add(&mut self, (nodes, chunks): PreviousPart) {
        self.nodes.extend(nodes);
        self.chunks.extend(chunks);
    }

    /// Finds a reusable node.
    fn find_complete(&self, id: &ChunkId) -> Option<&SnapshotNode> {
        self.nodes.get(id).filter(|old| old.is_complete).map(|old| &old.node)
    }

    /// Returns the candidates that some parts refer to.
    fn find_referenced(&self, parts: &[ChunkPart]) -> HashSet<ChunkId> {
        let refs = parts.iter().flat_map(|(_, chunk)| chunk.chunk_refs());
        refs.filter(|id| self.nodes.contains_key(id)).collect()
    }
}

/// A chunk that refers to others.
type ChunkPart = (ChunkId, Chunk);

/// What parts of one level may reuse from the parent snapshot.
#[derive(Clone, Copy)]
struct ReuseScope<'a> {
    candidates: &'a ReuseCandidates,
    /// The candidates for the parts below, if these are not all parts of their level: then it is unknown what was
    /// removed, so that nothing is reused further below. If they are all, the candidates are computed when needed.
    child_candidates: Option<&'a ReuseCandidates>,
}

/// A part whose file of frames is in the vault.
struct OpenChunkPart<'a> {
    id: ChunkId,
    /// The pieces of the file, and its length.
    content: (Vec<VaultObjectId>, u64),
    /// The reused nodes of the part's folder.
    reused_nodes: Vec<&'a SnapshotNode>,
    large_blobs: Vec<BlobId>,
    /// The number of parts in it that are saved anew.
    new_part_count: usize,
}

/// What is below a chunk, except leaf chunks.
#[derive(Default)]
struct PartContents {
    deep_parts: Vec<ChunkPart>,
    blobs: BTreeSet<BlobId>,
}

/// Determines if a part may be a single file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PartShape {
    Folder,
    FolderOrFile,
}

impl PartContents {
    /// Records what a chunk refers to; returns the chunk if it refers to no other chunk.
    fn add(&mut self, id: ChunkId, chunk: Chunk) -> Option<Chunk> {
        if chunk.chunk_refs().len() > 0 {
            self.deep_parts.push((id, chunk));
            return None;
        }
        self.blobs.extend(chunk.blob_refs());
        Some(chunk)
    }

    fn extend(&mut self, other: Self) {
        self.deep_parts.extend(other.deep_parts);
        self.blobs.extend(other.blobs);
    }
}

pub(super) struct RepositorySaver<'a> {
    pub(super) session: &'a SaveSession<'a>,
    pub(super) source: BackupRepositorySource<'a>,
    pub(super) options: &'a SaveOptions,
    pub(super) writer: &'a PackWriter,
    faults: FaultCollector,
    pub(super) blob_pieces: BlobPieceMap,
    omissions: OmissionTracker<'a>,
}

impl RepositorySaver<'_> {
    /// Reads the root's part of the parent snapshot; nothing is reused from a snapshot with another layout.
    fn read_previous_state(&self, parent: &VaultSnapshot) -> Result<ReuseCandidates> {
        let root = parent.repository_root().and_then(|root| root.parse().ok());
        let is_alike = parent.tags().iter().any(|tag| tag == LAYOUT_TAG);
        let (Some(root), true) = (root, is_alike) else { return Ok(ReuseCandidates::default()) };
        let top = self.session.read_previous_tree(Some(&parent.tree));
        let state = top.as_ref().and_then(|top| top.find(STATE_FOLDER.as_bytes()));
        state.map_or_else(
            || Ok(ReuseCandidates::default()),
            |state| self.load_candidates(&[(root, state)]),
        )
    }

    /// Saves the states of the other refs, each under a lease. An error of one is a fault.
    fn save_branches(
        &self,
        parent: Option<&VaultSnapshot>,
        main: (&ChunkId, &SnapshotNode),
    ) -> Result<Vec<(SavedBranchMetadata, SnapshotNode)>> {
        let mut saved = Vec::new();
        for SavedBranchMetadata { name, .. } in list_other_refs(&self.source)? {
            let (base, user) = (self.source.base, &self.options.user);
            let request = RootLeaseRequest { base, reference: &name, operation: "backup", user };
            let done = run_with_root_lease(request, self.session.progress, |lease| {
                let facts =
                    SavedBranchMetadata { name: name.clone(), root: lease.root.to_string() };
                let mut node = self.save_branch(&facts, parent, main, lease)?;
                node.name = facts.folder_name().into_bytes();
                Ok((facts, node))
            });
            match done {
                Ok(branch) => saved.push(branch),
                // It was removed after the refs were listed.
                Err(Error::Store(tympan_store::Error::RefNotFound { .. })) => {}
                Err(error) if error.is_source_error() => {
                    self.faults.add(format!("branch {name}"), &error_chain_text(&error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(saved)
    }

    /// Saves the state of another ref. What it shares with the parent snapshot is reused.
    fn save_branch(
        &self,
        facts: &SavedBranchMetadata,
        parent: Option<&VaultSnapshot>,
        main: (&ChunkId, &SnapshotNode),
        lease: &RootLease,
    ) -> Result<SnapshotNode> {
        if lease.root == *main.0 {
            return Ok(main.1.clone());
        }
        let before = parent.and_then(|parent| self.find_previous_branch(parent, facts));
        let old = match (&before, &self.options.parent) {
            (Some((root, node)), ParentSelection::LatestMatching) => {
                if *root == lease.root && self.is_node_complete(node) {
                    return Ok(node.clone());
                }
                self.load_candidates(&[(*root, node)])?
            }
            _ => ReuseCandidates::default(),
        };
        let top = self.read_own_chunks(&[lease.root])?;
        let saved = self.save_parts(
            &top,
            ReuseScope { candidates: &old, child_candidates: None },
            PartShape::Folder,
        )?;
        match saved.into_iter().next() {
            Some(node) => Ok(node),
            None => self.save_node_folder("", Vec::new()),
        }
    }

    /// Saves earlier states. What they share with the parent snapshot is reused: an identical state as a whole, and
    /// parts of another one from `old`. A state that the repository removes concurrently, or that is damaged, is
    /// skipped.
    fn save_revisions(
        &self,
        revisions: Vec<SavedRevisionMetadata>,
        parent: Option<&VaultSnapshot>,
        old: &ReuseCandidates,
    ) -> Result<Vec<(SavedRevisionMetadata, SnapshotNode)>> {
        let before = parent.filter(|_| !revisions.is_empty()).and_then(|parent| {
            let top = self.session.read_previous_tree(Some(&parent.tree))?;
            self.session.read_previous_tree(Some(&top.find(REVISIONS_FOLDER.as_bytes())?.subtree?))
        });
        let mut saved: Vec<(SavedRevisionMetadata, SnapshotNode)> = Vec::new();
        for facts in revisions {
            self.session.progress.check_running()?;
            let Some(root) = facts.root() else { continue };
            let saved_node = saved.iter().find(|(saved_facts, _)| saved_facts.root == facts.root);
            let saved_node = saved_node.map(|(_, node)| node.clone()).or_else(|| {
                let node = before.as_ref()?.find(facts.root.as_bytes())?;
                self.is_node_complete(node).then(|| node.clone())
            });
            let done = match saved_node {
                Some(node) => Ok(node),
                None => self.save_revision(root, old),
            };
            match done {
                Ok(mut node) => {
                    node.name = facts.root.clone().into_bytes();
                    saved.push((facts, node));
                }
                Err(error) if error.is_source_error() => {
                    let root = &facts.root;
                    warn!(%error, root, "cannot save an earlier state of the repository");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(saved)
    }

    fn save_revision(&self, root: ChunkId, old: &ReuseCandidates) -> Result<SnapshotNode> {
        let top = self.read_own_chunks(&[root])?;
        let saved = self.save_parts(
            &top,
            ReuseScope { candidates: old, child_candidates: None },
            PartShape::Folder,
        )?;
        match saved.into_iter().next() {
            Some(node) => Ok(node),
            None => self.save_node_folder("", Vec::new()),
        }
    }

    /// Finds the state of a ref in the parent snapshot; if there is none, that of the snapshot's main ref, because a
    /// branch begins as some state of that.
    fn find_previous_branch(
        &self,
        parent: &VaultSnapshot,
        branch: &SavedBranchMetadata,
    ) -> Option<(ChunkId, SnapshotNode)> {
        if !parent.tags().iter().any(|tag| tag == LAYOUT_TAG) {
            return None;
        }
        let top = self.session.read_previous_tree(Some(&parent.tree))?;
        let find = || {
            let mut json = Vec::new();
            let at = IndexedVault::new(self.session.vault, self.session.index);
            crate::restore::stream_file(at, top.find(METADATA_FILE_NAME.as_bytes())?, &mut json)
                .ok()?;
            let facts: SavedRepositoryMetadata = serde_json::from_slice(&json).ok()?;
            let before = facts.branches.iter().find(|before| before.name == branch.name)?;
            let folders = top.find(BRANCHES_FOLDER.as_bytes())?.subtree?;
            let folders = self.session.read_previous_tree(Some(&folders))?;
            Some((before.root()?, folders.find(before.folder_name().as_bytes())?.clone()))
        };
        find().or_else(|| {
            let root = parent.repository_root()?.parse().ok()?;
            Some((root, top.find(STATE_FOLDER.as_bytes())?.clone()))
        })
    }

    /// Finds the root of the parent snapshot, its view, and the documents missing from that.
    fn find_previous_view(&self, parent: &VaultSnapshot) -> Option<PreviousView> {
        let root = parent.repository_root()?.parse().ok()?;
        let top = self.session.read_previous_tree(Some(&parent.tree))?;
        let undrawn = match top.find(UNRENDERED_FILE_NAME.as_bytes()) {
            None => Vec::new(),
            // Without the list, everything is rendered anew.
            Some(node) => {
                let mut json = Vec::new();
                let at = IndexedVault::new(self.session.vault, self.session.index);
                crate::restore::stream_file(at, node, &mut json).ok()?;
                serde_json::from_slice(&json).ok()?
            }
        };
        let tree = top.find(CONTENT_FOLDER.as_bytes())?.subtree?;
        Some(PreviousView { root, tree, unrendered: undrawn })
    }

    /// Reads parts of the parent snapshot, skipping some if more would be known of them than fits into memory.
    fn load_candidates(&self, parts: &[(ChunkId, &SnapshotNode)]) -> Result<ReuseCandidates> {
        let candidates = Mutex::new(ReuseCandidates::default());
        for level_batch in parts.chunks(self.level_batch_size()) {
            level_batch.par_chunks(self.read_batch_size(level_batch.len())).try_for_each(
                |batch| {
                    let _working = self.session.progress.begin_work()?;
                    let read = self.read_candidates(batch);
                    let mut candidates = candidates.lock();
                    read.into_iter().for_each(|part| candidates.add(part));
                    Ok::<(), Error>(())
                },
            )?;
            if candidates.lock().candidate_count()
                >= self.level_batch_size().saturating_mul(PREVIOUS_CHUNKS_PER_CHUNK)
            {
                break;
            }
        }
        Ok(candidates.into_inner())
    }

    /// Returns how many of a number of parts are read together: few enough to keep all threads busy, if calls cost no
    /// round trip.
    fn read_batch_size(&self, parts: usize) -> usize {
        if self.source.base.has_costly_round_trips() {
            return CHUNK_READ_BATCH_SIZE;
        }
        parts.div_ceil(4 * rayon::current_num_threads()).clamp(1, CHUNK_READ_BATCH_SIZE)
    }

    /// Reads some parts of the parent snapshot in parallel.
    fn read_candidates(&self, parts: &[(ChunkId, &SnapshotNode)]) -> Vec<PreviousPart> {
        let chunks = self.read_previous_chunks(parts);
        let read = |(position, (_, node)): (usize, &(ChunkId, &SnapshotNode))| {
            let tree = match &node.subtree {
                Some(subtree) => Some(self.session.read_previous_tree(Some(subtree))?),
                None => None,
            };
            let chunk = chunks.get(position).and_then(Option::as_ref);
            let previous_chunks = chunk.map(|chunk| {
                PreviousChunks::from_part(chunk, node, tree.as_ref(), self.session.index)
            });
            let nodes = tree.into_iter().flat_map(|tree| tree.nodes);
            let nodes = nodes.filter_map(|node| {
                let id = parse_part_id(&node)?;
                let is_whole = self.is_node_complete(&node);
                Some((id, PreviousNode { node, is_complete: is_whole }))
            });
            Some((nodes.collect(), previous_chunks.unwrap_or_default()))
        };
        parts.par_iter().enumerate().filter_map(read).collect()
    }

    /// Reads the parts of the parent snapshot that no part of a level refers to any more; `still` are those that one
    /// does. This is determined once for all parts of the level: for one part alone, everything below the others would
    /// seem removed.
    fn load_child_candidates(
        &self,
        old: &ReuseCandidates,
        still: &HashSet<ChunkId>,
    ) -> Result<ReuseCandidates> {
        let removed_parts = old.nodes.iter().filter(|(id, _)| !still.contains(*id));
        // The others are large blobs.
        let removed_parts = removed_parts.map(|(id, old)| (*id, &old.node));
        let removed_parts =
            removed_parts.filter(|(id, node)| node.subtree.is_some() || old.chunks.refers_to(id));
        self.load_candidates(&removed_parts.collect::<Vec<_>>())
    }

    /// Reads the chunks of parts of the parent snapshot, as far as the repository still has them: if a chunk is
    /// missing, everything its part refers to is read.
    fn read_previous_chunks(&self, parts: &[(ChunkId, &SnapshotNode)]) -> Vec<Option<Chunk>> {
        // For a clone, the contents of a part do not follow from its chunk alone.
        if self.omissions.is_enabled() {
            return Vec::new();
        }
        let base = self.source.base;
        let ids: Vec<ChunkId> = parts.iter().map(|(id, _)| *id).collect();
        match self.read_chunks(&ids) {
            Ok(chunks) => chunks.into_iter().map(Some).collect(),
            Err(_) if base.has_costly_round_trips() => Vec::new(),
            Err(_) => {
                let chunks: Vec<Option<Chunk>> =
                    ids.iter().map(|id| base.read_chunk(id).ok()).collect();
                chunks
                    .iter()
                    .flatten()
                    .for_each(|chunk| self.record_chunk_reads(std::slice::from_ref(chunk)));
                chunks
            }
        }
    }

    /// Returns the chunks that the repository has, if others are left to its base.
    fn find_own_chunks(&self, ids: &[ChunkId]) -> Result<Vec<ChunkId>> {
        if !self.omissions.is_enabled() {
            return Ok(ids.to_vec());
        }
        let there = self.source.base.contains_chunks(ids)?;
        let (own, absent): (Vec<_>, Vec<_>) =
            ids.iter().zip(there).partition(|(_, is_there)| *is_there);
        let absent: Vec<ChunkId> = absent.into_iter().map(|(id, _)| *id).collect();
        for id in self.omissions.omit_chunks(&absent)? {
            let fault = "neither the repository nor its base has it";
            self.faults.add(lost_chunk_name(&id), &fault);
        }
        Ok(own.into_iter().map(|(id, _)| *id).collect())
    }

    /// Returns true if the vault still has all data of a node of the parent snapshot.
    fn is_node_complete(&self, node: &SnapshotNode) -> bool {
        let has_pieces = |id: &VaultObjectId| self.writer.contains(PackBlobKind::Data, id);
        node.content.iter().flatten().all(has_pieces)
            && node.subtree.iter().all(|id| self.writer.contains(PackBlobKind::Tree, id))
    }

    /// Returns the approximate number of chunks of a level that are newly read and in memory at once.
    fn level_batch_size(&self) -> usize {
        self.options.chunk_batch_size.max(1)
    }

    /// Splits parts into groups with about equally many newly read chunks below.
    fn split_parts<'a>(
        &self,
        parts: &'a [ChunkPart],
        old: &ReuseCandidates,
        most: usize,
    ) -> Vec<&'a [ChunkPart]> {
        let is_known = |id: &ChunkId| old.chunks.is_terminal(id) || old.find_complete(id).is_some();
        let mut new = 0;
        let is_full = |(_, chunk): &ChunkPart| {
            new += chunk.chunk_refs().filter(|id| !is_known(id)).count();
            let is_full = new >= most;
            if is_full {
                new = 0;
            }
            is_full
        };
        parts.split_inclusive(is_full).collect()
    }

    /// Saves chunks with everything below them.
    fn save_parts(
        &self,
        parts: &[ChunkPart],
        old: ReuseScope<'_>,
        shape: PartShape,
    ) -> Result<Vec<SnapshotNode>> {
        let groups = if old.candidates.is_empty() {
            // Nothing is reused from here on down, so no part needs to wait for its siblings.
            parts.chunks(1).collect()
        } else if old.child_candidates.is_some() {
            self.split_parts(parts, old.candidates, self.thread_batch_size())
        } else if self.split_parts(parts, old.candidates, self.level_batch_size()).len() > 1 {
            return self.save_large_level(parts, old.candidates, shape);
        } else {
            vec![parts]
        };
        let saved = groups.par_iter().map(|batch| self.save_part_batch(batch, old, shape));
        Ok(saved.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Returns the approximate number of chunks of a level that each thread reads at once, if threads need not wait for
    /// each other.
    fn thread_batch_size(&self) -> usize {
        self.level_batch_size().div_ceil(rayon::current_num_threads())
    }

    /// Saves parts whose newly saved children are in memory at once.
    fn save_part_batch(
        &self,
        parts: &[ChunkPart],
        old: ReuseScope<'_>,
        shape: PartShape,
    ) -> Result<Vec<SnapshotNode>> {
        let opened = parts.par_iter().map(|part| self.open_part(part, old.candidates));
        let opened = opened.collect::<Result<Vec<_>>>()?;
        let (open, deep): (Vec<OpenChunkPart<'_>>, Vec<Vec<ChunkPart>>) =
            opened.into_iter().unzip();
        let deep: Vec<ChunkPart> = deep.into_iter().flatten().collect();
        self.close_parts(open, old.candidates, shape, || {
            let nothing = ReuseCandidates::default();
            match old.child_candidates {
                _ if deep.is_empty() => Ok(Vec::new()),
                Some(here) => {
                    let old = ReuseScope { candidates: here, child_candidates: Some(&nothing) };
                    self.save_parts(&deep, old, PartShape::FolderOrFile)
                }
                None => {
                    let still = old.candidates.find_referenced(parts);
                    let here = &self.load_child_candidates(old.candidates, &still)?;
                    self.save_parts(
                        &deep,
                        ReuseScope { candidates: here, child_candidates: None },
                        PartShape::FolderOrFile,
                    )
                }
            }
        })
    }

    /// Saves all parts of a level whose newly saved children do not fit into memory. The level is read twice: to find
    /// out what of the parent snapshot still exists, and to be saved.
    fn save_large_level(
        &self,
        parts: &[ChunkPart],
        old: &ReuseCandidates,
        shape: PartShape,
    ) -> Result<Vec<SnapshotNode>> {
        let here = &self.load_child_candidates(old, &old.find_referenced(parts))?;
        let still = Mutex::new(HashSet::new());
        let opened = parts.par_iter().map(|part| {
            let (open, deep) = self.open_part(part, old)?;
            let named = here.find_referenced(&deep);
            still.lock().extend(named);
            let deep: Vec<ChunkId> = deep.into_iter().map(|(id, _)| id).collect();
            Ok((open, deep))
        });
        let opened = opened.collect::<Result<Vec<_>>>()?;
        let (open, deep): (Vec<OpenChunkPart<'_>>, Vec<Vec<ChunkId>>) = opened.into_iter().unzip();
        let (deep, still) = (deep.into_iter().flatten().collect::<Vec<_>>(), still.into_inner());
        self.close_parts(open, old, shape, || {
            let below = self.load_child_candidates(here, &still)?;
            let old = ReuseScope { candidates: here, child_candidates: Some(&below) };
            let saved = deep.par_chunks(self.thread_batch_size()).map(|batch| {
                let working = self.session.progress.begin_work()?;
                let parts = self.reread_chunks(batch)?;
                drop(working);
                self.save_parts(&parts, old, PartShape::FolderOrFile)
            });
            Ok(saved.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
    }

    /// Saves the large blobs of some parts while `below` saves the parts below, and creates their files and folders.
    fn close_parts(
        &self,
        open: Vec<OpenChunkPart<'_>>,
        old: &ReuseCandidates,
        shape: PartShape,
        below: impl FnOnce() -> Result<Vec<SnapshotNode>> + Send,
    ) -> Result<Vec<SnapshotNode>> {
        let large = || {
            let large = open.par_iter().map(|part| self.save_blobs(&part.large_blobs, old));
            large.collect::<Result<Vec<_>>>()
        };
        let (large, saved) = rayon::join(large, below);
        let (large, mut saved) = (large?, saved?.into_iter());
        let whole = open.into_iter().zip(large).map(|(part, mut nodes)| {
            nodes.extend(saved.by_ref().take(part.new_part_count));
            (part, nodes)
        });
        let whole: Vec<_> = whole.collect();
        whole.into_par_iter().map(|(part, nodes)| self.close_part(part, nodes, shape)).collect()
    }

    /// Saves the frames of a part: its own chunk, the leaf chunks that it refers to, and small blobs. Also returns the
    /// other chunks that cannot be reused from the parent snapshot.
    fn open_part<'a>(
        &self,
        (id, chunk): &ChunkPart,
        old: &'a ReuseCandidates,
    ) -> Result<(OpenChunkPart<'a>, Vec<ChunkPart>)> {
        let working = self.session.progress.begin_work()?;
        let mut seen = HashSet::new();
        let (mut reused_nodes, mut unknown) = (Vec::new(), Vec::new());
        for id in chunk.chunk_refs().filter(|id| seen.insert(*id)) {
            match old.find_complete(&id) {
                Some(node) => reused_nodes.push(node),
                None => unknown.push(id),
            }
        }
        let mut pieces = FramePieceWriter::begin(self.writer, chunk)?;
        let mut contents =
            PartContents { blobs: chunk.blob_refs().collect(), ..PartContents::default() };
        // Several threads do the next step, and each accounts for its own work.
        drop(working);
        self.add_chunks(&unknown, &old.chunks, (&mut pieces, &mut contents))?;
        let _working = self.session.progress.begin_work()?;
        pieces.end_piece()?;
        let PartContents { deep_parts, blobs } = contents;
        let (small, large): (Vec<BlobId>, Vec<BlobId>) =
            blobs.into_iter().partition(|id| id.length() < SMALL_BLOB_BYTES as u64);
        self.add_small_blobs(&small, &mut pieces)?;
        let content = pieces.finish()?;
        self.session.progress.add_done(1, content.1);
        Ok((
            OpenChunkPart {
                id: *id,
                content,
                reused_nodes,
                large_blobs: large,
                new_part_count: deep_parts.len(),
            },
            deep_parts,
        ))
    }

    /// Creates the file or folder of a part from its new and reused nodes.
    fn close_part(
        &self,
        part: OpenChunkPart<'_>,
        mut nodes: Vec<SnapshotNode>,
        shape: PartShape,
    ) -> Result<SnapshotNode> {
        let _working = self.session.progress.begin_work()?;
        let file = self.hash_named_file_node(FRAME_FILE_NAME, part.id.as_bytes(), part.content);
        let name = part.id.to_string().into_bytes();
        nodes.extend(part.reused_nodes.into_iter().cloned());
        if nodes.is_empty() && shape == PartShape::FolderOrFile {
            return Ok(SnapshotNode { name, ..file });
        }
        nodes.push(file);
        let mut folder = self.new_folder_node(name);
        folder.subtree = Some(
            self.writer
                .add_blob(PackBlobKind::Tree, &SnapshotTree::from_nodes(nodes).to_bytes())?
                .0,
        );
        Ok(folder)
    }

    /// Adds chunks that cannot be reused as parts to the pieces of theirs, except those that refer to others, which are
    /// returned. Chunks whose piece is in the parent snapshot are not read.
    fn add_chunks(
        &self,
        ids: &[ChunkId],
        previous_chunks: &PreviousChunks,
        (pieces, contents): (&mut FramePieceWriter<'_>, &mut PartContents),
    ) -> Result<()> {
        if previous_chunks.is_empty() {
            for batch in ids.chunks(CHUNK_READ_BATCH_SIZE) {
                let _working = self.session.progress.begin_work()?;
                for (id, chunk) in self.read_own_chunks(batch)? {
                    if let Some(chunk) = contents.add(id, chunk) {
                        pieces.add_chunk(&id, &chunk)?;
                    }
                }
            }
            return Ok(());
        }
        let new: Vec<ChunkId> =
            ids.iter().filter(|id| !previous_chunks.is_terminal(id)).copied().collect();
        let new = new.par_chunks(self.read_batch_size(new.len())).map(|batch| {
            let _working = self.session.progress.begin_work()?;
            self.read_own_chunks(batch)
        });
        let new = new.collect::<Result<Vec<_>>>()?.into_iter().flatten();
        let read: HashMap<ChunkId, Chunk> =
            new.filter_map(|(id, chunk)| Some((id, contents.add(id, chunk)?))).collect();
        let is_here = |id: &&ChunkId| previous_chunks.is_terminal(id) || read.contains_key(*id);
        let here: Vec<ChunkId> = ids.iter().filter(is_here).copied().collect();
        let parts: Vec<_> = split_chunks(&here)
            .into_iter()
            .map(|piece_ids| (piece_ids, previous_chunks.find_piece(piece_ids)))
            .collect();
        let lacking = parts.iter().filter(|(_, piece)| piece.is_none());
        let lacking: Vec<&[ChunkId]> = lacking.map(|(piece_ids, _)| *piece_ids).collect();
        let made = lacking
            .par_chunks(self.read_batch_size(lacking.len()))
            .map(|batch| self.write_chunk_pieces(batch, &read));
        let mut made = made.collect::<Result<Vec<_>>>()?.into_iter().flat_map(|(made, more)| {
            contents.extend(more);
            made
        });
        for (_, piece) in parts {
            if let Some(piece) = piece.map(PreviousPiece::id_and_length).or_else(|| made.next()) {
                pieces.reuse_piece(piece);
            }
        }
        Ok(())
    }

    /// Writes pieces of these chunks, of which some were read. Returns those that turn out not to be leaf chunks.
    fn write_chunk_pieces(
        &self,
        lacking: &[&[ChunkId]],
        read: &HashMap<ChunkId, Chunk>,
    ) -> Result<(Vec<(VaultObjectId, u64)>, PartContents)> {
        let _working = self.session.progress.begin_work()?;
        let unread = lacking.iter().flat_map(|piece_ids| piece_ids.iter());
        let unread: Vec<ChunkId> = unread.filter(|id| !read.contains_key(*id)).copied().collect();
        let mut contents = PartContents::default();
        let more = self.read_own_chunks(&unread)?.into_iter();
        let more: HashMap<ChunkId, Chunk> =
            more.filter_map(|(id, chunk)| Some((id, contents.add(id, chunk)?))).collect();
        let chunks_of = |piece_ids: &&[ChunkId]| {
            let chunks = piece_ids.iter().filter_map(|id| read.get(id).or_else(|| more.get(id)));
            write_chunk_piece(self.writer, chunks)
        };
        Ok((lacking.iter().map(chunks_of).collect::<Result<_>>()?, contents))
    }

    /// Reads the chunks that are not left to the base.
    fn read_own_chunks(&self, ids: &[ChunkId]) -> Result<Vec<(ChunkId, Chunk)>> {
        let mut read = Vec::with_capacity(ids.len());
        for batch in ids.chunks(CHUNK_READ_BATCH_SIZE) {
            let own = self.find_own_chunks(batch)?;
            let chunks = self.read_chunks(&own)?;
            read.extend(own.into_iter().zip(chunks));
        }
        Ok(read)
    }

    /// Reads chunks that the repository has.
    fn reread_chunks(&self, ids: &[ChunkId]) -> Result<Vec<ChunkPart>> {
        let mut read = Vec::with_capacity(ids.len());
        for batch in ids.chunks(CHUNK_READ_BATCH_SIZE) {
            read.extend(batch.iter().copied().zip(self.read_chunks(batch)?));
        }
        Ok(read)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let chunks = self.source.base.read_chunks(ids)?;
        self.record_chunk_reads(&chunks);
        Ok(chunks)
    }

    fn record_chunk_reads(&self, chunks: &[Chunk]) {
        if !chunks.is_empty() {
            let bytes = chunks.iter().map(|chunk| chunk.bytes().len() as u64).sum();
            self.session.progress.record_read(bytes);
        }
    }

    fn add_small_blobs(&self, ids: &[BlobId], pieces: &mut FramePieceWriter<'_>) -> Result<()> {
        for batch in ids.chunks(CHUNK_READ_BATCH_SIZE) {
            let blobs = self.source.base.read_blobs(batch)?;
            let read = blobs.iter().flatten().map(|bytes| bytes.len() as u64).sum();
            self.session.progress.record_read(read);
            for (id, bytes) in batch.iter().zip(blobs) {
                match bytes {
                    Some(bytes) => pieces.add_blob(id.digest(), &bytes)?,
                    None => self.record_missing_blob(id)?,
                }
            }
        }
        Ok(())
    }

    /// Leaves a blob to the base; otherwise records a fault.
    fn record_missing_blob(&self, id: &BlobId) -> Result<()> {
        if !self.omissions.omit_blob(id)? {
            let fault = "the repository refers to it, but it is missing";
            self.faults.add(format!("blob {id}"), &fault);
        }
        Ok(())
    }

    /// Saves large blobs, skipping missing ones.
    fn save_blobs(&self, ids: &[BlobId], old: &ReuseCandidates) -> Result<Vec<SnapshotNode>> {
        ids.par_iter().filter_map(|id| self.save_blob(id, old).transpose()).collect()
    }

    /// Saves a large blob; `None` if it is missing, which is a fault.
    fn save_blob(&self, id: &BlobId, old: &ReuseCandidates) -> Result<Option<SnapshotNode>> {
        let _working = self.session.progress.begin_work()?;
        let name: String = VaultObjectId::from_bytes(*id.digest()).to_string();
        if let Some(node) = old.find_complete(&ChunkId::from_bytes(*id.digest())) {
            return Ok(Some(node.clone()));
        }
        let piece = VaultObjectId::from_bytes(*id.digest());
        if id.length() <= MAX_PIECE_BYTES as u64 && self.writer.contains(PackBlobKind::Data, &piece)
        {
            return Ok(Some(self.hash_named_file_node(
                &name,
                id.digest(),
                (vec![piece], id.length()),
            )));
        }
        let content = match self.source.blobs.open(id) {
            Ok(Some(content)) => content,
            Ok(None) => {
                self.record_missing_blob(id)?;
                return Ok(None);
            }
            Err(error) if error.is_damage() => {
                self.faults.add(format!("blob {id}"), &error_chain_text(&error));
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        self.session.progress.read_items.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (content, content_id) = self.save_content_stream(content.into_reader(), id.length())?;
        if content_id != *id {
            self.faults.add(format!("blob {id}"), &"its content does not match its hash");
            return Ok(None);
        }
        self.session.progress.add_done(1, id.length());
        if id.length() > MAX_PIECE_BYTES as u64 {
            self.blob_pieces.lock().insert(*id, content.clone());
        }
        Ok(Some(self.hash_named_file_node(&name, id.digest(), (content, id.length()))))
    }

    /// Saves a stream in pieces: one piece if it fits into the maximum length, else split by content.
    pub(super) fn save_content_stream(
        &self,
        source: Box<dyn Read + Send>,
        length: u64,
    ) -> Result<(Vec<VaultObjectId>, BlobId)> {
        use sha2::{Digest, Sha256};
        let failed = |source| Error::Source { path: "a blob of the repository".into(), source };
        let (mut hash, mut read, mut content) = (Sha256::new(), 0_u64, Vec::new());
        let cutter = (length > MAX_PIECE_BYTES as u64).then(|| self.session.vault.splitter());
        let progress = self.session.progress;
        let mut pieces = PieceReader::new(source, cutter, length);
        while let Some(piece) = pieces.next(|bytes| progress.record_read(bytes)).map_err(failed)? {
            progress.check_running()?;
            hash.update(piece);
            read += piece.len() as u64;
            content.push(self.writer.add_blob(PackBlobKind::Data, piece)?.0);
        }
        Ok((content, BlobId::new(hash.finalize().into(), read)))
    }

    fn save_file_bytes(&self, name: &str, bytes: &[u8]) -> Result<SnapshotNode> {
        let (id, _) = self.writer.add_blob(PackBlobKind::Data, bytes)?;
        let mut node = self.hash_named_file_node(name, &[0; 32], (vec![id], bytes.len() as u64));
        (node.links, node.inode, node.device_id) = (1, 0, 0);
        Ok(node)
    }

    fn save_home_file(&self, HomeFile { name, bytes }: &HomeFile) -> Result<SnapshotNode> {
        if bytes.len() <= MAX_PIECE_BYTES {
            return self.save_file_bytes(name, bytes);
        }
        let (stream, length) = (Box::new(std::io::Cursor::new(bytes.clone())), bytes.len() as u64);
        let mut node = self.hash_named_file_node(
            name,
            &[0; 32],
            (self.save_content_stream(stream, length)?.0, length),
        );
        (node.links, node.inode, node.device_id) = (1, 0, 0);
        Ok(node)
    }

    /// Returns the node of a file that is named by a hash. If the same hash is in several folders, a restore creates
    /// hard links of one file.
    fn hash_named_file_node(
        &self,
        name: &str,
        hash: &[u8; 32],
        (content, size): (Vec<VaultObjectId>, u64),
    ) -> SnapshotNode {
        let mut node = SnapshotNode::new(name, SnapshotNodeKind::File, 0o600);
        // Both numbers, because an uploader can construct two blobs whose hashes begin with the same 8 bytes.
        let (head, rest) = hash.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let (second, _) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        node.inode = u64::from_le_bytes(*head);
        (node.links, node.device_id) = (2, u64::from_le_bytes(*second));
        (node.uid, node.gid) = (self.options.user.uid, self.options.user.gid);
        node.size = size;
        node.content = Some(content);
        node
    }

    /// Saves a folder of nodes.
    fn save_node_folder(&self, name: &str, nodes: Vec<SnapshotNode>) -> Result<SnapshotNode> {
        let mut folder = self.new_folder_node(name.into());
        folder.subtree = Some(
            self.writer
                .add_blob(PackBlobKind::Tree, &SnapshotTree::from_nodes(nodes).to_bytes())?
                .0,
        );
        Ok(folder)
    }

    pub(super) fn new_folder_node(&self, name: Vec<u8>) -> SnapshotNode {
        let mut node = SnapshotNode::new(name, SnapshotNodeKind::Dir, go_mode::DIR | 0o700);
        (node.uid, node.gid) = (self.options.user.uid, self.options.user.gid);
        node
    }
}
