//! `tympan backup restore` and `verify`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tympan_backup::{
    BackupProgress, BaseStoreReference, ExcludeRules, ExistingFilePolicy, ImportReport,
    IndexedVault, MissingContentPolicy, OmittedCounts, RestoreOptions, RestoreReport,
    RestoreSelection, VaultIndex, VaultSnapshot, find_folder_base, find_repository_snapshot,
    find_restorable_parts, find_snapshot_base, import_folder, import_snapshot, read_home_files,
};
use tympan_home::BaseAccess;
use tympan_home_backup::{
    HomeFiller, HomeRestoration, RestoredHome, SnapshotVerification, restore_home, write_home_files,
};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::instance_access::{instance_access, read_credentials};
use super::{
    INCOMPLETE_EXIT_CODE, ProgressDisplay, backup_fault, home_backup_fault, vault_session,
};
use crate::args::backup::{
    BackupRestoreArgs, RepositoryInstanceArgs, SnapshotClientArgs, VaultArgs, VaultReadArgs,
};
use crate::home::home_access;

/// Restores into a folder, or creates a home.
pub(super) fn run_restore(arguments: &BackupRestoreArgs) -> CommandOutcome {
    if let (Some(folder), Some(home)) = (&arguments.unpacked, &arguments.home) {
        let progress = BackupProgress::default();
        let reference = find_folder_base(folder).map_err(backup_fault)?;
        return restore_to_home(home, arguments, reference.as_ref(), &mut |target, options| {
            import_folder(folder, target, (options, &progress))
        });
    }
    let from = &arguments.vault;
    let vault = VaultArgs {
        vault: from.vault.clone().unwrap_or_default(),
        password_file: from.password_file.clone(),
        password_command: from.password_command.clone(),
        retry_lock: from.retry_lock,
        json: from.json,
        place: from.place.clone(),
    };
    let opened = vault_session::open_vault(&vault)?;
    let _lock = opened.lock_for_reading(arguments.reading)?;
    let index = VaultIndex::load(&opened.vault).map_err(backup_fault)?;
    let clients = vault_session::selected_clients(&arguments.clients);
    let together = opened.vault.find_run_snapshots(&arguments.snapshot, &clients);
    let together = together.map_err(backup_fault)?;
    for fault in index.damaged_files() {
        print_index_damage(fault, vault.json);
    }
    let from = IndexedVault::new(&opened.vault, &index);
    match (&arguments.home, &arguments.to) {
        (Some(home), _) => restore_to_home_from_repository(home, arguments, from, &together),
        (None, Some(target)) => restore_to_folder(target, arguments, from, &together),
        (None, None) => Err(CommandFault::usage("name the folder to restore into with `--to`")),
    }
}

/// Creates a home from the repository among the snapshots of one save.
fn restore_to_home_from_repository(
    home: &Path,
    arguments: &BackupRestoreArgs,
    from: IndexedVault<'_>,
    together: &[VaultSnapshot],
) -> CommandOutcome {
    let json = arguments.vault.json;
    let progress = Arc::new(BackupProgress::default());
    let mut watch = Some(ProgressDisplay::start(&progress, json));
    let snapshot = find_repository_snapshot(together).map_err(backup_fault)?;
    let reference = find_snapshot_base(from, snapshot).map_err(backup_fault)?;
    let code = restore_to_home(home, arguments, reference.as_ref(), &mut |target, options| {
        let imported = import_snapshot(from, snapshot, target, (options, &progress));
        drop(watch.take());
        imported
    })?;
    let files = read_home_files(from, snapshot).map_err(backup_fault)?;
    let names = write_home_files(&home_access(), home, &files).map_err(home_backup_fault)?;
    print_restored_files(&names, json);
    Ok(code)
}

