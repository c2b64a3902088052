//! `tympan backup restore` and `verify`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;
use tympan_backup::{
    Error, Excludes, Existing, ImportOptions, Imported, Index, LeftOut, Missing, Node, Progress,
    RestoreOptions, Restored, Selection, Snapshot, StoreReference, Vault, find_path,
    folder_stands_on, home_files, import_folder, import_snapshot, stands_on,
};
use tympan_blobs::BlobStore;
use tympan_store::{ChunkId, ChunkStore, CompositeStore, Lease};

use super::source::credentials;
use super::{INCOMPLETE, Watch, failed, open, source};
use crate::args::backup::{
    ClientArguments, InstanceArguments, ReadArguments, Restore, VaultArguments,
};
use crate::backend::Backend;
use crate::base::{self, Access, Origin};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::config::Config;
use crate::home::chain;
use crate::say;

/// A vault that is restored from, and its index.
type RestoreSource<'a> = (&'a Arc<Vault>, &'a Index);

/// Restores into a folder, or makes a home.
pub(super) fn run(arguments: &Restore) -> Outcome {
    if let (Some(folder), Some(home)) = (&arguments.unpacked, &arguments.home) {
        let progress = Progress::default();
        let reference = folder_stands_on(folder).map_err(failed)?;
        return into_home((home, arguments), reference.as_ref(), &mut |target, options| {
            import_folder(folder, target, (options, &progress)).map_err(failed)
        });
    }
    let from = &arguments.vault;
    let vault = VaultArguments {
        vault: from.vault.clone().unwrap_or_default(),
        password_file: from.password_file.clone(),
        password_command: from.password_command.clone(),
        retry_lock: from.retry_lock,
        json: from.json,
        place: from.place.clone(),
    };
    let opened = open::open(&vault)?;
    let _lock = opened.lock_to_read(arguments.reading)?;
    let index = Index::load(&opened.vault).map_err(failed)?;
    let clients = open::clients(&arguments.clients);
    let together = opened.vault.find_saved_together(&arguments.snapshot, &clients);
    let together = together.map_err(failed)?;
    for fault in index.damage() {
        tell_damage(fault, vault.json);
    }
    let from = (&opened.vault, &index);
    match (&arguments.home, &arguments.to) {
        (Some(home), _) => from_repository((home, arguments), from, &together),
        (None, Some(target)) => into_folder((target, arguments), from, &together),
        (None, None) => Err(Fault::usage("name the folder to restore into with `--to`")),
    }
}

/// Makes a home of the repository among snapshots that were saved together.
fn from_repository(
    (home, arguments): (&Path, &Restore),
    from: RestoreSource<'_>,
    together: &[Snapshot],
) -> Outcome {
    let json = arguments.vault.json;
    let progress = Arc::new(Progress::default());
    let mut watch = Some(Watch::begin(&progress, json));
    let snapshot = repository_of(together)?;
    let reference = stands_on((from.0, from.1), snapshot).map_err(failed)?;
    let code = into_home((home, arguments), reference.as_ref(), &mut |target, options| {
        let imported = import_snapshot(from, snapshot, target, (options, &progress));
        drop(watch.take());
        imported.map_err(failed)
    })?;
    let files = home_files(from, snapshot).map_err(failed)?;
    tell_files(&super::home_files::write(home, &files)?, json);
    Ok(code)
}

/// Restores snapshots that were saved together into a folder.
fn into_folder(
    (target, arguments): (&Path, &Restore),
    (vault, index): RestoreSource<'_>,
    together: &[Snapshot],
) -> Outcome {
    let json = arguments.vault.json;
    let progress = Arc::new(Progress::default());
    let watch = Watch::begin(&progress, json);
    let existing = match (arguments.in_place, arguments.delete) {
        (false, _) => Existing::Refuse,
        (true, false) => Existing::Replace,
        (true, true) => Existing::Mirror,
    };
    let selection = selection_of(arguments)?;
    let mut options = RestoreOptions { existing, selection, path: PathBuf::from(&arguments.path) };
    let parts = parts_of((vault, index), together, &arguments.path)?;
    if parts.len() > 1 && existing == Existing::Mirror {
        return Err(Fault::usage(
            "several snapshots were saved together, and each would remove what the others hold: name one of them, or a `--path`",
        ));
    }
    let mut restored = Restored::default();
    for (node, folder) in parts {
        let target = target.join(folder);
        let part = tympan_backup::restore((vault, index), &node, &target, (&options, &progress));
        restored.add(part.map_err(failed)?);
        // What the first has restored is no reason to refuse the next.
        if existing == Existing::Refuse {
            options.existing = Existing::Replace;
        }
    }
    drop(watch);
    tell_restored(&restored, (target, existing), json);
    let is_whole = restored.faults.is_empty() && index.damage().is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

fn tell_restored(restored: &Restored, (target, existing): (&Path, Existing), json: bool) {
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
                "message_type": "summary", "items": restored.items, "bytes": restored.bytes, "errors": restored.faults.len(),
                "removed": restored.removed,
            })
        );
        return;
    }
    say!(
        "restored {} items, {} written, into `{}`",
        restored.items,
        indicatif::HumanBytes(restored.bytes),
        target.display()
    );
    if existing == Existing::Mirror {
        say!("removed {} items that the snapshot does not hold", restored.removed);
    }
    if restored.is_vault_damaged {
        say!(
            "parts of the vault are damaged: `tympan backup repair --read-data` takes out what is whole"
        );
    }
}

