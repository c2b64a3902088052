//! Due times of users, and the duration of the kernel timer that wakes their worker.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Users ordered by due time.
#[derive(Debug, Default)]
pub(super) struct UserDueTimes(BinaryHeap<Reverse<(Instant, usize)>>);

impl UserDueTimes {
    pub(super) fn add(&mut self, due: Instant, user: usize) {
        self.0.push(Reverse((due, user)));
    }

    /// Returns the next user that is due at `now`, and its due time.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(Instant, usize)> {
        let Reverse((due, _)) = self.0.peek()?;
        if *due > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }

    /// Removes and returns all users, in no particular order.
    pub(super) fn take_all(&mut self) -> Vec<usize> {
        self.0.drain().map(|Reverse((_, user))| user).collect()
    }
}

/// Returns the duration for a kernel timer; zero would disarm the timer.
pub(super) fn timer_duration(due: Instant, now: Instant) -> Duration {
    due.saturating_duration_since(now).max(Duration::from_nanos(1))
}
