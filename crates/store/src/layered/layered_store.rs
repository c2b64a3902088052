//! A writable store layered over a read-only base, such as a staging home over production.
//!
//! In: an own store that is written, a base that is only read, and a lease on one of the base's states. Out: one store.
//! Reads try the own store first, which costs no I/O if it does not hold the chunk, then the base.
//!
//! Invariants
//! * Everything reachable from the own refs is in the own store, or below the leased root in the base.
//! * The store does not rely on a chunk only because the base has it: a chunk of a state that production may drop is
//!   stored again. A chunk counts as below the leased root if it was reached by reading downwards from there. An edit
//!   that finds such a chunk in the base and writes it unchanged does not store it again.
//! * Refs, history, leases, pins, holds and collections are those of the own store.
//!
//! On failure: a chunk that the base should retain but lacks causes an error that names the lease. A lost lease closes
//! the store for writing, because it is unknown which chunks the base still has.
//!
//! A base that cannot be read causes a transient error: own chunks are served, and the others when the base is back.
//!
//! Not here: the schedule of lease renewal; large blobs.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::base_store::{BaseStore, renew_lease};
use crate::interface::chunk_batch::{ChunkBatch, LeaseUpdate};
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::chunk_store::ChunkStore;
use crate::interface::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::interface::history::Revision;
use crate::interface::root_retention::{CollectionHold, RootLease, RootPin};
use crate::local::LocalStore;

/// The maximum number of chunks, and of blobs, that are remembered as below a retained root.
const MAX_RETENTION_MARKS: usize = 1 << 17;

/// An own store over a base.
#[derive(Debug)]
pub struct LayeredStore {
    overlay: Arc<LocalStore>,
    base: Arc<dyn BaseStore>,
    lease: Mutex<RootLease>,
    is_lease_lost: AtomicBool,
    /// The error of the last lease renewal, if it failed.
    renewal_failure: Mutex<Option<String>>,
    /// True while own chunks are being collected. Chunks that an own chunk refers to may then be in neither store.
    is_collecting: RwLock<bool>,
    marks: Cache<ChunkId, RetentionMark>,
    /// Small and large blobs that chunks below the leased root refer to.
    leased_blobs: Cache<BlobId, ()>,
}

/// The reason why a chunk is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RetentionMark {
    source: RetentionSource,
    /// True if the references of the chunk are marked too.
    are_references_marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetentionSource {
    /// An own ref reaches the chunk, which is in the own store.
    Overlay,
    /// The chunk is below the leased root.
    Lease,
}

impl LayeredStore {
    /// Layers `own` over the state of `base` that `lease` retains.
    ///
    /// # Errors
    /// A failed read of the own refs.
    pub fn new(own: Arc<LocalStore>, base: Arc<dyn BaseStore>, lease: RootLease) -> Result<Self> {
        own.set_base(Arc::clone(&base));
        let store = Self {
            overlay: own,
            base,
            lease: Mutex::new(lease),
            is_lease_lost: AtomicBool::new(false),
            renewal_failure: Mutex::default(),
            is_collecting: RwLock::new(false),
            marks: Cache::new(MAX_RETENTION_MARKS),
            leased_blobs: Cache::new(MAX_RETENTION_MARKS),
        };
        store.mark_roots()?;
        Ok(store)
    }

    /// Returns the own store.
    #[must_use]
    pub fn overlay(&self) -> &Arc<LocalStore> {
        &self.overlay
    }

    /// Returns the lease on the base as it was last renewed.
    #[must_use]
    pub fn lease(&self) -> RootLease {
        self.lease.lock().clone()
    }

    /// Extends the lease on the base.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], after which the store accepts no more writes until a later call succeeds; or an error of
    /// the base.
    pub fn renew_lease(&self, now: SystemTime, life: Duration) -> Result<()> {
        let lease = self.lease();
        let renewed = renew_lease(self.base.as_ref(), &lease, (now, life));
        match renewed {
            Ok(renewed) => {
                *self.lease.lock() = renewed;
                self.is_lease_lost.store(false, Ordering::Release);
                *self.renewal_failure.lock() = None;
                Ok(())
            }
            Err(error) => {
                *self.renewal_failure.lock() = Some(error.to_string());
                let is_lost = matches!(error, Error::LeaseLost { .. });
                self.is_lease_lost.fetch_or(is_lost, Ordering::AcqRel);
                Err(error)
            }
        }
    }

