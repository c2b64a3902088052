//! The name of a persistent sorted map: its root chunk. The operations are beside their algorithms.

use crate::id::ChunkId;

/// A persistent sorted map, identified by its root chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SortedMap {
    root: Option<ChunkId>,
}

impl SortedMap {
    /// The map without records.
    pub const EMPTY_MAP: Self = Self { root: None };

    /// Creates a map from its root chunk; `None` is the empty map.
    #[must_use]
    pub const fn from_root(root: Option<ChunkId>) -> Self {
        Self { root }
    }

    /// Returns the root chunk; `None` for the empty map.
    #[must_use]
    pub const fn root(&self) -> Option<ChunkId> {
        self.root
    }

    /// Returns true if the map has no records.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.root.is_none()
    }
}
