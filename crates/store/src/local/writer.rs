//! Writing: records, then a commit record, in one append and one sync; a new pack when one is full.

use std::io;
use std::sync::Arc;

use super::index::{Index, Purpose};
use super::index_file::{self, Contents, Entry, IndexFile, Location};
use super::pack_name;
use super::payload::{Commit, Head, Log, Tables, check_moves};
use super::record::{self, Compression, HEADER_BYTES, Header, Kind, Place};
use parking_lot::RwLock;

use crate::batch::{Batch, LeaseUpdate};
use crate::chunk::Chunk;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::id::ChunkId;

const MAX_BLOB_BYTES: usize = 1 << 20;
/// An open pack that has grown by less is scanned at the next start. The index is also the proof that what it covers
/// was whole once: without it, a last commit that is damaged later passes for one that was never acknowledged.
const CHECKPOINT_BYTES: u64 = 1 << 10;

/// Why a write failed, and what is known about the disk now.
pub(super) enum Failure {
    /// Nothing of the write is there.
    Refused(Error),
    /// What is on the disk is unknown.
    Unknown(Error),
}

/// The records of a batch that the store does not hold, encoded outside of any lock.
pub(super) struct Prepared {
    bytes: Vec<u8>,
    records: Vec<Pending>,
    /// The new chunks, for the cache.
    pub(super) chunks: Vec<(ChunkId, Chunk)>,
    /// What the store holds already.
    pub(super) known: Vec<(Kind, [u8; 32])>,
    /// How often packs had been condemned when that was found out.
    condemnations: u64,
    compression: Compression,
}

struct Pending {
    id: [u8; 32],
    kind: Kind,
    is_terminal: bool,
    start: usize,
    length: usize,
}

impl Prepared {
    pub(super) fn new(batch: &Batch, index: &Index, compression: Compression) -> Result<Self> {
        check_moves(batch.ref_updates(), batch.lease_updates())?;
        let mut prepared = Self {
            bytes: Vec::new(),
            records: Vec::new(),
            chunks: Vec::new(),
            known: Vec::new(),
            condemnations: index.packs().condemnations,
            compression,
        };
        for (id, bytes) in batch.blobs() {
            if bytes.len() > MAX_BLOB_BYTES {
                return Err(Error::TooLong {
                    what: "small blob",
                    length: bytes.len(),
                    limit: MAX_BLOB_BYTES,
                });
            }
            if !prepared.is_known(Kind::Blob, id.digest(), index)? {
                prepared.add(Kind::Blob, id.digest(), bytes, Terminal::No);
            }
        }
        for (id, bytes) in batch.chunks() {
            if !prepared.is_known(Kind::Chunk, id.as_bytes(), index)? {
                prepared.add_chunk(id, Chunk::parse(bytes.clone())?);
            }
        }
        Ok(prepared)
    }

    /// Adds what was present when the batch was prepared and has been condemned since. Under the writer's lock, so
    /// that nothing more is condemned before it is written.
    fn make_sure(&mut self, batch: &Batch, index: &Index) -> Result<()> {
        if index.packs().condemnations == self.condemnations {
            return Ok(());
        }
        for (kind, id) in std::mem::take(&mut self.known) {
            if self.is_known(kind, &id, index)? {
                continue;
            }
            if kind == Kind::Chunk {
                let id = ChunkId::from_bytes(id);
                if let Some(bytes) = batch.chunk(&id) {
                    self.add_chunk(&id, Chunk::parse(bytes.clone())?);
                }
            } else if let Some((_, bytes)) = batch.blobs().find(|(blob, _)| *blob.digest() == id) {
                self.add(Kind::Blob, &id, bytes, Terminal::No);
            }
        }
        Ok(())
    }

    fn is_known(&mut self, kind: Kind, id: &[u8; 32], index: &Index) -> Result<bool> {
        let is_known = index.find_surely(kind, id, Purpose::Keep)?.is_some();
        if is_known {
            self.known.push((kind, *id));
        }
        Ok(is_known)
    }

