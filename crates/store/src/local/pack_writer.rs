//! The writer: appends records and a commit record in one append with one sync, and starts a new pack when one is full.

use std::io;
use std::sync::Arc;

use super::index_file::{self, IndexFileContents, PackIndexEntry, PackIndexFile, RecordLocation};
use super::pack_name::pack_file_name;
use super::record::{
    self, RECORD_HEADER_BYTES, RecordCompression, RecordHeader, RecordKind, RecordPosition,
};
use super::record_index::{RecordIndex, RecordLookupPurpose};
use super::record_payload::{CommitRecord, PackHead, RevisionLog, StoreTables, check_updates};
use parking_lot::RwLock;

use crate::chunk::Chunk;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::chunk_batch::{ChunkBatch, LeaseUpdate};

const MAX_SMALL_BLOB_BYTES: usize = 1 << 20;
/// The minimum growth in bytes of an open pack for which its index is written; below that, the next start scans the
/// pack. The index is also the proof that the covered bytes were intact once: without it, a last commit that is damaged
/// later is mistaken for one that was never acknowledged.
const MIN_CHECKPOINT_BYTES: u64 = 1 << 10;

/// A failed write, and the known state of the disk after it.
pub(super) enum PackWriteFailure {
    /// Nothing of the write is on the disk.
    NothingWritten(Error),
    /// The state of the disk is unknown.
    DiskStateUnknown(Error),
}

/// The records of a batch that the store does not hold, encoded outside of any lock.
pub(super) struct PreparedRecords {
    bytes: Vec<u8>,
    records: Vec<PendingRecord>,
    /// The new chunks, for the cache.
    pub(super) chunks: Vec<(ChunkId, Chunk)>,
    /// The records that the store holds already.
    pub(super) present: Vec<(RecordKind, [u8; 32])>,
    /// The condemnation count at the time when `present` was determined.
    condemnation_count: u64,
    compression: RecordCompression,
}

struct PendingRecord {
    id: [u8; 32],
    kind: RecordKind,
    is_terminal: bool,
    start: usize,
    length: usize,
}

impl PreparedRecords {
    pub(super) fn new(
        batch: &ChunkBatch,
        index: &RecordIndex,
        compression: RecordCompression,
    ) -> Result<Self> {
        check_updates(batch.ref_updates(), batch.lease_updates())?;
        let mut prepared = Self {
            bytes: Vec::new(),
            records: Vec::new(),
            chunks: Vec::new(),
            present: Vec::new(),
            condemnation_count: index.packs().condemnation_count,
            compression,
        };
        for (id, bytes) in batch.blobs() {
            if bytes.len() > MAX_SMALL_BLOB_BYTES {
                return Err(Error::TooLong {
                    what: "small blob",
                    length: bytes.len(),
                    limit: MAX_SMALL_BLOB_BYTES,
                });
            }
            if !prepared.check_present(RecordKind::Blob, id.digest(), index)? {
                prepared.add_record(
                    RecordKind::Blob,
                    id.digest(),
                    bytes,
                    TerminalFlag::NonTerminal,
                );
            }
        }
        for (id, bytes) in batch.chunks() {
            if !prepared.check_present(RecordKind::Chunk, id.as_bytes(), index)? {
                prepared.add_chunk(id, Chunk::parse(bytes.clone())?);
            }
        }
        Ok(prepared)
    }

    /// Adds records that were present when the batch was prepared and have been condemned since. Called under the
    /// writer's lock, so that no more records are condemned before the write.
    fn add_condemned_records(&mut self, batch: &ChunkBatch, index: &RecordIndex) -> Result<()> {
        if index.packs().condemnation_count == self.condemnation_count {
            return Ok(());
        }
        for (kind, id) in std::mem::take(&mut self.present) {
            if self.check_present(kind, &id, index)? {
                continue;
            }
            if kind == RecordKind::Chunk {
                let id = ChunkId::from_bytes(id);
                if let Some(bytes) = batch.chunk(&id) {
                    self.add_chunk(&id, Chunk::parse(bytes.clone())?);
                }
            } else if let Some((_, bytes)) = batch.blobs().find(|(blob, _)| *blob.digest() == id) {
                self.add_record(RecordKind::Blob, &id, bytes, TerminalFlag::NonTerminal);
            }
        }
        Ok(())
    }

