//! A store of another party as a read-only base for content.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::{
    BaseStore, BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, CollectionHold, Error,
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport, ReadChunks,
    Result, Revision, RootLease, RootPin, RootPins,
};
use bytes::Bytes;

/// A base that is read like any chunk store and refuses writes. A lease there protects the data that is read from it: a
/// pin has no effect.
#[derive(Debug)]
pub struct ReadOnlyBase {
    base: Arc<dyn BaseStore>,
    pins: RootPins,
}

impl ReadOnlyBase {
    /// Wraps a base.
    pub fn new(base: Arc<dyn BaseStore>) -> Self {
        Self { base, pins: RootPins::default() }
    }

    fn refuse_write<T>(&self) -> Result<T> {
        let file = self.base.display_name();
        Err(Error::FileWrite { file, source: std::io::ErrorKind::ReadOnlyFilesystem.into() })
    }
}

impl ReadChunks for ReadOnlyBase {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        self.base.read_chunk(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        self.base.read_chunks(ids)
    }

    fn has_costly_round_trips(&self) -> bool {
        self.base.has_costly_round_trips()
    }
}

impl ChunkStore for ReadOnlyBase {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.base.contains_chunks(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        Ok(self.base.read_blobs(&[*id])?.pop().flatten())
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        Ok(self.read_blob(id)?.is_some())
    }

    fn commit(&self, _: ChunkBatch) -> Result<()> {
        self.refuse_write()
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        let refs = self.base.list_refs()?;
        Ok(refs.into_iter().find_map(|(ref_name, root)| (ref_name == name).then_some(root)))
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.base.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.base.ref_history(name, before, limit)
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        Ok(Vec::new())
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.pins.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        Ok(CollectionHold::new(()))
    }

    fn collect_garbage(
        &self,
        _: &GarbageCollectionOptions,
        _: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        self.refuse_write()
    }
}