    fn add_chunk(&mut self, id: &ChunkId, chunk: Chunk) {
        let refers = chunk.chunk_ref_count() + chunk.blob_ref_count() > 0;
        let terminal = if refers { Terminal::No } else { Terminal::Yes };
        self.add(Kind::Chunk, id.as_bytes(), chunk.bytes(), terminal);
        self.chunks.push((*id, chunk));
    }

    fn add(&mut self, kind: Kind, id: &[u8; 32], payload: &[u8], terminal: Terminal) {
        let start = self.bytes.len();
        record::encode(kind, id, payload, self.compression, &mut self.bytes);
        let is_terminal = terminal == Terminal::Yes;
        if is_terminal && let Some(record) = self.bytes.get_mut(start..) {
            record::set_terminal(record);
        }
        let length = self.bytes.len() - start;
        self.records.push(Pending { id: *id, kind, is_terminal, start, length });
    }
}

/// Whether a chunk refers to nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Terminal {
    Yes,
    No,
}

/// What a write works with beside the writer.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) index: &'a Index,
    /// The tables as they are before the write; only the writer changes them.
    pub(super) tables: &'a RwLock<Tables>,
}

/// The end of the open pack.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) pack: u32,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) length: u64,
    /// The pack is durable up to here.
    pub(super) synced: u64,
    /// The pack holds more than its head.
    pub(super) has_records: bool,
    /// There are records behind the last commit point.
    pub(super) is_pending: bool,
    /// The pack is full and sealed; the next write begins a new one.
    pub(super) is_sealed: bool,
    /// An index file covers the pack up to here.
    pub(super) checkpoint: u64,
    /// Sealed packs whose index file could not be written yet.
    pub(super) unindexed: Vec<Unindexed>,
    pub(super) limit: u64,
}

/// A sealed pack whose index file is due: its number, its length, and the tables at its end.
pub(super) type Unindexed = (u32, u64, Tables);

impl Writer {
    /// Returns the open pack and its length; `None` if nothing is appended to it any more.
    pub(super) fn growing(&self) -> Option<(u32, u64)> {
        (!self.is_sealed).then_some((self.pack, self.length))
    }

    /// Appends the prepared records and, if the batch moves anything, commits and syncs. Returns what was committed.
    pub(super) fn write(
        &mut self,
        session: Session<'_>,
        prepared: &mut Prepared,
        batch: &Batch,
    ) -> Result<Option<Commit>, Failure> {
        prepared.make_sure(batch, session.index).map_err(Failure::Refused)?;
        let Prepared { bytes, records, .. } = prepared;
        if records.is_empty() && !batch.moves_anything() {
            return Ok(None);
        }
        self.ensure_open(session)?;
        let mut segment = Segment::default();
        for one in records.iter() {
            let is_full = self.length + (segment.length + one.length) as u64 > self.limit;
            // A pack with nothing but its head takes any record, or one above the limit would begin packs forever.
            if is_full && (self.has_records || segment.length > 0) {
                self.append(&segment.take(bytes), session.index)?;
                self.seal(session)?;
                self.ensure_open(session)?;
            }
            segment.add(one, self.pack, self.length, bytes);
        }
        if !batch.moves_anything() {
            self.append(&segment.take(bytes), session.index)?;
            return Ok(None);
        }
        let commit = Commit {
            synced: self.synced,
            sequence: session.tables.read().sequence,
            updates: batch.ref_updates().to_vec(),
            leases: batch.lease_updates().to_vec(),
            log: None,
        };
        let (tail, entry) = self.commit_record(&commit, segment.length);
        bytes.extend_from_slice(&tail);
        segment.length += tail.len();
        segment.entries.push(entry);
        self.append_and_sync(&segment.take(bytes), session.index)?;
        Ok(Some(commit))
    }

    /// Makes everything durable that was appended.
    pub(super) fn flush(&mut self, session: Session<'_>) -> Result<(), Failure> {
        if !self.is_pending {
            return Ok(());
        }
        let sequence = session.tables.read().sequence;
        let commit = Commit { synced: self.synced, sequence, ..Commit::default() };
        self.write_commit(session, &commit)
    }

