//! Reading ahead where round trips cost: a walk reads its next few chunks with one call.
//!
//! The number doubles from one to [`MAX_READ_AHEAD_CHUNKS`] on each level, so that a short walk reads hardly more than it needs.

use super::interior::MAX_TREE_LEVEL;
use crate::chunk_store::ReadChunks;

/// Chunks that are read with one call at most.
pub(super) const MAX_READ_AHEAD_CHUNKS: usize = 32;

/// How many chunks of each level to read with the next call.
pub(super) struct ReadAheadWindows {
    is_enabled: bool,
    /// How often each level has been read: the exponents.
    read_counts: [u8; MAX_TREE_LEVEL as usize + 1],
}

impl ReadAheadWindows {
    pub(super) fn new(reads: &dyn ReadChunks) -> Self {
        Self {
            is_enabled: reads.has_costly_round_trips(),
            read_counts: [0; MAX_TREE_LEVEL as usize + 1],
        }
    }

    /// Tells whether walks read ahead at all.
    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Returns the number of chunks to read for a level, and grows it.
    pub(super) fn next_window(&mut self, level: u8) -> usize {
        if !self.is_enabled {
            return 1;
        }
        let Some(calls) = self.read_counts.get_mut(usize::from(level)) else {
            return 1;
        };
        let window = (1_usize << *calls).min(MAX_READ_AHEAD_CHUNKS);
        if window < MAX_READ_AHEAD_CHUNKS {
            *calls += 1;
        }
        window
    }
}
