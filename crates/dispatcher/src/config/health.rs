//! `/x-health`: temporary suspension of a failing render.

use std::time::Duration;

use super::reader::ConfigReader;
use crate::config::any_syntax::ConfigBlock;

/// The rules for suspending a render and for its return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthRules {
    /// The number of consecutive failures after which a render is suspended: no connection, no response in time, 502,
    /// 503, 504 (`/failures`, default 5; 0 for never).
    pub failures: u32,
    /// The duration of the first suspension; it doubles each time (`/pause`, default 10 s).
    pub initial_pause: Duration,
    /// The time for which a returning render gets less than its share (`/slowStart`, default 10 s).
    pub slow_start: Duration,
    /// True if a suspended render gets no requests at all, even if no other render responds (`/breaker`, default no).
    pub has_circuit_breaker: bool,
}

impl Default for HealthRules {
    fn default() -> Self {
        Self {
            failures: 5,
            initial_pause: Duration::from_secs(10),
            slow_start: Duration::from_secs(10),
            has_circuit_breaker: false,
        }
    }
}

pub(super) fn read_health(reader: &mut ConfigReader, block: &ConfigBlock) -> HealthRules {
    let mut rules = HealthRules::default();
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "failures" => rules.failures = reader.read_number(&entry).unwrap_or(rules.failures),
            "pause" => {
                rules.initial_pause = reader.read_seconds(&entry).unwrap_or(rules.initial_pause)
            }
            "slowStart" => {
                rules.slow_start = reader.read_seconds(&entry).unwrap_or(rules.slow_start)
            }
            "breaker" => rules.has_circuit_breaker = reader.read_boolean(&entry).unwrap_or(false),
            _ => reader.warn_of_unknown_key(&entry, &["failures", "pause", "slowStart", "breaker"]),
        }
    }
    rules
}