    /// Commits a new place of the log, and the end of leases.
    pub(super) fn write_log(
        &mut self,
        session: Session<'_>,
        log: Log,
        leases: Vec<LeaseUpdate>,
    ) -> Result<Commit, Failure> {
        let sequence = session.tables.read().sequence;
        let synced = self.synced;
        let commit = Commit { synced, sequence, leases, log: Some(log), ..Commit::default() };
        self.write_commit(session, &commit)?;
        Ok(commit)
    }

    fn write_commit(&mut self, session: Session<'_>, commit: &Commit) -> Result<(), Failure> {
        self.ensure_open(session)?;
        let (mut bytes, entry) = self.commit_record(commit, 0);
        let mut segment =
            Segment { length: bytes.len(), entries: vec![entry], ..Segment::default() };
        self.append_and_sync(&segment.take(&mut bytes), session.index)
    }

    fn commit_record(&self, commit: &Commit, before: usize) -> (Vec<u8>, Entry) {
        let payload = commit.encode();
        let id = ChunkId::of(&payload);
        let place = self.place(before);
        let mut bytes = Vec::new();
        record::encode(Kind::Commit, id.as_bytes(), &payload, Compression::None, &mut bytes);
        record::seal_crc(&mut bytes, place);
        let stored = stored(bytes.len());
        let location = Location { place, stored, kind: Kind::Commit, is_terminal: false };
        (bytes, (*id.as_bytes(), location))
    }

    fn place(&self, before: usize) -> Place {
        Place { pack: self.pack, offset: offset(self.length + before as u64) }
    }

    /// Appends records and makes them visible.
    fn append(&mut self, part: &Part<'_>, index: &Index) -> Result<(), Failure> {
        self.append_bytes(part.bytes)?;
        self.is_pending |= !part.entries.is_empty();
        index.publish(&part.entries);
        Ok(())
    }

    /// Appends records with a commit record at their end, syncs, and makes them visible.
    fn append_and_sync(&mut self, part: &Part<'_>, index: &Index) -> Result<(), Failure> {
        self.append_bytes(part.bytes)?;
        self.sync()?;
        self.is_pending = false;
        index.publish(&part.entries);
        Ok(())
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let Err(source) = self.file.append(bytes) {
            let error = self.failed(source);
            return Err(match self.file.truncate(self.length) {
                Ok(()) => Failure::Refused(error),
                Err(_) => Failure::Unknown(error),
            });
        }
        self.length += bytes.len() as u64;
        self.has_records = true;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.file.sync().map_err(|source| Failure::Unknown(self.failed(source)))?;
        self.synced = self.length;
        Ok(())
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Write { file: pack_name(self.pack), source }
    }

    /// Ends the pack.
    fn seal(&mut self, session: Session<'_>) -> Result<(), Failure> {
        let payload = self.synced.to_le_bytes();
        let id = ChunkId::of(&payload);
        let mut bytes = Vec::new();
        record::encode(Kind::Seal, id.as_bytes(), &payload, Compression::None, &mut bytes);
        record::seal_crc(&mut bytes, self.place(0));
        self.append_bytes(&bytes)?;
        self.sync()?;
        self.is_pending = false;
        self.is_sealed = true;
        let tables = session.tables.read().clone();
        self.unindexed.push((self.pack, self.length, tables));
        Ok(())
    }

    /// Ends the open pack and begins the next, unless it holds next to nothing. The index file is left due.
    pub(super) fn rotate(&mut self, session: Session<'_>, min_bytes: u64) -> Result<(), Failure> {
        if self.is_sealed || (self.has_records && self.length >= min_bytes) {
            if !self.is_sealed {
                self.seal(session)?;
            }
            self.begin_next(session)?;
        }
        Ok(())
    }

