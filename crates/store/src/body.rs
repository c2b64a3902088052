//! Bodies: bytes stored beside the record they belong to, with the blobs they name.
//!
//! Invariants
//! * Equal payload and blobs have one id, whatever their size.
//! * A body of one chunk is read without copying.
//!
//! Not here: the content of a body (`content`). The format is in `docs/formats/chunk.md`.

use bytes::{Bytes, BytesMut};

use crate::chunk::body::{MAX_LIST_REFS, encode_body_chunk, encode_body_list_chunk};
use crate::chunk::{BLOB_REF_BYTES, CHUNK_HEADER_BYTES, Chunk, ChunkKind, MAX_CHUNK_BYTES};
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_reader::ReadChunks;

const MAX_PIECE_BYTES: usize = 32_768;
const MAX_PIECE_BLOBS: usize = 512;
/// The maximum number of chunks of one body; bounds the work that a hostile list of lists can cause.
const MAX_BODY_CHUNKS: usize = 20_000;

/// The limits of a body: its size in bytes, and the number of blobs that it can name.
const MAX_BODY_BYTES: usize = 256 << 20;
const MAX_BODY_BLOBS: usize = 1 << 20;

/// A body that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkedBody {
    /// The bytes.
    pub payload: Bytes,
    /// The blobs that the body names, each once, sorted.
    pub blobs: Vec<BlobId>,
}

/// Stages a body and returns its id. `blobs` may come in any order and repeat.
///
/// # Errors
/// [`Error::TooLong`] above 256 MiB; [`Error::TooMany`] above 1,048,576 blobs.
pub fn write_body(batch: &mut ChunkBatch, payload: &[u8], blobs: &[BlobId]) -> Result<ChunkId> {
    if payload.len() > MAX_BODY_BYTES {
        let (what, length) = ("body", payload.len());
        return Err(Error::TooLong { what, length, limit: MAX_BODY_BYTES });
    }
    if blobs.len() > MAX_BODY_BLOBS {
        let (what, count) = ("blobs of a body", blobs.len());
        return Err(Error::TooMany { what, count, limit: MAX_BODY_BLOBS });
    }
    let mut blobs = blobs.to_vec();
    blobs.sort_unstable();
    blobs.dedup();
    if CHUNK_HEADER_BYTES + blobs.len() * BLOB_REF_BYTES + payload.len() <= MAX_CHUNK_BYTES {
        return Ok(write_body_piece(batch, payload, &blobs));
    }
    let mut payloads = payload.chunks(MAX_PIECE_BYTES);
    let mut groups = blobs.chunks(MAX_PIECE_BLOBS);
    let mut level = Vec::new();
    loop {
        let (payload, blobs) = (payloads.next(), groups.next());
        if payload.is_none() && blobs.is_none() {
            break;
        }
        let (payload, blobs) = (payload.unwrap_or_default(), blobs.unwrap_or_default());
        level.push(BodyPiece {
            id: write_body_piece(batch, payload, blobs),
            length: payload.len() as u64,
            blobs: u32::try_from(blobs.len()).unwrap_or(u32::MAX),
        });
    }
    loop {
        level = level.chunks(MAX_LIST_REFS).map(|pieces| write_body_list(batch, pieces)).collect();
        if let [list] = level.as_slice() {
            return Ok(list.id);
        }
    }
}

/// Reads a body.
///
/// # Errors
/// [`Error::ChunkKindMismatch`] if `id` does not name a body, or a failed read.
pub fn read_body(reads: &dyn ReadChunks, id: &ChunkId) -> Result<ChunkedBody> {
    let chunk = reads.read_chunk(id)?;
    if chunk.kind() == ChunkKind::Body {
        return Ok(ChunkedBody {
            payload: chunk.slice_payload(chunk.payload()),
            blobs: chunk.blob_refs().collect(),
        });
    }
    let mut payload = BytesMut::new();
    let mut blobs = Vec::new();
    walk_body(reads, (*id, chunk), &mut |_, piece| {
        payload.extend_from_slice(match piece.kind() {
            ChunkKind::Body => piece.payload(),
            _ => &[],
        });
        blobs.extend(piece.blob_refs());
    })?;
    Ok(ChunkedBody { payload: payload.freeze(), blobs })
}

/// Returns all chunks of a body, lists included, parents first. Another store needs these chunks to hold the body.
/// Equal pieces repeat.
///
/// # Errors
/// As [`read_body`].
pub fn list_body_chunks(reads: &dyn ReadChunks, id: &ChunkId) -> Result<Vec<ChunkId>> {
    let mut ids = Vec::new();
    walk_body(reads, (*id, reads.read_chunk(id)?), &mut |id, _| ids.push(id))?;
    Ok(ids)
}

/// Visits the chunks of a body in order, parents first.
fn walk_body(
    reads: &dyn ReadChunks,
    top: (ChunkId, Chunk),
    visit: &mut impl FnMut(ChunkId, &Chunk),
) -> Result<()> {
    let mut piece_count = 1;
    let mut pending = vec![top];
    while let Some((id, chunk)) = pending.pop() {
        visit(id, &chunk);
        match chunk.kind() {
            ChunkKind::Body => {}
            ChunkKind::BodyList => {
                piece_count += chunk.chunk_ref_count();
                if piece_count > MAX_BODY_CHUNKS {
                    let fault = "the body has more pieces than allowed";
                    return Err(Error::ChunkDamaged { id, fault });
                }
                let ids: Vec<ChunkId> = chunk.chunk_refs().collect();
                let pieces = reads.read_chunks(&ids)?;
                pending.extend(ids.into_iter().zip(pieces).rev());
            }
            ChunkKind::Leaf | ChunkKind::Interior | ChunkKind::Root => {
                let expected = "body";
                return Err(Error::ChunkKindMismatch { id, expected });
            }
        }
    }
    Ok(())
}

struct BodyPiece {
    id: ChunkId,
    length: u64,
    blobs: u32,
}

fn write_body_piece(batch: &mut ChunkBatch, payload: &[u8], blobs: &[BlobId]) -> ChunkId {
    batch.add_chunk(encode_body_chunk(payload, blobs))
}

fn write_body_list(batch: &mut ChunkBatch, pieces: &[BodyPiece]) -> BodyPiece {
    let ids: Vec<ChunkId> = pieces.iter().map(|piece| piece.id).collect();
    let length = pieces.iter().map(|piece| piece.length).sum();
    let blobs = pieces.iter().map(|piece| piece.blobs).sum();
    BodyPiece { id: batch.add_chunk(encode_body_list_chunk(&ids, length, blobs)), length, blobs }
}
