//! A store over the store of someone else: a staging home over production.
//!
//! In: an own store that is written, a base that is only read, and a lease on one of the base's states. Out: one
//! store. Reads ask the own store first, which costs no I/O where it does not hold a chunk, then the base.
//!
//! Invariants
//! * What the own refs reach is in the own store, or below the leased root in the base.
//! * Nothing is relied on for being in the base alone: a chunk of a state that production drops tomorrow is stored
//!   again. What is below the leased root is known by having been read from there downwards, so that a chunk which
//!   an edit found in the base, and writes as it was, is not stored.
//! * Refs, history, leases, pins, holds and collections are the own store's.
//!
//! On failure: a chunk that the base should keep and does not is an error that names the lease. A lease that is lost
//! closes the store for writing, as nobody knows what is still there.
//!
//! A base that cannot be read makes a transient error: what is own is served, and the rest when the base is back.
//!
//! Not here: when the lease is renewed; large blobs.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;

use crate::base::{Base, renew_lease};
use crate::batch::{Batch, LeaseUpdate};
use crate::chunk::Chunk;
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::collect::{CollectOptions, Collected, Progress};
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::keep::{Hold, Lease, Pin};
use crate::local::LocalStore;

/// How many chunks, and as many blobs, are remembered to be below a root that is kept.
const MARKS: usize = 1 << 17;

/// An own store over a base.
#[derive(Debug)]
pub struct CompositeStore {
    own: Arc<LocalStore>,
    base: Arc<dyn Base>,
    lease: Mutex<Lease>,
    is_lost: AtomicBool,
    /// Why the lease was not renewed at the last try.
    not_renewed: Mutex<Option<String>>,
    /// Whether own chunks are being collected; then what an own chunk refers to may be in neither place.
    is_collecting: RwLock<bool>,
    marks: Cache<ChunkId, Mark>,
    /// Small and large blobs that chunks below the leased root refer to.
    blobs: Cache<BlobId, ()>,
}

/// Why a chunk is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    by: Keeper,
    /// What the chunk refers to is marked too.
    is_followed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    /// It is reached by an own ref, and in the own store.
    Own,
    /// It is below the leased root.
    Lease,
}

impl CompositeStore {
    /// Lays `own` over the state of `base` that `lease` keeps.
    ///
    /// # Errors
    /// A failed read of the own refs.
    pub fn new(own: Arc<LocalStore>, base: Arc<dyn Base>, lease: Lease) -> Result<Self> {
        own.lie_over(Arc::clone(&base));
        let store = Self {
            own,
            base,
            lease: Mutex::new(lease),
            is_lost: AtomicBool::new(false),
            not_renewed: Mutex::default(),
            is_collecting: RwLock::new(false),
            marks: Cache::new(MARKS),
            blobs: Cache::new(MARKS),
        };
        store.begin_marks()?;
        Ok(store)
    }

    /// Returns the own store.
    #[must_use]
    pub fn own(&self) -> &Arc<LocalStore> {
        &self.own
    }

