//! The store in one folder: append-only packs with commit records, and an index beside each.
//!
//! In: [`ChunkBatch`]es. Out: verified chunks and small blobs, from a bounded cache or by one positioned read.
//!
//! Invariants
//! * A commit is one append and one sync; the ref moves after the sync.
//! * Everything that can be read is durable as soon as any later commit is.
//! * Readers take no lock that is held during a write to the disk.
//!
//! On failure: a failed append is truncated again, so a full disk rejects writes and the store recovers by itself. A
//! failed sync, or a record that does not have its hash, closes the store for writing until it is opened again.
//!
//! Not here: state shared by several processes. The format is `docs/formats/pack.md`.

#[cfg(fuzzing)]
pub mod fuzzing;
mod garbage_collection;
mod history_reader;
mod index_file;
mod lease_file;
mod local_hold;
mod pack_repair;
mod pack_scan;
mod pack_survey;
mod pack_writer;
mod read_only_store;
mod record;
mod record_index;
mod record_payload;
mod recovery;
mod rewrite_candidate;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::base_store::BaseStore;
use crate::chunk::Chunk;
use crate::chunk_batch::{ChunkBatch, LeaseUpdate};
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::disk::{Disk, DiskFile, DiskLock, DiskLockError, MemoryDisk};
use crate::error::{Error, Result};
use crate::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::root_retention::{CollectionHold, RootLease, RootPin, RootPins};

use index_file::RecordLocation;
use local_hold::LocalHolds;
pub(crate) use pack_survey::PackSurvey;
use pack_writer::LocalPackWriter;
pub use read_only_store::ReadOnlyLocalStore;
pub use record::RecordCompression;
use record::RecordKind;
use record::{RECORD_HEADER_BYTES, RecordHeader};
use record_index::{RecordIndex, RecordLookupPurpose};
use record_payload::StoreTables;
pub(crate) use record_payload::{check_lease_update, check_update};
use tympan_notation::ByteSize;

/// The options of a local store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalStoreOptions {
    /// Memory for chunks that were read or written recently.
    ///
    /// A larger cache means fewer reads from the disk. Default 64 MiB; useful from 8 MiB up to the size of the tree.
    pub cache_size: ByteSize,
    /// The length at which a pack ends. Default and maximum 256 MiB; smaller values are for tests.
    pub pack_limit: ByteSize,
    /// The compression of records. Default lz4, which halves the bytes written and read.
    pub compression: RecordCompression,
}

impl LocalStoreOptions {
    const MAX_PACK_SIZE: ByteSize = ByteSize::from_mib(256);
}

impl Default for LocalStoreOptions {
    fn default() -> Self {
        Self {
            cache_size: ByteSize::from_mib(64),
            pack_limit: Self::MAX_PACK_SIZE,
            compression: RecordCompression::default(),
        }
    }
}

/// Chunks, small blobs and refs in one folder.
#[derive(Debug)]
pub struct LocalStore {
    disk: Arc<dyn Disk>,
    index: RecordIndex,
    tables: RwLock<StoreTables>,
    pins: RootPins,
    holds: LocalHolds,
    collection_lock: Mutex<()>,
    cache: Cache<ChunkId, Chunk, ChunkWeigher>,
    writer: Mutex<LocalPackWriter>,
    write_failure: OnceLock<String>,
    /// The base of the store: holds chunks that refs reach and the store does not hold.
    base: OnceLock<Arc<dyn BaseStore>>,
    /// Other folders with leases on this store.
    lease_folders: RwLock<Vec<Arc<dyn Disk>>>,
    compression: RecordCompression,
    /// Damage found when the store was opened.
    damage_found: Mutex<Vec<String>>,
    /// Unfinished writes undone when the store was opened.
    recovery_notes: Vec<String>,
    _lock: DiskLock,
}

impl LocalStore {
    /// Opens the store in a folder, or creates it; completes or undoes writes that a crash interrupted.
    ///
    /// # Errors
    /// [`Error::Locked`] while another process has it open, [`Error::FileMalformed`] for a pack of another format, or
    /// an error of the disk.
    pub fn open(disk: Arc<dyn Disk>, options: LocalStoreOptions) -> Result<Self> {
        let lock = disk.lock_folder().map_err(|error| match error {
            DiskLockError::AlreadyLocked { pid } => Error::Locked { dir: disk.display_path(), pid },
            DiskLockError::Io(source) => Error::FileWrite { file: "lock".to_owned(), source },
        })?;
        let limit = options.pack_limit.min(LocalStoreOptions::MAX_PACK_SIZE);
        let index = RecordIndex::default();
        let recovered = recovery::recover_store(disk.as_ref(), &index, limit.as_bytes())?;
        // The internal tables of the cache are sized by an estimate of the number of chunks that fit.
        let items = usize::try_from(options.cache_size.as_bytes() / 4_096).unwrap_or(usize::MAX);
        Ok(Self {
            disk,
            index,
            tables: RwLock::new(recovered.tables),
            pins: RootPins::default(),
            holds: LocalHolds::default(),
            collection_lock: Mutex::new(()),
            cache: Cache::with_weighter(items.max(16), options.cache_size.as_bytes(), ChunkWeigher),
            writer: Mutex::new(recovered.writer),
            write_failure: OnceLock::new(),
            base: OnceLock::new(),
            lease_folders: RwLock::default(),
            compression: options.compression,
            damage_found: Mutex::new(recovered.damage_found),
            recovery_notes: recovered.recovery_notes,
            _lock: lock,
        })
    }

