//! A human-readable view of the repository in a snapshot: a folder for each document, with its text and its files.
//!
//! In: [`RootDocuments`] of a root, rendered by code that interprets chunks, and the view of the parent snapshot. Out:
//! the folder `content` of the snapshot. An import does not need it.
//!
//! Invariants
//! * The contents of a document's folder depend only on the root: it is the same whether it was rendered or reused.
//! * If the previous root is known, only changed documents are rendered, and only folders on the path to them are read
//!   and written.
//! * A document that could not be rendered is tried again by the next save, changed or not.
//! * Bytes of blobs share their pieces with the repository's own part of the snapshot.
//!
//! On failure: what cannot be rendered is omitted and logged. The snapshot is complete without it, as an import does
//! not read it. A repository that cannot be read now ends the save.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{Cursor, Read};

use parking_lot::Mutex;
use rayon::prelude::*;
use tracing::warn;
use tympan_blobs::SMALL_BLOB_BYTES;
use tympan_notation::error_chain_text;
use tympan_store::{BlobId, ChunkId};

use super::repository::RepositorySaver;
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;
use crate::piece_splitter::MAX_PIECE_BYTES;
use crate::vault::node::{SnapshotNode, SnapshotNodeKind, SnapshotTree};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::tree_text::SnapshotTreeText;

/// The name of the folder in the snapshot.
pub(super) const CONTENT_FOLDER: &str = "content";

/// Gives access to the documents of a root.
pub trait DocumentView: Sync {
    /// Opens the documents of a root.
    ///
    /// # Errors
    /// If the root has none, or cannot be read.
    fn open(&self, root: &ChunkId) -> Result<Box<dyn RootDocuments + '_>>;
}

/// The documents of one root. A path is `/`, or names that are each preceded by `/`.
pub trait RootDocuments: Sync {
    /// Returns the changes since an earlier root; `None` if that root cannot be read any more.
    ///
    /// # Errors
    /// If the repository fails.
    fn changes_since(&self, since: &ChunkId) -> Result<Option<Vec<DocumentChange>>>;

    /// Returns the names of the documents directly below one.
    ///
    /// # Errors
    /// If the repository fails.
    fn children(&self, path: &str) -> Result<Vec<String>>;

    /// Renders the files of a document's folder, without the documents below it.
    ///
    /// # Errors
    /// If the repository fails.
    fn render_document(&self, path: &str) -> Result<Vec<RenderedFile>>;

    /// Returns the name of a document's folder.
    fn folder_name(&self, name: &str) -> Vec<u8>;
}

/// A changed document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentChange {
    /// The path of the document.
    pub path: String,
    /// True if the document exists now.
    pub exists: bool,
}

/// A file in the folder of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedFile {
    /// The path components of the file; no other file's path begins with them.
    pub path: Vec<Vec<u8>>,
    /// The content of the file.
    pub content: RenderedContent,
}

/// The content of a rendered file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderedContent {
    /// These bytes.
    Text(Vec<u8>),
    /// The bytes of a blob of the repository.
    Blob(BlobId),
}

/// The documents to render at and below a document.
#[derive(Debug, Default)]
struct ChangedDocumentTree {
    needs_render: bool,
    is_removed: bool,
    children: BTreeMap<String, Self>,
}

impl ChangedDocumentTree {
    fn from_changes(changes: &[DocumentChange]) -> Self {
        let mut root = Self::default();
        for change in changes {
            let mut at = &mut root;
            for name in change.path.split('/').filter(|name| !name.is_empty()) {
                at = at.children.entry(name.to_owned()).or_default();
            }
            at.needs_render = change.exists;
            at.is_removed = !change.exists;
        }
        root
    }

    /// Marks an unchanged document for rendering, unless it was removed.
    fn mark_for_render(&mut self, path: &str) {
        let mut at = self;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if at.is_removed {
                return;
            }
            at = at.children.entry(name.to_owned()).or_default();
        }
        at.needs_render = !at.is_removed;
    }
}

/// Large blobs that this save has split, with their pieces.
pub(super) type BlobPieceMap = Mutex<HashMap<BlobId, Vec<VaultObjectId>>>;

