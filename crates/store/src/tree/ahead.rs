//! Reading ahead where round trips cost: a walk reads its next few chunks with one call.
//!
//! The number doubles from one to [`MAX_WINDOW`] on each level, so that a short walk reads hardly more than it needs.

use super::interior::MAX_LEVEL;
use crate::chunk_store::ReadChunks;

/// Chunks that are read with one call at most.
pub(super) const MAX_WINDOW: usize = 32;

/// How many chunks of each level to read with the next call.
pub(super) struct Windows {
    reads_ahead: bool,
    /// How often each level has been read: the exponents.
    calls: [u8; MAX_LEVEL as usize + 1],
}

impl Windows {
    pub(super) fn new(reads: &dyn ReadChunks) -> Self {
        Self { reads_ahead: reads.has_costly_round_trips(), calls: [0; MAX_LEVEL as usize + 1] }
    }

    /// Tells whether walks read ahead at all.
    pub(super) fn reads_ahead(&self) -> bool {
        self.reads_ahead
    }

    /// Returns the number of chunks to read for a level, and grows it.
    pub(super) fn open(&mut self, level: u8) -> usize {
        if !self.reads_ahead {
            return 1;
        }
        let Some(calls) = self.calls.get_mut(usize::from(level)) else {
            return 1;
        };
        let window = (1_usize << *calls).min(MAX_WINDOW);
        if window < MAX_WINDOW {
            *calls += 1;
        }
        window
    }
}
