//! The index file of one pack: a filter and sorted entries, searched in place.
//!
//! An entry holds the first twelve bytes of an id. That tells records apart but for a collision that someone would
//! have to make; so whoever must be sure compares the record's own header.

use super::payload::Tables;
use super::record::{Kind, Place};
use crate::disk::{Disk, Mapped};
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"TYMPidx1";
/// What the magic of every format version begins with.
const MAGIC_OF_ALL: &[u8] = b"TYMPidx";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 20;
const PREFIX_BYTES: usize = 12;
const COMMIT_BYTES: usize = 8;
const SEALED: u32 = 1;
/// Ten bits for each entry leave one look-up in a hundred to the entries in vain.
const FILTER_BITS_PER_ENTRY: usize = 10;
const FILTER_BLOCK: usize = 64;
const FILTER_PROBES: u32 = 6;
const TERMINAL: u8 = 0x80;

/// Where a record is and how long its payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) place: Place,
    pub(crate) stored: u32,
    pub(crate) kind: Kind,
    /// A chunk that refers to nothing.
    pub(crate) is_terminal: bool,
}

/// One record by its id.
pub(crate) type Entry = ([u8; 32], Location);

/// What an index file says about a pack.
pub(super) struct Contents<'a> {
    pub(super) pack: u32,
    pub(super) is_sealed: bool,
    pub(super) covered: u64,
    pub(super) entries: &'a mut [Entry],
    pub(super) tables: &'a Tables,
}

/// Writes an index file so that it is there whole or not at all.
pub(super) fn write(disk: &dyn Disk, mut contents: Contents<'_>) -> Result<()> {
    let name = file_name(contents.pack);
    let unfinished = format!("{name}.tmp");
    let bytes = encode(&mut contents);
    let write = || {
        let file = disk.create(&unfinished)?;
        file.append(&bytes)?;
        file.sync()?;
        disk.rename(&unfinished, &name)?;
        disk.sync_folder("")
    };
    write().map_err(|source| Error::Write { file: name.clone(), source })
}

/// Returns the name of a pack's index file.
pub(super) fn file_name(pack: u32) -> String {
    format!("{}.index", super::pack_name(pack))
}

fn encode(contents: &mut Contents<'_>) -> Vec<u8> {
    contents.entries.sort_unstable_by_key(|(id, _)| *id);
    let is_commit = |entry: &&Entry| entry.1.kind == Kind::Commit;
    let entries: Vec<&Entry> = contents.entries.iter().filter(|entry| !is_commit(entry)).collect();
    let mut commits: Vec<(u32, u32)> = contents
        .entries
        .iter()
        .filter(is_commit)
        .map(|(_, location)| (location.place.offset, location.stored))
        .collect();
    commits.sort_unstable();
    let mut body = encode_filter(&entries);
    let blocks = body.len() / FILTER_BLOCK;
    for (id, location) in &entries {
        body.extend_from_slice(id.first_chunk::<PREFIX_BYTES>().unwrap_or(&[0; PREFIX_BYTES]));
        body.extend_from_slice(&location.place.offset.to_le_bytes());
        let kind = location.kind as u8 | if location.is_terminal { TERMINAL } else { 0 };
        let word = u32::from(kind) << 24 | location.stored;
        body.extend_from_slice(&word.to_le_bytes());
    }
    for (offset, stored) in &commits {
        body.extend_from_slice(&offset.to_le_bytes());
        body.extend_from_slice(&stored.to_le_bytes());
    }
    let before = body.len();
    contents.tables.encode(&mut body);
    let tables = body.len() - before;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&contents.pack.to_le_bytes());
    let flags = if contents.is_sealed { SEALED } else { 0 };
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&contents.covered.to_le_bytes());
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

