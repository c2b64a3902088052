//! The resource limits of queries.

use std::time::{Duration, Instant};

/// The resource limits of a query.
#[derive(Debug, Clone)]
pub struct QueryLimits {
    /// Maximum number of rows held in memory for sorting.
    pub max_rows_in_memory: usize,
    /// Maximum number of nodes and index entries read.
    pub max_rows_read: u64,
    /// Maximum duration.
    pub max_time: Duration,
    /// Minimum duration of a statement that is listed as slow.
    pub slow_threshold: Duration,
    /// The clock for measuring the duration of a query.
    pub clock: fn() -> Instant,
}

impl QueryLimits {
    /// Returns the smaller value of each limit. The threshold for slow statements stays.
    #[must_use]
    pub fn min_with(&self, other: &Self) -> Self {
        Self {
            max_rows_in_memory: self.max_rows_in_memory.min(other.max_rows_in_memory),
            max_rows_read: self.max_rows_read.min(other.max_rows_read),
            max_time: self.max_time.min(other.max_time),
            slow_threshold: self.slow_threshold,
            clock: self.clock,
        }
    }
}

impl Default for QueryLimits {
    fn default() -> Self {
        Self {
            max_rows_in_memory: 500_000,
            max_rows_read: u64::MAX,
            max_time: Duration::from_secs(60),
            slow_threshold: Duration::from_millis(100),
            clock: Instant::now,
        }
    }
}
