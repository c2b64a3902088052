//! `tympan backup restore` and `verify`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;
use tympan_backup::{
    BackupProgress, BaseStoreReference, Error, ExcludeRules, ExistingFilePolicy, ImportOptions,
    ImportReport, MissingContentPolicy, OmittedCounts, RestoreOptions, RestoreReport,
    RestoreSelection, SnapshotNode, Vault, VaultIndex, VaultSnapshot, find_folder_base, find_path,
    find_snapshot_base, import_folder, import_snapshot, read_home_files,
};
use tympan_blobs::BlobStore;
use tympan_store::{ChunkId, ChunkStore, LayeredStore, RootLease};
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, say,
};

use super::repository_source::read_credentials;
use super::{
    INCOMPLETE_EXIT_CODE, ProgressDisplay, backup_fault, repository_source, vault_session,
};
use crate::args::backup::{
    BackupRestoreArgs, RepositoryInstanceArgs, SnapshotClientArgs, VaultArgs, VaultReadArgs,
};
use crate::config::TympanConfig;
use crate::home_chunk_store::HomeChunkStore;
use crate::home_origin::{self, BaseAccess, HomeOrigin};

/// A vault to restore from, and its index.
type RestoreVault<'a> = (&'a Arc<Vault>, &'a VaultIndex);

/// Restores into a folder, or creates a home.
pub(super) fn run_restore(arguments: &BackupRestoreArgs) -> CommandOutcome {
    if let (Some(folder), Some(home)) = (&arguments.unpacked, &arguments.home) {
        let progress = BackupProgress::default();
        let reference = find_folder_base(folder).map_err(backup_fault)?;
        return restore_to_home((home, arguments), reference.as_ref(), &mut |target, options| {
            import_folder(folder, target, (options, &progress)).map_err(backup_fault)
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
    let from = (&opened.vault, &index);
    match (&arguments.home, &arguments.to) {
        (Some(home), _) => restore_to_home_from_repository((home, arguments), from, &together),
        (None, Some(target)) => restore_to_folder((target, arguments), from, &together),
        (None, None) => Err(CommandFault::usage("name the folder to restore into with `--to`")),
    }
}

/// Creates a home from the repository among the snapshots of one save.
fn restore_to_home_from_repository(
    (home, arguments): (&Path, &BackupRestoreArgs),
    from: RestoreVault<'_>,
    together: &[VaultSnapshot],
) -> CommandOutcome {
    let json = arguments.vault.json;
    let progress = Arc::new(BackupProgress::default());
    let mut watch = Some(ProgressDisplay::start(&progress, json));
    let snapshot = repository_snapshot(together)?;
    let reference = find_snapshot_base((from.0, from.1), snapshot).map_err(backup_fault)?;
    let code = restore_to_home((home, arguments), reference.as_ref(), &mut |target, options| {
        let imported = import_snapshot(from, snapshot, target, (options, &progress));
        drop(watch.take());
        imported.map_err(backup_fault)
    })?;
    let files = read_home_files(from, snapshot).map_err(backup_fault)?;
    print_restored_files(&super::home_file::write_home_files(home, &files)?, json);
    Ok(code)
}

/// Restores the snapshots of one save into a folder.
fn restore_to_folder(
    (target, arguments): (&Path, &BackupRestoreArgs),
    (vault, index): RestoreVault<'_>,
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
    let parts = restorable_parts((vault, index), together, &arguments.path)?;
    if parts.len() > 1 && existing == ExistingFilePolicy::Mirror {
        return Err(CommandFault::usage(
            "several snapshots were saved together, and each would remove the files of the others: name one \
             of them, or a `--path`",
        ));
    }
    let mut restored = RestoreReport::default();
    for (node, folder) in parts {
        let target = target.join(folder);
        let part =
            tympan_backup::restore_snapshot((vault, index), &node, &target, (&options, &progress));
        restored.add(part.map_err(backup_fault)?);
        // Files that the first snapshot restored must not make the next one fail.
        if existing == ExistingFilePolicy::Refuse {
            options.existing = ExistingFilePolicy::Replace;
        }
    }
    drop(watch);
    print_restore_report(&restored, (target, existing), json);
    let is_whole = restored.faults.is_empty() && index.damaged_files().is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE_EXIT_CODE) })
}

fn print_restore_report(
    restored: &RestoreReport,
    (target, existing): (&Path, ExistingFilePolicy),
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

/// Finds the snapshot of a repository among the snapshots of one save.
fn repository_snapshot(together: &[VaultSnapshot]) -> Result<&VaultSnapshot, CommandFault> {
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
            Err(CommandFault::usage(format!(
                "several repositories were saved together: name one of {}",
                named.join("; ")
            )))
        }
        (None, ..) => Err(CommandFault::usage(
            "no repository was saved in this run; restore its folders with `--to`",
        )),
    }
}

