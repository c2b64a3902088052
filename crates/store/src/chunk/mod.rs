//! One chunk: checked bytes, and the references in its header.
//!
//! Invariants
//! * A [`Chunk`] has been checked for its structure, so that its parts are read without further checks.
//! * A clone shares the bytes.
//!
//! Not here: trees of chunks (`tree`). The format is `docs/formats/chunk.md`.

pub(crate) mod body;
mod frame;
pub(crate) mod interior;
pub(crate) mod leaf;
mod record;
pub(crate) mod root;

use std::ops::Deref;

use bytes::Bytes;

use crate::error::{Error, Result};

pub(crate) use frame::{BLOB_REF_BYTES, CHUNK_HEADER_BYTES};
pub use frame::{ChunkFrame, ChunkKind, MAX_CHUNK_BYTES};
pub use record::{MAX_KEY_BYTES, MAX_VALUE_BYTES, MapValue};
pub(crate) use record::{check_record_limits, common_prefix_length};

/// An immutable piece of a state, checked for its structure. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    frame: ChunkFrame,
}

impl Chunk {
    /// Parses a chunk and checks the structure of `bytes`; the caller checks the hash.
    ///
    /// # Errors
    /// [`Error::ChunkMalformed`] for bytes that no writer of this format produces.
    pub fn parse(bytes: Bytes) -> Result<Self> {
        let malformed = |fault| Error::ChunkMalformed { fault };
        let frame = ChunkFrame::parse(bytes).map_err(malformed)?;
        let check = match frame.kind() {
            ChunkKind::Leaf => leaf::check_leaf_chunk(&frame),
            ChunkKind::Interior => interior::check_interior_chunk(&frame),
            ChunkKind::Body | ChunkKind::BodyList => body::check_body_chunk(&frame),
            ChunkKind::Root => root::check_root_chunk(&frame),
        };
        check.map_err(malformed)?;
        Ok(Self { frame })
    }
}

impl Deref for Chunk {
    type Target = ChunkFrame;

    fn deref(&self) -> &ChunkFrame {
        &self.frame
    }
}