    fn check_present(
        &mut self,
        kind: RecordKind,
        id: &[u8; 32],
        index: &RecordIndex,
    ) -> Result<bool> {
        let is_known = index.find_verified(kind, id, RecordLookupPurpose::Retain)?.is_some();
        if is_known {
            self.present.push((kind, *id));
        }
        Ok(is_known)
    }

    fn add_chunk(&mut self, id: &ChunkId, chunk: Chunk) {
        let refers = chunk.chunk_ref_count() + chunk.blob_ref_count() > 0;
        let terminal = if refers { TerminalFlag::NonTerminal } else { TerminalFlag::Terminal };
        self.add_record(RecordKind::Chunk, id.as_bytes(), chunk.bytes(), terminal);
        self.chunks.push((*id, chunk));
    }

    fn add_record(
        &mut self,
        kind: RecordKind,
        id: &[u8; 32],
        payload: &[u8],
        terminal: TerminalFlag,
    ) {
        let start = self.bytes.len();
        record::encode_record(kind, id, payload, self.compression, &mut self.bytes);
        let is_terminal = terminal == TerminalFlag::Terminal;
        if is_terminal && let Some(record) = self.bytes.get_mut(start..) {
            record::set_terminal_flag(record);
        }
        let length = self.bytes.len() - start;
        self.records.push(PendingRecord { id: *id, kind, is_terminal, start, length });
    }
}

/// States if a chunk refers to nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TerminalFlag {
    Terminal,
    NonTerminal,
}

/// The data that a write needs beside the writer.
#[derive(Clone, Copy)]
pub(super) struct PackWriteContext<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) index: &'a RecordIndex,
    /// The tables as they are before the write; only the writer changes them.
    pub(super) tables: &'a RwLock<StoreTables>,
}

/// The end of the open pack.
#[derive(Debug)]
pub(super) struct LocalPackWriter {
    pub(super) pack: u32,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) length: u64,
    /// The length in bytes up to which the pack is durable.
    pub(super) synced_length: u64,
    /// True if the pack holds more than its head.
    pub(super) has_records: bool,
    /// True if there are records after the last commit point.
    pub(super) has_uncommitted_records: bool,
    /// True if the pack is full and sealed; the next write starts a new one.
    pub(super) is_sealed: bool,
    /// The length in bytes up to which an index file covers the pack.
    pub(super) indexed_length: u64,
    /// Sealed packs whose index file could not be written yet.
    pub(super) unindexed_packs: Vec<UnindexedPack>,
    pub(super) pack_limit: u64,
}

/// A sealed pack whose index file is pending: its number, its length, and the tables at its end.
pub(super) type UnindexedPack = (u32, u64, StoreTables);

impl LocalPackWriter {
    /// Returns the open pack and its length; `None` if nothing more is appended to it.
    pub(super) fn open_pack(&self) -> Option<(u32, u64)> {
        (!self.is_sealed).then_some((self.pack, self.length))
    }

