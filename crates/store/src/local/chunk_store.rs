//! The interface of a chunk store over the packs of a folder.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::local_store::LocalStore;
use super::pack_writer;
use super::record::{self, RecordKind};
use super::record_index::RecordLookupPurpose;
use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_batch::{ChunkBatch, LeaseUpdate};
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::chunk_store::ChunkStore;
use crate::interface::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::interface::history::Revision;
use crate::interface::root_retention::{CollectionHold, RootLease, RootPin};

impl ReadChunks for LocalStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        if let Some(chunk) = self.cache.get(id) {
            return Ok(chunk);
        }
        let chunk = self.load_chunk(id)?;
        self.cache.insert(*id, chunk.clone());
        Ok(chunk)
    }
}

impl ChunkStore for LocalStore {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        ids.iter().map(|id| self.contains_record(RecordKind::Chunk, id.as_bytes())).collect()
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        let Some((location, header, record)) = self.find_record(RecordKind::Blob, id.digest())?
        else {
            return Ok(None);
        };
        let fault = "its record cannot be decoded or fails its checksum";
        let bytes = header
            .filter(|header| header.id == *id.digest())
            .filter(|header| record::is_record_valid(header, &record, location.position))
            .and_then(|header| record::decode_record(&header, &record));
        let Some(bytes) = bytes else {
            let error = Error::BlobDamaged { id: *id, fault };
            self.disable_writes(format!("{error}"));
            return Err(error);
        };
        // The digest matches, so a wrong length means that no such blob exists.
        Ok(Some(bytes).filter(|bytes| bytes.len() as u64 == id.length()))
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.contains_record(RecordKind::Blob, id.digest())
    }

    fn commit(&self, batch: ChunkBatch) -> Result<()> {
        self.check_writable()?;
        let mut prepared =
            pack_writer::PreparedRecords::new(&batch, &self.index, self.compression)?;
        let mut writer = self.writer.lock();
        self.check_writable()?;
        self.check_ref_updates(&batch)?;
        let written = writer.write_batch(self.write_context(), &mut prepared, &batch);
        let commit = written.map_err(|failure| self.handle_write_failure(failure))?;
        self.holds.record_hits(prepared.present.into_iter());
        for (id, chunk) in prepared.chunks {
            self.cache.insert(id, chunk);
        }
        if let Some(commit) = commit {
            self.tables.write().apply_commit(&commit);
        }
        let due = writer.take_unindexed();
        drop(writer);
        self.write_pending_indexes(due);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.check_writable()?;
        let mut writer = self.writer.lock();
        let flushed = writer.flush_pack(self.write_context());
        flushed.map_err(|failure| self.handle_write_failure(failure))
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        Ok(self.tables.read().refs.get(name).copied())
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        let tables = self.tables.read();
        Ok(tables.refs.iter().map(|(name, id)| (name.clone(), *id)).collect())
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.read_history(Some(name), before, limit)
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        let mut leases = self.tables.read().leases.clone();
        let files = self.read_lease_files()?;
        leases.extend(files.into_iter().map(|lease| (lease.holder.clone(), lease)));
        Ok(leases.into_values().collect())
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.pins.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        // A pack number that is one too low retains more, never less.
        let open = self.index.newest_pack();
        Ok(CollectionHold::new(self.holds.begin_hold(open)))
    }

    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        self.run_garbage_collection(options, pace)
    }
}

impl LocalStore {
    /// Returns an error for updates whose expected root differs from the current one, and for updates to roots that are
    /// not in the store.
    fn check_ref_updates(&self, batch: &ChunkBatch) -> Result<()> {
        let mut moved: BTreeMap<&str, Option<ChunkId>> = BTreeMap::new();
        let tables = self.tables.read();
        for update in batch.ref_updates() {
            let actual = moved.get(update.name.as_str()).copied();
            let actual = actual.unwrap_or_else(|| tables.refs.get(&update.name).copied());
            if actual != update.expected_root {
                return Err(Error::RefMoved {
                    name: update.name.clone(),
                    expected: update.expected_root,
                    actual,
                });
            }
            moved.insert(&update.name, update.new_root);
        }
        tables.check_capacity(batch)?;
        drop(tables);
        let leased = batch.lease_updates().iter().filter_map(|update| match update {
            LeaseUpdate::Grant(lease) => Some(lease.root),
            LeaseUpdate::Release { .. } => None,
        });
        for root in moved.into_values().flatten().chain(leased) {
            let find = || {
                self.index.find_verified(
                    RecordKind::Chunk,
                    root.as_bytes(),
                    RecordLookupPurpose::Retain,
                )
            };
            let is_below = || match self.base.get() {
                Some(base) => Ok(base.contains_chunks(&[root])? == [true]),
                None => Ok::<bool, Error>(false),
            };
            if batch.chunk(&root).is_none() && find()?.is_none() && !is_below()? {
                return Err(Error::ChunkMissing { id: root });
            }
        }
        Ok(())
    }
}