/// Finds the parts of the snapshots of one save to restore, and the folder of each below the target. If there are
/// several, a repository gets a folder named after its path: all repositories have the same names inside.
fn restorable_parts(
    (vault, index): RestoreVault<'_>,
    together: &[VaultSnapshot],
    path: &str,
) -> Result<Vec<(SnapshotNode, PathBuf)>, CommandFault> {
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
            Err(error) => return Err(backup_fault(error)),
        };
        let is_apart = together.len() > 1 && is_whole && snapshot.repository_root().is_some();
        let apart = snapshot.paths.first().filter(|_| is_apart);
        let folder = apart.map_or("", |path| path.trim_start_matches('/'));
        parts.push((node, PathBuf::from(folder)));
    }
    // A path applies to one snapshot; folders come first, because users name files in these.
    parts.truncate(if is_whole { parts.len() } else { 1 });
    match (parts.is_empty(), missing) {
        (true, Some(error)) => Err(backup_fault(error)),
        _ => Ok(parts),
    }
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

/// A function that fills a new home.
type HomeFiller<'a> = dyn FnMut(
        (&dyn ChunkStore, &dyn BlobStore),
        ImportOptions<'_>,
    ) -> Result<ImportReport, CommandFault>
    + 'a;

/// Creates a new home and fills it: as a clone, if its source had a base.
fn restore_to_home(
    (home, arguments): (&Path, &BackupRestoreArgs),
    reference: Option<&BaseStoreReference>,
    fill: &mut HomeFiller<'_>,
) -> CommandOutcome {
    let is_empty = std::fs::read_dir(home).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty {
        return Err(CommandFault::usage(format!(
            "`{}` is not empty; restore into a new home, which can replace the old one afterwards",
            home.display()
        )));
    }
    let missing = if arguments.allow_missing {
        MissingContentPolicy::Allow
    } else {
        MissingContentPolicy::Refuse
    };
    let json = arguments.vault.json;
    let Some(reference) = reference else {
        if arguments.base.is_some() {
            return Err(CommandFault::usage("the snapshot has no base; leave out `--base`"));
        }
        let backend = HomeChunkStore::open(home, &TympanConfig::default())?;
        let blobs = backend.open_blobs(home, &TympanConfig::default())?.store;
        let options = ImportOptions { missing, base: None };
        let imported = fill((&*backend.chunks, &*blobs), options)?;
        return Ok(print_restored_home((home, None), &imported, json));
    };
    let clone = CloneRestoration::lease_base((home, arguments), reference)?;
    match clone.fill_home((home, missing), fill) {
        Ok(imported) => Ok(print_restored_home((home, Some(&clone)), &imported, json)),
        Err(fault) => {
            // On failure, release the lease and restore the empty folder, so that nothing incomplete remains.
            clone.release_lease();
            std::fs::remove_dir_all(home).ok();
            Err(fault)
        }
    }
}

/// A home to restore as a clone of a base.
struct CloneRestoration {
    origin: HomeOrigin,
    access: BaseAccess,
    /// The base, and the lease on it; `None` if the base is unavailable and not required.
    base_and_lease: Option<(home_origin::BaseWithBlobs, RootLease)>,
}

impl CloneRestoration {
    /// Takes a lease on the base that a clone had when it was saved.
    fn lease_base(
        (home, arguments): (&Path, &BackupRestoreArgs),
        reference: &BaseStoreReference,
    ) -> Result<Self, CommandFault> {
        let from = match &arguments.base {
            None => reference.from.clone(),
            Some(from) if home_origin::is_instance_url(from) => {
                from.trim_end_matches('/').to_owned()
            }
            Some(dir) => absolute_dir(Path::new(dir))?,
        };
        let ca = arguments.ca.as_ref().map(std::fs::canonicalize).transpose();
        let ca = ca.map_err(|error| {
            CommandFault::usage(format!("cannot read the file of `--ca`: {error}"))
        })?;
        let secret = read_credentials(arguments.key.as_deref(), arguments.token_file.as_deref())?;
        let access = BaseAccess { credentials: secret, ca_file: ca.clone(), lease_dir: None };
        let root: ChunkId = reference.root.parse().map_err(|_| {
            CommandFault::usage("the snapshot does not record the root of its base")
        })?;
        let holder = home_origin::lease_holder_name(home)?;
        let leased = home_origin::open_base_at(&from, &access, home).and_then(|opened| {
            let holders = (holder.as_str(), reference.holder.as_str());
            let lease = home_origin::lease_saved_root(&*opened.0, holders, root, SystemTime::now());
            let lease =
                lease.map_err(|error| CommandFault::with_code(error_chain_text(&error), 1))?;
            Ok((opened, lease))
        });
        let base = match leased {
            Ok(base) => Some(base),
            Err(fault) if arguments.allow_missing => {
                tracing::warn!(
                    reason = fault.message(),
                    "cannot use the base; creating the home without it"
                );
                None
            }
            Err(fault) => {
                return Err(CommandFault::usage(format!(
                    "the snapshot contains only the data of a clone, and its base `{from}` cannot be used: \
                     {}; name the present location of the base with `--base`, or create the home without it \
                     with `--allow-missing`",
                    fault.message()
                )));
            }
        };
        let root = Some(reference.root.clone());
        Ok(Self {
            origin: HomeOrigin { from, holder, root, ca, leases: None },
            access,
            base_and_lease: base,
        })
    }

