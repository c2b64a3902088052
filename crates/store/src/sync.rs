//! Copying a state from one store to another: only what the other lacks, asked for level by level.
//!
//! In: roots, and roots that the target is known to hold whole. Out: everything that the roots reach is in the target.
//!
//! The tree of the new roots and that of the known ones are walked side by side. What the known ones refer to is
//! skipped with everything below it. Of the rest, what the target holds by chance is walked without being fetched, as
//! nobody promises what lies below it: so a copy that was broken off goes on where it was.
//!
//! Invariants
//! * Each level costs a bounded number of round trips to the source, each of bounded size.
//! * A chunk from the source is stored under the hash of its own bytes, so a source cannot pass one for another.
//!
//! On failure: what was copied stays as garbage, and is found again by the next copy unless it was collected.
//!
//! Not here: moving refs, and keeping what is copied until then: the caller takes a [`Hold`](crate::Hold) first. Large
//! blobs are handed to the caller.

use std::collections::HashSet;
use std::fmt;

use crate::base::Base;
use crate::batch::Batch;
use crate::chunk::Chunk;
use crate::chunk_store::ChunkStore;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};

/// Chunks that are asked for together.
const TOGETHER: usize = 512;
/// Levels of chunks below a root; more can only come from a hostile source.
const MAX_LEVELS: usize = 64;

/// What copying has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Chunks that were fetched.
    pub chunks: u64,
    /// Small blobs that were fetched.
    pub blobs: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Chunks that the target held and that were walked.
    pub present: u64,
    /// Requests to the source.
    pub trips: u64,
}

impl std::ops::AddAssign for Synced {
    fn add_assign(&mut self, other: Self) {
        self.chunks += other.chunks;
        self.blobs += other.blobs;
        self.bytes += other.bytes;
        self.present += other.present;
        self.trips += other.trips;
    }
}

/// From where to where.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    /// Where the roots are.
    pub source: &'a dyn Base,
    /// Where they go.
    pub target: &'a dyn ChunkStore,
    /// Blobs below this length are small ones, which lie beside the chunks.
    pub small_below: u64,
}

impl fmt::Debug for Route<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Copies everything that `roots` reach and that `known` roots of the target do not. Large blobs go to `large`, some
/// at a time, each as often as a chunk refers to it.
///
/// # Errors
/// What source, target and `large` say. The target is as it was, but for garbage.
pub fn sync(
    route: Route<'_>,
    roots: &[ChunkId],
    known: &[ChunkId],
    large: &mut dyn FnMut(&[BlobId]) -> Result<()>,
) -> Result<Synced> {
    let mut walk = Walk { route, seen: HashSet::new(), synced: Synced::default() };
    let mut old: Vec<ChunkId> = known.to_vec();
    walk.seen.extend(known);
    let mut new: Vec<ChunkId> = roots.iter().copied().filter(|id| walk.seen.insert(*id)).collect();
    for _ in 0..MAX_LEVELS {
        if new.is_empty() {
            return Ok(walk.synced);
        }
        let known = walk.known_below(&old, &new)?;
        let mut below = HashSet::new();
        for part in new.chunks(TOGETHER) {
            below.extend(walk.copy(part, large)?);
        }
        // What both refer to need not be followed on either side.
        old = known.iter().filter(|id| !below.contains(id)).copied().collect();
        below.retain(|id| !known.contains(id));
        walk.seen.extend(known);
        new = below.into_iter().filter(|id| walk.seen.insert(*id)).collect();
    }
    let root = roots.first().copied().unwrap_or(ChunkId::from_bytes([0; 32]));
    Err(Error::ChunkDamaged { id: root, fault: "what it reaches is nested too deeply" })
}

struct Walk<'a> {
    route: Route<'a>,
    /// Chunks that are known to be whole, or have been walked.
    seen: HashSet<ChunkId>,
    synced: Synced,
}

impl Walk<'_> {
    /// Returns what known chunks of one level refer to: those of the next level.
    fn known_below(&self, old: &[ChunkId], new: &[ChunkId]) -> Result<HashSet<ChunkId>> {
        // Far more known than new chunks differ only where the trees have not the same height; then walking what is
        // new costs less.
        if old.len() > (new.len() + 8) * 64 {
            return Ok(HashSet::new());
        }
        let mut below = HashSet::new();
        for part in old.chunks(TOGETHER) {
            for chunk in self.route.target.read_many(part)? {
                below.extend(chunk.chunk_refs());
            }
        }
        Ok(below)
    }

    /// Copies chunks; returns what they refer to.
    fn copy(
        &mut self,
        ids: &[ChunkId],
        large: &mut dyn FnMut(&[BlobId]) -> Result<()>,
    ) -> Result<Vec<ChunkId>> {
        let Route { source, target, .. } = self.route;
        let present = target.contains_many(ids)?;
        let split = |wanted: bool| {
            let all = ids.iter().zip(&present).filter(move |(_, is_here)| **is_here == wanted);
            all.map(|(id, _)| *id).collect::<Vec<ChunkId>>()
        };
        let (held, lacking) = (split(true), split(false));
        let mut chunks = target.read_many(&held)?;
        self.synced.present += chunks.len() as u64;
        let mut batch = Batch::new();
        if !lacking.is_empty() {
            let fetched = source.read_many(&lacking)?;
            self.synced.trips += 1;
            self.add(&lacking, &fetched, &mut batch)?;
            chunks.extend(fetched);
        }
        self.copy_blobs(&chunks, &mut batch, large)?;
        target.commit(batch)?;
        Ok(chunks.iter().flat_map(Chunk::chunk_refs).collect())
    }

    fn add(&mut self, ids: &[ChunkId], chunks: &[Chunk], batch: &mut Batch) -> Result<()> {
        if ids.len() != chunks.len() {
            let id = ids.last().copied().unwrap_or(ChunkId::from_bytes([0; 32]));
            return Err(Error::ChunkMissing { id });
        }
        for (id, chunk) in ids.iter().zip(chunks) {
            // The id is computed anew: whatever the source is, it cannot pass one chunk for another.
            if batch.add_chunk(chunk.bytes().clone()) != *id {
                return Err(Error::ChunkDamaged { id: *id, fault: "its bytes have another hash" });
            }
            self.synced.chunks += 1;
            self.synced.bytes += chunk.bytes().len() as u64;
        }
        Ok(())
    }

    fn copy_blobs(
        &mut self,
        chunks: &[Chunk],
        batch: &mut Batch,
        large: &mut dyn FnMut(&[BlobId]) -> Result<()>,
    ) -> Result<()> {
        let Route { source, target, small_below } = self.route;
        let all: HashSet<BlobId> = chunks.iter().flat_map(Chunk::blob_refs).collect();
        let (small, big): (Vec<BlobId>, Vec<BlobId>) =
            all.into_iter().partition(|id| id.length() < small_below);
        let mut lacking = Vec::new();
        for id in small {
            if !target.contains_blob(&id)? {
                lacking.push(id);
            }
        }
        for part in lacking.chunks(TOGETHER) {
            let found = source.read_blobs(part)?;
            self.synced.trips += 1;
            for (id, bytes) in part.iter().zip(found) {
                let bytes = bytes.filter(|bytes| BlobId::of(bytes) == *id);
                let fault = "its source does not hold it, or other bytes in its place";
                let bytes = bytes.ok_or(Error::BlobDamaged { id: *id, fault })?;
                self.synced.blobs += 1;
                self.synced.bytes += bytes.len() as u64;
                batch.add_blob(*id, bytes);
            }
        }
        if big.is_empty() { Ok(()) } else { large(&big) }
    }
}