/// Tells of an index file that is damaged, by which something may be missing.
fn tell_damage(fault: &tympan_backup::Fault, json: bool) {
    if json {
        say!("{}", json!({ "message_type": "error", "item": fault.path, "error": fault.message }));
    } else {
        say!("the vault is damaged: {fault}");
    }
}

/// Returns what of a snapshot is restored.
fn selection_of(arguments: &Restore) -> Result<Selection, Fault> {
    let Restore { include, iinclude, exclude, iexclude, .. } = arguments;
    let patterns = |exact: &[String], any_case: &[String]| {
        Excludes::new(exact.to_vec())
            .and_then(|patterns| patterns.and_ignoring_case(any_case))
            .map_err(failed)
    };
    if !include.is_empty() || !iinclude.is_empty() {
        return Ok(Selection::Only(patterns(include, iinclude)?));
    }
    if !exclude.is_empty() || !iexclude.is_empty() {
        return Ok(Selection::AllBut(patterns(exclude, iexclude)?));
    }
    Ok(Selection::Everything)
}

/// Finds the snapshot of a repository among those that were saved together.
fn repository_of(together: &[Snapshot]) -> Result<&Snapshot, Fault> {
    let mut repositories = together.iter().filter(|one| one.repository_root().is_some());
    match (repositories.next(), repositories.next(), together) {
        (Some(one), None, _) | (None, _, [one]) => Ok(one),
        (Some(_), Some(_), _) => {
            let named = together.iter().filter(|one| one.repository_root().is_some());
            let named: Vec<String> = named
                .map(|one| format!("`{}` of {}", one.id.short(), one.paths.join(", ")))
                .collect();
            Err(Fault::usage(format!(
                "several repositories were saved together: name one of {}",
                named.join("; ")
            )))
        }
        (None, ..) => Err(Fault::usage(
            "no repository was saved in this run; restore its folders with `--to`",
        )),
    }
}

/// Finds what is restored of snapshots that were saved together, and into which folders below the target. Of several, a
/// repository gets one named by its path: what is in it has the same names in each.
fn parts_of(
    (vault, index): RestoreSource<'_>,
    together: &[Snapshot],
    path: &str,
) -> Result<Vec<(Node, PathBuf)>, Fault> {
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
            Err(error) => return Err(failed(error)),
        };
        let is_apart = together.len() > 1 && is_whole && snapshot.repository_root().is_some();
        let apart = snapshot.paths.first().filter(|_| is_apart);
        let folder = apart.map_or("", |path| path.trim_start_matches('/'));
        parts.push((node, PathBuf::from(folder)));
    }
    // A path is meant in one snapshot; folders come first, as people name files in these.
    parts.truncate(if is_whole { parts.len() } else { 1 });
    match (parts.is_empty(), missing) {
        (true, Some(error)) => Err(failed(error)),
        _ => Ok(parts),
    }
}

/// Tells which files a restored home has besides its repository.
fn tell_files(names: &[String], json: bool) {
    if json {
        say!("{}", json!({ "message_type": "home_files", "files": names }));
        return;
    }
    if !names.is_empty() {
        say!("with {}", names.join(", "));
    }
    if names.iter().any(|name| name.ends_with(".saved")) {
        say!(
            "`tympan.toml.saved` put the repository or its blobs elsewhere; this home has them in its folder: take over what \
             still holds"
        );
    }
    let state = if names.iter().any(|name| name == "state.db") { "" } else { ", jobs and logins" };
    say!(
        "not in the snapshot: earlier revisions that were not asked for, what is derived from content, logs{state}"
    );
}