/// The view in the parent snapshot.
pub(super) struct PreviousView {
    /// The root that it was rendered from.
    pub(super) root: ChunkId,
    /// The folder of the view.
    pub(super) tree: VaultObjectId,
    /// The documents that could not be rendered.
    pub(super) unrendered: Vec<String>,
}

/// Renders the view of a snapshot; `None` if it cannot be rendered. Also returns the paths of the documents that could
/// not be rendered.
pub(super) fn save_view(
    saver: &RepositorySaver<'_>,
    view: &dyn DocumentView,
    root: &ChunkId,
    before: Option<PreviousView>,
) -> Result<Option<(SnapshotNode, BTreeSet<String>)>> {
    let result = view.open(root).and_then(|documents| {
        let undrawn = Mutex::default();
        let drawing = ViewRenderer { saver, documents: &*documents, unrendered: undrawn };
        let node = render_view(&drawing, before)?;
        Ok((node, drawing.unrendered.into_inner()))
    });
    match result {
        Err(error @ (Error::Document { .. } | Error::Store(_))) if !error.is_transient() => {
            warn!(
                reason = error_chain_text(&error),
                "cannot render the documents; the snapshot has no `content` folder"
            );
            Ok(None)
        }
        result => result.map(Some),
    }
}

fn render_view(drawing: &ViewRenderer<'_>, before: Option<PreviousView>) -> Result<SnapshotNode> {
    let ViewRenderer { saver, documents, .. } = drawing;
    let mut changes = None;
    if let Some(PreviousView { root, tree, unrendered }) = before
        && let Some(old) = saver.session.read_previous_tree_text(Some(&tree))
    {
        changes = documents.changes_since(&root)?.map(|changes| {
            let mut touched = ChangedDocumentTree::from_changes(&changes);
            unrendered.iter().for_each(|path| touched.mark_for_render(path));
            (touched, old)
        });
    }
    let id = match changes {
        Some((touched, old)) => drawing.render_changes("", Some(old), &touched)?,
        None => drawing.render_tree("")?,
    };
    let mut node = saver.new_folder_node(CONTENT_FOLDER.into());
    node.subtree = Some(id);
    Ok(node)
}

struct ViewRenderer<'a> {
    saver: &'a RepositorySaver<'a>,
    documents: &'a dyn RootDocuments,
    unrendered: Mutex<BTreeSet<String>>,
}

