//! The snapshots of one save, as the parts of a restore.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::inspection::find_path;
use crate::vault::IndexedVault;
use crate::vault::node::SnapshotNode;
use crate::vault::snapshot::VaultSnapshot;

/// Finds the snapshot of a repository among the snapshots of one save.
///
/// # Errors
/// [`Error::InvalidRequest`] if there is none, or more than one.
pub fn find_repository_snapshot(together: &[VaultSnapshot]) -> Result<&VaultSnapshot> {
    let mut repositories = together.iter().filter(|snapshot| snapshot.repository_root().is_some());
    match (repositories.next(), repositories.next(), together) {
        (Some(snapshot), None, _) | (None, _, [snapshot]) => Ok(snapshot),
        (Some(_), Some(_), _) => {
            let named = together.iter().filter(|snapshot| snapshot.repository_root().is_some());
            let named: Vec<String> = named
                .map(|snapshot| {
                    format!("`{}` of {}", snapshot.id.short(), snapshot.paths.join(", "))
                })
                .collect();
            Err(Error::InvalidRequest(format!(
                "several repositories were saved together: name one of {}",
                named.join("; ")
            )))
        }
        (None, ..) => Err(Error::InvalidRequest(
            "no repository was saved in this run; restore its folders with `--to`".to_owned(),
        )),
    }
}

/// Finds the parts of the snapshots of one save to restore, and the folder of each below the target. If there are
/// several, a repository gets a folder named after its path: all repositories have the same names inside.
///
/// # Errors
/// [`Error::PathMissing`] if no snapshot has the path; otherwise if the vault cannot be read.
pub fn find_restorable_parts(
    IndexedVault { vault, index }: IndexedVault<'_>,
    together: &[VaultSnapshot],
    path: &str,
) -> Result<Vec<(SnapshotNode, PathBuf)>> {
    let mut parts = Vec::new();
    let is_whole = path.trim_matches('/').is_empty();
    let mut missing = None;
    for snapshot in together {
        let node = match find_path(vault, index, snapshot, path) {
            Ok(node) => node,
            Err(error @ Error::PathMissing { .. }) => {
                missing = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let is_apart = together.len() > 1 && is_whole && snapshot.repository_root().is_some();
        let apart = snapshot.paths.first().filter(|_| is_apart);
        let folder = apart.map_or("", |path| path.trim_start_matches('/'));
        parts.push((node, PathBuf::from(folder)));
    }
    // A path applies to one snapshot; folders come first, because users name files in these.
    parts.truncate(if is_whole { parts.len() } else { 1 });
    match (parts.is_empty(), missing) {
        (true, Some(error)) => Err(error),
        _ => Ok(parts),
    }
}
