//! `tympan blobs check`: checks that every blob that content refers to exists and is intact.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tympan_blobs::garbage_collection::{BlobIdSorter, find_missing_blobs};
use tympan_blobs::{BlobId, ReadBlobs, compute_blob_id};
use tympan_content::{NodePath, SubtreeScope};
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, say,
};

use crate::blob_sharing::{BlobSharing, storage_fault, visit_referenced_blobs};
use crate::home::Home;

/// The maximum number of missing blobs that are listed; further ones are only counted.
const MAX_NAMED_MISSING: usize = 10_000;

/// The result of a check.
#[derive(Default)]
struct BlobCheckReport {
    /// The number of blobs that content refers to.
    checked_count: u64,
    /// The faults, by blob.
    faults: BTreeMap<BlobId, String>,
    missing_count: u64,
    /// The referrers of a faulty blob: branches and paths, or only history.
    referrers: BTreeMap<BlobId, Vec<String>>,
}

/// Checks all blobs.
pub(super) fn run_blob_check(home: &Path, rehash: bool, json: bool) -> CommandOutcome {
    let home = Home::open_existing(home)?;
    let report = check_blobs(&home, rehash)?;
    if json {
        say!("{}", check_json(&report));
    } else {
        print_check(&report);
    }
    let is_clean = report.faults.is_empty() && report.missing_count == 0;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

fn check_blobs(home: &Home, rehash: bool) -> Result<BlobCheckReport, CommandFault> {
    let failed = |error: tympan_blobs::Error| CommandFault::cannot_run(error_chain_text(&error));
    let scratch = BlobSharing::of_home(home).scratch_dir()?;
    let sorters = (BlobIdSorter::new(&scratch), BlobIdSorter::new(&scratch));
    let go_on = &mut |_: &tympan_store::GarbageCollectionProgress| ControlFlow::Continue(());
    let needed = visit_referenced_blobs(
        &**home.repository.chunks(),
        sorters,
        go_on,
        |(first, second), id| {
            first.add_id(id)?;
            second.add_id(id)
        },
    )?;
    let (needed, to_count) = needed
        .ok_or_else(|| CommandFault::cannot_run("the traversal of the content was stopped"))?;
    let mut present = BlobIdSorter::new(&scratch);
    for (role, storage) in &home.blobs.writable {
        let mut fault = None;
        let listed = storage.list(&mut |listed| match present.add(&listed) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                fault = Some(error);
                ControlFlow::Break(())
            }
        });
        listed.map_err(|error| storage_fault(role, &error))?;
        fault.map_or(Ok(()), |error| Err(failed(error)))?;
    }
    let blobs = home.repository.blobs();
    let (missing_ids, count) =
        find_missing_blobs(&mut |id| blobs.contains(id), needed, present, MAX_NAMED_MISSING)
            .map_err(failed)?;
    let mut report = BlobCheckReport { missing_count: count, ..BlobCheckReport::default() };
    let reason = "is missing; restore it from a backup, or recover it with `tympan blobs undelete`";
    report.faults.extend(missing_ids.into_iter().map(|id| (id, reason.to_owned())));
    let mut last = None;
    for blob in to_count.finish().map_err(failed)? {
        let id = blob.map_err(failed)?.id;
        if last.replace(id) == Some(id) {
            continue;
        }
        report.checked_count += 1;
        if rehash
            && !report.faults.contains_key(&id)
            && let Some(fault) = blob_damage(home, &id)
        {
            report.faults.insert(id, fault);
        }
    }
    if !report.faults.is_empty() {
        find_referrers(home, &mut report)?;
    }
    Ok(report)
}

/// Reads a blob; returns its fault, if any.
fn blob_damage(home: &Home, id: &BlobId) -> Option<String> {
    match home.repository.blobs().open(id) {
        Ok(Some(content)) => match compute_blob_id(&mut content.into_reader()) {
            Ok(actual) if actual == *id => None,
            Ok(actual) => Some(format!(
                "is damaged: its content has the id {actual}; restore it from a backup"
            )),
            Err(error) => Some(format!("cannot be read: {error}")),
        },
        Ok(None) => Some("is missing".to_owned()),
        Err(error) => Some(error_chain_text(&error)),
    }
}

/// Finds the nodes that refer to faulty blobs.
fn find_referrers(home: &Home, report: &mut BlobCheckReport) -> Result<(), CommandFault> {
    let failed = |error: tympan_content::Error| CommandFault::cannot_run(error_chain_text(&error));
    for branch in home.repository.branches().map_err(failed)? {
        let snapshot = home.repository.snapshot_at(branch.root).map_err(failed)?;
        for document in
            snapshot.stored_documents(&NodePath::root(), SubtreeScope::Subtree).map_err(failed)?
        {
            let needs: BTreeSet<BlobId> = snapshot
                .document_requirements(&document)
                .map_err(failed)?
                .blobs
                .into_iter()
                .collect();
            for id in needs.into_iter().filter(|id| report.faults.contains_key(id)) {
                let location = match branch.name.as_str() {
                    "main" => document.path.to_string(),
                    name => format!("{} (branch `{name}`)", document.path),
                };
                report.referrers.entry(id).or_default().push(location);
            }
        }
    }
    Ok(())
}

fn print_check(report: &BlobCheckReport) {
    for (id, fault) in &report.faults {
        say!("{id} {fault}");
        match report.referrers.get(id) {
            Some(referrers) => referrers.iter().for_each(|referrer| say!("  {referrer}")),
            None => say!("  only kept revisions and versions refer to it"),
        }
    }
    let unnamed = report.missing_count.saturating_sub(MAX_NAMED_MISSING as u64);
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
