//! The freshness of a cache file, as a pure function of times.

use std::time::{Duration, SystemTime};

/// The facts about a cache file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreshnessInput {
    /// The current time.
    pub(crate) now: SystemTime,
    /// The time at which the request that filled the file was sent.
    pub(crate) fetch_time: SystemTime,
    /// True if a flush marked the file as stale.
    pub(crate) is_marked: bool,
    /// The time of the nearest `.stat` file, if the path obeys it and there is one.
    pub(crate) flush_time: Option<SystemTime>,
    /// The time of this file before the window of its last flush began: even if its own time is in the future, this one
    /// shows what is out of date already.
    pub(crate) previous_flush_time: Option<SystemTime>,
    /// The end of the render's own time limit, if one is stored.
    pub(crate) expiry: Option<SystemTime>,
}

/// Returns the end of the window that contains `now`, which `.stat` files get as their time; returns `now` without
/// windows.
///
/// The end is a multiple of the window's length, so that all flushes of a window write the same time, also those of
/// several processes, and none is lost when a process ends before the window does.
#[must_use]
pub(crate) fn flush_window_end(now: SystemTime, window: Duration) -> SystemTime {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if window.is_zero() {
        return now;
    }
    let whole = since.as_nanos() / window.as_nanos() + 1;
    let end = u64::try_from(whole * window.as_nanos()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_nanos(end)
}

/// The freshness of a cache file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheFileFreshness {
    /// It may be served.
    Valid,
    /// Its lifetime has ended.
    Expired,
    /// Something below its `.stat` file changed after the fetch.
    Stale,
    /// A flush named it; it may be served while it is replaced.
    Marked,
}

/// The time for which files stay in use after their `.stat` file was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GracePeriod {
    /// The time after the last touch.
    pub(crate) grace: Duration,
    /// True if `.stat` files get the end of a window as their time, which is in the future.
    pub(crate) has_window: bool,
}

impl GracePeriod {
    fn is_grace_over(self, flushed: SystemTime, now: SystemTime) -> bool {
        if self.has_window {
            return now >= flushed + self.grace;
        }
        // Without grace the current time does not count, since a clock that was set back would hide the flush.
        self.grace.is_zero() || now > flushed + self.grace
    }
}

/// Returns the freshness of a file.
#[must_use]
pub(crate) fn assess_freshness(
    facts: FreshnessInput,
    grace_period: GracePeriod,
) -> CacheFileFreshness {
    if facts.expiry.is_some_and(|expires| facts.now > expires) {
        return CacheFileFreshness::Expired;
    }
    if facts.is_marked {
        return CacheFileFreshness::Marked;
    }
    let is_stale = flush_times(facts, grace_period)
        .any(|flushed| grace_period.is_grace_over(flushed, facts.now));
    if is_stale { CacheFileFreshness::Stale } else { CacheFileFreshness::Valid }
}

/// Returns true if a flush concerns a file, even while its grace period or window lasts: only a file that no flush
/// concerns may stay in use on its render's word alone.
#[must_use]
pub(crate) fn is_flushed(facts: FreshnessInput) -> bool {
    let newer = |flushed: Option<SystemTime>| flushed.is_some_and(|at| at > facts.fetch_time);
    facts.is_marked || newer(facts.flush_time) || newer(facts.previous_flush_time)
}

/// Returns the last time at which a currently valid file is still valid; `None` if only a change ends its validity.
#[must_use]
pub(crate) fn valid_until(facts: FreshnessInput, grace_period: GracePeriod) -> Option<SystemTime> {
    let tick = Duration::from_nanos(u64::from(grace_period.has_window));
    let graced =
        flush_times(facts, grace_period).map(|flushed| flushed + grace_period.grace - tick);
    graced.chain(facts.expiry).min()
}

/// Returns the times of flushes that concern a file, taken from its `.stat` file.
fn flush_times(
    facts: FreshnessInput,
    grace_period: GracePeriod,
) -> impl Iterator<Item = SystemTime> {
    let before = facts.previous_flush_time.filter(|_| grace_period.has_window);
    facts.flush_time.into_iter().chain(before).filter(move |flushed| *flushed > facts.fetch_time)
}

