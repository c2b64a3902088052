//! The check: every record re-read, every ref, lease and kept revision walked.
//!
//! In: a local store. Out: a [`Report`] of what is damaged and what that affects.
//!
//! Invariants
//! * Nothing on the disk is changed.
//! * A reachable chunk is visited once, however many states reach it, unless something below it is damaged.
//! * Memory: a bit for each chunk, a bounded number of findings, the revisions.
//!
//! Not here: large blobs; the report lists those that the store does not hold, for `blobs` to verify. What is done
//! about damage: `repair`.

mod parts;
mod visited;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::SystemTime;

use crate::chunk_store::ChunkStore;
use crate::error::Result;
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::local::{LocalStore, Survey};

pub(crate) use parts::{Part, Span, Unreadable, parts, parts_but};
pub(crate) use walk::Walk;

/// Places that a report lists; more are counted.
const MAX_AFFECTED: usize = 1_000;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pack files.
    pub packs: usize,
    /// Chunk records in them.
    pub chunks: u64,
    /// Blobs in them.
    pub blobs: u64,
    /// Commit records in them.
    pub commits: u64,
    /// Bytes of all packs.
    pub bytes: u64,
    /// Refs that were walked.
    pub refs: usize,
    /// Leases that were walked.
    pub leases: usize,
    /// Kept revisions that were walked, of all refs.
    pub revisions: u64,
    /// Chunks that all of these reach.
    pub reachable: u64,
    /// What is wrong with files, with place.
    pub faults: Vec<String>,
    /// What cannot be read because of it.
    pub affected: Vec<Affected>,
    /// How many more faults and places there are than `faults` and `affected` list.
    pub unlisted: u64,
    /// How many kept revisions of each ref cannot be read in full.
    pub damaged_revisions: BTreeMap<String, u64>,
    /// What opening has undone: an unfinished write, as a crash leaves it.
    pub notes: Vec<String>,
    /// Small blobs that are reached and cannot be read.
    pub damaged_blobs: BTreeSet<BlobId>,
    /// Blobs that are reached and that the store does not hold: to be verified in the blob store.
    pub blobs_elsewhere: BTreeSet<BlobId>,
}

impl Report {
    /// Tells whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.affected.is_empty() && self.damaged_revisions.is_empty()
    }
}

/// What reaches a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
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

impl fmt::Display for Origin {
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
pub struct Affected {
    /// What reaches it. A revision only if no ref or newer revision does.
    pub origin: Origin,
    /// The map; empty for the root itself.
    pub map: String,
    /// The key of the record whose body is affected, or where the affected part of the map begins.
    pub key: Vec<u8>,
    /// The chunk that cannot be read, or that names the blob which cannot.
    pub chunk: ChunkId,
    /// Why.
    pub fault: String,
}

impl fmt::Display for Affected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(&self.key);
        let (origin, map) = (&self.origin, &self.map);
        write!(f, "{origin}, map `{map}`, from key `{}`: {}", key.escape_debug(), self.fault)
    }
}

/// A check's findings, and what a repair needs beside the report.
#[derive(Debug)]
pub struct Inspection {
    /// What was found.
    pub report: Report,
    /// The time by which leases are judged.
    pub(crate) now: SystemTime,
    /// Knows the records that are bad.
    pub(crate) survey: Survey,
}

/// Re-reads every record of every pack, then walks every ref, lease and kept revision through all that it reaches, also
/// leases that have expired.
///
/// # Errors
/// Only what prevents the check itself, such as a pack that cannot be opened; damage is in the report.
pub fn check(store: &LocalStore) -> Result<Report> {
    Ok(inspect(store, SystemTime::UNIX_EPOCH)?.report)
}

/// Does what [`check`] does, but for leases that have expired by `now`: they keep nothing, so that nothing of theirs can
/// be missing. Keeps what [`repair`](crate::repair) needs.
///
/// # Errors
/// As [`check`].
pub fn inspect(store: &LocalStore, now: SystemTime) -> Result<Inspection> {
    let survey = store.survey()?;
    let report = Report {
        packs: survey.packs,
        chunks: survey.chunks,
        blobs: survey.blobs,
        commits: survey.commits,
        bytes: survey.bytes,
        faults: survey.faults.clone(),
        unlisted: survey.unlisted,
        notes: store.notes().to_vec(),
        ..Report::default()
    };
    let mut walk = Walk::new(store, &survey, report);
    for (name, root) in store.refs()? {
        walk.report.refs += 1;
        walk.state(&Origin::Ref(name), root)?;
    }
    for lease in store.leases()? {
        walk.report.leases += 1;
        if !lease.is_live(now) {
            walk.report.notes.push(format!("the lease of `{}` has expired", lease.holder));
            continue;
        }
        walk.state(&Origin::Lease(lease.holder), lease.root)?;
    }
    let readable = store.readable_revisions(&survey)?;
    walk.report.faults.extend(readable.faults);
    for Revision { sequence, update } in readable.revisions {
        walk.report.revisions += 1;
        let Some(root) = update.new else { continue };
        let origin = Origin::Revision { name: update.name.clone(), sequence };
        if !walk.state(&origin, root)? {
            *walk.report.damaged_revisions.entry(update.name).or_default() += 1;
        }
    }
    if let Some(log) = store.log_root() {
        walk.state(&Origin::History, log)?;
    }
    let report = walk.finish();
    Ok(Inspection { report, now, survey })
}