    /// Appends the prepared records. If the batch has updates, commits and syncs. Returns the commit record.
    pub(super) fn write_batch(
        &mut self,
        session: PackWriteContext<'_>,
        prepared: &mut PreparedRecords,
        batch: &ChunkBatch,
    ) -> Result<Option<CommitRecord>, PackWriteFailure> {
        prepared
            .add_condemned_records(batch, session.index)
            .map_err(PackWriteFailure::NothingWritten)?;
        let PreparedRecords { bytes, records, .. } = prepared;
        if records.is_empty() && !batch.has_updates() {
            return Ok(None);
        }
        self.ensure_open_pack(session)?;
        let mut segment = AppendBuffer::default();
        for record in records.iter() {
            let is_full = self.length + (segment.length + record.length) as u64 > self.pack_limit;
            // A pack with only a head accepts any record; otherwise a record above the limit would start new packs
            // forever.
            if is_full && (self.has_records || segment.length > 0) {
                self.append(&segment.take_slice(bytes), session.index)?;
                self.seal_open_pack(session)?;
                self.ensure_open_pack(session)?;
            }
            segment.add_record(record, self.pack, self.length, bytes);
        }
        if !batch.has_updates() {
            self.append(&segment.take_slice(bytes), session.index)?;
            return Ok(None);
        }
        let commit = CommitRecord {
            synced_length: self.synced_length,
            first_sequence: session.tables.read().next_sequence,
            updates: batch.ref_updates().to_vec(),
            leases: batch.lease_updates().to_vec(),
            new_log: None,
        };
        let (tail, entry) = self.encode_commit_record(&commit, segment.length);
        bytes.extend_from_slice(&tail);
        segment.length += tail.len();
        segment.entries.push(entry);
        self.append_and_sync(&segment.take_slice(bytes), session.index)?;
        Ok(Some(commit))
    }

    /// Makes all appended records durable.
    pub(super) fn flush_pack(
        &mut self,
        session: PackWriteContext<'_>,
    ) -> Result<(), PackWriteFailure> {
        if !self.has_uncommitted_records {
            return Ok(());
        }
        let sequence = session.tables.read().next_sequence;
        let commit = CommitRecord {
            synced_length: self.synced_length,
            first_sequence: sequence,
            ..CommitRecord::default()
        };
        self.write_commit(session, &commit)
    }

    /// Commits a new location of the log, and the end of leases.
    pub(super) fn write_log_commit(
        &mut self,
        session: PackWriteContext<'_>,
        log: RevisionLog,
        leases: Vec<LeaseUpdate>,
    ) -> Result<CommitRecord, PackWriteFailure> {
        let sequence = session.tables.read().next_sequence;
        let synced = self.synced_length;
        let commit = CommitRecord {
            synced_length: synced,
            first_sequence: sequence,
            leases,
            new_log: Some(log),
            ..CommitRecord::default()
        };
        self.write_commit(session, &commit)?;
        Ok(commit)
    }

    fn write_commit(
        &mut self,
        session: PackWriteContext<'_>,
        commit: &CommitRecord,
    ) -> Result<(), PackWriteFailure> {
        self.ensure_open_pack(session)?;
        let (mut bytes, entry) = self.encode_commit_record(commit, 0);
        let mut segment =
            AppendBuffer { length: bytes.len(), entries: vec![entry], ..AppendBuffer::default() };
        self.append_and_sync(&segment.take_slice(&mut bytes), session.index)
    }

    fn encode_commit_record(
        &self,
        commit: &CommitRecord,
        before: usize,
    ) -> (Vec<u8>, PackIndexEntry) {
        let payload = commit.encode();
        let id = ChunkId::hash_of(&payload);
        let position = self.next_position(before);
        let mut bytes = Vec::new();
        record::encode_record(
            RecordKind::Commit,
            id.as_bytes(),
            &payload,
            RecordCompression::None,
            &mut bytes,
        );
        record::write_record_crc(&mut bytes, position);
        let stored = to_stored_length(bytes.len());
        let location = RecordLocation {
            position,
            stored_bytes: stored,
            kind: RecordKind::Commit,
            is_terminal: false,
        };
        (bytes, (*id.as_bytes(), location))
    }

    fn next_position(&self, before: usize) -> RecordPosition {
        RecordPosition { pack: self.pack, offset: to_record_offset(self.length + before as u64) }
    }

