//! `/x-health`: when a render is left alone for a while.

use std::time::Duration;

use super::reader::ConfigReader;
use crate::any_syntax::ConfigBlock;

/// When a render is left alone, and how it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthRules {
    /// Failures in a row after which it is left alone: no connection, no answer in time, 502, 503, 504 (`/failures`,
    /// default 5; 0 for never).
    pub failures: u32,
    /// For how long the first time; it doubles each time (`/pause`, default 10 s).
    pub initial_pause: Duration,
    /// How long it gets less than its share when it comes back (`/slowStart`, default 10 s).
    pub slow_start: Duration,
    /// Whether it is not asked at all meanwhile, even if no other render answers (`/breaker`, default no).
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
