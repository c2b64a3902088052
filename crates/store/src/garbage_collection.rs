//! Collecting garbage: what is marked from roots stays, the rest goes.
//!
//! In: the roots that refs, kept revisions, leases, pins and holds name. Out: a mark for each chunk and blob that
//! they reach, made by walking the references in chunk headers.
//!
//! Invariants
//! * Only what was complete is collected: a chunk that cannot be read ends the collection before anything is removed.
//! * A chunk is walked once in a generation, however many roots reach it.
//!
//! Not here: how marks are kept and garbage is removed (each store); which large blobs are garbage (`blobs`), which is told what is live by a
//! [`LiveBlobVisitor`].

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::history::RevisionRetention;
use crate::id::{BlobId, ChunkId};

/// How a collection works.
#[derive(Clone, Debug)]
pub struct GarbageCollectionOptions {
    /// The time by which leases and revisions are judged.
    pub now: SystemTime,
    /// Which revisions are kept.
    pub retention: RevisionRetention,
    /// Roots whose revisions are kept whatever their age: what followers of the content have seen last.
    pub retained_roots: BTreeSet<ChunkId>,
    /// Packs of which a smaller share is live are rewritten. Default 0.6; more frees more and writes more. Of the others
    /// the worst are rewritten too, where garbage is more than about an eighth of what is live.
    pub min_live_share: f64,
    /// Whether something is removed, or only counted.
    pub mode: GarbageCollectionMode,
    /// Who is told which blobs are live.
    pub blob_visitor: Option<LiveBlobVisitor>,
}

/// Is told, while a collection marks, every blob that something live refers to: small and large ones, some more than
/// once. What it was told is complete once the collection has come to its end.
#[derive(Clone)]
pub struct LiveBlobVisitor(Arc<dyn Fn(&BlobId) + Send + Sync>);

impl LiveBlobVisitor {
    /// Makes one of a function, which is called on the thread that marks.
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
    /// The default options at a time.
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

/// What a collection does with garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageCollectionMode {
    /// It is removed.
    Remove,
    /// It is counted. History is judged by the options, and stays.
    DryRun,
}

/// How far a collection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GarbageCollectionProgress {
    /// What is being done.
    pub phase: GarbageCollectionPhase,
    /// Chunks and blobs marked or moved so far, in this phase.
    pub record_count: u64,
    /// Bytes read and written so far, in this phase.
    pub byte_count: u64,
}

/// What a collection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageCollectionPhase {
    /// It walks what is live.
    Mark,
    /// It moves what is live out of packs that are mostly garbage, or deletes rows.
    Sweep,
}

/// What a collection has found and done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GarbageCollectionReport {
    /// The number of the collection.
    pub generation: u64,
    /// Live chunks and small blobs.
    pub live_records: u64,
    /// Their stored bytes.
    pub live_bytes: u64,
    /// Bytes that the store takes up beside that, before the sweep.
    pub garbage_bytes: u64,
    /// Bytes given back to the disk or database; in a dry run, those that would be.
    pub freed_bytes: u64,
    /// Bytes written to move what is live.
    pub moved_bytes: u64,
    /// Revisions that are kept, of all refs.
    pub retained_revisions: u64,
    /// Revisions that went.
    pub dropped_revisions: u64,
    /// What keeps how much, in the order in which roots were walked: refs first, then leases, pins and history.
    pub retainers: Vec<StorageRetainer>,
    /// Whether the pace stopped the collection early.
    pub is_stopped: bool,
}

/// What keeps garbage from being garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageRetainer {
    /// The ref, lease, pin, or span of history, in words.
    pub description: String,
    /// Stored bytes that it keeps and no keeper before it does.
    pub retained_bytes: u64,
}

/// Keeps the marks of one collection.
pub(crate) trait MarkSet {
    /// Marks a chunk as live.
    fn mark_chunk(&mut self, id: &ChunkId) -> Result<MarkOutcome>;

    /// Marks a blob as live, if it is a small one; returns its stored bytes if it was not marked before.
    fn mark_blob(&mut self, id: &BlobId) -> Result<u64>;

    /// Reads chunks without remembering them.
    fn load_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>>;
}

/// What marking a chunk has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkOutcome {
    /// It was marked before, and so was everything below it.
    AlreadyMarked,
    /// It is new, of this many stored bytes, and refers to nothing.
    Terminal(u64),
    /// It is new, of this many stored bytes; its references come next.
    HasReferences(u64),
}

/// Chunks that are read together.
const READ_BATCH_CHUNKS: usize = 64;

/// Marks everything that a root reaches. Returns the number of new marks and their stored bytes, or what the pace
/// broke off with.
pub(crate) fn mark_reachable(
    marks: &mut dyn MarkSet,
    roots: impl IntoIterator<Item = ChunkId>,
    pace: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<(), (u64, u64)>> {
    let (mut records, mut bytes) = (0, 0);
    // Depth first, so that what waits is bounded by the height of the tree and its fan-out.
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
