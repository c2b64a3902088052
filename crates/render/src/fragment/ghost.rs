//! Evicted fragments, used to estimate the required size of the cache.
//!
//! Input: evictions and lookups. Output: the bytes of evicted fragments that are requested again and again.
//!
//! Invariant: fragments that are requested once, as by a crawler, are never counted; nor is anything counted twice.

use std::collections::{HashMap, VecDeque};

/// Maximum number of remembered fragments.
const MAX_GHOSTS: usize = 50_000;
/// A fragment that is requested again within this number of lookups belongs to the working set.
const RETURN_WINDOW_LOOKUPS: u64 = 50_000;

/// An evicted fragment.
#[derive(Debug, Clone, Copy)]
struct GhostFragment {
    bytes: usize,
    /// The lookup count at its eviction.
    evicted_at: u64,
    /// True if it had returned before.
    is_returning: bool,
}

/// The recently evicted fragments.
#[derive(Debug, Default)]
pub(super) struct GhostFragmentList {
    by_key: HashMap<u64, GhostFragment>,
    /// Keys in eviction order; those that returned since, or were evicted again later, are skipped.
    eviction_order: VecDeque<(u64, u64)>,
    returning_bytes: usize,
}

impl GhostFragmentList {
    /// Adds an evicted fragment with its bytes and whether it had returned before.
    pub(super) fn add(&mut self, key: u64, (bytes, returns): (usize, bool), clock: u64) {
        self.remove(key);
        self.by_key.insert(key, GhostFragment { bytes, evicted_at: clock, is_returning: returns });
        self.eviction_order.push_back((key, clock));
        if returns {
            self.returning_bytes += bytes;
        }
        self.drop_old(clock);
    }

    /// Removes a fragment that is looked up; returns true if it was evicted recently.
    pub(super) fn take_recent(&mut self, key: u64, clock: u64) -> bool {
        self.drop_old(clock);
        self.remove(key)
    }

    /// Returns the bytes of evicted fragments that return again and again.
    pub(super) fn returning_bytes(&self) -> usize {
        self.returning_bytes
    }

    fn remove(&mut self, key: u64) -> bool {
        let Some(ghost) = self.by_key.remove(&key) else { return false };
        if ghost.is_returning {
            self.returning_bytes -= ghost.bytes;
        }
        true
    }

    /// Drops the oldest fragments, if they are too old or too many.
    fn drop_old(&mut self, clock: u64) {
        while let Some((key, went)) = self.eviction_order.front().copied() {
            let is_known = self.by_key.get(&key).is_some_and(|ghost| ghost.evicted_at == went);
            let is_old = clock.saturating_sub(went) > RETURN_WINDOW_LOOKUPS
                || self.by_key.len() > MAX_GHOSTS;
            if is_known && !is_old {
                return;
            }
            self.eviction_order.pop_front();
            if is_known {
                self.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_counted_once_while_it_is_gone() {
        let mut ghosts = GhostFragmentList::default();
        ghosts.add(1, (10, false), 0);
        ghosts.add(2, (20, false), 0);
        assert_eq!(ghosts.returning_bytes(), 0, "nothing has come back yet");
        assert!(ghosts.take_recent(1, 1) && !ghosts.take_recent(1, 1) && !ghosts.take_recent(3, 1));
        for clock in 2..100 {
            ghosts.add(1, (10, true), clock);
            assert_eq!(ghosts.returning_bytes(), 10);
            assert!(ghosts.take_recent(1, clock));
            assert_eq!(ghosts.returning_bytes(), 0, "it is there now");
        }
    }

    #[test]
    fn those_that_went_long_ago_or_are_too_many_are_forgotten() {
        let mut ghosts = GhostFragmentList::default();
        ghosts.add(1, (10, true), 0);
        ghosts.add(2, (20, true), 5);
        assert!(!ghosts.take_recent(3, RETURN_WINDOW_LOOKUPS + 1));
        assert_eq!((ghosts.returning_bytes(), ghosts.by_key.len()), (20, 1));
        for key in 0..2 * MAX_GHOSTS as u64 {
            ghosts.add(1000 + key, (1, true), 6);
        }
        assert_eq!((ghosts.by_key.len(), ghosts.returning_bytes()), (MAX_GHOSTS, MAX_GHOSTS));
        assert!(ghosts.eviction_order.len() <= MAX_GHOSTS);
    }
}