    /// Returns the fault of the base or of the lease on it, as far as it is known without a request.
    #[must_use]
    pub fn current_fault(&self) -> Option<String> {
        if let Some(reason) = self.base.outage_reason() {
            return Some(format!("`{}` cannot be reached: {reason}", self.base.display_name()));
        }
        let reason = self.renewal_failure.lock().clone()?;
        Some(format!("the lease on `{}` was not renewed: {reason}", self.base.display_name()))
    }

    /// Marks the roots. Everything else that is retained is found by reading from them.
    fn mark_roots(&self) -> Result<()> {
        self.marks.clear();
        self.leased_blobs.clear();
        for (_, root) in self.overlay.list_refs()? {
            self.mark_overlay_chunk(root);
        }
        let root = self.lease.lock().root;
        self.marks.insert(
            root,
            RetentionMark { source: RetentionSource::Lease, are_references_marked: false },
        );
        Ok(())
    }

    /// Marks a chunk that an own ref reaches.
    fn mark_overlay_chunk(&self, id: ChunkId) {
        let by = if self.overlay.is_chunk_indexed(&id) {
            RetentionSource::Overlay
        } else {
            RetentionSource::Lease
        };
        self.marks.insert(id, RetentionMark { source: by, are_references_marked: false });
    }

    /// Marks the references of a chunk, if the chunk itself is retained.
    fn mark_references(&self, id: &ChunkId, chunk: &Chunk, from: RetentionSource) {
        let Some(mark) = self.marks.get(id).filter(|mark| !mark.are_references_marked) else {
            return;
        };
        // A chunk that was own when it was marked, but now comes from the base, is no longer reached by an own ref.
        if mark.source == RetentionSource::Overlay && from == RetentionSource::Lease {
            return;
        }
        let is_collecting = self.is_collecting.read();
        if mark.source == RetentionSource::Overlay && *is_collecting {
            return;
        }
        self.marks.insert(*id, RetentionMark { are_references_marked: true, ..mark });
        for child in chunk.chunk_refs().filter(|child| self.marks.peek(child).is_none()) {
            match mark.source {
                RetentionSource::Overlay => self.mark_overlay_chunk(child),
                RetentionSource::Lease => {
                    self.marks.insert(
                        child,
                        RetentionMark {
                            source: RetentionSource::Lease,
                            are_references_marked: false,
                        },
                    );
                }
            }
        }
        if mark.source == RetentionSource::Lease {
            chunk.blob_refs().for_each(|blob| self.leased_blobs.insert(blob, ()));
        }
    }

    /// Returns true if the lease is known to retain the chunk.
    fn is_leased(&self, id: &ChunkId) -> bool {
        let is_leased =
            self.marks.peek(id).is_some_and(|mark| mark.source == RetentionSource::Lease);
        is_leased && !self.is_lease_lost.load(Ordering::Acquire)
    }

    /// Converts the error for a chunk that the base lacks into one that names the lease.
    fn missing_chunk_error(&self, error: Error) -> Error {
        match error {
            Error::ChunkMissing { id } => {
                let holder = self.lease.lock().holder.clone();
                Error::BaseChunkMissing { id, base: self.base.display_name(), holder }
            }
            // The disk belongs to the base and may be mounted again.
            Error::FileRead { file, source } => Error::Remote {
                base: self.base.display_name(),
                reason: format!("cannot read `{file}`: {source}"),
                is_transient: true,
            },
            other => other,
        }
    }

    /// Returns the chunks that the base holds below the leased root.
    fn find_leased_chunks(&self, ids: impl Iterator<Item = ChunkId>) -> Result<HashSet<ChunkId>> {
        let leased_ids: Vec<ChunkId> = ids.filter(|id| self.is_leased(id)).collect();
        if leased_ids.is_empty() {
            return Ok(HashSet::new());
        }
        let present = self
            .base
            .contains_chunks(&leased_ids)
            .map_err(|error| self.missing_chunk_error(error))?;
        Ok(leased_ids
            .into_iter()
            .zip(present)
            .filter(|(_, is_here)| *is_here)
            .map(|(id, _)| id)
            .collect())
    }

    /// Returns an error for roots that are neither own nor leased.
    fn check_roots(&self, batch: &ChunkBatch) -> Result<()> {
        let moved = batch.ref_updates().iter().filter_map(|update| update.new_root);
        let granted = batch.lease_updates().iter().filter_map(|update| match update {
            LeaseUpdate::Grant(lease) => Some(lease.root),
            LeaseUpdate::Release { .. } => None,
        });
        for id in moved.chain(granted).filter(|id| batch.chunk(id).is_none()) {
            if !self.is_leased(&id) && !self.overlay.is_chunk_indexed(&id) {
                return Err(Error::ChunkMissing { id });
            }
        }
        Ok(())
    }
}

