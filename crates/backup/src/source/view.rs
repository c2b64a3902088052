//! What a person can read of a repository in a snapshot: a folder for each document, with its text and its files.
//!
//! In: [`Documents`] of a root, drawn by whoever knows what chunks mean, and the folder of the snapshot before. Out: the
//! folder `content` of the snapshot. An import does not need it.
//!
//! Invariants
//! * What a document's folder holds follows from the root alone: it is the same whether it was drawn or taken over.
//! * Where the root before is known, only documents that differ are drawn, and only folders on the way to them are read
//!   and written.
//! * What could not be drawn is tried again by the next save, whether it has changed or not.
//! * Bytes of blobs are pieces that the repository's own part of the snapshot has, too.
//!
//! On failure: what cannot be drawn is left out and told in the log. The snapshot is whole without it, as an import does not
//! read it. A repository that cannot be read now ends the save.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{Cursor, Read};

use parking_lot::Mutex;
use rayon::prelude::*;
use tracing::warn;
use tympan_blobs::SMALL_BYTES;
use tympan_store::{BlobId, ChunkId};

use super::repository::Saver;
use crate::cut::MAX_PIECE;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::vault::index::BlobKind;
use crate::vault::node::{Node, NodeKind, Tree};
use crate::vault::tree_text::TreeText;

/// The folder of the snapshot.
pub(super) const CONTENT: &str = "content";

/// Opens the documents of a root.
pub trait View: Sync {
    /// Opens them.
    ///
    /// # Errors
    /// If the root holds none, or cannot be read.
    fn open(&self, root: &ChunkId) -> Result<Box<dyn Documents + '_>>;
}

/// The documents of one root. A path is `/`, or names that each have a `/` before them.
pub trait Documents: Sync {
    /// Tells what differs since an earlier root; nothing if that root cannot be read any more.
    ///
    /// # Errors
    /// If the repository fails.
    fn changes(&self, since: &ChunkId) -> Result<Option<Vec<DocumentChange>>>;

    /// Names the documents directly below one.
    ///
    /// # Errors
    /// If the repository fails.
    fn children(&self, path: &str) -> Result<Vec<String>>;

    /// Draws what is in the folder of a document, but for the documents below it.
    ///
    /// # Errors
    /// If the repository fails.
    fn draw(&self, path: &str) -> Result<Vec<DrawnFile>>;

    /// Returns the name of a document's folder.
    fn folder_name(&self, name: &str) -> Vec<u8>;
}

/// A document that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentChange {
    /// Its path.
    pub path: String,
    /// Whether it is there now.
    pub is_there: bool,
}

/// A file in the folder of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrawnFile {
    /// The names that lead to it; no other file's are the begin of them.
    pub place: Vec<Vec<u8>>,
    /// What is in it.
    pub content: DrawnContent,
}

/// The bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrawnContent {
    /// These.
    Text(Vec<u8>),
    /// Those of a blob of the repository.
    Blob(BlobId),
}

/// What has to be drawn of a document and what is below it.
#[derive(Debug, Default)]
struct Touched {
    is_drawn: bool,
    is_gone: bool,
    below: BTreeMap<String, Self>,
}

impl Touched {
    fn of(changes: &[DocumentChange]) -> Self {
        let mut root = Self::default();
        for change in changes {
            let mut at = &mut root;
            for name in change.path.split('/').filter(|name| !name.is_empty()) {
                at = at.below.entry(name.to_owned()).or_default();
            }
            at.is_drawn = change.is_there;
            at.is_gone = !change.is_there;
        }
        root
    }

    /// Has a document drawn that did not change, unless it is gone.
    fn draw_again(&mut self, path: &str) {
        let mut at = self;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if at.is_gone {
                return;
            }
            at = at.below.entry(name.to_owned()).or_default();
        }
        at.is_drawn = !at.is_gone;
    }
}

/// Large blobs that this save has cut, with their pieces.
pub(super) type Cuts = Mutex<HashMap<BlobId, Vec<Id>>>;

/// The folder for people in the snapshot before.
pub(super) struct Before {
    /// The root that it was drawn from.
    pub(super) root: ChunkId,
    /// The folder.
    pub(super) tree: Id,
    /// The documents that could not be drawn.
    pub(super) undrawn: Vec<String>,
}

/// Draws the folder of a snapshot; nothing if it cannot be drawn. Returns the paths of the documents that could not be
/// drawn, too.
pub(super) fn save_view(
    saver: &Saver<'_>,
    (view, root): (&dyn View, &ChunkId),
    before: Option<Before>,
) -> Result<Option<(Node, BTreeSet<String>)>> {
    let drawn = view.open(root).and_then(|documents| {
        let undrawn = Mutex::default();
        let drawing = Drawing { saver, documents: &*documents, undrawn };
        let node = draw_all(&drawing, before)?;
        Ok((node, drawing.undrawn.into_inner()))
    });
    match drawn {
        Err(error @ (Error::Document { .. } | Error::Store(_))) if !error.is_transient() => {
            warn!(reason = crate::chain(&error), "the snapshot has no folder for people");
            Ok(None)
        }
        drawn => drawn.map(Some),
    }
}

