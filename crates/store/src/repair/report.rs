//! The report of a repair: everything restored and everything lost.

use std::time::SystemTime;

use crate::id::ChunkId;
use crate::interface::history::Revision;
use crate::interface::root_retention::RootLease;

/// The maximum number of parts and revisions that are listed; further ones are only counted.
pub(super) const MAX_LISTED_REPAIRS: usize = 1_000;
/// The result of a repair, or of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRepairReport {
    /// Damaged files that were quarantined, by their new names; in a plan, by their current names.
    pub quarantined_files: Vec<String>,
    /// Index files that were rebuilt from their packs.
    pub rebuilt_indexes: Vec<String>,
    /// Number of chunks and small blobs that were moved out of damaged packs.
    pub moved_records: u64,
    /// Refs whose state was damaged.
    pub refs: Vec<RepairedRef>,
    /// The unreadable parts of these states, in the order of refs, maps and keys.
    pub parts: Vec<RepairedPart>,
    /// Number of records restored from an older revision.
    pub restored_records: u64,
    /// Number of records that no revision has, as far as known.
    pub lost_records: u64,
    /// Retained revisions that were damaged.
    pub revisions: Vec<RepairedRevision>,
    /// Leases whose state cannot be read completely; they were released.
    pub released_leases: Vec<RootLease>,
    /// The faults of the list of revisions.
    pub history_faults: Vec<String>,
    /// The number of parts and revisions beyond those listed in `parts` and `revisions`.
    pub unlisted_count: u64,
}

impl StoreRepairReport {
    /// Returns true if there was nothing to repair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A ref whose state was damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedRef {
    /// The name of the ref.
    pub name: String,
    /// The root before the repair.
    pub damaged_root: ChunkId,
    /// The root after the repair; `None` in a plan, and if nothing could be restored, in which case the ref is not
    /// moved.
    pub new_root: Option<ChunkId>,
    /// The newest retained revision of the ref that can be read completely, with its time.
    pub last_good_revision: Option<(u64, SystemTime)>,
    /// True if there is data from which the ref can be restored.
    pub is_restorable: bool,
}

/// A part of a ref's state that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedPart {
    /// The name of the ref.
    pub ref_name: String,
    /// The name of the map; empty if the ref names no state with maps.
    pub map: String,
    /// The key of the record, or the start of the part.
    pub key: Vec<u8>,
    /// The outcome of the repair of this part.
    pub outcome: RepairedPartOutcome,
}

/// The outcome of the repair of an unreadable part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairedPartOutcome {
    /// The record was restored from this revision.
    Restored {
        /// The sequence number of the revision.
        sequence: u64,
    },
    /// The record is lost: no revision has it intact.
    Lost,
    /// A whole span could not be read. Records restored in it are listed separately.
    Span {
        /// The first key after the span; `None` if it ran to the end of the map.
        to: Option<Vec<u8>>,
        /// The number of records in the span, or 0 if unknown.
        records: u64,
    },
}

/// A retained revision that was damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedRevision {
    /// The revision before the repair.
    pub revision: Revision,
    /// The new state; `None` in a plan, and if nothing of the state can be read, in which case the revision is removed
    /// from the list.
    pub new_root: Option<ChunkId>,
}
