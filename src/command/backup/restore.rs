//! `tympan backup restore` and `verify`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tympan_backup::{
    Existing, Imported, Index, LockMode, Progress, RestoreOptions, find_path, import_folder,
    import_snapshot,
};
use tympan_store::{Base, FollowedStore, LocalOptions};

use super::{INCOMPLETE, Watch, failed, open};
use crate::args::backup::{ClientArguments, Restore, VaultArguments};
use crate::backend::Backend;
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::config::Config;
use crate::home::chain;
use crate::say;

/// Restores into a folder, or makes a home.
pub(super) fn run(arguments: &Restore) -> Outcome {
    if let (Some(folder), Some(home)) = (&arguments.unpacked, &arguments.home) {
        let progress = Progress::default();
        let imported = into_home(home, |chunks, blobs| {
            import_folder(folder, (chunks, blobs), &progress).map_err(failed)
        })?;
        return Ok(tell_home(home, &imported, arguments.vault.json));
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
    let _lock = opened.lock(LockMode::Shared)?;
    let index = Index::load(&opened.vault).map_err(failed)?;
    let clients = open::clients(&arguments.clients);
    let snapshot = opened.vault.find_snapshot(&arguments.snapshot, &clients).map_err(failed)?;
    let progress = Arc::new(Progress::default());
    let watch = Watch::begin(&progress);
    if let Some(home) = &arguments.home {
        let imported = into_home(home, |chunks, blobs| {
            import_snapshot((&opened.vault, &index), &snapshot, (chunks, blobs), &progress)
                .map_err(failed)
        })?;
        drop(watch);
        return Ok(tell_home(home, &imported, vault.json));
    }
    let Some(target) = &arguments.to else {
        return Err(Fault::usage("name the folder to restore into with `--to`"));
    };
    let node = find_path(&opened.vault, &index, &snapshot, &arguments.path).map_err(failed)?;
    let existing = if arguments.in_place { Existing::Replace } else { Existing::Refuse };
    let options = RestoreOptions { existing };
    let restored =
        tympan_backup::restore((&opened.vault, &index), &node, target, (&options, &progress));
    let restored = restored.map_err(failed)?;
    drop(watch);
    for fault in &restored.faults {
        if vault.json {
            say!(
                "{}",
                json!({ "message_type": "error", "item": fault.path, "error": fault.message })
            );
        } else {
            say!("not restored: {fault}");
        }
    }
    if vault.json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "items": restored.items, "bytes": restored.bytes, "errors": restored.faults.len(),
            })
        );
    } else {
        say!(
            "restored {} items, {} written, into `{}`",
            restored.items,
            indicatif::HumanBytes(restored.bytes),
            target.display()
        );
    }
    Ok(if restored.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

/// Makes a new home and fills it.
fn into_home(
    home: &Path,
    import: impl FnOnce(
        &dyn tympan_store::ChunkStore,
        &dyn tympan_blobs::BlobStore,
    ) -> Result<Imported, Fault>,
) -> Result<Imported, Fault> {
    let is_empty = std::fs::read_dir(home).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty {
        return Err(Fault::usage(format!(
            "`{}` is not empty; a backup becomes a new home, which can take the place of the old one afterwards",
            home.display()
        )));
    }
    let backend = Backend::open(home, &Config::default())?;
    let blobs = backend.open_blobs(home, &Config::default())?.store;
    import(&*backend.chunks, &*blobs)
}

fn tell_home(home: &Path, imported: &Imported, json: bool) -> ExitCode {
    let Imported { root, chunks, blobs, reference } = imported;
    if json {
        say!(
            "{}",
            json!({ "root": root.to_string(), "ref": reference, "chunks": chunks, "blobs": blobs })
        );
    } else {
        say!("made the home `{}`: root {root}, {chunks} chunks, {blobs} blobs", home.display());
    }
    ExitCode::SUCCESS
}

/// Compares a snapshot with what is there now.
pub(super) fn verify(
    (arguments, clients): (&VaultArguments, &ClientArguments),
    snapshot: &str,
) -> Outcome {
    let opened = open::open(arguments)?;
    let _lock = opened.lock(LockMode::Shared)?;
    let clients = open::clients(clients);
    let snapshot = opened.vault.find_snapshot(snapshot, &clients).map_err(failed)?;
    let mut findings = Vec::new();
    if snapshot.is_incomplete() {
        findings
            .push("the snapshot lacks parts that could not be read when it was made".to_owned());
    }
    if let Some(saved) = snapshot.repository_root() {
        let path = snapshot.paths.first().and_then(|path| path.strip_prefix("/tympan"));
        let home = Path::new(path.unwrap_or_default());
        let store = FollowedStore::open_dir(&home.join("store"), LocalOptions::default());
        let refs = store.and_then(|store| store.refs());
        let refs = refs.map_err(|error| Fault::with_code(chain(&error), 1))?;
        let live = refs
            .iter()
            .find(|(name, _)| name == crate::base::MAIN)
            .map(|(_, root)| root.to_string());
        if live.as_deref() != Some(saved) {
            let live = live.unwrap_or_else(|| "none".to_owned());
            findings.push(format!("{}: the root is {live}, and {saved} was saved", home.display()));
        }
    } else {
        let index = Index::load(&opened.vault).map_err(failed)?;
        let progress = Arc::new(Progress::default());
        let _watch = Watch::begin(&progress);
        let faults = tympan_backup::verify((&opened.vault, &index), &snapshot, &progress);
        findings.extend(faults.map_err(failed)?.iter().map(ToString::to_string));
    }
    for finding in &findings {
        if arguments.json {
            say!("{}", json!({ "message_type": "difference", "text": finding }));
        } else {
            say!("{finding}");
        }
    }
    if !arguments.json {
        say!("{} differences from the snapshot {}", findings.len(), snapshot.id.short());
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}
