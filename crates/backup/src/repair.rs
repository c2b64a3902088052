//! Repairing: from a damaged vault to one that a check finds nothing wrong with, with all that can still be read.
//!
//! In: a vault under an exclusive lock. Out: an index of what is there, and snapshots without what is lost.
//!
//! Invariants, at any instant, also of a crash
//! * No pack is removed. A damaged one is marked, after what is whole in it is in another one; a prune removes it when its
//!   grace is over.
//! * Only what was read and found damaged, or is not there, counts as lost. What cannot be read for another reason ends the
//!   repair.
//! * An index file goes when the new index is there; a snapshot goes when the one without what is lost is there.
//! * A snapshot that lacks nothing stays as it is, to the byte.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;

use jiff::Timestamp;
use rayon::prelude::*;

use crate::backend::FileKind;
use crate::check::{Depth, length_of_pack};
use crate::deep;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::prune::{Next, replace_index};
use crate::save::Progress;
use crate::vault::Vault;
use crate::vault::index::{BlobKind, Index, MarkedPack, StoredBlob, StoredIndex, StoredPack};
use crate::vault::lock::Lock;
use crate::vault::node::{Node, NodeKind, Tree};
use crate::vault::snapshot::{INCOMPLETE, Snapshot};
use crate::vault::write::{Listed, Writer};

/// The tag of a snapshot from which a repair has taken what is lost.
const REPAIRED: &str = "repaired";
/// Packs that are read together.
const TOGETHER: usize = 16;

/// What a repair did.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// Packs that the index lists now and did not before.
    pub listed_packs: usize,
    /// Packs of which the index spoke and that are not there.
    pub missing_packs: usize,
    /// Packs in which something is damaged.
    pub damaged_packs: usize,
    /// Pieces and folders that were taken out of them whole.
    pub saved_blobs: usize,
    /// Index files that could not be read, and are replaced.
    pub damaged_index_files: usize,
    /// Snapshots that were written anew without what is lost: the id before, and the one now.
    pub mended_snapshots: Vec<(Id, Id)>,
    /// What is lost, and snapshots that nothing can be read of.
    pub lost: Vec<String>,
}

/// What is left of a pack that was read.
enum Found {
    Whole(StoredPack),
    /// Blobs that open, with their sealed bytes.
    Part(Vec<(StoredBlob, Vec<u8>)>),
    Missing,
}

/// Lists all packs that are there, takes out of damaged ones what is whole, and writes snapshots that lack something anew
/// without it. With [`Depth::Data`] all packs are read, else those that are not listed or have another length than they
/// should. `lock` is exclusive.
///
/// # Errors
/// What cannot be read or written for another reason than damage.
pub fn repair(
    vault: &Arc<Vault>,
    lock: &Lock,
    (depth, now): (Depth, Timestamp),
    progress: &Progress,
) -> Result<Repaired> {
    let mut repaired = Repaired::default();
    repair_index(vault, lock, (depth, now), (&mut repaired, progress))?;
    let index = Arc::new(Index::load(vault)?);
    let mut snapshots = Vec::new();
    for (id, _) in vault.list(FileKind::Snapshot)? {
        match vault.read_json::<Snapshot>(FileKind::Snapshot, &id) {
            Ok(snapshot) => snapshots.push(Snapshot { id, ..snapshot }),
            Err(error @ Error::Damaged { .. }) => {
                repaired.lost.push(format!("{}; forget it", crate::chain(&error)));
            }
            Err(error) => return Err(error),
        }
    }
    let writer = Writer::new(vault, &index, lock);
    let (known, lost) = (HashMap::new(), Vec::new());
    let mut mender = Mender { vault, index: &index, writer: &writer, progress, known, lost };
    let mut mended = Vec::new();
    for snapshot in snapshots {
        match deep::run(|| mender.mend(&snapshot.tree, 0))? {
            Some(tree) if tree == snapshot.tree => {}
            Some(tree) => mended.push((snapshot.id, without_lost(snapshot, tree))),
            None => mender.lost.push(format!(
                "the snapshot `{}` of {}: its topmost folder is lost; forget it",
                snapshot.id.short(),
                snapshot.time
            )),
        }
    }
    repaired.lost.extend(mender.lost);
    writer.finish(lock)?;
    for (old, snapshot) in mended {
        lock.confirm()?;
        let new = vault.write_json(FileKind::Snapshot, &snapshot)?;
        vault.forget(&old)?;
        repaired.mended_snapshots.push((old, new));
    }
    Ok(repaired)
}

