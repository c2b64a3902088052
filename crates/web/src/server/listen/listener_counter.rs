//! The counters of a listener, and the number of connections of each client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The counters of a listener.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections open now.
    pub open: AtomicU64,
    /// Connections that arrived while `max_connections` were open; a rise means that clients wait.
    pub saturated: AtomicU64,
    /// Connections that currently wait for this reason.
    pub waiting: AtomicU64,
    /// Connections answered with 503 because `max_connections` were open and too many waited; a rise means overload.
    pub refused: AtomicU64,
    /// Connections answered with 503 because they waited too long; a rise means overload.
    pub wait_timed_out: AtomicU64,
    /// Idle connections closed because others waited; a rise means that clients keep more connections open than are
    /// allowed.
    pub evicted: AtomicU64,
    /// Connections closed after a response because permits were scarce; it rises before `evicted`.
    pub closed_when_scarce: AtomicU64,
    /// Requests refused because of the announced size of their body.
    pub bodies_refused: AtomicU64,
    /// Connections that ended with a protocol or socket error, including slow heads.
    pub failed: AtomicU64,
    /// Connections closed because their client had too many.
    pub per_client_refused: AtomicU64,
    /// Number of connections of each client, if that is limited.
    connections_by_client: Mutex<HashMap<IpAddr, usize>>,
}

/// Counts a connection of its client until it is dropped.
pub(super) struct ClientConnectionGuard {
    counters: Arc<ListenerCounters>,
    client: IpAddr,
}

impl ClientConnectionGuard {
    /// Counts a connection of `client`; `None` if it already has `max` connections.
    pub(super) fn try_acquire(
        counters: &Arc<ListenerCounters>,
        client: IpAddr,
        max: usize,
    ) -> Option<Self> {
        let mut clients =
            counters.connections_by_client.lock().unwrap_or_else(PoisonError::into_inner);
        let count = clients.entry(client).or_default();
        if *count >= max {
            counters.per_client_refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *count += 1;
        Some(Self { counters: Arc::clone(counters), client })
    }
}

impl Drop for ClientConnectionGuard {
    fn drop(&mut self) {
        let mut clients =
            self.counters.connections_by_client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = clients.entry(self.client) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}