/// Fills a new home.
type Filling<'a> =
    dyn FnMut((&dyn ChunkStore, &dyn BlobStore), ImportOptions<'_>) -> Result<Imported, Fault> + 'a;

/// Makes a new home and fills it: a clone, if what it is filled with stood on a base.
fn into_home(
    (home, arguments): (&Path, &Restore),
    reference: Option<&StoreReference>,
    fill: &mut Filling<'_>,
) -> Outcome {
    let is_empty = std::fs::read_dir(home).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty {
        return Err(Fault::usage(format!(
            "`{}` is not empty; a backup becomes a new home, which can take the place of the old one afterwards",
            home.display()
        )));
    }
    let missing = if arguments.allow_missing { Missing::Allow } else { Missing::Refuse };
    let json = arguments.vault.json;
    let Some(reference) = reference else {
        if arguments.base.is_some() {
            return Err(Fault::usage("the snapshot stands on no base; leave `--base` out"));
        }
        let backend = Backend::open(home, &Config::default())?;
        let blobs = backend.open_blobs(home, &Config::default())?.store;
        let options = ImportOptions { missing, below: None };
        let imported = fill((&*backend.chunks, &*blobs), options)?;
        return Ok(tell_home((home, None), &imported, json));
    };
    let clone = NewClone::open((home, arguments), reference)?;
    match clone.fill((home, missing), fill) {
        Ok(imported) => Ok(tell_home((home, Some(&clone)), &imported, json)),
        Err(fault) => {
            // Nothing half-done is left: neither the lease nor what was empty before.
            clone.give_back();
            std::fs::remove_dir_all(home).ok();
            Err(fault)
        }
    }
}

/// A home that is to stand on another one again.
struct NewClone {
    origin: Origin,
    access: Access,
    /// What it stands on, and the lease there; nothing if that cannot be had, and need not be.
    base: Option<(base::Opened, Lease)>,
}

impl NewClone {
    /// Takes a lease on what a clone stood on when it was saved.
    fn open(
        (home, arguments): (&Path, &Restore),
        reference: &StoreReference,
    ) -> Result<Self, Fault> {
        let from = match &arguments.base {
            None => reference.from.clone(),
            Some(from) if base::is_url(from) => from.trim_end_matches('/').to_owned(),
            Some(dir) => absolute(Path::new(dir))?,
        };
        let ca = arguments.ca.as_ref().map(std::fs::canonicalize).transpose();
        let ca =
            ca.map_err(|error| Fault::usage(format!("cannot read the file of `--ca`: {error}")))?;
        let secret = credentials(arguments.key.as_deref(), arguments.token_file.as_deref())?;
        let access = Access { secret, ca: ca.clone(), leases: None };
        let root: ChunkId = reference.root.parse().map_err(|_| {
            Fault::usage("the snapshot does not say which state of its base it stands on")
        })?;
        let holder = base::holder_of(home)?;
        let leased = base::open(&from, &access, home).and_then(|opened| {
            let holders = (holder.as_str(), reference.holder.as_str());
            let lease = base::lease_root(&*opened.0, holders, root, SystemTime::now());
            let lease = lease.map_err(|error| Fault::with_code(chain(&error), 1))?;
            Ok((opened, lease))
        });
        let base = match leased {
            Ok(base) => Some(base),
            Err(fault) if arguments.allow_missing => {
                tracing::warn!(reason = fault.message(), "the home is made without its base");
                None
            }
            Err(fault) => {
                return Err(Fault::usage(format!(
                    "the snapshot holds what a clone had of its own; what it stood on, `{from}`, cannot be used: {}; name \
                     where that is now with `--base`, or make the home without it with `--allow-missing`",
                    fault.message()
                )));
            }
        };
        let root = Some(reference.root.clone());
        Ok(Self { origin: Origin { from, holder, root, ca, leases: None }, access, base })
    }

    fn fill(
        &self,
        (home, missing): (&Path, Missing),
        fill: &mut Filling<'_>,
    ) -> Result<Imported, Fault> {
        // The file comes first: a store without it would pass for a home of its own.
        base::create(home)?;
        base::write_credentials(home, &self.access)?;
        self.origin.write_clone(home)?;
        let own = base::open_own(home)?;
        let backend = Backend {
            chunks: own.clone(),
            local: Some(own.clone()),
            database: None,
            base: None,
            lock: None,
        };
        let blobs = backend.open_blobs(home, &Config::default())?.store;
        let below = self.base.as_ref().map(|((base, blobs), lease)| {
            // From now on the own refs may reach what only the base has.
            let over = CompositeStore::new(own.clone(), base.clone(), lease.clone());
            over.map(|_| (&**base, &**blobs))
        });
        let below = below.transpose().map_err(|error| Fault::cannot_run(chain(&error)))?;
        fill((&*own, &*blobs), ImportOptions { missing, below })
    }

    fn give_back(&self) {
        if let Some(((base, _), lease)) = &self.base
            && let Err(error) = base.release(&lease.holder)
        {
            tracing::warn!(
                reason = chain(&error),
                "a lease ends by itself, as it could not be given back"
            );
        }
    }
}

fn absolute(dir: &Path) -> Result<String, Fault> {
    let cannot = |reason: &dyn std::fmt::Display| {
        Fault::usage(format!("cannot use `{}` as a base: {reason}", dir.display()))
    };
    let full = std::fs::canonicalize(dir).map_err(|error| cannot(&error))?;
    full.to_str().map(str::to_owned).ok_or_else(|| cannot(&"its name is not UTF-8"))
}

fn tell_home(
    (home, clone): (&Path, Option<&NewClone>),
    imported: &Imported,
    json: bool,
) -> ExitCode {
    let Imported { root, branches, revisions, chunks, blobs, reference, missing } = imported;
    let base = clone.map(|clone| &clone.origin.from);
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "root": root.to_string(), "ref": reference, "branches": branches, "revisions": revisions, "chunks": chunks, "blobs": blobs, "base": base,
                "missing_chunks": missing.chunks, "missing_blobs": missing.blobs,
            })
        );
    } else {
        say!("made the home `{}`: root {root}, {chunks} chunks, {blobs} blobs", home.display());
        if !branches.is_empty() {
            say!("with {}", branches.join(", "));
        }
        if *revisions > 0 {
            say!("with {revisions} earlier revisions of `{reference}`");
        }
        if let Some(base) = base {
            say!("it stands on `{base}`, as it did when it was saved");
        }
        if *missing != LeftOut::default() {
            say!("missing: {} chunks, {} blobs", missing.chunks, missing.blobs);
        }
    }
    if *missing == LeftOut::default() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) }
}

