//! Header compression (RFC 7541): decoding with a dynamic table, encoding without one.
//!
//! The encoder refers only to the static table, so that the block of a cached response is the same on every connection
//! and is built once.
//!
//! Invariants
//! * The decoded fields take at most the number of bytes that the caller allows, however often the block refers to a
//!   long field: fields beyond that are dropped, and the list is marked as too long. A block far beyond the limit is
//!   not read to its end, because every two bytes of it can require a copy of 4 KiB.
//! * The dynamic table never exceeds [`DYNAMIC_TABLE_BYTES`], counted as in the specification.

use std::collections::VecDeque;

use http::{HeaderMap, HeaderName, StatusCode, header};

use super::huffman;

/// The maximum size of the dynamic table: the default; no other size is negotiated.
const DYNAMIC_TABLE_BYTES: usize = 4096;

/// The number of bytes counted for each field beyond its content.
const FIELD_OVERHEAD_BYTES: usize = 32;

/// The size update for an encoder without a dynamic table; sent at the beginning of a connection's first block.
pub(super) const TABLE_SIZE_ZERO: u8 = 0x20;

/// A block that cannot be decoded; the tables of both sides are out of sync afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedBlock;

/// The reason why a block was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HpackError {
    /// The block is malformed.
    Malformed,
    /// Its fields exceed [`OVERSIZE_FACTOR`] times their limit.
    TooLarge,
}

impl From<MalformedBlock> for HpackError {
    fn from(_: MalformedBlock) -> Self {
        Self::Malformed
    }
}

/// The factor by which fields may exceed their limit; more is no mistake of a well-behaved client.
const OVERSIZE_FACTOR: usize = 4;

/// A list of fields, in one buffer.
#[derive(Debug, Default)]
pub(crate) struct FieldList {
    bytes: Vec<u8>,
    spans: Vec<FieldSpan>,
    /// The total size of the fields, including those that were dropped.
    size: usize,
    limit: usize,
}

#[derive(Debug, Clone, Copy)]
struct FieldSpan {
    start: usize,
    name_end: usize,
    end: usize,
}

impl FieldList {
    /// Returns all fields in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| {
            let name = self.bytes.get(span.start..span.name_end).unwrap_or_default();
            (name, self.bytes.get(span.name_end..span.end).unwrap_or_default())
        })
    }

    /// Returns true if fields were dropped.
    pub(super) fn is_too_long(&self) -> bool {
        self.size > self.limit
    }

    /// Returns true if the rest of the block is not worth reading.
    fn is_far_too_long(&self) -> bool {
        self.size > self.limit.saturating_mul(OVERSIZE_FACTOR)
    }

    fn reset(&mut self, limit: usize) {
        self.bytes.clear();
        self.spans.clear();
        self.size = 0;
        self.limit = limit;
    }

    fn add_field(&mut self, name: &[u8], value: &[u8]) {
        self.size = self.size.saturating_add(name.len() + value.len() + FIELD_OVERHEAD_BYTES);
        if self.is_too_long() {
            return;
        }
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        let (name_end, end) = (begin + name.len(), self.bytes.len());
        self.spans.push(FieldSpan { start: begin, name_end, end });
    }
}

/// A name and its value.
type HpackTableEntry = (Box<[u8]>, Box<[u8]>);

/// The decoder of one direction of a connection.
#[derive(Debug)]
pub(super) struct HpackDecoder {
    /// The entries, newest first.
    entries: VecDeque<HpackTableEntry>,
    /// The current size of the table, and its maximum.
    table_size: usize,
    max_table_size: usize,
    field_buffers: (Vec<u8>, Vec<u8>),
}

impl Default for HpackDecoder {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            table_size: 0,
            max_table_size: DYNAMIC_TABLE_BYTES,
            field_buffers: <(Vec<u8>, Vec<u8>)>::default(),
        }
    }
}

