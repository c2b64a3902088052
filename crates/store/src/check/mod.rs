//! The check: reads every record again and walks every ref, lease and retained revision.
//!
//! In: a local store. Out: a [`StoreCheckReport`] of the damage and what it affects.
//!
//! Invariants
//! * Nothing on the disk is changed.
//! * A reachable chunk is visited once, however many states reach it, unless something below it is damaged.
//! * Memory: a bit for each chunk, a bounded number of findings, and the revisions.
//!
//! Not here: large blobs; the report lists those that the store does not hold, for `blobs` to verify. `repair` handles
//! the damage.

mod map_part;
mod report;
mod state_walk;
mod visited_set;

use std::time::SystemTime;

use crate::error::Result;
use crate::interface::chunk_store::ChunkStore;
use crate::interface::history::Revision;
use crate::local::{LocalStore, PackSurvey};

pub(crate) use map_part::{
    MapKeySpan, MapPart, UnreadableSpan, visit_map_parts, visit_map_parts_except,
};
pub use report::{DamagedLocation, RootOrigin, StoreCheckReport};
pub(crate) use state_walk::StateWalk;

/// The findings of a check, and the data that a repair needs beside the report.
#[derive(Debug)]
pub struct StoreInspection {
    /// The report of the check.
    pub report: StoreCheckReport,
    /// The time used to decide whether a lease has expired.
    pub(crate) checked_at: SystemTime,
    /// The damaged records.
    pub(crate) survey: PackSurvey,
}

/// Reads every record of every pack again, then walks every ref, lease and retained revision with everything reachable
/// from it. Expired leases are walked, too.
///
/// # Errors
/// Only what prevents the check itself, such as a pack that cannot be opened; damage is in the report.
pub fn check_store(store: &LocalStore) -> Result<StoreCheckReport> {
    Ok(inspect_store(store, SystemTime::UNIX_EPOCH)?.report)
}

/// Does the same as [`check_store`], except for leases that have expired by `now`: they retain nothing, so nothing of
/// theirs can be missing. The result holds the data that [`repair`](crate::repair) needs.
///
/// # Errors
/// As [`check_store`].
pub fn inspect_store(store: &LocalStore, now: SystemTime) -> Result<StoreInspection> {
    let survey = store.survey_packs()?;
    let report = StoreCheckReport {
        pack_count: survey.pack_count,
        chunk_count: survey.chunk_count,
        blob_count: survey.blob_count,
        commit_count: survey.commit_count,
        pack_bytes: survey.pack_bytes,
        faults: survey.faults.clone(),
        unlisted_count: survey.unlisted_count,
        recovery_notes: store.recovery_notes().to_vec(),
        ..StoreCheckReport::default()
    };
    let mut walk = StateWalk::new(store, &survey, report);
    for (name, root) in store.list_refs()? {
        walk.report.ref_count += 1;
        walk.walk_state(&RootOrigin::Ref(name), root)?;
    }
    for lease in store.list_leases()? {
        walk.report.lease_count += 1;
        if !lease.is_live(now) {
            walk.report.recovery_notes.push(format!("the lease of `{}` has expired", lease.holder));
            continue;
        }
        walk.walk_state(&RootOrigin::Lease(lease.holder), lease.root)?;
    }
    let readable = store.readable_revisions(&survey)?;
    walk.report.faults.extend(readable.faults);
    for Revision { sequence, update } in readable.revisions {
        walk.report.revision_count += 1;
        let Some(root) = update.new_root else { continue };
        let origin = RootOrigin::Revision { name: update.name.clone(), sequence };
        if !walk.walk_state(&origin, root)? {
            *walk.report.damaged_revisions.entry(update.name).or_default() += 1;
        }
    }
    if let Some(log) = store.revision_log_root() {
        walk.walk_state(&RootOrigin::History, log)?;
    }
    let report = walk.into_report();
    Ok(StoreInspection { report, checked_at: now, survey })
}
