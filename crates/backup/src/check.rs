//! Checking a vault: verifies that everything that its snapshots refer to exists and, optionally, that the data is
//! intact.
//!
//! On failure: damage is a finding with the affected paths; a backend that cannot be read now is an error. A check
//! changes nothing.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use tympan_notation::error_chain_text;

use crate::backend::VaultFileKind;
use crate::backup_progress::BackupProgress;
use crate::error::{Error, Result, is_data_lost};
use crate::inspection::walk_trees;
use crate::object_id::VaultObjectId;
use crate::vault::index::{StoredIndex, StoredPack, VaultIndex};
use crate::vault::node::{SnapshotNode, SnapshotNodeKind};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::parse_pack_header;
use crate::vault::{IndexedVault, Vault};
use crate::vault_encryption::SEAL_OVERHEAD_BYTES;

/// How thoroughly a vault is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckDepth {
    /// Snapshots, folders and the index; of packs, only their lengths.
    #[default]
    Structure,
    /// Also reads all packs completely.
    Data,
    /// Also reads part `n` of `m` of the packs: `(1, 7)` on Monday, `(2, 7)` on Tuesday.
    Subset(u8, u8),
}

/// The results of a check.
#[derive(Clone, Debug, Default)]
pub struct VaultCheckReport {
    /// The number of checked snapshots.
    pub snapshots: usize,
    /// The number of packs that an index lists.
    pub packs: usize,
    /// The number of packs that were read.
    pub packs_read: usize,
    /// The number of packs that no index lists, left by an interrupted run. They do no harm; a prune removes them.
    pub unindexed_packs: usize,
    /// The number of packs that a prune has marked and a later one removes.
    pub marked_packs: usize,
    /// The faults found.
    pub faults: Vec<String>,
}

/// Checks a vault.
///
/// # Errors
/// If the backend cannot be read at all; damage is in the report.
pub fn check_vault(
    vault: &Vault,
    depth: CheckDepth,
    progress: &BackupProgress,
) -> Result<VaultCheckReport> {
    let mut report = VaultCheckReport::default();
    let (index, stored, marked) = load_readable_index(vault, &mut report)?;
    report.packs = stored.len();
    check_packs(vault, &stored, &marked, &mut report)?;
    check_snapshots(vault, &index, &mut report)?;
    let part = |id: &VaultObjectId| match depth {
        CheckDepth::Structure => false,
        CheckDepth::Data => true,
        CheckDepth::Subset(number, of) => {
            id.as_bytes().first().is_some_and(|byte| byte % of.max(1) + 1 == number)
        }
    };
    let selected: Vec<&StoredPack> = stored.iter().filter(|pack| part(&pack.id)).collect();
    progress.expected_items.store(selected.len() as u64, std::sync::atomic::Ordering::Relaxed);
    let faults = selected.par_iter().map(|pack| {
        progress.check_running()?;
        let faults = check_pack_content(vault, pack)?;
        progress.add_done(1, 0);
        Ok(faults)
    });
    report.packs_read = selected.len();
    let faults = faults.collect::<Result<Vec<Vec<String>>>>()?;
    report.faults.extend(faults.into_iter().flatten());
    Ok(report)
}

/// Loads all readable index files: the packs that they list, and the packs that are marked.
fn load_readable_index(
    vault: &Vault,
    report: &mut VaultCheckReport,
) -> Result<(VaultIndex, Vec<StoredPack>, HashSet<VaultObjectId>)> {
    let (mut index, mut stored) = (VaultIndex::default(), HashMap::new());
    let mut marked = HashSet::new();
    for (id, _) in vault.files().list(VaultFileKind::Index)? {
        match vault.files().read_json::<StoredIndex>(VaultFileKind::Index, &id) {
            Ok(file) => {
                for pack in file.packs {
                    index.add(&pack);
                    stored.entry(pack.id).or_insert(pack);
                }
                marked.extend(file.packs_to_delete.iter().map(|pack| pack.id));
            }
            Err(error) if error.is_loss() => report.faults.push(error_chain_text(&error)),
            Err(error) => return Err(error),
        }
    }
    marked.retain(|id| !stored.contains_key(id));
    Ok((index, stored.into_values().collect(), marked))
}

/// Returns the length that a pack has according to the index.
pub(crate) fn pack_length(pack: &StoredPack) -> u64 {
    let blobs: u64 = pack.blobs.iter().map(|blob| u64::from(blob.length)).sum();
    let entries =
        pack.blobs.iter().map(|blob| if blob.uncompressed_length.is_some() { 41 } else { 37 });
    blobs + entries.sum::<u64>() + SEAL_OVERHEAD_BYTES as u64 + 4
}