/// Compares snapshots with what is there now; for `latest`, all that one save has made.
pub(super) fn verify(
    (arguments, clients, reading): (&VaultArguments, &ClientArguments, ReadArguments),
    (snapshot, instance): (&str, &InstanceArguments),
) -> Outcome {
    let opened = open::open(arguments)?;
    let _lock = opened.lock_to_read(reading)?;
    let clients = open::clients(clients);
    let together = opened.vault.find_saved_together(snapshot, &clients).map_err(failed)?;
    let mut differences = 0;
    for snapshot in &together {
        let findings = findings(&opened, snapshot, (arguments.json, instance))?;
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
    Ok(if differences == 0 { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

/// Returns how a snapshot differs from what is there now.
fn findings(
    opened: &open::Opened,
    snapshot: &Snapshot,
    (json, instance): (bool, &InstanceArguments),
) -> Result<Vec<String>, Fault> {
    let mut findings = Vec::new();
    if snapshot.is_incomplete() {
        findings
            .push("the snapshot lacks parts that could not be read when it was made".to_owned());
    }
    if let Some(saved) = snapshot.repository_root() {
        let path = snapshot.paths.first().map_or("", String::as_str);
        let repository = source::open_saved(path, instance)?;
        let refs = repository.base.refs();
        let refs = refs.map_err(|error| Fault::with_code(chain(&error), 1))?;
        let live = refs
            .iter()
            .find(|(name, _)| name == crate::base::MAIN)
            .map(|(_, root)| root.to_string());
        if live.as_deref() != Some(saved) {
            let live = live.unwrap_or_else(|| "none".to_owned());
            findings.push(format!("{path}: the root is {live}, and {saved} was saved"));
        }
    } else {
        let index = Index::load(&opened.vault).map_err(failed)?;
        findings.extend(index.damage().iter().map(ToString::to_string));
        let progress = Arc::new(Progress::default());
        let _watch = Watch::begin(&progress, json);
        let faults = tympan_backup::verify((&opened.vault, &index), snapshot, &progress);
        findings.extend(faults.map_err(failed)?.iter().map(ToString::to_string));
    }
    Ok(findings)
}
