//! An interior chunk in place: children found by separators.

use std::cmp::Ordering;

use bytes::Bytes;

use super::leaf::{FIXED_BYTES, check_ends, column, compare, end};
use super::{MAX_KEY_BYTES, common_prefix};
use crate::chunk::{self, Chunk, ChunkKind};
use crate::id::ChunkId;

const COUNT_BYTES: usize = 8;
const SEPARATOR_BYTES: usize = 2;
/// Levels that a tree of any possible size needs, and more.
pub(super) const MAX_LEVEL: u8 = 40;

/// A child as its parent lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) id: ChunkId,
    /// Records below it.
    pub(super) count: u64,
}

/// The parts of an interior chunk.
#[derive(Clone, Copy)]
pub(super) struct Interior<'a> {
    chunk: &'a Chunk,
    level: u8,
    prefix: &'a [u8],
    ends: &'a [[u8; 2]],
    counts: &'a [[u8; COUNT_BYTES]],
    separators: &'a [u8],
}

impl<'a> Interior<'a> {
    /// Views a chunk of kind interior, which [`check`] has accepted.
    pub(super) fn view(chunk: &'a Chunk) -> Self {
        Self::split(chunk).unwrap_or(Self {
            chunk,
            level: 1,
            prefix: &[],
            ends: &[],
            counts: &[],
            separators: &[],
        })
    }

    fn split(chunk: &'a Chunk) -> Option<Self> {
        let (&[level, _, n0, n1, p0, p1], rest) =
            chunk.payload().split_first_chunk::<FIXED_BYTES>()?;
        let count = usize::from(u16::from_le_bytes([n0, n1]));
        let (prefix, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([p0, p1])))?;
        let (ends, rest) = column(rest, count.checked_sub(1)?)?;
        let (counts, separators) = rest.split_at_checked(count * COUNT_BYTES)?;
        Some(Self {
            chunk,
            level,
            prefix,
            ends,
            counts: counts.as_chunks::<COUNT_BYTES>().0,
            separators,
        })
    }

    /// Returns the level, 1 or more.
    pub(super) fn level(&self) -> u8 {
        self.level
    }

    /// Returns the number of children.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns the id of a child.
    pub(super) fn child(&self, index: usize) -> ChunkId {
        let id = self.chunk.chunk_ref(index);
        debug_assert!(id.is_some(), "the caller stays within the children");
        id.unwrap_or(ChunkId::from_bytes([0; 32]))
    }

    /// Returns the number of records below a child.
    pub(super) fn count(&self, index: usize) -> u64 {
        self.counts.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns the number of records below this chunk.
    pub(super) fn total(&self) -> u64 {
        self.count_before(self.len())
    }

    /// Returns the number of records below the children in front of child `index`.
    pub(super) fn count_before(&self, index: usize) -> u64 {
        (0..index).fold(0, |sum, index| sum.saturating_add(self.count(index)))
    }

    /// Writes the separator in front of child `index` (1 or more) into `key`.
    pub(super) fn separator_into(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix);
        key.extend_from_slice(self.suffix(index));
    }

    /// Compares the separator in front of child `index` (1 or more) with a key.
    pub(super) fn compare(&self, index: usize, key: &[u8]) -> Ordering {
        compare(self.prefix, self.suffix(index), key)
    }

    /// Returns the separator in front of child `index`, 1 or more, without the prefix.
    fn suffix(&self, index: usize) -> &'a [u8] {
        let Some(place) = index.checked_sub(1) else {
            return &[];
        };
        let start = place.checked_sub(1).map_or(0, |before| end(self.ends, before));
        self.separators.get(start..end(self.ends, place)).unwrap_or_default()
    }

    /// Returns the child below which `key` is, if it is anywhere.
    pub(super) fn find(&self, key: &[u8]) -> usize {
        if self.ends.is_empty() {
            return 0;
        }
        let Some(rest) = key.strip_prefix(self.prefix) else {
            return if key < self.prefix { 0 } else { self.len() - 1 };
        };
        // The number of separators that are not greater than the key.
        let (mut low, mut high) = (0, self.len() - 1);
        while low < high {
            let middle = low.midpoint(high);
            match self.suffix(middle + 1).cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return middle + 1,
            }
        }
        low
    }
}

impl Interior<'_> {
    /// Returns the last child that can have keys below `key`.
    pub(super) fn find_below(&self, key: &[u8]) -> usize {
        let index = self.find(key);
        let is_at_separator = index > 0 && self.compare(index, key) == Ordering::Equal;
        index - usize::from(is_at_separator)
    }
}