    /// Opens an empty store in memory.
    ///
    /// # Errors
    /// None: a memory disk does not fail.
    pub fn open_in_memory() -> Result<Self> {
        Self::open(Arc::new(MemoryDisk::new()), LocalStoreOptions::default())
    }

    /// Closes the store so that the next start need not scan the open pack. Dropping the store does the same, but
    /// ignores errors.
    ///
    /// # Errors
    /// [`Error::FileWrite`]; no data is lost then.
    pub fn close(&self) -> Result<()> {
        if self.write_failure.get().is_some() {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        writer
            .flush_pack(self.write_context())
            .map_err(|failure| self.handle_write_failure(failure))?;
        // Taken under the writer's lock: an index with older tables than its pack would undo a commit.
        let tables = self.tables.read().clone();
        writer.write_checkpoint_index(self.disk.as_ref(), &self.index, &tables)
    }

    /// Returns the reason why the store accepts no more writes, or `None` if it accepts them.
    #[must_use]
    pub fn write_failure(&self) -> Option<&str> {
        self.write_failure.get().map(String::as_str)
    }

    /// Adds another folder whose leases are respected, for clients that read the store and must not write to its own
    /// folder.
    pub fn add_lease_folder(&self, folder: Arc<dyn Disk>) {
        self.lease_folders.write().push(folder);
    }

    /// Returns the leases of clients that cannot write packs.
    ///
    /// # Errors
    /// A lease or folder that cannot be read, because it is unknown which root it retains.
    fn read_lease_files(&self) -> Result<Vec<RootLease>> {
        let mut leases = lease_file::read_leases(self.disk.as_ref(), lease_file::LEASE_FOLDER)?;
        for folder in self.lease_folders.read().iter() {
            let dir = folder.display_path();
            if !dir.is_dir() {
                let (file, source) =
                    (dir.display().to_string(), std::io::ErrorKind::NotFound.into());
                return Err(Error::FileRead { file, source });
            }
            leases.extend(lease_file::read_leases(folder.as_ref(), "")?);
        }
        Ok(leases)
    }

    /// Layers the store over a base: refs may reach chunks that only the base holds.
    pub(crate) fn set_base(&self, base: Arc<dyn BaseStore>) {
        self.base.get_or_init(|| base);
    }

    /// Returns true if the index lists the chunk.
    pub(crate) fn is_chunk_indexed(&self, id: &ChunkId) -> bool {
        self.index.find_record(RecordKind::Chunk, id.as_bytes()).is_some()
    }

    /// Returns a text for each unfinished write that was undone when the store was opened.
    pub(crate) fn recovery_notes(&self) -> &[String] {
        &self.recovery_notes
    }

    fn disable_writes(&self, reason: String) {
        tracing::error!(reason, "the store no longer accepts writes");
        // Only the first reason is stored.
        self.write_failure.get_or_init(|| reason);
    }

    fn check_writable(&self) -> Result<()> {
        match self.write_failure.get() {
            Some(reason) => Err(Error::WriteDisabled { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Reads a whole record.
    fn read_record(&self, location: RecordLocation) -> Result<(Option<RecordHeader>, Bytes)> {
        self.index.read_record(location)
    }

    /// Reads the record of a chunk or blob; `None` if it does not exist.
    fn find_record(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
    ) -> Result<Option<(RecordLocation, Option<RecordHeader>, Bytes)>> {
        let Some((location, file)) = self.index.find_record(kind, id) else {
            return Ok(None);
        };
        let (header, record) = read_record_from(file.as_ref(), location)?;
        if header.is_some_and(|header| header.id != *id) {
            // The cause is a collision of two id prefixes, or damage.
            let surely = self.index.find_verified(kind, id, RecordLookupPurpose::Read)?;
            let Some(record_match) = surely else {
                return Ok(Some((location, None, record)));
            };
            let (header, record) = self.read_record(record_match.location)?;
            return Ok(Some((record_match.location, header, record)));
        }
        Ok(Some((location, header, record)))
    }

    /// Reads a chunk past the cache; the inner error is the reason why it cannot be read. A record that the survey
    /// lists as damaged is not read.
    pub(crate) fn read_surveyed_chunk(
        &self,
        id: &ChunkId,
        survey: &PackSurvey,
    ) -> Result<Result<Chunk, String>> {
        if self.is_damaged_chunk(id, survey) {
            return Ok(Err(format!("chunk `{id}` is damaged")));
        }
        let loaded = self.load_chunk(id).or_else(|error| match (self.base.get(), error) {
            (Some(base), Error::ChunkMissing { .. }) => base.read_chunk(id),
            (_, error) => Err(error),
        });
        match loaded {
            Ok(chunk) => Ok(Ok(chunk)),
            Err(error @ (Error::ChunkMissing { .. } | Error::BaseChunkMissing { .. })) => {
                Ok(Err(error.to_string()))
            }
            Err(Error::ChunkDamaged { fault, .. }) => {
                Ok(Err(format!("chunk `{id}` is damaged: {fault}")))
            }
            Err(other) => Err(other),
        }
    }

    fn load_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        let entry = self.find_record(RecordKind::Chunk, id.as_bytes())?;
        let (_, header, record) = entry.ok_or(Error::ChunkMissing { id: *id })?;
        let damaged = |fault| {
            let error = Error::ChunkDamaged { id: *id, fault };
            self.disable_writes(format!("{error}"));
            error
        };
        let bytes = header
            .filter(|header| header.id == *id.as_bytes())
            .and_then(|header| record::decode_record(&header, &record))
            .ok_or_else(|| damaged("its record cannot be decoded"))?;
        if ChunkId::hash_of(&bytes) != *id {
            return Err(damaged("its content does not match its hash"));
        }
        Chunk::parse(bytes).map_err(|error| match error {
            Error::ChunkMalformed { fault } => damaged(fault),
            other => other,
        })
    }

    /// Returns true if a record is present and will be retained, as far as a hold or ref retains it.
    fn contains_record(&self, kind: RecordKind, id: &[u8; 32]) -> Result<bool> {
        let is_here =
            || Ok(self.index.find_verified(kind, id, RecordLookupPurpose::Retain)?.is_some());
        if !is_here()? {
            return Ok(false);
        }
        self.holds.record_hits(std::iter::once((kind, *id)));
        if self.holds.is_condemning() {
            drop(self.writer.lock());
        }
        // Records condemned before the hit was recorded are not relied on; those condemned later do not include this
        // record.
        is_here()
    }

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
    fn write_context(&self) -> pack_writer::PackWriteContext<'_> {
        pack_writer::PackWriteContext {
            disk: self.disk.as_ref(),
            index: &self.index,
            tables: &self.tables,
        }
    }

    /// Writes index files; those that cannot be written stay pending.
    fn write_pending_indexes(&self, mut due: Vec<pack_writer::UnindexedPack>) {
        due.retain(|due| !pack_writer::write_pack_index(self.disk.as_ref(), &self.index, due));
        if !due.is_empty() {
            self.writer.lock().unindexed_packs.append(&mut due);
        }
    }

    /// Closes the store for writing if the failure requires it.
    fn handle_write_failure(&self, failure: pack_writer::PackWriteFailure) -> Error {
        match failure {
            pack_writer::PackWriteFailure::NothingWritten(error) => error,
            pack_writer::PackWriteFailure::DiskStateUnknown(error) => {
                let reason = match &error {
                    Error::FileWrite { file, source } => format!("cannot write `{file}`: {source}"),
                    other => other.to_string(),
                };
                self.disable_writes(reason);
                error
            }
        }
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::debug!(reason = %error, "cannot close the store; the next start scans the open pack");
        }
    }
}

/// Weighs a cached chunk by its memory in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkWeigher;

impl Weighter<ChunkId, Chunk> for ChunkWeigher {
    fn weight(&self, _: &ChunkId, chunk: &Chunk) -> u64 {
        // The internal tables of the cache take about this many bytes per chunk.
        const ENTRY: u64 = 128;
        chunk.bytes().len() as u64 + ENTRY
    }
}

fn read_record_from(
    file: &dyn DiskFile,
    location: RecordLocation,
) -> Result<(Option<RecordHeader>, Bytes)> {
    let mut record = vec![0; RECORD_HEADER_BYTES + location.stored_bytes as usize];
    file.read_at(u64::from(location.position.offset), &mut record).map_err(|source| {
        Error::FileRead { file: pack_file_name(location.position.pack), source }
    })?;
    let header = RecordHeader::parse(&record)
        .filter(|header| header.kind == location.kind && header.record_length() == record.len());
    Ok((header, Bytes::from(record)))
}

/// The flag in the number of a pack that a collection created; these packs are numbered separately.
const COLLECTION_PACK_FLAG: u32 = 1 << 31;

/// Returns true if a collection created the pack, rather than commits.
fn is_collection_pack(pack: u32) -> bool {
    pack & COLLECTION_PACK_FLAG != 0
}

/// Returns the file name of a pack.
fn pack_file_name(pack: u32) -> String {
    let number = pack & !COLLECTION_PACK_FLAG;
    let prefix = if is_collection_pack(pack) { "live" } else { "pack" };
    format!("{prefix}-{number:06}")
}

/// Returns the pack number in a file name, or `None` if the name is not that of a pack.
fn parse_pack_number(name: &str) -> Option<u32> {
    let (prefix, number) = name.split_once('-')?;
    let number: u32 = number.parse().ok()?;
    let pack = if prefix == "live" { number | COLLECTION_PACK_FLAG } else { number };
    (pack_file_name(pack) == name).then_some(pack)
}
