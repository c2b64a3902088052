//! The index file of one pack: sorted entries, searched in place.

use std::sync::Arc;

use super::payload::{Refs, decode_refs, encode_refs};
use super::record::{Kind, Place};
use crate::disk::{Disk, DiskFile, Mapped};
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"TYMPidx1";
const HEADER_BYTES: usize = 40;
const ENTRY_BYTES: usize = 40;
const SEALED: u32 = 1;

/// Where a record is and how long its payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) place: Place,
    pub(crate) stored: u32,
    pub(crate) kind: Kind,
}

/// One record by its id.
pub(crate) type Entry = ([u8; 32], Location);

/// What an index file says about a pack.
pub(super) struct Contents<'a> {
    pub(super) pack: u32,
    pub(super) is_sealed: bool,
    pub(super) covered: u64,
    pub(super) entries: &'a mut [Entry],
    pub(super) refs: &'a Refs,
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
    let mut body = Vec::with_capacity(contents.entries.len() * ENTRY_BYTES);
    for (id, location) in contents.entries.iter() {
        body.extend_from_slice(id);
        body.extend_from_slice(&location.place.offset.to_le_bytes());
        let word = (location.kind as u32) << 24 | location.stored;
        body.extend_from_slice(&word.to_le_bytes());
    }
    let entries = contents.entries.len();
    let entry_bytes = body.len();
    encode_refs(contents.refs, &mut body);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&contents.pack.to_le_bytes());
    let flags = if contents.is_sealed { SEALED } else { 0 };
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&contents.covered.to_le_bytes());
    for count in [entries, body.len() - entry_bytes] {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    let header = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&header.to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// An index file in place.
#[derive(Debug)]
pub(crate) struct IndexFile {
    bytes: Mapped,
    pack: u32,
    count: usize,
    is_sealed: bool,
    covered: u64,
    body_crc: u32,
}

impl IndexFile {
    /// Opens the index of a pack; `None` if it is missing or its header is damaged.
    pub(super) fn open(disk: &dyn Disk, pack: u32) -> Option<Self> {
        let file: Arc<dyn DiskFile> = disk.open(&file_name(pack)).ok()?;
        Self::parse(file.map().ok()?).filter(|index| index.pack == pack)
    }

    fn parse(bytes: Mapped) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*header.get(at..)?.first_chunk()?))
        };
        let covered = u64::from_le_bytes(*header.get(16..)?.first_chunk()?);
        let count = word(24)? as usize;
        let is_sound = header.starts_with(&MAGIC)
            && crc32c::crc32c(header.get(..36)?) == word(36)?
            && HEADER_BYTES + count * ENTRY_BYTES + word(28)? as usize == bytes.len();
        let (pack, flags, body_crc) = (word(8)?, word(12)?, word(32)?);
        is_sound.then_some(Self {
            pack,
            count,
            is_sealed: flags & SEALED != 0,
            covered,
            body_crc,
            bytes,
        })
    }

    /// Tells whether the pack is full and this index final.
    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Returns how many bytes of the pack are covered.
    pub(super) fn covered(&self) -> u64 {
        self.covered
    }

    /// Reads the whole file against its checksum.
    pub(crate) fn is_intact(&self) -> bool {
        let body = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        crc32c::crc32c(body) == self.body_crc
    }

    /// Returns the refs at the covered place.
    pub(super) fn refs(&self) -> Option<Refs> {
        let start = HEADER_BYTES + self.count * ENTRY_BYTES;
        decode_refs(self.bytes.get(start..)?)
    }

    /// Returns all entries in the order of ids.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.count).filter_map(|index| self.entry(index))
    }

    /// Finds a record by its id.
    pub(super) fn find(&self, id: &[u8; 32]) -> Option<Location> {
        // Hashes spread evenly, so the place of an id is guessed from its first bytes; the bounds around the guess
        // double until they enclose it.
        let guess = position_guess(id, self.count);
        let (mut low, mut high) = (0, self.count);
        let mut step = 8;
        if self.id(guess)? <= id {
            low = guess;
            while let Some(probe) = low.checked_add(step).filter(|probe| *probe < high) {
                if self.id(probe)? > id {
                    high = probe;
                    break;
                }
                low = probe;
                step *= 2;
            }
        } else {
            high = guess;
            while let Some(probe) = high.checked_sub(step) {
                if self.id(probe)? <= id {
                    low = probe;
                    break;
                }
                high = probe;
                step *= 2;
            }
        }
        // Invariant: ids before `low` are not greater, ids from `high` on are greater.
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.id(middle)? <= id {
                low = middle;
            } else {
                high = middle;
            }
        }
        let (found, location) = self.entry(low)?;
        (found == *id).then_some(location)
    }

    fn raw(&self, index: usize) -> Option<&[u8; ENTRY_BYTES]> {
        let start = HEADER_BYTES + index * ENTRY_BYTES;
        if index >= self.count {
            return None;
        }
        self.bytes.get(start..)?.first_chunk()
    }

    fn id(&self, index: usize) -> Option<&[u8; 32]> {
        self.raw(index)?.first_chunk()
    }

    fn entry(&self, index: usize) -> Option<Entry> {
        let (id, rest) = self.raw(index)?.split_first_chunk::<32>()?;
        let &[o0, o1, o2, o3, s0, s1, s2, kind] = rest else {
            return None;
        };
        let location = Location {
            place: Place { pack: self.pack, offset: u32::from_le_bytes([o0, o1, o2, o3]) },
            stored: u32::from_le_bytes([s0, s1, s2, 0]),
            kind: Kind::from_code(kind)?,
        };
        Some((*id, location))
    }
}

fn position_guess(id: &[u8; 32], count: usize) -> usize {
    let head = id.first_chunk::<8>().map_or(0, |head| u64::from_be_bytes(*head));
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
        let location = Location { place, stored: 0xAB_CDEF, kind: Kind::Blob };
        (id, location)
    }

    fn encoded(ids: &[[u8; 32]]) -> Vec<u8> {
        let mut entries: Vec<Entry> =
            ids.iter().zip(0..).map(|(id, offset)| entry(*id, offset)).collect();
        encode(&mut Contents {
            pack: 3,
            is_sealed: true,
            covered: 99,
            entries: &mut entries,
            refs: &Refs::from([("main".to_owned(), crate::ChunkId::of(b""))]),
        })
    }

    #[test]
    fn finds_each_id_and_no_other() {
        // Even and skewed distributions: a guess may be far off, never wrong.
        let even: Vec<[u8; 32]> =
            (0..500_u32).map(|n| *blake3::hash(&n.to_le_bytes()).as_bytes()).collect();
        let skewed: Vec<[u8; 32]> = (0..500_u32)
            .map(|n| {
                let mut id = [0xFF; 32];
                id[20..24].copy_from_slice(&n.to_be_bytes());
                id
            })
            .collect();
        for ids in [&even[..], &skewed, &even[..1], &[]] {
            let index = open_bytes(encoded(ids)).unwrap();
            assert!(index.is_intact() && index.is_sealed());
            assert_eq!((index.covered(), index.entries().count()), (99, ids.len()));
            assert_eq!(index.refs().unwrap().len(), 1);
            for (id, offset) in ids.iter().zip(0..) {
                assert_eq!(index.find(id), Some(entry(*id, offset).1));
                let mut near = *id;
                near[31] ^= 1;
                if !ids.contains(&near) {
                    assert_eq!(index.find(&near), None);
                }
            }
            assert_eq!(index.find(&[0; 32]), None);
        }
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