    /// Appends records and makes them visible.
    fn append(
        &mut self,
        part: &AppendSlice<'_>,
        index: &RecordIndex,
    ) -> Result<(), PackWriteFailure> {
        self.append_to_file(part.bytes)?;
        self.has_uncommitted_records |= !part.entries.is_empty();
        index.publish_entries(&part.entries);
        Ok(())
    }

    /// Appends records with a commit record at their end, syncs, and makes them visible.
    fn append_and_sync(
        &mut self,
        part: &AppendSlice<'_>,
        index: &RecordIndex,
    ) -> Result<(), PackWriteFailure> {
        self.append_to_file(part.bytes)?;
        self.sync_file()?;
        self.has_uncommitted_records = false;
        index.publish_entries(&part.entries);
        Ok(())
    }

    fn append_to_file(&mut self, bytes: &[u8]) -> Result<(), PackWriteFailure> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let Err(source) = self.file.append(bytes) {
            let error = self.write_error(source);
            return Err(match self.file.truncate(self.length) {
                Ok(()) => PackWriteFailure::NothingWritten(error),
                Err(_) => PackWriteFailure::DiskStateUnknown(error),
            });
        }
        self.length += bytes.len() as u64;
        self.has_records = true;
        Ok(())
    }

    fn sync_file(&mut self) -> Result<(), PackWriteFailure> {
        self.file
            .sync()
            .map_err(|source| PackWriteFailure::DiskStateUnknown(self.write_error(source)))?;
        self.synced_length = self.length;
        Ok(())
    }

    fn write_error(&self, source: io::Error) -> Error {
        Error::FileWrite { file: pack_file_name(self.pack), source }
    }

    /// Seals the open pack.
    fn seal_open_pack(&mut self, session: PackWriteContext<'_>) -> Result<(), PackWriteFailure> {
        let bytes = encode_seal(self.synced_length, self.next_position(0));
        self.append_to_file(&bytes)?;
        self.sync_file()?;
        self.has_uncommitted_records = false;
        self.is_sealed = true;
        let tables = session.tables.read().clone();
        self.unindexed_packs.push((self.pack, self.length, tables));
        Ok(())
    }

    /// Seals the open pack and starts the next, unless it is almost empty. The index file stays pending.
    pub(super) fn rotate_pack(
        &mut self,
        session: PackWriteContext<'_>,
        min_bytes: u64,
    ) -> Result<(), PackWriteFailure> {
        if self.is_sealed || (self.has_records && self.length >= min_bytes) {
            if !self.is_sealed {
                self.seal_open_pack(session)?;
            }
            self.begin_next_pack(session)?;
        }
        Ok(())
    }

    /// Starts a new pack if the current one is sealed. Its index file stays pending.
    fn ensure_open_pack(&mut self, session: PackWriteContext<'_>) -> Result<(), PackWriteFailure> {
        if self.is_sealed { self.begin_next_pack(session) } else { Ok(()) }
    }

    /// Returns the sealed packs whose index file is pending, if the next pack has begun. The caller writes the files
    /// without the writer's lock, because sorting and syncing an index takes longer than a commit should wait.
    pub(super) fn take_unindexed(&mut self) -> Vec<UnindexedPack> {
        if self.is_sealed { Vec::new() } else { std::mem::take(&mut self.unindexed_packs) }
    }

    fn begin_next_pack(&mut self, session: PackWriteContext<'_>) -> Result<(), PackWriteFailure> {
        let pack = self.pack + 1;
        let tables = session.tables.read().clone();
        let (file, length) = begin_pack(session.disk, pack, tables).map_err(|source| {
            let file = pack_file_name(pack);
            PackWriteFailure::NothingWritten(Error::FileWrite { file, source })
        })?;
        session.index.add_pack_file(pack, &file);
        self.pack = pack;
        self.file = file;
        self.length = length;
        self.synced_length = length;
        self.indexed_length = 0;
        self.has_records = false;
        self.is_sealed = false;
        Ok(())
    }

    /// Writes the index of the open pack, so that the next start need not scan it.
    pub(super) fn write_checkpoint_index(
        &mut self,
        disk: &dyn Disk,
        index: &RecordIndex,
        tables: &StoreTables,
    ) -> Result<()> {
        let grown = self.length.saturating_sub(self.indexed_length);
        if self.has_uncommitted_records || self.is_sealed || grown < MIN_CHECKPOINT_BYTES {
            return Ok(());
        }
        let mut entries = collect_pack_entries(index, self.pack)?;
        let contents = IndexFileContents {
            pack: self.pack,
            is_sealed: false,
            covered_bytes: self.length,
            entries: &mut entries,
            tables,
        };
        index_file::write_index_file(disk, contents)?;
        self.indexed_length = self.length;
        Ok(())
    }
}