/// Restores the snapshots of one save into a folder.
fn restore_to_folder(
    target: &Path,
    arguments: &BackupRestoreArgs,
    from: IndexedVault<'_>,
    together: &[VaultSnapshot],
) -> CommandOutcome {
    let json = arguments.vault.json;
    let progress = Arc::new(BackupProgress::default());
    let watch = ProgressDisplay::start(&progress, json);
    let existing = match (arguments.in_place, arguments.delete) {
        (false, _) => ExistingFilePolicy::Refuse,
        (true, false) => ExistingFilePolicy::Replace,
        (true, true) => ExistingFilePolicy::Mirror,
    };
    let selection = restore_selection(arguments)?;
    let mut options = RestoreOptions { existing, selection, path: PathBuf::from(&arguments.path) };
    let parts = find_restorable_parts(from, together, &arguments.path);
    let parts = parts.map_err(backup_fault)?;
    if parts.len() > 1 && existing == ExistingFilePolicy::Mirror {
        return Err(CommandFault::usage(
            "several snapshots were saved together, and each would remove the files of the others: name one \
             of them, or a `--path`",
        ));
    }
    let mut restored = RestoreReport::default();
    for (node, folder) in parts {
        let target = target.join(folder);
        let part = tympan_backup::restore_snapshot(from, &node, &target, &options, &progress);
        restored.add(part.map_err(backup_fault)?);
        // Files that the first snapshot restored must not make the next one fail.
        if existing == ExistingFilePolicy::Refuse {
            options.existing = ExistingFilePolicy::Replace;
        }
    }
    drop(watch);
    print_restore_report(&restored, target, existing, json);
    let is_whole = restored.faults.is_empty() && from.index.damaged_files().is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE_EXIT_CODE) })
}

fn print_restore_report(
    restored: &RestoreReport,
    target: &Path,
    existing: ExistingFilePolicy,
    json: bool,
) {
    for fault in &restored.faults {
        if json {
            say!(
                "{}",
                json!({ "message_type": "error", "item": fault.path, "error": fault.message })
            );
        } else {
            say!("not restored: {fault}");
        }
    }
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "items": restored.items, "bytes": restored.written_bytes, "errors": restored.faults.len(),
                "removed": restored.removed_items,
            })
        );
        return;
    }
    say!(
        "restored {} items, {} written, into `{}`",
        restored.items,
        indicatif::HumanBytes(restored.written_bytes),
        target.display()
    );
    if existing == ExistingFilePolicy::Mirror {
        say!("removed {} items that the snapshot does not contain", restored.removed_items);
    }
    if restored.is_vault_damaged {
        say!(
            "parts of the vault are damaged: `tympan backup repair --read-data` recovers the intact data"
        );
    }
}

/// Reports a damaged index file, because of which data may be missing.
fn print_index_damage(fault: &tympan_backup::BackupFault, json: bool) {
    if json {
        say!("{}", json!({ "message_type": "error", "item": fault.path, "error": fault.message }));
    } else {
        say!("the vault is damaged: {fault}");
    }
}

/// Returns the part of a snapshot to restore.
fn restore_selection(arguments: &BackupRestoreArgs) -> Result<RestoreSelection, CommandFault> {
    let BackupRestoreArgs { include, iinclude, exclude, iexclude, .. } = arguments;
    let patterns = |exact: &[String], any_case: &[String]| {
        ExcludeRules::new(exact.to_vec())
            .and_then(|patterns| patterns.with_ignore_case_patterns(any_case))
            .map_err(backup_fault)
    };
    if !include.is_empty() || !iinclude.is_empty() {
        return Ok(RestoreSelection::Matching(patterns(include, iinclude)?));
    }
    if !exclude.is_empty() || !iexclude.is_empty() {
        return Ok(RestoreSelection::NotMatching(patterns(exclude, iexclude)?));
    }
    Ok(RestoreSelection::Everything)
}

/// Prints the files that a restored home has besides its repository.
fn print_restored_files(names: &[String], json: bool) {
    if json {
        say!("{}", json!({ "message_type": "home_files", "files": names }));
        return;
    }
    if !names.is_empty() {
        say!("with {}", names.join(", "));
    }
    if names.iter().any(|name| name.ends_with(".saved")) {
        say!(
            "`tympan.toml.saved` configured another location for the repository or its blobs; this home \
             stores them in its own folder: copy the settings that still apply"
        );
    }
    let state = if names.iter().any(|name| name == "state.db") { "" } else { ", jobs and logins" };
    say!(
        "not in the snapshot: earlier revisions that were not requested, data derived from content, \
         logs{state}"
    );
}

