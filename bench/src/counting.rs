//! Wrappers that count: what reaches a disk, which chunks are stored and loaded.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tympan_store::disk::{Disk, DiskFile, DiskLock, DiskLockError, FileDisk, MappedFile};
use tympan_store::{
    BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, CollectionHold, GarbageCollectionOptions,
    GarbageCollectionProgress, GarbageCollectionReport, LocalStore, LocalStoreOptions, ReadChunks,
    Result, Revision, RootLease, RootPin,
};

/// What a disk writes at least.
pub(crate) const BLOCK_BYTES: u64 = 4_096;

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Chunks that commits stored for the first time.
    pub(crate) chunks: u64,
    /// Chunks that were read.
    pub(crate) loads: u64,
    /// Bytes appended to files.
    pub(crate) bytes: u64,
    /// Blocks of the disk that appends touched.
    pub(crate) blocks: u64,
    /// Files synced.
    pub(crate) syncs: u64,
}

impl Counts {
    /// Returns what was counted since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            chunks: self.chunks - earlier.chunks,
            loads: self.loads - earlier.loads,
            bytes: self.bytes - earlier.bytes,
            blocks: self.blocks - earlier.blocks,
            syncs: self.syncs - earlier.syncs,
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    chunks: AtomicU64,
    loads: AtomicU64,
    bytes: AtomicU64,
    blocks: AtomicU64,
    syncs: AtomicU64,
    /// What a sync costs: [`NO_SYNC`], or the nanoseconds it takes at least.
    sync_nanos: AtomicU64,
}

/// What syncing a file costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncCost {
    /// What the disk takes.
    Real,
    /// What the disk takes, and at least this long, as on a slower disk.
    AtLeast(Duration),
    /// Nothing: it is counted and left out, for loads whose durability is not the subject.
    None,
}

/// Stands for [`SyncCost::None`].
const NO_SYNC: u64 = u64::MAX;

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// A local store whose work is counted.
#[derive(Debug)]
pub(crate) struct CountingStore {
    store: LocalStore,
    folder: PathBuf,
    counters: Arc<Counters>,
}

impl CountingStore {
    /// Opens a store in a folder.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub(crate) fn open(folder: PathBuf) -> crate::Outcome<Self> {
        let counters = Arc::new(Counters::default());
        let disk = FileDisk::open(folder.clone())?;
        let disk = CountingDisk { disk, counters: Arc::clone(&counters) };
        let store = LocalStore::open(Arc::new(disk), LocalStoreOptions::default())?;
        Ok(Self { store, folder, counters })
    }

    /// Sets what a sync costs from now on.
    pub(crate) fn set_sync_cost(&self, cost: SyncCost) {
        let nanos = match cost {
            SyncCost::Real => 0,
            SyncCost::AtLeast(time) => u64::try_from(time.as_nanos()).unwrap_or(NO_SYNC - 1),
            SyncCost::None => NO_SYNC,
        };
        self.counters.sync_nanos.store(nanos, Ordering::Relaxed);
    }

    /// Returns the folder that the store is in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Does what a clean stop does; the store can be used on.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn close(&self) -> crate::Outcome<()> {
        Ok(self.store.close()?)
    }

    /// Returns what was counted so far.
    pub(crate) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            chunks: read(&self.counters.chunks),
            loads: read(&self.counters.loads),
            bytes: read(&self.counters.bytes),
            blocks: read(&self.counters.blocks),
            syncs: read(&self.counters.syncs),
        }
    }
}

impl ReadChunks for CountingStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        add(&self.counters.loads, 1);
        self.store.read_chunk(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        add(&self.counters.loads, ids.len());
        self.store.read_chunks(ids)
    }
}

impl ChunkStore for CountingStore {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.store.contains_chunks(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<bytes::Bytes>> {
        self.store.read_blob(id)
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.store.contains_blob(id)
    }

    fn commit(&self, batch: ChunkBatch) -> Result<()> {
        let ids: Vec<ChunkId> = batch.chunks().map(|(id, _)| *id).collect();
        let known = self.store.contains_chunks(&ids)?;
        add(&self.counters.chunks, known.iter().filter(|is_known| !**is_known).count());
        self.store.commit(batch)
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.store.read_ref(name)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.store.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.store.ref_history(name, before, limit)
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        self.store.list_leases()
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.store.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        self.store.begin_hold()
    }

    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        self.store.collect_garbage(options, pace)
    }
}

/// A folder whose appends and syncs are counted.
#[derive(Debug)]
struct CountingDisk {
    disk: FileDisk,
    counters: Arc<Counters>,
}

impl CountingDisk {
    fn wrap(&self, file: Arc<dyn DiskFile>) -> io::Result<Arc<dyn DiskFile>> {
        let length = AtomicU64::new(file.len()?);
        Ok(Arc::new(CountingFile { file, length, counters: Arc::clone(&self.counters) }))
    }
}

impl Disk for CountingDisk {
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.wrap(self.disk.open_file(name)?)
    }

    fn create_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.wrap(self.disk.create_file(name)?)
    }

    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename_file(from, to)
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        self.disk.remove_file(name)
    }

    fn list_folder(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list_folder(folder)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.disk.sync_folder(folder)
    }

    fn lock_folder(&self) -> std::result::Result<DiskLock, DiskLockError> {
        self.disk.lock_folder()
    }

    fn display_path(&self) -> PathBuf {
        self.disk.display_path()
    }
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn DiskFile>,
    length: AtomicU64,
    counters: Arc<Counters>,
}

impl DiskFile for CountingFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        add(&self.counters.bytes, bytes.len());
        let count = bytes.len() as u64;
        let start = self.length.fetch_add(count, Ordering::Relaxed);
        let blocks = (start + count).div_ceil(BLOCK_BYTES) - start / BLOCK_BYTES;
        self.counters.blocks.fetch_add(blocks, Ordering::Relaxed);
        self.file.append(bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.length.store(length, Ordering::Relaxed);
        self.file.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        add(&self.counters.syncs, 1);
        let nanos = self.counters.sync_nanos.load(Ordering::Relaxed);
        if nanos == NO_SYNC {
            return Ok(());
        }
        let begin = Instant::now();
        self.file.sync()?;
        let rest = Duration::from_nanos(nanos).saturating_sub(begin.elapsed());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        Ok(())
    }

    fn map_content(&self) -> io::Result<MappedFile> {
        self.file.map_content()
    }

    fn as_file(&self) -> Option<&std::fs::File> {
        self.file.as_file()
    }
}