    fn fill_home(
        &self,
        (home, missing): (&Path, MissingContentPolicy),
        fill: &mut HomeFiller<'_>,
    ) -> Result<ImportReport, CommandFault> {
        // The file is written first: a store without it would be taken for an independent home.
        home_origin::create_home_dir(home)?;
        home_origin::write_credentials(home, &self.access)?;
        self.origin.write_clone(home)?;
        let own = home_origin::open_own_packs(home)?;
        let backend = HomeChunkStore {
            chunks: own.clone(),
            local: Some(own.clone()),
            database: None,
            overlay_base: None,
            lock: None,
        };
        let blobs = backend.open_blobs(home, &TympanConfig::default())?.store;
        let below = self.base_and_lease.as_ref().map(|((base, blobs), lease)| {
            // From now on the clone's own refs may reach data that only the base has.
            let over = LayeredStore::new(own.clone(), base.clone(), lease.clone());
            over.map(|_| (&**base, &**blobs))
        });
        let below = below
            .transpose()
            .map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
        fill((&*own, &*blobs), ImportOptions { missing, base: below })
    }

    fn release_lease(&self) {
        if let Some(((base, _), lease)) = &self.base_and_lease
            && let Err(error) = base.release_lease(&lease.holder)
        {
            tracing::warn!(
                reason = error_chain_text(&error),
                "cannot release the lease; it will expire"
            );
        }
    }
}

fn absolute_dir(dir: &Path) -> Result<String, CommandFault> {
    let cannot = |reason: &dyn std::fmt::Display| {
        CommandFault::usage(format!("cannot use `{}` as a base: {reason}", dir.display()))
    };
    let full = std::fs::canonicalize(dir).map_err(|error| cannot(&error))?;
    full.to_str().map(str::to_owned).ok_or_else(|| cannot(&"its name is not UTF-8"))
}

fn print_restored_home(
    (home, clone): (&Path, Option<&CloneRestoration>),
    imported: &ImportReport,
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
    let base = clone.map(|clone| &clone.origin.from);
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
        let findings = verify_findings(&opened, snapshot, (arguments.json, instance))?;
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

/// Returns the differences between a snapshot and the current data.
fn verify_findings(
    opened: &vault_session::VaultSession,
    snapshot: &VaultSnapshot,
    (json, instance): (bool, &RepositoryInstanceArgs),
) -> Result<Vec<String>, CommandFault> {
    let mut findings = Vec::new();
    if snapshot.is_incomplete() {
        findings.push(
            "the snapshot is incomplete: parts could not be read when it was created".to_owned(),
        );
    }
    if let Some(saved) = snapshot.repository_root() {
        let path = snapshot.paths.first().map_or("", String::as_str);
        let repository = repository_source::open_source_by_snapshot_path(path, instance)?;
        let refs = repository.base.list_refs();
        let refs = refs.map_err(|error| CommandFault::with_code(error_chain_text(&error), 1))?;
        let live = refs
            .iter()
            .find(|(name, _)| name == crate::home_origin::MAIN_BRANCH)
            .map(|(_, root)| root.to_string());
        if live.as_deref() != Some(saved) {
            let live = live.unwrap_or_else(|| "none".to_owned());
            findings.push(format!("{path}: the root is {live}, but {saved} was saved"));
        }
    } else {
        let index = VaultIndex::load(&opened.vault).map_err(backup_fault)?;
        findings.extend(index.damaged_files().iter().map(ToString::to_string));
        let progress = Arc::new(BackupProgress::default());
        let _watch = ProgressDisplay::start(&progress, json);
        let faults = tympan_backup::verify_snapshot((&opened.vault, &index), snapshot, &progress);
        findings.extend(faults.map_err(backup_fault)?.iter().map(ToString::to_string));
    }
    Ok(findings)
}
