//! Files of frames: chunks and small blobs one after another, cut into pieces of the vault.
//!
//! In: a chunk, the chunks below it that refer to no others, and their small blobs. Out: pieces. Of a part of the snapshot
//! before: which of its pieces holds which chunks, found out from its chunk and its folder alone.
//!
//! Invariants
//! * Which chunks a piece holds follows from their hashes alone ([`split_chunks`]): no bytes have to be read to know it. It is part
//!   of what a snapshot promises by the tag [`LAYOUT_TAG`]; a change of it takes another tag, and a save that takes nothing over.
//! * A piece holds the chunk itself, or chunks below it, or small blobs. So a part has small blobs where it has more pieces
//!   than its chunks need.
//! * A piece is taken over only from a part without blobs: of a chunk that is not read nobody knows which it refers to.
//! * No piece is taken over where chunks are left to the base of a clone: which of a part's chunks its pieces hold then
//!   follows from what the clone had of its own, too.
//!
//! Not here: which chunks belong to a part (`repository`); reading frames (`import`).

use std::collections::HashSet;

use tympan_store::{Chunk, ChunkId};

use crate::error::Result;
use crate::id_map::IdMap;
use crate::object_id::VaultObjectId;
use crate::vault::index::{PackBlobKind, VaultIndex};
use crate::vault::node::{SnapshotNode, SnapshotTree};
use crate::vault::pack_writer::PackWriter;

/// The tag of a snapshot whose files of frames are cut as [`split_chunks`] says.
pub(crate) const LAYOUT_TAG: &str = "layout:2";
/// The name of the file of frames in the folder of a part.
pub(super) const FRAME_FILE_NAME: &str = "chunks";
pub(crate) const CHUNK_FRAME_KIND: u8 = b'C';
pub(crate) const BLOB_FRAME_KIND: u8 = b'B';
/// A piece with chunks ends after so many.
const MAX_CHUNKS_PER_PIECE: usize = 16;
/// A piece with small blobs ends at this length.
const BLOB_PIECE_BYTES: usize = 256 * 1024;

/// Tells whether a piece ends after what has this hash: every fourth, in the mean.
const fn ends_piece(hash: &[u8; 32]) -> bool {
    hash[31] & 3 == 0
}

/// Splits the chunks of a part, without its own, as its pieces hold them.
pub(super) fn split_chunks(chunks: &[ChunkId]) -> Vec<&[ChunkId]> {
    let ends = chunks.split_inclusive(|id| ends_piece(id.as_bytes()));
    ends.flat_map(|some| some.chunks(MAX_CHUNKS_PER_PIECE)).collect()
}

/// Appends a frame.
pub(crate) fn push_frame(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Brings a piece of these chunks to the vault, which are some that [`split_chunks`] keeps together; returns its length, too.
pub(super) fn write_chunk_piece<'a>(
    writer: &PackWriter,
    chunks: impl Iterator<Item = &'a Chunk>,
) -> Result<(VaultObjectId, u64)> {
    let mut frames = Vec::new();
    chunks.for_each(|chunk| push_frame(&mut frames, CHUNK_FRAME_KIND, chunk.bytes()));
    Ok((writer.add_blob(PackBlobKind::Data, &frames)?.0, frames.len() as u64))
}

/// The pieces of a file of frames, which are brought to the vault as they are full.
pub(super) struct FramePieceWriter<'a> {
    writer: &'a PackWriter,
    ids: Vec<VaultObjectId>,
    length: u64,
    open_piece: Vec<u8>,
    /// Chunks that are in the open piece.
    open_piece_chunks: usize,
}

impl<'a> FramePieceWriter<'a> {
    /// Begins with the chunk itself.
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

    /// Adds a chunk below.
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

    /// Adds a piece that the vault has, with its length, where one ends.
    pub(super) fn reuse_piece(&mut self, (id, length): (VaultObjectId, u64)) {
        debug_assert!(self.open_piece.is_empty(), "a piece begins where the one before has ended");
        self.ids.push(id);
        self.length += length;
    }

