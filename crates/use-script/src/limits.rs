//! The limits of a realm.

use std::time::Duration;

/// The limits of a realm, besides the steps of the page's budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UseScriptLimits {
    /// Bytes of memory that all objects of a realm may take.
    pub memory_bytes: usize,
    /// Bytes of stack, counted from where the realm was created. A script that would need more fails.
    pub stack_bytes: usize,
    /// The time that all scripts of a realm may run. Steps end a run sooner, except one whose single operations are
    /// long, such as searches in texts of megabytes.
    pub run_time: Duration,
}

impl Default for UseScriptLimits {
    /// 8 MiB of memory, 256 KiB of stack, two seconds.
    fn default() -> Self {
        Self { memory_bytes: 8 << 20, stack_bytes: 256 << 10, run_time: Duration::from_secs(2) }
    }
}
