//! What a listener counts, and how many connections each client has.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a listener counts.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections open now.
    pub open: AtomicU64,
    /// Connections that came while `max_connections` were open; a rise means that clients wait.
    pub saturated: AtomicU64,
    /// Connections that wait for that now.
    pub waiting: AtomicU64,
    /// Connections answered 503 as `max_connections` were open and too many waited; a rise means overload.
    pub refused: AtomicU64,
    /// Connections answered 503 as they waited too long; a rise means overload.
    pub wait_timed_out: AtomicU64,
    /// Connections closed while nothing was asked on them, as others waited; a rise means that more clients keep
    /// connections than there are places.
    pub evicted: AtomicU64,
    /// Connections closed with an answer, as hardly any place was free; it rises before `evicted`.
    pub closed_when_scarce: AtomicU64,
    /// Requests refused for the announced size of their body.
    pub bodies_refused: AtomicU64,
    /// Connections that ended with a protocol or socket error, slow heads included.
    pub failed: AtomicU64,
    /// Connections closed as their client had too many already.
    pub per_client_refused: AtomicU64,
    /// How many connections each client has, while that is bounded.
    connections_by_client: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection that counts for its client until it is dropped.
pub(super) struct ClientConnectionGuard {
    counters: Arc<ListenerCounters>,
    client: IpAddr,
}

impl ClientConnectionGuard {
    /// Counts a connection of `client`; nothing if it has `max` of them.
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
