//! Repairing: turns a damaged vault into one that passes a check, with all data that can still be read.
//!
//! In: a vault under an exclusive lock. Out: an index of the existing packs, and snapshots without the lost data.
//!
//! Invariants, at any instant, including a crash
//! * No pack is removed. A damaged one is marked after its intact blobs are in another pack; a prune removes it after
//!   its grace period.
//! * Only data that was read and found damaged, or that is missing, counts as lost. Data that cannot be read for
//!   another reason aborts the repair.
//! * An index file is removed after the new index is written; a snapshot is removed after its replacement without the
//!   lost data is written.
//! * An undamaged snapshot stays unchanged, byte for byte.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;

use jiff::Timestamp;
use rayon::prelude::*;
use tympan_notation::error_chain_text;

use crate::backend::VaultFileKind;
use crate::backup_progress::BackupProgress;
use crate::check::{CheckDepth, pack_length};
use crate::deep_stack;
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;
use crate::prune::{ReplacementIndex, replace_index};
use crate::vault::Vault;
use crate::vault::index::{MarkedPack, StoredIndex, StoredPack, VaultIndex};
use crate::vault::lock::VaultLock;
use crate::vault::node::{SnapshotNode, SnapshotNodeKind, SnapshotTree};
use crate::vault::pack_blob::{PackBlobKind, StoredBlob};
use crate::vault::pack_writer::{PackWriter, WrittenIndexFiles};
use crate::vault::snapshot::{INCOMPLETE_TAG, VaultSnapshot};

/// The tag of a snapshot from which a repair has removed lost data.
const REPAIRED_TAG: &str = "repaired";
/// Number of packs that are read together.
const PACK_BATCH_SIZE: usize = 16;

/// The result of a repair.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// The number of packs that the index lists now and did not before.
    pub added_packs: usize,
    /// The number of indexed packs that are missing.
    pub missing_packs: usize,
    /// The number of damaged packs.
    pub damaged_packs: usize,
    /// The number of pieces and folders that were recovered from them.
    pub salvaged_blobs: usize,
    /// The number of unreadable index files, which are replaced.
    pub damaged_index_files: usize,
    /// Snapshots that were rewritten without the lost data: the old id and the new one.
    pub repaired_snapshots: Vec<(VaultObjectId, VaultObjectId)>,
    /// Lost data, and snapshots that cannot be read at all.
    pub losses: Vec<String>,
}

/// The recoverable content of a pack.
enum SalvagedPack {
    Intact(StoredPack),
    /// Intact blobs, with their sealed bytes.
    Partial(Vec<(StoredBlob, Vec<u8>)>),
    Missing,
}

/// Indexes all existing packs, recovers the intact blobs of damaged ones, and rewrites damaged snapshots without the
/// lost data. With [`CheckDepth::Data`] all packs are read, else those that are not listed or have a wrong length.
/// `lock` is exclusive.
///
/// # Errors
/// Data that cannot be read or written for another reason than damage.
pub fn repair_vault(
    vault: &Arc<Vault>,
    lock: &VaultLock,
    (depth, now): (CheckDepth, Timestamp),
    progress: &BackupProgress,
) -> Result<RepairReport> {
    let mut repaired = RepairReport::default();
    repair_index(vault, lock, depth, now, &mut repaired, progress)?;
    let index = Arc::new(VaultIndex::load(vault)?);
    let mut snapshots = Vec::new();
    for (id, _) in vault.files().list(VaultFileKind::Snapshot)? {
        match vault.files().read_json::<VaultSnapshot>(VaultFileKind::Snapshot, &id) {
            Ok(snapshot) => snapshots.push(VaultSnapshot { id, ..snapshot }),
            Err(error @ Error::Damaged { .. }) => {
                repaired.losses.push(format!("{}; forget it", error_chain_text(&error)));
            }
            Err(error) => return Err(error),
        }
    }
    let writer = PackWriter::new(vault, &index, lock);
    let (repaired_trees, lost) = (HashMap::new(), Vec::new());
    let mut mender = TreeRepairer {
        vault,
        index: &index,
        writer: &writer,
        progress,
        repaired_trees,
        losses: lost,
    };
    let mut mended = Vec::new();
    for snapshot in snapshots {
        match deep_stack::run_on_deep_stack(|| mender.repair_tree(&snapshot.tree, 0))? {
            Some(tree) if tree == snapshot.tree => {}
            Some(tree) => mended.push((snapshot.id, repaired_snapshot(snapshot, tree))),
            None => mender.losses.push(format!(
                "the snapshot `{}` of {}: its root folder is lost; forget it",
                snapshot.id.short(),
                snapshot.time
            )),
        }
    }
    repaired.losses.extend(mender.losses);
    writer.finish(lock)?;
    for (old, snapshot) in mended {
        lock.check_held()?;
        let new = vault.files().write_json(VaultFileKind::Snapshot, &snapshot)?;
        vault.remove_snapshot(&old)?;
        repaired.repaired_snapshots.push((old, new));
    }
    Ok(repaired)
}