/// Returns the filter: of each id, some bits in the one block that its hash chooses.
fn encode_filter(entries: &[&Entry]) -> Vec<u8> {
    let blocks = (entries.len() * FILTER_BITS_PER_ENTRY).div_ceil(FILTER_BLOCK * 8);
    let mut filter = vec![0_u8; blocks * FILTER_BLOCK];
    for (id, _) in entries {
        for (byte, bit) in filter_bits(id, blocks) {
            if let Some(byte) = filter.get_mut(byte) {
                *byte |= bit;
            }
        }
    }
    filter
}

/// Returns the bits of an id, as byte and mask. Ids are hashes, so that their own bytes choose.
fn filter_bits(id: &[u8; 32], blocks: usize) -> impl Iterator<Item = (usize, u8)> {
    let word = |at: usize| {
        let bytes = id.get(at..).and_then(|rest| rest.first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let (place, bits) = (word(12), word(20));
    let block = (u128::from(place) * blocks as u128) >> 64;
    let start = usize::try_from(block).unwrap_or(0) * FILTER_BLOCK;
    (0..FILTER_PROBES).map(move |probe| {
        let bit = (bits >> (probe * 9)) & 511;
        (start + (bit / 8) as usize, 1 << (bit % 8))
    })
}

/// An index file in place.
#[derive(Debug)]
pub(crate) struct IndexFile {
    bytes: Mapped,
    pack: u32,
    is_sealed: bool,
    covered: u64,
    /// Number of entries.
    count: usize,
    blocks: usize,
    commits: usize,
    body_crc: u32,
    tables: Tables,
}

impl IndexFile {
    /// Opens the index of a pack; `None` if it is missing or its header is damaged.
    ///
    /// # Errors
    /// [`Error::FileMalformed`] for an index of another format version.
    pub(super) fn open(disk: &dyn Disk, pack: u32) -> Result<Option<Self>> {
        let name = file_name(pack);
        let Some(bytes) = disk.open(&name).ok().and_then(|file| file.map().ok()) else {
            return Ok(None);
        };
        // A magic that only fails to be ours is damage; one that the header's checksum vouches for is not.
        let header = bytes.first_chunk::<HEADER_BYTES>().and_then(|header| {
            let (covered, crc) = header.split_last_chunk::<4>()?;
            Some((covered, u32::from_le_bytes(*crc)))
        });
        let is_whole = header.is_some_and(|(covered, crc)| crc32c::crc32c(covered) == crc);
        if is_whole && bytes.starts_with(MAGIC_OF_ALL) && !bytes.starts_with(&MAGIC) {
            return Err(Error::FileMalformed {
                file: name,
                fault: "it is an index of another format version; start the program that wrote it",
            });
        }
        Ok(Self::parse(bytes).filter(|index| index.pack == pack))
    }

    pub(super) fn parse(bytes: Mapped) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*header.get(at..)?.first_chunk()?))
        };
        let covered = u64::from_le_bytes(*header.get(16..)?.first_chunk()?);
        let [count, blocks, commits, tables] =
            [word(24)? as usize, word(28)? as usize, word(32)? as usize, word(36)? as usize];
        let tables_at = HEADER_BYTES
            .checked_add(blocks.checked_mul(FILTER_BLOCK)?)?
            .checked_add(count.checked_mul(ENTRY_BYTES)?)?
            .checked_add(commits.checked_mul(COMMIT_BYTES)?)?;
        let is_sound = header.starts_with(&MAGIC)
            && crc32c::crc32c(header.get(..44)?) == word(44)?
            && tables_at.checked_add(tables)? == bytes.len();
        if !is_sound {
            return None;
        }
        let tables = Tables::decode(bytes.get(tables_at..)?)?;
        let (pack, flags, body_crc) = (word(8)?, word(12)?, word(40)?);
        let is_sealed = flags & SEALED != 0;
        Some(Self { pack, count, blocks, commits, is_sealed, covered, body_crc, tables, bytes })
    }

    /// Tells whether the pack is full and this index final.
    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Returns how many bytes of the pack are covered.
    pub(super) fn covered(&self) -> u64 {
        self.covered
    }

    /// Returns what tells the index from another one under the same name.
    pub(super) fn stamp(&self) -> (u64, usize, u32) {
        (self.covered, self.count, self.body_crc)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Reads the whole file against its checksum.
    pub(crate) fn is_intact(&self) -> bool {
        let body = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        crc32c::crc32c(body) == self.body_crc
    }

    /// Returns the tables at the covered place.
    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Returns the chunks and blobs, in the order of ids.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Location> + '_ {
        (0..self.count).filter_map(|ordinal| self.location(ordinal))
    }

    /// Returns the commit records, in the order of the pack.
    pub(super) fn commits(&self) -> impl DoubleEndedIterator<Item = Location> + '_ {
        let start = HEADER_BYTES + self.blocks * FILTER_BLOCK + self.count * ENTRY_BYTES;
        let section = self.bytes.get(start..start + self.commits * COMMIT_BYTES);
        let (commits, _) = section.unwrap_or_default().as_chunks::<COMMIT_BYTES>();
        commits.iter().map(|&[o0, o1, o2, o3, s0, s1, s2, s3]| Location {
            place: Place { pack: self.pack, offset: u32::from_le_bytes([o0, o1, o2, o3]) },
            stored: u32::from_le_bytes([s0, s1, s2, s3]),
            kind: Kind::Commit,
            is_terminal: false,
        })
    }

    /// Finds the entries that a chunk or blob with this id can have: one as a rule, with its ordinal.
    pub(super) fn find(&self, id: &[u8; 32]) -> impl Iterator<Item = (usize, Location)> + '_ {
        let prefix = *id.first_chunk::<PREFIX_BYTES>().unwrap_or(&[0; PREFIX_BYTES]);
        let start = if self.may_hold(id) { self.first_not_below(&prefix) } else { self.count };
        (start..self.count)
            .take_while(move |ordinal| self.prefix(*ordinal) == Some(&prefix))
            .filter_map(|ordinal| Some((ordinal, self.location(ordinal)?)))
    }

    fn may_hold(&self, id: &[u8; 32]) -> bool {
        let filter = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        filter_bits(id, self.blocks)
            .all(|(byte, bit)| filter.get(byte).is_some_and(|byte| byte & bit != 0))
    }

    /// Returns the first ordinal whose prefix is not below `prefix`.
    fn first_not_below(&self, prefix: &[u8; PREFIX_BYTES]) -> usize {
        // Hashes spread evenly, so the place of an id is guessed from its first bytes; the bounds around the guess
        // double until they enclose it.
        let is_below = |ordinal| self.prefix(ordinal).is_some_and(|at| at < prefix);
        let (mut low, mut high) = (0, self.count);
        let guess = position_guess(prefix, self.count);
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
        // Invariant: what is before `low` is below the prefix, what is from `high` on is not.
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

    fn raw(&self, ordinal: usize) -> Option<&[u8; ENTRY_BYTES]> {
        if ordinal >= self.count {
            return None;
        }
        let start = HEADER_BYTES + self.blocks * FILTER_BLOCK + ordinal * ENTRY_BYTES;
        self.bytes.get(start..)?.first_chunk()
    }

    fn prefix(&self, ordinal: usize) -> Option<&[u8; PREFIX_BYTES]> {
        self.raw(ordinal)?.first_chunk()
    }

    /// Returns an entry by its ordinal.
    pub(super) fn location(&self, ordinal: usize) -> Option<Location> {
        let (_, &[o0, o1, o2, o3, s0, s1, s2, kind]) = self
            .raw(ordinal)?
            .split_first_chunk::<PREFIX_BYTES>()
            .and_then(|(prefix, rest)| Some((prefix, rest.first_chunk::<8>()?)))?;
        Some(Location {
            place: Place { pack: self.pack, offset: u32::from_le_bytes([o0, o1, o2, o3]) },
            stored: u32::from_le_bytes([s0, s1, s2, 0]),
            kind: Kind::from_code(kind & !TERMINAL)?,
            is_terminal: kind & TERMINAL != 0,
        })
    }
}

