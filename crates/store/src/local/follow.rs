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

use super::index::{Index, Purpose};
use super::index_file::{IndexFile, Location};
use super::log::Past;
use super::payload::Tables;
use super::record::{self, HEADER_BYTES, Header, Kind};
use super::scan::{self, Part, Scanned};
use super::{ChunkBytes, LocalOptions, is_collected, lease_file, pack_name, pack_number};
use crate::base::Base;
use crate::chunk::Chunk;
use crate::chunk_store::ReadChunks;
use crate::disk::{Disk, DiskFile, FileDisk};
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::keep::Lease;

/// Packs are scanned in pieces of this many bytes; a commit that is larger takes a larger piece.
const PIECE_BYTES: u64 = 4 << 20;
/// How often a read looks at the folder again. Each time, a collection has to have removed packs in between.
const MAX_LOOKS: usize = 32;
/// The length of a seal record.
const SEAL_BYTES: usize = HEADER_BYTES + 8;
const FAULT: &str = "its record cannot be decoded or does not have its hash";

/// A store that another process writes, read only.
#[derive(Debug)]
pub struct FollowedStore {
    disk: Arc<dyn Disk>,
    /// The disk with the leases, and their folder in it.
    leases: (Arc<dyn Disk>, &'static str),
    index: Index,
    tables: RwLock<Tables>,
    seen: Mutex<BTreeMap<u32, Seen>>,
    /// Goes up when a look has found anything new.
    version: AtomicU64,
    cache: Cache<ChunkId, Chunk, ChunkBytes>,
}

/// How far a pack is known.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The end of its last commit point that was seen.
    end: u64,
    tables: Tables,
    /// Nothing more will come: what the index file says, or the scan up to the seal.
    is_complete: bool,
    /// Tells an index file from another one of the same name.
    stamp: Option<(u64, usize, u32)>,
}

impl FollowedStore {
    /// Opens the folder `store` of a home that exists.
    ///
    /// # Errors
    /// [`Error::Read`] if there is none, [`Error::FileMalformed`] for packs of another format.
    pub fn open_dir(dir: &Path, options: LocalOptions) -> Result<Self> {
        Self::open_leasing_in(dir, None, options)
    }

    /// Opens the folder `store` of a home that exists; leases lie in a folder elsewhere, to which the writer of the store
    /// pays heed ([`LocalStore::heed_leases_in`](super::LocalStore::heed_leases_in)), so that nothing at all is written in
    /// the home.
    ///
    /// # Errors
    /// As [`FollowedStore::open_dir`], for either folder.
    pub fn open_leasing_in(
        dir: &Path,
        leases: Option<&Path>,
        options: LocalOptions,
    ) -> Result<Self> {
        for needed in [Some(dir), leases].into_iter().flatten() {
            if !needed.is_dir() {
                let (file, source) = (needed.display().to_string(), ErrorKind::NotFound.into());
                return Err(Error::Read { file, source });
            }
        }
        let failed = |source| Error::Read { file: dir.display().to_string(), source };
        let leases: (Arc<dyn Disk>, _) = match leases {
            Some(folder) => (Arc::new(FileDisk::open(folder).map_err(failed)?), ""),
            None => (Arc::new(FileDisk::open(dir).map_err(failed)?), lease_file::FOLDER),
        };
        Self::open_with(Arc::new(FileDisk::read_only(dir)), leases, options)
    }

    /// Opens the folder of a local store, whether a process has it open or not.
    ///
    /// # Errors
    /// [`Error::FileMalformed`] for packs of another format, or what the disk says.
    pub fn open(disk: Arc<dyn Disk>, options: LocalOptions) -> Result<Self> {
        let leases = (Arc::clone(&disk), lease_file::FOLDER);
        Self::open_with(disk, leases, options)
    }

