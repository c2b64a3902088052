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
//! [`BlobVisitor`].

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::history::Retention;
use crate::id::{BlobId, ChunkId};

/// How a collection works.
#[derive(Clone, Debug)]
pub struct CollectOptions {
    /// The time by which leases and revisions are judged.
    pub now: SystemTime,
    /// Which revisions are kept.
    pub retention: Retention,
    /// Roots whose revisions are kept whatever their age: what followers of the content have seen last.
    pub keep: BTreeSet<ChunkId>,
    /// Packs of which a smaller share is live are rewritten. Default 0.6; more frees more and writes more. Of the others
    /// the worst are rewritten too, where garbage is more than about an eighth of what is live.
    pub min_live: f64,
    /// Whether something is removed, or only counted.
    pub mode: CollectMode,
    /// Who is told which blobs are live.
    pub blobs: Option<BlobVisitor>,
}

/// Is told, while a collection marks, every blob that something live refers to: small and large ones, some more than
/// once. What it was told is complete once the collection has come to its end.
#[derive(Clone)]
pub struct BlobVisitor(Arc<dyn Fn(&BlobId) + Send + Sync>);

impl BlobVisitor {
    /// Makes one of a function, which is called on the thread that marks.
    #[must_use]
    pub fn new(visit: impl Fn(&BlobId) + Send + Sync + 'static) -> Self {
        Self(Arc::new(visit))
    }

    pub(crate) fn visit(&self, id: &BlobId) {
        (self.0)(id);
    }
}

impl Debug for BlobVisitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlobVisitor")
    }
}

impl CollectOptions {
    /// The default options at a time.
    #[must_use]
    pub fn at(now: SystemTime) -> Self {
        let retention = Retention::default();
        let keep = BTreeSet::new();
        Self { now, retention, keep, min_live: 0.6, mode: CollectMode::Remove, blobs: None }
    }
}

/// What a collection does with garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectMode {
    /// It is removed.
    Remove,
    /// It is counted. History is judged by the options, and stays.
    DryRun,
}

/// How far a collection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Chunks and blobs marked or moved so far, in this phase.
    pub records: u64,
    /// Bytes read and written so far, in this phase.
    pub bytes: u64,
}

/// What a collection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It walks what is live.
    Mark,
    /// It moves what is live out of packs that are mostly garbage, or deletes rows.
    Sweep,
}

/// What a collection has found and done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collected {
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
    pub revisions_kept: u64,
    /// Revisions that went.
    pub revisions_dropped: u64,
    /// What keeps how much, in the order in which roots were walked: refs first, then leases, pins and history.
    pub keepers: Vec<Keeper>,
    /// Whether the pace stopped the collection early.
    pub is_stopped: bool,
}

/// What keeps garbage from being garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The ref, lease, pin, or span of history, in words.
    pub what: String,
    /// Stored bytes that it keeps and no keeper before it does.
    pub bytes: u64,
}

/// Keeps the marks of one collection.
pub(crate) trait Marks {
    /// Marks a chunk as live.
    fn mark_chunk(&mut self, id: &ChunkId) -> Result<Marked>;

    /// Marks a blob as live, if it is a small one; returns its stored bytes if it was not marked before.
    fn mark_blob(&mut self, id: &BlobId) -> Result<u64>;

    /// Reads chunks without remembering them.
    fn load(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>>;
}

/// What marking a chunk has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    /// It was marked before, and so was everything below it.
    Before,
    /// It is new, of this many stored bytes, and refers to nothing.
    Terminal(u64),
    /// It is new, of this many stored bytes; its references come next.
    Follow(u64),
}

/// Chunks that are read together.
const READ_TOGETHER: usize = 64;

/// Marks everything that a root reaches. Returns the number of new marks and their stored bytes, or what the pace
/// broke off with.
pub(crate) fn mark(
    marks: &mut dyn Marks,
    roots: impl IntoIterator<Item = ChunkId>,
    pace: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<(), (u64, u64)>> {
    let (mut records, mut bytes) = (0, 0);
    // Depth first, so that what waits is bounded by the height of the tree and its fan-out.
    let mut waiting: Vec<ChunkId> = Vec::new();
    let mut note = |marks: &mut dyn Marks, id: &ChunkId, waiting: &mut Vec<ChunkId>| {
        match marks.mark_chunk(id)? {
            Marked::Before => return Ok::<u64, Error>(0),
            Marked::Terminal(stored) => bytes += stored,
            Marked::Follow(stored) => {
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
        let together = waiting.split_off(waiting.len().saturating_sub(READ_TOGETHER));
        let chunks = marks.load(&together)?;
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