/// Writes the index file of a sealed pack; returns true if it is written. A failure is not a failure of the store,
/// because the entries stay in memory.
pub(super) fn write_pack_index(disk: &dyn Disk, index: &RecordIndex, due: &UnindexedPack) -> bool {
    let (pack, covered, tables) = due;
    let write = || {
        let mut entries = collect_pack_entries(index, *pack)?;
        let contents = IndexFileContents {
            pack: *pack,
            is_sealed: true,
            covered_bytes: *covered,
            entries: &mut entries,
            tables,
        };
        index_file::write_index_file(disk, contents)?;
        PackIndexFile::open(disk, *pack)
    };
    match write() {
        Ok(Some(written)) => {
            index.add_pack_index(*pack, written);
            true
        }
        Ok(None) => false,
        Err(error) => {
            let error: Error = error;
            tracing::warn!(file = pack_file_name(*pack), reason = %error, "cannot write an index file");
            false
        }
    }
}

/// Returns all entries of a pack that is not sealed or has no final index: those in memory, and those of an index file
/// that covers its beginning. The index file does not hold whole ids, so the headers of the records are read for them.
pub(super) fn collect_pack_entries(index: &RecordIndex, pack: u32) -> Result<Vec<PackIndexEntry>> {
    let mut entries = index.open_pack_entries(pack);
    let packs = index.packs();
    let (Some(pack_index), Some(file)) = (packs.indexes.get(&pack), packs.files.get(&pack)) else {
        return Ok(entries);
    };
    let bytes = file
        .map_content()
        .map_err(|source| Error::FileRead { file: pack_file_name(pack), source })?;
    for location in pack_index.entries().chain(pack_index.commits()) {
        let header = bytes.get(location.position.offset as usize..).and_then(RecordHeader::parse);
        let header = header.ok_or_else(|| Error::FileMalformed {
            file: pack_file_name(pack),
            fault: "its index points to no record; run `tympan repo check`",
        })?;
        entries.push((header.id, location));
    }
    Ok(entries)
}

/// Encodes the seal of a pack whose records are durable up to `length`.
fn encode_seal(length: u64, position: RecordPosition) -> Vec<u8> {
    let payload = length.to_le_bytes();
    let id = ChunkId::hash_of(&payload);
    let mut bytes = Vec::new();
    record::encode_record(
        RecordKind::Seal,
        id.as_bytes(),
        &payload,
        RecordCompression::None,
        &mut bytes,
    );
    record::write_record_crc(&mut bytes, position);
    bytes
}

/// Seals a pack whose records are durable up to `length`. Returns the length of the seal.
pub(super) fn seal_pack(file: &dyn DiskFile, pack: u32, length: u64) -> io::Result<u64> {
    let bytes = encode_seal(length, RecordPosition { pack, offset: to_record_offset(length) });
    file.append(&bytes)?;
    file.sync()?;
    Ok(bytes.len() as u64)
}

