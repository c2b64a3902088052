//! The interface of every chunk store: the local packs, memory, PostgreSQL, a composite.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::error::Result;
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::interface::history::Revision;
use crate::interface::root_retention::{CollectionHold, RootLease, RootPin};

/// Chunks, small blobs and refs, changed by one kind of write: [`ChunkStore::commit`].
pub trait ChunkStore: ReadChunks {
    /// Returns for each id whether the store holds the chunk and will retain it.
    ///
    /// An unreachable chunk is retained only while a [`CollectionHold`] taken before the call is alive. The result is
    /// about the chunk alone: chunks that it refers to may be missing if it was never committed.
    ///
    /// # Errors
    /// A failed read.
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>>;

    /// Returns a small blob, or `None` if the store does not hold it.
    ///
    /// # Errors
    /// [`Error::BlobDamaged`](crate::Error::BlobDamaged) or a failed read.
    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>>;

    /// Returns true if the store holds a small blob, under the conditions of [`ChunkStore::contains_chunks`].
    ///
    /// # Errors
    /// A failed read.
    fn contains_blob(&self, id: &BlobId) -> Result<bool>;

    /// Stores everything in the batch, then applies its ref and lease updates in order. The call is atomic.
    ///
    /// If the batch updates a ref or lease, everything stored so far is durable when the call returns. Otherwise the
    /// chunks and blobs can be read at once, but survive a crash only after the next commit that updates a ref, or
    /// after [`ChunkStore::sync`].
    ///
    /// # Errors
    /// [`Error::RefMoved`](crate::Error::RefMoved): nothing was stored. [`Error::FileWrite`](crate::Error::FileWrite):
    /// nothing was stored; the same call can succeed when the disk has space again.
    /// [`Error::WriteDisabled`](crate::Error::WriteDisabled): an earlier failure closed the store for writing.
    fn commit(&self, batch: ChunkBatch) -> Result<()>;

    /// Makes everything stored so far durable.
    ///
    /// # Errors
    /// As [`ChunkStore::commit`].
    fn sync(&self) -> Result<()>;

    /// Returns the root that a ref points to, or `None` if the ref is absent.
    ///
    /// # Errors
    /// A failed read.
    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>>;

    /// Returns all refs, sorted by name.
    ///
    /// # Errors
    /// A failed read.
    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>>;

    /// Returns the retained revisions of a ref with sequence numbers below `before` (all if it is `None`), newest
    /// first, at most `limit`.
    ///
    /// # Errors
    /// A failed read, or a damaged history.
    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>>;

    /// Returns all leases, sorted by holder. Expired leases are included until a collection ends them.
    ///
    /// # Errors
    /// A failed read.
    fn list_leases(&self) -> Result<Vec<RootLease>>;

    /// Retains a root until the pin is dropped. The caller has the root from a ref, its history, a lease or a pin.
    fn pin_root(&self, root: ChunkId) -> RootPin;

    /// Retains everything that is stored, or reported as present, from now until the hold is dropped.
    ///
    /// # Errors
    /// A failed write, where processes share holds.
    fn begin_hold(&self) -> Result<CollectionHold>;

    /// Collects garbage: removes everything that no ref, retained revision, live lease, pin or hold reaches.
    ///
    /// Reads and commits continue during the collection. `pace` is called repeatedly and may wait, or stop the
    /// collection; stopping leaves the store consistent. Only one collection runs at a time.
    ///
    /// # Errors
    /// A failed read or write, damage found during the collection (nothing is removed then), or
    /// [`Error::CollectionRunning`](crate::Error::CollectionRunning) while another runs.
    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport>;
}
