//! `tympan backup save`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tympan_backup::{
    Compression, Excludes, Index, LockMode, Parent, Progress, RepositorySource, SaveOptions, Saved,
    Session, save_directories, save_repository,
};
use tympan_blobs::FolderBlobs;
use tympan_store::{FollowedStore, LocalOptions};

use super::{INCOMPLETE, Watch, failed, open};
use crate::args::backup::{CompressionLevel, Save};
use crate::base::MAIN;
use crate::command::{Fault, Outcome};
use crate::home::{chain, require_home};
use crate::say;

/// Saves folders as one snapshot, and each repository as one of its own.
pub(super) fn run(arguments: &Save) -> Outcome {
    if let Some(url) = arguments.sources.iter().find(|source| source.contains("://")) {
        return Err(Fault::usage(format!(
            "`{url}`: saving a running author by its URL is not there yet; name its home as `repo:HOME`"
        )));
    }
    let (homes, folders): (Vec<&String>, Vec<&String>) =
        arguments.sources.iter().partition(|source| source.starts_with("repo:"));
    let options = options(arguments)?;
    let mut vault = open::open_alone(&arguments.vault)?;
    vault.set_compression(compression(arguments.compression));
    let vault = Arc::new(vault);
    let wait = std::time::Duration::from_secs(arguments.vault.retry_lock);
    // The lock tells others which process to look for, whatever host the snapshot is to name.
    let who = tympan_backup::Who::this_process();
    let lock = tympan_backup::Lock::take(&vault, &who, LockMode::Shared, wait);
    let lock = lock.map_err(failed)?;
    let progress = Arc::new(Progress::default());
    let watch = Watch::begin(&progress);
    let mut ended = Vec::new();
    if !folders.is_empty() {
        let paths: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
        let index = Arc::new(Index::load(&vault).map_err(failed)?);
        let session = Session::new((&vault, &index), &lock, &progress);
        let begin = Instant::now();
        let saved = save_directories(&session, &paths, &options).map_err(failed)?;
        ended.push((Some(saved), begin.elapsed()));
    }
    for home in homes {
        let home = Path::new(home.strip_prefix("repo:").unwrap_or(home));
        let index = Arc::new(Index::load(&vault).map_err(failed)?);
        let session = Session::new((&vault, &index), &lock, &progress);
        let begin = Instant::now();
        ended.push((save_home(&session, home, &options)?, begin.elapsed()));
    }
    drop(watch);
    let is_whole = ended.iter().flat_map(|(saved, _)| saved).all(|saved| saved.faults.is_empty());
    for (saved, elapsed) in &ended {
        tell(saved.as_ref(), elapsed.as_millis(), arguments.vault.json);
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

fn options(arguments: &Save) -> Result<SaveOptions, Fault> {
    let mut options = SaveOptions::new(tympan_backup::Who::this_process(), open::now());
    options.excludes = Excludes::new(arguments.exclude.clone()).map_err(failed)?;
    options.excludes.caches = arguments.exclude_caches;
    options.excludes.other_file_systems = arguments.one_file_system;
    options.tags.clone_from(&arguments.tag);
    if let Some(host) = &arguments.host {
        options.who.host.clone_from(host);
    }
    if arguments.force {
        options.parent = Parent::Nothing;
    }
    Ok(options)
}

const fn compression(level: CompressionLevel) -> Compression {
    match level {
        CompressionLevel::Auto => Compression::Auto,
        CompressionLevel::Off => Compression::Off,
        CompressionLevel::Fastest => Compression::Fastest,
        CompressionLevel::Better => Compression::Better,
        CompressionLevel::Max => Compression::Max,
    }
}

/// Saves the repository of a home, beside the instance that may be writing it.
fn save_home(
    session: &Session<'_>,
    home: &Path,
    options: &SaveOptions,
) -> Result<Option<Saved>, Fault> {
    require_home(home)?;
    let refused = |what: &str| {
        Fault::usage(format!(
            "`{}` {what}; saving such a repository is not there yet",
            home.display()
        ))
    };
    if home.join("store").join(crate::backend::MARK).exists() {
        return Err(refused("has its repository in a database"));
    }
    if home.join("base.toml").exists() {
        return Err(refused("is a clone, which lies over another repository"));
    }
    let failed_home = |error: &dyn std::error::Error| {
        Fault::with_code(format!("cannot read the home `{}`: {}", home.display(), chain(error)), 1)
    };
    let full = home.canonicalize().map_err(|error| failed_home(&error))?;
    let base = FollowedStore::open_dir(&home.join("store"), LocalOptions::default())
        .map_err(|error| failed_home(&error))?;
    let blobs = FolderBlobs::new(&home.join("blobs"));
    let path = format!("/tympan{}", full.display());
    let source = RepositorySource { base: &base, blobs: &blobs, reference: MAIN, path: &path };
    save_repository(session, source, options).map_err(failed)
}

fn tell(saved: Option<&Saved>, elapsed_ms: u128, json: bool) {
    let Some(saved) = saved else {
        if json {
            say!("{}", json!({ "message_type": "unchanged" }));
        } else {
            say!("nothing changed since the snapshot before; none was made");
        }
        return;
    };
    let (written, snapshot) = (&saved.written, &saved.snapshot);
    for fault in &saved.faults {
        if json {
            say!(
                "{}",
                json!({ "message_type": "error", "item": fault.path, "error": fault.message })
            );
        } else {
            say!("not saved: {fault}");
        }
    }
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "snapshot_id": snapshot.id.to_string(), "paths": snapshot.paths,
                "data_blobs": written.pieces, "tree_blobs": written.folders, "data_added": written.plain_bytes,
                "data_added_packed": written.stored_bytes, "elapsed_ms": elapsed_ms, "errors": saved.faults.len(),
            })
        );
    } else {
        say!(
            "snapshot {} of {}: {} new pieces, {} new folders, {} stored, {elapsed_ms} ms",
            snapshot.id.short(),
            snapshot.paths.join(", "),
            written.pieces,
            written.folders,
            indicatif::HumanBytes(written.stored_bytes)
        );
    }
}