    /// Returns the lease on the base as it was last renewed.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease.lock().clone()
    }

    /// Prolongs the lease on the base.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], and the store takes no more writes until a later call succeeds; or what the base says.
    pub fn renew(&self, now: SystemTime, life: Duration) -> Result<()> {
        let lease = self.lease();
        let renewed = renew_lease(self.base.as_ref(), &lease, (now, life));
        match renewed {
            Ok(renewed) => {
                *self.lease.lock() = renewed;
                self.is_lost.store(false, Ordering::Release);
                *self.not_renewed.lock() = None;
                Ok(())
            }
            Err(error) => {
                *self.not_renewed.lock() = Some(error.to_string());
                let is_lost = matches!(error, Error::LeaseLost { .. });
                self.is_lost.fetch_or(is_lost, Ordering::AcqRel);
                Err(error)
            }
        }
    }

    /// Returns what is wrong with the base or the lease on it, as far as that is known without asking.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if let Some(reason) = self.base.outage() {
            return Some(format!("`{}` cannot be reached: {reason}", self.base.name()));
        }
        let reason = self.not_renewed.lock().clone()?;
        Some(format!("the lease on `{}` was not renewed: {reason}", self.base.name()))
    }

    /// Marks the roots, from which everything else that is kept is found by reading.
    fn begin_marks(&self) -> Result<()> {
        self.marks.clear();
        self.blobs.clear();
        for (_, root) in self.own.refs()? {
            self.mark(root);
        }
        let root = self.lease.lock().root;
        self.marks.insert(root, Mark { by: Keeper::Lease, is_followed: false });
        Ok(())
    }

    /// Marks a chunk that an own ref reaches.
    fn mark(&self, id: ChunkId) {
        let by = if self.own.lists(&id) { Keeper::Own } else { Keeper::Lease };
        self.marks.insert(id, Mark { by, is_followed: false });
    }

    /// Marks what a chunk refers to, if the chunk itself is kept.
    fn follow(&self, id: &ChunkId, chunk: &Chunk, from: Keeper) {
        let Some(mark) = self.marks.get(id).filter(|mark| !mark.is_followed) else {
            return;
        };
        // A chunk that was own when it was marked, and comes from the base now, is no longer reached by an own ref.
        if mark.by == Keeper::Own && from == Keeper::Lease {
            return;
        }
        let is_collecting = self.is_collecting.read();
        if mark.by == Keeper::Own && *is_collecting {
            return;
        }
        self.marks.insert(*id, Mark { is_followed: true, ..mark });
        for child in chunk.chunk_refs().filter(|child| self.marks.peek(child).is_none()) {
            match mark.by {
                Keeper::Own => self.mark(child),
                Keeper::Lease => {
                    self.marks.insert(child, Mark { by: Keeper::Lease, is_followed: false });
                }
            }
        }
        if mark.by == Keeper::Lease {
            chunk.blob_refs().for_each(|blob| self.blobs.insert(blob, ()));
        }
    }

    /// Tells whether the lease is known to keep a chunk.
    fn is_leased(&self, id: &ChunkId) -> bool {
        let is_leased = self.marks.peek(id).is_some_and(|mark| mark.by == Keeper::Lease);
        is_leased && !self.is_lost.load(Ordering::Acquire)
    }

    /// Names the lease in the error for a chunk that the base lacks.
    fn missing(&self, error: Error) -> Error {
        match error {
            Error::ChunkMissing { id } => {
                let holder = self.lease.lock().holder.clone();
                Error::BaseChunkMissing { id, base: self.base.name(), holder }
            }
            // Of someone else's disk, which may be mounted again.
            Error::Read { file, source } => Error::Remote {
                base: self.base.name(),
                reason: format!("cannot read `{file}`: {source}"),
                is_transient: true,
            },
            other => other,
        }
    }

    /// Returns which chunks the base holds below the leased root.
    fn leased(&self, ids: impl Iterator<Item = ChunkId>) -> Result<HashSet<ChunkId>> {
        let known: Vec<ChunkId> = ids.filter(|id| self.is_leased(id)).collect();
        if known.is_empty() {
            return Ok(HashSet::new());
        }
        let present = self.base.contains_many(&known).map_err(|error| self.missing(error))?;
        Ok(known
            .into_iter()
            .zip(present)
            .filter(|(_, is_here)| *is_here)
            .map(|(id, _)| id)
            .collect())
    }

    /// Refuses roots that are neither own nor leased.
    fn check_roots(&self, batch: &Batch) -> Result<()> {
        let moved = batch.ref_updates().iter().filter_map(|update| update.new);
        let granted = batch.lease_updates().iter().filter_map(|update| match update {
            LeaseUpdate::Grant(lease) => Some(lease.root),
            LeaseUpdate::Release { .. } => None,
        });
        for id in moved.chain(granted).filter(|id| batch.chunk(id).is_none()) {
            if !self.is_leased(&id) && !self.own.lists(&id) {
                return Err(Error::ChunkMissing { id });
            }
        }
        Ok(())
    }
}

