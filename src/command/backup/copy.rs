//! `tympan backup save --to`: plain copies.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tympan_backup::{
    BackupProgress, BackupRepositorySource, BackupRunKind, BackupRunLog, BackupRunRecord,
    CopyDepth, CopyReport, CopyTarget, VaultUser, copy_repository, is_repository_source,
};
use tympan_home::MAIN_BRANCH;
use tympan_home_backup::{BaseCoverage, open_source};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::instance_access::instance_access;
use super::{
    INCOMPLETE_EXIT_CODE, ProgressDisplay, backup_fault, home_backup_fault, vault_session,
};
use crate::args::backup::BackupSaveArgs;
use crate::home::home_access;

/// The name of the run log of copies, among those of vaults.
pub(super) const COPY_LOG_NAME: &str = "copies";

/// Copies a repository.
pub(super) fn run_repository_copy(
    arguments: &BackupSaveArgs,
    destination: &Path,
) -> CommandOutcome {
    let [name] = arguments.sources.as_slice() else {
        return Err(CommandFault::usage(
            "a plain copy takes exactly one repository: name one source",
        ));
    };
    if !is_repository_source(name) {
        return Err(CommandFault::usage(format!(
            "a plain copy takes a repository, `repo:HOME` or a URL; copy the folder `{name}` with `cp -a`, or \
             save it into a vault"
        )));
    }
    let is_zip = destination.extension().is_some_and(|end| end.eq_ignore_ascii_case("zip"));
    let target = if is_zip {
        CopyTarget::Zip(destination.to_owned())
    } else {
        CopyTarget::Folder(destination.to_owned())
    };
    let depth = if arguments.force { CopyDepth::Everything } else { CopyDepth::MissingOnly };
    // A copy is self-contained.
    let instance = instance_access(&arguments.instance)?;
    let opened = open_source(&home_access(), name, &instance, BaseCoverage::SavedHere);
    let opened = opened.map_err(home_backup_fault)?;
    let source = BackupRepositorySource {
        base: &*opened.base,
        blobs: &*opened.blobs,
        reference: MAIN_BRANCH,
        path: &opened.snapshot_path,
        view: None,
        base_owner: None,
        files: &[],
    };
    let (start, begin) = (vault_session::current_timestamp(), Instant::now());
    let progress = Arc::new(BackupProgress::default());
    let (quiet, json) = (arguments.tuning.quiet, arguments.vault.json);
    let watch = if quiet {
        ProgressDisplay::start_silent(&progress)
    } else {
        ProgressDisplay::start(&progress, json)
    };
    let copied = copy_repository(source, &target, (&VaultUser::this_process(), depth), &progress);
    drop(watch);
    let copied = copied.map_err(backup_fault);
    record_copy_run(&copied, start, &opened.snapshot_path, destination, &progress);
    let copied = copied?;
    print_copy_report(&copied, destination, begin.elapsed().as_millis(), arguments);
    Ok(if copied.faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(INCOMPLETE_EXIT_CODE)
    })
}

/// Appends the run to the log.
fn record_copy_run(
    copied: &Result<CopyReport, CommandFault>,
    start: jiff::Timestamp,
    path: &str,
    destination: &Path,
    progress: &BackupProgress,
) {
    let paths = vec![path.to_owned(), destination.display().to_string()];
    let outcome = match copied {
        Ok(_) => Ok(None),
        Err(fault) => Err(fault.message().to_owned()),
    };
    let mut run =
        BackupRunRecord::of((start, vault_session::current_timestamp()), paths, outcome, progress);
    if let Ok(copied) = copied {
        run.kind = BackupRunKind::Copy;
        run.stored_bytes = copied.written_bytes;
        run.faults = copied.faults.len() as u64;
    }
    if let Some(Err(error)) =
        vault_session::run_log_file(COPY_LOG_NAME).map(|file| BackupRunLog::new(file).append(&run))
    {
        tracing::warn!(reason = %error, "cannot record the run in the run log");
    }
}

fn print_copy_report(
    copied: &CopyReport,
    destination: &Path,
    elapsed_ms: u128,
    arguments: &BackupSaveArgs,
) {
    let CopyReport {
        root,
        is_incremental,
        written_files: files,
        written_bytes: bytes,
        removed_files: removed,
        faults,
    } = copied;
    let json = arguments.vault.json;
    for fault in faults {
        if json {
            say!(
                "{}",
                json!({ "message_type": "error", "item": fault.path, "error": fault.message })
            );
        } else {
            say!("not copied: {fault}");
        }
    }
    if arguments.tuning.quiet {
        return;
    }
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "root": root.to_string(), "incremental": is_incremental, "files": files,
                "bytes": bytes, "removed": removed, "elapsed_ms": elapsed_ms, "errors": faults.len(),
            })
        );
        return;
    }
    if !faults.is_empty() {
        say!(
            "`{}` is not a complete copy of the root {root}; an earlier copy there is still valid",
            destination.display()
        );
        return;
    }
    let kind = if *is_incremental { "was updated to" } else { "is a full copy of" };
    say!(
        "`{}` {kind} the root {root}: {files} files written, {}, {removed} removed, {elapsed_ms} ms",
        destination.display(),
        indicatif::HumanBytes(*bytes)
    );
}
