//! The report of a check: the damage and the locations that it affects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::id::{BlobId, ChunkId};

/// The maximum number of locations that a report lists; further ones are only counted.
pub(super) const MAX_LISTED_LOCATIONS: usize = 1_000;

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
