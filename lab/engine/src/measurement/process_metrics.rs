//! The metrics of the tested process at one moment.

use std::time::Duration;

/// The metrics of the process at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessMetrics {
    /// Time since the first reading.
    pub elapsed: Duration,
    /// CPU time that the process has used.
    pub cpu_time: Duration,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    /// Number of open files.
    pub open_files: u64,
    /// Number of threads.
    pub thread_count: u64,
    /// Bytes read from and written to disks.
    pub disk_bytes: u64,
    /// Its pools, such as worker threads and connections; empty if it reports none.
    pub pools: Vec<PoolUsage>,
}

/// The usage of a pool with a limited number of slots.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolUsage {
    /// The name, such as `work`.
    pub name: String,
    /// Number of slots in use.
    pub in_use: f64,
    /// Maximum number of slots.
    pub limit: f64,
    /// Number of requests that wait for a slot.
    pub waiting: f64,
}

impl PoolUsage {
    /// Returns the share of its slots that are in use.
    #[must_use]
    pub fn used_share(&self) -> f64 {
        if self.limit > 0.0 { self.in_use / self.limit } else { 0.0 }
    }
}
