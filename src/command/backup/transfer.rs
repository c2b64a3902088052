//! `tympan backup copy` and `tag`.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tympan_backup::{
    Clients, Index, LockMode, Progress, Session, Snapshot, TagChange, Vault, change_tags,
    copy_snapshot,
};

use super::{Watch, failed, open};
use crate::args::backup::{CopySnapshots, Tag, VaultArguments};
use crate::command::{Fault, Outcome};
use crate::say;

/// Finds the snapshots that are named; all of the clients if none is.
fn chosen(vault: &Vault, names: &[String], clients: &Clients) -> Result<Vec<Snapshot>, Fault> {
    if names.is_empty() {
        let mut all = vault.snapshots().map_err(failed)?;
        all.retain(|snapshot| clients.include(snapshot));
        return Ok(all);
    }
    let found = names.iter().map(|name| vault.find_saved_together(name, clients).map_err(failed));
    Ok(found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Copies snapshots from another vault.
pub(super) fn copy(arguments: &CopySnapshots) -> Outcome {
    let vault = &arguments.vault;
    let is_other_password =
        arguments.from_password_file.is_some() || arguments.from_password_command.is_some();
    let from = VaultArguments {
        vault: arguments.from_vault.clone(),
        ..match is_other_password {
            true => VaultArguments {
                password_file: arguments.from_password_file.clone(),
                password_command: arguments.from_password_command.clone(),
                ..vault.clone()
            },
            false => vault.clone(),
        }
    };
    let from = open::open(&from)?;
    let _kept = from.lock(LockMode::Shared)?;
    let from_index = Index::load(&from.vault).map_err(failed)?;
    let clients = open::clients(&arguments.clients);
    let snapshots = chosen(&from.vault, &arguments.snapshots, &clients)?;
    let to = open::open(vault)?;
    let lock = to.lock(LockMode::Shared)?;
    let progress = Arc::new(Progress::default());
    let watch = Watch::begin(&progress, vault.json);
    let mut said = Vec::new();
    for snapshot in &snapshots {
        // What an earlier one has brought is listed by now.
        let index = Arc::new(Index::load(&to.vault).map_err(failed)?);
        let session = Session::new((&to.vault, &index), &lock, &progress);
        let copied = copy_snapshot((&from.vault, &from_index), snapshot, &session);
        said.push((snapshot, copied.map_err(failed)?));
    }
    drop(watch);
    for (snapshot, copied) in said {
        let (old, paths) = (snapshot.id, snapshot.paths.join(", "));
        match (copied, vault.json) {
            (Some((new, written)), true) => say!(
                "{}",
                json!({
                    "message_type": "copied", "from": old.to_string(), "id": new.to_string(),
                    "data_added_packed": written.stored_bytes,
                })
            ),
            (Some((new, written)), false) => say!(
                "copied {} of {paths} as {}: {} stored",
                old.short(),
                new.short(),
                indicatif::HumanBytes(written.stored_bytes)
            ),
            (None, true) => {
                say!("{}", json!({ "message_type": "present", "from": old.to_string() }));
            }
            (None, false) => say!("{} of {paths} is there already", old.short()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes the tags of snapshots.
pub(super) fn tag(arguments: &Tag) -> Outcome {
    let opened = open::open(&arguments.vault)?;
    let lock = opened.lock(LockMode::Exclusive)?;
    let clients = open::clients(&arguments.clients);
    let change = if arguments.set.is_empty() {
        TagChange::Edit { add: arguments.add.clone(), remove: arguments.remove.clone() }
    } else {
        // As for restic, an empty word takes all away.
        TagChange::Set(arguments.set.iter().filter(|word| !word.is_empty()).cloned().collect())
    };
    let mut changed = 0;
    for snapshot in chosen(&opened.vault, &arguments.snapshots, &clients)? {
        let new = change_tags(&opened.vault, &lock, &snapshot, &change).map_err(failed)?;
        let Some(new) = new else { continue };
        changed += 1;
        if arguments.vault.json {
            let (old, new) = (snapshot.id.to_string(), new.to_string());
            say!("{}", json!({ "message_type": "changed", "old_id": old, "new_id": new }));
        } else {
            say!("the snapshot {} is now {}", snapshot.id.short(), new.short());
        }
    }
    if arguments.vault.json {
        say!("{}", json!({ "message_type": "summary", "changed_snapshots": changed }));
    } else {
        say!("changed the words of {changed} snapshots");
    }
    Ok(ExitCode::SUCCESS)
}
