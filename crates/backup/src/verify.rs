//! Comparing a snapshot of folders with the current files, byte by byte.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::VaultObjectId;
use crate::backup_progress::BackupProgress;
use crate::error::{Error, Result};
use crate::fault::BackupFault;
use crate::inspection::walk_tree;
use crate::vault::IndexedVault;
use crate::vault::index::VaultIndex;
use crate::vault::node::{SnapshotNode, SnapshotNodeKind};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::snapshot::VaultSnapshot;

/// Compares the files of a snapshot with the current files at their paths, and returns the differences. Newer files are
/// not reported.
///
/// # Errors
/// If the vault cannot be read, or the run was asked to stop.
pub fn verify_snapshot(
    IndexedVault { vault, index }: IndexedVault<'_>,
    snapshot: &VaultSnapshot,
    progress: &BackupProgress,
) -> Result<Vec<BackupFault>> {
    let mut faults = Vec::new();
    walk_tree(
        IndexedVault::new(vault, index),
        &snapshot.tree,
        Path::new("/"),
        &mut |path, node| {
            progress.check_running()?;
            progress.add_done(1, node.size);
            if let Some(message) = find_difference(index, path, node)? {
                faults.push(BackupFault { path: path.to_owned(), message });
            }
            Ok(())
        },
    )?;
    Ok(faults)
}

fn find_difference(index: &VaultIndex, path: &Path, node: &SnapshotNode) -> Result<Option<String>> {
    let Ok(facts) = fs::symlink_metadata(path) else {
        return Ok(Some("it no longer exists".to_owned()));
    };
    let difference = |text: &str| Ok(Some(text.to_owned()));
    match node.kind {
        SnapshotNodeKind::File if !facts.is_file() => difference("it is no longer a file"),
        SnapshotNodeKind::File if facts.len() != node.size => difference("its length differs"),
        SnapshotNodeKind::File => compare_content(index, path, node),
        SnapshotNodeKind::Symlink => {
            use std::os::unix::ffi::OsStrExt;
            let target = fs::read_link(path);
            if target.is_ok_and(|target| target.as_os_str().as_bytes() == node.target()) {
                return Ok(None);
            }
            difference("its target differs")
        }
        _ => Ok(None),
    }
}

fn compare_content(index: &VaultIndex, path: &Path, node: &SnapshotNode) -> Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return Ok(Some(error.to_string())),
    };
    for id in node.content.iter().flatten() {
        let length =
            index.plain_length(PackBlobKind::Data, id).ok_or_else(|| Error::UnreadableBlob {
                what: "piece",
                id: *id,
                fault: "it is not in any index".to_owned(),
            })?;
        let mut bytes = Vec::new();
        if let Err(error) = (&mut file).take(length).read_to_end(&mut bytes) {
            return Ok(Some(error.to_string()));
        }
        if VaultObjectId::of(&bytes) != *id {
            return Ok(Some("its content differs".to_owned()));
        }
    }
    Ok(None)
}
