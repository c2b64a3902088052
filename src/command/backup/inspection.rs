//! `tympan backup list`, `ls`, `find`, `diff` and `dump`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_backup::{
    ClientFilter, Error, ExcludeRules, IndexedVault, SnapshotNode, SnapshotNodeKind, Vault,
    VaultIndex, VaultSnapshot, find_path, is_internal_tag, walk_tree,
};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::{backup_fault, vault_session};
use crate::args::backup::{SnapshotClientArgs, VaultArgs};

/// The vault, and the clients whose snapshots are searched.
type VaultSelection<'a> = (&'a VaultArgs, &'a SnapshotClientArgs);

/// Lists the snapshots.
pub(super) fn list_snapshots(
    arguments: &VaultArgs,
    clients: &SnapshotClientArgs,
) -> CommandOutcome {
    let clients = vault_session::selected_clients(clients);
    let vault = vault_session::open_vault(arguments)?.vault;
    let (snapshots, faults) = vault.read_readable_snapshots().map_err(backup_fault)?;
    let (own, others): (Vec<VaultSnapshot>, Vec<VaultSnapshot>) =
        snapshots.into_iter().partition(|snapshot| clients.includes(snapshot));
    for snapshot in own {
        if arguments.json {
            say!("{}", snapshot_json(&snapshot));
            continue;
        }
        let VaultSnapshot { id, time, hostname, paths, .. } = &snapshot;
        let tags = snapshot.tags().iter().filter(|tag| !is_internal_tag(tag));
        let tags: String = tags.map(|tag| format!(" [{tag}]")).collect();
        say!("{} {time} {hostname} {}{tags}", id.short(), paths.join(", "));
    }
    if !others.is_empty() && !arguments.json {
        say!(
            "{} snapshots of other clients are not listed (`--all-clients` lists them)",
            others.len()
        );
    }
    faults.into_iter().next().map_or(Ok(ExitCode::SUCCESS), |fault| Err(backup_fault(fault)))
}

/// Lists the clients that share a vault.
pub(super) fn list_clients(arguments: &VaultArgs) -> CommandOutcome {
    let vault = vault_session::open_vault(arguments)?.vault;
    let (snapshots, faults) = vault.read_readable_snapshots().map_err(backup_fault)?;
    let mut clients: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for snapshot in &snapshots {
        let (count, last) = clients.entry(&snapshot.hostname).or_default();
        // Snapshots are sorted from old to new.
        (*count, *last) = (*count + 1, &snapshot.time);
    }
    for (name, (count, last)) in clients {
        if arguments.json {
            say!("{}", json!({ "client": name, "snapshots": count, "last": last }));
        } else {
            say!("{name}: {count} snapshots, the latest from {last}");
        }
    }
    faults.into_iter().next().map_or(Ok(ExitCode::SUCCESS), |fault| Err(backup_fault(fault)))
}

