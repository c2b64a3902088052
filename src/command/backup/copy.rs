//! `tympan backup save --to`: plain copies.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tympan_backup::{
    Copied, CopyDepth, CopyTarget, Progress, RepositorySource, Run, RunKind, RunLog, Who,
    copy_repository,
};

use super::save::is_repository;
use super::source::OfBase;
use super::{INCOMPLETE, Watch, failed, open, source};
use crate::args::backup::Save;
use crate::base::MAIN;
use crate::command::{Fault, Outcome};
use crate::say;

/// The name of the log of copies, among those of vaults.
pub(super) const LOG: &str = "copies";

/// Copies a repository.
pub(super) fn run(arguments: &Save, place: &Path) -> Outcome {
    let [name] = arguments.sources.as_slice() else {
        return Err(Fault::usage("a plain copy is of one repository: name one source"));
    };
    if !is_repository(name) {
        return Err(Fault::usage(format!(
            "a plain copy is of a repository, `repo:HOME` or a URL; copy the folder `{name}` with `cp -a`, or save it into a vault"
        )));
    }
    let is_zip = place.extension().is_some_and(|end| end.eq_ignore_ascii_case("zip"));
    let target = if is_zip {
        CopyTarget::Zip(place.to_owned())
    } else {
        CopyTarget::Folder(place.to_owned())
    };
    let depth = if arguments.force { CopyDepth::Everything } else { CopyDepth::Changes };
    // A copy is whole by itself.
    let opened = source::open(name, arguments, OfBase::Saved)?;
    let source = RepositorySource {
        base: &*opened.base,
        blobs: &*opened.blobs,
        reference: MAIN,
        path: &opened.path,
        view: None,
        below: None,
        files: &[],
    };
    let (start, begin) = (open::now(), Instant::now());
    let progress = Arc::new(Progress::default());
    let (quiet, json) = (arguments.tuning.quiet, arguments.vault.json);
    let watch = if quiet { Watch::silent(&progress) } else { Watch::begin(&progress, json) };
    let copied = copy_repository(source, &target, (&Who::this_process(), depth), &progress);
    drop(watch);
    let copied = copied.map_err(failed);
    note(&copied, (start, &opened.path, place), &progress);
    let copied = copied?;
    tell(&copied, (place, begin.elapsed().as_millis()), arguments);
    Ok(if copied.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

/// Writes the run into the log.
fn note(
    copied: &Result<Copied, Fault>,
    (start, path, place): (jiff::Timestamp, &str, &Path),
    progress: &Progress,
) {
    let paths = vec![path.to_owned(), place.display().to_string()];
    let outcome = match copied {
        Ok(_) => Ok(None),
        Err(fault) => Err(fault.message().to_owned()),
    };
    let mut run = Run::of((start, open::now()), paths, outcome, progress);
    if let Ok(copied) = copied {
        run.kind = RunKind::Copy;
        run.stored_bytes = copied.bytes;
        run.faults = copied.faults.len() as u64;
    }
    if let Some(Err(error)) = open::runs(LOG).map(|file| RunLog::new(file).add(&run)) {
        tracing::warn!(reason = %error, "a run is not in the log of runs");
    }
}

fn tell(copied: &Copied, (place, elapsed_ms): (&Path, u128), arguments: &Save) {
    let Copied { root, is_incremental, files, bytes, removed, faults } = copied;
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
            "`{}` is no copy of the root {root}; an earlier copy there still counts",
            place.display()
        );
        return;
    }
    let kind = if *is_incremental { "brought up to" } else { "is a full copy of" };
    say!(
        "`{}` {kind} the root {root}: {files} files written, {}, {removed} removed, {elapsed_ms} ms",
        place.display(),
        indicatif::HumanBytes(*bytes)
    );
}
