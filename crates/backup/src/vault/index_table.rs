//! The table of an index: where each piece and folder is, in one sealed file here that is searched in place.
//!
//! In: what index files say, and a folder. Out: the same, without decompressing and parsing them again.
//!
//! Invariants
//! * It names the index files it was made of, which never change, and is used only where all of them are still in the vault:
//!   what one of them listed may be gone with it.
//! * It is sealed with the vault's key: nobody else makes one, and a damaged one is not used.
//! * What a prune has marked is not in it. Who removes or judges packs reads the index files themselves.
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
use super::index::{BlobKind, Place};
use crate::id::Id;

const MAGIC: &[u8; 8] = b"tympidx1";
const ID_BYTES: usize = 32;
const ENTRY_BYTES: usize = ID_BYTES + 16;
/// The table's file.
const TABLE: &str = "index.table";
/// What the name of one begins with that is being written.
const UNFINISHED: &str = ".index.table-";
/// Nobody writes a table for so long: whoever began it was killed.
const ABANDONED: Duration = Duration::from_hours(24);
/// How often a guess where an entry stands is made better by what stands there.
const BETTER_GUESSES: usize = 2;
/// An entry is looked for in so many before and after the last guess first.
const NEAR: usize = 8;
/// So many blobs are read from JSON in about the time that a table takes to be opened.
const WORTH_IT: usize = 1_000;

/// A blob, and where it is.
pub(super) type Entry = (Id, Place);

/// A table in memory.
#[derive(Debug)]
pub(super) struct IndexTable {
    plain: Vec<u8>,
    /// The index files it was made of, ascending.
    pub(super) files: Vec<Id>,
    /// The packs that its entries number.
    pub(super) packs: Vec<Id>,
    /// Where the entries of pieces begin, those of folders, and where they end.
    starts: [usize; 3],
}

impl IndexTable {
    /// Decodes a table; nothing if it is none.
    pub(super) fn parse(plain: Vec<u8>) -> Option<Self> {
        let mut rest = plain.strip_prefix(MAGIC)?;
        let files = take_ids(&mut rest)?;
        let packs = take_ids(&mut rest)?;
        let (data, trees) = (take_count(&mut rest)?, take_count(&mut rest)?);
        let first = plain.len() - rest.len();
        let second = first.checked_add(data.checked_mul(ENTRY_BYTES)?)?;
        let end = second.checked_add(trees.checked_mul(ENTRY_BYTES)?)?;
        let is_whole = end == plain.len() && files.is_sorted();
        is_whole.then_some(Self { files, packs, starts: [first, second, end], plain })
    }

    /// Encodes a table of these files, packs and entries: those of pieces and those of folders, `most` at most. They are
    /// sorted where they will be stored, as a large vault has many.
    pub(super) fn encode(
        (files, packs): (&[Id], &[Id]),
        most: usize,
        entries: [impl Iterator<Item = Entry>; 2],
    ) -> Vec<u8> {
        let ids = ID_BYTES * (files.len() + packs.len());
        let mut out = Vec::with_capacity(MAGIC.len() + 16 + ids + ENTRY_BYTES * most);
        out.extend_from_slice(MAGIC);
        for ids in [files, packs] {
            push_count(&mut out, ids.len());
            ids.iter().for_each(|id| out.extend_from_slice(id.as_bytes()));
        }
        let counts_at = out.len();
        // Known when all have been written.
        out.extend_from_slice(&[0; 8]);
        let mut counts = Vec::with_capacity(8);
        for entries in entries {
            let begin = out.len();
            for (id, place) in entries {
                out.extend_from_slice(id.as_bytes());
                for number in [place.pack, place.offset, place.length, place.raw] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
            let written = out.get_mut(begin..).unwrap_or_default();
            let (written, _) = written.as_chunks_mut::<ENTRY_BYTES>();
            // By id, which stands first in each.
            written.sort_unstable();
            push_count(&mut counts, written.len());
        }
        if let Some(place) = out.get_mut(counts_at..counts_at + counts.len()) {
            place.copy_from_slice(&counts);
        }
        out
    }

    fn entries(&self, kind: BlobKind) -> &[[u8; ENTRY_BYTES]] {
        let [first, second, end] = self.starts;
        let range = match kind {
            BlobKind::Data => first..second,
            BlobKind::Tree => second..end,
        };
        self.plain.get(range).unwrap_or_default().as_chunks().0
    }

    /// Returns how many entries there are.
    pub(super) fn len(&self) -> usize {
        self.entries(BlobKind::Data).len() + self.entries(BlobKind::Tree).len()
    }

    /// Finds a blob.
    pub(super) fn find(&self, kind: BlobKind, id: &Id) -> Option<Place> {
        let entries = around(self.entries(kind), id);
        let found = entries.binary_search_by(|entry| id_in(entry).cmp(id.as_bytes())).ok()?;
        entries.get(found).map(place_in)
    }

    /// Lists all blobs of a kind, by ascending id.
    pub(super) fn all(&self, kind: BlobKind) -> impl Iterator<Item = (Id, Place)> + '_ {
        self.entries(kind).iter().map(|entry| (Id::from_bytes(*id_in(entry)), place_in(entry)))
    }
}

