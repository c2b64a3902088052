//! The table of an index: the location of each piece and folder, in one sealed local file that is searched in place.
//!
//! In: the contents of index files, and a folder. Out: the same entries, without decompressing and parsing the files
//! again.
//!
//! Invariants
//! * It names the index files it was made of, which never change, and is used only if all of them are still in the
//!   vault: what a removed one listed may have been removed, too.
//! * It is sealed with the vault's key, so it cannot be forged, and a damaged one is not used.
//! * It does not contain packs that a prune has marked. Operations that remove or verify packs read the index files
//!   themselves.
//!
//! On failure: a table that cannot be read or written costs time, never a run.

use std::cmp::Ordering;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracing::debug;

use super::Vault;
use super::pack_blob::{PackBlobKind, PackBlobLocation};
use crate::object_id::VaultObjectId;

const INDEX_TABLE_MAGIC: &[u8; 8] = b"tympidx1";
const TABLE_ID_BYTES: usize = 32;
const TABLE_ENTRY_BYTES: usize = TABLE_ID_BYTES + 16;
/// The name of the table file.
const TABLE_FILE_NAME: &str = "index.table";
/// Prefix of the name of a table that is being written.
const UNFINISHED_PREFIX: &str = ".index.table-";
/// Age after which an unfinished table counts as abandoned by a killed process.
const ABANDONED_AGE: Duration = Duration::from_hours(24);
/// Number of interpolation steps of a search.
const INTERPOLATION_STEPS: usize = 2;
/// Number of entries on each side of the last interpolated position that are searched first.
const PROBE_RADIUS: usize = 8;
/// Minimum number of blobs for a table; fewer are read from JSON in about the time that opening a table takes.
const MIN_TABLE_BLOBS: usize = 1_000;

/// A blob and its location.
pub(super) type IndexTableEntry = (VaultObjectId, PackBlobLocation);

/// A table in memory.
#[derive(Debug)]
pub(super) struct VaultIndexTable {
    plain: Vec<u8>,
    /// The index files that it covers, ascending.
    pub(super) files: Vec<VaultObjectId>,
    /// The packs, by the numbers that the entries use.
    pub(super) packs: Vec<VaultObjectId>,
    /// The offsets of the piece entries, of the folder entries, and of their end.
    section_offsets: [usize; 3],
}

impl VaultIndexTable {
    /// Decodes a table; `None` if it is invalid.
    pub(super) fn parse(plain: Vec<u8>) -> Option<Self> {
        let mut rest = plain.strip_prefix(INDEX_TABLE_MAGIC)?;
        let files = read_ids(&mut rest)?;
        let packs = read_ids(&mut rest)?;
        let (data, trees) = (read_count(&mut rest)?, read_count(&mut rest)?);
        let first = plain.len() - rest.len();
        let second = first.checked_add(data.checked_mul(TABLE_ENTRY_BYTES)?)?;
        let end = second.checked_add(trees.checked_mul(TABLE_ENTRY_BYTES)?)?;
        let is_whole = end == plain.len() && files.is_sorted();
        is_whole.then_some(Self { files, packs, section_offsets: [first, second, end], plain })
    }

