//! The state of one branch: a set of named maps under one id.
//!
//! Not here: the names of the maps and their meaning (`content`).

use std::collections::BTreeMap;

use crate::chunk::root::{MAX_MAP_NAME_BYTES, encode_root_chunk, parse_map_names};
use crate::chunk::{Chunk, ChunkKind};
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_reader::ReadChunks;
use crate::tree::SortedMap;

const MAX_ROOT_MAPS: usize = 200;

/// The named maps of one state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRoot {
    /// The maps; one that is not listed is empty.
    pub maps: BTreeMap<String, SortedMap>,
}

impl StoreRoot {
    /// Returns the named map, empty if it is not listed.
    #[must_use]
    pub fn map(&self, name: &str) -> SortedMap {
        self.maps.get(name).copied().unwrap_or(SortedMap::EMPTY_MAP)
    }

    /// Stages the root and returns its id. Empty maps are omitted, so that equal content has one id.
    ///
    /// # Errors
    /// [`Error::TooLong`] for a name of more than 255 bytes; [`Error::TooMany`] above 200 maps.
    pub fn write(&self, batch: &mut ChunkBatch) -> Result<ChunkId> {
        let listed: Vec<(&str, ChunkId)> =
            self.maps.iter().filter_map(|(name, map)| Some((name.as_str(), map.root()?))).collect();
        if listed.len() > MAX_ROOT_MAPS {
            let (what, count) = ("maps of a root", listed.len());
            return Err(Error::TooMany { what, count, limit: MAX_ROOT_MAPS });
        }
        for (name, _) in &listed {
            if name.len() > MAX_MAP_NAME_BYTES {
                let (what, length) = ("name of a map", name.len());
                return Err(Error::TooLong { what, length, limit: MAX_MAP_NAME_BYTES });
            }
        }
        Ok(batch.add_chunk(encode_root_chunk(&listed)))
    }

    /// Reads the root of a state.
    ///
    /// # Errors
    /// [`Error::ChunkKindMismatch`] if `id` names another kind of chunk, or a failed read.
    pub fn read(reads: &dyn ReadChunks, id: &ChunkId) -> Result<Self> {
        Self::parse_chunk(&reads.read_chunk(id)?, id)
    }

    /// Reads the maps that a chunk lists.
    pub(crate) fn parse_chunk(chunk: &Chunk, id: &ChunkId) -> Result<Self> {
        if chunk.kind() != ChunkKind::Root {
            return Err(Error::ChunkKindMismatch { id: *id, expected: "root" });
        }
        let names = parse_map_names(chunk.payload())
            .map_err(|fault| Error::ChunkDamaged { id: *id, fault })?;
        let maps = names
            .into_iter()
            .zip(chunk.chunk_refs())
            .map(|(name, root)| (name.to_owned(), SortedMap::from_root(Some(root))))
            .collect();
        Ok(Self { maps })
    }
}