fn position_guess(prefix: &[u8; PREFIX_BYTES], count: usize) -> usize {
    let head = prefix.first_chunk::<8>().map_or(0, |head| u64::from_be_bytes(*head));
    let scaled = (u128::from(head) * count as u128) >> 64;
    usize::try_from(scaled).unwrap_or(0)
}

/// For tests of the format: an index over bytes in memory.
#[cfg(test)]
fn open_bytes(bytes: Vec<u8>) -> Option<IndexFile> {
    IndexFile::parse(Mapped::copy(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: [u8; 32], offset: u32) -> Entry {
        let place = Place { pack: 3, offset };
        let is_terminal = offset.is_multiple_of(2);
        let location = Location { place, stored: 0xAB_CDEF, kind: Kind::Chunk, is_terminal };
        (id, location)
    }

    fn encoded(ids: &[[u8; 32]]) -> Vec<u8> {
        let mut entries: Vec<Entry> =
            ids.iter().zip(0..).map(|(id, offset)| entry(*id, offset)).collect();
        for offset in [900, 700] {
            let place = Place { pack: 3, offset };
            let location = Location { place, stored: 9, kind: Kind::Commit, is_terminal: false };
            entries.push(([0xAA; 32], location));
        }
        let refs = [("main".to_owned(), crate::ChunkId::of(b""))].into();
        encode(&mut Contents {
            pack: 3,
            is_sealed: true,
            covered: 99,
            entries: &mut entries,
            tables: &Tables { refs, ..Tables::default() },
        })
    }

    #[test]
    fn finds_each_id_and_no_other() {
        // Even and skewed distributions: a guess may be far off, never wrong.
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
            let index = open_bytes(encoded(ids)).unwrap();
            assert!(index.is_intact() && index.is_sealed());
            assert_eq!((index.covered(), index.entries().count()), (99, ids.len()));
            assert_eq!(index.tables().refs.len(), 1);
            let commits: Vec<u32> = index.commits().map(|at| at.place.offset).collect();
            assert_eq!(commits, [700, 900]);
            for (id, offset) in ids.iter().zip(0..) {
                let found: Vec<Location> = index.find(id).map(|(_, location)| location).collect();
                assert_eq!(found, [entry(*id, offset).1]);
                let mut near = *id;
                near[11] ^= 1;
                if !ids.iter().any(|id| id[..12] == near[..12]) {
                    assert_eq!(index.find(&near).count(), 0);
                }
            }
            assert_eq!(index.find(&[0; 32]).count(), 0);
        }
    }

    #[test]
    fn ids_that_begin_alike_are_all_found() {
        let twins: Vec<[u8; 32]> = (0..3_u8)
            .map(|n| {
                let mut id = [7; 32];
                id[31] = n;
                id
            })
            .collect();
        let index = open_bytes(encoded(&twins)).unwrap();
        assert_eq!(index.find(&twins[1]).count(), 3);
    }

    #[test]
    fn the_filter_turns_most_strangers_away() {
        let id = |n: u32| *blake3::hash(&n.to_le_bytes()).as_bytes();
        let ids: Vec<[u8; 32]> = (0..10_000).map(id).collect();
        let index = open_bytes(encoded(&ids)).unwrap();
        assert!(ids.iter().all(|id| index.may_hold(id)));
        let strangers = (10_000..20_000).filter(|n| index.may_hold(&id(*n))).count();
        assert!(strangers < 300, "{strangers} of 10,000 strangers pass");
    }

    #[test]
    fn damage_is_seen() {
        let bytes = encoded(&[[1; 32], [2; 32]]);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let is_seen = open_bytes(damaged).is_none_or(|index| !index.is_intact());
            assert!(is_seen, "byte {at}");
            assert!(open_bytes(bytes[..at].to_vec()).is_none(), "cut {at}");
        }
    }
}