impl HpackDecoder {
    /// Decodes a whole block into `fields`, which stores fields up to a total size of `limit`.
    pub(super) fn decode_block(
        &mut self,
        block: &[u8],
        fields: &mut FieldList,
        limit: usize,
    ) -> Result<(), HpackError> {
        fields.reset(limit);
        let mut rest = block;
        let mut is_first = true;
        while let Some(first) = rest.first().copied() {
            if first & 0x80 != 0 {
                let index = read_integer(&mut rest, 7)?;
                let (name, value) = self.find_entry(index)?;
                fields.add_field(name, value);
            } else if first & 0xe0 == 0x20 {
                let size = read_integer(&mut rest, 5)?;
                if !is_first || size > DYNAMIC_TABLE_BYTES {
                    return Err(HpackError::Malformed);
                }
                self.max_table_size = size;
                self.shrink_table(size);
                continue;
            } else {
                let is_indexed = first & 0x40 != 0;
                let index = read_integer(&mut rest, if is_indexed { 6 } else { 4 })?;
                self.read_literal(&mut rest, index, is_indexed, &mut *fields)?;
            }
            is_first = false;
            if fields.is_far_too_long() {
                return Err(HpackError::TooLarge);
            }
        }
        Ok(())
    }

    fn read_literal(
        &mut self,
        rest: &mut &[u8],
        index: usize,
        is_indexed: bool,
        fields: &mut FieldList,
    ) -> Result<(), MalformedBlock> {
        let (mut own_name, mut own_value) = std::mem::take(&mut self.field_buffers);
        own_name.clear();
        own_value.clear();
        if index == 0 {
            read_string(rest, &mut own_name)?;
        } else {
            own_name.extend_from_slice(self.find_entry(index)?.0);
        }
        read_string(rest, &mut own_value)?;
        fields.add_field(&own_name, &own_value);
        if is_indexed {
            self.insert_entry(&own_name, &own_value);
        }
        self.field_buffers = (own_name, own_value);
        Ok(())
    }

    fn find_entry(&self, index: usize) -> Result<(&[u8], &[u8]), MalformedBlock> {
        let index = index.checked_sub(1).ok_or(MalformedBlock)?;
        if let Some((name, value)) = STATIC_TABLE.get(index) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let (name, value) = self.entries.get(index - STATIC_TABLE.len()).ok_or(MalformedBlock)?;
        Ok((name, value))
    }

    fn insert_entry(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        self.shrink_table(self.max_table_size.saturating_sub(size));
        // An entry larger than the table leaves it empty.
        if size <= self.max_table_size {
            self.entries.push_front((name.into(), value.into()));
            self.table_size += size;
        }
    }

    fn shrink_table(&mut self, size: usize) {
        while self.table_size > size {
            let Some((name, value)) = self.entries.pop_back() else { break };
            self.table_size =
                self.table_size.saturating_sub(name.len() + value.len() + FIELD_OVERHEAD_BYTES);
        }
    }
}

/// Reads an integer with a prefix of `bits` bits; a number larger than a block can hold is malformed.
fn read_integer(rest: &mut &[u8], bits: u32) -> Result<usize, MalformedBlock> {
    let (first, mut behind) = rest.split_first().ok_or(MalformedBlock)?;
    let mask = (1_usize << bits) - 1;
    let mut number = usize::from(*first) & mask;
    if number == mask {
        for shift in [0, 7, 14, 21] {
            let (byte, after) = behind.split_first().ok_or(MalformedBlock)?;
            behind = after;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                *rest = behind;
                return Ok(number);
            }
        }
        return Err(MalformedBlock);
    }
    *rest = behind;
    Ok(number)
}

fn read_string(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), MalformedBlock> {
    let is_coded = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = read_integer(rest, 7)?;
    let (text, behind) = rest.split_at_checked(length).ok_or(MalformedBlock)?;
    *rest = behind;
    if is_coded {
        return huffman::huffman_decode(text, out).ok_or(MalformedBlock);
    }
    out.extend_from_slice(text);
    Ok(())
}

