//! Doors to the private decoders, for the fuzz targets alone.
//!
//! Each checks what must hold of any bytes; checksums, which a fuzzer cannot guess, are made right first.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::index_file::IndexFile;
use super::payload::{Commit, Head, Tables, decode_update, encode_update};
use super::record::{self, HEADER_BYTES, Header, Place};
use super::scan;
use crate::chunk::Chunk;
use crate::disk::Mapped;

/// Where the header of an index file keeps its own checksum, behind the bytes that it covers.
const INDEX_HEADER_CRC: usize = 44;

/// Reads records one after the other, and then all of them as a pack.
pub fn records(data: &[u8]) {
    let mut pack = data.to_vec();
    let mut offset = 0;
    while let Some(header) = pack.get(offset..).and_then(Header::parse) {
        let place = Place { pack: 1, offset: u32::try_from(offset).expect("inputs are short") };
        let end = offset + header.record_bytes();
        let Some(bytes) = pack.get_mut(offset..end) else { break };
        record::seal_crc(bytes, place);
        let header = Header::parse(bytes).expect("the checksum is no part of what makes it one");
        assert!(record::is_valid(&header, bytes, place));
        let elsewhere = Place { offset: place.offset ^ 1, ..place };
        assert!(!record::is_valid(&header, bytes, elsewhere));
        if let Some(payload) = record::decode(&header, &Bytes::copy_from_slice(bytes)) {
            drop(Chunk::parse(payload));
        }
        offset = end;
    }
    let scanned = scan::scan(1, &pack, 0, Tables::default());
    let length = pack.len() as u64;
    assert!(scanned.end <= length);
    let mut seen = BTreeSet::new();
    for (id, location) in scanned.entries.iter().chain(&scanned.tail) {
        let start = location.place.offset as usize;
        let record = pack.get(start..start + HEADER_BYTES + location.stored as usize);
        let header = record.and_then(Header::parse).expect("a scan finds whole records");
        assert_eq!((header.kind, header.id), (location.kind, *id));
        assert!(seen.insert(start), "a scan finds each record once");
    }
    assert!(scanned.damaged.iter().all(|range| range.start < range.end && range.end <= length));
}

/// Reads the payload of a commit record, of a head, of the tables and of a folded revision.
pub fn commit(data: &[u8]) {
    if let Some(commit) = Commit::decode(data) {
        let again = commit.encode();
        let decoded = Commit::decode(&again).expect("what is encoded can be decoded");
        assert_eq!(decoded.encode(), again);
        Tables::default().apply(&commit);
        commit.into_revisions().for_each(drop);
    }
    if let Some(head) = Head::decode(data) {
        let again = head.encode();
        assert_eq!(Head::decode(&again).expect("what is encoded can be decoded").encode(), again);
    }
    if let Some(update) = decode_update(data) {
        let mut again = Vec::new();
        encode_update(&update, &mut again);
        assert!(decode_update(&again).is_some());
    }
}

/// Opens an index file and asks it for everything. The first byte says how much of the entries is asked for.
pub fn index(data: &[u8]) {
    let mut bytes = data.to_vec();
    if let Some((covered, crc)) = bytes.split_at_mut_checked(INDEX_HEADER_CRC)
        && let Some(crc) = crc.first_chunk_mut::<4>()
    {
        *crc = crc32c::crc32c(covered).to_le_bytes();
    }
    let Some(index) = IndexFile::parse(Mapped::copy(bytes)) else { return };
    let count = index.len();
    assert!(index.entries().count() <= count);
    assert!(index.location(count).is_none());
    index.commits().for_each(drop);
    index.is_intact();
    for id in data.windows(32).step_by(20).take(1_000) {
        let id: &[u8; 32] = id.first_chunk().expect("windows are 32 bytes long");
        assert!(index.find(id).take(count + 1).count() <= count);
    }
}
