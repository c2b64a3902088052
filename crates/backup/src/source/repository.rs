//! A content repository as a source: exactly one root of it, read through the store's own readers.
//!
//! In: a store that another process may be writing, its blobs, and the snapshot before. Out: a snapshot whose folders
//! follow the chunks: a folder or file per chunk that refers to others, named by its hash.
//!
//! Invariants
//! * What a chunk's folder holds follows from the chunk alone. So a part that did not change is taken over from the
//!   snapshot before by its name, unread, and a save costs what changed.
//! * The root stays readable until the snapshot is written: the store keeps it under a lease.
//! * What is imported has the hashes it is named by, and all of it is there before the ref is made.
//!
//! Layout: `tympan.json` names the root. `state` is the root's folder. A folder holds `chunks` (frames of the chunk
//! itself, of the chunks below it that refer to no others, and of their small blobs), large blobs by their hash, and
//! what else is below. A part without large blobs and without parts of its own is one file of frames. Beside it,
//! `content` is what people read (`view`).
//!
//! Not here: what chunks mean.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tracing::warn;
use tympan_blobs::{BlobStore, ReadBlobs, SMALL_BYTES};
use tympan_store::{Base, Batch, BlobId, Chunk, ChunkId, ChunkStore, Lease, RefUpdate};

use super::lease::{Kept, keep_root};
use super::view::{Before, CONTENT, Cuts, View, save_view};
use crate::copy::{CopyFacts, UNFINISHED, ZipCopy};
use crate::cut::MAX_PIECE;
use crate::deep;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::look::find_path;
use crate::save::{Faults, Parent, Progress, SaveOptions, Saved, Session};
use crate::vault::Vault;
use crate::vault::index::{BlobKind, Index};
use crate::vault::node::{Node, NodeKind, Tree, go_mode};
use crate::vault::snapshot::{INCOMPLETE, Snapshot};
use crate::vault::write::Writer;

pub(crate) const FORMAT: u32 = 1;
pub(crate) const FACTS: &str = "tympan.json";
pub(crate) const STATE: &str = "state";
const CHUNKS: &str = "chunks";
/// Names the documents that could not be drawn.
const UNDRAWN: &str = "undrawn.json";
pub(crate) const README: &str = "README.txt";
pub(crate) const README_TEXT: &str = "This is one state of a Tympan repository, as `tympan backup save` saved it.\n\
    `content`, if it is there, is for people: each document as a folder with its text and its files.\n\
    Make a home of it with `tympan backup restore --unpacked THIS-FOLDER --home NEW-HOME`.\n";
/// Chunks that are read together.
pub(crate) const TOGETHER: usize = 256;
/// Pieces of a file of frames end after every eighth chunk in the mean, by the chunk's hash, or at this length.
const MAX_FRAMES: usize = 256 * 1024;
/// Bytes that wait to be committed by an import.
const IMPORT_BYTES: usize = 16 << 20;
pub(crate) const IS_CHUNK: u8 = b'C';
pub(crate) const IS_BLOB: u8 = b'B';

/// What a snapshot of a repository says about itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) format: u32,
    #[serde(rename = "ref")]
    pub(crate) name: String,
    pub(crate) root: String,
    /// What a plain copy in a folder notes for the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copy: Option<CopyFacts>,
}

/// A repository to save.
#[derive(Clone, Copy)]
pub struct RepositorySource<'a> {
    /// Its chunks and small blobs.
    pub base: &'a dyn Base,
    /// Its large blobs.
    pub blobs: &'a dyn ReadBlobs,
    /// The ref whose root is saved.
    pub reference: &'a str,
    /// The path that its snapshots have, such as `/tympan/srv/author`.
    pub path: &'a str,
    /// What people can read of it, beside what an import reads.
    pub view: Option<&'a dyn View>,
}

