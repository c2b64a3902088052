//! Read-ahead where round trips are costly: a walk reads its next few chunks with one call.
//!
//! The number doubles from one to [`MAX_READ_AHEAD_CHUNKS`] on each level, so that a short walk reads hardly more than
//! it needs.

use crate::chunk::interior::MAX_TREE_LEVEL;
use crate::interface::chunk_reader::ReadChunks;

/// The maximum number of chunks read with one call.
const MAX_READ_AHEAD_CHUNKS: usize = 32;

/// The number of chunks to read with the next call, by level.
pub(super) struct ReadAheadWindows {
    is_enabled: bool,
    /// The number of reads of each level: the exponents.
    read_counts: [u8; MAX_TREE_LEVEL as usize + 1],
}

impl ReadAheadWindows {
    pub(super) fn new(reads: &dyn ReadChunks) -> Self {
        Self {
            is_enabled: reads.has_costly_round_trips(),
            read_counts: [0; MAX_TREE_LEVEL as usize + 1],
        }
    }

    /// Returns true if walks read ahead.
    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Returns the number of chunks to read for a level, and increases it for the next call.
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
