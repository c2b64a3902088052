//! A leaf in place: records searched and read without decoding the others.

use std::cmp::Ordering;

use bytes::Bytes;

use super::frame::{
    CHUNK_HEADER_BYTES, CHUNK_REF_BYTES, ChunkFrame, ChunkKind, encode_chunk_header, encode_u16,
};
use super::record::{MAX_KEY_BYTES, MapValue, common_prefix_length};
use crate::id::ChunkId;

/// Level, zero, count, prefix length.
pub(super) const LEAF_FIXED_BYTES: usize = 6;
/// Key end, value end.
const ENTRY_COLUMNS_BYTES: usize = 4;
const BODY_COLUMN_BYTES: usize = 2;

/// The parts of a leaf chunk.
#[derive(Clone, Copy)]
pub(crate) struct LeafView<'a> {
    chunk: &'a ChunkFrame,
    prefix: &'a [u8],
    key_ends: &'a [[u8; 2]],
    value_ends: &'a [[u8; 2]],
    body_column: &'a [[u8; 2]],
    data: &'a [u8],
    values_start: usize,
}

impl<'a> LeafView<'a> {
    /// Views a chunk of kind leaf, which [`check_leaf_chunk`] has accepted.
    pub(crate) fn view_chunk(chunk: &'a ChunkFrame) -> Self {
        Self::split_payload(chunk).unwrap_or(Self {
            chunk,
            prefix: &[],
            key_ends: &[],
            value_ends: &[],
            body_column: &[],
            data: &[],
            values_start: 0,
        })
    }

    fn split_payload(chunk: &'a ChunkFrame) -> Option<Self> {
        let (&[_, _, n0, n1, p0, p1], rest) =
            chunk.payload().split_first_chunk::<LEAF_FIXED_BYTES>()?;
        let count = usize::from(u16::from_le_bytes([n0, n1]));
        let (prefix, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([p0, p1])))?;
        let (key_ends, rest) = split_u16_column(rest, count)?;
        let (value_ends, rest) = split_u16_column(rest, count)?;
        let bodies = if chunk.chunk_ref_count() > 0 { count } else { 0 };
        let (bodies, data) = split_u16_column(rest, bodies)?;
        Some(Self {
            chunk,
            prefix,
            key_ends,
            value_ends,
            body_column: bodies,
            data,
            values_start: column_end(key_ends, count.checked_sub(1)?),
        })
    }

    /// Returns the number of records.
    pub(crate) fn len(&self) -> usize {
        self.key_ends.len()
    }

    /// Returns the rest of a key after the prefix.
    fn key_suffix(&self, index: usize) -> &'a [u8] {
        let start = index.checked_sub(1).map_or(0, |before| column_end(self.key_ends, before));
        self.data.get(start..column_end(self.key_ends, index)).unwrap_or_default()
    }

    /// Returns the inline bytes of a record.
    pub(crate) fn value_bytes(&self, index: usize) -> &'a [u8] {
        let start = index.checked_sub(1).map_or(0, |before| column_end(self.value_ends, before));
        let stop = self.values_start + column_end(self.value_ends, index);
        self.data.get(self.values_start + start..stop).unwrap_or_default()
    }

    /// Returns the body of a record.
    pub(crate) fn body(&self, index: usize) -> Option<ChunkId> {
        let number = u16::from_le_bytes(*self.body_column.get(index)?);
        self.chunk.chunk_ref(usize::from(number.checked_sub(1)?))
    }

    /// Returns a record's value, its bytes shared with the chunk.
    pub(crate) fn value(&self, index: usize) -> MapValue {
        MapValue {
            bytes: self.chunk.slice_payload(self.value_bytes(index)),
            body: self.body(index),
        }
    }

    /// Returns a whole key.
    pub(crate) fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix, self.key_suffix(index)].concat()
    }

    /// Writes a whole key into `key`.
    pub(crate) fn write_key(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix);
        key.extend_from_slice(self.key_suffix(index));
    }

    /// Compares the key of a record with `key`.
    pub(crate) fn compare_key(&self, index: usize, key: &[u8]) -> Ordering {
        compare_prefixed_key(self.prefix, self.key_suffix(index), key)
    }

    /// Compares the key of a record with one of another leaf.
    pub(crate) fn compare_leaf_keys(
        &self,
        index: usize,
        other: &LeafView<'_>,
        other_index: usize,
    ) -> Ordering {
        let (suffix, other_suffix) = (self.key_suffix(index), other.key_suffix(other_index));
        if self.prefix == other.prefix {
            return suffix.cmp(other_suffix);
        }
        let keys = self.prefix.iter().chain(suffix);
        keys.cmp(other.prefix.iter().chain(other_suffix))
    }

    /// Searches for a key: returns its index, or the index at which it would be inserted.
    pub(crate) fn find_key(&self, key: &[u8]) -> Result<usize, usize> {
        let Some(rest) = key.strip_prefix(self.prefix) else {
            let is_before = key < self.prefix;
            return Err(if is_before { 0 } else { self.len() });
        };
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.key_suffix(middle).cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }
}