impl std::fmt::Debug for RepositorySource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepositorySource").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Saves the root that a ref points to; nothing if the snapshot before has the same one.
///
/// # Errors
/// If the repository or the vault fails.
pub fn save_repository(
    session: &Session<'_>,
    source: RepositorySource<'_>,
    options: &SaveOptions,
) -> Result<Option<Saved>> {
    let RepositorySource { base, reference, .. } = source;
    let kept = Kept { base, reference, what: "backup", who: &options.who };
    keep_root(kept, session.progress, |lease| {
        deep::run(|| save_root(session, source, options, lease))
    })
}

fn save_root(
    session: &Session<'_>,
    source: RepositorySource<'_>,
    options: &SaveOptions,
    lease: &Lease,
) -> Result<Option<Saved>> {
    let root = lease.root.to_string();
    let paths = vec![source.path.to_owned()];
    // What it lacks would be lacking in all that follow: a part is taken over whole, by its name.
    let parent = session.parent(options, &paths, |one| !one.is_incomplete())?;
    if parent.as_ref().is_some_and(|parent| parent.repository_root() == Some(root.as_str())) {
        return Ok(None);
    }
    let writer = Writer::new(session.vault, session.index, session.lock);
    let (faults, cuts) = (Faults::default(), Cuts::default());
    let saver = Saver { session, source, options, writer: &writer, faults, cuts };
    let old = match (&parent, &options.parent) {
        (Some(parent), Parent::Latest) => saver.old_state(parent),
        _ => Candidates::default(),
    };
    let chunk = source.base.read(&lease.root)?;
    let mut state = saver.save_part(&lease.root, &chunk, &old, Shape::Folder)?;
    state.name = STATE.into();
    let name = source.reference.to_owned();
    let facts = Facts { format: FORMAT, name, root: root.clone(), copy: None };
    let facts = serde_json::to_vec_pretty(&facts).unwrap_or_default();
    let facts = saver.save_bytes(FACTS, &facts)?;
    let readme = saver.save_bytes(README, README_TEXT.as_bytes())?;
    let mut nodes = vec![state, facts, readme];
    if let Some(view) = source.view {
        let before = parent.as_ref().and_then(|parent| saver.old_view(parent));
        if let Some((node, undrawn)) = save_view(&saver, (view, &lease.root), before)? {
            nodes.push(node);
            if !undrawn.is_empty() {
                let list = serde_json::to_vec_pretty(&undrawn).unwrap_or_default();
                nodes.push(saver.save_bytes(UNDRAWN, &list)?);
            }
        }
    }
    let (tree, _) = writer.add(BlobKind::Tree, &Tree::of(nodes).to_bytes())?;
    let faults = saver.faults.into_sorted();
    let mut options = options.clone();
    options.tags.extend(["tympan".to_owned(), format!("root:{root}")]);
    if !faults.is_empty() {
        options.tags.push(INCOMPLETE.to_owned());
    }
    let (snapshot, written, _) = session.finish(writer, tree, (&options, paths, parent))?;
    Ok(Some(Saved { snapshot, written, faults }))
}

/// Parts of the snapshot before that may be parts of this one, by name.
#[derive(Default)]
struct Candidates(HashMap<Vec<u8>, Node>);

/// Whether a part may be a single file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Folder,
    Either,
}

pub(super) struct Saver<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) source: RepositorySource<'a>,
    pub(super) options: &'a SaveOptions,
    pub(super) writer: &'a Writer,
    faults: Faults,
    pub(super) cuts: Cuts,
}