impl ViewRenderer<'_> {
    /// Renders a document and everything below it. The path of the root is empty, without a `/`.
    fn render_tree(&self, path: &str) -> Result<VaultObjectId> {
        let children = self.documents.children(path_or_root(path))?;
        let below = children.par_iter().map(|name| {
            let tree = self.render_tree(&format!("{path}/{name}"))?;
            Ok(self.new_folder_node(name, tree))
        });
        let below = below.collect::<Result<Vec<SnapshotNode>>>()?;
        let own = self.save_document_files(path, None)?;
        self.write_folder(own.into_iter().chain(below))
    }

    /// Renders the changed documents and reuses the others.
    fn render_changes(
        &self,
        path: &str,
        old: Option<SnapshotTreeText>,
        touched: &ChangedDocumentTree,
    ) -> Result<VaultObjectId> {
        self.saver.session.progress.check_running()?;
        let Some(old) = old else { return self.render_tree(path) };
        let below = |name: &str| {
            let folder = self.documents.folder_name(name);
            let tree = old.find(&folder).and_then(|node| node.subtree);
            (folder, tree)
        };
        let change = |(name, touched): (&String, &ChangedDocumentTree)| {
            let (_, tree) = below(name);
            let old = self.saver.session.read_previous_tree_text(tree.as_ref());
            let tree = self.render_changes(&format!("{path}/{name}"), old, touched)?;
            Ok((name.clone(), self.new_folder_node(name, tree)))
        };
        let present_children: Vec<(&String, &ChangedDocumentTree)> =
            touched.children.iter().filter(|(_, touched)| !touched.is_removed).collect();
        if !touched.needs_render {
            let changed =
                present_children.into_par_iter().map(change).collect::<Result<Vec<_>>>()?;
            let removed_children =
                touched.children.iter().filter(|(_, touched)| touched.is_removed);
            let removed_names: HashSet<Vec<u8>> =
                removed_children.map(|(name, _)| self.documents.folder_name(name)).collect();
            let changed = changed.into_iter().map(|(_, node)| node).collect();
            return self.write_folder_text(
                &old.replace_nodes(changed, |name| removed_names.contains(name)),
            );
        }
        let children = self.documents.children(path_or_root(path))?;
        let changed =
            present_children.into_par_iter().map(change).collect::<Result<HashMap<_, _>>>()?;
        let mut nodes = self.save_document_files(path, Some(&old))?;
        for name in &children {
            let node = match (changed.get(name), below(name)) {
                (Some(node), _) => node.clone(),
                (None, (_, Some(tree))) => self.new_folder_node(name, tree),
                (None, (_, None)) => {
                    let tree = self.render_tree(&format!("{path}/{name}"))?;
                    self.new_folder_node(name, tree)
                }
            };
            nodes.push(node);
        }
        self.write_folder(nodes)
    }

    /// Saves a document's own files; `None` if it cannot be rendered.
    fn save_document_files(
        &self,
        path: &str,
        old: Option<&SnapshotTreeText>,
    ) -> Result<Vec<SnapshotNode>> {
        let files = match self.documents.render_document(path_or_root(path)) {
            Ok(files) => files,
            Err(error @ (Error::Store(_) | Error::Document { .. })) if !error.is_transient() => {
                let reason = error_chain_text(&error);
                warn!(
                    path,
                    reason, "cannot render a document; it is missing from the `content` folder"
                );
                self.unrendered.lock().insert(path_or_root(path).to_owned());
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        self.saver.session.progress.add_done(1, 0);
        // The input that a text was rendered from is about as long.
        let texts = files.iter().filter_map(|file| match &file.content {
            RenderedContent::Text(text) => Some(text.len() as u64),
            RenderedContent::Blob(_) => None,
        });
        self.saver.session.progress.record_read(texts.sum());
        let mut top = DocumentFolder::default();
        for RenderedFile { path: location, content } in files {
            let Some((name, above)) = location.split_last() else { continue };
            if let Some(file) = self.save_rendered_file(name, content, old, &location)? {
                top.insert(above, name, file);
            }
        }
        top.into_nodes(self)
    }

    /// Saves a file; `None` if its blob is missing, which the repository's own part of the snapshot reports as a fault.
    fn save_rendered_file(
        &self,
        name: &[u8],
        content: RenderedContent,
        old: Option<&SnapshotTreeText>,
        location: &[Vec<u8>],
    ) -> Result<Option<SnapshotNode>> {
        let (pieces, size, hash) = match content {
            RenderedContent::Text(bytes) => {
                let size = bytes.len() as u64;
                let hash = *VaultObjectId::of(&bytes).as_bytes();
                let (pieces, _) =
                    self.saver.save_content_stream(Box::new(Cursor::new(bytes)), size)?;
                (pieces, size, hash)
            }
            RenderedContent::Blob(id) => {
                match self
                    .save_blob_pieces(&id, || self.find_previous_pieces(old?, location, &id))?
                {
                    Some(pieces) => (pieces, id.length(), *id.digest()),
                    None => return Ok(None),
                }
            }
        };
        let mut node = SnapshotNode::new(name, SnapshotNodeKind::File, 0o600);
        (node.uid, node.gid) = (self.saver.options.user.uid, self.saver.options.user.gid);
        // Together with the length, it detects whether the bytes are the same.
        let (head, _) = hash.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        node.inode = u64::from_le_bytes(*head);
        node.links = 1;
        node.size = size;
        node.content = Some(pieces);
        Ok(Some(node))
    }

    /// Returns the pieces of a blob; `None` if the repository lacks it.
    fn save_blob_pieces(
        &self,
        id: &BlobId,
        old: impl FnOnce() -> Option<Vec<VaultObjectId>>,
    ) -> Result<Option<Vec<VaultObjectId>>> {
        let saver = self.saver;
        if id.length() < SMALL_BLOB_BYTES as u64 {
            let bytes = saver.source.base.read_blobs(&[*id])?.pop().flatten();
            let Some(bytes) = bytes else { return Ok(None) };
            return Ok(Some(vec![saver.writer.add_blob(PackBlobKind::Data, &bytes)?.0]));
        }
        let piece = VaultObjectId::from_bytes(*id.digest());
        if id.length() <= MAX_PIECE_BYTES as u64
            && saver.writer.contains(PackBlobKind::Data, &piece)
        {
            return Ok(Some(vec![piece]));
        }
        let cut = saver.blob_pieces.lock().get(id).cloned();
        if let Some(pieces) = cut.or_else(old) {
            return Ok(Some(pieces));
        }
        let Some(content) = saver.source.blobs.open(id)? else { return Ok(None) };
        let reader: Box<dyn Read + Send> = content.into_reader();
        let (pieces, content_id) = saver.save_content_stream(reader, id.length())?;
        if content_id != *id {
            return Ok(None);
        }
        saver.blob_pieces.lock().insert(*id, pieces.clone());
        Ok(Some(pieces))
    }

    /// Finds the pieces of a file in a folder of the parent snapshot, if its bytes are those of a blob.
    fn find_previous_pieces(
        &self,
        old: &SnapshotTreeText,
        location: &[Vec<u8>],
        id: &BlobId,
    ) -> Option<Vec<VaultObjectId>> {
        let (name, above) = location.split_last()?;
        let mut tree = None;
        for folder in above {
            let subtree = tree.as_ref().unwrap_or(old).find(folder)?.subtree;
            tree = Some(self.saver.session.read_previous_tree_text(subtree.as_ref())?);
        }
        let node = tree.as_ref().unwrap_or(old).find(name)?;
        let (head, _) = id.digest().split_first_chunk::<8>()?;
        let is_same = node.size == id.length() && node.inode == u64::from_le_bytes(*head);
        let pieces = node.content.filter(|_| is_same)?;
        let has = |id: &VaultObjectId| self.saver.writer.contains(PackBlobKind::Data, id);
        pieces.iter().all(has).then_some(pieces)
    }

    fn new_folder_node(&self, name: &str, tree: VaultObjectId) -> SnapshotNode {
        let mut node = self.saver.new_folder_node(self.documents.folder_name(name));
        node.subtree = Some(tree);
        node
    }

    fn write_folder(&self, nodes: impl IntoIterator<Item = SnapshotNode>) -> Result<VaultObjectId> {
        self.write_folder_text(&SnapshotTree::from_nodes(nodes).to_bytes())
    }

    fn write_folder_text(&self, folder: &[u8]) -> Result<VaultObjectId> {
        Ok(self.saver.writer.add_blob(PackBlobKind::Tree, folder)?.0)
    }
}

fn path_or_root(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// Files of a document, arranged in folders.
#[derive(Default)]
struct DocumentFolder {
    files: BTreeMap<Vec<u8>, SnapshotNode>,
    folders: BTreeMap<Vec<u8>, Self>,
}

impl DocumentFolder {
    fn insert(&mut self, above: &[Vec<u8>], name: &[u8], file: SnapshotNode) {
        let mut at = self;
        for folder in above {
            at = at.folders.entry(folder.clone()).or_default();
        }
        if at.files.insert(name.to_vec(), file).is_some() {
            warn!(
                "two files of a document have the same name in the snapshot; the last one is kept"
            );
        }
    }

    fn into_nodes(self, drawing: &ViewRenderer<'_>) -> Result<Vec<SnapshotNode>> {
        let mut nodes: Vec<SnapshotNode> = self.files.into_values().collect();
        for (name, folder) in self.folders {
            let tree = drawing.write_folder(folder.into_nodes(drawing)?)?;
            let mut node = drawing.saver.new_folder_node(name);
            node.subtree = Some(tree);
            nodes.push(node);
        }
        Ok(nodes)
    }
}