fn without_lost(snapshot: Snapshot, tree: Id) -> Snapshot {
    let mut tags = snapshot.tags.unwrap_or_default();
    for word in [INCOMPLETE, REPAIRED] {
        if !tags.iter().any(|tag| tag == word) {
            tags.push(word.to_owned());
        }
    }
    Snapshot { tree, tags: Some(tags), parent: None, ..snapshot }
}

/// Writes an index of all packs that are there, if the one that is there differs.
fn repair_index(
    vault: &Arc<Vault>,
    lock: &Lock,
    (depth, now): (Depth, Timestamp),
    (repaired, progress): (&mut Repaired, &Progress),
) -> Result<()> {
    let (known, files) = read_index(vault, repaired)?;
    let there: HashMap<Id, u64> = vault.list(FileKind::Pack)?.into_iter().collect();
    for id in known.keys().filter(|id| !there.contains_key(*id)) {
        repaired.missing_packs += 1;
        repaired.lost.push(format!("the pack `{id}` is not there"));
    }
    let is_listed = |id: &Id, length: u64| {
        known.get(id).is_some_and(|pack| length_of_pack(pack) == length) && depth != Depth::Data
    };
    let (listed, doubtful): (Vec<_>, Vec<_>) =
        there.into_iter().partition(|(id, length)| is_listed(id, *length));
    let mut packs: Vec<StoredPack> =
        listed.iter().filter_map(|(id, _)| known.get(id).cloned()).collect();
    let writer = Writer::new(vault, &Arc::default(), lock).telling_packs();
    let mut damaged = Vec::new();
    for some in doubtful.chunks(TOGETHER) {
        progress.go_on()?;
        let found = some.par_iter().map(|(id, _)| read_pack(vault, id, known.get(id)));
        let found = found.collect::<Result<Vec<Found>>>()?;
        for ((id, length), found) in some.iter().zip(found) {
            progress.add(1, *length);
            match found {
                Found::Whole(pack) => {
                    repaired.listed_packs += usize::from(!known.contains_key(id));
                    packs.push(pack);
                }
                Found::Part(blobs) => {
                    damaged.push(*id);
                    repaired.damaged_packs += 1;
                    repaired.saved_blobs += blobs.len();
                    repaired.lost.push(format!("the pack `{id}` is damaged"));
                    for (blob, sealed) in blobs {
                        let raw = blob.uncompressed_length;
                        writer.append((blob.kind, blob.id), &sealed, raw)?;
                    }
                }
                Found::Missing => {}
            }
        }
    }
    let (_, Listed { packs: saved, files: new, .. }) = writer.finish(lock)?;
    let is_right = repaired.listed_packs + repaired.missing_packs + repaired.damaged_packs == 0
        && repaired.damaged_index_files == 0;
    if is_right {
        return Ok(());
    }
    packs.extend(saved);
    let time = Some(now.to_string());
    let mark = |id| MarkedPack { id, blobs: Vec::new(), time: time.clone(), size: None };
    let next = Next { packs, marks: damaged.into_iter().map(mark).collect() };
    replace_index(vault, lock, files.iter().chain(&new), next)
}

/// Reads all index files that can be read: what they list or have marked, and the names of all.
fn read_index(
    vault: &Vault,
    repaired: &mut Repaired,
) -> Result<(HashMap<Id, StoredPack>, Vec<Id>)> {
    let (mut known, mut files) = (HashMap::new(), Vec::new());
    let mut marked = Vec::new();
    for (id, _) in vault.list(FileKind::Index)? {
        files.push(id);
        match vault.read_json::<StoredIndex>(FileKind::Index, &id) {
            Ok(file) => {
                known.extend(file.packs.into_iter().map(|pack| (pack.id, pack)));
                marked.extend(file.packs_to_delete);
            }
            Err(Error::Damaged { .. }) => repaired.damaged_index_files += 1,
            Err(error) => return Err(error),
        }
    }
    // A mark says that nobody needs a pack; the next prune finds that again. Without its blobs, the pack itself tells them.
    for MarkedPack { id, blobs, .. } in marked.into_iter().filter(|pack| !pack.blobs.is_empty()) {
        known.entry(id).or_insert(StoredPack { id, blobs });
    }
    Ok((known, files))
}

