//! Entry points to the private decoders, only for the fuzz targets.
//!
//! Each checks properties that must hold for any bytes. Checksums, which a fuzzer cannot guess, are corrected first.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::index_file::PackIndexFile;
use super::pack_scan;
use super::record::{self, RECORD_HEADER_BYTES, RecordHeader, RecordPosition};
use super::record_payload::{CommitRecord, PackHead, StoreTables, decode_update, encode_update};
use crate::chunk::Chunk;
use crate::disk::MappedFile;

/// The offset of the checksum in the header of an index file; the checksum follows the bytes that it covers.
const INDEX_HEADER_CRC: usize = 44;

/// Reads records one after the other, and then all of them as a pack.
pub fn fuzz_records(data: &[u8]) {
    let mut pack = data.to_vec();
    let mut offset = 0;
    while let Some(header) = pack.get(offset..).and_then(RecordHeader::parse) {
        let position =
            RecordPosition { pack: 1, offset: u32::try_from(offset).expect("inputs are short") };
        let end = offset + header.record_length();
        let Some(bytes) = pack.get_mut(offset..end) else { break };
        record::write_record_crc(bytes, position);
        let header =
            RecordHeader::parse(bytes).expect("the checksum is no part of what makes it one");
        assert!(record::is_record_valid(&header, bytes, position));
        let elsewhere = RecordPosition { offset: position.offset ^ 1, ..position };
        assert!(!record::is_record_valid(&header, bytes, elsewhere));
        if let Some(payload) = record::decode_record(&header, &Bytes::copy_from_slice(bytes)) {
            drop(Chunk::parse(payload));
        }
        offset = end;
    }
    let scanned = pack_scan::scan_pack(1, &pack, 0, StoreTables::default());
    let length = pack.len() as u64;
    assert!(scanned.committed_end <= length);
    let mut starts = BTreeSet::new();
    for (id, location) in scanned.entries.iter().chain(&scanned.uncommitted_entries) {
        let start = location.position.offset as usize;
        let record = pack.get(start..start + RECORD_HEADER_BYTES + location.stored_bytes as usize);
        let header = record.and_then(RecordHeader::parse).expect("a scan finds whole records");
        assert_eq!((header.kind, header.id), (location.kind, *id));
        assert!(starts.insert(start), "a scan finds each record once");
    }
    assert!(
        scanned.damaged_ranges.iter().all(|range| range.start < range.end && range.end <= length)
    );
}

/// Decodes the data as a commit record, a head, the tables and a folded revision.
pub fn fuzz_commit(data: &[u8]) {
    if let Some(commit) = CommitRecord::decode(data) {
        let again = commit.encode();
        let decoded = CommitRecord::decode(&again).expect("what is encoded can be decoded");
        assert_eq!(decoded.encode(), again);
        StoreTables::default().apply_commit(&commit);
        commit.into_revisions().for_each(drop);
    }
    if let Some(head) = PackHead::decode(data) {
        let again = head.encode();
        assert_eq!(
            PackHead::decode(&again).expect("what is encoded can be decoded").encode(),
            again
        );
    }
    if let Some(update) = decode_update(data) {
        let mut again = Vec::new();
        encode_update(&update, &mut again);
        assert!(decode_update(&again).is_some());
    }
}

/// Opens an index file and queries all of it. The first byte selects how many of the entries are queried.
pub fn fuzz_index(data: &[u8]) {
    let mut bytes = data.to_vec();
    if let Some((covered, crc)) = bytes.split_at_mut_checked(INDEX_HEADER_CRC)
        && let Some(crc) = crc.first_chunk_mut::<4>()
    {
        *crc = crc32c::crc32c(covered).to_le_bytes();
    }
    let Some(index) = PackIndexFile::parse(MappedFile::from_copy(bytes)) else { return };
    let count = index.len();
    assert!(index.entries().count() <= count);
    assert!(index.location(count).is_none());
    index.commits().for_each(drop);
    index.is_intact();
    for id in data.windows(32).step_by(20).take(1_000) {
        let id: &[u8; 32] = id.first_chunk().expect("windows are 32 bytes long");
        assert!(index.find_entries(id).take(count + 1).count() <= count);
    }
}