    /// Begins a new pack if the current one is sealed. Its index file stays due.
    fn ensure_open(&mut self, session: Session<'_>) -> Result<(), Failure> {
        if self.is_sealed { self.begin_next(session) } else { Ok(()) }
    }

    /// Returns the sealed packs whose index file is due, if the next pack has begun. The caller writes the files
    /// without the writer's lock: sorting and syncing an index takes longer than a commit should wait.
    pub(super) fn take_due(&mut self) -> Vec<Unindexed> {
        if self.is_sealed { Vec::new() } else { std::mem::take(&mut self.unindexed) }
    }

    fn begin_next(&mut self, session: Session<'_>) -> Result<(), Failure> {
        let pack = self.pack + 1;
        let tables = session.tables.read().clone();
        let (file, length) = begin_pack(session.disk, pack, tables).map_err(|source| {
            let file = pack_name(pack);
            Failure::Refused(Error::Write { file, source })
        })?;
        session.index.add_file(pack, &file);
        self.pack = pack;
        self.file = file;
        self.length = length;
        self.synced = length;
        self.checkpoint = 0;
        self.has_records = false;
        self.is_sealed = false;
        Ok(())
    }

    /// Writes the index of the open pack, so that the next start need not scan it.
    pub(super) fn write_checkpoint(
        &mut self,
        disk: &dyn Disk,
        index: &Index,
        tables: &Tables,
    ) -> Result<()> {
        let grown = self.length.saturating_sub(self.checkpoint);
        if self.is_pending || self.is_sealed || grown < CHECKPOINT_BYTES {
            return Ok(());
        }
        let mut entries = all_entries(index, self.pack)?;
        let contents = Contents {
            pack: self.pack,
            is_sealed: false,
            covered: self.length,
            entries: &mut entries,
            tables,
        };
        index_file::write(disk, contents)?;
        self.checkpoint = self.length;
        Ok(())
    }
}

/// Writes the index file of a sealed pack and tells whether that is done. A failure is no failure of the store: the
/// entries stay in memory.
pub(super) fn write_due_index(disk: &dyn Disk, index: &Index, due: &Unindexed) -> bool {
    let (pack, covered, tables) = due;
    let write = || {
        let mut entries = all_entries(index, *pack)?;
        let contents = Contents {
            pack: *pack,
            is_sealed: true,
            covered: *covered,
            entries: &mut entries,
            tables,
        };
        index_file::write(disk, contents)?;
        IndexFile::open(disk, *pack)
    };
    match write() {
        Ok(Some(written)) => {
            index.add_index(*pack, written);
            true
        }
        Ok(None) => false,
        Err(error) => {
            let error: Error = error;
            tracing::warn!(file = pack_name(*pack), reason = %error, "index not written");
            false
        }
    }
}

/// Returns all entries of a pack that is not sealed or has no final index: those in memory, and those of an index
/// file that covers its beginning. That one holds no whole ids, so the records' headers are read for them.
pub(super) fn all_entries(index: &Index, pack: u32) -> Result<Vec<Entry>> {
    let mut entries = index.open_entries(pack);
    let packs = index.packs();
    let (Some(known), Some(file)) = (packs.indexes.get(&pack), packs.files.get(&pack)) else {
        return Ok(entries);
    };
    let bytes = file.map().map_err(|source| Error::Read { file: pack_name(pack), source })?;
    for location in known.entries().chain(known.commits()) {
        let header = bytes.get(location.place.offset as usize..).and_then(Header::parse);
        let header = header.ok_or_else(|| Error::FileMalformed {
            file: pack_name(pack),
            fault: "its index leads to no record; run `tympan repo check`",
        })?;
        entries.push((header.id, location));
    }
    Ok(entries)
}

/// Ends a pack whose records are durable up to `length`. Returns the length of the seal.
pub(super) fn seal_pack(file: &dyn DiskFile, pack: u32, length: u64) -> io::Result<u64> {
    let payload = length.to_le_bytes();
    let id = ChunkId::of(&payload);
    let mut bytes = Vec::new();
    record::encode(Kind::Seal, id.as_bytes(), &payload, Compression::None, &mut bytes);
    record::seal_crc(&mut bytes, Place { pack, offset: offset(length) });
    file.append(&bytes)?;
    file.sync()?;
    Ok(bytes.len() as u64)
}