    /// Encodes a table of the given files, packs and entries: those of pieces and those of folders, `most` at most.
    /// They are sorted in the output buffer, as a large vault has many.
    pub(super) fn encode(
        (files, packs): (&[VaultObjectId], &[VaultObjectId]),
        most: usize,
        entries: [impl Iterator<Item = IndexTableEntry>; 2],
    ) -> Vec<u8> {
        let ids = TABLE_ID_BYTES * (files.len() + packs.len());
        let mut out =
            Vec::with_capacity(INDEX_TABLE_MAGIC.len() + 16 + ids + TABLE_ENTRY_BYTES * most);
        out.extend_from_slice(INDEX_TABLE_MAGIC);
        for ids in [files, packs] {
            push_count(&mut out, ids.len());
            ids.iter().for_each(|id| out.extend_from_slice(id.as_bytes()));
        }
        let counts_at = out.len();
        // Filled in when all entries have been written.
        out.extend_from_slice(&[0; 8]);
        let mut counts = Vec::with_capacity(8);
        for entries in entries {
            let begin = out.len();
            for (id, location) in entries {
                out.extend_from_slice(id.as_bytes());
                for number in
                    [location.pack, location.offset, location.length, location.uncompressed_length]
                {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
            let written = out.get_mut(begin..).unwrap_or_default();
            let (written, _) = written.as_chunks_mut::<TABLE_ENTRY_BYTES>();
            // By id, which is the first field of each.
            written.sort_unstable();
            push_count(&mut counts, written.len());
        }
        if let Some(counts_field) = out.get_mut(counts_at..counts_at + counts.len()) {
            counts_field.copy_from_slice(&counts);
        }
        out
    }

    fn entries(&self, kind: PackBlobKind) -> &[[u8; TABLE_ENTRY_BYTES]] {
        let [first, second, end] = self.section_offsets;
        let range = match kind {
            PackBlobKind::Data => first..second,
            PackBlobKind::Tree => second..end,
        };
        self.plain.get(range).unwrap_or_default().as_chunks().0
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries(PackBlobKind::Data).len() + self.entries(PackBlobKind::Tree).len()
    }

    /// Finds a blob.
    pub(super) fn find(&self, kind: PackBlobKind, id: &VaultObjectId) -> Option<PackBlobLocation> {
        let entries = narrow_to_neighborhood(self.entries(kind), id);
        let position =
            entries.binary_search_by(|entry| decode_entry_id(entry).cmp(id.as_bytes())).ok()?;
        entries.get(position).map(decode_entry_location)
    }

    /// Lists all blobs of a kind, by ascending id.
    pub(super) fn blob_locations(
        &self,
        kind: PackBlobKind,
    ) -> impl Iterator<Item = (VaultObjectId, PackBlobLocation)> + '_ {
        self.entries(kind).iter().map(|entry| {
            (VaultObjectId::from_bytes(*decode_entry_id(entry)), decode_entry_location(entry))
        })
    }
}

/// Returns a small range of entries that includes the requested one, if it exists. Ids are hashes, which are uniformly
/// distributed: the first bytes give an approximate position, and the entries there a closer one.
fn narrow_to_neighborhood<'a>(
    entries: &'a [[u8; TABLE_ENTRY_BYTES]],
    id: &VaultObjectId,
) -> &'a [[u8; TABLE_ENTRY_BYTES]] {
    let prefix = id_prefix(id.as_bytes());
    let last = entries.len().saturating_sub(1);
    let mut guess = interpolate_position(prefix, entries.len()).min(last);
    for _ in 0..INTERPOLATION_STEPS {
        let there = entries.get(guess).map_or(prefix, |entry| id_prefix(decode_entry_id(entry)));
        let away = interpolate_position(prefix.abs_diff(there), entries.len());
        guess = if there > prefix { guess.saturating_sub(away) } else { guess + away };
        guess = guess.min(last);
    }
    // Whatever the estimate, the id is between two entries, one not above it and one not below it.
    let order = |position: usize| {
        entries.get(position).map(|entry| decode_entry_id(entry).cmp(id.as_bytes()))
    };
    let mut width = PROBE_RADIUS;
    loop {
        let (start, end) = (guess.saturating_sub(width), (guess + width).min(last));
        let is_below = start == 0 || order(start).is_none_or(Ordering::is_le);
        let is_above = end == last || order(end).is_none_or(Ordering::is_ge);
        if is_below && is_above {
            return entries.get(start..=end).unwrap_or_default();
        }
        width *= 4;
    }
}

/// Returns the first bytes of an id as an integer.
fn id_prefix(id: &[u8; TABLE_ID_BYTES]) -> u64 {
    id.first_chunk().map_or(0, |head| u64::from_be_bytes(*head))
}

/// Returns how many of `entries` uniformly distributed entries are expected below a number.
fn interpolate_position(number: u64, entries: usize) -> usize {
    let below = (u128::from(number) * entries as u128) >> 64;
    usize::try_from(below).unwrap_or(usize::MAX)
}

fn decode_entry_id(entry: &[u8; TABLE_ENTRY_BYTES]) -> &[u8; TABLE_ID_BYTES] {
    entry.first_chunk().unwrap_or(&[0; TABLE_ID_BYTES])
}

fn decode_entry_location(entry: &[u8; TABLE_ENTRY_BYTES]) -> PackBlobLocation {
    let (numbers, _) = entry.last_chunk::<16>().unwrap_or(&[0; 16]).as_chunks::<4>();
    let mut numbers = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let mut next = || numbers.next().unwrap_or(0);
    PackBlobLocation { pack: next(), offset: next(), length: next(), uncompressed_length: next() }
}