fn repaired_snapshot(snapshot: VaultSnapshot, tree: VaultObjectId) -> VaultSnapshot {
    let mut tags = snapshot.tags.unwrap_or_default();
    for tag_name in [INCOMPLETE_TAG, REPAIRED_TAG] {
        if !tags.iter().any(|tag| tag == tag_name) {
            tags.push(tag_name.to_owned());
        }
    }
    VaultSnapshot { tree, tags: Some(tags), parent: None, ..snapshot }
}

/// Writes an index of all existing packs, if the current one differs.
fn repair_index(
    vault: &Arc<Vault>,
    lock: &VaultLock,
    depth: CheckDepth,
    now: Timestamp,
    repaired: &mut RepairReport,
    progress: &BackupProgress,
) -> Result<()> {
    let (listed_packs, files) = read_usable_index(vault, repaired)?;
    let there: HashMap<VaultObjectId, u64> =
        vault.files().list(VaultFileKind::Pack)?.into_iter().collect();
    for id in listed_packs.keys().filter(|id| !there.contains_key(*id)) {
        repaired.missing_packs += 1;
        repaired.losses.push(format!("the pack `{id}` is missing"));
    }
    let is_listed = |id: &VaultObjectId, length: u64| {
        listed_packs.get(id).is_some_and(|pack| pack_length(pack) == length)
            && depth != CheckDepth::Data
    };
    let (listed, doubtful): (Vec<_>, Vec<_>) =
        there.into_iter().partition(|(id, length)| is_listed(id, *length));
    let mut packs: Vec<StoredPack> =
        listed.iter().filter_map(|(id, _)| listed_packs.get(id).cloned()).collect();
    let writer = PackWriter::new(vault, &Arc::default(), lock).with_pack_collection();
    let mut damaged = Vec::new();
    for batch in doubtful.chunks(PACK_BATCH_SIZE) {
        progress.check_running()?;
        let salvaged =
            batch.par_iter().map(|(id, _)| salvage_pack(vault, id, listed_packs.get(id)));
        let salvaged = salvaged.collect::<Result<Vec<SalvagedPack>>>()?;
        for ((id, length), salvaged_pack) in batch.iter().zip(salvaged) {
            progress.add_done(1, *length);
            match salvaged_pack {
                SalvagedPack::Intact(pack) => {
                    repaired.added_packs += usize::from(!listed_packs.contains_key(id));
                    packs.push(pack);
                }
                SalvagedPack::Partial(blobs) => {
                    damaged.push(*id);
                    repaired.damaged_packs += 1;
                    repaired.salvaged_blobs += blobs.len();
                    repaired.losses.push(format!("the pack `{id}` is damaged"));
                    for (blob, sealed) in blobs {
                        let raw = blob.uncompressed_length;
                        writer.append_sealed(blob.kind, blob.id, &sealed, raw)?;
                    }
                }
                SalvagedPack::Missing => {}
            }
        }
    }
    let (_, WrittenIndexFiles { packs: saved, files: new, .. }) = writer.finish(lock)?;
    let is_right = repaired.added_packs + repaired.missing_packs + repaired.damaged_packs == 0
        && repaired.damaged_index_files == 0;
    if is_right {
        return Ok(());
    }
    packs.extend(saved);
    let time = Some(now.to_string());
    let mark = |id| MarkedPack { id, blobs: Vec::new(), time: time.clone(), size: None };
    let next = ReplacementIndex { packs, marked_packs: damaged.into_iter().map(mark).collect() };
    replace_index(vault, lock, files.iter().chain(&new), next)
}

/// Reads all readable index files: the packs that they list or mark, and the names of all index files.
fn read_usable_index(
    vault: &Vault,
    repaired: &mut RepairReport,
) -> Result<(HashMap<VaultObjectId, StoredPack>, Vec<VaultObjectId>)> {
    let (mut listed_packs, mut files) = (HashMap::new(), Vec::new());
    let mut marked = Vec::new();
    for (id, _) in vault.files().list(VaultFileKind::Index)? {
        files.push(id);
        match vault.files().read_json::<StoredIndex>(VaultFileKind::Index, &id) {
            Ok(file) => {
                listed_packs.extend(file.packs.into_iter().map(|pack| (pack.id, pack)));
                marked.extend(file.packs_to_delete);
            }
            Err(Error::Damaged { .. }) => repaired.damaged_index_files += 1,
            Err(error) => return Err(error),
        }
    }
    // A mark says that a pack is unused; the next prune finds that again. If the mark lists no blobs, they are read
    // from the pack itself.
    for MarkedPack { id, blobs, .. } in marked.into_iter().filter(|pack| !pack.blobs.is_empty()) {
        listed_packs.entry(id).or_insert(StoredPack { id, blobs });
    }
    Ok((listed_packs, files))
}

