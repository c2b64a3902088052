//! The total cost of all requests of an instance.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Total cost of all requests.
#[derive(Debug, Default)]
pub(crate) struct RequestTotals {
    total_micros: AtomicU64,
    longest_micros: AtomicU64,
    bytes_sent: AtomicU64,
}

impl RequestTotals {
    /// Counts a request whose response has been sent.
    pub(crate) fn record_request(&self, elapsed: Duration, bytes_sent: u64) {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.total_micros.fetch_add(micros, Ordering::Relaxed);
        self.longest_micros.fetch_max(micros, Ordering::Relaxed);
        self.bytes_sent.fetch_add(bytes_sent, Ordering::Relaxed);
    }

    /// Returns the total time of all requests, in milliseconds.
    pub(crate) fn total_millis(&self) -> u64 {
        self.total_micros.load(Ordering::Relaxed) / 1000
    }

    /// Returns the time of the longest request, in milliseconds.
    pub(crate) fn longest_millis(&self) -> u64 {
        self.longest_micros.load(Ordering::Relaxed) / 1000
    }

    /// Returns the total number of bytes in responses.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Ordering::Relaxed)
    }
}
