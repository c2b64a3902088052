//! One record of a pack: header, checksum, payload.
//!
//! Invariant: a record is valid at one place of one pack only, as the checksum covers the place.

use bytes::Bytes;

/// Length of the header in front of each payload.
pub(super) const HEADER_BYTES: usize = 52;
/// The length that no payload reaches: it shares a word with the kind in index files.
pub(super) const MAX_PAYLOAD: usize = 1 << 24;
const MAGIC: [u8; 4] = *b"TYMr";
const CRC_AT: usize = 16;
const ID_AT: usize = 20;
const PLAIN: u8 = 0;
const LZ4: u8 = 1;
const FLAGS_AT: usize = 6;
const TERMINAL: u8 = 1;

/// What a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    Head = 1,
    Chunk = 2,
    Blob = 3,
    Commit = 4,
    Seal = 5,
}

impl Kind {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Head,
            2 => Self::Chunk,
            3 => Self::Blob,
            4 => Self::Commit,
            5 => Self::Seal,
            _ => return None,
        })
    }

    /// Returns the word for messages.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Chunk => "chunk",
            Self::Blob => "blob",
            Self::Commit => "commit",
            Self::Seal => "seal",
        }
    }
}

/// Whether payloads are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// As they are.
    None,
    /// lz4 where it makes the payload at least one eighth smaller.
    #[default]
    Lz4,
}

/// A record's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// The payload is a chunk that refers to nothing, so that walks need not read it.
    pub(crate) is_terminal: bool,
    encoding: u8,
    stored: u32,
    plain: u32,
    crc: u32,
    pub(crate) id: [u8; 32],
}

impl Header {
    /// Parses the header at the start of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let (fixed, id) = header.split_first_chunk::<ID_AT>()?;
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*fixed.get(at..)?.first_chunk::<4>()?))
        };
        let &[_, _, _, _, kind, encoding, flags, 0, ..] = fixed else {
            return None;
        };
        let header = Self {
            kind: Kind::from_code(kind)?,
            is_terminal: flags & TERMINAL != 0,
            encoding,
            stored: word(8)?,
            plain: word(12)?,
            crc: word(CRC_AT)?,
            id: *id.first_chunk()?,
        };
        let is_sound = encoding <= LZ4
            && flags <= TERMINAL
            && (header.stored as usize) < MAX_PAYLOAD
            && (header.plain as usize) < MAX_PAYLOAD;
        is_sound.then_some(header)
    }

    /// Returns the length of the whole record.
    pub(super) fn record_bytes(&self) -> usize {
        HEADER_BYTES + self.stored as usize
    }
}

/// The place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pack: u32,
    pub(crate) offset: u32,
}

/// Appends a record to `to`; [`seal_crc`] makes it valid once its place is known.
pub(super) fn encode(
    kind: Kind,
    id: &[u8; 32],
    payload: &[u8],
    compression: Compression,
    to: &mut Vec<u8>,
) {
    let start = to.len();
    to.extend_from_slice(&MAGIC);
    to.extend_from_slice(&[kind as u8, PLAIN, 0, 0]);
    to.extend_from_slice(&length(payload.len()));
    to.extend_from_slice(&length(payload.len()));
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(id);
    let body = to.len();
    if compression == Compression::Lz4 {
        to.resize(body + lz4_flex::block::get_maximum_output_size(payload.len()), 0);
        let room = to.get_mut(body..).unwrap_or_default();
        let packed = lz4_flex::block::compress_into(payload, room).unwrap_or(usize::MAX);
        if packed <= payload.len() - payload.len() / 8 && !payload.is_empty() {
            to.truncate(body + packed);
            if let Some(header) = to.get_mut(start..) {
                put(header, 5, &[LZ4]);
                put(header, 8, &length(packed));
            }
            return;
        }
        to.truncate(body);
    }
    to.extend_from_slice(payload);
}

/// Marks a record as a chunk that refers to nothing; before [`seal_crc`].
pub(super) fn set_terminal(record: &mut [u8]) {
    put(record, FLAGS_AT, &[TERMINAL]);
}

/// Writes the checksum of a whole record for its place.
pub(super) fn seal_crc(record: &mut [u8], place: Place) {
    let crc = checksum(record, place).to_le_bytes();
    put(record, CRC_AT, &crc);
}

/// Tells whether a whole record is valid at its place.
pub(super) fn is_valid(header: &Header, record: &[u8], place: Place) -> bool {
    header.crc == checksum(record, place)
}

/// Returns the payload of a whole record, decoded; `None` if it cannot be.
pub(super) fn decode(header: &Header, record: &Bytes) -> Option<Bytes> {
    let stored = record.slice(HEADER_BYTES.min(record.len())..);
    let plain = header.plain as usize;
    if header.encoding == PLAIN {
        return (stored.len() == plain).then_some(stored);
    }
    let mut bytes = vec![0; plain];
    let length = lz4_flex::block::decompress_into(&stored, &mut bytes).ok()?;
    (length == plain).then(|| Bytes::from(bytes))
}

fn checksum(record: &[u8], place: Place) -> u32 {
    let crc = crc32c::crc32c(&place.pack.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &place.offset.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, record.get(..CRC_AT).unwrap_or_default());
    crc32c::crc32c_append(crc, record.get(ID_AT..).unwrap_or_default())
}

fn length(bytes: usize) -> [u8; 4] {
    debug_assert!(bytes < MAX_PAYLOAD, "limits are checked before records are made");
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}