/// Creates a pack with its head, durably. Returns the file and its length.
pub(super) fn begin_pack(
    disk: &dyn Disk,
    pack: u32,
    tables: Tables,
) -> io::Result<(Arc<dyn DiskFile>, u64)> {
    let payload = Head { pack, tables }.encode();
    let id = ChunkId::of(&payload);
    let mut bytes = Vec::new();
    record::encode(Kind::Head, id.as_bytes(), &payload, Compression::None, &mut bytes);
    record::seal_crc(&mut bytes, Place { pack, offset: 0 });
    let name = pack_name(pack);
    let file = disk.create(&name)?;
    file.append(&bytes)?;
    file.sync()?;
    disk.sync_folder("")?;
    Ok((file, bytes.len() as u64))
}

/// Records that go into one append.
#[derive(Default)]
struct Segment {
    start: usize,
    length: usize,
    entries: Vec<Entry>,
}

struct Part<'a> {
    bytes: &'a [u8],
    entries: Vec<Entry>,
}

impl Segment {
    /// Gives a record its place behind the others.
    fn add(&mut self, one: &Pending, pack: u32, pack_length: u64, bytes: &mut [u8]) {
        let place = Place { pack, offset: offset(pack_length + self.length as u64) };
        if let Some(record) = bytes.get_mut(one.start..one.start + one.length) {
            record::seal_crc(record, place);
        }
        let location = Location {
            place,
            stored: stored(one.length),
            kind: one.kind,
            is_terminal: one.is_terminal,
        };
        self.entries.push((one.id, location));
        self.length += one.length;
    }

    /// Returns what has been gathered and starts anew behind it.
    fn take<'a>(&mut self, bytes: &'a mut [u8]) -> Part<'a> {
        let end = self.start + self.length;
        let part = Part {
            bytes: bytes.get(self.start..end).unwrap_or_default(),
            entries: std::mem::take(&mut self.entries),
        };
        self.start = end;
        self.length = 0;
        part
    }
}

fn offset(position: u64) -> u32 {
    // Packs end at 256 MiB, so that offsets fit.
    u32::try_from(position).unwrap_or(u32::MAX)
}

fn stored(record: usize) -> u32 {
    u32::try_from(record - HEADER_BYTES).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::body;
    use crate::chunk_store::ChunkStore;
    use crate::local::LocalStore;

    #[test]
    fn what_is_condemned_after_it_was_found_is_written_again() {
        let store = LocalStore::memory().unwrap();
        let batch = || {
            let mut batch = Batch::new();
            body::write(&mut batch, b"text", &[]).unwrap();
            batch.add_blob(crate::BlobId::of(b"icon"), "icon".into());
            batch
        };
        store.commit(batch()).unwrap();
        store.writer.lock().rotate(store.session(), 0).map_err(|_| ()).unwrap();
        let due = std::mem::take(&mut store.writer.lock().unindexed);
        assert!(due.iter().all(|due| write_due_index(store.disk.as_ref(), &store.index, due)));
        let prepare = || Prepared::new(&batch(), &store.index, Compression::None).unwrap();
        let mut early = prepare();
        assert!(early.records.is_empty());
        early.make_sure(&batch(), &store.index).unwrap();
        assert!(early.records.is_empty(), "nothing has been condemned");
        // What is live in a condemned pack is moved, so that there is no need to write it again.
        let condemn = |live: u64| store.index.condemn(&BTreeMap::from([(1, [live].into())]));
        condemn(u64::MAX);
        early.make_sure(&batch(), &store.index).unwrap();
        assert!(early.records.is_empty() && prepare().records.is_empty());
        condemn(0);
        early.make_sure(&batch(), &store.index).unwrap();
        assert_eq!(early.records.len(), 2);
        assert_eq!(prepare().records.len(), 2);
    }
}