fn read_count(rest: &mut &[u8]) -> Option<usize> {
    let (count, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*count)).ok()
}

fn read_ids(rest: &mut &[u8]) -> Option<Vec<VaultObjectId>> {
    let count = read_count(rest)?;
    let (ids, after) = rest.split_at_checked(count.checked_mul(TABLE_ID_BYTES)?)?;
    *rest = after;
    let (ids, _) = ids.as_chunks::<TABLE_ID_BYTES>();
    Some(ids.iter().map(|id| VaultObjectId::from_bytes(*id)).collect())
}

fn push_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// The folder of a vault's table.
#[derive(Clone, Debug)]
pub(super) struct IndexTableFile(pub(super) PathBuf);

impl IndexTableFile {
    /// Reads the table; `None` unless all index files that it covers are among `files`, which ascend. Also removes what
    /// killed runs left.
    pub(super) fn read(&self, vault: &Vault, files: &[VaultObjectId]) -> Option<VaultIndexTable> {
        remove_abandoned_tables(&self.0, SystemTime::now());
        let sealed = fs::read(self.0.join(TABLE_FILE_NAME)).ok()?;
        let table = vault.sealing().open_bytes(sealed).and_then(VaultIndexTable::parse);
        let is_there = |file: &VaultObjectId| files.binary_search(file).is_ok();
        let table = table.filter(|table| table.files.iter().all(is_there));
        if table.is_none() {
            debug!(file = %self.0.display(), "index table is out of date");
        }
        table
    }

    /// Returns true if it is worthwhile to rewrite a table, when `tabled_count` blobs are in the present one and `read` are
    /// not.
    pub(super) const fn is_rewrite_due(tabled_count: usize, read: usize) -> bool {
        read > MIN_TABLE_BLOBS && read > tabled_count / 8
    }

    /// Stores a table for later runs.
    pub(super) fn write(&self, vault: &Vault, plain: Vec<u8>) {
        if let Err(error) = self.store_table(vault, plain) {
            debug!(file = %self.0.display(), %error, "cannot store the index table");
        }
    }

    fn store_table(&self, vault: &Vault, mut body: Vec<u8>) -> io::Result<()> {
        // In place, as a large vault's table is large.
        let (before, after) =
            vault.sealing().key().seal_in_place(&mut body).map_err(io::Error::other)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        // Not synced, because the file has no value if a crash damages it.
        let mut file = tempfile::Builder::new().prefix(UNFINISHED_PREFIX).tempfile_in(&self.0)?;
        for part in [before.as_slice(), &body, &after] {
            file.write_all(part)?;
        }
        file.persist(self.0.join(TABLE_FILE_NAME))?;
        Ok(())
    }
}