/// Reads a pack to its last byte; `known` is what an index says of it.
fn read_pack(vault: &Vault, id: &Id, known: Option<&StoredPack>) -> Result<Found> {
    let bytes = match vault.backend().read(FileKind::Pack, id) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Missing),
        Err(error) => return Err(Error::backend("read", FileKind::Pack, id)(error)),
    };
    let header = vault.pack_header(&bytes);
    match header {
        Some(blobs) if Id::of(&bytes) == *id => Ok(Found::Whole(StoredPack { id: *id, blobs })),
        header => {
            let blobs = header.or_else(|| known.map(|pack| pack.blobs.clone()));
            let whole = |blob: StoredBlob| {
                let begin = blob.offset as usize;
                let sealed = bytes.get(begin..begin.checked_add(blob.length as usize)?)?.to_vec();
                vault.open_stored(&blob, sealed.clone()).ok()?;
                Some((blob, sealed))
            };
            Ok(Found::Part(blobs.unwrap_or_default().into_iter().filter_map(whole).collect()))
        }
    }
}

/// Writes folders anew without what is lost.
struct Mender<'a> {
    vault: &'a Vault,
    index: &'a Index,
    writer: &'a Writer,
    progress: &'a Progress,
    /// What became of folders; nothing where one is lost.
    known: HashMap<Id, Option<Id>>,
    lost: Vec<String>,
}

impl Mender<'_> {
    /// Returns the folder without what is lost: itself if nothing is, nothing if it is lost itself.
    fn mend(&mut self, id: &Id, depth: usize) -> Result<Option<Id>> {
        if let Some(known) = self.known.get(id) {
            return Ok(*known);
        }
        self.progress.go_on()?;
        let tree = if deep::bound(depth, id).is_ok() { self.read(id)? } else { None };
        let mended = tree.map(|tree| self.mend_tree(id, tree, depth)).transpose()?;
        self.known.insert(*id, mended);
        Ok(mended)
    }

    fn mend_tree(&mut self, id: &Id, tree: Tree, depth: usize) -> Result<Id> {
        let (mut is_changed, mut nodes) = (false, Vec::with_capacity(tree.nodes.len()));
        for mut node in tree.nodes {
            if !self.has_pieces(&node) {
                is_changed = true;
                self.lost.push(format!("`{}` in the folder `{id}`", node.text_name()));
                continue;
            }
            if node.kind == NodeKind::Dir {
                let old = node.subtree;
                node.subtree = match &old {
                    Some(below) => self.mend(below, depth + 1)?,
                    None => None,
                };
                if node.subtree.is_none() {
                    let text = node.text_name();
                    self.lost.push(format!("what is in `{text}` in the folder `{id}`"));
                    let empty = Tree::default().to_bytes();
                    node.subtree = Some(self.writer.add(BlobKind::Tree, &empty)?.0);
                }
                is_changed |= node.subtree != old;
            }
            nodes.push(node);
        }
        if !is_changed {
            return Ok(*id);
        }
        Ok(self.writer.add(BlobKind::Tree, &Tree { nodes }.to_bytes())?.0)
    }

    fn has_pieces(&self, node: &Node) -> bool {
        node.content.iter().flatten().all(|id| self.index.contains(BlobKind::Data, id))
    }

    /// Reads a folder; nothing if it is lost.
    fn read(&self, id: &Id) -> Result<Option<Tree>> {
        let Some(place) = self.index.find(BlobKind::Tree, id) else { return Ok(None) };
        let pack = self.index.pack(place);
        let (start, length) = (u64::from(place.offset), place.length as usize);
        let sealed = match self.vault.backend().read_range(FileKind::Pack, &pack, start, length) {
            Ok(sealed) => sealed,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(Error::backend("read", FileKind::Pack, &pack)(error)),
        };
        let plain = self.vault.open_blob((BlobKind::Tree, id), place, sealed);
        Ok(plain.ok().and_then(|plain| Tree::parse(&plain).ok()))
    }
}
