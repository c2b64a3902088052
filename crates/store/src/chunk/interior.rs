//! An interior chunk in place: children found by separators.

use std::cmp::Ordering;

use bytes::Bytes;

use super::frame::{
    CHUNK_HEADER_BYTES, CHUNK_REF_BYTES, ChunkFrame, ChunkKind, encode_chunk_header, encode_u16,
};
use super::leaf::{
    LEAF_FIXED_BYTES, check_column_ends, column_end, compare_prefixed_key, split_u16_column,
};
use super::record::{MAX_KEY_BYTES, common_prefix_length};
use crate::id::ChunkId;

const CHILD_COUNT_BYTES: usize = 8;
const SEPARATOR_END_BYTES: usize = 2;
/// The maximum level of a tree; larger than a tree of any possible size needs.
pub(crate) const MAX_TREE_LEVEL: u8 = 40;

/// A child as its parent lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeChild {
    pub(crate) id: ChunkId,
    /// Number of records below the child.
    pub(crate) record_count: u64,
}

/// The parts of an interior chunk.
#[derive(Clone, Copy)]
pub(crate) struct InteriorView<'a> {
    chunk: &'a ChunkFrame,
    level: u8,
    prefix: &'a [u8],
    separator_ends: &'a [[u8; 2]],
    record_counts: &'a [[u8; CHILD_COUNT_BYTES]],
    separators: &'a [u8],
}

impl<'a> InteriorView<'a> {
    /// Views a chunk of kind interior, which [`check_interior_chunk`] has accepted.
    pub(crate) fn view_chunk(chunk: &'a ChunkFrame) -> Self {
        Self::split_payload(chunk).unwrap_or(Self {
            chunk,
            level: 1,
            prefix: &[],
            separator_ends: &[],
            record_counts: &[],
            separators: &[],
        })
    }

    fn split_payload(chunk: &'a ChunkFrame) -> Option<Self> {
        let (&[level, _, n0, n1, p0, p1], rest) =
            chunk.payload().split_first_chunk::<LEAF_FIXED_BYTES>()?;
        let count = usize::from(u16::from_le_bytes([n0, n1]));
        let (prefix, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([p0, p1])))?;
        let (ends, rest) = split_u16_column(rest, count.checked_sub(1)?)?;
        let (counts, separators) = rest.split_at_checked(count * CHILD_COUNT_BYTES)?;
        Some(Self {
            chunk,
            level,
            prefix,
            separator_ends: ends,
            record_counts: counts.as_chunks::<CHILD_COUNT_BYTES>().0,
            separators,
        })
    }

    /// Returns the level, 1 or more.
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Returns the number of children.
    pub(crate) fn len(&self) -> usize {
        self.record_counts.len()
    }

    /// Returns the id of a child.
    pub(crate) fn child(&self, index: usize) -> ChunkId {
        let id = self.chunk.chunk_ref(index);
        debug_assert!(id.is_some(), "the caller stays within the children");
        id.unwrap_or(ChunkId::from_bytes([0; 32]))
    }

    /// Returns the number of records below a child.
    pub(crate) fn child_record_count(&self, index: usize) -> u64 {
        self.record_counts.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns the number of records below this chunk.
    pub(crate) fn total_records(&self) -> u64 {
        self.records_before(self.len())
    }

    /// Returns the number of records below the children before child `index`.
    pub(crate) fn records_before(&self, index: usize) -> u64 {
        (0..index).fold(0, |sum, index| sum.saturating_add(self.child_record_count(index)))
    }

    /// Writes the separator before child `index` (1 or more) into `key`.
    pub(crate) fn write_separator(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix);
        key.extend_from_slice(self.separator_suffix(index));
    }

    /// Compares the separator before child `index` (1 or more) with a key.
    pub(crate) fn compare_separator(&self, index: usize, key: &[u8]) -> Ordering {
        compare_prefixed_key(self.prefix, self.separator_suffix(index), key)
    }

    /// Returns the separator before child `index`, 1 or more, without the prefix.
    fn separator_suffix(&self, index: usize) -> &'a [u8] {
        let Some(separator_index) = index.checked_sub(1) else {
            return &[];
        };
        let start = separator_index
            .checked_sub(1)
            .map_or(0, |before| column_end(self.separator_ends, before));
        self.separators
            .get(start..column_end(self.separator_ends, separator_index))
            .unwrap_or_default()
    }

    /// Returns the index of the child that contains `key`, if any child does.
    pub(crate) fn find_child(&self, key: &[u8]) -> usize {
        if self.separator_ends.is_empty() {
            return 0;
        }
        let Some(rest) = key.strip_prefix(self.prefix) else {
            return if key < self.prefix { 0 } else { self.len() - 1 };
        };
        // Searches for the number of separators that are not greater than the key.
        let (mut low, mut high) = (0, self.len() - 1);
        while low < high {
            let middle = low.midpoint(high);
            match self.separator_suffix(middle + 1).cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return middle + 1,
            }
        }
        low
    }
}