/// Creates a new home with the data of a backup: as a clone, if its source had a base.
fn restore_to_home(
    home: &Path,
    arguments: &BackupRestoreArgs,
    reference: Option<&BaseStoreReference>,
    fill: &mut HomeFiller<'_>,
) -> CommandOutcome {
    let missing = if arguments.allow_missing {
        MissingContentPolicy::Allow
    } else {
        MissingContentPolicy::Refuse
    };
    let base_access = reference.map(|_| base_access(arguments)).transpose()?.unwrap_or_default();
    let restoration = HomeRestoration {
        home: home.to_owned(),
        missing,
        base: arguments.base.clone(),
        base_access,
    };
    let restored = restore_home(&home_access(), &restoration, reference, fill);
    let restored = restored.map_err(home_backup_fault)?;
    Ok(print_restored_home(home, &restored, arguments.vault.json))
}

/// Returns how the base of a clone is accessed.
fn base_access(arguments: &BackupRestoreArgs) -> Result<BaseAccess, CommandFault> {
    let ca = arguments.ca.as_ref().map(std::fs::canonicalize).transpose();
    let ca_file = ca
        .map_err(|error| CommandFault::usage(format!("cannot read the file of `--ca`: {error}")))?;
    let credentials = read_credentials(arguments.key.as_deref(), arguments.token_file.as_deref())?;
    Ok(BaseAccess { credentials, ca_file, lease_dir: None })
}

fn print_restored_home(
    home: &Path,
    RestoredHome { imported, base }: &RestoredHome,
    json: bool,
) -> ExitCode {
    let ImportReport {
        root,
        branches,
        revision_count: revisions,
        chunk_count: chunks,
        blob_count: blobs,
        reference,
        missing,
    } = imported;
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "root": root.to_string(), "ref": reference, "branches": branches, "revisions": revisions, "chunks": chunks, "blobs": blobs, "base": base,
                "missing_chunks": missing.chunk_count, "missing_blobs": missing.blob_count,
            })
        );
    } else {
        say!("created the home `{}`: root {root}, {chunks} chunks, {blobs} blobs", home.display());
        if !branches.is_empty() {
            say!("with {}", branches.join(", "));
        }
        if *revisions > 0 {
            say!("with {revisions} earlier revisions of `{reference}`");
        }
        if let Some(base) = base {
            say!("its base is `{base}`, as when it was saved");
        }
        if *missing != OmittedCounts::default() {
            say!("missing: {} chunks, {} blobs", missing.chunk_count, missing.blob_count);
        }
    }
    if *missing == OmittedCounts::default() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(INCOMPLETE_EXIT_CODE)
    }
}

/// Compares snapshots with the current data; for `latest`, all snapshots of one save.
pub(super) fn run_verify(
    arguments: &VaultArgs,
    clients: &SnapshotClientArgs,
    reading: VaultReadArgs,
    snapshot: &str,
    instance: &RepositoryInstanceArgs,
) -> CommandOutcome {
    let opened = vault_session::open_vault(arguments)?;
    let _lock = opened.lock_for_reading(reading)?;
    let clients = vault_session::selected_clients(clients);
    let together = opened.vault.find_run_snapshots(snapshot, &clients).map_err(backup_fault)?;
    let mut differences = 0;
    for snapshot in &together {
        let progress = Arc::new(BackupProgress::default());
        let watch = snapshot
            .repository_root()
            .is_none()
            .then(|| ProgressDisplay::start(&progress, arguments.json));
        let verification = SnapshotVerification {
            access: &home_access(),
            instance: &instance_access(instance)?,
            vault: &opened.vault,
            progress: &progress,
        };
        let findings = verification.find_differences(snapshot).map_err(home_backup_fault)?;
        drop(watch);
        for finding in &findings {
            if arguments.json {
                say!("{}", json!({ "message_type": "difference", "text": finding }));
            } else {
                say!("{finding}");
            }
        }
        if arguments.json {
            let (id, count) = (snapshot.id.to_string(), findings.len());
            say!(
                "{}",
                json!({ "message_type": "summary", "snapshot_id": id, "differences": count })
            );
        } else {
            say!("{} differences from the snapshot {}", findings.len(), snapshot.id.short());
        }
        differences += findings.len();
    }
    Ok(if differences == 0 { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}
