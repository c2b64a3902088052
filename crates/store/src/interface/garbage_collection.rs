//! Garbage collection: everything marked from the roots is retained, the rest is removed.
//!
//! In: the roots that refs, retained revisions, leases, pins and holds name. Out: a mark for each chunk and blob
//! reachable from them, made by walking the references in chunk headers.
//!
//! Invariants
//! * A collection runs only on complete data: a chunk that cannot be read ends the collection before anything is
//!   removed.
//! * A chunk is walked once in a generation, however many roots reach it.
//!
//! Not here: how marks are stored and garbage is removed (each store); which large blobs are garbage (`blobs`). A
//! [`LiveBlobVisitor`] reports the live blobs to `blobs`.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::history::RevisionRetention;

/// The options of a collection.
#[derive(Clone, Debug)]
pub struct GarbageCollectionOptions {
    /// The time used to judge leases and revisions.
    pub now: SystemTime,
    /// The rule that selects the retained revisions.
    pub retention: RevisionRetention,
    /// Roots whose revisions are retained whatever their age: those that followers of the content have seen last.
    pub retained_roots: BTreeSet<ChunkId>,
    /// Packs with a smaller share of live bytes are rewritten. Default 0.6; a higher value frees more and writes more.
    /// Of the other packs the worst are rewritten too, if garbage exceeds about an eighth of the live bytes.
    pub min_live_share: f64,
    /// Selects whether garbage is removed, or only counted.
    pub mode: GarbageCollectionMode,
    /// The visitor that receives the live blobs.
    pub blob_visitor: Option<LiveBlobVisitor>,
}

/// A callback that receives, while a collection marks, every blob that something live refers to: small and large ones,
/// some more than once. The set is complete once the collection has finished.
#[derive(Clone)]
pub struct LiveBlobVisitor(Arc<dyn Fn(&BlobId) + Send + Sync>);

impl LiveBlobVisitor {
    /// Creates a visitor from a function, which is called on the thread that marks.
    #[must_use]
    pub fn new(visit: impl Fn(&BlobId) + Send + Sync + 'static) -> Self {
        Self(Arc::new(visit))
    }

    pub(crate) fn visit_blob(&self, id: &BlobId) {
        (self.0)(id);
    }
}

impl Debug for LiveBlobVisitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlobVisitor")
    }
}

impl GarbageCollectionOptions {
    /// Returns the default options for a collection at `now`.
    #[must_use]
    pub fn at_time(now: SystemTime) -> Self {
        let retention = RevisionRetention::default();
        let keep = BTreeSet::new();
        Self {
            now,
            retention,
            retained_roots: keep,
            min_live_share: 0.6,
            mode: GarbageCollectionMode::Remove,
            blob_visitor: None,
        }
    }
}

/// The treatment of garbage by a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageCollectionMode {
    /// Garbage is removed.
    Remove,
    /// Garbage is counted. The history is judged by the options, but not changed.
    DryRun,
}

/// The progress of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GarbageCollectionProgress {
    /// The current phase.
    pub phase: GarbageCollectionPhase,
    /// Number of chunks and blobs marked or moved so far, in this phase.
    pub record_count: u64,
    /// Number of bytes read and written so far, in this phase.
    pub byte_count: u64,
}

/// A phase of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageCollectionPhase {
    /// The live records are walked and marked.
    Mark,
    /// Live records are moved out of packs that are mostly garbage, or rows are deleted.
    Sweep,
}

/// The result of a collection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GarbageCollectionReport {
    /// The number of the collection.
    pub generation: u64,
    /// Number of live chunks and small blobs.
    pub live_records: u64,
    /// The stored size of the live records in bytes.
    pub live_bytes: u64,
    /// The bytes that the store uses beyond `live_bytes`, before the sweep.
    pub garbage_bytes: u64,
    /// Bytes given back to the disk or database; in a dry run, the bytes that would be.
    pub freed_bytes: u64,
    /// Bytes written to move live records.
    pub moved_bytes: u64,
    /// Number of retained revisions, of all refs.
    pub retained_revisions: u64,
    /// Number of removed revisions.
    pub dropped_revisions: u64,
    /// The bytes retained by each root, in the order in which roots were walked: refs first, then leases, pins and
    /// history.
    pub retainers: Vec<StorageRetainer>,
    /// True if the pace stopped the collection early.
    pub is_stopped: bool,
}

/// A root, or a span of history, that retains data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageRetainer {
    /// A description of the ref, lease, pin, or span of history.
    pub description: String,
    /// The stored bytes that it retains and that no earlier retainer does.
    pub retained_bytes: u64,
}

/// The set of marks of one collection.
pub(crate) trait MarkSet {
    /// Marks a chunk as live.
    fn mark_chunk(&mut self, id: &ChunkId) -> Result<MarkOutcome>;

    /// Marks a blob as live if it is a small one. Returns its stored bytes if it was not marked before.
    fn mark_blob(&mut self, id: &BlobId) -> Result<u64>;

    /// Reads chunks without caching them.
    fn load_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>>;
}

/// The result of marking a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkOutcome {
    /// The chunk was marked before, and so was everything below it.
    AlreadyMarked,
    /// The chunk is newly marked, has this many stored bytes, and refers to nothing.
    Terminal(u64),
    /// The chunk is newly marked and has this many stored bytes; its references must be marked next.
    HasReferences(u64),
}

/// The number of chunks read together.
const READ_BATCH_CHUNKS: usize = 64;

/// Marks everything reachable from a root. Returns the number of new marks and their stored bytes, or the value with
/// which the pace stopped the walk.
pub(crate) fn mark_reachable(
    marks: &mut dyn MarkSet,
    roots: impl IntoIterator<Item = ChunkId>,
    pace: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<(), (u64, u64)>> {
    let (mut records, mut bytes) = (0, 0);
    // The walk is depth first, so that the height and fan-out of the tree bound the number of pending chunks.
    let mut waiting: Vec<ChunkId> = Vec::new();
    let mut note = |marks: &mut dyn MarkSet, id: &ChunkId, waiting: &mut Vec<ChunkId>| {
        match marks.mark_chunk(id)? {
            MarkOutcome::AlreadyMarked => return Ok::<u64, Error>(0),
            MarkOutcome::Terminal(stored) => bytes += stored,
            MarkOutcome::HasReferences(stored) => {
                bytes += stored;
                waiting.push(*id);
            }
        }
        Ok(1)
    };
    for root in roots {
        records += note(marks, &root, &mut waiting)?;
    }
    let mut blob_bytes = 0;
    while !waiting.is_empty() {
        let together = waiting.split_off(waiting.len().saturating_sub(READ_BATCH_CHUNKS));
        let chunks = marks.load_chunks(&together)?;
        let mut read = 0;
        for chunk in &chunks {
            read += chunk.bytes().len() as u64;
            for blob in chunk.blob_refs() {
                let stored = marks.mark_blob(&blob)?;
                records += u64::from(stored > 0);
                blob_bytes += stored;
            }
            for id in chunk.chunk_refs() {
                records += note(marks, &id, &mut waiting)?;
            }
        }
        if pace(chunks.len() as u64, read).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue((records, bytes + blob_bytes)))
}
