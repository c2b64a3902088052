//! Copies a state from one store to another: only the chunks that the target lacks, requested level by level.
//!
//! In: roots, and roots that the target is known to hold completely. Out: the target holds everything reachable from
//! the roots.
//!
//! The tree of the new roots and that of the known ones are walked side by side. Chunks that the known ones refer to
//! are skipped with everything below them. Of the rest, chunks that the target already holds are walked without being
//! fetched, because the chunks below them may be missing. An interrupted copy therefore resumes where it stopped.
//!
//! Invariants
//! * Each level costs a bounded number of round trips to the source, each of bounded size.
//! * A chunk from the source is stored under the hash of its own bytes, so a source cannot substitute one chunk for
//!   another.
//!
//! On failure: copied chunks remain as garbage, and the next copy finds them again unless they were collected.
//!
//! Not here: updating refs, and retaining the copied chunks until then: the caller takes a
//! [`CollectionHold`](crate::CollectionHold) first. Large blobs are passed to the caller.

use std::collections::HashSet;
use std::fmt;

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::base_store::BaseStore;
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_store::ChunkStore;

/// The number of chunks requested together.
const FETCH_BATCH_CHUNKS: usize = 512;
/// The maximum number of chunk levels below a root; only a hostile source can have more.
const MAX_SYNC_LEVELS: usize = 64;

/// The cost of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkSyncReport {
    /// Number of chunks fetched.
    pub fetched_chunks: u64,
    /// Number of small blobs fetched.
    pub fetched_blobs: u64,
    /// Total size of both in bytes.
    pub fetched_bytes: u64,
    /// Number of chunks that the target held and that were walked.
    pub present_chunks: u64,
    /// Number of requests to the source.
    pub round_trips: u64,
}

impl std::ops::AddAssign for ChunkSyncReport {
    fn add_assign(&mut self, other: Self) {
        self.fetched_chunks += other.fetched_chunks;
        self.fetched_blobs += other.fetched_blobs;
        self.fetched_bytes += other.fetched_bytes;
        self.present_chunks += other.present_chunks;
        self.round_trips += other.round_trips;
    }
}

/// The source and target of a copy.
#[derive(Clone, Copy)]
pub struct ChunkSyncRoute<'a> {
    /// The store that holds the roots.
    pub source: &'a dyn BaseStore,
    /// The store that the roots are copied to.
    pub target: &'a dyn ChunkStore,
    /// Blobs below this length in bytes are small ones, which are stored beside the chunks.
    pub small_blob_limit: u64,
}

impl fmt::Debug for ChunkSyncRoute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkSyncRoute").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Copies everything that `roots` reach and that the `known_roots` roots of the target do not. Large blobs are passed
/// to `large` in groups, each as often as a chunk refers to it.
///
/// # Errors
/// The errors of source, target and `large`. The target is then unchanged except for garbage.
pub fn sync_chunks(
    route: ChunkSyncRoute<'_>,
    roots: &[ChunkId],
    known_roots: &[ChunkId],
    large: &mut dyn FnMut(&[BlobId]) -> Result<()>,
) -> Result<ChunkSyncReport> {
    let mut walk =
        ChunkSyncWalk { route, visited: HashSet::new(), report: ChunkSyncReport::default() };
    let mut old: Vec<ChunkId> = known_roots.to_vec();
    walk.visited.extend(known_roots);
    let mut new: Vec<ChunkId> =
        roots.iter().copied().filter(|id| walk.visited.insert(*id)).collect();
    for _ in 0..MAX_SYNC_LEVELS {
        if new.is_empty() {
            return Ok(walk.report);
        }
        let known_references = walk.known_references(&old, &new)?;
        let mut below = HashSet::new();
        for part in new.chunks(FETCH_BATCH_CHUNKS) {
            below.extend(walk.copy_chunks(part, large)?);
        }
        // References shared by both need not be followed on either side.
        old = known_references.iter().filter(|id| !below.contains(id)).copied().collect();
        below.retain(|id| !known_references.contains(id));
        walk.visited.extend(known_references);
        new = below.into_iter().filter(|id| walk.visited.insert(*id)).collect();
    }
    let root = roots.first().copied().unwrap_or(ChunkId::from_bytes([0; 32]));
    Err(Error::ChunkDamaged { id: root, fault: "its descendants are nested too deeply" })
}