/// Writes an integer after the bits `first`.
fn push_integer(out: &mut Vec<u8>, first: u8, bits: u32, number: usize) {
    let mask = (1_usize << bits) - 1;
    if number < mask {
        out.push(first | number as u8);
        return;
    }
    out.push(first | mask as u8);
    let mut left = number - mask;
    while left >= 0x80 {
        out.push(left as u8 & 0x7f | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Writes a string without Huffman coding.
fn push_plain_string(out: &mut Vec<u8>, text: &[u8]) {
    push_integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}

/// Writes a string plain or with Huffman coding, whichever is shorter.
fn push_shorter_string(out: &mut Vec<u8>, text: &[u8]) {
    let length = huffman::huffman_encoded_length(text);
    if length >= text.len() {
        return push_plain_string(out, text);
    }
    push_integer(out, 0x80, 7, length);
    huffman::huffman_encode(text, out);
}

/// Writes a literal field without references.
pub(crate) fn push_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(0);
    push_plain_string(out, name);
    push_plain_string(out, value);
}

/// Writes the status field.
pub(super) fn push_status(out: &mut Vec<u8>, status: StatusCode) {
    match status.as_u16() {
        200 => out.push(0x88),
        204 => out.push(0x89),
        206 => out.push(0x8a),
        304 => out.push(0x8b),
        400 => out.push(0x8c),
        404 => out.push(0x8d),
        500 => out.push(0x8e),
        _ => {
            out.push(0x08);
            push_plain_string(out, status.as_str().as_bytes());
        }
    }
}

/// Writes a field name: its index in the static table if it has one.
fn push_field_name(out: &mut Vec<u8>, name: &str) {
    match STATIC_TABLE.iter().position(|(own, _)| *own == name) {
        // Never-indexed: proxies must not store it in a table, where it could be guessed.
        Some(index) if name == "set-cookie" => push_integer(out, 0x10, 4, index + 1),
        Some(index) => push_integer(out, 0, 4, index + 1),
        None => {
            out.push(0);
            push_shorter_string(out, name.as_bytes());
        }
    }
}

/// Writes the field `age` up to the digits of its value.
fn push_age_name(out: &mut Vec<u8>) {
    push_field_name(out, "age");
}

/// Writes the date field.
pub(crate) fn push_date(out: &mut Vec<u8>, date: &str) {
    push_field_name(out, "date");
    push_plain_string(out, date.as_bytes());
}

/// Writes a field; connection-specific fields are not allowed in HTTP/2 and are dropped.
fn push_field(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    if is_connection_header(name) {
        return;
    }
    push_field_name(out, name.as_str());
    push_shorter_string(out, value);
}

/// Writes a field given as bytes.
pub(super) fn push_raw_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(name) => push_field_name(out, name),
        Err(_not_text) => {
            out.push(0);
            push_plain_string(out, name);
        }
    }
    push_plain_string(out, value);
}

fn is_connection_header(name: &HeaderName) -> bool {
    matches!(*name, header::CONNECTION | header::TRANSFER_ENCODING | header::UPGRADE | header::TE)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

/// Encodes a head without the date and the digits of its age; returns it with the offset at which they are missing.
pub(crate) fn encode_hpack_response_head(
    status: StatusCode,
    headers: &HeaderMap,
) -> (Vec<u8>, usize) {
    let mut out = Vec::with_capacity(384);
    push_status(&mut out, status);
    let mut age_offset = None;
    for (name, value) in headers {
        if name == header::AGE {
            push_age_name(&mut out);
            age_offset = Some(out.len());
        } else {
            push_field(&mut out, name, value.as_bytes());
        }
    }
    let age_offset = age_offset.unwrap_or(out.len());
    (out, age_offset)
}

/// The static table of RFC 7541, appendix A.
const STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests;
