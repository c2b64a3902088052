//! A read-only view of the packs of a store that another process writes, followed without its lock.
//!
//! In: the folder of a local store. Out: its verified contents as of the last commit.
//!
//! Sealed packs are read by their index files. Bytes after the indexed ones are scanned as a pack grows, and count once
//! a commit record covers them. A record that is no longer at its known position was moved by a collection: the folder
//! is scanned again, until two scans agree.
//!
//! Invariants
//! * Nothing in the folder is opened for writing except lease files, which may be in another folder.
//! * Nothing is returned that does not have its hash.
//! * No pack is mapped, because its writer may truncate it; index files are mapped, because a file of one name never
//!   changes.
//!
//! On failure: damage causes an error of the read that finds it. It does not close the store, because repair is up to
//! the writer.
//!
//! Not here: uncommitted records of the writer. A commit may be visible shortly before its sync.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::history_reader::HistoryReader;
use super::index_file::{PackIndexFile, RecordLocation};
use super::lease_file;
use super::options::LocalStoreOptions;
use super::pack_name::{is_collection_pack, pack_file_name, parse_pack_number};
use super::pack_scan::{self, PackScan, PackSlice};
use super::record::{self, RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use super::record_index::{RecordIndex, RecordLookupPurpose, read_record_from};
use super::record_payload::StoreTables;
use crate::chunk::Chunk;
use crate::chunk_cache::{ChunkCache, new_chunk_cache};
use crate::disk::{Disk, DiskFile, FileDisk};
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::base_store::BaseStore;
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::history::Revision;
use crate::interface::root_retention::RootLease;

/// The size in bytes of the pieces in which packs are scanned; a larger commit takes a larger piece.
const SCAN_PIECE_BYTES: u64 = 4 << 20;
/// The maximum number of folder scans of one read. Each repetition requires that a collection removed packs in between.
const MAX_FOLDER_SCANS: usize = 32;
/// The length of a seal record.
const SEAL_RECORD_BYTES: usize = RECORD_HEADER_BYTES + 8;
const DAMAGED_RECORD_FAULT: &str = "its record cannot be decoded or does not match its hash";

/// A read-only store that another process writes.
#[derive(Debug)]
pub struct ReadOnlyLocalStore {
    disk: Arc<dyn Disk>,
    /// The disk with the leases, and the lease folder on it.
    lease_folder: (Arc<dyn Disk>, &'static str),
    index: RecordIndex,
    tables: RwLock<StoreTables>,
    pack_scans: Mutex<BTreeMap<u32, PackScanState>>,
    /// Incremented when a scan has found anything new.
    scan_version: AtomicU64,
    cache: ChunkCache,
}

/// The known part of a pack.
#[derive(Clone, Debug, Default)]
struct PackScanState {
    /// The end of the last commit point that was seen.
    scanned_end: u64,
    tables: StoreTables,
    /// True if no more records will be added, according to the index file or a scan up to the seal.
    is_complete: bool,
    /// Distinguishes an index file from another one of the same name.
    index_fingerprint: Option<(u64, usize, u32)>,
}

impl ReadOnlyLocalStore {
    /// Opens the folder `store` of an existing home.
    ///
    /// # Errors
    /// [`Error::FileRead`] if it does not exist, [`Error::FileMalformed`] for packs of another format.
    pub fn open_dir(dir: &Path, options: LocalStoreOptions) -> Result<Self> {
        Self::open_with_lease_dir(dir, None, options)
    }

    /// Opens the folder `store` of an existing home, with leases in another folder. The writer of the store respects
    /// that folder ([`LocalStore::add_lease_folder`](super::LocalStore::add_lease_folder)), so that nothing is written
    /// in the home.
    ///
    /// # Errors
    /// As [`ReadOnlyLocalStore::open_dir`], for either folder.
    pub fn open_with_lease_dir(
        dir: &Path,
        leases: Option<&Path>,
        options: LocalStoreOptions,
    ) -> Result<Self> {
        for needed in [Some(dir), leases].into_iter().flatten() {
            if !needed.is_dir() {
                let (file, source) = (needed.display().to_string(), ErrorKind::NotFound.into());
                return Err(Error::FileRead { file, source });
            }
        }
        let failed = |source| Error::FileRead { file: dir.display().to_string(), source };
        let leases: (Arc<dyn Disk>, _) = match leases {
            Some(folder) => (Arc::new(FileDisk::open(folder).map_err(failed)?), ""),
            None => (Arc::new(FileDisk::open(dir).map_err(failed)?), lease_file::LEASE_FOLDER),
        };
        Self::open_with_lease_folder(Arc::new(FileDisk::open_read_only(dir)), leases, options)
    }

    /// Opens the folder of a local store, even if a process has it open.
    ///
    /// # Errors
    /// [`Error::FileMalformed`] for packs of another format, or an error of the disk.
    pub fn open(disk: Arc<dyn Disk>, options: LocalStoreOptions) -> Result<Self> {
        let leases = (Arc::clone(&disk), lease_file::LEASE_FOLDER);
        Self::open_with_lease_folder(disk, leases, options)
    }

    fn open_with_lease_folder(
        disk: Arc<dyn Disk>,
        leases: (Arc<dyn Disk>, &'static str),
        options: LocalStoreOptions,
    ) -> Result<Self> {
        let store = Self {
            disk,
            lease_folder: leases,
            index: RecordIndex::default(),
            tables: RwLock::default(),
            pack_scans: Mutex::default(),
            scan_version: AtomicU64::new(0),
            cache: new_chunk_cache(options.cache_size),
        };
        store.scan_folder()?;
        Ok(store)
    }

    /// Scans the folder for packs that were added or removed, and for new commits in the last packs.
    fn scan_folder(&self) -> Result<()> {
        let mut scans = self.pack_scans.lock();
        let failed = |source| Error::FileRead { file: self.display_name(), source };
        let names = self.disk.list_folder("").map_err(failed)?;
        let packs: BTreeSet<u32> =
            names.iter().filter_map(|name| parse_pack_number(name)).collect();
        let mut is_new = false;
        for pack in &packs {
            let previous_scan = scans.get(pack).cloned().unwrap_or_default();
            let before = match scans.range(..pack).next_back() {
                Some((_, before)) if !is_collection_pack(*pack) => before.tables.clone(),
                _ => StoreTables::default(),
            };
            let now = match self.scan_pack(*pack, &previous_scan, before) {
                Ok(now) => now,
                // The pack was collected since the folder was listed; the next scan finds its replacement.
                Err(Error::FileRead { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    is_new = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            is_new |= now.scanned_end != previous_scan.scanned_end
                || now.index_fingerprint != previous_scan.index_fingerprint;
            scans.insert(*pack, now);
        }
        let is_there = |pack: &u32| packs.contains(pack) && !is_collection_pack(*pack);
        let last = scans.iter().rev().find(|(pack, scan)| is_there(pack) && scan.scanned_end > 0);
        if let Some((_, last)) = last
            && *self.tables.read() != last.tables
        {
            self.tables.write().clone_from(&last.tables);
        }
        // Removed after the tables have changed, because readers of the history detect by the tables that a pack was
        // removed.
        let removed_packs: Vec<u32> =
            scans.keys().filter(|pack| !packs.contains(pack)).copied().collect();
        for pack in removed_packs {
            self.index.remove_pack(pack);
            scans.remove(&pack);
            is_new = true;
        }
        if is_new {
            self.scan_version.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Scans one pack. `before` are the tables at the end of the previous pack.
    fn scan_pack(
        &self,
        pack: u32,
        previous_scan: &PackScanState,
        before: StoreTables,
    ) -> Result<PackScanState> {
        if previous_scan.index_fingerprint.is_some() && !is_collection_pack(pack) {
            return Ok(previous_scan.clone());
        }
        let pack_index = PackIndexFile::open(self.disk.as_ref(), pack)?;
        if let Some(index) = pack_index.as_ref().filter(|index| index.is_sealed()) {
            let stamp = Some(index.fingerprint());
            if stamp == previous_scan.index_fingerprint {
                return Ok(previous_scan.clone());
            }
            let scan = PackScanState {
                scanned_end: index.covered_bytes(),
                tables: index.tables().clone(),
                is_complete: true,
                index_fingerprint: stamp,
            };
            if is_collection_pack(pack) {
                // A pack with the same number may have been removed before this one was created.
                self.index.remove_pack(pack);
            }
            self.open_pack_file(pack, previous_scan)?;
            if let Some(index) = pack_index {
                self.index.add_pack_index(pack, index);
            }
            return Ok(scan);
        }
        let file = self.open_pack_file(pack, previous_scan)?;
        if is_collection_pack(pack) && !has_pack_seal(pack, file.as_ref())? {
            // The pack is being created, and nothing relies on it yet.
            self.index.remove_pack(pack);
            return Ok(PackScanState::default());
        }
        if previous_scan.is_complete {
            return Ok(previous_scan.clone());
        }
        let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
        if file.len().map_err(failed)? < previous_scan.scanned_end {
            // The writer lost power and truncated the bytes it had not synced.
            self.index.remove_pack(pack);
            return self.scan_pack(pack, &PackScanState::default(), before);
        }
        let (start, tables) = match pack_index.filter(|_| previous_scan.scanned_end == 0) {
            Some(index) if self.is_index_usable(pack, file.as_ref(), &index)? => {
                let start = (index.covered_bytes(), index.tables().clone());
                self.index.add_pack_index(pack, index);
                start
            }
            _ if previous_scan.scanned_end > 0 => {
                (previous_scan.scanned_end, previous_scan.tables.clone())
            }
            _ => (0, before),
        };
        self.scan_growth(pack, file.as_ref(), start, tables)
    }

    /// Returns true if the index of an open pack matches the records of the pack.
    fn is_index_usable(
        &self,
        pack: u32,
        file: &dyn DiskFile,
        index: &PackIndexFile,
    ) -> Result<bool> {
        let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
        Ok(index.covered_bytes() <= file.len().map_err(failed)? && index.is_intact())
    }

    /// Returns the file of a pack, reopened if it may have been replaced.
    fn open_pack_file(
        &self,
        pack: u32,
        previous_scan: &PackScanState,
    ) -> Result<Arc<dyn DiskFile>> {
        let is_certain = previous_scan.scanned_end > 0 && !is_collection_pack(pack);
        if let Some(file) = self.index.pack_file(pack).filter(|_| is_certain) {
            return Ok(file);
        }
        let file = pack_file_name(pack);
        let opened =
            self.disk.open_file(&file).map_err(|source| Error::FileRead { file, source })?;
        self.index.add_pack_file(pack, &opened);
        Ok(opened)
    }

    /// Reads the bytes added to a pack, and makes the records covered by commit records visible.
    fn scan_growth(
        &self,
        pack: u32,
        file: &dyn DiskFile,
        start: u64,
        tables: StoreTables,
    ) -> Result<PackScanState> {
        let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
        let length = file.len().map_err(failed)?;
        let mut scan = PackScanState { scanned_end: start, tables, ..PackScanState::default() };
        let mut piece = SCAN_PIECE_BYTES;
        while scan.scanned_end < length && !scan.is_complete {
            let part =
                read_file_range(file, scan.scanned_end, piece.min(length - scan.scanned_end))
                    .map_err(failed)?;
            let base = usize::try_from(scan.scanned_end).unwrap_or(usize::MAX);
            let part = PackSlice { pack, start: base, bytes: &part };
            if scan.scanned_end == 0 {
                check_pack_head(part)?;
            }
            let scanned = pack_scan::scan_slice(part, scan.scanned_end, scan.tables.clone());
            let PackScan { entries, tables, committed_end, is_sealed, damaged_ranges, .. } =
                scanned;
            for range in damaged_ranges {
                let (start, committed_end) = (range.start, range.end);
                tracing::error!(
                    file = pack_file_name(pack),
                    start,
                    end = committed_end,
                    "a pack is damaged"
                );
            }
            self.index.publish_entries(&entries);
            if committed_end == scan.scanned_end && piece >= length - scan.scanned_end {
                break;
            }
            // Either the next piece begins after a commit, or the commit is larger than the piece.
            piece = if committed_end == scan.scanned_end { piece * 2 } else { SCAN_PIECE_BYTES };
            scan = PackScanState {
                scanned_end: committed_end,
                tables,
                is_complete: is_sealed,
                index_fingerprint: None,
            };
        }
        Ok(scan)
    }

    /// Repeats a query until it returns a value, or until a new scan finds nothing new.
    fn retry_after_scan<T>(&self, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        let mut looks = 0;
        loop {
            let version = self.scan_version.load(Ordering::SeqCst);
            let result = ask();
            if matches!(result, Ok(Some(_))) || looks == MAX_FOLDER_SCANS {
                return result;
            }
            self.scan_folder()?;
            looks += 1;
            if self.scan_version.load(Ordering::SeqCst) == version {
                return result;
            }
        }
    }

    /// Reads the payload of a record and verifies its checksum.
    fn find_payload(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
        fault: &dyn Fn() -> Error,
    ) -> Result<Option<Bytes>> {
        let Some((location, header, record)) = self.find_record(kind, id)? else {
            return Ok(None);
        };
        let is_it = |header: &RecordHeader| {
            header.id == *id && record::is_record_valid(header, &record, location.position)
        };
        let payload =
            header.filter(is_it).and_then(|header| record::decode_record(&header, &record));
        payload.map(Some).ok_or_else(fault)
    }

    /// Reads a record with one call, at the location that index files state. Only if another record is there, as with
    /// two ids that share a prefix, each possible location is verified first.
    fn find_record(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
    ) -> Result<Option<(RecordLocation, Option<RecordHeader>, Bytes)>> {
        // A failure here occurs again below, unless the record is another one.
        if let Some((location, file)) = self.index.find_record(kind, id)
            && let Ok((header, record)) = read_record_from(file.as_ref(), location)
            && header.is_some_and(|header| header.id == *id)
        {
            return Ok(Some((location, header, record)));
        }
        let Some(record_match) = self.index.find_verified(kind, id, RecordLookupPurpose::Read)?
        else {
            return Ok(None);
        };
        let (header, record) = self.index.read_record(record_match.location)?;
        Ok(Some((record_match.location, header, record)))
    }
}

/// Returns bytes of a file, fewer if its writer truncates it during the read.
fn read_file_range(file: &dyn DiskFile, start: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    match file.read_at(start, &mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
        read => read.map(|()| bytes),
    }
}

/// Returns an error for a pack that a program of another format wrote.
fn check_pack_head(part: PackSlice<'_>) -> Result<()> {
    let head = part.record_at(0).filter(|record| record.header.kind == RecordKind::Head);
    let payload = head.and_then(|record| record.payload());
    if payload.is_some_and(|bytes| super::record_payload::PackHead::decode(&bytes).is_none()) {
        let file = pack_file_name(part.pack);
        return Err(Error::FileMalformed {
            file,
            fault: "its pack format version is not supported",
        });
    }
    Ok(())
}

/// Returns true if a pack ends with a seal.
fn has_pack_seal(pack: u32, file: &dyn DiskFile) -> Result<bool> {
    let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
    let length = file.len().map_err(failed)?;
    let Some(start) = length.checked_sub(SEAL_RECORD_BYTES as u64) else {
        return Ok(false);
    };
    let bytes = read_file_range(file, start, SEAL_RECORD_BYTES as u64).map_err(failed)?;
    let base = usize::try_from(start).unwrap_or(usize::MAX);
    let seal = PackSlice { pack, start: base, bytes: &bytes }.record_at(base);
    Ok(seal.is_some_and(|record| record.header.kind == RecordKind::Seal))
}

impl ReadChunks for ReadOnlyLocalStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        if let Some(chunk) = self.cache.get(id) {
            return Ok(chunk);
        }
        let damaged = || Error::ChunkDamaged { id: *id, fault: DAMAGED_RECORD_FAULT };
        let chunk = self.retry_after_scan(|| {
            let Some(bytes) = self.find_payload(RecordKind::Chunk, id.as_bytes(), &damaged)? else {
                return Ok(None);
            };
            if ChunkId::hash_of(&bytes) != *id {
                return Err(damaged());
            }
            Chunk::parse(bytes).map(Some).map_err(|_| damaged())
        })?;
        let chunk = chunk.ok_or(Error::ChunkMissing { id: *id })?;
        self.cache.insert(*id, chunk.clone());
        Ok(chunk)
    }
}

impl BaseStore for ReadOnlyLocalStore {
    fn display_name(&self) -> String {
        self.disk.display_path().display().to_string()
    }

    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        // Records removed since the last scan can be read for a while, but the caller wants to rely on them.
        self.scan_folder()?;
        let mut present = vec![false; ids.len()];
        self.retry_after_scan(|| {
            for (id, present) in ids.iter().zip(&mut present).filter(|(_, present)| !**present) {
                let record_match = self.index.find_verified(
                    RecordKind::Chunk,
                    id.as_bytes(),
                    RecordLookupPurpose::Read,
                )?;
                *present = record_match.is_some();
            }
            Ok(present.iter().all(|present| *present).then_some(()))
        })?;
        Ok(present)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let mut blobs = vec![None; ids.len()];
        self.retry_after_scan(|| {
            for (id, blob) in ids.iter().zip(&mut blobs).filter(|(_, blob)| blob.is_none()) {
                let damaged = || Error::BlobDamaged { id: *id, fault: DAMAGED_RECORD_FAULT };
                *blob = self.find_payload(RecordKind::Blob, id.digest(), &damaged)?;
                // The digest may match and the length may be wrong; then no such blob exists.
                if blob.as_ref().is_some_and(|bytes| BlobId::hash_of(bytes).digest() != id.digest())
                {
                    return Err(damaged());
                }
            }
            Ok(blobs.iter().all(Option::is_some).then_some(()))
        })?;
        let is_it = |(id, bytes): (&BlobId, Option<Bytes>)| {
            bytes.filter(|bytes| bytes.len() as u64 == id.length())
        };
        Ok(ids.iter().zip(blobs).map(is_it).collect())
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.scan_folder()?;
        let tables = self.tables.read();
        Ok(tables.refs.iter().map(|(name, root)| (name.clone(), *root)).collect())
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.scan_folder()?;
        let read = || {
            let log = self.tables.read().log;
            let past = HistoryReader { index: &self.index, log, chunk_reader: self };
            let revisions = past.read_revisions(Some(name), before, limit)?;
            let is_whole = self.tables.read().log == log;
            Ok(is_whole.then_some(revisions))
        };
        Ok(self.retry_after_scan(read)?.unwrap_or_default())
    }

    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>> {
        let leases = lease_file::read_leases(self.lease_folder.0.as_ref(), self.lease_folder.1)?;
        Ok(leases.into_iter().find(|lease| lease.holder == holder))
    }

    fn grant_lease(&self, lease: &RootLease) -> Result<()> {
        lease_file::write_lease(self.lease_folder.0.as_ref(), self.lease_folder.1, lease)
    }

    fn release_lease(&self, holder: &str) -> Result<()> {
        lease_file::remove_lease(self.lease_folder.0.as_ref(), self.lease_folder.1, holder)
    }
}