struct ChunkSyncWalk<'a> {
    route: ChunkSyncRoute<'a>,
    /// Chunks that are known to be complete, or have been walked.
    visited: HashSet<ChunkId>,
    report: ChunkSyncReport,
}

impl ChunkSyncWalk<'_> {
    /// Returns the references of the known chunks of one level, which are the known chunks of the next level.
    fn known_references(&self, old: &[ChunkId], new: &[ChunkId]) -> Result<HashSet<ChunkId>> {
        // There are far more known than new chunks only where the heights of the trees differ. Walking the new chunks
        // then costs less.
        if old.len() > (new.len() + 8) * 64 {
            return Ok(HashSet::new());
        }
        let mut below = HashSet::new();
        for part in old.chunks(FETCH_BATCH_CHUNKS) {
            for chunk in self.route.target.read_chunks(part)? {
                below.extend(chunk.chunk_refs());
            }
        }
        Ok(below)
    }

    /// Copies chunks; returns the chunks that they refer to.
    fn copy_chunks(
        &mut self,
        ids: &[ChunkId],
        large: &mut dyn FnMut(&[BlobId]) -> Result<()>,
    ) -> Result<Vec<ChunkId>> {
        let ChunkSyncRoute { source, target, .. } = self.route;
        let present = target.contains_chunks(ids)?;
        let split = |expected: bool| {
            let all = ids.iter().zip(&present).filter(move |(_, is_here)| **is_here == expected);
            all.map(|(id, _)| *id).collect::<Vec<ChunkId>>()
        };
        let (present_ids, lacking) = (split(true), split(false));
        let mut chunks = target.read_chunks(&present_ids)?;
        self.report.present_chunks += chunks.len() as u64;
        let mut batch = ChunkBatch::new();
        if !lacking.is_empty() {
            let fetched = source.read_chunks(&lacking)?;
            self.report.round_trips += 1;
            self.add_chunks(&lacking, &fetched, &mut batch)?;
            chunks.extend(fetched);
        }
        self.copy_blobs(&chunks, &mut batch, large)?;
        target.commit(batch)?;
        Ok(chunks.iter().flat_map(|chunk| chunk.chunk_refs()).collect())
    }

    fn add_chunks(
        &mut self,
        ids: &[ChunkId],
        chunks: &[Chunk],
        batch: &mut ChunkBatch,
    ) -> Result<()> {
        if ids.len() != chunks.len() {
            let id = ids.last().copied().unwrap_or(ChunkId::from_bytes([0; 32]));
            return Err(Error::ChunkMissing { id });
        }
        for (id, chunk) in ids.iter().zip(chunks) {
            // The id is computed from the bytes, so that the source cannot substitute one chunk for another.
            if batch.add_chunk(chunk.bytes().clone()) != *id {
                return Err(Error::ChunkDamaged {
                    id: *id,
                    fault: "its content does not match its hash",
                });
            }
            self.report.fetched_chunks += 1;
            self.report.fetched_bytes += chunk.bytes().len() as u64;
        }
        Ok(())
    }

    fn copy_blobs(
        &mut self,
        chunks: &[Chunk],
        batch: &mut ChunkBatch,
        large: &mut dyn FnMut(&[BlobId]) -> Result<()>,
    ) -> Result<()> {
        let ChunkSyncRoute { source, target, small_blob_limit } = self.route;
        let all: HashSet<BlobId> = chunks.iter().flat_map(|chunk| chunk.blob_refs()).collect();
        let (small, big): (Vec<BlobId>, Vec<BlobId>) =
            all.into_iter().partition(|id| id.length() < small_blob_limit);
        let mut lacking = Vec::new();
        for id in small {
            if !target.contains_blob(&id)? {
                lacking.push(id);
            }
        }
        for part in lacking.chunks(FETCH_BATCH_CHUNKS) {
            let blobs = source.read_blobs(part)?;
            self.report.round_trips += 1;
            for (id, bytes) in part.iter().zip(blobs) {
                let bytes = bytes.filter(|bytes| BlobId::hash_of(bytes) == *id);
                let fault = "its source does not have it, or has different content";
                let bytes = bytes.ok_or(Error::BlobDamaged { id: *id, fault })?;
                self.report.fetched_blobs += 1;
                self.report.fetched_bytes += bytes.len() as u64;
                batch.add_blob(*id, bytes);
            }
        }
        if big.is_empty() { Ok(()) } else { large(&big) }
    }
}
