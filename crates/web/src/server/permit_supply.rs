//! The permits for connections of a listener, and the clients that wait for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::server::listen::ListenerCounters;

/// Permits are scarce while fewer than one in this number is free.
const SCARCE_DIVISOR: usize = 16;

/// The permits of one listener.
#[derive(Debug)]
pub(crate) struct PermitSupply {
    permits: Arc<Semaphore>,
    /// Permits are scarce if fewer than this number are free.
    scarce_threshold: usize,
    waiter_count: AtomicUsize,
    counters: Arc<ListenerCounters>,
}

impl PermitSupply {
    /// Creates `limit` permits.
    pub(crate) fn new(limit: usize, counters: Arc<ListenerCounters>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limit)),
            scarce_threshold: limit / SCARCE_DIVISOR,
            waiter_count: AtomicUsize::new(0),
            counters,
        }
    }

    /// Returns the counters of the listener.
    pub(crate) fn counters(&self) -> &Arc<ListenerCounters> {
        &self.counters
    }

    /// Takes a permit if one is free and nobody waits.
    pub(crate) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Waits for a permit.
    pub(crate) fn acquire(&self) -> impl Future<Output = OwnedSemaphorePermit> + use<> {
        let permits = Arc::clone(&self.permits);
        async move {
            match permits.acquire_owned().await {
                Ok(permit) => permit,
                // The semaphore is never closed.
                Err(_closed) => std::future::pending().await,
            }
        }
    }

    /// Waits until all `limit` permits are free.
    pub(crate) async fn wait_complete(&self, limit: usize) {
        let all = u32::try_from(limit).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.permits.acquire_many(all).await.ok();
    }

    /// Counts a client that begins to wait.
    pub(crate) fn begin_waiting(&self) {
        self.waiter_count.fetch_add(1, Ordering::Relaxed);
        self.counters.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a client that no longer waits.
    pub(crate) fn end_waiting(&self) {
        self.waiter_count.fetch_sub(1, Ordering::Relaxed);
        self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of waiting clients.
    pub(crate) fn waiter_count(&self) -> usize {
        self.waiter_count.load(Ordering::Relaxed)
    }

    /// Returns true if permits are scarce, so that responses are to be the last of their connections.
    pub(crate) fn are_scarce(&self) -> bool {
        self.permits.available_permits() < self.scarce_threshold
            || self.waiter_count.load(Ordering::Relaxed) > 0
    }

    /// Same as `are_scarce`, for a response sent now that would otherwise not be the last one; such closings are
    /// counted.
    pub(crate) fn must_close_connection(&self) -> bool {
        let are_scarce = self.are_scarce();
        if are_scarce {
            self.counters.closed_when_scarce.fetch_add(1, Ordering::Relaxed);
        }
        are_scarce
    }
}
