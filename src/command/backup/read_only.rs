//! A store of someone else as one that content can be read from, and from which nothing can be written.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use tympan_store::{
    Base, Batch, BlobId, Chunk, ChunkId, ChunkStore, CollectOptions, Collected, Error, Hold, Lease,
    Pin, Pins, Progress, ReadChunks, Result, Revision,
};

/// The store. What is read from it is kept by whoever holds a lease there: a pin keeps nothing.
pub(super) struct ReadOnly {
    base: Arc<dyn Base>,
    pins: Pins,
}

impl ReadOnly {
    pub(super) fn new(base: Arc<dyn Base>) -> Self {
        Self { base, pins: Pins::default() }
    }

    fn refuse<T>(&self) -> Result<T> {
        let file = self.base.name();
        Err(Error::Write { file, source: std::io::ErrorKind::ReadOnlyFilesystem.into() })
    }
}

impl ReadChunks for ReadOnly {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        self.base.read(id)
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        self.base.read_many(ids)
    }

    fn has_costly_round_trips(&self) -> bool {
        self.base.has_costly_round_trips()
    }
}

impl ChunkStore for ReadOnly {
    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.base.contains_many(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        Ok(self.base.read_blobs(&[*id])?.pop().flatten())
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        Ok(self.read_blob(id)?.is_some())
    }

    fn commit(&self, _: Batch) -> Result<()> {
        self.refuse()
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        let refs = self.base.refs()?;
        Ok(refs.into_iter().find_map(|(one, root)| (one == name).then_some(root)))
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.base.refs()
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.base.history(name, before, limit)
    }

    fn leases(&self) -> Result<Vec<Lease>> {
        Ok(Vec::new())
    }

    fn pin(&self, root: ChunkId) -> Pin {
        self.pins.pin(root)
    }

    fn hold(&self) -> Result<Hold> {
        Ok(Hold::new(()))
    }

    fn collect(
        &self,
        _: &CollectOptions,
        _: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Collected> {
        self.refuse()
    }
}
