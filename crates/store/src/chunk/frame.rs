//! The frame of a chunk: its header with the references, and the bytes of the payload.
//!
//! Not here: what the payload of a kind holds.

use std::fmt;

use bytes::Bytes;

use crate::id::{BlobId, ChunkId};

/// The maximum length of a chunk in bytes.
pub const MAX_CHUNK_BYTES: usize = 65_535;

pub(crate) const CHUNK_HEADER_BYTES: usize = 6;
pub(crate) const CHUNK_REF_BYTES: usize = 32;
pub(crate) const BLOB_REF_BYTES: usize = 40;
const CHUNK_FORMAT_VERSION: u8 = 1;

/// The kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkKind {
    /// Records of a map.
    Leaf,
    /// Children of a map's tree.
    Interior,
    /// A body that is stored beside its record, or a piece of one.
    Body,
    /// The pieces of a large body.
    BodyList,
    /// The named maps of one state.
    Root,
}

impl ChunkKind {
    fn code(self) -> u8 {
        match self {
            Self::Leaf => 1,
            Self::Interior => 2,
            Self::Body => 3,
            Self::BodyList => 4,
            Self::Root => 5,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Leaf,
            2 => Self::Interior,
            3 => Self::Body,
            4 => Self::BodyList,
            5 => Self::Root,
            _ => return None,
        })
    }
}

/// The bytes of a chunk with a parsed header. The structure of the payload is not checked yet. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct ChunkFrame {
    bytes: Bytes,
    kind: ChunkKind,
    chunk_ref_count: u16,
    blob_ref_count: u16,
}

impl ChunkFrame {
    /// Parses the header.
    pub(super) fn parse(bytes: Bytes) -> Result<Self, &'static str> {
        if bytes.len() > MAX_CHUNK_BYTES {
            return Err("longer than the maximum");
        }
        let Some(&[kind, version, c0, c1, b0, b1]) = bytes.first_chunk::<CHUNK_HEADER_BYTES>()
        else {
            return Err("shorter than the header");
        };
        if version != CHUNK_FORMAT_VERSION {
            return Err("unsupported format version");
        }
        let frame = Self {
            kind: ChunkKind::from_code(kind).ok_or("unknown kind")?,
            chunk_ref_count: u16::from_le_bytes([c0, c1]),
            blob_ref_count: u16::from_le_bytes([b0, b1]),
            bytes,
        };
        if frame.payload_start() > frame.bytes.len() {
            return Err("references run past the end");
        }
        Ok(frame)
    }

    /// Returns the kind of the chunk.
    #[must_use]
    pub fn kind(&self) -> ChunkKind {
        self.kind
    }

    /// Returns all bytes, header included. The id is the hash of these bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the chunks that this one refers to, in the order of the header.
    pub fn chunk_refs(&self) -> impl ExactSizeIterator<Item = ChunkId> + '_ {
        let end = CHUNK_HEADER_BYTES + usize::from(self.chunk_ref_count) * CHUNK_REF_BYTES;
        let refs = self.bytes.get(CHUNK_HEADER_BYTES..end).unwrap_or_default();
        let (refs, _) = refs.as_chunks::<CHUNK_REF_BYTES>();
        refs.iter().map(|bytes| ChunkId::from_bytes(*bytes))
    }

    /// Returns the blobs that this chunk refers to, in the order of the header.
    pub fn blob_refs(&self) -> impl ExactSizeIterator<Item = BlobId> + '_ {
        let start = CHUNK_HEADER_BYTES + usize::from(self.chunk_ref_count) * CHUNK_REF_BYTES;
        let refs = self.bytes.get(start..self.payload_start()).unwrap_or_default();
        let (refs, _) = refs.as_chunks::<BLOB_REF_BYTES>();
        refs.iter().map(decode_blob_ref)
    }

    /// Returns the number of chunks that this one refers to.
    pub(crate) fn chunk_ref_count(&self) -> usize {
        usize::from(self.chunk_ref_count)
    }

    /// Returns the number of blobs that this chunk refers to.
    pub(crate) fn blob_ref_count(&self) -> usize {
        usize::from(self.blob_ref_count)
    }

    /// Returns chunk reference `index`, without walking the others.
    pub(crate) fn chunk_ref(&self, index: usize) -> Option<ChunkId> {
        if index >= usize::from(self.chunk_ref_count) {
            return None;
        }
        let start = CHUNK_HEADER_BYTES + index * CHUNK_REF_BYTES;
        let id = self.bytes.get(start..)?.first_chunk::<CHUNK_REF_BYTES>()?;
        Some(ChunkId::from_bytes(*id))
    }

    /// Returns the payload: the bytes after the references.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.payload_start()..).unwrap_or_default()
    }

    /// Returns a part of the payload, shared with the chunk.
    pub(crate) fn slice_payload(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }

    fn payload_start(&self) -> usize {
        CHUNK_HEADER_BYTES
            + usize::from(self.chunk_ref_count) * CHUNK_REF_BYTES
            + usize::from(self.blob_ref_count) * BLOB_REF_BYTES
    }
}

impl fmt::Debug for ChunkFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkFrame")
            .field("kind", &self.kind)
            .field("bytes", &self.bytes.len())
            .field("chunk_refs", &self.chunk_ref_count)
            .field("blob_refs", &self.blob_ref_count)
            .finish()
    }
}

/// Writes the common header; the payload follows.
///
/// # Panics
/// Never: the counts are bounded by [`MAX_CHUNK_BYTES`], which writers respect.
pub(crate) fn encode_chunk_header(
    kind: ChunkKind,
    chunk_refs: &[ChunkId],
    blob_refs: &[BlobId],
    payload_length: usize,
) -> Vec<u8> {
    let length =
        CHUNK_HEADER_BYTES + chunk_refs.len() * CHUNK_REF_BYTES + blob_refs.len() * BLOB_REF_BYTES;
    let mut bytes = Vec::with_capacity(length + payload_length);
    bytes.extend_from_slice(&[kind.code(), CHUNK_FORMAT_VERSION]);
    bytes.extend_from_slice(&encode_u16(chunk_refs.len()));
    bytes.extend_from_slice(&encode_u16(blob_refs.len()));
    for id in chunk_refs {
        bytes.extend_from_slice(id.as_bytes());
    }
    for id in blob_refs {
        bytes.extend_from_slice(id.digest());
        bytes.extend_from_slice(&id.length().to_le_bytes());
    }
    bytes
}

/// Encodes a count or length as two bytes; the limits of the format keep it below 65,536.
pub(crate) fn encode_u16(count: usize) -> [u8; 2] {
    debug_assert!(count <= MAX_CHUNK_BYTES, "the limits of the format hold");
    u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes()
}

fn decode_blob_ref(bytes: &[u8; BLOB_REF_BYTES]) -> BlobId {
    let mut digest = [0; 32];
    let mut length = [0; 8];
    let (head, tail) = bytes.split_at(digest.len());
    digest.copy_from_slice(head);
    length.copy_from_slice(tail);
    BlobId::new(digest, u64::from_le_bytes(length))
}