impl ReadChunks for CompositeStore {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        let (chunk, from) = match self.own.read(id) {
            Err(Error::ChunkMissing { .. }) => {
                let chunk = self.base.read(id).map_err(|error| self.missing(error))?;
                (chunk, Keeper::Lease)
            }
            found => (found?, Keeper::Own),
        };
        self.follow(id, &chunk, from);
        Ok(chunk)
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let mut chunks: Vec<Option<Chunk>> = Vec::with_capacity(ids.len());
        for id in ids {
            chunks.push(match self.own.read(id) {
                Err(Error::ChunkMissing { .. }) => None,
                found => {
                    let chunk = found?;
                    self.follow(id, &chunk, Keeper::Own);
                    Some(chunk)
                }
            });
        }
        let absent = |(id, chunk): (&ChunkId, &Option<Chunk>)| chunk.is_none().then_some(*id);
        let asked: Vec<ChunkId> = ids.iter().zip(&chunks).filter_map(absent).collect();
        let mut found = Vec::new();
        if !asked.is_empty() {
            found = self.base.read_many(&asked).map_err(|error| self.missing(error))?;
        }
        for (id, chunk) in asked.iter().zip(&found) {
            self.follow(id, chunk, Keeper::Lease);
        }
        let mut found = found.into_iter();
        let all: Option<Vec<Chunk>> =
            chunks.into_iter().map(|one| one.or_else(|| found.next())).collect();
        let first = asked.first().copied().unwrap_or(ChunkId::from_bytes([0; 32]));
        all.ok_or_else(|| self.missing(Error::ChunkMissing { id: first }))
    }
}

impl ChunkStore for CompositeStore {
    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        let mut present = self.own.contains_many(ids)?;
        let absent = ids.iter().zip(&present).filter(|(_, is_here)| !**is_here);
        let leased = self.leased(absent.map(|(id, _)| *id))?;
        for (id, is_here) in ids.iter().zip(&mut present) {
            *is_here |= leased.contains(id);
        }
        Ok(present)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        match self.own.read_blob(id)? {
            Some(bytes) => Ok(Some(bytes)),
            None => {
                let found = self.base.read_blobs(&[*id]).map_err(|error| self.missing(error));
                Ok(found?.pop().flatten())
            }
        }
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        if self.own.contains_blob(id)? {
            return Ok(true);
        }
        let is_leased = self.blobs.peek(id).is_some() && !self.is_lost.load(Ordering::Acquire);
        Ok(is_leased && self.base.read_blobs(&[*id])?.pop().flatten().is_some())
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        if self.is_lost.load(Ordering::Acquire) {
            let lease = self.lease();
            let (base, holder, root) = (self.base.name(), lease.holder, lease.root);
            return Err(Error::LeaseLost { base, holder, root });
        }
        self.check_roots(&batch)?;
        let roots: Vec<ChunkId> =
            batch.ref_updates().iter().filter_map(|update| update.new).collect();
        let leased = self.leased(batch.chunks().map(|(id, _)| *id))?;
        self.own.commit(batch.without(&leased))?;
        roots.into_iter().for_each(|root| self.mark(root));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.own.flush()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.own.read_ref(name)
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.own.refs()
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.own.history(name, before, limit)
    }

    fn leases(&self) -> Result<Vec<Lease>> {
        self.own.leases()
    }

    fn pin(&self, root: ChunkId) -> Pin {
        self.own.pin(root)
    }

    fn hold(&self) -> Result<Hold> {
        self.own.hold()
    }

    fn collect(
        &self,
        options: &CollectOptions,
        pace: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Collected> {
        *self.is_collecting.write() = true;
        let collected = self.own.collect(options, pace);
        // What was own and reached may be neither now.
        let begun = self.begin_marks();
        *self.is_collecting.write() = false;
        begun.and(collected)
    }
}
