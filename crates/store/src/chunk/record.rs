//! One record of a leaf: the value of a key, and the limits of both.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::id::ChunkId;

/// The maximum length of a key in bytes.
pub const MAX_KEY_BYTES: usize = 2_048;
/// The maximum length of an inline value in bytes; longer ones go into a body.
pub const MAX_VALUE_BYTES: usize = 16_384;

/// The value of a key: inline bytes, and optionally a body beside them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MapValue {
    /// The inline bytes, shared with the chunk they were read from.
    pub bytes: Bytes,
    /// The body, written with [`body::write`](crate::body::write_body).
    pub body: Option<ChunkId>,
}

/// Returns an error for records beyond the limits of the format.
pub(crate) fn check_record_limits(key: &[u8], value: &MapValue) -> Result<()> {
    let limits = [("key", key.len(), MAX_KEY_BYTES), ("value", value.bytes.len(), MAX_VALUE_BYTES)];
    for (what, length, limit) in limits {
        if length > limit {
            return Err(Error::TooLong { what, length, limit });
        }
    }
    Ok(())
}

/// Returns the length of the common prefix of two keys.
pub(crate) fn common_prefix_length(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}
