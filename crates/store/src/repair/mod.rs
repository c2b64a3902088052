//! The repair: quarantines damaged packs, and replaces each damaged state by the newest complete one that can be built.
//!
//! In: a local store, and the findings of a check. Out: a store that checks clean, and a [`StoreRepairReport`] that
//! lists everything restored and everything lost.
//!
//! A damaged state retains everything in it that can be read. A record that cannot be read is taken from the newest
//! retained revision that has it intact. A part of a map that cannot be read is taken from the newest revision in which
//! it can. The result is committed as a new revision. Damaged retained revisions are repaired in the same way.
//!
//! Invariants
//! * Nothing is removed: damaged packs are renamed, and refs that cannot be restored are not moved.
//! * Undamaged content stays byte for byte the same, because equal content has an equal root.
//! * Everything that differs from the state before the damage is listed or, above a bound, counted.
//!
//! On failure: an interrupted repair can be run again.
//!
//! Not here: blobs. A record that names a damaged small blob stays; the blob is missing from then on.

mod derived_map;
mod ref_state;
mod replacement;
mod report;
mod salvage;

use std::time::SystemTime;

use crate::check::{RootOrigin, StoreInspection};
use crate::error::Result;
use crate::interface::chunk_batch::{ChunkBatch, RefUpdate};
use crate::interface::chunk_store::ChunkStore;
use crate::local::{LocalStore, PackSurvey};

pub use derived_map::DeriveMaps;
use ref_state::{RefState, ref_states};
use replacement::{ReplacementState, ReplacementStates};
use report::MAX_LISTED_REPAIRS;
pub use report::{
    RepairedPart, RepairedPartOutcome, RepairedRef, RepairedRevision, StoreRepairReport,
};
use salvage::StateSalvager;

/// The suffix of the message of revisions that were changed by a repair.
const REPAIRED_SUFFIX: &str = " (repaired: parts of this revision could not be read)";

/// Returns the report of what [`repair_store`] would do.
///
/// # Errors
/// Only what prevents the inspection, such as a failed read.
pub fn plan_repair<D: DeriveMaps>(
    store: &LocalStore,
    inspection: &StoreInspection,
    maps: &D,
) -> Result<StoreRepairReport, D::Error> {
    let mut repaired = StoreRepairReport {
        quarantined_files: inspection.survey.packs_to_quarantine(),
        rebuilt_indexes: inspection.survey.indexes_to_rebuild(),
        history_faults: store.readable_revisions(&inspection.survey)?.faults,
        ..StoreRepairReport::default()
    };
    let salvage = StateSalvager::new(store, &inspection.survey, maps, None);
    let StoreInspection { survey, checked_at: now, .. } = inspection;
    RepairContext { store, survey, salvager: &salvage, now: *now }.salvage_states(&mut repaired)?;
    Ok(salvage.complete_report(repaired))
}

/// Repairs a store. Afterwards the store checks clean, unless a ref could not be restored at all.
///
/// `inspection` must be of this store, with nothing written since.
///
/// # Errors
/// [`Error::WriteDisabled`](crate::Error::WriteDisabled): open the store again first. A failed read or write: the
/// repair can be run again.
pub fn repair_store<D: DeriveMaps>(
    store: &LocalStore,
    inspection: &StoreInspection,
    maps: &D,
    now: SystemTime,
) -> Result<StoreRepairReport, D::Error> {
    if inspection.report.is_clean() {
        return Ok(StoreRepairReport::default());
    }
    let _turn = store.lock_collections()?;
    let survey = &inspection.survey;
    // The faults go into the report; the repair replaces a damaged list with a complete one.
    let history = store.readable_revisions(survey)?.faults;
    let mended = store.repair_packs(survey)?;
    let mut repaired = StoreRepairReport {
        quarantined_files: mended.quarantined_packs,
        rebuilt_indexes: mended.rebuilt_indexes,
        moved_records: mended.moved_records,
        history_faults: history,
        ..StoreRepairReport::default()
    };
    let salvage = StateSalvager::new(store, survey, maps, Some(now));
    let job = RepairContext { store, survey, salvager: &salvage, now: inspection.checked_at };
    let replaced = job.salvage_states(&mut repaired)?;
    let mut repaired = salvage.complete_report(repaired);
    job.commit_repair(&mut repaired, &replaced, now)?;
    Ok(repaired)
}

