//! The index file of one pack: a filter and sorted entries, searched in place.
//!
//! An entry holds the first twelve bytes of an id. These distinguish records except in a deliberate collision, so a
//! caller that must be certain compares the header of the record.

use super::pack_name::pack_file_name;
use super::record::{RecordKind, RecordPosition};
use super::record_payload::StoreTables;
use crate::disk::{Disk, MappedFile};
use crate::error::{Error, Result};

const INDEX_MAGIC: [u8; 8] = *b"TYMPidx1";
/// The common prefix of the magic of every format version.
const INDEX_MAGIC_PREFIX: &[u8] = b"TYMPidx";
const INDEX_HEADER_BYTES: usize = 48;
const INDEX_ENTRY_BYTES: usize = 20;
const ID_PREFIX_BYTES: usize = 12;
const INDEX_COMMIT_BYTES: usize = 8;
const SEALED_FLAG: u32 = 1;
/// The filter size; with ten bits for each entry, one lookup in a hundred searches the entries without a match.
const FILTER_BITS_PER_ENTRY: usize = 10;
const FILTER_BLOCK_BYTES: usize = 64;
const FILTER_PROBE_COUNT: u32 = 6;
const TERMINAL_FLAG: u8 = 0x80;

/// The position of a record and the stored length of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub(crate) position: RecordPosition,
    pub(crate) stored_bytes: u32,
    pub(crate) kind: RecordKind,
    /// True for a chunk that refers to nothing.
    pub(crate) is_terminal: bool,
}

/// A record's id and location.
pub(crate) type PackIndexEntry = ([u8; 32], RecordLocation);

/// The contents of the index file of a pack.
pub(super) struct IndexFileContents<'a> {
    pub(super) pack: u32,
    pub(super) is_sealed: bool,
    pub(super) covered_bytes: u64,
    pub(super) entries: &'a mut [PackIndexEntry],
    pub(super) tables: &'a StoreTables,
}

/// Writes an index file atomically.
pub(super) fn write_index_file(disk: &dyn Disk, mut contents: IndexFileContents<'_>) -> Result<()> {
    let name = index_file_name(contents.pack);
    let unfinished = format!("{name}.tmp");
    let bytes = encode_index(&mut contents);
    let write = || {
        let file = disk.create_file(&unfinished)?;
        file.append(&bytes)?;
        file.sync()?;
        disk.rename_file(&unfinished, &name)?;
        disk.sync_folder("")
    };
    write().map_err(|source| Error::FileWrite { file: name.clone(), source })
}

/// Returns the name of a pack's index file.
pub(super) fn index_file_name(pack: u32) -> String {
    format!("{}.index", pack_file_name(pack))
}

