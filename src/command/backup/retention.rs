//! `tympan backup forget`, `prune`, `check` and `repair`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tympan_backup::{
    BackupProgress, CheckDepth, ClientFilter, PruneOptions, PruneReport, RetentionPolicy, Vault,
    VaultLockMode, VaultObjectId, VaultSnapshot, apply_retention,
};
use tympan_home::trusted_for_vault;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::{INCOMPLETE_EXIT_CODE, ProgressDisplay, backup_fault, interrupt_signal, vault_session};
use crate::args::backup::{ForgetSnapshotsArgs, VaultArgs, VaultReadArgs};

/// Removes snapshots.
pub(super) fn forget_snapshots(arguments: &ForgetSnapshotsArgs) -> CommandOutcome {
    if !arguments.dry_run {
        refuse_append_only(&arguments.vault)?;
    }
    let opened = vault_session::open_vault(&arguments.vault)?;
    let mode = if arguments.dry_run { VaultLockMode::Shared } else { VaultLockMode::Exclusive };
    let lock = opened.lock(mode)?;
    let clients = vault_session::selected_clients(&arguments.clients);
    let (snapshots, faults) = opened.vault.read_readable_snapshots().map_err(backup_fault)?;
    let (own, others): (Vec<VaultSnapshot>, Vec<VaultSnapshot>) =
        snapshots.into_iter().partition(|snapshot| clients.includes(snapshot));
    let json = arguments.vault.json;
    // By the names given: a damaged snapshot has no other identification.
    let mut removed_snapshots: Vec<(VaultObjectId, String)> = Vec::new();
    let named = |snapshot: &VaultSnapshot| {
        (snapshot.id, format!("{} of {}", snapshot.id.short(), snapshot.time))
    };
    if let Some(rule) = &arguments.keep {
        let mut keep = RetentionPolicy::parse(rule).map_err(backup_fault)?;
        keep.tags.clone_from(&arguments.keep_tag);
        if keep.keeps_everything() {
            return Err(CommandFault::usage(
                "the rule would keep every snapshot; write `--keep 7d,4w,12m`",
            ));
        }
        // A policy must not be applied while some snapshots cannot be read.
        if let Some(fault) = faults.into_iter().next() {
            return Err(backup_fault(fault));
        }
        let chosen = apply_retention(&own, &keep);
        removed_snapshots.extend(
            chosen
                .iter()
                .filter(|(_, reasons)| reasons.is_empty())
                .map(|(snapshot, _)| named(snapshot)),
        );
    }
    for name in &arguments.snapshots {
        for id in matching_snapshot_ids(&opened.vault, name, &clients)? {
            let listed_snapshot = own.iter().chain(&others).find(|snapshot| snapshot.id == id);
            let damaged = || (id, format!("{}, which is damaged", id.short()));
            removed_snapshots.push(listed_snapshot.map_or_else(damaged, named));
        }
    }
    // Forget and prune are one step, so that a vault that cannot be pruned also keeps its snapshots.
    let pruned = if arguments.prune && !arguments.dry_run {
        let forget = removed_snapshots.iter().map(|(id, _)| *id).collect();
        Some(prune_with_lock(&opened, &lock, forget, arguments.grace.grace, json)?)
    } else {
        None
    };
    for (id, words) in &removed_snapshots {
        if interrupt_signal::is_interrupted() {
            return Err(interrupt_signal::interrupted_fault());
        }
        if !arguments.dry_run && pruned.is_none() {
            lock.check_held().map_err(backup_fault)?;
            opened.vault.remove_snapshot(id).map_err(backup_fault)?;
        }
        if json {
            say!(
                "{}",
                json!({ "message_type": "forgotten", "id": id.to_string(), "dry_run": arguments.dry_run })
            );
        } else {
            let verb = if arguments.dry_run { "would remove" } else { "removed" };
            say!("{verb} {words}");
        }
    }
    let is_gone =
        |snapshot: &&VaultSnapshot| removed_snapshots.iter().any(|(id, _)| *id == snapshot.id);
    let left = own.len() - own.iter().filter(is_gone).count();
    let elsewhere = others.len() - others.iter().filter(is_gone).count();
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "kept": left, "forgotten": removed_snapshots.len(), "of_other_clients": elsewhere,
                "dry_run": arguments.dry_run,
            })
        );
    } else {
        let elsewhere = match elsewhere {
            0 => String::new(),
            count => format!(
                "; {count} of other clients are not affected (`--all-clients` includes them)"
            ),
        };
        say!("{left} of {} snapshots are kept{elsewhere}", own.len());
    }
    if let Some(pruned) = &pruned {
        print_prune_report(pruned, arguments.grace.grace, json);
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the ids of the named snapshots: for `latest`, of all snapshots of one save; otherwise of one snapshot, which
/// may be damaged.
fn matching_snapshot_ids(
    vault: &Vault,
    name: &str,
    clients: &ClientFilter,
) -> Result<Vec<VaultObjectId>, CommandFault> {
    if name == "latest" {
        let together = vault.find_run_snapshots(name, clients).map_err(backup_fault)?;
        return Ok(together.iter().map(|snapshot| snapshot.id).collect());
    }
    Ok(vec![vault.find_snapshot_id(name, clients).map_err(backup_fault)?])
}

/// Refuses early an operation that an append-only vault could not complete.
fn refuse_append_only(arguments: &VaultArgs) -> Result<(), CommandFault> {
    if arguments.place.append_only {
        return Err(CommandFault::usage(
            "cannot remove data from a vault that is opened append-only",
        ));
    }
    Ok(())
}

/// Removes data that no snapshot refers to.
pub(super) fn prune_vault(arguments: &VaultArgs, grace: Duration) -> CommandOutcome {
    refuse_append_only(arguments)?;
    let opened = vault_session::open_vault(arguments)?;
    let lock = opened.lock(VaultLockMode::Exclusive)?;
    let pruned = prune_with_lock(&opened, &lock, Vec::new(), grace, arguments.json)?;
    print_prune_report(&pruned, grace, arguments.json);
    Ok(ExitCode::SUCCESS)
}

fn prune_with_lock(
    opened: &vault_session::VaultSession,
    lock: &tympan_backup::VaultLock,
    forget: Vec<VaultObjectId>,
    grace: Duration,
    json: bool,
) -> Result<PruneReport, CommandFault> {
    let progress = Arc::new(BackupProgress::default());
    let _watch = ProgressDisplay::start(&progress, json);
    let trusted_now = trusted_now_for_grace(opened, grace)?;
    let options = PruneOptions {
        snapshots_to_remove: forget,
        grace_period: grace,
        now: vault_session::current_timestamp(),
        trusted_now,
    };
    tympan_backup::prune_snapshots(&opened.vault, lock, &options, &progress).map_err(backup_fault)
}

/// Returns the time that the grace period is measured against.
fn trusted_now_for_grace(
    opened: &vault_session::VaultSession,
    grace: Duration,
) -> Result<jiff::Timestamp, CommandFault> {
    if grace.is_zero() {
        return Ok(vault_session::current_timestamp());
    }
    let file = vault_session::clock_record_file(opened.vault.id());
    let snapshots = || {
        let all = opened.vault.read_snapshots().map_err(backup_fault)?;
        Ok(all.iter().map(|snapshot| snapshot.timestamp().into()).collect())
    };
    let trusted = trusted_for_vault(file.as_deref(), snapshots, SystemTime::now())?;
    Ok(trusted.try_into().unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

fn print_prune_report(pruned: &PruneReport, grace: Duration, json: bool) {
    if json {
        say!(
            "{}",
            json!({
                "message_type": "pruned", "removed_packs": pruned.removed_packs, "rewritten_packs": pruned.rewritten_packs,
                "freed_bytes": pruned.freed_bytes, "unused_bytes": pruned.unused_bytes,
                "marked_packs": pruned.marked_packs, "marked_bytes": pruned.marked_bytes,
                "recovered_packs": pruned.recovered_packs,
            })
        );
    } else {
        say!(
            "removed {} packs; freed {}; {} were partly needed and rewritten",
            pruned.removed_packs,
            indicatif::HumanBytes(pruned.freed_bytes),
            pruned.rewritten_packs
        );
        if pruned.marked_packs > 0 {
            say!(
                "{} packs, {}, are marked for removal: a prune removes them once they have been marked for {}",
                pruned.marked_packs,
                indicatif::HumanBytes(pruned.marked_bytes),
                indicatif::HumanDuration(grace)
            );
        }
        if pruned.recovered_packs > 0 {
            say!("{} marked packs are needed again and were kept", pruned.recovered_packs);
        }
    }
}

/// Checks the vault.
pub(super) fn check_vault(
    (arguments, reading): (&VaultArgs, VaultReadArgs),
    read_data: bool,
    subset: Option<&str>,
) -> CommandOutcome {
    let depth = match subset {
        _ if read_data => CheckDepth::Data,
        None => CheckDepth::Structure,
        Some(text) => {
            let parts = text.split_once('/');
            let numbers = parts
                .and_then(|(part_number, of)| Some((part_number.parse().ok()?, of.parse().ok()?)));
            match numbers {
                Some((number, of)) if (1..=of).contains(&number) => CheckDepth::Subset(number, of),
                _ => {
                    return Err(CommandFault::usage(format!(
                        "`{text}` is not a part; write `2/7`"
                    )));
                }
            }
        }
    };
    // The local cache says nothing about the state of the vault.
    let mut there = arguments.clone();
    there.place.tree_cache = Some(0);
    let opened = vault_session::open_vault(&there)?;
    let _lock = opened.lock_for_reading(reading)?;
    let progress = Arc::new(BackupProgress::default());
    let watch = ProgressDisplay::start(&progress, arguments.json);
    let report =
        tympan_backup::check_vault(&opened.vault, depth, &progress).map_err(backup_fault)?;
    drop(watch);
    if arguments.json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "num_errors": report.faults.len(), "snapshots": report.snapshots, "packs": report.packs, "packs_read": report.packs_read,
                "unlisted_packs": report.unindexed_packs, "marked_packs": report.marked_packs, "faults": report.faults,
            })
        );
    } else {
        for fault in &report.faults {
            say!("{fault}");
        }
        say!(
            "{} snapshots, {} packs, {} of them read, {} left over by unfinished runs, {} marked for removal; \
             {} faults",
            report.snapshots,
            report.packs,
            report.packs_read,
            report.unindexed_packs,
            report.marked_packs,
            report.faults.len()
        );
    }
    Ok(if report.faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(CHECK_FAILED_EXIT_CODE)
    })
}

