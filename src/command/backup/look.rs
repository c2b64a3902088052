//! `tympan backup list`, `ls`, `find`, `diff` and `dump`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_backup::{
    Clients, Error, Excludes, Index, Node, NodeKind, Snapshot, Vault, find_path, is_for_programs,
    walk,
};

use super::{failed, open};
use crate::args::backup::{ClientArguments, VaultArguments};
use crate::command::{Fault, Outcome};
use crate::say;

/// In which vault to look, and at whose snapshots.
type Where<'a> = (&'a VaultArguments, &'a ClientArguments);

/// Lists the snapshots.
pub(super) fn list(arguments: &VaultArguments, clients: &ClientArguments) -> Outcome {
    let clients = open::clients(clients);
    let vault = open::open(arguments)?.vault;
    let (snapshots, faults) = vault.readable_snapshots().map_err(failed)?;
    let (own, others): (Vec<Snapshot>, Vec<Snapshot>) =
        snapshots.into_iter().partition(|snapshot| clients.include(snapshot));
    for snapshot in own {
        if arguments.json {
            say!("{}", json_of(&snapshot));
            continue;
        }
        let Snapshot { id, time, hostname, paths, .. } = &snapshot;
        let tags = snapshot.tags().iter().filter(|tag| !is_for_programs(tag));
        let tags: String = tags.map(|tag| format!(" [{tag}]")).collect();
        say!("{} {time} {hostname} {}{tags}", id.short(), paths.join(", "));
    }
    if !others.is_empty() && !arguments.json {
        say!("{} snapshots of other clients are there too (`--all-clients`)", others.len());
    }
    faults.into_iter().next().map_or(Ok(ExitCode::SUCCESS), |fault| Err(failed(fault)))
}

/// Lists the clients that share a vault.
pub(super) fn clients(arguments: &VaultArguments) -> Outcome {
    let vault = open::open(arguments)?.vault;
    let (snapshots, faults) = vault.readable_snapshots().map_err(failed)?;
    let mut clients: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for snapshot in &snapshots {
        let (count, last) = clients.entry(&snapshot.hostname).or_default();
        // They come oldest first.
        (*count, *last) = (*count + 1, &snapshot.time);
    }
    for (name, (count, last)) in clients {
        if arguments.json {
            say!("{}", json!({ "client": name, "snapshots": count, "last": last }));
        } else {
            say!("{name}: {count} snapshots, the last of {last}");
        }
    }
    faults.into_iter().next().map_or(Ok(ExitCode::SUCCESS), |fault| Err(failed(fault)))
}

/// Counts what snapshots hold, and what the vault does.
pub(super) fn stats((arguments, clients): Where<'_>, names: &[String]) -> Outcome {
    let clients = open::clients(clients);
    let (vault, index) = load(arguments)?;
    let snapshots = if names.is_empty() {
        let mut snapshots = vault.snapshots().map_err(failed)?;
        snapshots.retain(|snapshot| clients.include(snapshot));
        snapshots
    } else {
        let found = names.iter().map(|name| vault.find_saved_together(name, &clients));
        found.collect::<Result<Vec<_>, _>>().map_err(failed)?.into_iter().flatten().collect()
    };
    let stats = tympan_backup::stats((&vault, &index), &snapshots).map_err(failed)?;
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
        "the vault holds {} pieces and {} folders, {}, stored in {}: {:.2} to 1",
        stats.pieces,
        stats.folders,
        bytes(stats.plain_bytes),
        bytes(stats.stored_bytes),
        stats.compression()
    );
    say!("{} packs take {}", stats.packs, bytes(stats.pack_bytes));
    Ok(ExitCode::SUCCESS)
}

fn json_of(snapshot: &Snapshot) -> serde_json::Value {
    let mut value = serde_json::to_value(snapshot).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("id".to_owned(), json!(snapshot.id.to_string()));
        object.insert("short_id".to_owned(), json!(snapshot.id.short()));
    }
    value
}

fn load(arguments: &VaultArguments) -> Result<(std::sync::Arc<Vault>, Index), Fault> {
    let vault = open::open(arguments)?.vault;
    let index = Index::load(&vault).map_err(failed)?;
    Ok((vault, index))
}

/// Finds a path in a snapshot; for `latest`, in the first of those that were saved together which has it.
fn find_at(
    (vault, index): (&Vault, &Index),
    (snapshot, clients): (&str, &ClientArguments),
    path: &str,
) -> Result<Node, Fault> {
    let together = vault.find_saved_together(snapshot, &open::clients(clients)).map_err(failed)?;
    let mut missing = None;
    for snapshot in &together {
        match find_path(vault, index, snapshot, path) {
            Err(error @ Error::PathMissing { .. }) => missing = Some(error),
            node => return node.map_err(failed),
        }
    }
    let none = || Error::SnapshotMissing { name: snapshot.to_owned() };
    Err(failed(missing.unwrap_or_else(none)))
}

