//! The store in one folder: append-only packs with commit records, and an index beside each.
//!
//! In: [`Batch`]es. Out: verified chunks and small blobs, from a bounded cache or by one positioned read.
//!
//! Invariants
//! * A commit is one append and one sync; the ref moves after the sync.
//! * What can be read is durable as soon as any later commit is.
//! * Readers take no lock that is held during a write to the disk.
//!
//! On failure: an append that fails is cut off again, so a full disk refuses writes and recovers by itself. A failed
//! sync, or a record that does not have its hash, closes the store for writing until it is opened again.
//!
//! Not here: what more than one process shares. The format is `docs/formats/pack.md`.

mod collect;
mod condemned;
mod follow;
#[cfg(fuzzing)]
pub mod fuzzing;
mod holds;
mod index;
mod index_file;
mod lease_file;
mod log;
mod mend;
mod payload;
mod record;
mod recover;
mod scan;
mod survey;
mod writer;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::base::Base;
use crate::batch::{Batch, LeaseUpdate};
use crate::byte_size::ByteSize;
use crate::chunk::Chunk;
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::collect::{CollectOptions, Collected, Progress};
use crate::disk::{Disk, DiskFile, DiskLock, LockError, MemoryDisk};
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::keep::{Hold, Lease, Pin, Pins};

pub use follow::FollowedStore;
use holds::Holds;
use index::{Index, Purpose};
use index_file::Location;
use payload::Tables;
pub(crate) use payload::{check_lease, check_update};
pub use record::Compression;
use record::Kind;
use record::{HEADER_BYTES, Header};
pub(crate) use survey::Survey;
use writer::Writer;

/// How a local store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalOptions {
    /// Memory for chunks that were read or written lately.
    ///
    /// Larger: fewer reads from the disk. Default 64 MiB; sensible from 8 MiB up to the size of the tree.
    pub cache: ByteSize,
    /// Where a pack ends. Default and maximum 256 MiB; smaller ones are for tests.
    pub pack_limit: ByteSize,
    /// Whether records are compressed. Default lz4, which halves what is written and read.
    pub compression: Compression,
}

impl LocalOptions {
    const MAX_PACK: ByteSize = ByteSize::mib(256);
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            cache: ByteSize::mib(64),
            pack_limit: Self::MAX_PACK,
            compression: Compression::default(),
        }
    }
}

/// Chunks, small blobs and refs in one folder.
#[derive(Debug)]
pub struct LocalStore {
    disk: Arc<dyn Disk>,
    index: Index,
    tables: RwLock<Tables>,
    pins: Pins,
    holds: Holds,
    collecting: Mutex<()>,
    cache: Cache<ChunkId, Chunk, ChunkBytes>,
    writer: Mutex<Writer>,
    poison: OnceLock<String>,
    /// What the store lies over: holds what refs reach and the store does not.
    base: OnceLock<Arc<dyn Base>>,
    /// Folders elsewhere with leases on this store.
    lease_folders: RwLock<Vec<Arc<dyn Disk>>>,
    compression: Compression,
    /// What opening has found to be damaged.
    damage: Mutex<Vec<String>>,
    /// What opening has undone.
    notes: Vec<String>,
    _lock: DiskLock,
}

impl LocalStore {
    /// Opens the store in a folder, or creates it; finishes or undoes what a crash left.
    ///
    /// # Errors
    /// [`Error::Locked`] while another process has it open, [`Error::FileMalformed`] for a pack of another format, or what the disk
    /// says.
    pub fn open(disk: Arc<dyn Disk>, options: LocalOptions) -> Result<Self> {
        let lock = disk.lock().map_err(|error| match error {
            LockError::Held { pid } => Error::Locked { dir: disk.dir(), pid },
            LockError::Io(source) => Error::Write { file: "lock".to_owned(), source },
        })?;
        let limit = options.pack_limit.min(LocalOptions::MAX_PACK);
        let index = Index::default();
        let recovered = recover::recover(disk.as_ref(), &index, limit.as_bytes())?;
        // An estimate of the chunks that fit sizes the cache's own tables.
        let items = usize::try_from(options.cache.as_bytes() / 4_096).unwrap_or(usize::MAX);
        Ok(Self {
            disk,
            index,
            tables: RwLock::new(recovered.tables),
            pins: Pins::default(),
            holds: Holds::default(),
            collecting: Mutex::new(()),
            cache: Cache::with_weighter(items.max(16), options.cache.as_bytes(), ChunkBytes),
            writer: Mutex::new(recovered.writer),
            poison: OnceLock::new(),
            base: OnceLock::new(),
            lease_folders: RwLock::default(),
            compression: options.compression,
            damage: Mutex::new(recovered.damage),
            notes: recovered.notes,
            _lock: lock,
        })
    }

