//! The states that replace damaged ones.

use std::collections::HashMap;

use crate::id::ChunkId;

/// The replacements of damaged states.
pub(super) type ReplacementStates = HashMap<ChunkId, ReplacementState>;

/// The replacement of a damaged state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplacementState {
    /// Nothing of the state, nor of any older one, can be read.
    Unrecoverable,
    /// A new state can be built.
    Planned,
    /// A new state is stored.
    Stored(ChunkId),
}

impl ReplacementState {
    /// Returns the root of a stored replacement.
    pub(super) fn stored_root(self) -> Option<ChunkId> {
        match self {
            Self::Stored(root) => Some(root),
            Self::Unrecoverable | Self::Planned => None,
        }
    }
}
