//! The layout of the chunks of a body: bytes with the blobs they name, or a list of such pieces.

use bytes::Bytes;

use super::frame::{ChunkFrame, ChunkKind, encode_chunk_header};
use crate::id::{BlobId, ChunkId};

/// The maximum number of pieces that one list refers to.
pub(crate) const MAX_LIST_REFS: usize = 1_024;
const LIST_PAYLOAD_BYTES: usize = 12;

/// Encodes a body, or a piece of one, that fits into a chunk.
pub(crate) fn encode_body_chunk(payload: &[u8], blobs: &[BlobId]) -> Bytes {
    let mut bytes = encode_chunk_header(ChunkKind::Body, &[], blobs, payload.len());
    bytes.extend_from_slice(payload);
    Bytes::from(bytes)
}

/// Encodes a list of pieces with the number of bytes and blobs below it.
pub(crate) fn encode_body_list_chunk(pieces: &[ChunkId], length: u64, blob_count: u32) -> Bytes {
    let mut bytes = encode_chunk_header(ChunkKind::BodyList, pieces, &[], LIST_PAYLOAD_BYTES);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&blob_count.to_le_bytes());
    Bytes::from(bytes)
}

/// Checks the structure of a body or body list; the error states the fault.
pub(super) fn check_body_chunk(chunk: &ChunkFrame) -> Result<(), &'static str> {
    if chunk.kind() == ChunkKind::Body {
        if chunk.chunk_ref_count() > 0 {
            return Err("a body refers to chunks");
        }
        return Ok(());
    }
    if chunk.blob_ref_count() > 0 || chunk.payload().len() != LIST_PAYLOAD_BYTES {
        return Err("a body list refers to blobs, or does not contain two numbers");
    }
    if !(1..=MAX_LIST_REFS).contains(&chunk.chunk_ref_count()) {
        return Err("a body list does not have 1 to 1,024 pieces");
    }
    Ok(())
}
