//! The layout of a root chunk: the names of the maps of a state, in the order of its references.

use bytes::Bytes;

use super::frame::{ChunkFrame, ChunkKind, encode_chunk_header, encode_u16};
use crate::id::ChunkId;

/// The maximum length of the name of a map in bytes.
pub(crate) const MAX_MAP_NAME_BYTES: usize = u8::MAX as usize;

/// Encodes the root of maps, which are sorted by name. The caller checks their number and the length of the names.
pub(crate) fn encode_root_chunk(maps: &[(&str, ChunkId)]) -> Bytes {
    let refs: Vec<ChunkId> = maps.iter().map(|(_, id)| *id).collect();
    let payload: usize = maps.iter().map(|(name, _)| name.len() + 1).sum();
    let mut bytes = encode_chunk_header(ChunkKind::Root, &refs, &[], payload + 2);
    bytes.extend_from_slice(&encode_u16(maps.len()));
    for (name, _) in maps {
        bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(name.as_bytes());
    }
    Bytes::from(bytes)
}

/// Checks the structure of a root chunk; the error states the fault.
pub(super) fn check_root_chunk(chunk: &ChunkFrame) -> Result<(), &'static str> {
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

/// Returns the names of the maps in a payload.
pub(crate) fn parse_map_names(payload: &[u8]) -> Result<Vec<&str>, &'static str> {
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