impl Saver<'_> {
    fn old_state(&self, parent: &Snapshot) -> Candidates {
        let root = self.session.old_tree(Some(&parent.tree));
        let state = root.and_then(|root| root.find(STATE.as_bytes()).and_then(|node| node.subtree));
        self.candidates(state.iter())
    }

    /// Finds the root of the snapshot before, its folder for people, and what is lacking in that.
    fn old_view(&self, parent: &Snapshot) -> Option<Before> {
        let root = parent.repository_root()?.parse().ok()?;
        let top = self.session.old_tree(Some(&parent.tree))?;
        let undrawn = match top.find(UNDRAWN.as_bytes()) {
            None => Vec::new(),
            // Without the list, all is drawn anew.
            Some(node) => {
                let mut json = Vec::new();
                let at = (&**self.session.vault, &**self.session.index);
                crate::restore::stream(at, node, &mut json).ok()?;
                serde_json::from_slice(&json).ok()?
            }
        };
        let tree = top.find(CONTENT.as_bytes())?.subtree?;
        Some(Before { root, tree, undrawn })
    }

    /// Reads what is in some folders of the snapshot before.
    fn candidates<'b>(&self, trees: impl Iterator<Item = &'b Id>) -> Candidates {
        let trees = trees.filter_map(|id| self.session.old_tree(Some(id)));
        let nodes = trees.flat_map(|tree| tree.nodes);
        Candidates(nodes.map(|node| (node.name.clone(), node)).collect())
    }

    /// Tells whether the vault still holds a node of the snapshot before.
    fn is_whole(&self, node: &Node) -> bool {
        let has_pieces = |id: &Id| self.writer.contains(BlobKind::Data, id);
        node.content.iter().flatten().all(has_pieces)
            && node.subtree.iter().all(|id| self.writer.contains(BlobKind::Tree, id))
    }

    /// Saves a chunk with all that is below it.
    fn save_part(
        &self,
        id: &ChunkId,
        chunk: &Chunk,
        old: &Candidates,
        shape: Shape,
    ) -> Result<Node> {
        self.session.progress.go_on()?;
        let mut seen = HashSet::new();
        let below: Vec<ChunkId> = chunk.chunk_refs().filter(|id| seen.insert(*id)).collect();
        let mut nodes: Vec<Node> = Vec::new();
        let mut names = HashSet::new();
        let mut unknown = Vec::new();
        for id in below {
            let name = id.to_string().into_bytes();
            match old.0.get(&name).filter(|node| self.is_whole(node)) {
                Some(node) => nodes.push(node.clone()),
                None => unknown.push(id),
            }
            names.insert(name);
        }
        let mut frames = Frames::default();
        frames.add(IS_CHUNK, id.as_bytes(), chunk.bytes());
        let mut blobs: BTreeMap<BlobId, ()> = chunk.blob_refs().map(|id| (id, ())).collect();
        let mut deep = Vec::new();
        for some in unknown.chunks(TOGETHER) {
            for (id, chunk) in some.iter().zip(self.source.base.read_many(some)?) {
                if chunk.chunk_refs().len() > 0 {
                    deep.push((*id, chunk));
                    continue;
                }
                frames.add(IS_CHUNK, id.as_bytes(), chunk.bytes());
                blobs.extend(chunk.blob_refs().map(|id| (id, ())));
            }
        }
        let gone = old.0.values().filter(|node| !names.contains(&node.name));
        let lost = if deep.is_empty() {
            Candidates::default()
        } else {
            self.candidates(gone.filter_map(|node| node.subtree.as_ref()))
        };
        let saved = deep
            .par_iter()
            .map(|(id, chunk)| self.save_part(id, chunk, &lost, Shape::Either))
            .collect::<Result<Vec<Node>>>()?;
        nodes.extend(saved);
        let (small, large): (Vec<BlobId>, Vec<BlobId>) =
            blobs.into_keys().partition(|id| id.length() < SMALL_BYTES as u64);
        self.add_small(&small, &mut frames)?;
        for id in &large {
            nodes.extend(self.save_blob(id, old)?);
        }
        let content = frames.save(self.writer)?;
        self.session.progress.add(1, content.1);
        let file = self.node(CHUNKS, id.as_bytes(), content);
        let name = id.to_string().into_bytes();
        if nodes.is_empty() && shape == Shape::Either {
            return Ok(Node { name, ..file });
        }
        nodes.push(file);
        let mut folder = self.folder(name);
        folder.subtree = Some(self.writer.add(BlobKind::Tree, &Tree::of(nodes).to_bytes())?.0);
        Ok(folder)
    }

    fn add_small(&self, ids: &[BlobId], frames: &mut Frames) -> Result<()> {
        for some in ids.chunks(TOGETHER) {
            for (id, bytes) in some.iter().zip(self.source.base.read_blobs(some)?) {
                match bytes {
                    Some(bytes) => frames.add(IS_BLOB, id.digest(), &bytes),
                    None => self.missing(id),
                }
            }
        }
        Ok(())
    }

    fn missing(&self, id: &BlobId) {
        self.faults.add(format!("blob {id}"), &"the repository refers to it and does not hold it");
    }

    /// Saves a large blob; nothing if it is missing, which is a fault.
    fn save_blob(&self, id: &BlobId, old: &Candidates) -> Result<Option<Node>> {
        let name: String = Id::from_bytes(*id.digest()).to_string();
        if let Some(node) = old.0.get(name.as_bytes()).filter(|node| self.is_whole(node)) {
            return Ok(Some(node.clone()));
        }
        let piece = Id::from_bytes(*id.digest());
        if id.length() <= MAX_PIECE as u64 && self.writer.contains(BlobKind::Data, &piece) {
            return Ok(Some(self.node(&name, id.digest(), (vec![piece], id.length()))));
        }
        let Some(content) = self.source.blobs.open(id)? else {
            self.missing(id);
            return Ok(None);
        };
        self.session.progress.read_items.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (content, found) = self.save_stream(content.into_reader(), id.length())?;
        if found != *id {
            self.faults.add(format!("blob {id}"), &"its bytes have another hash");
            return Ok(None);
        }
        self.session.progress.add(1, id.length());
        if id.length() > MAX_PIECE as u64 {
            self.cuts.lock().insert(*id, content.clone());
        }
        Ok(Some(self.node(&name, id.digest(), (content, id.length()))))
    }

    /// Saves a stream in pieces: one up to the greatest length of a piece, else cut by content.
    pub(super) fn save_stream(
        &self,
        mut source: Box<dyn Read + Send>,
        length: u64,
    ) -> Result<(Vec<Id>, BlobId)> {
        use sha2::{Digest, Sha256};
        let failed = |source| Error::Source { path: "a blob of the repository".into(), source };
        let (mut hash, mut read, mut content) = (Sha256::new(), 0_u64, Vec::new());
        let mut buffer = Vec::new();
        loop {
            let lacking = (MAX_PIECE - buffer.len()) as u64;
            (&mut source).take(lacking).read_to_end(&mut buffer).map_err(failed)?;
            if buffer.is_empty() {
                return Ok((content, BlobId::new(hash.finalize().into(), read)));
            }
            self.session.progress.go_on()?;
            let cut = match length {
                0..=0x80_0000 => buffer.len(),
                _ => self.session.vault.cutter().first(&buffer),
            };
            let piece = buffer.get(..cut).unwrap_or(&buffer);
            hash.update(piece);
            read += piece.len() as u64;
            content.push(self.writer.add(BlobKind::Data, piece)?.0);
            buffer.drain(..cut);
        }
    }

    fn save_bytes(&self, name: &str, bytes: &[u8]) -> Result<Node> {
        let (id, _) = self.writer.add(BlobKind::Data, bytes)?;
        let mut node = self.node(name, &[0; 32], (vec![id], bytes.len() as u64));
        (node.links, node.inode, node.device_id) = (1, 0, 0);
        Ok(node)
    }

    /// Returns the node of a file that is named by a hash. Where the same hash stands in several folders, a restore
    /// makes one file with several names of it.
    fn node(&self, name: &str, hash: &[u8; 32], (content, size): (Vec<Id>, u64)) -> Node {
        let mut node = Node::new(name, NodeKind::File, 0o600);
        // Both numbers, as anybody who uploads can make two blobs whose hashes begin with the same 8 bytes.
        let (head, rest) = hash.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let (second, _) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        node.inode = u64::from_le_bytes(*head);
        (node.links, node.device_id) = (2, u64::from_le_bytes(*second));
        (node.uid, node.gid) = (self.options.who.uid, self.options.who.gid);
        node.size = size;
        node.content = Some(content);
        node
    }

    pub(super) fn folder(&self, name: Vec<u8>) -> Node {
        let mut node = Node::new(name, NodeKind::Dir, go_mode::DIR | 0o700);
        (node.uid, node.gid) = (self.options.who.uid, self.options.who.gid);
        node
    }
}