/// Prints the size of the snapshots' contents, and of the vault.
pub(super) fn print_snapshot_stats(
    (arguments, clients): VaultSelection<'_>,
    names: &[String],
) -> CommandOutcome {
    let clients = vault_session::selected_clients(clients);
    let (vault, index) = load_vault(arguments)?;
    let snapshots = if names.is_empty() {
        let mut snapshots = vault.read_snapshots().map_err(backup_fault)?;
        snapshots.retain(|snapshot| clients.includes(snapshot));
        snapshots
    } else {
        let run_snapshots = names.iter().map(|name| vault.find_run_snapshots(name, &clients));
        run_snapshots
            .collect::<Result<Vec<_>, _>>()
            .map_err(backup_fault)?
            .into_iter()
            .flatten()
            .collect()
    };
    let stats = tympan_backup::compute_vault_stats(IndexedVault::new(&vault, &index), &snapshots)
        .map_err(backup_fault)?;
    if arguments.json {
        say!("{}", serde_json::to_string(&stats).unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = indicatif::HumanBytes;
    say!(
        "{} snapshots would restore {} items, {}",
        stats.snapshots,
        stats.items,
        bytes(stats.restored_bytes)
    );
    say!(
        "the vault contains {} pieces and {} folders, {}, stored in {}: {:.2} to 1",
        stats.pieces,
        stats.folders,
        bytes(stats.plain_bytes),
        bytes(stats.stored_bytes),
        stats.compression_ratio()
    );
    say!("{} packs take {}", stats.packs, bytes(stats.pack_bytes));
    Ok(ExitCode::SUCCESS)
}

fn snapshot_json(snapshot: &VaultSnapshot) -> serde_json::Value {
    let mut value = serde_json::to_value(snapshot).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("id".to_owned(), json!(snapshot.id.to_string()));
        object.insert("short_id".to_owned(), json!(snapshot.id.short()));
    }
    value
}

fn load_vault(arguments: &VaultArgs) -> Result<(std::sync::Arc<Vault>, VaultIndex), CommandFault> {
    let vault = vault_session::open_vault(arguments)?.vault;
    let index = VaultIndex::load(&vault).map_err(backup_fault)?;
    Ok((vault, index))
}

/// Finds a path in a snapshot; for `latest`, in the first snapshot of the last save that has it.
fn find_snapshot_node(
    IndexedVault { vault, index }: IndexedVault<'_>,
    snapshot: &str,
    clients: &SnapshotClientArgs,
    path: &str,
) -> Result<SnapshotNode, CommandFault> {
    let together = vault
        .find_run_snapshots(snapshot, &vault_session::selected_clients(clients))
        .map_err(backup_fault)?;
    let mut missing = None;
    for snapshot in &together {
        match find_path(vault, index, snapshot, path) {
            Err(error @ Error::PathMissing { .. }) => missing = Some(error),
            node => return node.map_err(backup_fault),
        }
    }
    let none = || Error::SnapshotMissing { name: snapshot.to_owned() };
    Err(backup_fault(missing.unwrap_or_else(none)))
}

fn print_node(path: &str, node: &SnapshotNode, json: bool) {
    if json {
        say!(
            "{}",
            json!({
                "path": path, "type": node.kind, "size": node.size, "mode": node.mode, "mtime": node.mtime,
                "uid": node.uid, "gid": node.gid,
            })
        );
    } else {
        let end = if node.kind == SnapshotNodeKind::Dir { "/" } else { "" };
        say!(
            "{:04o} {:>5} {:>5} {:>12} {path}{end}",
            node.mode & 0o777,
            node.uid,
            node.gid,
            node.size
        );
    }
}

/// Lists the contents below a path.
pub(super) fn list_snapshot_path(
    (arguments, clients): VaultSelection<'_>,
    snapshot: &str,
    path: &str,
) -> CommandOutcome {
    let (vault, index) = load_vault(arguments)?;
    let node = find_snapshot_node(IndexedVault::new(&vault, &index), snapshot, clients, path)?;
    let above = path.trim_end_matches('/');
    let Some(tree) = &node.subtree else {
        print_node(above, &node, arguments.json);
        return Ok(ExitCode::SUCCESS);
    };
    walk_tree(IndexedVault::new(&vault, &index), tree, Path::new(above), &mut |path, node| {
        print_node(&path.to_string_lossy(), node, arguments.json);
        Ok(())
    })
    .map_err(backup_fault)?;
    Ok(ExitCode::SUCCESS)
}

/// Finds names in all snapshots of the clients. Exit code 1 if there is no match.
pub(super) fn find_names(
    (arguments, clients): VaultSelection<'_>,
    pattern: &str,
) -> CommandOutcome {
    let clients = vault_session::selected_clients(clients);
    let (vault, index) = load_vault(arguments)?;
    let pattern = ExcludeRules::new(vec![pattern.to_owned()]).map_err(backup_fault)?;
    let mut has_match = false;
    let snapshots = vault.read_snapshots().map_err(backup_fault)?;
    for snapshot in snapshots.iter().filter(|snapshot| clients.includes(snapshot)) {
        let mut is_heading_printed = false;
        walk_tree(
            IndexedVault::new(&vault, &index),
            &snapshot.tree,
            Path::new("/"),
            &mut |path, node| {
                if pattern.contains(path) {
                    let path = path.to_string_lossy();
                    if !is_heading_printed && !arguments.json {
                        say!("in {} of {}:", snapshot.id.short(), snapshot.time);
                    }
                    (is_heading_printed, has_match) = (true, true);
                    if arguments.json {
                        say!("{}", json!({ "snapshot": snapshot.id.to_string(), "path": path }));
                    } else {
                        print_node(&path, node, false);
                    }
                }
                Ok(())
            },
        )
        .map_err(backup_fault)?;
    }
    Ok(if has_match { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Finds the two snapshots to compare. `latest` stands for all snapshots of one save: of these, the one with the paths
/// of the other snapshot is used.
fn find_snapshot_pair(
    vault: &Vault,
    old: &str,
    new: &str,
    clients: &ClientFilter,
) -> Result<(VaultSnapshot, VaultSnapshot), CommandFault> {
    let old_ones = vault.find_run_snapshots(old, clients).map_err(backup_fault)?;
    let new_ones = vault.find_run_snapshots(new, clients).map_err(backup_fault)?;
    if let ([old], [new]) = (&*old_ones, &*new_ones) {
        return Ok((old.clone(), new.clone()));
    }
    let pair = old_ones.iter().find_map(|old| {
        let alike = new_ones.iter().find(|new| new.paths == old.paths);
        alike.map(|new| (old.clone(), new.clone()))
    });
    pair.ok_or_else(|| {
        let several = if old_ones.len() > 1 { &old_ones } else { &new_ones };
        let named = several.iter().map(|snapshot| format!("`{}` of {}", snapshot.id.short(), snapshot.paths.join(", ")));
        let named: Vec<String> = named.collect();
        CommandFault::usage(format!(
            "several snapshots were saved together, and none has the same paths as the other snapshot: name \
             one of {}",
            named.join("; ")
        ))
    })
}

/// Prints the differences between two snapshots.
pub(super) fn diff_snapshots(
    (arguments, clients): VaultSelection<'_>,
    old: &str,
    new: &str,
) -> CommandOutcome {
    let clients = vault_session::selected_clients(clients);
    let (vault, index) = load_vault(arguments)?;
    let (old, new) = find_snapshot_pair(&vault, old, new, &clients)?;
    let mut differences = Vec::new();
    tympan_backup::diff_trees(
        IndexedVault::new(&vault, &index),
        (&old.tree, &new.tree),
        "",
        &mut differences,
    )
    .map_err(backup_fault)?;
    for difference in &differences {
        if arguments.json {
            say!(
                "{}",
                json!({ "modifier": difference.change.sign().to_string(), "path": difference.path })
            );
        } else {
            say!("{}    {}", difference.change.sign(), difference.path);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file to standard output.
pub(super) fn dump_file(
    (arguments, clients): VaultSelection<'_>,
    snapshot: &str,
    path: &str,
) -> CommandOutcome {
    let (vault, index) = load_vault(arguments)?;
    let node = find_snapshot_node(IndexedVault::new(&vault, &index), snapshot, clients, path)?;
    let mut out = std::io::stdout().lock();
    tympan_backup::write_file_content(IndexedVault::new(&vault, &index), &node, &mut out)
        .map_err(backup_fault)?;
    Ok(ExitCode::SUCCESS)
}
