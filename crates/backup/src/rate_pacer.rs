//! Rate limiting: each operation takes from a budget that refills over time.
//!
//! Not here: waiting, and what is counted (`backend::transfer_limit`, `save`).

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Maximum number of bytes or calls per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit(pub NonZeroU64);

impl RateLimit {
    /// Returns the time that an amount takes at this rate.
    fn time_for(self, amount: u64) -> Duration {
        let nanos = u128::from(amount) * 1_000_000_000 / u128::from(self.0.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Tracks when the next operation may start.
#[derive(Debug)]
pub(crate) struct RatePacer {
    rate: RateLimit,
    pub(crate) available_at: Option<Instant>,
}

impl RatePacer {
    /// Creates a pacer with a full budget.
    pub(crate) const fn new(rate: RateLimit) -> Self {
        Self { rate, available_at: None }
    }

    /// Takes an amount from the budget; returns how long to wait before the operation may start.
    pub(crate) fn reserve(&mut self, amount: u64, now: Instant) -> Duration {
        let begin = self.available_at.map_or(now, |free_at| free_at.max(now));
        self.available_at = begin.checked_add(self.rate.time_for(amount));
        begin.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_over_many_files() {
        let rate = RateLimit(NonZeroU64::new(1000).unwrap());
        let (mut pace, begin) = (RatePacer::new(rate), Instant::now());
        let mut now = begin;
        let mut sent = 0;
        for bytes in [500, 1, 4000, 0, 250] {
            now += pace.reserve(bytes, now);
            assert!(now - begin >= rate.time_for(sent), "{bytes}");
            sent += bytes;
        }
        // Idle time does not accumulate budget beyond the limit.
        now += Duration::from_secs(3600);
        assert_eq!(pace.reserve(2000, now), Duration::ZERO);
        assert_eq!(pace.reserve(1, now), Duration::from_secs(2));
    }
}