/// Chunks and small blobs, one after another, in pieces that end where hashes say so.
#[derive(Default)]
pub(crate) struct Frames {
    done: Vec<Vec<u8>>,
    open: Vec<u8>,
}

impl Frames {
    pub(crate) fn add(&mut self, kind: u8, hash: &[u8; 32], bytes: &[u8]) {
        self.open.push(kind);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.open.extend_from_slice(&length.to_le_bytes());
        self.open.extend_from_slice(bytes);
        if hash.last().is_some_and(|byte| byte & 7 == 0) || self.open.len() >= MAX_FRAMES {
            self.done.push(std::mem::take(&mut self.open));
        }
    }

    /// Returns the frames as they follow each other.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.done.push(self.open);
        self.done.concat()
    }

    /// Saves the pieces; returns them and their length.
    fn save(mut self, writer: &Writer) -> Result<(Vec<Id>, u64)> {
        if !self.open.is_empty() {
            self.done.push(self.open);
        }
        let length = self.done.iter().map(|piece| piece.len() as u64).sum();
        let add = |piece: &Vec<u8>| writer.add(BlobKind::Data, piece).map(|(id, _)| id);
        let pieces = self.done.iter().map(add).collect::<Result<Vec<Id>>>()?;
        Ok((pieces, length))
    }
}

