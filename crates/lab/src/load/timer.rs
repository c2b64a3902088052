//! Who is due when, and a clock of the kernel that wakes the worker to the microsecond.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Users by when they are due.
#[derive(Debug, Default)]
pub(super) struct UserTimers(BinaryHeap<Reverse<(Instant, usize)>>);

impl UserTimers {
    pub(super) fn add(&mut self, due: Instant, user: usize) {
        self.0.push(Reverse((due, user)));
    }

    /// Returns the next user that is due at `now`, and when it was.
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

    /// Returns everyone, in no order.
    pub(super) fn take_all(&mut self) -> Vec<usize> {
        self.0.drain().map(|Reverse((_, user))| user).collect()
    }
}

/// Returns how long a kernel timer has to run; zero would switch it off.
pub(super) fn timer_duration(due: Instant, now: Instant) -> Duration {
    due.saturating_duration_since(now).max(Duration::from_nanos(1))
}
