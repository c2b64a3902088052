//! Timeout for a client that reads its response in pieces: a limit on the time without progress, and a minimum average
//! rate.
//!
//! In: the start and end of waits for the client, and the number of bytes it read. Out: the time at which to give up.
//!
//! The time is a budget. Waiting for the client spends it, and each byte that the client reads restores some of it, up
//! to the initial value. So a client that reads nothing times out when the budget is spent, and one that reads less
//! than [`MIN_CLIENT_BYTES_PER_SECOND`] somewhat later, in however small or rare pieces it reads.
//!
//! Not here: request bodies ([`crate::server::body_limit`]).

use std::time::Duration;

/// Minimum average read rate of a client, in bytes per second; the same as httpd's `RequestReadTimeout` for received
/// data.
pub const MIN_CLIENT_BYTES_PER_SECOND: u64 = 500;

/// Maximum overdraft of the budget, in milliseconds. Without an overdraft, a client that reads a byte between any two
/// checks of the clock would never time out; with a large one, the client would be blamed for a stall of this machine.
const MAX_BUDGET_DEBT_MS: i64 = 1000;

/// The timeout state of one client, on a clock of milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowClientTimeout {
    budget_ms: i64,
    remaining_ms: i64,
    /// Start of the current wait for the client.
    waiting_since_ms: Option<u64>,
}

impl SlowClientTimeout {
    /// Creates the timeout for a client that may read nothing for `most`.
    #[must_use]
    pub fn new(most: Duration) -> Self {
        let most_ms = i64::try_from(most.as_millis()).unwrap_or(i64::MAX);
        Self { budget_ms: most_ms, remaining_ms: most_ms, waiting_since_ms: None }
    }

    /// Records the bytes that the client read since the last call, and whether it is being waited for from now on.
    pub fn record_progress(&mut self, now_ms: u64, sent_length: u64, is_waiting: bool) {
        if let Some(since_ms) = self.waiting_since_ms {
            let waited = i64::try_from(now_ms.saturating_sub(since_ms)).unwrap_or(i64::MAX);
            self.remaining_ms = self.remaining_ms.saturating_sub(waited).max(-MAX_BUDGET_DEBT_MS);
        }
        let earned = i64::try_from(sent_length.saturating_mul(1000) / MIN_CLIENT_BYTES_PER_SECOND)
            .unwrap_or(i64::MAX);
        self.remaining_ms = self.remaining_ms.saturating_add(earned).min(self.budget_ms);
        self.waiting_since_ms = is_waiting.then_some(now_ms);
    }

    /// Returns true if the client is being waited for.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.waiting_since_ms.is_some()
    }

    /// Returns true if the client is not being waited for and the budget is full.
    #[must_use]
    pub fn is_idle_with_full_budget(&self) -> bool {
        self.waiting_since_ms.is_none() && self.remaining_ms == self.budget_ms
    }

    /// Returns the time at which the client times out without further progress; `None` while it is not being waited
    /// for.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        self.waiting_since_ms.map(|since_ms| since_ms.saturating_add_signed(self.remaining_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::{MIN_CLIENT_BYTES_PER_SECOND, SlowClientTimeout};
    use std::time::Duration;

    const MOST: Duration = Duration::from_secs(30);

    /// Returns the time at which a client times out that reads `bytes` every `every` seconds, if it is within a day.
    fn end_of(bytes: u64, every: u64) -> Option<u64> {
        let mut client_timeout = SlowClientTimeout::new(MOST);
        client_timeout.record_progress(0, 0, true);
        let mut now_ms = 0;
        while now_ms < 24 * 3600 * 1000 {
            let end_ms = client_timeout.deadline_ms().unwrap();
            now_ms += every * 1000;
            if end_ms <= now_ms {
                return Some(end_ms / 1000);
            }
            client_timeout.record_progress(now_ms, bytes, true);
        }
        None
    }

    #[test]
    fn who_takes_nothing_or_too_little_is_given_up() {
        for (bytes, every, expected) in [
            (0, 1, Some(30)),
            (0, 29, Some(30)),
            (1, 29, Some(30)),
            (1, 1, Some(30)),
            (MIN_CLIENT_BYTES_PER_SECOND / 2, 1, Some(59)),
            (MIN_CLIENT_BYTES_PER_SECOND, 1, None),
            (MIN_CLIENT_BYTES_PER_SECOND * 29, 29, None),
            (1 << 40, 29, None),
            // However much it read before.
            (1 << 40, 30, Some(30)),
        ] {
            assert_eq!(end_of(bytes, every), expected, "{bytes} bytes every {every} s");
        }
    }

    #[test]
    fn only_waiting_counts() {
        let mut client_timeout = SlowClientTimeout::new(MOST);
        assert!(client_timeout.is_idle_with_full_budget());
        for hour in 1..10 {
            client_timeout.record_progress(hour * 3_600_000, 0, false);
        }
        assert!(
            client_timeout.is_idle_with_full_budget() && client_timeout.deadline_ms().is_none()
        );
        client_timeout.record_progress(36_000_000, 0, true);
        assert_eq!(client_timeout.deadline_ms(), Some(36_030_000));
        client_timeout.record_progress(36_020_000, 0, false);
        assert!(!client_timeout.is_waiting() && !client_timeout.is_idle_with_full_budget());
        client_timeout.record_progress(99_000_000, 0, true);
        assert_eq!(client_timeout.deadline_ms(), Some(99_010_000));
        // A thread that checks late finds what was read in the meantime.
        client_timeout.record_progress(99_500_000, 3 * MIN_CLIENT_BYTES_PER_SECOND, true);
        assert_eq!(client_timeout.deadline_ms(), Some(99_502_000));
        client_timeout.record_progress(99_500_000, u64::MAX, false);
        assert!(client_timeout.is_idle_with_full_budget());
    }

    #[test]
    fn a_byte_between_any_two_looks_is_too_little() {
        let mut client_timeout = SlowClientTimeout::new(MOST);
        client_timeout.record_progress(0, 0, true);
        for second in 1..=30 {
            client_timeout.record_progress(second * 1000, 1, true);
            assert!(client_timeout.deadline_ms() > Some(second * 1000));
        }
        client_timeout.record_progress(31_000, 1, true);
        assert!(client_timeout.deadline_ms() < Some(31_000));
    }
}