/// Reads a pack completely; `listed_pack` is its entry in an index.
fn salvage_pack(
    vault: &Vault,
    id: &VaultObjectId,
    listed_pack: Option<&StoredPack>,
) -> Result<SalvagedPack> {
    let bytes = match vault.files().backend().read(VaultFileKind::Pack, id) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SalvagedPack::Missing),
        Err(error) => return Err(Error::backend("read", VaultFileKind::Pack, id)(error)),
    };
    let header = vault.open_pack_header(&bytes);
    match header {
        Some(blobs) if VaultObjectId::of(&bytes) == *id => {
            Ok(SalvagedPack::Intact(StoredPack { id: *id, blobs }))
        }
        header => {
            let blobs = header.or_else(|| listed_pack.map(|pack| pack.blobs.clone()));
            let whole = |blob: StoredBlob| {
                let begin = blob.offset as usize;
                let sealed = bytes.get(begin..begin.checked_add(blob.length as usize)?)?.to_vec();
                vault.sealing().open_stored_blob(&blob, sealed.clone()).ok()?;
                Some((blob, sealed))
            };
            Ok(SalvagedPack::Partial(
                blobs.unwrap_or_default().into_iter().filter_map(whole).collect(),
            ))
        }
    }
}

/// Rewrites folders without the lost data.
struct TreeRepairer<'a> {
    vault: &'a Vault,
    index: &'a VaultIndex,
    writer: &'a PackWriter,
    progress: &'a BackupProgress,
    /// The repaired id of each folder; `None` if the folder is lost.
    repaired_trees: HashMap<VaultObjectId, Option<VaultObjectId>>,
    losses: Vec<String>,
}

impl TreeRepairer<'_> {
    /// Returns the folder without the lost data: the same id if nothing is lost, `None` if the folder itself is.
    fn repair_tree(&mut self, id: &VaultObjectId, depth: usize) -> Result<Option<VaultObjectId>> {
        if let Some(repaired_tree) = self.repaired_trees.get(id) {
            return Ok(*repaired_tree);
        }
        self.progress.check_running()?;
        let tree = if deep_stack::check_folder_depth(depth, id).is_ok() {
            self.read_tree(id)?
        } else {
            None
        };
        let mended = tree.map(|tree| self.rewrite_tree(id, tree, depth)).transpose()?;
        self.repaired_trees.insert(*id, mended);
        Ok(mended)
    }

    fn rewrite_tree(
        &mut self,
        id: &VaultObjectId,
        tree: SnapshotTree,
        depth: usize,
    ) -> Result<VaultObjectId> {
        let (mut is_changed, mut nodes) = (false, Vec::with_capacity(tree.nodes.len()));
        for mut node in tree.nodes {
            if !self.has_pieces(&node) {
                is_changed = true;
                self.losses.push(format!("`{}` in the folder `{id}`", node.text_name()));
                continue;
            }
            if node.kind == SnapshotNodeKind::Dir {
                let old = node.subtree;
                node.subtree = match &old {
                    Some(below) => self.repair_tree(below, depth + 1)?,
                    None => None,
                };
                if node.subtree.is_none() {
                    let text = node.text_name();
                    self.losses.push(format!("the contents of `{text}` in the folder `{id}`"));
                    let empty = SnapshotTree::default().to_bytes();
                    node.subtree = Some(self.writer.add_blob(PackBlobKind::Tree, &empty)?.0);
                }
                is_changed |= node.subtree != old;
            }
            nodes.push(node);
        }
        if !is_changed {
            return Ok(*id);
        }
        Ok(self.writer.add_blob(PackBlobKind::Tree, &SnapshotTree { nodes }.to_bytes())?.0)
    }

    fn has_pieces(&self, node: &SnapshotNode) -> bool {
        node.content.iter().flatten().all(|id| self.index.contains(PackBlobKind::Data, id))
    }

    /// Reads a folder; `None` if it is lost.
    fn read_tree(&self, id: &VaultObjectId) -> Result<Option<SnapshotTree>> {
        let Some(location) = self.index.find(PackBlobKind::Tree, id) else { return Ok(None) };
        let pack = self.index.pack_id(location);
        let (start, length) = (u64::from(location.offset), location.length as usize);
        let sealed = match self.vault.files().backend().read_range(
            VaultFileKind::Pack,
            &pack,
            start,
            length,
        ) {
            Ok(sealed) => sealed,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => {
                return Err(Error::backend("read", VaultFileKind::Pack, &pack)(error));
            }
        };
        let plain = self.vault.sealing().open_blob(PackBlobKind::Tree, id, location, sealed);
        Ok(plain.ok().and_then(|plain| SnapshotTree::parse(&plain).ok()))
    }
}