/// Creates a pack with its head, durably. Returns the file and its length.
pub(super) fn begin_pack(
    disk: &dyn Disk,
    pack: u32,
    tables: StoreTables,
) -> io::Result<(Arc<dyn DiskFile>, u64)> {
    let payload = PackHead { pack, tables }.encode();
    let id = ChunkId::hash_of(&payload);
    let mut bytes = Vec::new();
    record::encode_record(
        RecordKind::Head,
        id.as_bytes(),
        &payload,
        RecordCompression::None,
        &mut bytes,
    );
    record::write_record_crc(&mut bytes, RecordPosition { pack, offset: 0 });
    let name = pack_file_name(pack);
    let file = disk.create_file(&name)?;
    file.append(&bytes)?;
    file.sync()?;
    disk.sync_folder("")?;
    Ok((file, bytes.len() as u64))
}

/// Records to be written in one append.
#[derive(Default)]
struct AppendBuffer {
    start: usize,
    length: usize,
    entries: Vec<PackIndexEntry>,
}

struct AppendSlice<'a> {
    bytes: &'a [u8],
    entries: Vec<PackIndexEntry>,
}

impl AppendBuffer {
    /// Assigns a record its position after the others.
    fn add_record(
        &mut self,
        pending_record: &PendingRecord,
        pack: u32,
        pack_length: u64,
        bytes: &mut [u8],
    ) {
        let position =
            RecordPosition { pack, offset: to_record_offset(pack_length + self.length as u64) };
        if let Some(record) =
            bytes.get_mut(pending_record.start..pending_record.start + pending_record.length)
        {
            record::write_record_crc(record, position);
        }
        let location = RecordLocation {
            position,
            stored_bytes: to_stored_length(pending_record.length),
            kind: pending_record.kind,
            is_terminal: pending_record.is_terminal,
        };
        self.entries.push((pending_record.id, location));
        self.length += pending_record.length;
    }

    /// Returns the gathered records and starts a new slice after them.
    fn take_slice<'a>(&mut self, bytes: &'a mut [u8]) -> AppendSlice<'a> {
        let end = self.start + self.length;
        let part = AppendSlice {
            bytes: bytes.get(self.start..end).unwrap_or_default(),
            entries: std::mem::take(&mut self.entries),
        };
        self.start = end;
        self.length = 0;
        part
    }
}

fn to_record_offset(position: u64) -> u32 {
    // Packs end at 256 MiB, so offsets fit.
    u32::try_from(position).unwrap_or(u32::MAX)
}

fn to_stored_length(record: usize) -> u32 {
    u32::try_from(record - RECORD_HEADER_BYTES).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::body;
    use crate::interface::chunk_store::ChunkStore;
    use crate::local::LocalStore;

    #[test]
    fn what_is_condemned_after_it_was_found_is_written_again() {
        let store = LocalStore::open_in_memory().unwrap();
        let batch = || {
            let mut batch = ChunkBatch::new();
            body::write_body(&mut batch, b"text", &[]).unwrap();
            batch.add_blob(crate::BlobId::hash_of(b"icon"), "icon".into());
            batch
        };
        store.commit(batch()).unwrap();
        store.writer.lock().rotate_pack(store.write_context(), 0).map_err(|_| ()).unwrap();
        let due = std::mem::take(&mut store.writer.lock().unindexed_packs);
        assert!(due.iter().all(|due| write_pack_index(store.disk.as_ref(), &store.index, due)));
        let prepare =
            || PreparedRecords::new(&batch(), &store.index, RecordCompression::None).unwrap();
        let mut early = prepare();
        assert!(early.records.is_empty());
        early.add_condemned_records(&batch(), &store.index).unwrap();
        assert!(early.records.is_empty(), "nothing has been condemned");
        // Live records of a condemned pack are moved, so they need not be written again.
        let condemn = |live: u64| store.index.set_condemned(&BTreeMap::from([(1, [live].into())]));
        condemn(u64::MAX);
        early.add_condemned_records(&batch(), &store.index).unwrap();
        assert!(early.records.is_empty() && prepare().records.is_empty());
        condemn(0);
        early.add_condemned_records(&batch(), &store.index).unwrap();
        assert_eq!(early.records.len(), 2);
        assert_eq!(prepare().records.len(), 2);
    }
}