    /// Opens an empty store in memory.
    ///
    /// # Errors
    /// None that a memory disk knows.
    pub fn memory() -> Result<Self> {
        Self::open(Arc::new(MemoryDisk::new()), LocalOptions::default())
    }

    /// Ends the use of the store so that the next start need not scan the open pack. Dropping it does the same, silently.
    ///
    /// # Errors
    /// [`Error::Write`]; nothing is lost by it.
    pub fn close(&self) -> Result<()> {
        if self.poison.get().is_some() {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        writer.flush(self.session()).map_err(|failure| self.settle(failure))?;
        // Under the writer's lock: an index with older tables than its pack would undo a commit.
        let tables = self.tables.read().clone();
        writer.write_checkpoint(self.disk.as_ref(), &self.index, &tables)
    }

    /// Returns why the store accepts no more writes, if so.
    #[must_use]
    pub fn poisoned(&self) -> Option<&str> {
        self.poison.get().map(String::as_str)
    }

    /// Heeds the leases in another folder, too: for those who read the store and may write nothing into its own.
    pub fn heed_leases_in(&self, folder: Arc<dyn Disk>) {
        self.lease_folders.write().push(folder);
    }

    /// Returns the leases of clients that cannot write packs.
    ///
    /// # Errors
    /// A lease or a folder that cannot be read: nobody knows what it keeps.
    fn lease_files(&self) -> Result<Vec<Lease>> {
        let mut leases = lease_file::read_all(self.disk.as_ref(), lease_file::FOLDER)?;
        for folder in self.lease_folders.read().iter() {
            let dir = folder.dir();
            if !dir.is_dir() {
                let (file, source) =
                    (dir.display().to_string(), std::io::ErrorKind::NotFound.into());
                return Err(Error::Read { file, source });
            }
            leases.extend(lease_file::read_all(folder.as_ref(), "")?);
        }
        Ok(leases)
    }

    /// Lays the store over a base: refs may reach what only that holds.
    pub(crate) fn lie_over(&self, base: Arc<dyn Base>) {
        self.base.get_or_init(|| base);
    }

    /// Tells whether the index lists a chunk.
    pub(crate) fn lists(&self, id: &ChunkId) -> bool {
        self.index.find(Kind::Chunk, id.as_bytes()).is_some()
    }

    /// Returns what opening has undone, in words.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    fn poison(&self, reason: String) {
        tracing::error!(reason, "the store accepts no more writes");
        // The first reason is the one that counts.
        self.poison.get_or_init(|| reason);
    }

