//! `tympan backup estimate`: the time and space of the next save, and of a first one.
//!
//! The next save is performed without writing. A first save of folders is extrapolated from a part of the files. A
//! first save of a repository is taken from the last one in the run log, or performed without writing if there is none.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tympan_backup::{
    BackupProgress, BackupRunKind, BackupRunLog, BackupRunRecord, ParentSelection, SaveEstimate,
    SaveOptions, SaveSession, SaveSources, SourceSaveEstimate, VaultIndex, VaultLockMode,
    estimate_full_save, growth_bytes_per_day, save_directories, upload_bytes_per_second,
};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::source_selection::read_sources;
use super::{ProgressDisplay, backup_fault, save, vault_session};
use crate::args::backup::BackupSaveArgs;

/// Estimates each source.
pub(super) fn run_save_estimate(arguments: &BackupSaveArgs) -> CommandOutcome {
    let begin = Instant::now();
    let opened = vault_session::open_vault(&arguments.vault)?;
    let lock = opened.lock(VaultLockMode::Shared)?;
    let vault = Arc::new(opened.vault.to_dry_run());
    let index = Arc::new(VaultIndex::load(&vault).map_err(backup_fault)?);
    // A save opens the vault as well.
    let opening = begin.elapsed();
    let log = vault_session::run_log_file(vault.id()).map(BackupRunLog::new);
    let runs = log.and_then(|log| log.read().ok()).unwrap_or_default();
    // A dry run uploads nothing; on a local disk, packs are written in parallel with other work.
    let rate = if vault.is_remote() { upload_bytes_per_second(&runs) } else { None };
    let options = save::save_options(arguments)?;
    let SaveSources { repositories, folders: paths } = read_sources(arguments)?;
    if !paths.is_empty() {
        let progress = Arc::new(BackupProgress::default());
        save::limit_reading(&progress, &arguments.tuning);
        let watch = ProgressDisplay::start(&progress, arguments.vault.json);
        let session = SaveSession::new(&vault, &index, &lock, &progress);
        let begin = Instant::now();
        let saved = save_directories(&session, &paths, &options).map_err(backup_fault)?;
        let next =
            SourceSaveEstimate::from_save(Some(&saved), opening + begin.elapsed(), &progress)
                .limit_to_rate(rate);
        let SaveEstimate { files, bytes, duration: time, stored_bytes, .. } =
            estimate_full_save(&session, &paths, &options).map_err(backup_fault)?;
        let full =
            SourceSaveEstimate { items: files, bytes, duration: opening + time, stored_bytes };
        let full = full.limit_to_rate(rate);
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        drop(watch);
        print_estimate(
            &names.join(", "),
            [&full, &next],
            growth_bytes_per_day(&runs, &saved.snapshot.paths),
            arguments.vault.json,
        );
    }
    for source in &repositories {
        let dry = |options: &SaveOptions| {
            let progress = Arc::new(BackupProgress::default());
            save::limit_reading(&progress, &arguments.tuning);
            let _watch = ProgressDisplay::start(&progress, arguments.vault.json);
            let session = SaveSession::new(&vault, &index, &lock, &progress);
            let begin = Instant::now();
            let repository = save::open_repository(source, arguments)?;
            let saved = repository.save(&session, options).map_err(backup_fault)?;
            let took = opening + begin.elapsed();
            let predicted = SourceSaveEstimate::from_save(saved.as_ref(), took, &progress);
            let path = repository.snapshot_path().to_owned();
            Ok::<_, CommandFault>((predicted.limit_to_rate(rate), path))
        };
        let (next, path) = dry(&options)?;
        let paths = [path];
        let is_full =
            |run: &&BackupRunRecord| run.kind == BackupRunKind::Full && run.paths == paths;
        let full = match runs.iter().rev().find(is_full) {
            Some(run) => SourceSaveEstimate::from_run(run),
            None => dry(&SaveOptions { parent: ParentSelection::Nothing, ..options.clone() })?.0,
        };
        let growth = growth_bytes_per_day(&runs, &paths);
        print_estimate(source, [&full, &next], growth, arguments.vault.json);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_estimate(
    source: &str,
    [full, next]: [&SourceSaveEstimate; 2],
    growth: Option<f64>,
    json: bool,
) {
    if json {
        let of = |estimate: &SourceSaveEstimate| {
            json!({
                "items": estimate.items, "bytes": estimate.bytes, "elapsed_ms": estimate.duration.as_millis(),
                "data_added_packed": estimate.stored_bytes,
            })
        };
        say!(
            "{}",
            json!({
                "message_type": "estimate", "source": source, "full": of(full), "next": of(next),
                "bytes_per_day": growth,
            })
        );
        return;
    }
    say!("{source}: {} items, {}", full.items, indicatif::HumanBytes(full.bytes));
    for (label, estimate) in [("a first save", full), ("the next save", next)] {
        let seconds = estimate.duration.as_secs_f64();
        say!(
            "  {label}: {seconds:.1} s, {} into the vault",
            indicatif::HumanBytes(estimate.stored_bytes)
        );
    }
    if let Some(bytes) = growth {
        say!("  growth so far: {} per day", indicatif::HumanBytes(bytes as u64));
    }
}