fn tell(path: &str, node: &Node, json: bool) {
    if json {
        say!(
            "{}",
            json!({
                "path": path, "type": node.kind, "size": node.size, "mode": node.mode, "mtime": node.mtime,
                "uid": node.uid, "gid": node.gid,
            })
        );
    } else {
        let end = if node.kind == NodeKind::Dir { "/" } else { "" };
        say!(
            "{:04o} {:>5} {:>5} {:>12} {path}{end}",
            node.mode & 0o777,
            node.uid,
            node.gid,
            node.size
        );
    }
}

/// Lists what is below a path.
pub(super) fn ls((arguments, clients): Where<'_>, snapshot: &str, path: &str) -> Outcome {
    let (vault, index) = load(arguments)?;
    let node = find_at((&vault, &index), (snapshot, clients), path)?;
    let above = path.trim_end_matches('/');
    let Some(tree) = &node.subtree else {
        tell(above, &node, arguments.json);
        return Ok(ExitCode::SUCCESS);
    };
    walk((&vault, &index), tree, Path::new(above), &mut |path, node| {
        tell(&path.to_string_lossy(), node, arguments.json);
        Ok(())
    })
    .map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// Finds names in all snapshots of the clients. Exit code 1 if there is none.
pub(super) fn find((arguments, clients): Where<'_>, pattern: &str) -> Outcome {
    let clients = open::clients(clients);
    let (vault, index) = load(arguments)?;
    let pattern = Excludes::new(vec![pattern.to_owned()]).map_err(failed)?;
    let mut found = false;
    let snapshots = vault.snapshots().map_err(failed)?;
    for snapshot in snapshots.iter().filter(|snapshot| clients.include(snapshot)) {
        let mut begun = false;
        walk((&vault, &index), &snapshot.tree, Path::new("/"), &mut |path, node| {
            if pattern.contains(path) {
                let path = path.to_string_lossy();
                if !begun && !arguments.json {
                    say!("in {} of {}:", snapshot.id.short(), snapshot.time);
                }
                (begun, found) = (true, true);
                if arguments.json {
                    say!("{}", json!({ "snapshot": snapshot.id.to_string(), "path": path }));
                } else {
                    tell(&path, node, false);
                }
            }
            Ok(())
        })
        .map_err(failed)?;
    }
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Finds the two snapshots to compare. `latest` is all that one save has made: of that, what has the paths of the other one.
fn find_pair(
    vault: &Vault,
    (old, new): (&str, &str),
    clients: &Clients,
) -> Result<(Snapshot, Snapshot), Fault> {
    let old_ones = vault.find_saved_together(old, clients).map_err(failed)?;
    let new_ones = vault.find_saved_together(new, clients).map_err(failed)?;
    if let ([old], [new]) = (&*old_ones, &*new_ones) {
        return Ok((old.clone(), new.clone()));
    }
    let pair = old_ones.iter().find_map(|old| {
        let alike = new_ones.iter().find(|new| new.paths == old.paths);
        alike.map(|new| (old.clone(), new.clone()))
    });
    pair.ok_or_else(|| {
        let several = if old_ones.len() > 1 { &old_ones } else { &new_ones };
        let named = several.iter().map(|one| format!("`{}` of {}", one.id.short(), one.paths.join(", ")));
        let named: Vec<String> = named.collect();
        Fault::usage(format!(
            "several snapshots were saved together, and none is of the same paths as the other one: name one of {}",
            named.join("; ")
        ))
    })
}

/// Tells how two snapshots differ.
pub(super) fn diff((arguments, clients): Where<'_>, old: &str, new: &str) -> Outcome {
    let clients = open::clients(clients);
    let (vault, index) = load(arguments)?;
    let (old, new) = find_pair(&vault, (old, new), &clients)?;
    let mut found = Vec::new();
    tympan_backup::diff((&vault, &index), (&old.tree, &new.tree), "", &mut found)
        .map_err(failed)?;
    for one in &found {
        if arguments.json {
            say!("{}", json!({ "modifier": one.change.sign().to_string(), "path": one.path }));
        } else {
            say!("{}    {}", one.change.sign(), one.path);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file to standard output.
pub(super) fn dump((arguments, clients): Where<'_>, snapshot: &str, path: &str) -> Outcome {
    let (vault, index) = load(arguments)?;
    let node = find_at((&vault, &index), (snapshot, clients), path)?;
    let mut out = std::io::stdout().lock();
    tympan_backup::dump((&vault, &index), &node, &mut out).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
