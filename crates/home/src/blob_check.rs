//! Checks the blobs that the content of a home refers to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tympan_notation::error_chain_text;

use tympan_blobs::garbage_collection::{BlobIdSorter, find_missing_blobs};
use tympan_blobs::{BlobId, ReadBlobs, compute_blob_id};
use tympan_content::{NodePath, SubtreeScope};

use crate::blob_sharing::{storage_error, visit_referenced_blobs};
use crate::error::{Error, Result};
use crate::opened_home::Home;
use crate::origin::MAIN_BRANCH;

/// The maximum number of missing blobs that are listed; further ones are only counted.
pub const MAX_LISTED_MISSING_BLOBS: usize = 10_000;

/// The result of a check.
#[derive(Debug, Default)]
pub struct BlobCheckReport {
    /// The number of blobs that content refers to.
    pub checked_count: u64,
    /// The faults, by blob.
    pub faults: BTreeMap<BlobId, String>,
    /// The number of missing blobs.
    pub missing_count: u64,
    /// The referrers of a faulty blob: branches and paths, or only history.
    pub referrers: BTreeMap<BlobId, Vec<String>>,
}

/// Checks that every blob that content refers to exists, and with `rehash` that it is intact.
///
/// # Errors
/// If the content or a storage cannot be read.
pub fn check_blobs(home: &Home, rehash: bool) -> Result<BlobCheckReport> {
    let scratch = home.blob_sharing().scratch_dir()?;
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
    let (needed, to_count) =
        needed.ok_or_else(|| Error::failed_alone("the traversal of the content was stopped"))?;
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
        listed.map_err(|error| storage_error(role, error))?;
        fault.map_or(Ok(()), Err)?;
    }
    let blobs = home.repository.blobs();
    let (missing_ids, count) = find_missing_blobs(
        &mut |id| blobs.contains(id),
        needed,
        present,
        MAX_LISTED_MISSING_BLOBS,
    )?;
    let mut report = BlobCheckReport { missing_count: count, ..BlobCheckReport::default() };
    let reason = "is missing; restore it from a backup, or recover it with `tympan blobs undelete`";
    report.faults.extend(missing_ids.into_iter().map(|id| (id, reason.to_owned())));
    let mut last = None;
    for blob in to_count.finish()? {
        let id = blob?.id;
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
fn find_referrers(home: &Home, report: &mut BlobCheckReport) -> Result<()> {
    for branch in home.repository.branches()? {
        let snapshot = home.repository.snapshot_at(branch.root)?;
        for document in snapshot.stored_documents(&NodePath::root(), SubtreeScope::Subtree)? {
            let needs: BTreeSet<BlobId> =
                snapshot.document_requirements(&document)?.blobs.into_iter().collect();
            for id in needs.into_iter().filter(|id| report.faults.contains_key(id)) {
                let location = match branch.name.as_str() {
                    MAIN_BRANCH => document.path.to_string(),
                    name => format!("{} (branch `{name}`)", document.path),
                };
                report.referrers.entry(id).or_default().push(location);
            }
        }
    }
    Ok(())
}
