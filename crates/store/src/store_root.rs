//! The state of one branch: a set of named maps under one id.
//!
//! Not here: the names of the maps and their meaning (`content`).

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::chunk::{self, Chunk, ChunkKind};
use crate::chunk_batch::ChunkBatch;
use crate::chunk_store::ReadChunks;
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::tree::SortedMap;

const MAX_MAP_NAME_BYTES: usize = 255;
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
        let refs: Vec<ChunkId> = listed.iter().map(|(_, id)| *id).collect();
        let payload: usize = listed.iter().map(|(name, _)| name.len() + 1).sum();
        let mut bytes = chunk::encode_chunk_header(ChunkKind::Root, &refs, &[], payload + 2);
        bytes.extend_from_slice(&chunk::encode_u16(listed.len()));
        for (name, _) in listed {
            if name.len() > MAX_MAP_NAME_BYTES {
                let (what, length) = ("name of a map", name.len());
                return Err(Error::TooLong { what, length, limit: MAX_MAP_NAME_BYTES });
            }
            let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
            bytes.push(length);
            bytes.extend_from_slice(name.as_bytes());
        }
        Ok(batch.add_chunk(Bytes::from(bytes)))
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

/// Checks the structure of a root chunk; the error states the fault.
pub(crate) fn check_root_chunk(chunk: &Chunk) -> Result<(), &'static str> {
    if chunk.blob_ref_count() > 0 {
        return Err("a root refers to blobs");
    }
    let names = parse_map_names(chunk.payload())?;
    if names.len() != chunk.chunk_ref_count() {
        return Err("the number of maps differs from the number of references");
    }
    if !names.is_sorted_by(|left, right| left < right) {
        return Err("names of maps are not in ascending order");
    }
    Ok(())
}

fn parse_map_names(payload: &[u8]) -> Result<Vec<&str>, &'static str> {
    let (count, mut rest) =
        payload.split_first_chunk::<2>().ok_or("the number of maps is cut off")?;
    let count = usize::from(u16::from_le_bytes(*count));
    let mut names = Vec::new();
    for _ in 0..count {
        let (length, after) = rest.split_first().ok_or("a map is cut off")?;
        let (name, after) =
            after.split_at_checked(usize::from(*length)).ok_or("the name of a map is cut off")?;
        if name.is_empty() {
            return Err("the name of a map is empty");
        }
        names.push(std::str::from_utf8(name).map_err(|_| "the name of a map is not UTF-8")?);
        rest = after;
    }
    if rest.is_empty() { Ok(names) } else { Err("bytes follow the last map") }
}
