//! `tympan backup forget`, `prune`, `check` and `repair`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tympan_backup::{
    Clients, Depth, Id, Keep, LockMode, Progress, PruneOptions, Pruned, Snapshot, Vault, choose,
};

use super::{INCOMPLETE, Watch, failed, open, signals};
use crate::args::backup::{Forget, ReadArguments, VaultArguments};
use crate::clock;
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

/// Removes snapshots.
pub(super) fn forget(arguments: &Forget) -> Outcome {
    if !arguments.dry_run {
        refuse_append_only(&arguments.vault)?;
    }
    let opened = open::open(&arguments.vault)?;
    let mode = if arguments.dry_run { LockMode::Shared } else { LockMode::Exclusive };
    let lock = opened.lock(mode)?;
    let clients = open::clients(&arguments.clients);
    let (snapshots, faults) = opened.vault.readable_snapshots().map_err(failed)?;
    let (own, others): (Vec<Snapshot>, Vec<Snapshot>) =
        snapshots.into_iter().partition(|one| clients.include(one));
    let json = arguments.vault.json;
    // By what they are called: a damaged one says nothing else.
    let mut gone: Vec<(Id, String)> = Vec::new();
    let named = |one: &Snapshot| (one.id, format!("{} of {}", one.id.short(), one.time));
    if let Some(rule) = &arguments.keep {
        let mut keep = Keep::parse(rule).map_err(failed)?;
        keep.tags.clone_from(&arguments.keep_tag);
        if keep.is_everything() {
            return Err(Fault::usage(
                "the rule keeps nothing in particular; write `--keep 7d,4w,12m`",
            ));
        }
        // A rule must not count without those that cannot be read.
        if let Some(fault) = faults.into_iter().next() {
            return Err(failed(fault));
        }
        let chosen = choose(&own, &keep);
        gone.extend(
            chosen.iter().filter(|(_, reasons)| reasons.is_empty()).map(|(one, _)| named(one)),
        );
    }
    for name in &arguments.snapshots {
        for id in ids_of(&opened.vault, name, &clients)? {
            let known = own.iter().chain(&others).find(|one| one.id == id);
            let damaged = || (id, format!("{}, which is damaged", id.short()));
            gone.push(known.map_or_else(damaged, named));
        }
    }
    // Together, so that a vault that cannot be pruned keeps its snapshots, too.
    let pruned = if arguments.prune && !arguments.dry_run {
        let forget = gone.iter().map(|(id, _)| *id).collect();
        Some(prune_under(&opened, &lock, (forget, arguments.grace.grace), json)?)
    } else {
        None
    };
    for (id, words) in &gone {
        if signals::is_asked() {
            return Err(signals::interrupted());
        }
        if !arguments.dry_run && pruned.is_none() {
            lock.confirm().map_err(failed)?;
            opened.vault.forget(id).map_err(failed)?;
        }
        if json {
            say!(
                "{}",
                json!({ "message_type": "forgotten", "id": id.to_string(), "dry_run": arguments.dry_run })
            );
        } else {
            let verb = if arguments.dry_run { "would forget" } else { "forgot" };
            say!("{verb} {words}");
        }
    }
    let is_gone = |one: &&Snapshot| gone.iter().any(|(id, _)| *id == one.id);
    let left = own.len() - own.iter().filter(is_gone).count();
    let elsewhere = others.len() - others.iter().filter(is_gone).count();
    if json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "kept": left, "forgotten": gone.len(), "of_other_clients": elsewhere,
                "dry_run": arguments.dry_run,
            })
        );
    } else {
        let elsewhere = match elsewhere {
            0 => String::new(),
            count => format!("; {count} of other clients stay as they are (`--all-clients`)"),
        };
        say!("{left} of {} snapshots are kept{elsewhere}", own.len());
    }
    if let Some(pruned) = &pruned {
        tell_pruned(pruned, arguments.grace.grace, json);
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the ids of what is named: of all that one save has made for `latest`, of one that may be damaged otherwise.
fn ids_of(vault: &Vault, name: &str, clients: &Clients) -> Result<Vec<Id>, Fault> {
    if name == "latest" {
        let together = vault.find_saved_together(name, clients).map_err(failed)?;
        return Ok(together.iter().map(|one| one.id).collect());
    }
    Ok(vec![vault.find_snapshot_id(name, clients).map_err(failed)?])
}

/// Refuses at the start what could not be carried through.
fn refuse_append_only(arguments: &VaultArguments) -> Result<(), Fault> {
    if arguments.place.append_only {
        return Err(Fault::usage("nothing is removed from a vault that is opened append-only"));
    }
    Ok(())
}

/// Removes what no snapshot refers to.
pub(super) fn prune(arguments: &VaultArguments, grace: Duration) -> Outcome {
    refuse_append_only(arguments)?;
    let opened = open::open(arguments)?;
    let lock = opened.lock(LockMode::Exclusive)?;
    let pruned = prune_under(&opened, &lock, (Vec::new(), grace), arguments.json)?;
    tell_pruned(&pruned, grace, arguments.json);
    Ok(ExitCode::SUCCESS)
}

fn prune_under(
    opened: &open::Opened,
    lock: &tympan_backup::Lock,
    (forget, grace): (Vec<Id>, Duration),
    json: bool,
) -> Result<Pruned, Fault> {
    let progress = Arc::new(Progress::default());
    let _watch = Watch::begin(&progress, json);
    let trusted_now = trusted_now(opened, grace)?;
    let options = PruneOptions { forget, grace, now: open::now(), trusted_now };
    tympan_backup::prune(&opened.vault, lock, &options, &progress).map_err(failed)
}

/// Returns the time by which a grace is over.
fn trusted_now(opened: &open::Opened, grace: Duration) -> Result<jiff::Timestamp, Fault> {
    if grace.is_zero() {
        return Ok(open::now());
    }
    let file = open::clock(opened.vault.id());
    let snapshots = || {
        let all = opened.vault.snapshots().map_err(failed)?;
        Ok(all.iter().map(|one| one.timestamp().into()).collect())
    };
    let trusted = clock::trusted_for_vault(file.as_deref(), snapshots, SystemTime::now())?;
    Ok(trusted.try_into().unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

fn tell_pruned(pruned: &Pruned, grace: Duration, json: bool) {
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
            "removed {} packs; freed {}; {} were needed in part and written anew",
            pruned.removed_packs,
            indicatif::HumanBytes(pruned.freed_bytes),
            pruned.rewritten_packs
        );
        if pruned.marked_packs > 0 {
            say!(
                "{} packs, {}, are marked: a prune removes them when they have been for {}",
                pruned.marked_packs,
                indicatif::HumanBytes(pruned.marked_bytes),
                indicatif::HumanDuration(grace)
            );
        }
        if pruned.recovered_packs > 0 {
            say!("{} marked packs are needed after all and stay", pruned.recovered_packs);
        }
    }
}

/// Checks the vault.
pub(super) fn check(
    (arguments, reading): (&VaultArguments, ReadArguments),
    read_data: bool,
    subset: Option<&str>,
) -> Outcome {
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
    // What is kept here tells nothing about what is there.
    let mut there = arguments.clone();
    there.place.tree_cache = Some(0);
    let opened = open::open(&there)?;
    let _lock = opened.lock_to_read(reading)?;
    let progress = Arc::new(Progress::default());
    let watch = Watch::begin(&progress, arguments.json);
    let report = tympan_backup::check(&opened.vault, depth, &progress).map_err(failed)?;
    drop(watch);
    if arguments.json {
        say!(
            "{}",
            json!({
                "message_type": "summary", "num_errors": report.faults.len(), "snapshots": report.snapshots, "packs": report.packs, "packs_read": report.packs_read,
                "unlisted_packs": report.unlisted_packs, "marked_packs": report.marked_packs, "faults": report.faults,
            })
        );
    } else {
        for fault in &report.faults {
            say!("{fault}");
        }
        say!(
            "{} snapshots, {} packs, {} of them read, {} left over by runs that did not end, {} marked for removal; {} faults",
            report.snapshots,
            report.packs,
            report.packs_read,
            report.unlisted_packs,
            report.marked_packs,
            report.faults.len()
        );
    }
    Ok(if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

/// Makes a damaged vault sound again; exit code 3 if something is lost.
pub(super) fn repair(arguments: &VaultArguments, read_data: bool) -> Outcome {
    refuse_append_only(arguments)?;
    // What is kept here tells nothing about what is there.
    let mut there = arguments.clone();
    there.place.tree_cache = Some(0);
    let opened = open::open(&there)?;
    let lock = opened.lock(LockMode::Exclusive)?;
    let depth = if read_data { Depth::Data } else { Depth::Structure };
    let progress = Arc::new(Progress::default());
    let watch = Watch::begin(&progress, arguments.json);
    let repaired = tympan_backup::repair(&opened.vault, &lock, (depth, open::now()), &progress);
    let repaired = repaired.map_err(failed)?;
    drop(watch);
    if arguments.json {
        let mended = repaired.mended_snapshots.iter();
        let mended: Vec<_> = mended
            .map(|(old, new)| json!({ "old": old.to_string(), "new": new.to_string() }))
            .collect();
        say!(
            "{}",
            json!({
                "message_type": "repaired", "listed_packs": repaired.listed_packs,
                "missing_packs": repaired.missing_packs, "damaged_packs": repaired.damaged_packs,
                "saved_blobs": repaired.saved_blobs, "damaged_index_files": repaired.damaged_index_files,
                "mended_snapshots": mended, "lost": repaired.lost,
            })
        );
    } else {
        for lost in &repaired.lost {
            say!("lost: {lost}");
        }
        for (old, new) in &repaired.mended_snapshots {
            say!("the snapshot {} is now {}, without what is lost", old.short(), new.short());
        }
        say!(
            "listed {} packs anew; {} are missing, {} damaged, with {} pieces and folders whole; {} index files were damaged",
            repaired.listed_packs,
            repaired.missing_packs,
            repaired.damaged_packs,
            repaired.saved_blobs,
            repaired.damaged_index_files
        );
    }
    Ok(if repaired.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}
