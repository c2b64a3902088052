//! The packs of a store that another process writes, followed without its lock.
//!
//! In: the folder of a local store. Out: what it holds as of its last commit, verified.
//!
//! Sealed packs are known by their index files; what is behind them is scanned as it grows, and counts once a commit
//! record covers it. A record that is not where it was a moment ago has been moved by a collection: the folder is
//! looked at again, until two looks agree.
//!
//! Invariants
//! * Nothing in the folder is opened for writing but the files of leases, which may lie in another folder.
//! * Nothing is returned that does not have its hash.
//! * No pack is mapped, as its writer may cut it; index files are, as they never change under their name.
//!
//! On failure: damage is an error of the read that meets it; it closes nothing, as repairing is up to the writer.
//!
//! Not here: what the writer has not committed. A commit may be seen just before its sync.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;

use super::history_reader::HistoryReader;
use super::index_file::{PackIndexFile, RecordLocation};
use super::pack_scan::{self, PackScan, PackSlice};
use super::record::{self, RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use super::record_index::{RecordIndex, RecordLookupPurpose};
use super::record_payload::StoreTables;
use super::{
    ChunkWeigher, LocalStoreOptions, is_collection_pack, lease_file, pack_file_name,
    parse_pack_number,
};
use crate::base_store::BaseStore;
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::disk::{Disk, DiskFile, FileDisk};
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::root_retention::RootLease;

/// Packs are scanned in pieces of this many bytes; a commit that is larger takes a larger piece.
const SCAN_PIECE_BYTES: u64 = 4 << 20;
/// How often a read looks at the folder again. Each time, a collection has to have removed packs in between.
const MAX_FOLDER_SCANS: usize = 32;
/// The length of a seal record.
const SEAL_RECORD_BYTES: usize = RECORD_HEADER_BYTES + 8;
const DAMAGED_RECORD_FAULT: &str = "its record cannot be decoded or does not have its hash";

/// A store that another process writes, read only.
#[derive(Debug)]
pub struct ReadOnlyLocalStore {
    disk: Arc<dyn Disk>,
    /// The disk with the leases, and their folder in it.
    lease_folder: (Arc<dyn Disk>, &'static str),
    index: RecordIndex,
    tables: RwLock<StoreTables>,
    pack_scans: Mutex<BTreeMap<u32, PackScanState>>,
    /// Goes up when a look has found anything new.
    scan_version: AtomicU64,
    cache: Cache<ChunkId, Chunk, ChunkWeigher>,
}

/// How far a pack is known.
#[derive(Clone, Debug, Default)]
struct PackScanState {
    /// The end of its last commit point that was seen.
    scanned_end: u64,
    tables: StoreTables,
    /// Nothing more will come: what the index file says, or the scan up to the seal.
    is_complete: bool,
    /// Tells an index file from another one of the same name.
    index_fingerprint: Option<(u64, usize, u32)>,
}

impl ReadOnlyLocalStore {
    /// Opens the folder `store` of a home that exists.
    ///
    /// # Errors
    /// [`Error::FileRead`] if there is none, [`Error::FileMalformed`] for packs of another format.
    pub fn open_dir(dir: &Path, options: LocalStoreOptions) -> Result<Self> {
        Self::open_with_lease_dir(dir, None, options)
    }

    /// Opens the folder `store` of a home that exists; leases lie in a folder elsewhere, to which the writer of the store
    /// pays heed ([`LocalStore::add_lease_folder`](super::LocalStore::add_lease_folder)), so that nothing at all is written in
    /// the home.
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

    /// Opens the folder of a local store, whether a process has it open or not.
    ///
    /// # Errors
    /// [`Error::FileMalformed`] for packs of another format, or what the disk says.
    pub fn open(disk: Arc<dyn Disk>, options: LocalStoreOptions) -> Result<Self> {
        let leases = (Arc::clone(&disk), lease_file::LEASE_FOLDER);
        Self::open_with_lease_folder(disk, leases, options)
    }

    fn open_with_lease_folder(
        disk: Arc<dyn Disk>,
        leases: (Arc<dyn Disk>, &'static str),
        options: LocalStoreOptions,
    ) -> Result<Self> {
        let items = usize::try_from(options.cache_size.as_bytes() / 4_096).unwrap_or(usize::MAX);
        let store = Self {
            disk,
            lease_folder: leases,
            index: RecordIndex::default(),
            tables: RwLock::default(),
            pack_scans: Mutex::default(),
            scan_version: AtomicU64::new(0),
            cache: Cache::with_weighter(items.max(16), options.cache_size.as_bytes(), ChunkWeigher),
        };
        store.scan_folder()?;
        Ok(store)
    }

    /// Looks at the folder: packs that came and went, and what was committed to the last ones.
    fn scan_folder(&self) -> Result<()> {
        let mut seen = self.pack_scans.lock();
        let failed = |source| Error::FileRead { file: self.display_name(), source };
        let names = self.disk.list_folder("").map_err(failed)?;
        let packs: BTreeSet<u32> =
            names.iter().filter_map(|name| parse_pack_number(name)).collect();
        let mut is_new = false;
        for pack in &packs {
            let known = seen.get(pack).cloned().unwrap_or_default();
            let before = match seen.range(..pack).next_back() {
                Some((_, before)) if !is_collection_pack(*pack) => before.tables.clone(),
                _ => StoreTables::default(),
            };
            let now = match self.scan_pack(*pack, &known, before) {
                Ok(now) => now,
                // It was collected since the folder was listed; the next look tells what stands for it.
                Err(Error::FileRead { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    is_new = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            is_new |= now.scanned_end != known.scanned_end
                || now.index_fingerprint != known.index_fingerprint;
            seen.insert(*pack, now);
        }
        let is_there = |pack: &u32| packs.contains(pack) && !is_collection_pack(*pack);
        let last = seen.iter().rev().find(|(pack, one)| is_there(pack) && one.scanned_end > 0);
        if let Some((_, last)) = last
            && *self.tables.read() != last.tables
        {
            self.tables.write().clone_from(&last.tables);
        }
        // After the tables have changed: who reads history tells by them whether a pack went meanwhile.
        let gone: Vec<u32> = seen.keys().filter(|pack| !packs.contains(pack)).copied().collect();
        for pack in gone {
            self.index.remove_pack(pack);
            seen.remove(&pack);
            is_new = true;
        }
        if is_new {
            self.scan_version.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Looks at one pack. `before` are the tables at the end of the one before it.
    fn scan_pack(
        &self,
        pack: u32,
        known: &PackScanState,
        before: StoreTables,
    ) -> Result<PackScanState> {
        if known.index_fingerprint.is_some() && !is_collection_pack(pack) {
            return Ok(known.clone());
        }
        let found = PackIndexFile::open(self.disk.as_ref(), pack)?;
        if let Some(index) = found.as_ref().filter(|index| index.is_sealed()) {
            let stamp = Some(index.fingerprint());
            if stamp == known.index_fingerprint {
                return Ok(known.clone());
            }
            let seen = PackScanState {
                scanned_end: index.covered_bytes(),
                tables: index.tables().clone(),
                is_complete: true,
                index_fingerprint: stamp,
            };
            if is_collection_pack(pack) {
                // One of the same number may have gone before this one came.
                self.index.remove_pack(pack);
            }
            self.open_pack_file(pack, known)?;
            if let Some(index) = found {
                self.index.add_pack_index(pack, index);
            }
            return Ok(seen);
        }
        let file = self.open_pack_file(pack, known)?;
        if is_collection_pack(pack) && !has_pack_seal(pack, file.as_ref())? {
            // It is being made, and nothing relies on it yet.
            self.index.remove_pack(pack);
            return Ok(PackScanState::default());
        }
        if known.is_complete {
            return Ok(known.clone());
        }
        let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
        if file.len().map_err(failed)? < known.scanned_end {
            // Its writer has lost power and cut what it had not synced.
            self.index.remove_pack(pack);
            return self.scan_pack(pack, &PackScanState::default(), before);
        }
        let (start, tables) = match found.filter(|_| known.scanned_end == 0) {
            Some(index) if self.is_index_usable(pack, file.as_ref(), &index)? => {
                let start = (index.covered_bytes(), index.tables().clone());
                self.index.add_pack_index(pack, index);
                start
            }
            _ if known.scanned_end > 0 => (known.scanned_end, known.tables.clone()),
            _ => (0, before),
        };
        self.scan_growth(pack, file.as_ref(), start, tables)
    }

    /// Tells whether the index of an open pack is one of what the pack holds.
    fn is_index_usable(
        &self,
        pack: u32,
        file: &dyn DiskFile,
        index: &PackIndexFile,
    ) -> Result<bool> {
        let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
        Ok(index.covered_bytes() <= file.len().map_err(failed)? && index.is_intact())
    }

    /// Returns the file of a pack, opened anew where it may be another one by now.
    fn open_pack_file(&self, pack: u32, known: &PackScanState) -> Result<Arc<dyn DiskFile>> {
        let is_certain = known.scanned_end > 0 && !is_collection_pack(pack);
        if let Some(file) = self.index.pack_file(pack).filter(|_| is_certain) {
            return Ok(file);
        }
        let file = pack_file_name(pack);
        let opened =
            self.disk.open_file(&file).map_err(|source| Error::FileRead { file, source })?;
        self.index.add_pack_file(pack, &opened);
        Ok(opened)
    }

    /// Reads what a pack has grown by, and makes what commit records cover visible.
    fn scan_growth(
        &self,
        pack: u32,
        file: &dyn DiskFile,
        start: u64,
        tables: StoreTables,
    ) -> Result<PackScanState> {
        let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
        let length = file.len().map_err(failed)?;
        let mut seen = PackScanState { scanned_end: start, tables, ..PackScanState::default() };
        let mut piece = SCAN_PIECE_BYTES;
        while seen.scanned_end < length && !seen.is_complete {
            let part =
                read_file_range(file, seen.scanned_end, piece.min(length - seen.scanned_end))
                    .map_err(failed)?;
            let base = usize::try_from(seen.scanned_end).unwrap_or(usize::MAX);
            let part = PackSlice { pack, start: base, bytes: &part };
            if seen.scanned_end == 0 {
                check_pack_head(part)?;
            }
            let scanned = pack_scan::scan_slice(part, seen.scanned_end, seen.tables.clone());
            let PackScan {
                entries,
                tables,
                committed_end: end,
                is_sealed,
                damaged_ranges: damaged,
                ..
            } = scanned;
            for range in damaged {
                let (start, end) = (range.start, range.end);
                tracing::error!(file = pack_file_name(pack), start, end, "a pack is damaged");
            }
            self.index.publish_entries(&entries);
            if end == seen.scanned_end && piece >= length - seen.scanned_end {
                break;
            }
            // Either the next piece begins behind a commit, or the commit is larger than the piece.
            piece = if end == seen.scanned_end { piece * 2 } else { SCAN_PIECE_BYTES };
            seen = PackScanState {
                scanned_end: end,
                tables,
                is_complete: is_sealed,
                index_fingerprint: None,
            };
        }
        Ok(seen)
    }

    /// Asks until there is an answer, or until looking again shows nothing new.
    fn retry_after_scan<T>(&self, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        let mut looks = 0;
        loop {
            let version = self.scan_version.load(Ordering::SeqCst);
            let answer = ask();
            if matches!(answer, Ok(Some(_))) || looks == MAX_FOLDER_SCANS {
                return answer;
            }
            self.scan_folder()?;
            looks += 1;
            if self.scan_version.load(Ordering::SeqCst) == version {
                return answer;
            }
        }
    }

    /// Reads the payload of a record; its checksum holds.
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

    /// Reads a record by one call, from where index files have it; only where another one is there, as of two ids that begin
    /// alike, each place is made sure of first.
    fn find_record(
        &self,
        kind: RecordKind,
        id: &[u8; 32],
    ) -> Result<Option<(RecordLocation, Option<RecordHeader>, Bytes)>> {
        // What fails here is met again below, if it is no other record's.
        if let Some((location, file)) = self.index.find_record(kind, id)
            && let Ok((header, record)) = super::read_record_from(file.as_ref(), location)
            && header.is_some_and(|header| header.id == *id)
        {
            return Ok(Some((location, header, record)));
        }
        let Some(found) = self.index.find_verified(kind, id, RecordLookupPurpose::Read)? else {
            return Ok(None);
        };
        let (header, record) = self.index.read_record(found.location)?;
        Ok(Some((found.location, header, record)))
    }
}

/// Returns bytes of a file, fewer where its writer cuts it meanwhile.
fn read_file_range(file: &dyn DiskFile, start: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    match file.read_at(start, &mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
        read => read.map(|()| bytes),
    }
}

/// Refuses a pack that a program of another format wrote.
fn check_pack_head(part: PackSlice<'_>) -> Result<()> {
    let head = part.record_at(0).filter(|found| found.header.kind == RecordKind::Head);
    let payload = head.and_then(|found| found.payload());
    if payload.is_some_and(|bytes| super::record_payload::PackHead::decode(&bytes).is_none()) {
        let file = pack_file_name(part.pack);
        return Err(Error::FileMalformed { file, fault: "it is a pack of another format version" });
    }
    Ok(())
}

/// Tells whether a pack ends with a seal.
fn has_pack_seal(pack: u32, file: &dyn DiskFile) -> Result<bool> {
    let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
    let length = file.len().map_err(failed)?;
    let Some(start) = length.checked_sub(SEAL_RECORD_BYTES as u64) else {
        return Ok(false);
    };
    let bytes = read_file_range(file, start, SEAL_RECORD_BYTES as u64).map_err(failed)?;
    let base = usize::try_from(start).unwrap_or(usize::MAX);
    let seal = PackSlice { pack, start: base, bytes: &bytes }.record_at(base);
    Ok(seal.is_some_and(|found| found.header.kind == RecordKind::Seal))
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
        // What was removed since can be read for a while, but whoever asks wants to rely on it.
        self.scan_folder()?;
        let mut present = vec![false; ids.len()];
        self.retry_after_scan(|| {
            for (id, present) in ids.iter().zip(&mut present).filter(|(_, present)| !**present) {
                let found = self.index.find_verified(
                    RecordKind::Chunk,
                    id.as_bytes(),
                    RecordLookupPurpose::Read,
                )?;
                *present = found.is_some();
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
                // The digest may be right and the length wrong; then there is no such blob.
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
            let found = past.read_revisions(Some(name), before, limit)?;
            let is_whole = self.tables.read().log == log;
            Ok(is_whole.then_some(found))
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