/// Compares `prefix` followed by `suffix` with `key`.
pub(super) fn compare_prefixed_key(prefix: &[u8], suffix: &[u8], key: &[u8]) -> Ordering {
    match key.split_at_checked(prefix.len()) {
        Some((head, tail)) => prefix.cmp(head).then_with(|| suffix.cmp(tail)),
        // The key is shorter than the prefix: if the starts are equal, the key is the smaller one.
        None => match prefix.get(..key.len()).map(|head| head.cmp(key)) {
            Some(Ordering::Less) => Ordering::Less,
            _ => Ordering::Greater,
        },
    }
}

/// Splits a column of u16 values off the front.
pub(super) fn split_u16_column(bytes: &[u8], count: usize) -> Option<(&[[u8; 2]], &[u8])> {
    let (column, rest) = bytes.split_at_checked(count * 2)?;
    Some((column.as_chunks::<2>().0, rest))
}

/// Returns one end from a column of ends.
pub(super) fn column_end(ends: &[[u8; 2]], index: usize) -> usize {
    ends.get(index).map_or(0, |bytes| usize::from(u16::from_le_bytes(*bytes)))
}

/// Checks that the ends never decrease, and returns the last one.
pub(super) fn check_column_ends(ends: &[[u8; 2]]) -> Result<usize, &'static str> {
    let mut last = 0;
    for bytes in ends {
        let end = usize::from(u16::from_le_bytes(*bytes));
        if end < last {
            return Err("ends are not in ascending order");
        }
        last = end;
    }
    Ok(last)
}

/// Checks the structure of a leaf chunk; the error states the fault.
pub(super) fn check_leaf_chunk(chunk: &ChunkFrame) -> Result<(), &'static str> {
    let payload = chunk.payload();
    if !payload.starts_with(&[0, 0]) {
        return Err("a leaf does not begin with two zeros");
    }
    let leaf =
        LeafView::split_payload(chunk).ok_or("the columns of a leaf are cut off or empty")?;
    let keys = check_column_ends(leaf.key_ends)?;
    let values = check_column_ends(leaf.value_ends)?;
    if keys + values != leaf.data.len() {
        return Err("the keys and values do not fill a leaf");
    }
    if leaf.prefix.len() > MAX_KEY_BYTES || chunk.blob_ref_count() > 0 {
        return Err("a leaf has a prefix longer than the maximum key, or refers to blobs");
    }
    let mut next = 0;
    for bytes in leaf.body_column {
        let number = usize::from(u16::from_le_bytes(*bytes));
        if number != 0 {
            next += 1;
            if number != next {
                return Err("bodies of a leaf are not in the order of its references");
            }
        }
    }
    if next != chunk.chunk_ref_count() {
        return Err("a leaf has references that no record uses");
    }
    let is_sorted =
        (1..leaf.len()).all(|index| leaf.key_suffix(index - 1) < leaf.key_suffix(index));
    if !is_sorted {
        return Err("keys of a leaf are not in ascending order");
    }
    Ok(())
}

