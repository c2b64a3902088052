//! Files of frames: chunks and small blobs in sequence, split into pieces of the vault.
//!
//! In: a chunk, the leaf chunks below it, and their small blobs. Out: pieces. For a part of the parent snapshot: which
//! of its pieces contains which chunks, derived from its chunk and its folder alone.
//!
//! Invariants
//! * The chunks of a piece follow from their hashes alone ([`split_chunks`]), without reading bytes. This is part of
//!   the format that the tag [`LAYOUT_TAG`] declares; a change of it requires another tag, and a save that reuses
//!   nothing.
//! * A piece contains the chunk itself, or chunks below it, or small blobs. So a part has small blobs if it has more
//!   pieces than its chunks need.
//! * A piece is reused only from a part without blobs: the references of a chunk that is not read are unknown.
//! * No piece is reused if chunks are left to the base of a clone: then the chunks in a part's pieces also depend on
//!   what the clone had of its own.
//!
//! Not here: which chunks belong to a part (`repository`); reading frames (`import`).

use std::collections::HashSet;

use tympan_store::{Chunk, ChunkId};

use crate::error::Result;
use crate::id_map::IdMap;
use crate::object_id::VaultObjectId;
use crate::vault::index::VaultIndex;
use crate::vault::node::{SnapshotNode, SnapshotTree};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::PackWriter;

/// The tag of a snapshot whose files of frames are split by [`split_chunks`].
pub(crate) const LAYOUT_TAG: &str = "layout:2";
/// The name of the file of frames in the folder of a part.
pub(super) const FRAME_FILE_NAME: &str = "chunks";
pub(crate) const CHUNK_FRAME_KIND: u8 = b'C';
pub(crate) const BLOB_FRAME_KIND: u8 = b'B';
/// Maximum number of chunks in a piece.
const MAX_CHUNKS_PER_PIECE: usize = 16;
/// Length in bytes at which a piece of small blobs ends.
const BLOB_PIECE_BYTES: usize = 256 * 1024;

/// Returns true if a piece ends after an item with this hash: every fourth on average.
const fn ends_piece(hash: &[u8; 32]) -> bool {
    hash[31] & 3 == 0
}

/// Splits the chunks of a part, without its own chunk, into groups of one piece each.
pub(super) fn split_chunks(chunks: &[ChunkId]) -> Vec<&[ChunkId]> {
    let ends = chunks.split_inclusive(|id| ends_piece(id.as_bytes()));
    ends.flat_map(|part| part.chunks(MAX_CHUNKS_PER_PIECE)).collect()
}

/// Appends a frame.
pub(crate) fn push_frame(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Writes a piece of chunks, which must be one group of [`split_chunks`]; also returns its length.
pub(super) fn write_chunk_piece<'a>(
    writer: &PackWriter,
    chunks: impl Iterator<Item = &'a Chunk>,
) -> Result<(VaultObjectId, u64)> {
    let mut frames = Vec::new();
    chunks.for_each(|chunk| push_frame(&mut frames, CHUNK_FRAME_KIND, chunk.bytes()));
    Ok((writer.add_blob(PackBlobKind::Data, &frames)?.0, frames.len() as u64))
}

/// Writes the pieces of a file of frames to the vault as they become full.
pub(super) struct FramePieceWriter<'a> {
    writer: &'a PackWriter,
    ids: Vec<VaultObjectId>,
    length: u64,
    open_piece: Vec<u8>,
    /// The number of chunks in the open piece.
    open_piece_chunks: usize,
}

impl<'a> FramePieceWriter<'a> {
    /// Begins with the part's own chunk.
    pub(super) fn begin(writer: &'a PackWriter, chunk: &Chunk) -> Result<Self> {
        let mut pieces = Self {
            writer,
            ids: Vec::new(),
            length: 0,
            open_piece: Vec::new(),
            open_piece_chunks: 0,
        };
        push_frame(&mut pieces.open_piece, CHUNK_FRAME_KIND, chunk.bytes());
        pieces.end_piece()?;
        Ok(pieces)
    }

    /// Adds a chunk below the part's own.
    pub(super) fn add_chunk(&mut self, id: &ChunkId, chunk: &Chunk) -> Result<()> {
        push_frame(&mut self.open_piece, CHUNK_FRAME_KIND, chunk.bytes());
        self.open_piece_chunks += 1;
        if ends_piece(id.as_bytes()) || self.open_piece_chunks == MAX_CHUNKS_PER_PIECE {
            self.end_piece()
        } else {
            Ok(())
        }
    }

    /// Adds a small blob, after all chunks.
    pub(super) fn add_blob(&mut self, hash: &[u8; 32], bytes: &[u8]) -> Result<()> {
        push_frame(&mut self.open_piece, BLOB_FRAME_KIND, bytes);
        let is_full = ends_piece(hash) || self.open_piece.len() >= BLOB_PIECE_BYTES;
        if is_full { self.end_piece() } else { Ok(()) }
    }

    /// Adds an existing piece of the vault, with its length, at a piece boundary.
    pub(super) fn reuse_piece(&mut self, (id, length): (VaultObjectId, u64)) {
        debug_assert!(self.open_piece.is_empty(), "a piece begins where the one before has ended");
        self.ids.push(id);
        self.length += length;
    }

    /// Ends the piece, if it is not empty.
    pub(super) fn end_piece(&mut self) -> Result<()> {
        if !self.open_piece.is_empty() {
            self.length += self.open_piece.len() as u64;
            self.ids.push(self.writer.add_blob(PackBlobKind::Data, &self.open_piece)?.0);
            self.open_piece.clear();
            self.open_piece_chunks = 0;
        }
        Ok(())
    }

