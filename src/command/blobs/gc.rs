//! `tympan blobs gc`: marks and sweeps.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tympan_blobs::garbage_collection::{BlobTally, SweepMode, SweepOptions, SweepReport};
use tympan_home::trusted_now;
use tympan_store::GarbageCollectionProgress;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandOutcome, say};

use super::format_time;
use crate::home::open_existing_home;
use crate::home_fault::home_fault;

/// The extent of a garbage collection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlobGcMode {
    /// Changes nothing; prints what would be done.
    DryRun,
    /// Only marks the blobs that this repository needs.
    Mark,
    /// Also moves blobs that no repository needs to the trash.
    Sweep,
}

/// Marks and sweeps.
pub(super) fn run_blob_gc(
    home: &Path,
    mode: BlobGcMode,
    grace: Duration,
    window: Duration,
    json: bool,
) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let sharing = home.blob_sharing();
    let chunks = &**home.repository.chunks();
    let now = trusted_now(&home.dir, chunks, SystemTime::now());
    let mut marked = None;
    if mode != BlobGcMode::DryRun {
        let go_on = &mut |_: &GarbageCollectionProgress| ControlFlow::Continue(());
        marked = sharing.mark_needed_blobs(chunks, go_on).map_err(home_fault)?;
    }
    let mut swept = Vec::new();
    if mode != BlobGcMode::Mark {
        let kind = if mode == BlobGcMode::DryRun { SweepMode::DryRun } else { SweepMode::Remove };
        let options = SweepOptions {
            grace_period: grace,
            trash_retention: window,
            ..sharing.sweep_options(kind, now).map_err(home_fault)?
        };
        let go_on = &mut || ControlFlow::Continue(());
        swept = sharing.sweep(&options, go_on).map_err(home_fault)?;
    }
    if json {
        let storages: Vec<Value> =
            swept.iter().map(|(role, swept)| sweep_json(role, swept)).collect();
        let count = marked.as_ref().map(|marked| marked.blob_count);
        let untold = marked.as_ref().map(|marked| &*marked.unreachable_owners).unwrap_or_default();
        say!("{}", json!({ "needs": count, "places": storages, "untold": untold }));
    } else {
        if let Some(marked) = &marked {
            say!("this repository needs {} blobs", marked.blob_count);
            marked.unreachable_owners.iter().for_each(|reason| say!("not notified: {reason}"));
        }
        swept.iter().for_each(|(role, swept)| print_sweep(role, swept, mode));
    }
    let is_told = marked.is_none_or(|marked| marked.unreachable_owners.is_empty());
    Ok(if is_told { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

fn print_sweep(role: &str, swept: &SweepReport, mode: BlobGcMode) {
    let would = if mode == BlobGcMode::DryRun { "would " } else { "" };
    if let Some(until) = swept.occupied_until {
        say!(
            "{role}: another process is sweeping, until {} at the latest; retry then",
            format_time(until)
        );
        return;
    }
    let SweepReport {
        live,
        too_young: young,
        discarded,
        restored,
        purged,
        remaining_trash: in_trash,
        ..
    } = swept;
    say!("{role}: {} blobs, {} bytes are needed", live.blob_count, live.bytes);
    say!("  {} blobs, {} bytes {would}move to the trash", discarded.blob_count, discarded.bytes);
    say!("  {} blobs, {} bytes {would}leave the trash for good", purged.blob_count, purged.bytes);
    say!("  {} blobs, {} bytes stay in the trash", in_trash.blob_count, in_trash.bytes);
    if restored.blob_count > 0 {
        say!(
            "  {} blobs, {} bytes {would}return from the trash, as they are needed",
            restored.blob_count,
            restored.bytes
        );
    }
    if young.blob_count > 0 {
        say!("  {} blobs, {} bytes are too recent to be swept", young.blob_count, young.bytes);
    }
    if let Some((name, mark_time)) = &swept.oldest_marks {
        say!("  the oldest marks are those of {name}, from {}", format_time(*mark_time));
    }
    for name in &swept.unmarked_members {
        say!("  nothing is removed until {name} has marked the blobs that it needs");
    }
}

fn sweep_json(role: &str, swept: &SweepReport) -> Value {
    let tally = |tally: BlobTally| json!({ "blobs": tally.blob_count, "bytes": tally.bytes });
    json!({
        "role": role,
        "live": tally(swept.live),
        "young": tally(swept.too_young),
        "discarded": tally(swept.discarded),
        "restored": tally(swept.restored),
        "purged": tally(swept.purged),
        "inTrash": tally(swept.remaining_trash),
        "waitsFor": swept.unmarked_members,
        "othersUntil": swept.occupied_until.map(format_time),
        "oldest": swept.oldest_marks.as_ref().map(|(name, begun)| json!({ "name": name, "begun": format_time(*begun) })),
    })
}