/// Repairs a damaged vault; exit code 3 if data is lost.
pub(super) fn repair_vault(arguments: &VaultArgs, read_data: bool) -> CommandOutcome {
    refuse_append_only(arguments)?;
    // The local cache says nothing about the state of the vault.
    let mut there = arguments.clone();
    there.place.tree_cache = Some(0);
    let opened = vault_session::open_vault(&there)?;
    let lock = opened.lock(VaultLockMode::Exclusive)?;
    let depth = if read_data { CheckDepth::Data } else { CheckDepth::Structure };
    let progress = Arc::new(BackupProgress::default());
    let watch = ProgressDisplay::start(&progress, arguments.json);
    let repaired = tympan_backup::repair_vault(
        &opened.vault,
        &lock,
        (depth, vault_session::current_timestamp()),
        &progress,
    );
    let repaired = repaired.map_err(backup_fault)?;
    drop(watch);
    if arguments.json {
        let mended = repaired.repaired_snapshots.iter();
        let mended: Vec<_> = mended
            .map(|(old, new)| json!({ "old": old.to_string(), "new": new.to_string() }))
            .collect();
        say!(
            "{}",
            json!({
                "message_type": "repaired", "listed_packs": repaired.added_packs,
                "missing_packs": repaired.missing_packs, "damaged_packs": repaired.damaged_packs,
                "saved_blobs": repaired.salvaged_blobs, "damaged_index_files": repaired.damaged_index_files,
                "mended_snapshots": mended, "lost": repaired.losses,
            })
        );
    } else {
        for lost in &repaired.losses {
            say!("lost: {lost}");
        }
        for (old, new) in &repaired.repaired_snapshots {
            say!("the snapshot {} is now {}, without the lost data", old.short(), new.short());
        }
        say!(
            "added {} packs to the index; {} are missing, {} damaged, with {} pieces and folders intact; {} \
             index files were damaged",
            repaired.added_packs,
            repaired.missing_packs,
            repaired.damaged_packs,
            repaired.salvaged_blobs,
            repaired.damaged_index_files
        );
    }
    Ok(if repaired.losses.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(INCOMPLETE_EXIT_CODE)
    })
}