/// A leaf under construction.
#[derive(Default)]
pub(crate) struct LeafBuilder {
    keys: Vec<u8>,
    key_ends: Vec<usize>,
    values: Vec<u8>,
    value_ends: Vec<usize>,
    bodies: Vec<Option<ChunkId>>,
    body_refs: Vec<ChunkId>,
    prefix_length: usize,
}

impl LeafBuilder {
    /// Adds a record, whose key is greater than all before it.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8], body: Option<ChunkId>) {
        self.prefix_length = match self.first_key() {
            None => key.len(),
            Some(first) => {
                common_prefix_length(first.get(..self.prefix_length).unwrap_or(first), key)
            }
        };
        self.keys.extend_from_slice(key);
        self.key_ends.push(self.keys.len());
        self.values.extend_from_slice(value);
        self.value_ends.push(self.values.len());
        self.bodies.push(body);
        self.body_refs.extend(body);
    }

    /// Returns the number of records.
    pub(crate) fn len(&self) -> usize {
        self.key_ends.len()
    }

    /// Returns the first key.
    fn first_key(&self) -> Option<&[u8]> {
        self.keys.get(..*self.key_ends.first()?)
    }

    /// Returns the length of the chunk in bytes if it ended here.
    pub(crate) fn encoded_size(&self) -> usize {
        let columns = if self.body_refs.is_empty() {
            ENTRY_COLUMNS_BYTES
        } else {
            ENTRY_COLUMNS_BYTES + BODY_COLUMN_BYTES
        };
        CHUNK_HEADER_BYTES
            + self.body_refs.len() * CHUNK_REF_BYTES
            + LEAF_FIXED_BYTES
            + self.prefix_length
            + self.len() * columns
            + self.keys.len()
            - self.len() * self.prefix_length
            + self.values.len()
    }

    /// Returns the size without prefix sharing, which bounds a chunk whatever its keys share.
    pub(crate) fn unshared_size(&self) -> usize {
        self.len() * (ENTRY_COLUMNS_BYTES + BODY_COLUMN_BYTES)
            + self.body_refs.len() * CHUNK_REF_BYTES
            + self.keys.len()
            + self.values.len()
    }

    /// Encodes the chunk and starts the next one.
    pub(crate) fn finish_chunk(&mut self) -> Bytes {
        let size = self.encoded_size();
        let payload = size - CHUNK_HEADER_BYTES - self.body_refs.len() * CHUNK_REF_BYTES;
        let mut bytes = encode_chunk_header(ChunkKind::Leaf, &self.body_refs, &[], payload);
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&encode_u16(self.len()));
        bytes.extend_from_slice(&encode_u16(self.prefix_length));
        let first = self.first_key().unwrap_or_default();
        bytes.extend_from_slice(first.get(..self.prefix_length).unwrap_or_default());
        for (index, end) in self.key_ends.iter().enumerate() {
            bytes.extend_from_slice(&encode_u16(end - (index + 1) * self.prefix_length));
        }
        for end in &self.value_ends {
            bytes.extend_from_slice(&encode_u16(*end));
        }
        if !self.body_refs.is_empty() {
            let mut number = 0;
            for body in &self.bodies {
                number += usize::from(body.is_some());
                let written = body.map_or(0, |_| number);
                bytes.extend_from_slice(&encode_u16(written));
            }
        }
        let mut start = 0;
        for end in &self.key_ends {
            let suffix = self.keys.get(start + self.prefix_length..*end);
            bytes.extend_from_slice(suffix.unwrap_or_default());
            start = *end;
        }
        bytes.extend_from_slice(&self.values);
        debug_assert_eq!(bytes.len(), size, "the size that the splitter sees is exact");
        self.clear_records();
        Bytes::from(bytes)
    }

    fn clear_records(&mut self) {
        self.keys.clear();
        self.key_ends.clear();
        self.values.clear();
        self.value_ends.clear();
        self.bodies.clear();
        self.body_refs.clear();
        self.prefix_length = 0;
    }
}
