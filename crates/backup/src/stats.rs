//! Statistics of a vault: the size of the snapshots when restored, and the space that they take.

use std::collections::HashMap;

use serde::Serialize;

use crate::backend::VaultFileKind;
use crate::deep_stack;
use crate::error::Result;
use crate::object_id::VaultObjectId;
use crate::vault::IndexedVault;
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::snapshot::VaultSnapshot;

/// The statistics of a vault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VaultStats {
    /// The number of counted snapshots.
    pub snapshots: u64,
    /// The number of files, folders and other nodes that restoring each of the snapshots would create.
    pub items: u64,
    /// The number of bytes that restoring each of the snapshots would write; a hard-linked file counts under each name.
    pub restored_bytes: u64,
    /// The number of distinct pieces of files in the vault.
    pub pieces: u64,
    /// The number of distinct folders in the vault.
    pub folders: u64,
    /// The plain bytes of pieces and folders.
    pub plain_bytes: u64,
    /// The compressed and sealed bytes of pieces and folders.
    pub stored_bytes: u64,
    /// The number of packs, including unused ones.
    pub packs: u64,
    /// The bytes of all packs.
    pub pack_bytes: u64,
}

impl VaultStats {
    /// Returns the ratio of plain bytes to stored bytes.
    #[must_use]
    pub fn compression_ratio(&self) -> f64 {
        self.plain_bytes as f64 / self.stored_bytes.max(1) as f64
    }
}

/// The numbers of items and bytes below a folder.
type FolderTotals = (u64, u64);

/// Computes the statistics of snapshots and of the vault. A folder that several snapshots share is read once.
///
/// # Errors
/// A folder that cannot be read, or a backend that cannot be listed.
pub fn compute_vault_stats(
    IndexedVault { vault, index }: IndexedVault<'_>,
    snapshots: &[VaultSnapshot],
) -> Result<VaultStats> {
    let packs = vault.files().list(VaultFileKind::Pack)?;
    let mut stats = VaultStats {
        packs: packs.len() as u64,
        pack_bytes: packs.iter().map(|(_, length)| length).sum(),
        ..VaultStats::default()
    };
    for kind in [PackBlobKind::Data, PackBlobKind::Tree] {
        let (count, plain, stored) = index.totals(kind);
        stats.plain_bytes += plain;
        stats.stored_bytes += stored;
        *if kind == PackBlobKind::Data { &mut stats.pieces } else { &mut stats.folders } += count;
    }
    let mut totals_by_folder = HashMap::new();
    for snapshot in snapshots {
        let (items, bytes) = deep_stack::run_on_deep_stack(|| {
            count_folder(IndexedVault::new(vault, index), &snapshot.tree, 0, &mut totals_by_folder)
        })?;
        stats.snapshots += 1;
        stats.items += items;
        stats.restored_bytes += bytes;
    }
    Ok(stats)
}

fn count_folder(
    IndexedVault { vault, index }: IndexedVault<'_>,
    tree: &VaultObjectId,
    depth: usize,
    totals_by_folder: &mut HashMap<VaultObjectId, FolderTotals>,
) -> Result<FolderTotals> {
    if let Some(below) = totals_by_folder.get(tree) {
        return Ok(*below);
    }
    deep_stack::check_folder_depth(depth, tree)?;
    let (mut items, mut bytes) = (0, 0);
    for node in vault.read_tree(index, tree)?.nodes {
        items += 1;
        bytes += node.size;
        if let Some(inner) = &node.subtree {
            let (more, size) =
                count_folder(IndexedVault::new(vault, index), inner, depth + 1, totals_by_folder)?;
            items += more;
            bytes += size;
        }
    }
    totals_by_folder.insert(*tree, (items, bytes));
    Ok((items, bytes))
}