/// The data needed by a repair.
struct RepairContext<'a, D> {
    store: &'a LocalStore,
    survey: &'a PackSurvey,
    salvager: &'a StateSalvager<'a, D>,
    /// The time used to decide whether a lease has expired.
    now: SystemTime,
}

impl<D: DeriveMaps> RepairContext<'_, D> {
    /// Salvages every damaged state.
    fn salvage_states(
        &self,
        repaired: &mut StoreRepairReport,
    ) -> Result<ReplacementStates, D::Error> {
        let readable = self.store.readable_revisions(self.survey)?;
        let refs = self.store.list_refs()?;
        let mut replaced = ReplacementStates::new();
        for (name, chain) in ref_states(&refs, &readable.revisions) {
            self.salvager.salvage_ref(&name, &chain, &mut replaced)?;
            let Some(RefState { root, .. }) = chain.first().filter(|state| state.is_current) else {
                continue;
            };
            let Some(new) = replaced.get(root) else { continue };
            let good = self.salvager.newest_clean_revision(&chain)?;
            let is_restorable = *new != ReplacementState::Unrecoverable;
            let (damaged, root) = (*root, new.stored_root());
            repaired.refs.push(RepairedRef {
                name,
                damaged_root: damaged,
                new_root: root,
                last_good_revision: good,
                is_restorable,
            });
        }
        for revision in readable.revisions {
            let Some(root) = revision.update.new_root.and_then(|root| replaced.get(&root)) else {
                continue;
            };
            if repaired.revisions.len() < MAX_LISTED_REPAIRS {
                let root = root.stored_root();
                repaired.revisions.push(RepairedRevision { revision, new_root: root });
            } else {
                repaired.unlisted_count += 1;
            }
        }
        for lease in self.store.list_leases()? {
            let origin = RootOrigin::Lease(lease.holder.clone());
            if lease.is_live(self.now) && !self.salvager.is_state_clean(&origin, lease.root)? {
                repaired.released_leases.push(lease);
            }
        }
        Ok(replaced)
    }

    /// Moves refs, ends leases, and replaces the list of revisions with one that can be read completely.
    fn commit_repair(
        &self,
        repaired: &mut StoreRepairReport,
        replaced: &ReplacementStates,
        now: SystemTime,
    ) -> Result<()> {
        let own = self.store.next_sequence();
        let mut batch = ChunkBatch::new();
        for repaired_ref in &repaired.refs {
            let Some(root) = repaired_ref.new_root else { continue };
            batch.add_ref_update(RefUpdate {
                name: repaired_ref.name.clone(),
                expected_root: Some(repaired_ref.damaged_root),
                new_root: Some(root),
                updated_at: now,
                author: "repair".to_owned(),
                message: format!(
                    "repair: the state `{}` could not be read in full",
                    repaired_ref.damaged_root
                ),
            });
        }
        for lease in &repaired.released_leases {
            batch.release_lease(lease.holder.clone());
            self.store.remove_lease_file(&lease.holder)?;
        }
        self.store.commit(batch)?;
        let mut readable = self.store.readable_revisions(self.survey)?;
        let is_whole = repaired.history_faults.is_empty() && readable.faults.is_empty();
        if replaced.is_empty() && is_whole {
            return self.store.sync();
        }
        readable.revisions.retain_mut(|revision| {
            if revision.sequence >= own {
                return true;
            }
            if let Some(root) = revision.update.expected_root.and_then(|root| replaced.get(&root)) {
                revision.update.expected_root = root.stored_root();
            }
            let Some(new) = revision.update.new_root.and_then(|root| replaced.get(&root)) else {
                return true;
            };
            revision.update.new_root = new.stored_root();
            append_repaired_suffix(&mut revision.update.message);
            revision.update.new_root.is_some()
        });
        self.store.rewrite_revision_log(&readable.revisions)
    }
}

/// Appends to the message of a revision that a repair changed it.
fn append_repaired_suffix(message: &mut String) {
    /// The limit keeps the message within the bound of the format.
    const MAX_BYTES: usize = 7_800;
    if message.ends_with(REPAIRED_SUFFIX) {
        return;
    }
    while message.len() > MAX_BYTES {
        message.pop();
    }
    message.push_str(REPAIRED_SUFFIX);
}