    /// Ends the piece, if anything is in it.
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

/// A piece of the snapshot before.
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

/// What is known of the chunks of some parts of the snapshot before.
#[derive(Debug, Default)]
pub(super) struct PreviousChunks {
    /// All that the parts' own chunks refer to, and whether it is known to refer to nothing.
    refs: IdMap<ChunkId, bool>,
    /// Pieces, by the first chunk in each.
    pieces: IdMap<ChunkId, PreviousPiece>,
}

impl PreviousChunks {
    /// Finds out what the pieces of a part hold that has this chunk; its node is a folder, which was read, or a file.
    pub(super) fn from_part(
        chunk: &Chunk,
        (node, tree): (&SnapshotNode, Option<&SnapshotTree>),
        index: &VaultIndex,
    ) -> Self {
        let mut known = Self::default();
        let is_first = |id: &ChunkId| known.refs.insert(*id, false).is_none();
        let below: Vec<ChunkId> = chunk.chunk_refs().filter(is_first).collect();
        let file = match tree {
            Some(tree) => tree.find(FRAME_FILE_NAME.as_bytes()),
            None => Some(node),
        };
        let parts = known.list_parts(tree).filter(|_| chunk.blob_refs().len() == 0);
        let (Some(parts), Some(content)) = (parts, file.and_then(|file| file.content.as_ref()))
        else {
            return known;
        };
        let terminal: Vec<ChunkId> = below.into_iter().filter(|id| !parts.contains(id)).collect();
        let pieces = split_chunks(&terminal);
        // The first one is of the chunk itself; any more are of small blobs.
        let Some((_, content)) =
            content.split_first().filter(|(_, rest)| rest.len() == pieces.len())
        else {
            return known;
        };
        for (id, chunks) in content.iter().zip(pieces) {
            let (Some(first), Some(length)) =
                (chunks.first(), index.plain_length(PackBlobKind::Data, id))
            else {
                continue;
            };
            let piece = PreviousPiece { id: *id, length, chunks: chunks.to_vec() };
            known.pieces.insert(*first, piece);
        }
        known.refs.extend(terminal.into_iter().map(|id| (id, true)));
        known
    }

    /// Returns the parts that stand in a folder; nothing if something else stands there, which are large blobs.
    fn list_parts(&self, tree: Option<&SnapshotTree>) -> Option<HashSet<ChunkId>> {
        let nodes = tree.map_or(&[][..], |tree| tree.nodes.as_slice());
        let others = nodes.iter().filter(|node| node.name != FRAME_FILE_NAME.as_bytes());
        others.map(|node| parse_part_id(node).filter(|id| self.refs.contains_key(id))).collect()
    }

    /// Adds what is known of another part.
    pub(super) fn extend(&mut self, other: Self) {
        self.refs.reserve(other.refs.len());
        for (id, is_terminal) in other.refs {
            *self.refs.entry(id).or_default() |= is_terminal;
        }
        self.pieces.extend(other.pieces);
    }

    /// Returns how many chunks the parts refer to.
    pub(super) fn count_refs(&self) -> usize {
        self.refs.len()
    }

    /// Tells whether no piece can be taken over.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Tells whether one of the parts refers to a chunk.
    pub(super) fn refers_to(&self, id: &ChunkId) -> bool {
        self.refs.contains_key(id)
    }

    /// Tells whether a chunk is known to refer to no chunk, and to no blob.
    pub(super) fn is_terminal(&self, id: &ChunkId) -> bool {
        self.refs.get(id) == Some(&true)
    }

    /// Finds the piece that holds these chunks and no others.
    pub(super) fn find_piece(&self, chunks: &[ChunkId]) -> Option<&PreviousPiece> {
        self.pieces.get(chunks.first()?).filter(|piece| piece.chunks == chunks)
    }
}

/// Returns the chunk of the part that a node has the name of, if it is one of a part.
pub(super) fn parse_part_id(node: &SnapshotNode) -> Option<ChunkId> {
    let name = std::str::from_utf8(&node.name).ok()?;
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Snapshots promise it: a piece is taken over by the chunks that it must hold.
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
