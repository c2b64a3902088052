//! `tympan repo check`: reports damage, the affected content, and the repair that is possible or was done.
//!
//! The stores are opened directly, because the command serves homes whose content can no longer be read.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};
use tympan_content::{IndexFault, JcrDate};
use tympan_home::{HomeStoreCheck, RepairMode, require_home};
use tympan_store::{RepairedPart, RepairedPartOutcome, StoreCheckReport, StoreRepairReport, key};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use crate::config;
use crate::home::home_access;
use crate::home_fault::home_fault;

/// The maximum number of lines of one list that are printed; further ones are only counted.
const MAX_PRINTED_LINES: usize = 100;

/// Verifies the hash of every record, walks every ref, lease and kept revision, checks every blob that content refers
/// to, and repairs damage if requested.
pub(super) fn run_repository_check(home: &Path, mode: RepairMode, json: bool) -> CommandOutcome {
    require_home(home).map_err(home_fault)?;
    let stores = open_stores(home)?;
    let mut inspection = stores.inspect(SystemTime::now()).map_err(home_fault)?;
    let first = inspection.report.clone();
    let mut repaired = None;
    if !json {
        print_findings(&first);
    }
    let stores = if first.is_clean() {
        stores
    } else {
        let done = stores.repair(&inspection, mode, SystemTime::now()).map_err(home_fault)?;
        if !json {
            print_repaired(&done, mode);
        }
        repaired = Some(done);
        match mode {
            RepairMode::Plan => stores,
            RepairMode::Repair => {
                // The remaining damage is determined from the state that the next start sees.
                drop(stores);
                let stores = open_stores(home)?;
                inspection = stores.inspect(SystemTime::now()).map_err(home_fault)?;
                stores
            }
        }
    };
    let mut missing = stores.check_blobs(&inspection.report);
    // Indexes can be compared only with readable content.
    let indexes = if inspection.report.is_clean() {
        stores.check_index_maps().map_err(home_fault)?
    } else {
        Vec::new()
    };
    let wrong: Vec<String> = indexes.iter().map(ToString::to_string).collect();
    match mode {
        RepairMode::Plan => {
            missing.extend(wrong.iter().map(|line| format!("{line}; `--repair` rebuilds it")))
        }
        RepairMode::Repair => {
            stores.rebuild_index_maps(&indexes, SystemTime::now()).map_err(home_fault)?;
            missing.extend(stores.remaining_index_faults(&indexes).map_err(home_fault)?);
        }
    }
    let is_clean = inspection.report.is_clean() && missing.is_empty();
    if json {
        let mut body = report_json(&inspection.report, &missing);
        if let (Some(body), Some(repaired)) = (body.as_object_mut(), &repaired) {
            let damage = report_json(&first, &[]);
            body.insert("damage".to_owned(), damage);
            body.insert("repair".to_owned(), repaired_json(repaired, mode));
        }
        if let Some(body) = body.as_object_mut() {
            body.insert("indexes".to_owned(), indexes_json(&indexes));
        }
        say!("{body}");
    } else {
        if repaired.is_some() && mode == RepairMode::Repair {
            print_findings(&inspection.report);
        }
        if mode == RepairMode::Repair && !wrong.is_empty() {
            say!("rebuilt indexes:");
            print_limited_list(&wrong);
        }
        print_limited_list(&missing);
        print_summary(&inspection.report, missing.len());
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

fn open_stores(home: &Path) -> Result<HomeStoreCheck, CommandFault> {
    let config = config::read_home_config(home)?.home_config();
    HomeStoreCheck::open(&home_access(), home, &config).map_err(home_fault)
}

/// Returns the path that a key represents.
fn key_path_text(key: &[u8]) -> String {
    match key::parse_key(key) {
        Ok(names) => format!("/{}", names.join("/")),
        Err(_) => String::from_utf8_lossy(key).escape_debug().to_string(),
    }
}

fn format_time(at: SystemTime) -> String {
    JcrDate::from_system_time(at).to_string()
}

/// Returns every finding of a check as a line.
fn finding_lines(report: &StoreCheckReport) -> Vec<String> {
    let mut lines = report.faults.clone();
    lines.extend(report.damaged_locations.iter().map(|location| {
        let path = key_path_text(&location.key);
        format!(
            "{}, {}: `{path}` cannot be read: {}",
            location.origin, location.map, location.fault
        )
    }));
    if report.unlisted_count > 0 {
        lines.push(format!("{} more locations are damaged", report.unlisted_count));
    }
    lines.extend(report.damaged_revisions.iter().map(|(name, count)| {
        format!("{count} of the kept revisions of `{name}` cannot be read in full")
    }));
    lines
}

fn print_limited_list(lines: &[String]) {
    lines.iter().take(MAX_PRINTED_LINES).for_each(|line| say!("{line}"));
    if let Some(more) = lines.len().checked_sub(MAX_PRINTED_LINES).filter(|more| *more > 0) {
        say!("… and {more} more; `--json` lists them");
    }
}

fn print_findings(report: &StoreCheckReport) {
    print_limited_list(&report.recovery_notes);
    print_limited_list(&finding_lines(report));
}

fn print_summary(report: &StoreCheckReport, missing_blobs: usize) {
    let faults = finding_lines(report).len() + missing_blobs;
    say!(
        "{} packs, {} commits, {} refs, {} leases, {} revisions, {} chunks ({} reachable), {} blobs, {} bytes: {}",
        report.pack_count,
        report.commit_count,
        report.ref_count,
        report.lease_count,
        report.revision_count,
        report.chunk_count,
        report.reachable_chunks,
        report.blob_count as usize + report.external_blobs.len(),
        report.pack_bytes,
        if faults == 0 { "clean".to_owned() } else { format!("{faults} faults") }
    );
}

fn repaired_part_line(part: &RepairedPart) -> String {
    let RepairedPart { ref_name: name, map, key, outcome } = part;
    let location = format!("{name} {map}: `{}`", key_path_text(key));
    match outcome {
        RepairedPartOutcome::Restored { sequence } => {
            format!("{location} restored from revision {sequence}")
        }
        RepairedPartOutcome::Lost => format!("{location} is lost: no kept revision has it intact"),
        RepairedPartOutcome::Span { to, records } => {
            let to = to.as_ref().map_or_else(|| "the end".to_owned(), |to| key_path_text(to));
            let records =
                if *records == 0 { String::new() } else { format!(", {records} records,") };
            format!("{location} up to `{to}`{records} cannot be read")
        }
    }
}

fn print_repaired(done: &StoreRepairReport, mode: RepairMode) {
    match mode {
        RepairMode::Plan => say!("`--repair` would do this:"),
        RepairMode::Repair => say!("repaired:"),
    }
    let mut lines = Vec::new();
    lines.extend(
        done.quarantined_files.iter().map(|file| format!("damaged file set aside: {file}")),
    );
    lines.extend(done.rebuilt_indexes.iter().map(|file| format!("index file rebuilt: {file}")));
    if done.moved_records > 0 {
        lines.push(format!("{} chunks and blobs moved out of damaged packs", done.moved_records));
    }
    for repaired_ref in &done.refs {
        let good = repaired_ref.last_good_revision.map_or_else(
            || "no kept revision is intact".to_owned(),
            |(sequence, at)| {
                format!("the newest intact revision is {sequence} from {}", format_time(at))
            },
        );
        let now = match (repaired_ref.new_root, repaired_ref.is_restorable) {
            (Some(root), _) => format!("is `{root}` now"),
            (None, true) => "gets a new state".to_owned(),
            (None, false) => {
                "is unchanged: none of it can be read; restore it from a backup".to_owned()
            }
        };
        lines.push(format!(
            "ref `{}`, damaged at `{}`, {now}; {good}",
            repaired_ref.name, repaired_ref.damaged_root
        ));
    }
    lines.extend(done.parts.iter().map(repaired_part_line));
    for repaired_revision in &done.revisions {
        let update = &repaired_revision.revision.update;
        let state = match (repaired_revision.new_root, mode) {
            (Some(root), _) => format!("is `{root}` now"),
            (None, RepairMode::Plan) => "is repaired or removed".to_owned(),
            (None, RepairMode::Repair) => {
                "was removed from the list: none of it can be read".to_owned()
            }
        };
        lines.push(format!(
            "revision {} of `{}`, {} by {}: {state}",
            repaired_revision.revision.sequence,
            update.name,
            format_time(update.updated_at),
            update.author
        ));
    }
    lines.extend(done.released_leases.iter().map(|lease| {
        format!("lease of `{}` released: `{}` cannot be read in full", lease.holder, lease.root)
    }));
    lines.extend(done.history_faults.iter().cloned());
    print_limited_list(&lines);
    say!("{} records restored, {} lost", done.restored_records, done.lost_records);
    if done.unlisted_count > 0 {
        say!("{} more parts and revisions are not listed", done.unlisted_count);
    }
}

fn report_json(report: &StoreCheckReport, missing_blobs: &[String]) -> Value {
    let mut faults = finding_lines(report);
    faults.extend_from_slice(missing_blobs);
    json!({
        "clean": faults.is_empty(),
        "packs": report.pack_count,
        "chunks": report.chunk_count,
        "blobs": report.blob_count as usize + report.external_blobs.len(),
        "commits": report.commit_count,
        "bytes": report.pack_bytes,
        "refs": report.ref_count,
        "leases": report.lease_count,
        "revisions": report.revision_count,
        "reachable": report.reachable_chunks,
        "notes": report.recovery_notes,
        "faults": faults,
        "unlisted": report.unlisted_count,
    })
}

fn indexes_json(faults: &[IndexFault]) -> Value {
    let fault = |fault: &IndexFault| {
        json!({
            "ref": fault.ref_name,
            "index": fault.index_name,
            "path": fault.path.as_str(),
            "missing": fault.missing_entries,
            "surplus": fault.surplus_entries,
        })
    };
    faults.iter().map(fault).collect()
}

fn repaired_json(done: &StoreRepairReport, mode: RepairMode) -> Value {
    let refs = done.refs.iter().map(|repaired_ref| {
        json!({
            "name": repaired_ref.name,
            "damaged": repaired_ref.damaged_root.to_string(),
            "root": repaired_ref.new_root.map(|root| root.to_string()),
            "good": repaired_ref.last_good_revision.map(|(sequence, _)| sequence),
            "restorable": repaired_ref.is_restorable,
        })
    });
    let parts = done.parts.iter().map(|part| {
        let (outcome, revision, to, records) = match &part.outcome {
            RepairedPartOutcome::Restored { sequence } => ("restored", Some(*sequence), None, 1),
            RepairedPartOutcome::Lost => ("lost", None, None, 1),
            RepairedPartOutcome::Span { to, records } => {
                ("unreadable", None, to.as_ref().map(|to| key_path_text(to)), *records)
            }
        };
        json!({
            "ref": part.ref_name,
            "map": part.map,
            "path": key_path_text(&part.key),
            "to": to,
            "fate": outcome,
            "revision": revision,
            "records": records,
        })
    });
    let revisions = done.revisions.iter().map(|repaired_revision| {
        json!({
            "ref": repaired_revision.revision.update.name,
            "revision": repaired_revision.revision.sequence,
            "at": format_time(repaired_revision.revision.update.updated_at),
            "author": repaired_revision.revision.update.author,
            "root": repaired_revision.new_root.map(|root| root.to_string()),
        })
    });
    json!({
        "done": mode == RepairMode::Repair,
        "set_aside": done.quarantined_files,
        "remade": done.rebuilt_indexes,
        "moved": done.moved_records,
        "refs": refs.collect::<Vec<_>>(),
        "parts": parts.collect::<Vec<_>>(),
        "restored": done.restored_records,
        "lost": done.lost_records,
        "revisions": revisions.collect::<Vec<_>>(),
        "leases": done.released_leases.iter().map(|one| one.holder.as_str()).collect::<Vec<_>>(),
        "history": done.history_faults,
        "unlisted": done.unlisted_count,
    })
}
