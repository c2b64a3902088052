//! The newest revisions of a branch, cached for the change feed.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tympan_store::{ChunkStore, Revision};

use crate::Result;

/// Maximum number of revisions cached per process, the newest ones: about 200 bytes each.
const MAX_RECENT_REVISIONS: usize = 65_536;

/// The newest revisions of a branch, cached so that the cost of reading page by page is proportional to the pages.
#[derive(Debug, Default)]
pub(crate) struct RecentRevisions(Mutex<VecDeque<Arc<Revision>>>);

impl RecentRevisions {
    /// Adds the revisions committed since the last call, then returns a part of the list.
    pub(super) fn with_updated<T>(
        &self,
        chunks: &dyn ChunkStore,
        branch: &str,
        read: impl FnOnce(&VecDeque<Arc<Revision>>) -> T,
    ) -> Result<T> {
        let mut recent = self.0.lock();
        let newest = recent.back().map(|revision| revision.sequence);
        let mut step = 16;
        loop {
            let history = chunks.ref_history(branch, None, step)?;
            let is_all = history.len() < step || step >= MAX_RECENT_REVISIONS;
            let is_met = history.iter().any(|revision| Some(revision.sequence) == newest);
            if !is_all && !is_met {
                step *= 8;
                continue;
            }
            if !is_met {
                // No cached revision is in the history any more, or this is the first call.
                recent.clear();
            }
            let new = history
                .into_iter()
                .take_while(|revision| !is_met || Some(revision.sequence) > newest);
            let new: Vec<_> = new.map(Arc::new).collect();
            recent.extend(new.into_iter().rev());
            while recent.len() > MAX_RECENT_REVISIONS {
                recent.pop_front();
            }
            return Ok(read(&recent));
        }
    }
}
