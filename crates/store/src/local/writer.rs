//! Writing: records, then a commit record, in one append and one sync; a new pack when one is full.

use std::io;
use std::sync::Arc;

use super::index::Index;
use super::index_file::{self, Contents, Entry, IndexFile, Location};
use super::pack_name;
use super::payload::{Commit, Head, Refs, check_update};
use super::record::{self, Compression, HEADER_BYTES, Kind, Place};
use parking_lot::RwLock;

use crate::batch::{Batch, RefUpdate};
use crate::chunk::Chunk;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::id::ChunkId;

const MAX_BLOB_BYTES: usize = 1 << 20;
/// An open pack that has grown by less is scanned at the next start.
const CHECKPOINT_BYTES: u64 = 1 << 20;

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
}

struct Pending {
    id: [u8; 32],
    kind: Kind,
    start: usize,
    length: usize,
}

impl Prepared {
    pub(super) fn new(batch: &Batch, index: &Index, compression: Compression) -> Result<Self> {
        if let Some(update) = batch.ref_update() {
            check_update(update)?;
        }
        let mut prepared = Self { bytes: Vec::new(), records: Vec::new(), chunks: Vec::new() };
        for (id, bytes) in batch.blobs() {
            if bytes.len() > MAX_BLOB_BYTES {
                return Err(Error::TooLong {
                    what: "small blob",
                    length: bytes.len(),
                    limit: MAX_BLOB_BYTES,
                });
            }
            if index.find(Kind::Blob, id.digest()).is_none() {
                prepared.add(Kind::Blob, id.digest(), bytes, compression);
            }
        }
        for (id, bytes) in batch.chunks() {
            if index.find(Kind::Chunk, id.as_bytes()).is_none() {
                let chunk = Chunk::parse(bytes.clone())?;
                prepared.add(Kind::Chunk, id.as_bytes(), bytes, compression);
                prepared.chunks.push((*id, chunk));
            }
        }
        Ok(prepared)
    }

    fn add(&mut self, kind: Kind, id: &[u8; 32], payload: &[u8], compression: Compression) {
        let start = self.bytes.len();
        record::encode(kind, id, payload, compression, &mut self.bytes);
        self.records.push(Pending { id: *id, kind, start, length: self.bytes.len() - start });
    }
}

/// What a write works with beside the writer.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) index: &'a Index,
    /// The refs as they are before the write; only the writer changes them.
    pub(super) refs: &'a RwLock<Refs>,
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
    pub(super) unindexed: Vec<(u32, u64, Refs)>,
    pub(super) limit: u64,
}

impl Writer {
    /// Returns the open pack and its length.
    pub(super) fn end(&self) -> (u32, u64) {
        (self.pack, self.length)
    }

    /// Appends the prepared records and, with an update, commits and syncs.
    pub(super) fn write(
        &mut self,
        session: Session<'_>,
        prepared: &mut Prepared,
        update: Option<&RefUpdate>,
    ) -> Result<(), Failure> {
        let Prepared { bytes, records, .. } = prepared;
        if records.is_empty() && update.is_none() {
            return Ok(());
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
        let Some(update) = update else {
            return self.append(&segment.take(bytes), session.index);
        };
        let (tail, entry) = self.commit_record(vec![update.clone()], segment.length);
        bytes.extend_from_slice(&tail);
        segment.length += tail.len();
        segment.entries.push(entry);
        self.append_and_sync(&segment.take(bytes), session.index)
    }

    /// Makes everything durable that was appended.
    pub(super) fn flush(&mut self, session: Session<'_>) -> Result<(), Failure> {
        if !self.is_pending {
            return Ok(());
        }
        self.ensure_open(session)?;
        let (mut bytes, entry) = self.commit_record(Vec::new(), 0);
        let mut segment =
            Segment { length: bytes.len(), entries: vec![entry], ..Segment::default() };
        self.append_and_sync(&segment.take(&mut bytes), session.index)
    }

    fn commit_record(&self, updates: Vec<RefUpdate>, before: usize) -> (Vec<u8>, Entry) {
        let commit = Commit { synced: self.synced, updates };
        let payload = commit.encode();
        let id = ChunkId::of(&payload);
        let place = self.place(before);
        let mut bytes = Vec::new();
        record::encode(Kind::Commit, id.as_bytes(), &payload, Compression::None, &mut bytes);
        record::seal_crc(&mut bytes, place);
        let location = Location { place, stored: stored(bytes.len()), kind: Kind::Commit };
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
        let refs = session.refs.read().clone();
        self.unindexed.push((self.pack, self.length, refs));
        Ok(())
    }

    /// Begins a new pack if the current one is sealed, and writes the index files that are due.
    fn ensure_open(&mut self, session: Session<'_>) -> Result<(), Failure> {
        if !self.is_sealed {
            return Ok(());
        }
        let pack = self.pack + 1;
        let refs = session.refs.read().clone();
        let (file, length) = begin_pack(session.disk, pack, refs).map_err(|source| {
            let file = pack_name(pack);
            Failure::Refused(Error::Write { file, source })
        })?;
        session.index.add_file(pack, Arc::clone(&file));
        self.pack = pack;
        self.file = file;
        self.length = length;
        self.synced = length;
        self.checkpoint = 0;
        self.has_records = false;
        self.is_sealed = false;
        self.write_due_indexes(session);
        Ok(())
    }

    /// Writes the index files of sealed packs. A failure is no failure of the store: the entries stay in memory.
    fn write_due_indexes(&mut self, session: Session<'_>) {
        self.unindexed.retain(|(pack, covered, refs)| {
            let mut entries = session.index.open_entries(*pack);
            let contents = Contents {
                pack: *pack,
                is_sealed: true,
                covered: *covered,
                entries: &mut entries,
                refs,
            };
            let written = index_file::write(session.disk, contents);
            match written.map(|()| IndexFile::open(session.disk, *pack)) {
                Ok(Some(index)) => {
                    session.index.add_index(*pack, index);
                    false
                }
                Ok(None) => true,
                Err(error) => {
                    tracing::warn!(file = pack_name(*pack), reason = %error, "index not written");
                    true
                }
            }
        });
    }

    /// Writes the index of the open pack, so that the next start need not scan it.
    pub(super) fn write_checkpoint(
        &mut self,
        disk: &dyn Disk,
        index: &Index,
        refs: &Refs,
    ) -> Result<()> {
        let grown = self.length.saturating_sub(self.checkpoint);
        if self.is_pending || self.is_sealed || grown < CHECKPOINT_BYTES {
            return Ok(());
        }
        let mut entries = index.open_entries(self.pack);
        let contents = Contents {
            pack: self.pack,
            is_sealed: false,
            covered: self.length,
            entries: &mut entries,
            refs,
        };
        index_file::write(disk, contents)?;
        self.checkpoint = self.length;
        Ok(())
    }
}

/// Creates a pack with its head, durably. Returns the file and its length.
pub(super) fn begin_pack(
    disk: &dyn Disk,
    pack: u32,
    refs: Refs,
) -> io::Result<(Arc<dyn DiskFile>, u64)> {
    let payload = Head { pack, refs }.encode();
    let id = ChunkId::of(&payload);
    let mut bytes = Vec::new();
    record::encode(Kind::Head, id.as_bytes(), &payload, Compression::Lz4, &mut bytes);
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
        let location = Location { place, stored: stored(one.length), kind: one.kind };
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
