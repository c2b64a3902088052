//! Scanning a pack: what is in it, where it takes effect, where it is damaged.

use std::ops::Range;

use bytes::Bytes;

use super::index_file::{Entry, Location};
use super::payload::{Commit, Head, Tables};
use super::record::{self, HEADER_BYTES, Header, Kind, Place};
use crate::id::ChunkId;

/// What a pack holds up to its last commit point.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    pub(super) entries: Vec<Entry>,
    pub(super) tables: Tables,
    /// The end of the last commit point; 0 if there is none.
    pub(super) end: u64,
    pub(super) is_sealed: bool,
    /// Valid records after the last commit point.
    pub(super) tail: Vec<Entry>,
    /// What was durable once and can no longer be read.
    pub(super) damaged: Vec<Range<u64>>,
    /// Moves of refs, by sequence number, whose commit records are gone.
    pub(super) lost_moves: Vec<Range<u64>>,
}

/// One valid record.
pub(super) struct Found<'a> {
    pub(super) header: Header,
    pub(super) record: &'a [u8],
    pub(super) place: Place,
}

impl Found<'_> {
    /// Returns the payload; `None` if it cannot be decoded.
    pub(super) fn payload(&self) -> Option<Bytes> {
        record::decode(&self.header, &Bytes::copy_from_slice(self.record))
    }

    pub(super) fn end(&self) -> usize {
        self.place.offset as usize + self.record.len()
    }
}

/// Returns the record at `offset` if it is valid.
pub(super) fn record_at(pack: u32, bytes: &[u8], offset: usize) -> Option<Found<'_>> {
    Part { pack, base: 0, bytes }.record_at(offset)
}

/// Consecutive bytes of a pack, from the place `base` on. Offsets are those in the pack.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) pack: u32,
    pub(super) base: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Part<'a> {
    fn end(&self) -> usize {
        self.base + self.bytes.len()
    }

    /// Returns the record at `offset` if it is valid.
    pub(super) fn record_at(&self, offset: usize) -> Option<Found<'a>> {
        let rest = self.bytes.get(offset.checked_sub(self.base)?..)?;
        let pack = self.pack;
        let header = Header::parse(rest)?;
        let record = rest.get(..header.record_bytes())?;
        let place = Place { pack, offset: u32::try_from(offset).ok()? };
        record::is_valid(&header, record, place).then_some(Found { header, record, place })
    }
}

/// Scans a pack from `start`, where a record begins; `tables` are those at that place.
pub(super) fn scan(pack: u32, bytes: &[u8], start: u64, tables: Tables) -> Scanned {
    scan_part(Part { pack, base: 0, bytes }, start, tables)
}

/// Scans a part of a pack, as [`scan`] does; it may end anywhere.
pub(super) fn scan_part(part: Part<'_>, start: u64, tables: Tables) -> Scanned {
    let pack = part.pack;
    let mut scanned = Scanned { tables, end: start, ..Scanned::default() };
    let mut pending = Vec::new();
    let mut offset = usize::try_from(start).unwrap_or(usize::MAX);
    while offset < part.end() {
        let Some(found) = part.record_at(offset) else {
            let Some(next) = resume_after(part, offset) else {
                break;
            };
            scanned.damaged.push(offset as u64..next as u64);
            offset = next;
            continue;
        };
        offset = found.end();
        let commit = match found.header.kind {
            Kind::Chunk | Kind::Blob => {
                pending.push(entry(&found));
                continue;
            }
            Kind::Head => {
                let head = found.payload().and_then(|bytes| Head::decode(&bytes));
                let Some(head) = head.filter(|head| head.pack == pack) else {
                    break;
                };
                scanned.tables = head.tables;
                None
            }
            Kind::Commit => {
                pending.push(entry(&found));
                match found.payload().and_then(|bytes| Commit::decode(&bytes)) {
                    Some(commit) => Some(commit),
                    None => break,
                }
            }
            Kind::Seal => {
                scanned.is_sealed = true;
                None
            }
        };
        if let Some(commit) = &commit {
            let known = scanned.tables.sequence;
            if commit.sequence > known {
                scanned.lost_moves.push(known..commit.sequence);
            }
            scanned.tables.apply(commit);
        }
        scanned.entries.append(&mut pending);
        scanned.end = offset as u64;
        if scanned.is_sealed {
            break;
        }
    }
    scanned.tail = pending;
    scanned
}

/// Returns where scanning goes on behind a damaged record, or `None` if nothing behind it proves that it was durable.
fn resume_after(part: Part<'_>, fault: usize) -> Option<usize> {
    let mut first = None;
    let mut offset = fault + 1;
    while offset + HEADER_BYTES <= part.end() {
        let Some(found) = part.record_at(offset) else {
            offset += 1;
            continue;
        };
        first.get_or_insert(offset);
        let synced = match found.header.kind {
            Kind::Commit | Kind::Seal => found.payload().and_then(|bytes| synced(&bytes)),
            Kind::Head | Kind::Chunk | Kind::Blob => None,
        };
        if synced.is_some_and(|synced| synced > fault as u64) {
            return first;
        }
        offset = found.end();
    }
    None
}

fn synced(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

pub(super) fn entry(found: &Found<'_>) -> Entry {
    let stored = found.record.len() - HEADER_BYTES;
    let location = Location {
        place: found.place,
        stored: u32::try_from(stored).unwrap_or(u32::MAX),
        kind: found.header.kind,
        is_terminal: found.header.is_terminal,
    };
    (found.header.id, location)
}

/// Tells whether a payload has the id of its record.
pub(super) fn has_id(kind: Kind, payload: &[u8], id: &[u8; 32]) -> bool {
    match kind {
        Kind::Blob => crate::id::BlobId::of(payload).digest() == id,
        Kind::Head | Kind::Chunk | Kind::Commit | Kind::Seal => {
            ChunkId::of(payload).as_bytes() == id
        }
    }
}