/// Removes unfinished tables that killed runs left in a folder, on a best-effort basis.
fn remove_abandoned_tables(folder: &Path, now: SystemTime) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(UNFINISHED_PREFIX.as_bytes()) {
            continue;
        }
        // Another run may have removed or finished it.
        let Ok(written) = entry.metadata().and_then(|facts| facts.modified()) else { continue };
        if now.duration_since(written).unwrap_or_default() > ABANDONED_AGE {
            fs::remove_file(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u32) -> PackBlobLocation {
        PackBlobLocation {
            pack: number % 3,
            offset: number,
            length: number + 40,
            uncompressed_length: number * 2,
        }
    }

    #[test]
    fn all_that_is_in_a_table_is_found_and_nothing_else() {
        let id = |number: u32| VaultObjectId::of(&number.to_le_bytes());
        for (data, trees) in [(0, 0), (1, 0), (0, 1), (500, 70)] {
            let unsorted = |from: u32, count: u32| {
                (from..from + count).map(|value| (id(value), place(value))).collect::<Vec<_>>()
            };
            let mut files = vec![id(90_001), id(90_002)];
            files.sort_unstable();
            let packs = [id(90_003), id(90_004), id(90_005)];
            let (mut data_entries, mut others) = (unsorted(0, data), unsorted(1_000, trees));
            let most = (data + trees) as usize;
            let entries = [&data_entries, &others].map(|entries| entries.iter().copied());
            let plain = VaultIndexTable::encode((&files, &packs), most, entries);
            // The buffer was allocated at full size: growing it would hold two copies for a moment.
            assert_eq!(plain.capacity(), plain.len());
            let table = VaultIndexTable::parse(plain.clone()).unwrap();
            data_entries.sort_unstable_by_key(|(id, _)| *id);
            others.sort_unstable_by_key(|(id, _)| *id);
            assert_eq!((table.files.as_slice(), table.packs.as_slice()), (&files[..], &packs[..]));
            assert_eq!(table.len(), (data + trees) as usize);
            for (kind, all, absent_entries) in [
                (PackBlobKind::Data, &data_entries, &others),
                (PackBlobKind::Tree, &others, &data_entries),
            ] {
                for (id, location) in all {
                    let found_location = table.find(kind, id).unwrap();
                    assert_eq!(format!("{found_location:?}"), format!("{location:?}"));
                }
                assert!(absent_entries.iter().all(|(id, _)| table.find(kind, id).is_none()));
                assert!(
                    table.blob_locations(kind).map(|(id, _)| id).eq(all.iter().map(|(id, _)| *id))
                );
            }
            for length in 0..plain.len() {
                assert!(
                    VaultIndexTable::parse(plain[..length].to_vec()).is_none(),
                    "cut at {length}"
                );
            }
        }
    }

    /// Ids need not be uniformly distributed: a user who chooses the saved data can choose them.
    #[test]
    fn ids_that_begin_alike_are_found_as_well() {
        let spread = |number: u32| VaultObjectId::of(&number.to_le_bytes());
        let alike = |head: u64| {
            move |number: u32| {
                let mut bytes = *spread(number).as_bytes();
                bytes[..8].copy_from_slice(&head.to_be_bytes());
                VaultObjectId::from_bytes(bytes)
            }
        };
        let low = (0..2_000).map(alike(0)).chain((0..3).map(spread));
        let high = (0..2_000).map(alike(u64::MAX)).chain((0..3).map(spread));
        let within = (0..2_000).map(alike(1 << 63)).chain((0..2_000).map(spread));
        let ends = [[0; 32], [0xff; 32]].map(VaultObjectId::from_bytes);
        for ids in [low.collect::<Vec<_>>(), high.collect(), within.collect(), ends.to_vec()] {
            let (here, away) = ids.split_at(ids.len() / 2);
            let entries: Vec<IndexTableEntry> =
                here.iter().copied().zip((0..).map(place)).collect();
            let entries = [entries, Vec::new()].map(Vec::into_iter);
            let plain = VaultIndexTable::encode((&[], &[]), here.len(), entries);
            let table = VaultIndexTable::parse(plain).unwrap();
            for (id, number) in here.iter().zip(0..) {
                let location = table.find(PackBlobKind::Data, id).unwrap();
                assert_eq!(location.offset, place(number).offset, "{id:?}");
            }
            assert!(away.iter().all(|id| table.find(PackBlobKind::Data, id).is_none()));
        }
    }

    /// The cost of a search hardly depends on the size of the table.
    #[test]
    fn an_entry_is_looked_for_among_few() {
        for count in [100_u32, 10_000, 100_000] {
            let ids = (0..count).map(|number| VaultObjectId::of(&number.to_le_bytes()));
            let mut entries: Vec<[u8; TABLE_ENTRY_BYTES]> = ids
                .map(|id| {
                    let mut entry = [0; TABLE_ENTRY_BYTES];
                    entry[..TABLE_ID_BYTES].copy_from_slice(id.as_bytes());
                    entry
                })
                .collect();
            entries.sort_unstable();
            let looked_at = |entry| {
                narrow_to_neighborhood(
                    &entries,
                    &VaultObjectId::from_bytes(*decode_entry_id(entry)),
                )
                .len()
            };
            let sum: usize = entries.iter().map(looked_at).sum();
            assert!(sum / entries.len() < 40, "{count}: {sum}");
        }
    }

    #[test]
    fn a_table_is_written_when_much_is_new() {
        for (tabled_count, read, is_due) in
            [(0, 1_000, false), (0, 1_001, true), (100_000, 12_500, false), (100_000, 12_501, true)]
        {
            assert_eq!(
                IndexTableFile::is_rewrite_due(tabled_count, read),
                is_due,
                "{tabled_count}, {read}"
            );
        }
    }
}