    /// Ends the file; returns its pieces and its length.
    pub(super) fn finish(mut self) -> Result<(Vec<VaultObjectId>, u64)> {
        self.end_piece()?;
        Ok((self.ids, self.length))
    }
}

/// A piece of the parent snapshot.
#[derive(Debug)]
pub(super) struct PreviousPiece {
    id: VaultObjectId,
    length: u64,
    chunks: Vec<ChunkId>,
}

impl PreviousPiece {
    /// Returns its id and its length.
    pub(super) const fn id_and_length(&self) -> (VaultObjectId, u64) {
        (self.id, self.length)
    }
}

/// Known facts about the chunks of some parts of the parent snapshot.
#[derive(Debug, Default)]
pub(super) struct PreviousChunks {
    /// All chunks that the parts' own chunks refer to; true if the chunk is known to refer to nothing.
    refs: IdMap<ChunkId, bool>,
    /// Pieces by the first chunk in each.
    pieces: IdMap<ChunkId, PreviousPiece>,
}

impl PreviousChunks {
    /// Derives the contents of the pieces of the part with this chunk; its node is a folder, which was read, or a file.
    pub(super) fn from_part(
        chunk: &Chunk,
        node: &SnapshotNode,
        tree: Option<&SnapshotTree>,
        index: &VaultIndex,
    ) -> Self {
        let mut previous_chunks = Self::default();
        let is_first = |id: &ChunkId| previous_chunks.refs.insert(*id, false).is_none();
        let below: Vec<ChunkId> = chunk.chunk_refs().filter(is_first).collect();
        let file = match tree {
            Some(tree) => tree.find(FRAME_FILE_NAME.as_bytes()),
            None => Some(node),
        };
        let parts = previous_chunks.list_parts(tree).filter(|_| chunk.blob_refs().len() == 0);
        let (Some(parts), Some(content)) = (parts, file.and_then(|file| file.content.as_ref()))
        else {
            return previous_chunks;
        };
        let terminal: Vec<ChunkId> = below.into_iter().filter(|id| !parts.contains(id)).collect();
        let pieces = split_chunks(&terminal);
        // The first piece contains the chunk itself; further ones contain small blobs.
        let Some((_, content)) =
            content.split_first().filter(|(_, rest)| rest.len() == pieces.len())
        else {
            return previous_chunks;
        };
        for (id, chunks) in content.iter().zip(pieces) {
            let (Some(first), Some(length)) =
                (chunks.first(), index.plain_length(PackBlobKind::Data, id))
            else {
                continue;
            };
            let piece = PreviousPiece { id: *id, length, chunks: chunks.to_vec() };
            previous_chunks.pieces.insert(*first, piece);
        }
        previous_chunks.refs.extend(terminal.into_iter().map(|id| (id, true)));
        previous_chunks
    }

    /// Returns the parts in a folder; `None` if it also contains large blobs.
    fn list_parts(&self, tree: Option<&SnapshotTree>) -> Option<HashSet<ChunkId>> {
        let nodes = tree.map_or(&[][..], |tree| tree.nodes.as_slice());
        let others = nodes.iter().filter(|node| node.name != FRAME_FILE_NAME.as_bytes());
        others.map(|node| parse_part_id(node).filter(|id| self.refs.contains_key(id))).collect()
    }

    /// Merges in the facts about another part.
    pub(super) fn extend(&mut self, other: Self) {
        self.refs.reserve(other.refs.len());
        for (id, is_terminal) in other.refs {
            *self.refs.entry(id).or_default() |= is_terminal;
        }
        self.pieces.extend(other.pieces);
    }

    /// Returns the number of chunks that the parts refer to.
    pub(super) fn count_refs(&self) -> usize {
        self.refs.len()
    }

    /// Returns true if no piece can be reused.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns true if one of the parts refers to a chunk.
    pub(super) fn refers_to(&self, id: &ChunkId) -> bool {
        self.refs.contains_key(id)
    }

    /// Returns true if a chunk is known to refer to no chunk and no blob.
    pub(super) fn is_terminal(&self, id: &ChunkId) -> bool {
        self.refs.get(id) == Some(&true)
    }

    /// Finds the piece that contains exactly these chunks.
    pub(super) fn find_piece(&self, chunks: &[ChunkId]) -> Option<&PreviousPiece> {
        self.pieces.get(chunks.first()?).filter(|piece| piece.chunks == chunks)
    }
}

/// Returns the chunk of the part that a node is named by; `None` for other nodes.
pub(super) fn parse_part_id(node: &SnapshotNode) -> Option<ChunkId> {
    let name = std::str::from_utf8(&node.name).ok()?;
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The snapshot format guarantees it: a piece is reused based on the chunks that it must contain.
    #[test]
    fn pieces_end_where_hashes_say_so() {
        let id = |last: u8| {
            let mut bytes = [last; 32];
            bytes[0] = 1;
            ChunkId::from_bytes(bytes)
        };
        let check = |last: &[u8], expected: &[usize]| {
            let chunks: Vec<ChunkId> = last.iter().map(|last| id(*last)).collect();
            let lengths: Vec<usize> =
                split_chunks(&chunks).into_iter().map(<[ChunkId]>::len).collect();
            assert_eq!(lengths, expected, "{last:?}");
        };
        check(&[], &[]);
        check(&[1], &[1]);
        check(&[4], &[1]);
        check(&[1, 2, 4, 3], &[3, 1]);
        check(&[0, 0, 8, 1], &[1, 1, 1, 1]);
        check(&[1; 16], &[16]);
        check(&[1; 40], &[16, 16, 8]);
        let sixteen = [&[1; 15][..], &[4], &[2]].concat();
        check(&sixteen, &[16, 1]);
        let seventeen = [&[1; 16][..], &[4], &[2]].concat();
        check(&seventeen, &[16, 1, 1]);
    }
}