/// What an import brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The ref that was made.
    pub reference: String,
    /// The root it points to.
    pub root: ChunkId,
    /// Chunks.
    pub chunks: u64,
    /// Blobs, small and large.
    pub blobs: u64,
}

/// Imports a snapshot of a repository into an empty store.
///
/// # Errors
/// [`Error::Refused`] if the snapshot is none of a repository, is incomplete, or the store is not empty.
pub fn import_snapshot(
    (vault, index): (&Arc<Vault>, &Index),
    snapshot: &Snapshot,
    (target, blobs): (&dyn ChunkStore, &dyn BlobStore),
    progress: &Progress,
) -> Result<Imported> {
    let facts = find_path(vault, index, snapshot, FACTS);
    let facts = facts.map_err(|_| {
        Error::Refused(format!(
            "the snapshot `{}` is not of a repository; restore it into a folder with `--to`",
            snapshot.id.short()
        ))
    })?;
    let mut json = Vec::new();
    crate::restore::stream((vault, index), &facts, &mut json)?;
    let mut import = Import::new(target, blobs, progress, &json)?;
    let state = find_path(vault, index, snapshot, STATE)?;
    let mut seen = HashSet::new();
    let mut left = vec![state];
    while let Some(node) = left.pop() {
        let Some(tree) = &node.subtree else {
            import_file((vault, index), &node, &mut import)?;
            continue;
        };
        for node in vault.read_tree(index, tree)?.nodes {
            // `chunks` is in every folder; all else is named by its hash.
            if node.name == CHUNKS.as_bytes() || seen.insert((node.name.clone(), node.subtree)) {
                left.push(node);
            }
        }
    }
    import.finish()
}

fn import_file(
    (vault, index): (&Vault, &Index),
    node: &Node,
    import: &mut Import<'_>,
) -> Result<()> {
    let pieces = node.content.clone().unwrap_or_default();
    let mut reader = Pieces { vault, index, pieces: pieces.into_iter(), open: Cursor::default() };
    import.file(&node.text_name(), node.size, &mut reader)
}

