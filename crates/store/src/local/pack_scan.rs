//! Scans a pack: its records, its commit points, and its damaged ranges.

use std::ops::Range;

use bytes::Bytes;

use super::index_file::{PackIndexEntry, RecordLocation};
use super::record::{self, RECORD_HEADER_BYTES, RecordHeader, RecordKind, RecordPosition};
use super::record_payload::{CommitRecord, PackHead, StoreTables};
use crate::id::ChunkId;

/// The records of a pack up to its last commit point.
#[derive(Debug, Default)]
pub(super) struct PackScan {
    pub(super) entries: Vec<PackIndexEntry>,
    pub(super) tables: StoreTables,
    /// The end of the last commit point; 0 if there is none.
    pub(super) committed_end: u64,
    pub(super) is_sealed: bool,
    /// Valid records after the last commit point.
    pub(super) uncommitted_entries: Vec<PackIndexEntry>,
    /// Ranges that were durable once and can no longer be read.
    pub(super) damaged_ranges: Vec<Range<u64>>,
    /// Ranges of sequence numbers of ref updates whose commit records are lost.
    pub(super) lost_sequences: Vec<Range<u64>>,
}

/// One valid record.
pub(super) struct ScannedRecord<'a> {
    pub(super) header: RecordHeader,
    pub(super) record: &'a [u8],
    pub(super) position: RecordPosition,
}

impl ScannedRecord<'_> {
    /// Returns the payload; `None` if it cannot be decoded.
    pub(super) fn payload(&self) -> Option<Bytes> {
        record::decode_record(&self.header, &Bytes::copy_from_slice(self.record))
    }

    pub(super) fn end(&self) -> usize {
        self.position.offset as usize + self.record.len()
    }
}

/// Returns the record at `offset` if it is valid.
pub(super) fn record_at(pack: u32, bytes: &[u8], offset: usize) -> Option<ScannedRecord<'_>> {
    PackSlice { pack, start: 0, bytes }.record_at(offset)
}

/// Consecutive bytes of a pack, starting at offset `base` of the pack. Offsets are relative to the pack.
#[derive(Clone, Copy)]
pub(super) struct PackSlice<'a> {
    pub(super) pack: u32,
    pub(super) start: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> PackSlice<'a> {
    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    /// Returns the record at `offset` if it is valid.
    pub(super) fn record_at(&self, offset: usize) -> Option<ScannedRecord<'a>> {
        let rest = self.bytes.get(offset.checked_sub(self.start)?..)?;
        let pack = self.pack;
        let header = RecordHeader::parse(rest)?;
        let record = rest.get(..header.record_length())?;
        let position = RecordPosition { pack, offset: u32::try_from(offset).ok()? };
        record::is_record_valid(&header, record, position).then_some(ScannedRecord {
            header,
            record,
            position,
        })
    }
}

/// Scans a pack from `start`, where a record begins; `tables` are those at that offset.
pub(super) fn scan_pack(pack: u32, bytes: &[u8], start: u64, tables: StoreTables) -> PackScan {
    scan_slice(PackSlice { pack, start: 0, bytes }, start, tables)
}

/// Scans a part of a pack, as [`scan_pack`] does; it may end anywhere.
pub(super) fn scan_slice(part: PackSlice<'_>, start: u64, tables: StoreTables) -> PackScan {
    let pack = part.pack;
    let mut scanned = PackScan { tables, committed_end: start, ..PackScan::default() };
    let mut pending = Vec::new();
    let mut offset = usize::try_from(start).unwrap_or(usize::MAX);
    while offset < part.end() {
        let Some(scanned_record) = part.record_at(offset) else {
            let Some(next) = find_resume_offset(part, offset) else {
                break;
            };
            scanned.damaged_ranges.push(offset as u64..next as u64);
            offset = next;
            continue;
        };
        offset = scanned_record.end();
        let commit = match scanned_record.header.kind {
            RecordKind::Chunk | RecordKind::Blob => {
                pending.push(index_entry(&scanned_record));
                continue;
            }
            RecordKind::Head => {
                let head = scanned_record.payload().and_then(|bytes| PackHead::decode(&bytes));
                let Some(head) = head.filter(|head| head.pack == pack) else {
                    break;
                };
                scanned.tables = head.tables;
                None
            }
            RecordKind::Commit => {
                pending.push(index_entry(&scanned_record));
                match scanned_record.payload().and_then(|bytes| CommitRecord::decode(&bytes)) {
                    Some(commit) => Some(commit),
                    None => break,
                }
            }
            RecordKind::Seal => {
                scanned.is_sealed = true;
                None
            }
        };
        if let Some(commit) = &commit {
            let next_sequence = scanned.tables.next_sequence;
            if commit.first_sequence > next_sequence {
                scanned.lost_sequences.push(next_sequence..commit.first_sequence);
            }
            scanned.tables.apply_commit(commit);
        }
        scanned.entries.append(&mut pending);
        scanned.committed_end = offset as u64;
        if scanned.is_sealed {
            break;
        }
    }
    scanned.uncommitted_entries = pending;
    scanned
}

/// Returns the offset after a damaged record at which scanning continues, or `None` if nothing after it proves that it
/// was durable.
fn find_resume_offset(part: PackSlice<'_>, fault: usize) -> Option<usize> {
    let mut first = None;
    let mut offset = fault + 1;
    while offset + RECORD_HEADER_BYTES <= part.end() {
        let Some(scanned_record) = part.record_at(offset) else {
            offset += 1;
            continue;
        };
        first.get_or_insert(offset);
        let synced = match scanned_record.header.kind {
            RecordKind::Commit | RecordKind::Seal => {
                scanned_record.payload().and_then(|bytes| synced_length(&bytes))
            }
            RecordKind::Head | RecordKind::Chunk | RecordKind::Blob => None,
        };
        if synced.is_some_and(|synced| synced > fault as u64) {
            return first;
        }
        offset = scanned_record.end();
    }
    None
}

fn synced_length(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

pub(super) fn index_entry(scanned_record: &ScannedRecord<'_>) -> PackIndexEntry {
    let stored = scanned_record.record.len() - RECORD_HEADER_BYTES;
    let location = RecordLocation {
        position: scanned_record.position,
        stored_bytes: u32::try_from(stored).unwrap_or(u32::MAX),
        kind: scanned_record.header.kind,
        is_terminal: scanned_record.header.is_terminal,
    };
    (scanned_record.header.id, location)
}

/// Returns true if a payload matches the id of its record.
pub(super) fn payload_matches_id(kind: RecordKind, payload: &[u8], id: &[u8; 32]) -> bool {
    match kind {
        RecordKind::Blob => crate::id::BlobId::hash_of(payload).digest() == id,
        RecordKind::Head | RecordKind::Chunk | RecordKind::Commit | RecordKind::Seal => {
            ChunkId::hash_of(payload).as_bytes() == id
        }
    }
}