/// Returns the few entries among which one is, if it is there at all. Ids are hashes, which spread evenly: so where one stands
/// follows from its first bytes, about, and from those of what stands there, more closely.
fn around<'a>(entries: &'a [[u8; ENTRY_BYTES]], id: &Id) -> &'a [[u8; ENTRY_BYTES]] {
    let wanted = head(id.as_bytes());
    let last = entries.len().saturating_sub(1);
    let mut guess = scaled(wanted, entries.len()).min(last);
    for _ in 0..BETTER_GUESSES {
        let there = entries.get(guess).map_or(wanted, |entry| head(id_in(entry)));
        let away = scaled(wanted.abs_diff(there), entries.len());
        guess = if there > wanted { guess.saturating_sub(away) } else { guess + away };
        guess = guess.min(last);
    }
    // Wherever the guess is, the id is between two entries, one not above it and one not below it.
    let order = |place: usize| entries.get(place).map(|entry| id_in(entry).cmp(id.as_bytes()));
    let mut width = NEAR;
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

/// Returns the first bytes of an id as a number.
fn head(id: &[u8; ID_BYTES]) -> u64 {
    id.first_chunk().map_or(0, |head| u64::from_be_bytes(*head))
}

/// Returns how many of so many entries stand below a number, where all numbers are alike.
fn scaled(number: u64, entries: usize) -> usize {
    let below = (u128::from(number) * entries as u128) >> 64;
    usize::try_from(below).unwrap_or(usize::MAX)
}

fn id_in(entry: &[u8; ENTRY_BYTES]) -> &[u8; ID_BYTES] {
    entry.first_chunk().unwrap_or(&[0; ID_BYTES])
}

fn place_in(entry: &[u8; ENTRY_BYTES]) -> Place {
    let (numbers, _) = entry.last_chunk::<16>().unwrap_or(&[0; 16]).as_chunks::<4>();
    let mut numbers = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let mut next = || numbers.next().unwrap_or(0);
    Place { pack: next(), offset: next(), length: next(), raw: next() }
}

fn take_count(rest: &mut &[u8]) -> Option<usize> {
    let (count, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*count)).ok()
}

fn take_ids(rest: &mut &[u8]) -> Option<Vec<Id>> {
    let count = take_count(rest)?;
    let (ids, after) = rest.split_at_checked(count.checked_mul(ID_BYTES)?)?;
    *rest = after;
    let (ids, _) = ids.as_chunks::<ID_BYTES>();
    Some(ids.iter().map(|id| Id::from_bytes(*id)).collect())
}

fn push_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// The folder in which the table of a vault lies.
#[derive(Clone, Debug)]
pub(super) struct IndexTableFile(pub(super) PathBuf);

impl IndexTableFile {
    /// Reads the table; nothing unless all index files it was made of are among `files`, which ascend. What killed runs left
    /// beside it goes.
    pub(super) fn read(&self, vault: &Vault, files: &[Id]) -> Option<IndexTable> {
        sweep(&self.0, SystemTime::now());
        let sealed = fs::read(self.0.join(TABLE)).ok()?;
        let table = vault.open_sealed(sealed).and_then(IndexTable::parse);
        let is_there = |file: &Id| files.binary_search(file).is_ok();
        let table = table.filter(|table| table.files.iter().all(is_there));
        if table.is_none() {
            debug!(file = %self.0.display(), "the table of the index is out of date");
        }
        table
    }

    /// Tells whether it pays to write a table anew, of which `known` blobs are in the present one and `read` are not.
    pub(super) const fn is_due(known: usize, read: usize) -> bool {
        read > WORTH_IT && read > known / 8
    }

    /// Keeps a table for later runs.
    pub(super) fn write(&self, vault: &Vault, plain: Vec<u8>) {
        if let Err(error) = self.store(vault, plain) {
            debug!(file = %self.0.display(), %error, "the table of the index is not kept");
        }
    }

    fn store(&self, vault: &Vault, mut body: Vec<u8>) -> io::Result<()> {
        // Where they are, as a large vault's table is large.
        let (before, after) = vault.key.seal_in_place(&mut body).map_err(io::Error::other)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        // It is worth nothing after a crash that damages it, so it is not synced.
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.0)?;
        for part in [before.as_slice(), &body, &after] {
            file.write_all(part)?;
        }
        file.persist(self.0.join(TABLE))?;
        Ok(())
    }
}