/// Checks the structure of an interior chunk.
pub(crate) fn check(chunk: &Chunk) -> Result<(), &'static str> {
    let interior =
        Interior::split(chunk).ok_or("the columns of an interior chunk are cut off or empty")?;
    if !(1..=MAX_LEVEL).contains(&interior.level) || chunk.payload().get(1) != Some(&0) {
        return Err("an interior chunk begins with its level and a zero");
    }
    if interior.len() != chunk.chunk_ref_count() || chunk.blob_ref_count() > 0 {
        return Err("an interior chunk refers to its children and nothing else");
    }
    if check_ends(interior.ends)? != interior.separators.len() {
        return Err("separators do not fill an interior chunk");
    }
    if interior.prefix.len() > MAX_KEY_BYTES {
        return Err("an interior chunk has a longer prefix than keys can have");
    }
    let is_sorted =
        (2..interior.len()).all(|index| interior.suffix(index - 1) < interior.suffix(index));
    if !is_sorted {
        return Err("separators are not in ascending order");
    }
    Ok(())
}

/// An interior chunk in the making. The separator in front of its first child is kept apart, for the parent.
#[derive(Default)]
pub(super) struct InteriorBuilder {
    level: u8,
    first: Vec<u8>,
    separators: Vec<u8>,
    ends: Vec<usize>,
    children: Vec<ChunkId>,
    counts: Vec<u64>,
    prefix: usize,
}

impl InteriorBuilder {
    pub(super) fn new(level: u8) -> Self {
        Self { level, ..Self::default() }
    }

    /// Adds a child with the separator in front of it.
    pub(super) fn push(&mut self, separator: &[u8], child: Child) {
        if self.children.is_empty() {
            self.first.clear();
            self.first.extend_from_slice(separator);
        } else {
            self.prefix = match self.ends.first() {
                None => separator.len(),
                Some(end) => {
                    let first = self.separators.get(..self.prefix.min(*end));
                    common_prefix(first.unwrap_or_default(), separator)
                }
            };
            self.separators.extend_from_slice(separator);
            self.ends.push(self.separators.len());
        }
        self.children.push(child.id);
        self.counts.push(child.count);
    }

    /// Returns the number of children.
    pub(super) fn len(&self) -> usize {
        self.children.len()
    }

    /// Returns the separator in front of the first child.
    pub(super) fn first(&self) -> &[u8] {
        &self.first
    }

    /// Returns the length of the chunk if it ended here.
    pub(super) fn size(&self) -> usize {
        chunk::HEADER_BYTES
            + FIXED_BYTES
            + self.len() * (chunk::CHUNK_REF_BYTES + COUNT_BYTES)
            + self.prefix
            + self.ends.len() * SEPARATOR_BYTES
            + self.separators.len()
            - self.ends.len() * self.prefix
    }

    /// Returns the sum that bounds a chunk whatever its separators share.
    pub(super) fn full_size(&self) -> usize {
        self.len() * (chunk::CHUNK_REF_BYTES + COUNT_BYTES + SEPARATOR_BYTES)
            + self.separators.len()
    }

    /// Encodes the chunk and starts the next one. Returns its bytes and the number of records below it.
    pub(super) fn finish(&mut self) -> (Bytes, u64) {
        let size = self.size();
        let payload = size - chunk::HEADER_BYTES - self.len() * chunk::CHUNK_REF_BYTES;
        let mut bytes = chunk::encode_header(ChunkKind::Interior, &self.children, &[], payload);
        bytes.extend_from_slice(&[self.level, 0]);
        bytes.extend_from_slice(&chunk::to_u16(self.len()));
        bytes.extend_from_slice(&chunk::to_u16(self.prefix));
        bytes.extend_from_slice(self.separators.get(..self.prefix).unwrap_or_default());
        for (index, end) in self.ends.iter().enumerate() {
            bytes.extend_from_slice(&chunk::to_u16(end - (index + 1) * self.prefix));
        }
        for count in &self.counts {
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        let mut start = 0;
        for end in &self.ends {
            let suffix = self.separators.get(start + self.prefix..*end);
            bytes.extend_from_slice(suffix.unwrap_or_default());
            start = *end;
        }
        debug_assert_eq!(bytes.len(), size, "the size that the splitter sees is exact");
        // Counts of a damaged tree can be anything.
        let total = self.counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        self.separators.clear();
        self.ends.clear();
        self.children.clear();
        self.counts.clear();
        self.prefix = 0;
        (Bytes::from(bytes), total)
    }
}
