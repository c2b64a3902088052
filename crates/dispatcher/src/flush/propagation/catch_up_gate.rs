//! The gate that holds visitors back until siblings have sent what this dispatcher missed.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Holds visitors back until siblings have sent the events that this dispatcher missed. Requests of siblings are always
/// answered, so that siblings that start together do not wait for each other.
#[derive(Debug)]
pub(crate) struct CatchUpGate {
    is_open: AtomicBool,
    opened: watch::Sender<bool>,
}

impl CatchUpGate {
    pub(crate) fn new(is_set: bool) -> Self {
        Self { is_open: AtomicBool::new(is_set), opened: watch::Sender::new(is_set) }
    }

    pub(crate) async fn wait_until_open(&self) {
        if !self.is_open.load(Ordering::Acquire) {
            // The sender lives as long as this gate.
            self.opened.subscribe().wait_for(|is_set| *is_set).await.ok();
        }
    }

    /// Returns a value that opens the gate when it is dropped.
    pub(super) fn open_when_dropped(&self) -> CatchUpGuard<'_> {
        CatchUpGuard(self)
    }
}

/// Opens the gate when dropped, whatever the outcome of the query.
pub(super) struct CatchUpGuard<'a>(&'a CatchUpGate);

impl Drop for CatchUpGuard<'_> {
    fn drop(&mut self) {
        self.0.is_open.store(true, Ordering::Release);
        self.0.opened.send_replace(true);
    }
}
