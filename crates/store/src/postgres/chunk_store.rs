//! The interface of a chunk store over PostgreSQL.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::column::HashKind;
use super::commit;
use super::postgres_store::PostgresStore;
use super::store_state::PostgresStoreState;
use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::chunk_store::ChunkStore;
use crate::interface::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::interface::history::Revision;
use crate::interface::root_retention::{CollectionHold, RootLease, RootPin};

impl ReadChunks for PostgresStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        if let Some(chunk) = self.state.cache.get(id) {
            return Ok(chunk);
        }
        let mut chunks = self.read_chunks(std::slice::from_ref(id))?;
        chunks.pop().ok_or(Error::ChunkMissing { id: *id })
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let cached_chunks: Vec<Option<Chunk>> =
            ids.iter().map(|id| self.state.find_cached_chunk(id)).collect();
        if cached_chunks.iter().all(Option::is_some) {
            return Ok(cached_chunks.into_iter().flatten().collect());
        }
        let pairs = ids.iter().copied().zip(cached_chunks).collect();
        self.run_blocking(|shared| async move { shared.load_missing_chunks(pairs).await })
    }

    fn has_costly_round_trips(&self) -> bool {
        true
    }
}

impl ChunkStore for PostgresStore {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let hashes: Vec<[u8; 32]> = ids.iter().map(|id| *id.as_bytes()).collect();
        self.run_blocking(
            |shared| async move { shared.contains_hashes(HashKind::Chunk, hashes).await },
        )
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        let id = *id;
        self.run_blocking(|shared| async move { shared.load_blob(&id).await })
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        let hash = *id.digest();
        let presence = self.run_blocking(|shared| async move {
            shared.contains_hashes(HashKind::Blob, vec![hash]).await
        })?;
        Ok(presence == [true])
    }

    fn commit(&self, batch: ChunkBatch) -> Result<()> {
        self.state.check_writable()?;
        let prepared = commit::PreparedBatch::new(batch)?;
        self.run_blocking(|shared| shared.commit_batch(prepared))
    }

    fn sync(&self) -> Result<()> {
        // Every commit is durable when it returns, because the server may crash independently of this process.
        self.state.check_writable()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        if let Some(root) = self.state.ref_cache.find_ref(name) {
            return Ok(root);
        }
        let name = name.to_owned();
        self.run_blocking(|shared| async move { shared.load_ref(&name).await })
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        if let Some(all) = self.state.ref_cache.all_refs() {
            return Ok(all);
        }
        self.run_blocking(|shared| async move { shared.load_refs().await })
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        let name = name.to_owned();
        self.run_blocking(|shared| async move { shared.load_history(&name, before, limit).await })
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        self.run_blocking(|shared| async move { shared.load_leases().await })
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.state.process.pins.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        self.state.check_writable()?;
        let hold = self.run_blocking(PostgresStoreState::begin_hold)?;
        Ok(CollectionHold::new(hold))
    }

    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        self.begin_collection(options)?.run_to_end(pace)
    }
}