fn draw_all(drawing: &Drawing<'_>, before: Option<Before>) -> Result<Node> {
    let Drawing { saver, documents, .. } = drawing;
    let mut changes = None;
    if let Some(Before { root, tree, undrawn }) = before
        && let Some(old) = saver.session.old_text(Some(&tree))
    {
        changes = documents.changes(&root)?.map(|changes| {
            let mut touched = Touched::of(&changes);
            undrawn.iter().for_each(|path| touched.draw_again(path));
            (touched, old)
        });
    }
    let id = match changes {
        Some((touched, old)) => drawing.redraw("", Some(old), &touched)?,
        None => drawing.draw("")?,
    };
    let mut node = saver.folder(CONTENT.into());
    node.subtree = Some(id);
    Ok(node)
}

struct Drawing<'a> {
    saver: &'a Saver<'a>,
    documents: &'a dyn Documents,
    undrawn: Mutex<BTreeSet<String>>,
}

impl Drawing<'_> {
    /// Draws a document with all below it. Paths come without a `/` for the root.
    fn draw(&self, path: &str) -> Result<Id> {
        let children = self.documents.children(root_or(path))?;
        let below = children.par_iter().map(|name| {
            let tree = self.draw(&format!("{path}/{name}"))?;
            Ok(self.folder(name, tree))
        });
        let below = below.collect::<Result<Vec<Node>>>()?;
        let own = self.own(path, None)?;
        self.write(own.into_iter().chain(below))
    }

    /// Draws what differs, and takes the rest over.
    fn redraw(&self, path: &str, old: Option<TreeText>, touched: &Touched) -> Result<Id> {
        self.saver.session.progress.go_on()?;
        let Some(old) = old else { return self.draw(path) };
        let below = |name: &str| {
            let folder = self.documents.folder_name(name);
            let tree = old.find(&folder).and_then(|node| node.subtree);
            (folder, tree)
        };
        let change = |(name, touched): (&String, &Touched)| {
            let (_, tree) = below(name);
            let old = self.saver.session.old_text(tree.as_ref());
            let tree = self.redraw(&format!("{path}/{name}"), old, touched)?;
            Ok((name.clone(), self.folder(name, tree)))
        };
        let kept: Vec<(&String, &Touched)> =
            touched.below.iter().filter(|(_, touched)| !touched.is_gone).collect();
        if !touched.is_drawn {
            let changed = kept.into_par_iter().map(change).collect::<Result<Vec<_>>>()?;
            let gone = touched.below.iter().filter(|(_, touched)| touched.is_gone);
            let gone: HashSet<Vec<u8>> =
                gone.map(|(name, _)| self.documents.folder_name(name)).collect();
            let changed = changed.into_iter().map(|(_, node)| node).collect();
            return self.save_text(&old.replace(changed, |name| gone.contains(name)));
        }
        let children = self.documents.children(root_or(path))?;
        let changed = kept.into_par_iter().map(change).collect::<Result<HashMap<_, _>>>()?;
        let mut nodes = self.own(path, Some(&old))?;
        for name in &children {
            let node = match (changed.get(name), below(name)) {
                (Some(node), _) => node.clone(),
                (None, (_, Some(tree))) => self.folder(name, tree),
                (None, (_, None)) => {
                    let tree = self.draw(&format!("{path}/{name}"))?;
                    self.folder(name, tree)
                }
            };
            nodes.push(node);
        }
        self.write(nodes)
    }

    /// Saves a document's own files; nothing if it cannot be drawn.
    fn own(&self, path: &str, old: Option<&TreeText>) -> Result<Vec<Node>> {
        let files = match self.documents.draw(root_or(path)) {
            Ok(files) => files,
            Err(error @ (Error::Store(_) | Error::Document { .. })) if !error.is_transient() => {
                let reason = crate::chain(&error);
                warn!(path, reason, "a document is left out of the folder for people");
                self.undrawn.lock().insert(root_or(path).to_owned());
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        self.saver.session.progress.add(1, 0);
        // What its text was made of is about as long.
        let texts = files.iter().filter_map(|file| match &file.content {
            DrawnContent::Text(text) => Some(text.len() as u64),
            DrawnContent::Blob(_) => None,
        });
        self.saver.session.progress.has_read(texts.sum());
        let mut top = Folder::default();
        for DrawnFile { place, content } in files {
            let Some((name, above)) = place.split_last() else { continue };
            if let Some(file) = self.file(name, content, (old, &place))? {
                top.insert(above, name, file);
            }
        }
        top.nodes(self)
    }

    /// Saves a file; nothing if its blob is missing, which the repository's own part of the snapshot tells as a fault.
    fn file(
        &self,
        name: &[u8],
        content: DrawnContent,
        (old, place): (Option<&TreeText>, &[Vec<u8>]),
    ) -> Result<Option<Node>> {
        let (pieces, size, hash) = match content {
            DrawnContent::Text(bytes) => {
                let size = bytes.len() as u64;
                let hash = *Id::of(&bytes).as_bytes();
                let (pieces, _) = self.saver.save_stream(Box::new(Cursor::new(bytes)), size)?;
                (pieces, size, hash)
            }
            DrawnContent::Blob(id) => match self.blob(&id, || self.old_pieces(old?, place, &id))? {
                Some(pieces) => (pieces, id.length(), *id.digest()),
                None => return Ok(None),
            },
        };
        let mut node = Node::new(name, NodeKind::File, 0o600);
        (node.uid, node.gid) = (self.saver.options.who.uid, self.saver.options.who.gid);
        // With the length it tells whether the bytes are the same.
        let (head, _) = hash.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        node.inode = u64::from_le_bytes(*head);
        node.links = 1;
        node.size = size;
        node.content = Some(pieces);
        Ok(Some(node))
    }

    /// Returns the pieces of a blob; nothing if the repository lacks it.
    fn blob(&self, id: &BlobId, old: impl FnOnce() -> Option<Vec<Id>>) -> Result<Option<Vec<Id>>> {
        let saver = self.saver;
        if id.length() < SMALL_BYTES as u64 {
            let bytes = saver.source.base.read_blobs(&[*id])?.pop().flatten();
            let Some(bytes) = bytes else { return Ok(None) };
            return Ok(Some(vec![saver.writer.add(BlobKind::Data, &bytes)?.0]));
        }
        let piece = Id::from_bytes(*id.digest());
        if id.length() <= MAX_PIECE as u64 && saver.writer.contains(BlobKind::Data, &piece) {
            return Ok(Some(vec![piece]));
        }
        let cut = saver.cuts.lock().get(id).cloned();
        if let Some(pieces) = cut.or_else(old) {
            return Ok(Some(pieces));
        }
        let Some(content) = saver.source.blobs.open(id)? else { return Ok(None) };
        let reader: Box<dyn Read + Send> = content.into_reader();
        let (pieces, found) = saver.save_stream(reader, id.length())?;
        if found != *id {
            return Ok(None);
        }
        saver.cuts.lock().insert(*id, pieces.clone());
        Ok(Some(pieces))
    }

    /// Finds the pieces of a file in a folder of the snapshot before, if its bytes are those of a blob.
    fn old_pieces(&self, old: &TreeText, place: &[Vec<u8>], id: &BlobId) -> Option<Vec<Id>> {
        let (name, above) = place.split_last()?;
        let mut tree = None;
        for folder in above {
            let subtree = tree.as_ref().unwrap_or(old).find(folder)?.subtree;
            tree = Some(self.saver.session.old_text(subtree.as_ref())?);
        }
        let node = tree.as_ref().unwrap_or(old).find(name)?;
        let (head, _) = id.digest().split_first_chunk::<8>()?;
        let is_same = node.size == id.length() && node.inode == u64::from_le_bytes(*head);
        let pieces = node.content.filter(|_| is_same)?;
        let has = |id: &Id| self.saver.writer.contains(BlobKind::Data, id);
        pieces.iter().all(has).then_some(pieces)
    }

    fn folder(&self, name: &str, tree: Id) -> Node {
        let mut node = self.saver.folder(self.documents.folder_name(name));
        node.subtree = Some(tree);
        node
    }

    fn write(&self, nodes: impl IntoIterator<Item = Node>) -> Result<Id> {
        self.save_text(&Tree::of(nodes).to_bytes())
    }

    fn save_text(&self, folder: &[u8]) -> Result<Id> {
        Ok(self.saver.writer.add(BlobKind::Tree, folder)?.0)
    }
}

fn root_or(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// Files of a document that stand in folders.
#[derive(Default)]
struct Folder {
    files: BTreeMap<Vec<u8>, Node>,
    folders: BTreeMap<Vec<u8>, Self>,
}

impl Folder {
    fn insert(&mut self, above: &[Vec<u8>], name: &[u8], file: Node) {
        let mut at = self;
        for folder in above {
            at = at.folders.entry(folder.clone()).or_default();
        }
        if at.files.insert(name.to_vec(), file).is_some() {
            warn!("two files of a document have one name in the snapshot; the last is kept");
        }
    }

    fn nodes(self, drawing: &Drawing<'_>) -> Result<Vec<Node>> {
        let mut nodes: Vec<Node> = self.files.into_values().collect();
        for (name, folder) in self.folders {
            let tree = drawing.write(folder.nodes(drawing)?)?;
            let mut node = drawing.saver.folder(name);
            node.subtree = Some(tree);
            nodes.push(node);
        }
        Ok(nodes)
    }
}