impl ReadChunks for LayeredStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        let (chunk, from) = match self.overlay.read_chunk(id) {
            Err(Error::ChunkMissing { .. }) => {
                let chunk =
                    self.base.read_chunk(id).map_err(|error| self.missing_chunk_error(error))?;
                (chunk, RetentionSource::Lease)
            }
            result => (result?, RetentionSource::Overlay),
        };
        self.mark_references(id, &chunk, from);
        Ok(chunk)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let mut chunks: Vec<Option<Chunk>> = Vec::with_capacity(ids.len());
        for id in ids {
            chunks.push(match self.overlay.read_chunk(id) {
                Err(Error::ChunkMissing { .. }) => None,
                result => {
                    let chunk = result?;
                    self.mark_references(id, &chunk, RetentionSource::Overlay);
                    Some(chunk)
                }
            });
        }
        let absent = |(id, chunk): (&ChunkId, &Option<Chunk>)| chunk.is_none().then_some(*id);
        let missing_ids: Vec<ChunkId> = ids.iter().zip(&chunks).filter_map(absent).collect();
        let mut base_chunks = Vec::new();
        if !missing_ids.is_empty() {
            base_chunks = self
                .base
                .read_chunks(&missing_ids)
                .map_err(|error| self.missing_chunk_error(error))?;
        }
        for (id, chunk) in missing_ids.iter().zip(&base_chunks) {
            self.mark_references(id, chunk, RetentionSource::Lease);
        }
        let mut base_chunks = base_chunks.into_iter();
        let all: Option<Vec<Chunk>> = chunks
            .into_iter()
            .map(|overlay_chunk| overlay_chunk.or_else(|| base_chunks.next()))
            .collect();
        let first = missing_ids.first().copied().unwrap_or(ChunkId::from_bytes([0; 32]));
        all.ok_or_else(|| self.missing_chunk_error(Error::ChunkMissing { id: first }))
    }
}

impl ChunkStore for LayeredStore {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        let mut present = self.overlay.contains_chunks(ids)?;
        let absent = ids.iter().zip(&present).filter(|(_, is_here)| !**is_here);
        let leased = self.find_leased_chunks(absent.map(|(id, _)| *id))?;
        for (id, is_here) in ids.iter().zip(&mut present) {
            *is_here |= leased.contains(id);
        }
        Ok(present)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        match self.overlay.read_blob(id)? {
            Some(bytes) => Ok(Some(bytes)),
            None => {
                let blobs =
                    self.base.read_blobs(&[*id]).map_err(|error| self.missing_chunk_error(error));
                Ok(blobs?.pop().flatten())
            }
        }
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        if self.overlay.contains_blob(id)? {
            return Ok(true);
        }
        let is_leased =
            self.leased_blobs.peek(id).is_some() && !self.is_lease_lost.load(Ordering::Acquire);
        Ok(is_leased && self.base.read_blobs(&[*id])?.pop().flatten().is_some())
    }

    fn commit(&self, batch: ChunkBatch) -> Result<()> {
        if self.is_lease_lost.load(Ordering::Acquire) {
            let lease = self.lease();
            let (base, holder, root) = (self.base.display_name(), lease.holder, lease.root);
            return Err(Error::LeaseLost { base, holder, root });
        }
        self.check_roots(&batch)?;
        let roots: Vec<ChunkId> =
            batch.ref_updates().iter().filter_map(|update| update.new_root).collect();
        let leased = self.find_leased_chunks(batch.chunks().map(|(id, _)| *id))?;
        self.overlay.commit(batch.without_chunks(&leased))?;
        roots.into_iter().for_each(|root| self.mark_overlay_chunk(root));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.overlay.sync()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.overlay.read_ref(name)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.overlay.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.overlay.ref_history(name, before, limit)
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        self.overlay.list_leases()
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.overlay.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        self.overlay.begin_hold()
    }

    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        *self.is_collecting.write() = true;
        let collected = self.overlay.collect_garbage(options, pace);
        // Chunks that were own and reachable may be neither now.
        let mark_result = self.mark_roots();
        *self.is_collecting.write() = false;
        mark_result.and(collected)
    }
}