/// Reads the pieces of a file as one stream.
struct Pieces<'a> {
    vault: &'a Vault,
    index: &'a Index,
    pieces: std::vec::IntoIter<Id>,
    open: Cursor<Vec<u8>>,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.open.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(id) = self.pieces.next() else { return Ok(0) };
            let piece = self.vault.read_blob(self.index, BlobKind::Data, &id);
            self.open = Cursor::new(piece.map_err(io::Error::other)?);
        }
    }
}

/// Imports a folder that a snapshot of a repository was restored into, by whatever program, or a plain copy: a folder, or
/// a ZIP file.
///
/// # Errors
/// As [`import_snapshot`], and if the folder cannot be read.
pub fn import_folder(
    dir: &Path,
    (target, blobs): (&dyn ChunkStore, &dyn BlobStore),
    progress: &Progress,
) -> Result<Imported> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Source { path, source }
    };
    if dir.is_file() {
        let mut zip = ZipCopy::open(dir)?;
        let facts = zip.facts()?;
        let mut import = Import::new(target, blobs, progress, &facts)?;
        zip.each(&mut |name, length, content| import.file(name, length, content))?;
        return import.finish();
    }
    let facts = dir.join(FACTS);
    let json = fs::read(&facts).map_err(failed(&facts))?;
    let mut import = Import::new(target, blobs, progress, &json)?;
    // A copy under way, or one that was cut off by a loss of power: what its root needs is whole, and looked for at the end.
    let is_unfinished = dir.join(UNFINISHED).exists();
    let mut folders = vec![dir.join(STATE)];
    let mut seen = HashSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
            let path = entry.map_err(failed(&folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let facts = fs::symlink_metadata(&path).map_err(failed(&path))?;
            if name != CHUNKS && !seen.insert((name.clone(), facts.is_dir())) {
                continue;
            }
            if facts.is_dir() {
                folders.push(path);
            } else {
                let mut file = File::open(&path).map_err(failed(&path))?;
                match import.file(&name, facts.len(), &mut file) {
                    Err(error @ (Error::Source { .. } | Error::Refused(_))) if is_unfinished => {
                        warn!(%error, file = %path.display(), "passed over in an unfinished copy");
                    }
                    taken => taken?,
                }
            }
        }
    }
    import.finish()
}

struct Import<'a> {
    target: &'a dyn ChunkStore,
    blobs: &'a dyn BlobStore,
    progress: &'a Progress,
    facts: Facts,
    root: ChunkId,
    batch: Batch,
    waiting: usize,
    imported: Imported,
    /// Keeps what is stored until the ref is made.
    _hold: tympan_store::Hold,
}

impl<'a> Import<'a> {
    fn new(
        target: &'a dyn ChunkStore,
        blobs: &'a dyn BlobStore,
        progress: &'a Progress,
        facts: &[u8],
    ) -> Result<Self> {
        let refused = |text: &str| Error::Refused(format!("`{FACTS}` {text}"));
        let facts: Facts =
            serde_json::from_slice(facts).map_err(|_| refused("cannot be understood"))?;
        if facts.format != FORMAT {
            return Err(refused("has a format that this version does not know"));
        }
        let root: Id = facts.root.parse().map_err(|_| refused("names no root"))?;
        let root = ChunkId::from_bytes(*root.as_bytes());
        if !target.refs()?.is_empty() {
            let text = "the home has a repository already; restore into a new one";
            return Err(Error::Refused(text.to_owned()));
        }
        let reference = facts.name.clone();
        let imported = Imported { reference, root, chunks: 0, blobs: 0 };
        let (batch, hold) = (Batch::new(), target.hold()?);
        Ok(Self { target, blobs, progress, facts, root, batch, waiting: 0, imported, _hold: hold })
    }

