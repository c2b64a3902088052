//! `tympan backup forget`, `prune` and `check`.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tympan_backup::{Depth, Keep, LockMode, Progress, Snapshot, choose};

use super::{Watch, failed, open};
use crate::args::backup::{Forget, VaultArguments};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

/// Removes snapshots.
pub(super) fn forget(arguments: &Forget) -> Outcome {
    let opened = open::open(&arguments.vault)?;
    let mode = if arguments.dry_run { LockMode::Shared } else { LockMode::Exclusive };
    let lock = opened.lock(mode)?;
    let snapshots = opened.vault.snapshots().map_err(failed)?;
    let json = arguments.vault.json;
    let mut gone: Vec<Snapshot> = Vec::new();
    if let Some(rule) = &arguments.keep {
        let mut keep = Keep::parse(rule).map_err(failed)?;
        keep.tags.clone_from(&arguments.keep_tag);
        if keep.is_everything() {
            return Err(Fault::usage(
                "the rule keeps nothing in particular; write `--keep 7d,4w,12m`",
            ));
        }
        let chosen = choose(&snapshots, &keep);
        gone.extend(
            chosen.iter().filter(|(_, reasons)| reasons.is_empty()).map(|(one, _)| (*one).clone()),
        );
    }
    for name in &arguments.snapshots {
        gone.push(opened.vault.find_snapshot(name).map_err(failed)?);
    }
    for snapshot in &gone {
        if !arguments.dry_run {
            lock.confirm().map_err(failed)?;
            opened.vault.forget(&snapshot.id).map_err(failed)?;
        }
        if json {
            say!(
                "{}",
                json!({ "message_type": "forgotten", "id": snapshot.id.to_string(), "dry_run": arguments.dry_run })
            );
        } else {
            let verb = if arguments.dry_run { "would forget" } else { "forgot" };
            say!("{verb} {} of {}", snapshot.id.short(), snapshot.time);
        }
    }
    if !json {
        say!(
            "{} of {} snapshots are kept",
            snapshots.len().saturating_sub(gone.len()),
            snapshots.len()
        );
    }
    if arguments.prune && !arguments.dry_run {
        prune_under(&opened, &lock, json)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes what no snapshot refers to.
pub(super) fn prune(arguments: &VaultArguments) -> Outcome {
    let opened = open::open(arguments)?;
    let lock = opened.lock(LockMode::Exclusive)?;
    prune_under(&opened, &lock, arguments.json)?;
    Ok(ExitCode::SUCCESS)
}

fn prune_under(opened: &open::Opened, lock: &tympan_backup::Lock, json: bool) -> Result<(), Fault> {
    let progress = Arc::new(Progress::default());
    let watch = Watch::begin(&progress);
    let pruned = tympan_backup::prune(&opened.vault, lock, &progress).map_err(failed)?;
    drop(watch);
    if json {
        say!(
            "{}",
            json!({
                "message_type": "pruned", "removed_packs": pruned.removed_packs, "rewritten_packs": pruned.rewritten_packs,
                "freed_bytes": pruned.freed_bytes, "unused_bytes": pruned.unused_bytes,
            })
        );
    } else {
        say!(
            "removed {} packs, of which {} were needed in part and written anew; freed {}",
            pruned.removed_packs,
            pruned.rewritten_packs,
            indicatif::HumanBytes(pruned.freed_bytes)
        );
    }
    Ok(())
}

/// Checks the vault.
pub(super) fn check(arguments: &VaultArguments, read_data: bool, subset: Option<&str>) -> Outcome {
    let depth = match subset {
        _ if read_data => Depth::Data,
        None => Depth::Structure,
        Some(text) => {
            let parts = text.split_once('/');
            let numbers = parts.and_then(|(one, of)| Some((one.parse().ok()?, of.parse().ok()?)));
            match numbers {
                Some((number, of)) if (1..=of).contains(&number) => Depth::Part(number, of),
                _ => return Err(Fault::usage(format!("`{text}` is no part; write `2/7`"))),
            }
        }
    };
    let opened = open::open(arguments)?;
    let _lock = opened.lock(LockMode::Shared)?;
    let progress = Arc::new(Progress::default());
    let watch = Watch::begin(&progress);
    let report = tympan_backup::check(&opened.vault, depth, &progress).map_err(failed)?;
    drop(watch);
    if arguments.json {
        say!(
            "{}",
            json!({
                "snapshots": report.snapshots, "packs": report.packs, "packs_read": report.packs_read,
                "unlisted_packs": report.unlisted_packs, "faults": report.faults,
            })
        );
    } else {
        for fault in &report.faults {
            say!("{fault}");
        }
        say!(
            "{} snapshots, {} packs, {} of them read, {} left over by runs that did not end; {} faults",
            report.snapshots,
            report.packs,
            report.packs_read,
            report.unlisted_packs,
            report.faults.len()
        );
    }
    Ok(if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}
