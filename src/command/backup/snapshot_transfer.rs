//! `tympan backup copy` and `tag`.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tympan_backup::{
    BackupProgress, ClientFilter, IndexedVault, SaveSession, TagChange, Vault, VaultIndex,
    VaultLockMode, VaultSnapshot, change_tags, copy_snapshot,
};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::{ProgressDisplay, backup_fault, vault_session};
use crate::args::backup::{CopySnapshotsArgs, TagSnapshotsArgs, VaultArgs};

/// Finds the named snapshots; all snapshots of the clients if none is named.
fn find_snapshots(
    vault: &Vault,
    names: &[String],
    clients: &ClientFilter,
) -> Result<Vec<VaultSnapshot>, CommandFault> {
    if names.is_empty() {
        let mut all = vault.read_snapshots().map_err(backup_fault)?;
        all.retain(|snapshot| clients.includes(snapshot));
        return Ok(all);
    }
    let run_snapshots =
        names.iter().map(|name| vault.find_run_snapshots(name, clients).map_err(backup_fault));
    Ok(run_snapshots.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Copies snapshots from another vault.
pub(super) fn copy_snapshots(arguments: &CopySnapshotsArgs) -> CommandOutcome {
    let vault = &arguments.vault;
    let is_other_password =
        arguments.from_password_file.is_some() || arguments.from_password_command.is_some();
    let from = VaultArgs {
        vault: arguments.from_vault.clone(),
        ..match is_other_password {
            true => VaultArgs {
                password_file: arguments.from_password_file.clone(),
                password_command: arguments.from_password_command.clone(),
                ..vault.clone()
            },
            false => vault.clone(),
        }
    };
    let from = vault_session::open_vault(&from)?;
    let _kept = from.lock(VaultLockMode::Shared)?;
    let from_index = VaultIndex::load(&from.vault).map_err(backup_fault)?;
    let clients = vault_session::selected_clients(&arguments.clients);
    let snapshots = find_snapshots(&from.vault, &arguments.snapshots, &clients)?;
    let to = vault_session::open_vault(vault)?;
    let lock = to.lock(VaultLockMode::Shared)?;
    let progress = Arc::new(BackupProgress::default());
    let watch = ProgressDisplay::start(&progress, vault.json);
    let mut said = Vec::new();
    for snapshot in &snapshots {
        // The index now also lists the data that an earlier copy brought.
        let index = Arc::new(VaultIndex::load(&to.vault).map_err(backup_fault)?);
        let session = SaveSession::new(&to.vault, &index, &lock, &progress);
        let copied = copy_snapshot(IndexedVault::new(&from.vault, &from_index), snapshot, &session);
        said.push((snapshot, copied.map_err(backup_fault)?));
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
            (None, false) => say!("{} of {paths} is already present", old.short()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes the tags of snapshots.
pub(super) fn tag_snapshots(arguments: &TagSnapshotsArgs) -> CommandOutcome {
    let opened = vault_session::open_vault(&arguments.vault)?;
    let lock = opened.lock(VaultLockMode::Exclusive)?;
    let clients = vault_session::selected_clients(&arguments.clients);
    let change = if arguments.set.is_empty() {
        TagChange::Edit { add: arguments.add.clone(), remove: arguments.remove.clone() }
    } else {
        // As in restic, an empty tag removes all tags.
        TagChange::Set(arguments.set.iter().filter(|tag| !tag.is_empty()).cloned().collect())
    };
    let mut changed = 0;
    for snapshot in find_snapshots(&opened.vault, &arguments.snapshots, &clients)? {
        let new = change_tags(&opened.vault, &lock, &snapshot, &change).map_err(backup_fault)?;
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
        say!("changed the tags of {changed} snapshots");
    }
    Ok(ExitCode::SUCCESS)
}