impl InteriorView<'_> {
    /// Returns the index of the last child that can have keys below `key`.
    pub(crate) fn find_last_child_below(&self, key: &[u8]) -> usize {
        let index = self.find_child(key);
        let is_at_separator = index > 0 && self.compare_separator(index, key) == Ordering::Equal;
        index - usize::from(is_at_separator)
    }
}

/// Checks the structure of an interior chunk; the error states the fault.
pub(super) fn check_interior_chunk(chunk: &ChunkFrame) -> Result<(), &'static str> {
    let interior = InteriorView::split_payload(chunk)
        .ok_or("the columns of an interior chunk are cut off or empty")?;
    if !(1..=MAX_TREE_LEVEL).contains(&interior.level) || chunk.payload().get(1) != Some(&0) {
        return Err("an interior chunk does not begin with its level and a zero");
    }
    if interior.len() != chunk.chunk_ref_count() || chunk.blob_ref_count() > 0 {
        return Err("an interior chunk refers to something other than its children");
    }
    if check_column_ends(interior.separator_ends)? != interior.separators.len() {
        return Err("the separators do not fill an interior chunk");
    }
    if interior.prefix.len() > MAX_KEY_BYTES {
        return Err("an interior chunk has a prefix longer than the maximum key");
    }
    let is_sorted = (2..interior.len())
        .all(|index| interior.separator_suffix(index - 1) < interior.separator_suffix(index));
    if !is_sorted {
        return Err("separators are not in ascending order");
    }
    Ok(())
}

/// An interior chunk under construction. The separator before its first child is stored separately, for the parent.
#[derive(Default)]
pub(crate) struct InteriorBuilder {
    level: u8,
    first_separator: Vec<u8>,
    separators: Vec<u8>,
    separator_ends: Vec<usize>,
    children: Vec<ChunkId>,
    record_counts: Vec<u64>,
    prefix_length: usize,
}

impl InteriorBuilder {
    pub(crate) fn new(level: u8) -> Self {
        Self { level, ..Self::default() }
    }

    /// Adds a child with the separator before it.
    pub(crate) fn push(&mut self, separator: &[u8], child: TreeChild) {
        if self.children.is_empty() {
            self.first_separator.clear();
            self.first_separator.extend_from_slice(separator);
        } else {
            self.prefix_length = match self.separator_ends.first() {
                None => separator.len(),
                Some(end) => {
                    let first = self.separators.get(..self.prefix_length.min(*end));
                    common_prefix_length(first.unwrap_or_default(), separator)
                }
            };
            self.separators.extend_from_slice(separator);
            self.separator_ends.push(self.separators.len());
        }
        self.children.push(child.id);
        self.record_counts.push(child.record_count);
    }

    /// Returns the number of children.
    pub(crate) fn len(&self) -> usize {
        self.children.len()
    }

    /// Returns the separator before the first child.
    pub(crate) fn first_separator(&self) -> &[u8] {
        &self.first_separator
    }

    /// Returns the length of the chunk in bytes if it ended here.
    pub(crate) fn encoded_size(&self) -> usize {
        CHUNK_HEADER_BYTES
            + LEAF_FIXED_BYTES
            + self.len() * (CHUNK_REF_BYTES + CHILD_COUNT_BYTES)
            + self.prefix_length
            + self.separator_ends.len() * SEPARATOR_END_BYTES
            + self.separators.len()
            - self.separator_ends.len() * self.prefix_length
    }

    /// Returns the size without prefix sharing, which bounds a chunk whatever its separators share.
    pub(crate) fn unshared_size(&self) -> usize {
        self.len() * (CHUNK_REF_BYTES + CHILD_COUNT_BYTES + SEPARATOR_END_BYTES)
            + self.separators.len()
    }

    /// Encodes the chunk and starts the next one. Returns its bytes and the number of records below it.
    pub(crate) fn finish_chunk(&mut self) -> (Bytes, u64) {
        let size = self.encoded_size();
        let payload = size - CHUNK_HEADER_BYTES - self.len() * CHUNK_REF_BYTES;
        let mut bytes = encode_chunk_header(ChunkKind::Interior, &self.children, &[], payload);
        bytes.extend_from_slice(&[self.level, 0]);
        bytes.extend_from_slice(&encode_u16(self.len()));
        bytes.extend_from_slice(&encode_u16(self.prefix_length));
        bytes.extend_from_slice(self.separators.get(..self.prefix_length).unwrap_or_default());
        for (index, end) in self.separator_ends.iter().enumerate() {
            bytes.extend_from_slice(&encode_u16(end - (index + 1) * self.prefix_length));
        }
        for count in &self.record_counts {
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        let mut start = 0;
        for end in &self.separator_ends {
            let suffix = self.separators.get(start + self.prefix_length..*end);
            bytes.extend_from_slice(suffix.unwrap_or_default());
            start = *end;
        }
        debug_assert_eq!(bytes.len(), size, "the size that the splitter sees is exact");
        // The counts of a damaged tree can have any value.
        let total = self.record_counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        self.separators.clear();
        self.separator_ends.clear();
        self.children.clear();
        self.record_counts.clear();
        self.prefix_length = 0;
        (Bytes::from(bytes), total)
    }
}