fn check_packs(
    vault: &Vault,
    stored: &[StoredPack],
    marked: &HashSet<VaultObjectId>,
    report: &mut VaultCheckReport,
) -> Result<()> {
    let there: HashMap<VaultObjectId, u64> =
        vault.files().list(VaultFileKind::Pack)?.into_iter().collect();
    for pack in stored {
        let expected = pack_length(pack);
        match there.get(&pack.id) {
            None => report.faults.push(format!("the pack `{}` is listed, but missing", pack.id)),
            Some(length) if *length != expected => report
                .faults
                .push(format!("the pack `{}` has {length} bytes instead of {expected}", pack.id)),
            Some(_) => {}
        }
    }
    let listed: HashSet<&VaultObjectId> = stored.iter().map(|pack| &pack.id).collect();
    let unlisted = there.keys().filter(|id| !listed.contains(id));
    let (marked, unlisted): (Vec<&VaultObjectId>, Vec<&VaultObjectId>) =
        unlisted.partition(|id| marked.contains(id));
    (report.marked_packs, report.unindexed_packs) = (marked.len(), unlisted.len());
    Ok(())
}

fn check_snapshots(vault: &Vault, index: &VaultIndex, report: &mut VaultCheckReport) -> Result<()> {
    let mut roots = Vec::new();
    for (id, _) in vault.files().list(VaultFileKind::Snapshot)? {
        report.snapshots += 1;
        match vault.files().read_json::<crate::VaultSnapshot>(VaultFileKind::Snapshot, &id) {
            Ok(snapshot) => roots.push(snapshot.tree),
            Err(error) if error.is_loss() => report.faults.push(error_chain_text(&error)),
            Err(error) => return Err(error),
        }
    }
    walk_trees(IndexedVault::new(vault, index), &roots, &mut |id, tree| {
        match tree {
            Ok(tree) => {
                let faults = tree.nodes.iter().filter_map(|node| find_node_fault(index, node));
                report.faults.extend(faults.map(|fault| format!("in the folder `{id}`: {fault}")));
            }
            Err(error) if error.is_loss() => report.faults.push(error_chain_text(&error)),
            Err(error) => return Err(error),
        }
        Ok(())
    })
}

/// Returns the fault of a node, if there is one.
fn find_node_fault(index: &VaultIndex, node: &SnapshotNode) -> Option<String> {
    let name = node.text_name();
    if node.kind == SnapshotNodeKind::Dir && node.subtree.is_none() {
        return Some(format!("`{name}` is a folder without a list of its contents"));
    }
    let mut length = 0;
    for id in node.content.iter().flatten() {
        match index.plain_length(PackBlobKind::Data, id) {
            Some(piece) => length += piece,
            None => return Some(format!("the piece `{id}` of `{name}` is not in any index")),
        }
    }
    (node.kind == SnapshotNodeKind::File && length != node.size)
        .then(|| format!("`{name}` has {} bytes, but its pieces have {length}", node.size))
}

/// Reads a pack completely; returns its faults.
fn check_pack_content(vault: &Vault, pack: &StoredPack) -> Result<Vec<String>> {
    let fault = |text: &str| Ok(vec![format!("the pack `{}`: {text}", pack.id)]);
    let bytes = match vault.files().backend().read(VaultFileKind::Pack, &pack.id) {
        Ok(bytes) => bytes,
        Err(error) if is_data_lost(&error) => return fault(&error.to_string()),
        Err(error) => return Err(Error::backend("read", VaultFileKind::Pack, &pack.id)(error)),
    };
    if VaultObjectId::of(&bytes) != pack.id {
        return fault("its content does not match the hash in its name");
    }
    let Some(header) = vault.open_pack_header(&bytes) else {
        return fault("its header is damaged");
    };
    let facts =
        |blob: &crate::vault::pack_blob::StoredBlob| (blob.id, blob.kind, blob.offset, blob.length);
    let mut listed: Vec<_> = pack.blobs.iter().map(facts).collect();
    listed.sort_by_key(|(_, _, offset, _)| *offset);
    if header.iter().map(facts).ne(listed) {
        return fault("the index lists different pieces than the pack contains");
    }
    let mut faults = Vec::new();
    for blob in &header {
        let (begin, end) = (blob.offset as usize, blob.offset as usize + blob.length as usize);
        let sealed = bytes.get(begin..end).unwrap_or_default().to_vec();
        if let Err(error) = vault.sealing().open_stored_blob(blob, sealed) {
            faults.push(format!("the pack `{}`: {error}", pack.id));
        }
    }
    Ok(faults)
}

impl Vault {
    /// Reads the header at the end of a pack; `None` if it is damaged.
    pub(crate) fn open_pack_header(
        &self,
        bytes: &[u8],
    ) -> Option<Vec<crate::vault::pack_blob::StoredBlob>> {
        let (_, header) = split_pack(bytes)?;
        let header = self.sealing().open_bytes(header.to_vec())?;
        parse_pack_header(&header)
    }
}

/// Splits a pack into its blobs and its sealed header; `None` if it has no header.
pub(crate) fn split_pack(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, length) = bytes.split_last_chunk::<4>()?;
    let start = rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
    rest.split_at_checked(start)
}
