//! A local store: opening, closing, lookup of records, and the consequences of a failed write.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::index_file::RecordLocation;
use super::local_hold::LocalHolds;
use super::options::LocalStoreOptions;
use super::pack_writer::{self, LocalPackWriter};
use super::record::{self, RecordCompression, RecordHeader, RecordKind};
use super::record_index::{RecordIndex, RecordLookupPurpose, read_record_from};
use super::record_payload::StoreTables;
use super::{lease_file, recovery};
use crate::chunk::Chunk;
use crate::chunk_cache::{ChunkCache, new_chunk_cache};
use crate::disk::{Disk, DiskLock, DiskLockError, MemoryDisk};
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::base_store::BaseStore;
use crate::interface::root_retention::{RootLease, RootPins};

/// Chunks, small blobs and refs in one folder.
#[derive(Debug)]
pub struct LocalStore {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) index: RecordIndex,
    pub(super) tables: RwLock<StoreTables>,
    pub(super) pins: RootPins,
    pub(super) holds: LocalHolds,
    pub(super) collection_lock: Mutex<()>,
    pub(super) cache: ChunkCache,
    pub(super) writer: Mutex<LocalPackWriter>,
    write_failure: OnceLock<String>,
    /// The base of the store: holds chunks that refs reach and the store does not hold.
    pub(super) base: OnceLock<Arc<dyn BaseStore>>,
    /// Other folders with leases on this store.
    lease_folders: RwLock<Vec<Arc<dyn Disk>>>,
    pub(super) compression: RecordCompression,
    /// Damage found when the store was opened.
    pub(super) damage_found: Mutex<Vec<String>>,
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
        Ok(Self {
            disk,
            index,
            tables: RwLock::new(recovered.tables),
            pins: RootPins::default(),
            holds: LocalHolds::default(),
            collection_lock: Mutex::new(()),
            cache: new_chunk_cache(options.cache_size),
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
    pub(super) fn read_lease_files(&self) -> Result<Vec<RootLease>> {
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

    pub(super) fn disable_writes(&self, reason: String) {
        tracing::error!(reason, "the store no longer accepts writes");
        // Only the first reason is stored.
        self.write_failure.get_or_init(|| reason);
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        match self.write_failure.get() {
            Some(reason) => Err(Error::WriteDisabled { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Reads the record of a chunk or blob; `None` if it does not exist.
    pub(super) fn find_record(
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
            let (header, record) = self.index.read_record(record_match.location)?;
            return Ok(Some((record_match.location, header, record)));
        }
        Ok(Some((location, header, record)))
    }

    pub(super) fn load_chunk(&self, id: &ChunkId) -> Result<Chunk> {
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
    pub(super) fn contains_record(&self, kind: RecordKind, id: &[u8; 32]) -> Result<bool> {
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

    pub(super) fn write_context(&self) -> pack_writer::PackWriteContext<'_> {
        pack_writer::PackWriteContext {
            disk: self.disk.as_ref(),
            index: &self.index,
            tables: &self.tables,
        }
    }

    /// Writes index files; those that cannot be written stay pending.
    pub(super) fn write_pending_indexes(&self, mut due: Vec<pack_writer::UnindexedPack>) {
        due.retain(|due| !pack_writer::write_pack_index(self.disk.as_ref(), &self.index, due));
        if !due.is_empty() {
            self.writer.lock().unindexed_packs.append(&mut due);
        }
    }

    /// Closes the store for writing if the failure requires it.
    pub(super) fn handle_write_failure(&self, failure: pack_writer::PackWriteFailure) -> Error {
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
