//! The queue of flushes that wait to be carried out together.

use std::collections::BTreeSet;
use std::path::PathBuf;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tympan_web::flush_message::FlushMessage;

/// A flush of one document root, with all paths below it.
#[derive(Debug, Clone)]
pub(crate) struct DocrootFlush {
    pub(crate) message: FlushMessage,
    /// The paths that the handle may refer to; at least one.
    pub(crate) handles: Vec<PathBuf>,
    /// Files on the re-fetch list.
    pub(crate) refetch_files: BTreeSet<PathBuf>,
    /// The handles of these files' variants, because the list of pages does not contain their queries.
    pub(crate) variant_handles: Vec<PathBuf>,
}

/// The waiting flushes of a farm.
#[derive(Debug, Default)]
pub(crate) struct FlushQueue(Mutex<FlushQueueState>);

#[derive(Debug, Default)]
struct FlushQueueState {
    waiting_flushes: Vec<WaitingFlush>,
    has_worker: bool,
}

#[derive(Debug)]
pub(super) struct WaitingFlush {
    pub(super) flush: DocrootFlush,
    pub(super) result_sender: oneshot::Sender<std::io::Result<()>>,
}

impl FlushQueue {
    /// Adds a flush; returns true if no batch is running yet.
    pub(super) fn push(&self, flush: WaitingFlush) -> bool {
        let mut state = self.0.lock();
        state.waiting_flushes.push(flush);
        !std::mem::replace(&mut state.has_worker, true)
    }

    /// Takes all waiting flushes; if there are none, marks the batcher as idle.
    pub(super) fn take_waiting(&self) -> Vec<WaitingFlush> {
        let mut state = self.0.lock();
        let flushes = std::mem::take(&mut state.waiting_flushes);
        state.has_worker = !flushes.is_empty();
        flushes
    }

    /// Forgets the waiting flushes and their worker.
    pub(super) fn reset(&self) {
        *self.0.lock() = FlushQueueState::default();
    }
}