#[cfg(test)]
mod tests {
    use super::{
        CacheFileFreshness, FreshnessInput, GracePeriod, assess_freshness, flush_window_end,
        valid_until,
    };
    use std::time::{Duration, SystemTime};

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + second)
    }

    fn facts(now: u64, fetched: u64) -> FreshnessInput {
        FreshnessInput {
            now: at(now),
            fetch_time: at(fetched),
            is_marked: false,
            flush_time: None,
            previous_flush_time: None,
            expiry: None,
        }
    }

    fn grace(seconds: u64) -> GracePeriod {
        GracePeriod { grace: Duration::from_secs(seconds), has_window: false }
    }

    #[test]
    fn a_window_that_goes_on_does_not_hide_the_one_before() {
        let window = GracePeriod { grace: Duration::ZERO, has_window: true };
        let flushed = |fetched, before| FreshnessInput {
            flush_time: Some(at(20)),
            previous_flush_time: Some(at(before)),
            ..facts(12, fetched)
        };
        for (fetched, before, expected) in [
            (5, 10, CacheFileFreshness::Stale),
            (11, 10, CacheFileFreshness::Valid),
            (5, 3, CacheFileFreshness::Valid),
        ] {
            assert_eq!(
                assess_freshness(flushed(fetched, before), window),
                expected,
                "{fetched} {before}"
            );
        }
        // A window that has not ended is awaited.
        let ahead = flushed(5, 14);
        assert_eq!(assess_freshness(ahead, window), CacheFileFreshness::Valid);
        assert_eq!(valid_until(ahead, window), Some(at(14) - Duration::from_nanos(1)));
        assert_eq!(valid_until(flushed(11, 10), window), Some(at(20) - Duration::from_nanos(1)));
        // Without windows only the file's own time counts.
        assert_eq!(assess_freshness(flushed(21, 30), grace(0)), CacheFileFreshness::Valid);
    }

    #[test]
    fn a_window_ends_at_a_multiple_of_its_length() {
        let check = |now, window, expected| {
            let end = flush_window_end(at(now), Duration::from_secs(window));
            assert_eq!(end, at(expected), "{now} {window}");
        };
        check(3, 0, 3);
        check(3, 2, 4);
        check(4, 2, 6);
        check(5, 10, 10);
        // A page fetched within the window becomes stale at its end, and not before.
        let grace_period = GracePeriod { grace: Duration::ZERO, has_window: true };
        for now in 5..14 {
            let facts = FreshnessInput { flush_time: Some(at(10)), ..facts(now, 5) };
            let expected =
                if now < 10 { CacheFileFreshness::Valid } else { CacheFileFreshness::Stale };
            assert_eq!(assess_freshness(facts, grace_period), expected, "{now}");
        }
        let later = FreshnessInput { flush_time: Some(at(10)), ..facts(12, 10) };
        assert_eq!(assess_freshness(later, grace_period), CacheFileFreshness::Valid);
    }

    #[test]
    fn the_stat_file_decides_unless_grace_holds() {
        let check = |now, fetched, flushed: Option<u64>, grace, expected| {
            let flushed = flushed.map(at);
            let facts = FreshnessInput { flush_time: flushed, ..facts(now, fetched) };
            assert_eq!(assess_freshness(facts, super::tests::grace(grace)), expected, "{facts:?}");
        };
        check(10, 5, None, 0, CacheFileFreshness::Valid);
        check(10, 5, Some(4), 0, CacheFileFreshness::Valid);
        check(10, 5, Some(5), 0, CacheFileFreshness::Valid);
        check(10, 5, Some(6), 0, CacheFileFreshness::Stale);
        check(10, 5, Some(9), 2, CacheFileFreshness::Valid);
        check(11, 5, Some(9), 2, CacheFileFreshness::Valid);
        check(12, 5, Some(9), 2, CacheFileFreshness::Stale);
    }

    #[test]
    fn a_life_that_ended_goes_before_everything() {
        let expired = FreshnessInput { expiry: Some(at(9)), ..facts(10, 5) };
        assert_eq!(assess_freshness(expired, grace(60)), CacheFileFreshness::Expired);
        let living = FreshnessInput { expiry: Some(at(10)), ..facts(10, 5) };
        assert_eq!(assess_freshness(living, grace(0)), CacheFileFreshness::Valid);
        let flushed = FreshnessInput { flush_time: Some(at(7)), ..living };
        assert_eq!(assess_freshness(flushed, grace(0)), CacheFileFreshness::Stale);
    }

    #[test]
    fn a_valid_file_is_valid_until_its_moment_and_not_after() {
        for (has_window, fetched, flushed, expires) in [
            (false, 5, None, None),
            (false, 5, Some(3), None),
            (false, 5, Some(7), None),
            (false, 5, None, Some(12)),
            (false, 5, Some(7), Some(9)),
            (false, 5, Some(7), Some(20)),
            (true, 5, Some(7), Some(20)),
            (true, 5, Some(7), None),
        ] {
            let grace_period = GracePeriod { has_window, ..grace(4) };
            let facts = |now| FreshnessInput {
                flush_time: flushed.map(at),
                expiry: expires.map(at),
                ..facts(now, fetched)
            };
            let until = valid_until(facts(8), grace_period);
            for now in 8..30 {
                let is_valid =
                    assess_freshness(facts(now), grace_period) == CacheFileFreshness::Valid;
                assert_eq!(
                    is_valid,
                    until.is_none_or(|until| at(now) <= until),
                    "{:?}",
                    facts(now)
                );
            }
        }
    }

    #[test]
    fn a_flush_counts_whatever_grace_and_window_say() {
        for (is_marked, flushed, before, expected) in [
            (false, None, None, false),
            (true, None, None, true),
            (false, Some(6), None, true),
            (false, Some(5), None, false),
            (false, Some(4), Some(3), false),
            (false, Some(20), None, true),
            (false, Some(4), Some(6), true),
        ] {
            let facts = FreshnessInput {
                is_marked,
                flush_time: flushed.map(at),
                previous_flush_time: before.map(at),
                expiry: Some(at(7)),
                ..facts(10, 5)
            };
            assert_eq!(super::is_flushed(facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn a_mark_holds_without_a_stat_file_and_during_grace() {
        let marked = FreshnessInput { is_marked: true, ..facts(10, 5) };
        assert_eq!(assess_freshness(marked, grace(60)), CacheFileFreshness::Marked);
    }
}
