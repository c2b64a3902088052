//! `tympan blobs check`: checks that every blob that content refers to exists and is intact.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tympan_home::{BlobCheckReport, MAX_LISTED_MISSING_BLOBS, check_blobs};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandOutcome, say};

use crate::home::open_existing_home;
use crate::home_fault::home_fault;

/// Checks all blobs.
pub(super) fn run_blob_check(home: &Path, rehash: bool, json: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let report = check_blobs(&home, rehash).map_err(home_fault)?;
    if json {
        say!("{}", check_json(&report));
    } else {
        print_check(&report);
    }
    let is_clean = report.faults.is_empty() && report.missing_count == 0;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

fn print_check(report: &BlobCheckReport) {
    for (id, fault) in &report.faults {
        say!("{id} {fault}");
        match report.referrers.get(id) {
            Some(referrers) => referrers.iter().for_each(|referrer| say!("  {referrer}")),
            None => say!("  only kept revisions and versions refer to it"),
        }
    }
    let unnamed = report.missing_count.saturating_sub(MAX_LISTED_MISSING_BLOBS as u64);
    if unnamed > 0 {
        say!("… and {unnamed} more are missing");
    }
    let faults = report.faults.len() as u64 + unnamed;
    let verdict = if faults == 0 { "clean".to_owned() } else { format!("{faults} faults") };
    say!("{} blobs: {verdict}", report.checked_count);
}

fn check_json(report: &BlobCheckReport) -> Value {
    let faults: Vec<Value> = report
        .faults
        .iter()
        .map(|(id, fault)| {
            let referrers = report.referrers.get(id).cloned().unwrap_or_default();
            json!({ "blob": id.to_string(), "fault": fault, "paths": referrers })
        })
        .collect();
    json!({
        "clean": faults.is_empty() && report.missing_count == 0,
        "blobs": report.checked_count,
        "missing": report.missing_count,
        "faults": faults,
    })
}