    fn check_open(&self) -> Result<()> {
        match self.poison.get() {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Reads a whole record.
    fn read_record(&self, location: Location) -> Result<(Option<Header>, Bytes)> {
        self.index.read_record(location)
    }

    /// Reads the record of a chunk or blob; `None` if there is none.
    fn find_record(
        &self,
        kind: Kind,
        id: &[u8; 32],
    ) -> Result<Option<(Location, Option<Header>, Bytes)>> {
        let Some((location, file)) = self.index.find(kind, id) else {
            return Ok(None);
        };
        let (header, record) = read_record(file.as_ref(), location)?;
        if header.is_some_and(|header| header.id != *id) {
            // Two ids that begin alike, or damage.
            let surely = self.index.find_surely(kind, id, Purpose::Read)?;
            let Some(found) = surely else {
                return Ok(Some((location, None, record)));
            };
            let (header, record) = self.read_record(found.location)?;
            return Ok(Some((found.location, header, record)));
        }
        Ok(Some((location, header, record)))
    }

    /// Reads a chunk past the cache; the inner error says why it cannot be had. A record that the survey knows to be
    /// damaged is not touched.
    pub(crate) fn read_surveyed(
        &self,
        id: &ChunkId,
        survey: &Survey,
    ) -> Result<Result<Chunk, String>> {
        if self.is_damaged_chunk(id, survey) {
            return Ok(Err(format!("chunk `{id}` is damaged")));
        }
        let loaded = self.load_chunk(id).or_else(|error| match (self.base.get(), error) {
            (Some(base), Error::ChunkMissing { .. }) => base.read(id),
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
        let found = self.find_record(Kind::Chunk, id.as_bytes())?;
        let (_, header, record) = found.ok_or(Error::ChunkMissing { id: *id })?;
        let damaged = |fault| {
            let error = Error::ChunkDamaged { id: *id, fault };
            self.poison(format!("{error}"));
            error
        };
        let bytes = header
            .filter(|header| header.id == *id.as_bytes())
            .and_then(|header| record::decode(&header, &record))
            .ok_or_else(|| damaged("its record cannot be decoded"))?;
        if ChunkId::of(&bytes) != *id {
            return Err(damaged("its bytes have another hash"));
        }
        Chunk::parse(bytes).map_err(|error| match error {
            Error::ChunkMalformed { fault } => damaged(fault),
            other => other,
        })
    }

    /// Tells whether a record is here and stays, as far as a hold or ref keeps it.
    fn holds_record(&self, kind: Kind, id: &[u8; 32]) -> Result<bool> {
        let is_here = || Ok(self.index.find_surely(kind, id, Purpose::Keep)?.is_some());
        if !is_here()? {
            return Ok(false);
        }
        self.holds.note(std::iter::once((kind, *id)));
        if self.holds.is_condemning() {
            drop(self.writer.lock());
        }
        // What was condemned before the note is not relied on; what is condemned later is not this record.
        is_here()
    }

    /// Refuses moves from other places than the refs are at, and to roots that are not here.
    fn check_moves(&self, batch: &Batch) -> Result<()> {
        let mut moved: BTreeMap<&str, Option<ChunkId>> = BTreeMap::new();
        let tables = self.tables.read();
        for update in batch.ref_updates() {
            let actual = moved.get(update.name.as_str()).copied();
            let actual = actual.unwrap_or_else(|| tables.refs.get(&update.name).copied());
            if actual != update.expected {
                return Err(Error::RefMoved {
                    name: update.name.clone(),
                    expected: update.expected,
                    actual,
                });
            }
            moved.insert(&update.name, update.new);
        }
        tables.check_room(batch)?;
        drop(tables);
        let leased = batch.lease_updates().iter().filter_map(|update| match update {
            LeaseUpdate::Grant(lease) => Some(lease.root),
            LeaseUpdate::Release { .. } => None,
        });
        for root in moved.into_values().flatten().chain(leased) {
            let find = || self.index.find_surely(Kind::Chunk, root.as_bytes(), Purpose::Keep);
            let is_below = || match self.base.get() {
                Some(base) => Ok(base.contains_many(&[root])? == [true]),
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
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        if let Some(chunk) = self.cache.get(id) {
            return Ok(chunk);
        }
        let chunk = self.load_chunk(id)?;
        self.cache.insert(*id, chunk.clone());
        Ok(chunk)
    }
}

impl ChunkStore for LocalStore {
    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        ids.iter().map(|id| self.holds_record(Kind::Chunk, id.as_bytes())).collect()
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        let Some((location, header, record)) = self.find_record(Kind::Blob, id.digest())? else {
            return Ok(None);
        };
        let fault = "its record cannot be decoded or fails its checksum";
        let bytes = header
            .filter(|header| header.id == *id.digest())
            .filter(|header| record::is_valid(header, &record, location.place))
            .and_then(|header| record::decode(&header, &record));
        let Some(bytes) = bytes else {
            let error = Error::BlobDamaged { id: *id, fault };
            self.poison(format!("{error}"));
            return Err(error);
        };
        // The digest is right, so a length that differs was never right: such a blob does not exist.
        Ok(Some(bytes).filter(|bytes| bytes.len() as u64 == id.length()))
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.holds_record(Kind::Blob, id.digest())
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.check_open()?;
        let mut prepared = writer::Prepared::new(&batch, &self.index, self.compression)?;
        let mut writer = self.writer.lock();
        self.check_open()?;
        self.check_moves(&batch)?;
        let written = writer.write(self.session(), &mut prepared, &batch);
        let commit = written.map_err(|failure| self.settle(failure))?;
        self.holds.note(prepared.known.into_iter());
        for (id, chunk) in prepared.chunks {
            self.cache.insert(id, chunk);
        }
        if let Some(commit) = commit {
            self.tables.write().apply(&commit);
        }
        let due = writer.take_due();
        drop(writer);
        self.write_due_indexes(due);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.check_open()?;
        let mut writer = self.writer.lock();
        let flushed = writer.flush(self.session());
        flushed.map_err(|failure| self.settle(failure))
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        Ok(self.tables.read().refs.get(name).copied())
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        let tables = self.tables.read();
        Ok(tables.refs.iter().map(|(name, id)| (name.clone(), *id)).collect())
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.read_history(Some(name), before, limit)
    }

    fn leases(&self) -> Result<Vec<Lease>> {
        let mut leases = self.tables.read().leases.clone();
        let files = self.lease_files()?;
        leases.extend(files.into_iter().map(|lease| (lease.holder.clone(), lease)));
        Ok(leases.into_values().collect())
    }

    fn pin(&self, root: ChunkId) -> Pin {
        self.pins.pin(root)
    }

    fn hold(&self) -> Result<Hold> {
        // A number that is one behind keeps more, never less.
        let open = self.index.newest_pack();
        Ok(Hold::new(self.holds.begin(open)))
    }

    fn collect(
        &self,
        options: &CollectOptions,
        pace: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Collected> {
        self.collect_garbage(options, pace)
    }
}

impl LocalStore {
    fn session(&self) -> writer::Session<'_> {
        writer::Session { disk: self.disk.as_ref(), index: &self.index, tables: &self.tables }
    }

    /// Writes index files; those that cannot be written stay due.
    fn write_due_indexes(&self, mut due: Vec<writer::Unindexed>) {
        due.retain(|due| !writer::write_due_index(self.disk.as_ref(), &self.index, due));
        if !due.is_empty() {
            self.writer.lock().unindexed.append(&mut due);
        }
    }

    /// Closes the store for writing if the failure demands it.
    fn settle(&self, failure: writer::Failure) -> Error {
        match failure {
            writer::Failure::Refused(error) => error,
            writer::Failure::Unknown(error) => {
                let reason = match &error {
                    Error::Write { file, source } => format!("cannot write `{file}`: {source}"),
                    other => other.to_string(),
                };
                self.poison(reason);
                error
            }
        }
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::debug!(reason = %error, "the next start scans the open pack");
        }
    }
}

/// Weighs a cached chunk by its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkBytes;

impl Weighter<ChunkId, Chunk> for ChunkBytes {
    fn weight(&self, _: &ChunkId, chunk: &Chunk) -> u64 {
        // The cache's own tables take about this much per chunk.
        const ENTRY: u64 = 128;
        chunk.bytes().len() as u64 + ENTRY
    }
}

fn read_record(file: &dyn DiskFile, location: Location) -> Result<(Option<Header>, Bytes)> {
    let mut record = vec![0; HEADER_BYTES + location.stored as usize];
    file.read_at(u64::from(location.place.offset), &mut record)
        .map_err(|source| Error::Read { file: pack_name(location.place.pack), source })?;
    let header = Header::parse(&record)
        .filter(|header| header.kind == location.kind && header.record_bytes() == record.len());
    Ok((header, Bytes::from(record)))
}

/// Marks the number of a pack that a collection made, as those are counted apart.
const COLLECTED: u32 = 1 << 31;

/// Tells whether a collection made the pack, rather than commits.
fn is_collected(pack: u32) -> bool {
    pack & COLLECTED != 0
}

/// Returns the file name of a pack.
fn pack_name(pack: u32) -> String {
    let number = pack & !COLLECTED;
    let word = if is_collected(pack) { "live" } else { "pack" };
    format!("{word}-{number:06}")
}

/// Returns the pack of a file name, if it is one.
fn pack_number(name: &str) -> Option<u32> {
    let (word, number) = name.split_once('-')?;
    let number: u32 = number.parse().ok()?;
    let pack = if word == "live" { number | COLLECTED } else { number };
    (pack_name(pack) == name).then_some(pack)
}
