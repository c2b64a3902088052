//! One record of a pack: header, checksum, payload.
//!
//! Invariant: a record is valid at one position of one pack only, because the checksum covers the position.

use bytes::Bytes;

/// Length of the header in front of each payload.
pub(super) const RECORD_HEADER_BYTES: usize = 52;
/// The exclusive maximum length of a payload in bytes: it shares a machine word with the kind in index files.
pub(super) const MAX_PAYLOAD_BYTES: usize = 1 << 24;
const RECORD_MAGIC: [u8; 4] = *b"TYMr";
const CRC_OFFSET: usize = 16;
const ID_OFFSET: usize = 20;
const ENCODING_PLAIN: u8 = 0;
const ENCODING_LZ4: u8 = 1;
const FLAGS_OFFSET: usize = 6;
const TERMINAL_FLAG: u8 = 1;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum RecordKind {
    Head = 1,
    Chunk = 2,
    Blob = 3,
    Commit = 4,
    Seal = 5,
}

impl RecordKind {
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

    /// Returns the name of the kind for messages.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Chunk => "chunk",
            Self::Blob => "blob",
            Self::Commit => "commit",
            Self::Seal => "seal",
        }
    }
}

/// The compression of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RecordCompression {
    /// Payloads are stored uncompressed.
    None,
    /// Payloads are compressed with lz4 if that makes them at least one eighth smaller.
    #[default]
    Lz4,
}

/// A record's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    /// True if the payload is a chunk that refers to nothing, so that walks need not read it.
    pub(crate) is_terminal: bool,
    encoding: u8,
    stored_bytes: u32,
    plain_bytes: u32,
    crc: u32,
    pub(crate) id: [u8; 32],
}

impl RecordHeader {
    /// Parses the header at the start of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(&RECORD_MAGIC) {
            return None;
        }
        let header = bytes.first_chunk::<RECORD_HEADER_BYTES>()?;
        let (fixed, id) = header.split_first_chunk::<ID_OFFSET>()?;
        let read_u32 = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*fixed.get(at..)?.first_chunk::<4>()?))
        };
        let &[_, _, _, _, kind, encoding, flags, 0, ..] = fixed else {
            return None;
        };
        let header = Self {
            kind: RecordKind::from_code(kind)?,
            is_terminal: flags & TERMINAL_FLAG != 0,
            encoding,
            stored_bytes: read_u32(8)?,
            plain_bytes: read_u32(12)?,
            crc: read_u32(CRC_OFFSET)?,
            id: *id.first_chunk()?,
        };
        let is_sound = encoding <= ENCODING_LZ4
            && flags <= TERMINAL_FLAG
            && (header.stored_bytes as usize) < MAX_PAYLOAD_BYTES
            && (header.plain_bytes as usize) < MAX_PAYLOAD_BYTES;
        is_sound.then_some(header)
    }

    /// Returns the length of the whole record.
    pub(super) fn record_length(&self) -> usize {
        RECORD_HEADER_BYTES + self.stored_bytes as usize
    }
}

/// The position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPosition {
    pub(crate) pack: u32,
    pub(crate) offset: u32,
}

/// Appends a record to `to`; [`write_record_crc`] makes it valid once its position is known.
pub(super) fn encode_record(
    kind: RecordKind,
    id: &[u8; 32],
    payload: &[u8],
    compression: RecordCompression,
    to: &mut Vec<u8>,
) {
    let start = to.len();
    to.extend_from_slice(&RECORD_MAGIC);
    to.extend_from_slice(&[kind as u8, ENCODING_PLAIN, 0, 0]);
    to.extend_from_slice(&encode_length(payload.len()));
    to.extend_from_slice(&encode_length(payload.len()));
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(id);
    let body = to.len();
    if compression == RecordCompression::Lz4 {
        to.resize(body + lz4_flex::block::get_maximum_output_size(payload.len()), 0);
        let destination = to.get_mut(body..).unwrap_or_default();
        let packed = lz4_flex::block::compress_into(payload, destination).unwrap_or(usize::MAX);
        if packed <= payload.len() - payload.len() / 8 && !payload.is_empty() {
            to.truncate(body + packed);
            if let Some(header) = to.get_mut(start..) {
                write_at(header, 5, &[ENCODING_LZ4]);
                write_at(header, 8, &encode_length(packed));
            }
            return;
        }
        to.truncate(body);
    }
    to.extend_from_slice(payload);
}

/// Flags a record as a chunk that refers to nothing; must be called before [`write_record_crc`].
pub(super) fn set_terminal_flag(record: &mut [u8]) {
    write_at(record, FLAGS_OFFSET, &[TERMINAL_FLAG]);
}

/// Writes the checksum of a whole record for its position.
pub(super) fn write_record_crc(record: &mut [u8], position: RecordPosition) {
    let crc = record_checksum(record, position).to_le_bytes();
    write_at(record, CRC_OFFSET, &crc);
}

/// Returns true if a whole record is valid at its position.
pub(super) fn is_record_valid(
    header: &RecordHeader,
    record: &[u8],
    position: RecordPosition,
) -> bool {
    header.crc == record_checksum(record, position)
}

/// Returns the decoded payload of a whole record; `None` if decoding fails.
pub(super) fn decode_record(header: &RecordHeader, record: &Bytes) -> Option<Bytes> {
    let stored = record.slice(RECORD_HEADER_BYTES.min(record.len())..);
    let plain = header.plain_bytes as usize;
    if header.encoding == ENCODING_PLAIN {
        return (stored.len() == plain).then_some(stored);
    }
    let mut bytes = vec![0; plain];
    let length = lz4_flex::block::decompress_into(&stored, &mut bytes).ok()?;
    (length == plain).then(|| Bytes::from(bytes))
}

fn record_checksum(record: &[u8], position: RecordPosition) -> u32 {
    let crc = crc32c::crc32c(&position.pack.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &position.offset.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, record.get(..CRC_OFFSET).unwrap_or_default());
    crc32c::crc32c_append(crc, record.get(ID_OFFSET..).unwrap_or_default())
}

fn encode_length(bytes: usize) -> [u8; 4] {
    debug_assert!(bytes < MAX_PAYLOAD_BYTES, "limits are checked before records are made");
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

fn write_at(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(target) = bytes.get_mut(at..at + value.len()) {
        target.copy_from_slice(value);
    }
}
