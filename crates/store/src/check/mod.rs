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
mod state_walk;
mod visited_set;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::SystemTime;

use crate::chunk_store::ChunkStore;
use crate::error::Result;
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::local::{LocalStore, PackSurvey};

pub(crate) use map_part::{
    MapKeySpan, MapPart, UnreadableSpan, visit_map_parts, visit_map_parts_except,
};
pub(crate) use state_walk::StateWalk;

/// The maximum number of locations that a report lists; further ones are only counted.
const MAX_LISTED_LOCATIONS: usize = 1_000;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCheckReport {
    /// Number of pack files.
    pub pack_count: usize,
    /// Number of chunk records in the packs.
    pub chunk_count: u64,
    /// Number of blobs in the packs.
    pub blob_count: u64,
    /// Number of commit records in the packs.
    pub commit_count: u64,
    /// Total size of all packs in bytes.
    pub pack_bytes: u64,
    /// Number of refs that were walked.
    pub ref_count: usize,
    /// Number of leases that were walked.
    pub lease_count: usize,
    /// Number of retained revisions that were walked, of all refs.
    pub revision_count: u64,
    /// Number of chunks reachable from all of these.
    pub reachable_chunks: u64,
    /// The faults of files, each with its location.
    pub faults: Vec<String>,
    /// The locations in content that cannot be read because of these faults.
    pub damaged_locations: Vec<DamagedLocation>,
    /// The number of faults and locations beyond those listed in `faults` and `damaged_locations`.
    pub unlisted_count: u64,
    /// The number of retained revisions of each ref that cannot be read in full.
    pub damaged_revisions: BTreeMap<String, u64>,
    /// Repairs made when the store was opened: unfinished writes, as a crash leaves them, that were undone.
    pub recovery_notes: Vec<String>,
    /// Reachable small blobs that cannot be read.
    pub damaged_blobs: BTreeSet<BlobId>,
    /// Reachable blobs that the store does not hold, to be verified in the blob store.
    pub external_blobs: BTreeSet<BlobId>,
}

impl StoreCheckReport {
    /// Returns true if no fault was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
            && self.damaged_locations.is_empty()
            && self.damaged_revisions.is_empty()
    }
}

/// The root from which a location is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootOrigin {
    /// A ref in its current state.
    Ref(String),
    /// A retained revision of a ref.
    Revision {
        /// The name of the ref.
        name: String,
        /// The sequence number of the revision.
        sequence: u64,
    },
    /// The lease of this holder.
    Lease(String),
    /// The list of revisions itself.
    History,
}

impl fmt::Display for RootOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ref(name) => write!(f, "ref `{name}`"),
            Self::Revision { name, sequence } => write!(f, "revision {sequence} of `{name}`"),
            Self::Lease(holder) => write!(f, "lease of `{holder}`"),
            Self::History => f.write_str("the list of revisions"),
        }
    }
}

/// A location that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedLocation {
    /// The root from which the location is reached. A revision only if no ref or newer revision reaches it.
    pub origin: RootOrigin,
    /// The name of the map; empty for the root itself.
    pub map: String,
    /// The key of the record whose body is affected, or the start of the affected part of the map.
    pub key: Vec<u8>,
    /// The chunk that cannot be read, or the chunk that names the unreadable blob.
    pub chunk: ChunkId,
    /// The reason why it cannot be read.
    pub fault: String,
}

impl fmt::Display for DamagedLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(&self.key);
        let (origin, map) = (&self.origin, &self.map);
        write!(f, "{origin}, map `{map}`, from key `{}`: {}", key.escape_debug(), self.fault)
    }
}

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