    fn open_with(
        disk: Arc<dyn Disk>,
        leases: (Arc<dyn Disk>, &'static str),
        options: LocalOptions,
    ) -> Result<Self> {
        let items = usize::try_from(options.cache.as_bytes() / 4_096).unwrap_or(usize::MAX);
        let store = Self {
            disk,
            leases,
            index: Index::default(),
            tables: RwLock::default(),
            seen: Mutex::default(),
            version: AtomicU64::new(0),
            cache: Cache::with_weighter(items.max(16), options.cache.as_bytes(), ChunkBytes),
        };
        store.look()?;
        Ok(store)
    }

    /// Looks at the folder: packs that came and went, and what was committed to the last ones.
    fn look(&self) -> Result<()> {
        let mut seen = self.seen.lock();
        let failed = |source| Error::Read { file: self.name(), source };
        let names = self.disk.list("").map_err(failed)?;
        let packs: BTreeSet<u32> = names.iter().filter_map(|name| pack_number(name)).collect();
        let mut is_new = false;
        for pack in &packs {
            let known = seen.get(pack).cloned().unwrap_or_default();
            let before = match seen.range(..pack).next_back() {
                Some((_, before)) if !is_collected(*pack) => before.tables.clone(),
                _ => Tables::default(),
            };
            let now = match self.look_at(*pack, &known, before) {
                Ok(now) => now,
                // It was collected since the folder was listed; the next look tells what stands for it.
                Err(Error::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    is_new = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            is_new |= now.end != known.end || now.stamp != known.stamp;
            seen.insert(*pack, now);
        }
        let is_there = |pack: &u32| packs.contains(pack) && !is_collected(*pack);
        let last = seen.iter().rev().find(|(pack, one)| is_there(pack) && one.end > 0);
        if let Some((_, last)) = last
            && *self.tables.read() != last.tables
        {
            self.tables.write().clone_from(&last.tables);
        }
        // After the tables have changed: who reads history tells by them whether a pack went meanwhile.
        let gone: Vec<u32> = seen.keys().filter(|pack| !packs.contains(pack)).copied().collect();
        for pack in gone {
            self.index.forget(pack);
            seen.remove(&pack);
            is_new = true;
        }
        if is_new {
            self.version.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Looks at one pack. `before` are the tables at the end of the one before it.
    fn look_at(&self, pack: u32, known: &Seen, before: Tables) -> Result<Seen> {
        if known.stamp.is_some() && !is_collected(pack) {
            return Ok(known.clone());
        }
        let found = IndexFile::open(self.disk.as_ref(), pack)?;
        if let Some(index) = found.as_ref().filter(|index| index.is_sealed()) {
            let stamp = Some(index.stamp());
            if stamp == known.stamp {
                return Ok(known.clone());
            }
            let seen = Seen {
                end: index.covered(),
                tables: index.tables().clone(),
                is_complete: true,
                stamp,
            };
            if is_collected(pack) {
                // One of the same number may have gone before this one came.
                self.index.forget(pack);
            }
            self.file(pack, known)?;
            if let Some(index) = found {
                self.index.add_index(pack, index);
            }
            return Ok(seen);
        }
        let file = self.file(pack, known)?;
        if is_collected(pack) && !has_seal(pack, file.as_ref())? {
            // It is being made, and nothing relies on it yet.
            self.index.forget(pack);
            return Ok(Seen::default());
        }
        if known.is_complete {
            return Ok(known.clone());
        }
        let failed = |source| Error::Read { file: pack_name(pack), source };
        if file.len().map_err(failed)? < known.end {
            // Its writer has lost power and cut what it had not synced.
            self.index.forget(pack);
            return self.look_at(pack, &Seen::default(), before);
        }
        let (start, tables) = match found.filter(|_| known.end == 0) {
            Some(index) if self.is_usable(pack, file.as_ref(), &index)? => {
                let start = (index.covered(), index.tables().clone());
                self.index.add_index(pack, index);
                start
            }
            _ if known.end > 0 => (known.end, known.tables.clone()),
            _ => (0, before),
        };
        self.scan(pack, file.as_ref(), start, tables)
    }

    /// Tells whether the index of an open pack is one of what the pack holds.
    fn is_usable(&self, pack: u32, file: &dyn DiskFile, index: &IndexFile) -> Result<bool> {
        let failed = |source| Error::Read { file: pack_name(pack), source };
        Ok(index.covered() <= file.len().map_err(failed)? && index.is_intact())
    }

    /// Returns the file of a pack, opened anew where it may be another one by now.
    fn file(&self, pack: u32, known: &Seen) -> Result<Arc<dyn DiskFile>> {
        let is_certain = known.end > 0 && !is_collected(pack);
        if let Some(file) = self.index.file(pack).filter(|_| is_certain) {
            return Ok(file);
        }
        let file = pack_name(pack);
        let opened = self.disk.open(&file).map_err(|source| Error::Read { file, source })?;
        self.index.add_file(pack, &opened);
        Ok(opened)
    }

    /// Reads what a pack has grown by, and makes what commit records cover visible.
    fn scan(&self, pack: u32, file: &dyn DiskFile, start: u64, tables: Tables) -> Result<Seen> {
        let failed = |source| Error::Read { file: pack_name(pack), source };
        let length = file.len().map_err(failed)?;
        let mut seen = Seen { end: start, tables, ..Seen::default() };
        let mut piece = PIECE_BYTES;
        while seen.end < length && !seen.is_complete {
            let part = read_part(file, seen.end, piece.min(length - seen.end)).map_err(failed)?;
            let base = usize::try_from(seen.end).unwrap_or(usize::MAX);
            let part = Part { pack, base, bytes: &part };
            if seen.end == 0 {
                check_head(part)?;
            }
            let scanned = scan::scan_part(part, seen.end, seen.tables.clone());
            let Scanned { entries, tables, end, is_sealed, damaged, .. } = scanned;
            for range in damaged {
                let (start, end) = (range.start, range.end);
                tracing::error!(file = pack_name(pack), start, end, "a pack is damaged");
            }
            self.index.publish(&entries);
            if end == seen.end && piece >= length - seen.end {
                break;
            }
            // Either the next piece begins behind a commit, or the commit is larger than the piece.
            piece = if end == seen.end { piece * 2 } else { PIECE_BYTES };
            seen = Seen { end, tables, is_complete: is_sealed, stamp: None };
        }
        Ok(seen)
    }

    /// Asks until there is an answer, or until looking again shows nothing new.
    fn settle<T>(&self, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        let mut looks = 0;
        loop {
            let version = self.version.load(Ordering::SeqCst);
            let answer = ask();
            if matches!(answer, Ok(Some(_))) || looks == MAX_LOOKS {
                return answer;
            }
            self.look()?;
            looks += 1;
            if self.version.load(Ordering::SeqCst) == version {
                return answer;
            }
        }
    }

    /// Reads the payload of a record; its checksum holds.
    fn find(&self, kind: Kind, id: &[u8; 32], fault: &dyn Fn() -> Error) -> Result<Option<Bytes>> {
        let Some((location, header, record)) = self.find_record(kind, id)? else {
            return Ok(None);
        };
        let is_it =
            |header: &Header| header.id == *id && record::is_valid(header, &record, location.place);
        let payload = header.filter(is_it).and_then(|header| record::decode(&header, &record));
        payload.map(Some).ok_or_else(fault)
    }

    /// Reads a record by one call, from where index files have it; only where another one is there, as of two ids that begin
    /// alike, each place is made sure of first.
    fn find_record(
        &self,
        kind: Kind,
        id: &[u8; 32],
    ) -> Result<Option<(Location, Option<Header>, Bytes)>> {
        // What fails here is met again below, if it is no other record's.
        if let Some((location, file)) = self.index.find(kind, id)
            && let Ok((header, record)) = super::read_record(file.as_ref(), location)
            && header.is_some_and(|header| header.id == *id)
        {
            return Ok(Some((location, header, record)));
        }
        let Some(found) = self.index.find_surely(kind, id, Purpose::Read)? else {
            return Ok(None);
        };
        let (header, record) = self.index.read_record(found.location)?;
        Ok(Some((found.location, header, record)))
    }
}

/// Returns bytes of a file, fewer where its writer cuts it meanwhile.
fn read_part(file: &dyn DiskFile, start: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    match file.read_at(start, &mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
        read => read.map(|()| bytes),
    }
}

/// Refuses a pack that a program of another format wrote.
fn check_head(part: Part<'_>) -> Result<()> {
    let head = part.record_at(0).filter(|found| found.header.kind == Kind::Head);
    let payload = head.and_then(|found| found.payload());
    if payload.is_some_and(|bytes| super::payload::Head::decode(&bytes).is_none()) {
        let file = pack_name(part.pack);
        return Err(Error::FileMalformed { file, fault: "it is a pack of another format version" });
    }
    Ok(())
}

/// Tells whether a pack ends with a seal.
fn has_seal(pack: u32, file: &dyn DiskFile) -> Result<bool> {
    let failed = |source| Error::Read { file: pack_name(pack), source };
    let length = file.len().map_err(failed)?;
    let Some(start) = length.checked_sub(SEAL_BYTES as u64) else {
        return Ok(false);
    };
    let bytes = read_part(file, start, SEAL_BYTES as u64).map_err(failed)?;
    let base = usize::try_from(start).unwrap_or(usize::MAX);
    let seal = Part { pack, base, bytes: &bytes }.record_at(base);
    Ok(seal.is_some_and(|found| found.header.kind == Kind::Seal))
}

impl ReadChunks for FollowedStore {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        if let Some(chunk) = self.cache.get(id) {
            return Ok(chunk);
        }
        let damaged = || Error::ChunkDamaged { id: *id, fault: FAULT };
        let chunk = self.settle(|| {
            let Some(bytes) = self.find(Kind::Chunk, id.as_bytes(), &damaged)? else {
                return Ok(None);
            };
            if ChunkId::of(&bytes) != *id {
                return Err(damaged());
            }
            Chunk::parse(bytes).map(Some).map_err(|_| damaged())
        })?;
        let chunk = chunk.ok_or(Error::ChunkMissing { id: *id })?;
        self.cache.insert(*id, chunk.clone());
        Ok(chunk)
    }
}

impl Base for FollowedStore {
    fn name(&self) -> String {
        self.disk.dir().display().to_string()
    }

    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        // What was removed since can be read for a while, but whoever asks wants to rely on it.
        self.look()?;
        let mut present = vec![false; ids.len()];
        self.settle(|| {
            for (id, present) in ids.iter().zip(&mut present).filter(|(_, present)| !**present) {
                let found = self.index.find_surely(Kind::Chunk, id.as_bytes(), Purpose::Read)?;
                *present = found.is_some();
            }
            Ok(present.iter().all(|present| *present).then_some(()))
        })?;
        Ok(present)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let mut blobs = vec![None; ids.len()];
        self.settle(|| {
            for (id, blob) in ids.iter().zip(&mut blobs).filter(|(_, blob)| blob.is_none()) {
                let damaged = || Error::BlobDamaged { id: *id, fault: FAULT };
                *blob = self.find(Kind::Blob, id.digest(), &damaged)?;
                // The digest may be right and the length wrong; then there is no such blob.
                if blob.as_ref().is_some_and(|bytes| BlobId::of(bytes).digest() != id.digest()) {
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

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.look()?;
        let tables = self.tables.read();
        Ok(tables.refs.iter().map(|(name, root)| (name.clone(), *root)).collect())
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.look()?;
        let read = || {
            let log = self.tables.read().log;
            let past = Past { index: &self.index, log, chunks: self };
            let found = past.read(Some(name), before, limit)?;
            let is_whole = self.tables.read().log == log;
            Ok(is_whole.then_some(found))
        };
        Ok(self.settle(read)?.unwrap_or_default())
    }

    fn lease(&self, holder: &str) -> Result<Option<Lease>> {
        let leases = lease_file::read_all(self.leases.0.as_ref(), self.leases.1)?;
        Ok(leases.into_iter().find(|lease| lease.holder == holder))
    }

    fn grant(&self, lease: &Lease) -> Result<()> {
        lease_file::write(self.leases.0.as_ref(), self.leases.1, lease)
    }

    fn release(&self, holder: &str) -> Result<()> {
        lease_file::remove(self.leases.0.as_ref(), self.leases.1, holder)
    }
}