/// Removes what runs left in a folder that were killed while they wrote a table, as far as that can be done now.
fn sweep(folder: &Path, now: SystemTime) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            continue;
        }
        // Another run may have removed it, or finished.
        let Ok(written) = entry.metadata().and_then(|facts| facts.modified()) else { continue };
        if now.duration_since(written).unwrap_or_default() > ABANDONED {
            fs::remove_file(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u32) -> Place {
        Place { pack: number % 3, offset: number, length: number + 40, raw: number * 2 }
    }

    #[test]
    fn all_that_is_in_a_table_is_found_and_nothing_else() {
        let id = |number: u32| Id::of(&number.to_le_bytes());
        for (data, trees) in [(0, 0), (1, 0), (0, 1), (500, 70)] {
            let unsorted = |from: u32, count: u32| {
                (from..from + count).map(|one| (id(one), place(one))).collect::<Vec<_>>()
            };
            let mut files = vec![id(90_001), id(90_002)];
            files.sort_unstable();
            let packs = [id(90_003), id(90_004), id(90_005)];
            let (mut some, mut others) = (unsorted(0, data), unsorted(1_000, trees));
            let most = (data + trees) as usize;
            let entries = [&some, &others].map(|entries| entries.iter().copied());
            let plain = IndexTable::encode((&files, &packs), most, entries);
            // There was room for all from the begin: what grows is there twice for a moment.
            assert_eq!(plain.capacity(), plain.len());
            let table = IndexTable::parse(plain.clone()).unwrap();
            some.sort_unstable_by_key(|(id, _)| *id);
            others.sort_unstable_by_key(|(id, _)| *id);
            assert_eq!((table.files.as_slice(), table.packs.as_slice()), (&files[..], &packs[..]));
            assert_eq!(table.len(), (data + trees) as usize);
            for (kind, all, other) in
                [(BlobKind::Data, &some, &others), (BlobKind::Tree, &others, &some)]
            {
                for (id, place) in all {
                    let found = table.find(kind, id).unwrap();
                    assert_eq!(format!("{found:?}"), format!("{place:?}"));
                }
                assert!(other.iter().all(|(id, _)| table.find(kind, id).is_none()));
                assert!(table.all(kind).map(|(id, _)| id).eq(all.iter().map(|(id, _)| *id)));
            }
            for length in 0..plain.len() {
                assert!(IndexTable::parse(plain[..length].to_vec()).is_none(), "cut at {length}");
            }
        }
    }

    /// Whoever can choose what is saved can choose ids that do not spread evenly.
    #[test]
    fn ids_that_begin_alike_are_found_as_well() {
        let spread = |number: u32| Id::of(&number.to_le_bytes());
        let alike = |head: u64| {
            move |number: u32| {
                let mut bytes = *spread(number).as_bytes();
                bytes[..8].copy_from_slice(&head.to_be_bytes());
                Id::from_bytes(bytes)
            }
        };
        let low = (0..2_000).map(alike(0)).chain((0..3).map(spread));
        let high = (0..2_000).map(alike(u64::MAX)).chain((0..3).map(spread));
        let within = (0..2_000).map(alike(1 << 63)).chain((0..2_000).map(spread));
        let ends = [[0; 32], [0xff; 32]].map(Id::from_bytes);
        for ids in [low.collect::<Vec<_>>(), high.collect(), within.collect(), ends.to_vec()] {
            let (here, away) = ids.split_at(ids.len() / 2);
            let entries: Vec<Entry> = here.iter().copied().zip((0..).map(place)).collect();
            let entries = [entries, Vec::new()].map(Vec::into_iter);
            let plain = IndexTable::encode((&[], &[]), here.len(), entries);
            let table = IndexTable::parse(plain).unwrap();
            for (id, number) in here.iter().zip(0..) {
                let found = table.find(BlobKind::Data, id).unwrap();
                assert_eq!(found.offset, place(number).offset, "{id:?}");
            }
            assert!(away.iter().all(|id| table.find(BlobKind::Data, id).is_none()));
        }
    }

    /// What a search costs hardly depends on how much there is.
    #[test]
    fn an_entry_is_looked_for_among_few() {
        for count in [100_u32, 10_000, 100_000] {
            let ids = (0..count).map(|number| Id::of(&number.to_le_bytes()));
            let mut entries: Vec<[u8; ENTRY_BYTES]> = ids
                .map(|id| {
                    let mut entry = [0; ENTRY_BYTES];
                    entry[..ID_BYTES].copy_from_slice(id.as_bytes());
                    entry
                })
                .collect();
            entries.sort_unstable();
            let looked_at = |entry| around(&entries, &Id::from_bytes(*id_in(entry))).len();
            let sum: usize = entries.iter().map(looked_at).sum();
            assert!(sum / entries.len() < 40, "{count}: {sum}");
        }
    }

    #[test]
    fn a_table_is_written_when_much_is_new() {
        for (known, read, is_due) in
            [(0, 1_000, false), (0, 1_001, true), (100_000, 12_500, false), (100_000, 12_501, true)]
        {
            assert_eq!(IndexTableFile::is_due(known, read), is_due, "{known}, {read}");
        }
    }
}
