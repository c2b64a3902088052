//! The check: every record re-read, every ref, lease and kept revision walked.
//!
//! In: a local store. Out: a [`StoreCheckReport`] of what is damaged and what that affects.
//!
//! Invariants
//! * Nothing on the disk is changed.
//! * A reachable chunk is visited once, however many states reach it, unless something below it is damaged.
//! * Memory: a bit for each chunk, a bounded number of findings, the revisions.
//!
//! Not here: large blobs; the report lists those that the store does not hold, for `blobs` to verify. What is done
//! about damage: `repair`.

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

/// Places that a report lists; more are counted.
const MAX_LISTED_LOCATIONS: usize = 1_000;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCheckReport {
    /// Pack files.
    pub pack_count: usize,
    /// Chunk records in them.
    pub chunk_count: u64,
    /// Blobs in them.
    pub blob_count: u64,
    /// Commit records in them.
    pub commit_count: u64,
    /// Bytes of all packs.
    pub pack_bytes: u64,
    /// Refs that were walked.
    pub ref_count: usize,
    /// Leases that were walked.
    pub lease_count: usize,
    /// Kept revisions that were walked, of all refs.
    pub revision_count: u64,
    /// Chunks that all of these reach.
    pub reachable_chunks: u64,
    /// What is wrong with files, with place.
    pub faults: Vec<String>,
    /// What cannot be read because of it.
    pub damaged_locations: Vec<DamagedLocation>,
    /// How many more faults and places there are than `faults` and `affected` list.
    pub unlisted_count: u64,
    /// How many kept revisions of each ref cannot be read in full.
    pub damaged_revisions: BTreeMap<String, u64>,
    /// What opening has undone: an unfinished write, as a crash leaves it.
    pub recovery_notes: Vec<String>,
    /// Small blobs that are reached and cannot be read.
    pub damaged_blobs: BTreeSet<BlobId>,
    /// Blobs that are reached and that the store does not hold: to be verified in the blob store.
    pub external_blobs: BTreeSet<BlobId>,
}

impl StoreCheckReport {
    /// Tells whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
            && self.damaged_locations.is_empty()
            && self.damaged_revisions.is_empty()
    }
}

/// What reaches a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootOrigin {
    /// A ref, as it is now.
    Ref(String),
    /// A kept revision of a ref.
    Revision {
        /// The ref.
        name: String,
        /// The revision.
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

/// One place that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedLocation {
    /// What reaches it. A revision only if no ref or newer revision does.
    pub origin: RootOrigin,
    /// The map; empty for the root itself.
    pub map: String,
    /// The key of the record whose body is affected, or where the affected part of the map begins.
    pub key: Vec<u8>,
    /// The chunk that cannot be read, or that names the blob which cannot.
    pub chunk: ChunkId,
    /// Why.
    pub fault: String,
}

impl fmt::Display for DamagedLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(&self.key);
        let (origin, map) = (&self.origin, &self.map);
        write!(f, "{origin}, map `{map}`, from key `{}`: {}", key.escape_debug(), self.fault)
    }
}

/// A check's findings, and what a repair needs beside the report.
#[derive(Debug)]
pub struct StoreInspection {
    /// What was found.
    pub report: StoreCheckReport,
    /// The time by which leases are judged.
    pub(crate) checked_at: SystemTime,
    /// Knows the records that are bad.
    pub(crate) survey: PackSurvey,
}

/// Re-reads every record of every pack, then walks every ref, lease and kept revision through all that it reaches, also
/// leases that have expired.
///
/// # Errors
/// Only what prevents the check itself, such as a pack that cannot be opened; damage is in the report.
pub fn check_store(store: &LocalStore) -> Result<StoreCheckReport> {
    Ok(inspect_store(store, SystemTime::UNIX_EPOCH)?.report)
}

/// Does what [`check_store`] does, but for leases that have expired by `now`: they keep nothing, so that nothing of theirs can
/// be missing. Keeps what [`repair`](crate::repair) needs.
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