fn encode_index(contents: &mut IndexFileContents<'_>) -> Vec<u8> {
    contents.entries.sort_unstable_by_key(|(id, _)| *id);
    let is_commit = |entry: &&PackIndexEntry| entry.1.kind == RecordKind::Commit;
    let entries: Vec<&PackIndexEntry> =
        contents.entries.iter().filter(|entry| !is_commit(entry)).collect();
    let mut commits: Vec<(u32, u32)> = contents
        .entries
        .iter()
        .filter(is_commit)
        .map(|(_, location)| (location.position.offset, location.stored_bytes))
        .collect();
    commits.sort_unstable();
    let mut body = encode_filter(&entries);
    let blocks = body.len() / FILTER_BLOCK_BYTES;
    for (id, location) in &entries {
        body.extend_from_slice(
            id.first_chunk::<ID_PREFIX_BYTES>().unwrap_or(&[0; ID_PREFIX_BYTES]),
        );
        body.extend_from_slice(&location.position.offset.to_le_bytes());
        let kind = location.kind as u8 | if location.is_terminal { TERMINAL_FLAG } else { 0 };
        let word = u32::from(kind) << 24 | location.stored_bytes;
        body.extend_from_slice(&word.to_le_bytes());
    }
    for (offset, stored) in &commits {
        body.extend_from_slice(&offset.to_le_bytes());
        body.extend_from_slice(&stored.to_le_bytes());
    }
    let before = body.len();
    contents.tables.encode(&mut body);
    let tables = body.len() - before;
    let mut bytes = Vec::with_capacity(INDEX_HEADER_BYTES + body.len());
    bytes.extend_from_slice(&INDEX_MAGIC);
    bytes.extend_from_slice(&contents.pack.to_le_bytes());
    let flags = if contents.is_sealed { SEALED_FLAG } else { 0 };
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&contents.covered_bytes.to_le_bytes());
    for count in [entries.len(), blocks, commits.len(), tables] {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    let header = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&header.to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Returns the filter, in which each id sets some bits in the one block that its hash selects.
fn encode_filter(entries: &[&PackIndexEntry]) -> Vec<u8> {
    let blocks = (entries.len() * FILTER_BITS_PER_ENTRY).div_ceil(FILTER_BLOCK_BYTES * 8);
    let mut filter = vec![0_u8; blocks * FILTER_BLOCK_BYTES];
    for (id, _) in entries {
        for (byte, bit) in filter_bits(id, blocks) {
            if let Some(byte) = filter.get_mut(byte) {
                *byte |= bit;
            }
        }
    }
    filter
}

/// Returns the bits of an id, as byte and mask. Ids are hashes, so their own bytes select the bits.
fn filter_bits(id: &[u8; 32], blocks: usize) -> impl Iterator<Item = (usize, u8)> {
    let read_u64 = |at: usize| {
        let bytes = id.get(at..).and_then(|rest| rest.first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let (block_hash, bits) = (read_u64(12), read_u64(20));
    let block = (u128::from(block_hash) * blocks as u128) >> 64;
    let start = usize::try_from(block).unwrap_or(0) * FILTER_BLOCK_BYTES;
    (0..FILTER_PROBE_COUNT).map(move |probe| {
        let bit = (bits >> (probe * 9)) & 511;
        (start + (bit / 8) as usize, 1 << (bit % 8))
    })
}

/// An open index file.
#[derive(Debug)]
pub(crate) struct PackIndexFile {
    bytes: MappedFile,
    pack: u32,
    is_sealed: bool,
    covered_bytes: u64,
    /// Number of entries.
    entry_count: usize,
    filter_block_count: usize,
    commit_count: usize,
    body_crc: u32,
    tables: StoreTables,
}

impl PackIndexFile {
    /// Opens the index of a pack; `None` if it is missing or its header is damaged.
    ///
    /// # Errors
    /// [`Error::FileMalformed`] for an index of another format version.
    pub(super) fn open(disk: &dyn Disk, pack: u32) -> Result<Option<Self>> {
        let name = index_file_name(pack);
        let Some(bytes) = disk.open_file(&name).ok().and_then(|file| file.map_content().ok())
        else {
            return Ok(None);
        };
        // A wrong magic is damage, unless the checksum of the header confirms it; then the file has another format
        // version.
        let header = bytes.first_chunk::<INDEX_HEADER_BYTES>().and_then(|header| {
            let (covered, crc) = header.split_last_chunk::<4>()?;
            Some((covered, u32::from_le_bytes(*crc)))
        });
        let is_whole = header.is_some_and(|(covered, crc)| crc32c::crc32c(covered) == crc);
        if is_whole && bytes.starts_with(INDEX_MAGIC_PREFIX) && !bytes.starts_with(&INDEX_MAGIC) {
            return Err(Error::FileMalformed {
                file: name,
                fault: "its index format version is not supported; start the program that wrote it",
            });
        }
        Ok(Self::parse(bytes).filter(|index| index.pack == pack))
    }

    pub(super) fn parse(bytes: MappedFile) -> Option<Self> {
        let header = bytes.first_chunk::<INDEX_HEADER_BYTES>()?;
        let read_u32 = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*header.get(at..)?.first_chunk()?))
        };
        let covered = u64::from_le_bytes(*header.get(16..)?.first_chunk()?);
        let [count, blocks, commits, tables] = [
            read_u32(24)? as usize,
            read_u32(28)? as usize,
            read_u32(32)? as usize,
            read_u32(36)? as usize,
        ];
        let tables_at = INDEX_HEADER_BYTES
            .checked_add(blocks.checked_mul(FILTER_BLOCK_BYTES)?)?
            .checked_add(count.checked_mul(INDEX_ENTRY_BYTES)?)?
            .checked_add(commits.checked_mul(INDEX_COMMIT_BYTES)?)?;
        let is_sound = header.starts_with(&INDEX_MAGIC)
            && crc32c::crc32c(header.get(..44)?) == read_u32(44)?
            && tables_at.checked_add(tables)? == bytes.len();
        if !is_sound {
            return None;
        }
        let tables = StoreTables::decode(bytes.get(tables_at..)?)?;
        let (pack, flags, body_crc) = (read_u32(8)?, read_u32(12)?, read_u32(40)?);
        let is_sealed = flags & SEALED_FLAG != 0;
        Some(Self {
            pack,
            entry_count: count,
            filter_block_count: blocks,
            commit_count: commits,
            is_sealed,
            covered_bytes: covered,
            body_crc,
            tables,
            bytes,
        })
    }

    /// Returns true if the pack is full and this index final.
    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Returns the number of bytes of the pack that the index covers.
    pub(super) fn covered_bytes(&self) -> u64 {
        self.covered_bytes
    }

    /// Returns values that distinguish the index from another one with the same name.
    pub(super) fn fingerprint(&self) -> (u64, usize, u32) {
        (self.covered_bytes, self.entry_count, self.body_crc)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entry_count
    }

    /// Reads the whole file and returns true if its checksum matches.
    pub(crate) fn is_intact(&self) -> bool {
        let body = self.bytes.get(INDEX_HEADER_BYTES..).unwrap_or_default();
        crc32c::crc32c(body) == self.body_crc
    }

    /// Returns the tables as of the end of the covered bytes.
    pub(super) fn tables(&self) -> &StoreTables {
        &self.tables
    }

    /// Returns the locations of chunks and blobs, in the order of ids.
    pub(crate) fn entries(&self) -> impl Iterator<Item = RecordLocation> + '_ {
        (0..self.entry_count).filter_map(|ordinal| self.location(ordinal))
    }

    /// Returns the locations of commit records, in the order of the pack.
    pub(super) fn commits(&self) -> impl DoubleEndedIterator<Item = RecordLocation> + '_ {
        let start = INDEX_HEADER_BYTES
            + self.filter_block_count * FILTER_BLOCK_BYTES
            + self.entry_count * INDEX_ENTRY_BYTES;
        let section = self.bytes.get(start..start + self.commit_count * INDEX_COMMIT_BYTES);
        let (commits, _) = section.unwrap_or_default().as_chunks::<INDEX_COMMIT_BYTES>();
        commits.iter().map(|&[o0, o1, o2, o3, s0, s1, s2, s3]| RecordLocation {
            position: RecordPosition {
                pack: self.pack,
                offset: u32::from_le_bytes([o0, o1, o2, o3]),
            },
            stored_bytes: u32::from_le_bytes([s0, s1, s2, s3]),
            kind: RecordKind::Commit,
            is_terminal: false,
        })
    }

    /// Returns the possible entries of a chunk or blob with this id, each with its ordinal; normally there is one.
    pub(super) fn find_entries(
        &self,
        id: &[u8; 32],
    ) -> impl Iterator<Item = (usize, RecordLocation)> + '_ {
        let prefix = *id.first_chunk::<ID_PREFIX_BYTES>().unwrap_or(&[0; ID_PREFIX_BYTES]);
        let start = if self.may_contain(id) { self.lower_bound(&prefix) } else { self.entry_count };
        (start..self.entry_count)
            .take_while(move |ordinal| self.entry_prefix(*ordinal) == Some(&prefix))
            .filter_map(|ordinal| Some((ordinal, self.location(ordinal)?)))
    }

    fn may_contain(&self, id: &[u8; 32]) -> bool {
        let filter = self.bytes.get(INDEX_HEADER_BYTES..).unwrap_or_default();
        filter_bits(id, self.filter_block_count)
            .all(|(byte, bit)| filter.get(byte).is_some_and(|byte| byte & bit != 0))
    }

    /// Returns the first ordinal whose prefix is not below `prefix`.
    fn lower_bound(&self, prefix: &[u8; ID_PREFIX_BYTES]) -> usize {
        // Hashes are evenly distributed, so the position of an id is estimated from its first bytes. The bounds around
        // the estimate double until they enclose the position.
        let is_below = |ordinal| self.entry_prefix(ordinal).is_some_and(|at| at < prefix);
        let (mut low, mut high) = (0, self.entry_count);
        let guess = interpolate_position(prefix, self.entry_count);
        let mut step = 8;
        if is_below(guess) {
            low = guess + 1;
            while let Some(probe) = guess.checked_add(step).filter(|probe| *probe < high) {
                if !is_below(probe) {
                    high = probe;
                    break;
                }
                low = probe + 1;
                step *= 2;
            }
        } else {
            high = guess;
            while let Some(probe) = guess.checked_sub(step) {
                if is_below(probe) {
                    low = probe + 1;
                    break;
                }
                high = probe;
                step *= 2;
            }
        }
        // Invariant: entries before `low` are below the prefix, entries from `high` on are not.
        while low < high {
            let middle = low.midpoint(high);
            if is_below(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn raw_entry(&self, ordinal: usize) -> Option<&[u8; INDEX_ENTRY_BYTES]> {
        if ordinal >= self.entry_count {
            return None;
        }
        let start = INDEX_HEADER_BYTES
            + self.filter_block_count * FILTER_BLOCK_BYTES
            + ordinal * INDEX_ENTRY_BYTES;
        self.bytes.get(start..)?.first_chunk()
    }

    fn entry_prefix(&self, ordinal: usize) -> Option<&[u8; ID_PREFIX_BYTES]> {
        self.raw_entry(ordinal)?.first_chunk()
    }

    /// Returns the entry with this ordinal.
    pub(super) fn location(&self, ordinal: usize) -> Option<RecordLocation> {
        let (_, &[o0, o1, o2, o3, s0, s1, s2, kind]) = self
            .raw_entry(ordinal)?
            .split_first_chunk::<ID_PREFIX_BYTES>()
            .and_then(|(prefix, rest)| Some((prefix, rest.first_chunk::<8>()?)))?;
        Some(RecordLocation {
            position: RecordPosition {
                pack: self.pack,
                offset: u32::from_le_bytes([o0, o1, o2, o3]),
            },
            stored_bytes: u32::from_le_bytes([s0, s1, s2, 0]),
            kind: RecordKind::from_code(kind & !TERMINAL_FLAG)?,
            is_terminal: kind & TERMINAL_FLAG != 0,
        })
    }
}

fn interpolate_position(prefix: &[u8; ID_PREFIX_BYTES], count: usize) -> usize {
    let head = prefix.first_chunk::<8>().map_or(0, |head| u64::from_be_bytes(*head));
    let scaled = (u128::from(head) * count as u128) >> 64;
    usize::try_from(scaled).unwrap_or(0)
}

/// Opens an index over bytes in memory, for tests of the format.
#[cfg(test)]
fn parse_index_bytes(bytes: Vec<u8>) -> Option<PackIndexFile> {
    PackIndexFile::parse(MappedFile::from_copy(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: [u8; 32], offset: u32) -> PackIndexEntry {
        let position = RecordPosition { pack: 3, offset };
        let is_terminal = offset.is_multiple_of(2);
        let location = RecordLocation {
            position,
            stored_bytes: 0xAB_CDEF,
            kind: RecordKind::Chunk,
            is_terminal,
        };
        (id, location)
    }

    fn encoded(ids: &[[u8; 32]]) -> Vec<u8> {
        let mut entries: Vec<PackIndexEntry> =
            ids.iter().zip(0..).map(|(id, offset)| entry(*id, offset)).collect();
        for offset in [900, 700] {
            let position = RecordPosition { pack: 3, offset };
            let location = RecordLocation {
                position,
                stored_bytes: 9,
                kind: RecordKind::Commit,
                is_terminal: false,
            };
            entries.push(([0xAA; 32], location));
        }
        let refs = [("main".to_owned(), crate::ChunkId::hash_of(b""))].into();
        encode_index(&mut IndexFileContents {
            pack: 3,
            is_sealed: true,
            covered_bytes: 99,
            entries: &mut entries,
            tables: &StoreTables { refs, ..StoreTables::default() },
        })
    }

    #[test]
    fn finds_each_id_and_no_other() {
        // Even and skewed distributions: an estimate may be far off but must not cause a wrong result.
        let even: Vec<[u8; 32]> =
            (0..500_u32).map(|n| *blake3::hash(&n.to_le_bytes()).as_bytes()).collect();
        let skewed: Vec<[u8; 32]> = (0..500_u32)
            .map(|n| {
                let mut id = *blake3::hash(&n.to_le_bytes()).as_bytes();
                id[..8].fill(0xFF);
                id[8..12].copy_from_slice(&n.to_be_bytes());
                id
            })
            .collect();
        for ids in [&even[..], &skewed, &even[..1], &[]] {
            let index = parse_index_bytes(encoded(ids)).unwrap();
            assert!(index.is_intact() && index.is_sealed());
            assert_eq!((index.covered_bytes(), index.entries().count()), (99, ids.len()));
            assert_eq!(index.tables().refs.len(), 1);
            let commits: Vec<u32> = index.commits().map(|at| at.position.offset).collect();
            assert_eq!(commits, [700, 900]);
            for (id, offset) in ids.iter().zip(0..) {
                let locations: Vec<RecordLocation> =
                    index.find_entries(id).map(|(_, location)| location).collect();
                assert_eq!(locations, [entry(*id, offset).1]);
                let mut near = *id;
                near[11] ^= 1;
                if !ids.iter().any(|id| id[..12] == near[..12]) {
                    assert_eq!(index.find_entries(&near).count(), 0);
                }
            }
            assert_eq!(index.find_entries(&[0; 32]).count(), 0);
        }
    }

    #[test]
    fn ids_that_begin_alike_are_all_found() {
        let ids: Vec<[u8; 32]> = (0..3_u8)
            .map(|n| {
                let mut id = [7; 32];
                id[31] = n;
                id
            })
            .collect();
        let index = parse_index_bytes(encoded(&ids)).unwrap();
        assert_eq!(index.find_entries(&ids[1]).count(), 3);
    }

    #[test]
    fn the_filter_turns_most_strangers_away() {
        let id = |n: u32| *blake3::hash(&n.to_le_bytes()).as_bytes();
        let ids: Vec<[u8; 32]> = (0..10_000).map(id).collect();
        let index = parse_index_bytes(encoded(&ids)).unwrap();
        assert!(ids.iter().all(|id| index.may_contain(id)));
        let strangers = (10_000..20_000).filter(|n| index.may_contain(&id(*n))).count();
        assert!(strangers < 300, "{strangers} of 10,000 strangers pass");
    }

    #[test]
    fn damage_is_seen() {
        let bytes = encoded(&[[1; 32], [2; 32]]);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let is_seen = parse_index_bytes(damaged).is_none_or(|index| !index.is_intact());
            assert!(is_seen, "byte {at}");
            assert!(parse_index_bytes(bytes[..at].to_vec()).is_none(), "cut {at}");
        }
    }
}