    /// Takes a file: a large blob, or frames.
    fn file(&mut self, name: &str, length: u64, source: &mut dyn Read) -> Result<()> {
        self.progress.go_on()?;
        self.progress.add(1, length);
        let failed = |source| Error::Source { path: name.into(), source };
        if name == CHUNKS || length < SMALL_BYTES as u64 {
            return self.frames(name, source);
        }
        // A file of frames is named by the hash of a chunk, which is no SHA-256: only what has the hash is a blob.
        let mut file = copy_of(source).map_err(failed)?;
        let found = tympan_blobs::id_of(&mut file).map_err(failed)?;
        io::Seek::rewind(&mut file).map_err(failed)?;
        if Id::from_bytes(*found.digest()).to_string() != name {
            return self.frames(name, &mut file);
        }
        self.blobs.put(&mut file)?;
        self.imported.blobs += 1;
        Ok(())
    }

    fn frames(&mut self, name: &str, source: &mut dyn Read) -> Result<()> {
        let failed = |source| Error::Source { path: name.into(), source };
        loop {
            let mut kind = [0; 1];
            if source.read(&mut kind).map_err(failed)? == 0 {
                return Ok(());
            }
            let mut length = [0; 4];
            source.read_exact(&mut length).map_err(failed)?;
            let length = u64::from(u32::from_le_bytes(length));
            let mut bytes = Vec::new();
            source.take(length).read_to_end(&mut bytes).map_err(failed)?;
            if bytes.len() as u64 != length {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            self.waiting += bytes.len();
            let bytes = Bytes::from(bytes);
            let [kind] = kind;
            match kind {
                IS_CHUNK => {
                    Chunk::parse(bytes.clone())?;
                    self.batch.add_chunk(bytes);
                    self.imported.chunks += 1;
                }
                IS_BLOB => {
                    self.batch.add_blob(BlobId::of(&bytes), bytes);
                    self.imported.blobs += 1;
                }
                _ => {
                    return Err(Error::Refused(format!(
                        "`{name}` holds what no backup has written"
                    )));
                }
            }
            if self.waiting >= IMPORT_BYTES {
                self.waiting = 0;
                self.target.commit(std::mem::take(&mut self.batch))?;
            }
        }
    }

    /// Makes sure that all is there, and makes the ref.
    fn finish(mut self) -> Result<Imported> {
        self.target.commit(std::mem::take(&mut self.batch))?;
        self.check()?;
        self.batch.move_ref(RefUpdate {
            name: self.facts.name.clone(),
            expected: None,
            new: Some(self.root),
            at: SystemTime::now(),
            author: "backup".to_owned(),
            message: "restore a backup".to_owned(),
        });
        self.target.commit(self.batch)?;
        Ok(self.imported)
    }

    /// Follows everything from the root on.
    fn check(&self) -> Result<()> {
        let lacks = |what: String| {
            Error::Refused(format!(
                "the backup is incomplete: it lacks {what}; nothing was restored"
            ))
        };
        let mut seen: HashSet<ChunkId> = HashSet::from([self.root]);
        let mut known_blobs = HashSet::new();
        let mut level = vec![self.root];
        while !level.is_empty() {
            let mut below = Vec::new();
            for some in level.chunks(TOGETHER) {
                let there = self.target.contains_many(some)?;
                if let Some((id, _)) = some.iter().zip(there).find(|(_, is_there)| !is_there) {
                    return Err(lacks(format!("the chunk `{id}`")));
                }
                for chunk in self.target.read_many(some)? {
                    below.extend(chunk.chunk_refs().filter(|id| seen.insert(*id)));
                    for id in chunk.blob_refs().filter(|id| known_blobs.insert(*id)) {
                        let is_small = id.length() < SMALL_BYTES as u64;
                        let is_there = match is_small {
                            true => self.target.contains_blob(&id)?,
                            false => self.blobs.contains(&id)?,
                        };
                        if !is_there {
                            return Err(lacks(format!("the blob `{id}`")));
                        }
                    }
                }
            }
            level = below;
        }
        Ok(())
    }
}

/// Copies a stream into a file without a name, since it must be hashed before it is known what it is.
fn copy_of(source: &mut dyn Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(source, &mut file)?;
    io::Seek::rewind(&mut file)?;
    Ok(file)
}
