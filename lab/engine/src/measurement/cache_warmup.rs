//! The start of a label's responses: the times of the first response, and of the first cached response.
//!
//! After a flush or an activation the first visitors wait for rendering, and from some moment on all others get the
//! cached page immediately. A better flush makes that moment earlier. If responses report the cache state
//! (`Cache-Status`, `X-Cache`, `X-Cache-Info`, `Age`), those headers decide. Otherwise it is the first response that
//! took a tenth of the first one's time, if most later ones did so, too.
//!
//! Invariant: memory is bounded: each recorded moment has a response a fifth faster than the previous one.

use std::time::Duration;

/// A faster first response cannot be distinguished from a cached one by its time.
const MIN_UNCACHED_TIME: Duration = Duration::from_millis(50);
/// Minimum ratio of the times of a rendered and a cached response.
const CACHED_SPEEDUP: u32 = 10;

/// The first responses of one label, in microseconds since the start of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheWarmup {
    /// End time and duration of each response that was faster than all that ended before; the first response comes
    /// first.
    new_minima: Vec<(u64, u64)>,
    /// End time of the first response that a header marks as cached.
    first_hit_us: Option<u64>,
    /// True if headers report the cache state.
    has_cache_header: bool,
}

/// The evidence that a response was cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheEvidence {
    /// A header reports it.
    Header,
    /// The response was ten times faster than the first one, as most were.
    ResponseTime,
}

/// The time at which a label's responses began to come from a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstCachedResponse {
    /// Time of the first response since the start of the run.
    pub first_response: Duration,
    /// Its duration.
    pub first_response_time: Duration,
    /// Time of the first cached response; `None` if there was none.
    pub first_cached: Option<Duration>,
    /// The evidence.
    pub evidence: CacheEvidence,
}

impl CacheWarmup {
    /// Records a successful response: its end time, its duration, and the cache state that a header reports, if any.
    pub(crate) fn record_response(&mut self, end_us: u64, took_us: u64, is_hit: Option<bool>) {
        self.has_cache_header |= is_hit.is_some();
        if is_hit == Some(true) {
            self.first_hit_us =
                Some(self.first_hit_us.map_or(end_us, |earliest_us| earliest_us.min(end_us)));
        }
        self.record_minimum(end_us, took_us);
    }

    fn record_minimum(&mut self, end_us: u64, took_us: u64) {
        let is_lower = |took: u64, than: u64| took.saturating_mul(5) < than.saturating_mul(4);
        // Nearly always the latest entry, and no faster than the known minimum.
        let index = self.new_minima.partition_point(|low| low.0 <= end_us);
        let before = index.checked_sub(1).and_then(|index| self.new_minima.get(index));
        if before.is_some_and(|low| !is_lower(took_us, low.1)) {
            return;
        }
        self.new_minima.insert(index, (end_us, took_us));
        let mut number = 0;
        self.new_minima.retain(|low| {
            number += 1;
            number <= index + 1 || is_lower(low.1, took_us)
        });
    }

    /// Merges the records of another worker, or of a later second, of the same run.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.has_cache_header |= other.has_cache_header;
        self.first_hit_us = self.first_hit_us.into_iter().chain(other.first_hit_us).min();
        other.new_minima.iter().for_each(|low| self.record_minimum(low.0, low.1));
    }

    /// Moves all times later, for an origin that is earlier by this duration.
    pub(crate) fn shift_later(&mut self, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.new_minima.iter_mut().for_each(|low| low.0 = low.0.saturating_add(by));
        self.first_hit_us = self.first_hit_us.map(|hit| hit.saturating_add(by));
    }

    /// Moves all times earlier, for an origin that is later by this duration; no response ended before it.
    pub(crate) fn shift_earlier(&mut self, us: u64) {
        self.new_minima.iter_mut().for_each(|low| low.0 = low.0.saturating_sub(us));
        self.first_hit_us = self.first_hit_us.map(|hit| hit.saturating_sub(us));
    }

    /// Returns the time of the first cached response, if there is evidence; `median` is that of all responses.
    #[must_use]
    pub fn first_cached(&self, median: Duration) -> Option<FirstCachedResponse> {
        let &(first, took) = self.new_minima.first()?;
        let us = Duration::from_micros;
        let of = |cached: Option<u64>, evidence| {
            Some(FirstCachedResponse {
                first_response: us(first),
                first_response_time: us(took),
                first_cached: cached.map(us),
                evidence,
            })
        };
        if self.has_cache_header {
            return of(self.first_hit_us, CacheEvidence::Header);
        }
        let most = us(took) / CACHED_SPEEDUP;
        if us(took) < MIN_UNCACHED_TIME || median > most {
            return None;
        }
        let low = self.new_minima.iter().find(|low| us(low.1) <= most);
        low.and_then(|low| of(Some(low.0), CacheEvidence::ResponseTime))
    }

    /// Returns its fields, for serialization.
    pub(crate) fn to_parts(&self) -> (&[(u64, u64)], Option<u64>, bool) {
        (&self.new_minima, self.first_hit_us, self.has_cache_header)
    }

    /// Restores a value from the output of [`CacheWarmup::to_parts`].
    pub(crate) fn from_parts(lows: &[(u64, u64)], hit: Option<u64>, tells: bool) -> Self {
        let mut opening =
            Self { new_minima: Vec::new(), first_hit_us: hit, has_cache_header: tells };
        lows.iter().for_each(|low| opening.record_minimum(low.0, low.1));
        opening
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1000;

    fn opening(responses: &[(u64, u64, Option<bool>)]) -> CacheWarmup {
        let mut opening = CacheWarmup::default();
        for &(end, took, is_hit) in responses {
            opening.record_response(end * MS, took * MS, is_hit);
        }
        opening
    }

    fn cached(opening: &CacheWarmup, median_ms: u64) -> Option<(u64, Option<u64>, CacheEvidence)> {
        let first_cached = opening.first_cached(Duration::from_millis(median_ms))?;
        let ms = |time: Duration| time.as_millis() as u64;
        Some((
            ms(first_cached.first_response),
            first_cached.first_cached.map(ms),
            first_cached.evidence,
        ))
    }

    #[test]
    fn a_page_is_cached_from_its_first_quick_answer_on() {
        // The thundering herd from the source: a page that takes ten seconds, then immediate responses.
        let herd = [(10_000, 10_000, None), (10_900, 9_000, None), (11_600, 20, None)];
        let herd = opening(&[&herd[..], &[(11_601, 3, None)]].concat());
        assert_eq!(cached(&herd, 5), Some((10_000, Some(11_600), CacheEvidence::ResponseTime)));
        // If most responses are as slow as the first one, a fast one proves nothing.
        assert_eq!(cached(&herd, 9_000), None);
        // A page that is always fast cannot be distinguished.
        assert_eq!(cached(&opening(&[(2, 2, None), (3, 1, None)]), 1), None);
        assert_eq!(cached(&CacheWarmup::default(), 0), None);
    }

    #[test]
    fn what_headers_say_counts_more_than_times() {
        let responses = [(900, 900, Some(false)), (901, 2, Some(false)), (1000, 50, Some(true))];
        assert_eq!(cached(&opening(&responses), 2), Some((900, Some(1000), CacheEvidence::Header)));
        assert_eq!(cached(&opening(&responses[..2]), 2), Some((900, None, CacheEvidence::Header)));
        let at_once = opening(&[(3, 3, Some(true)), (4, 1, Some(true))]);
        assert_eq!(cached(&at_once, 1), Some((3, Some(3), CacheEvidence::Header)));
    }

    proptest! {
        #[test]
        fn parts_in_any_order_amount_to_nearly_the_same(
            answers in prop::collection::vec((0u64..1_000_000, 1u64..1_000_000), 1..200),
            divisor in 1usize..5,
        ) {
            let mut ordered = answers.clone();
            ordered.sort_unstable();
            let mut whole = CacheWarmup::default();
            ordered.iter().for_each(|&(end, took)| whole.record_response(end, took, None));
            let mut sum = CacheWarmup::default();
            for part in answers.chunks(answers.len().div_ceil(divisor)) {
                let mut one = CacheWarmup::default();
                part.iter().for_each(|&(end, took)| one.record_response(end, took, None));
                let (lows, hit, tells) = one.to_parts();
                prop_assert_eq!(&CacheWarmup::from_parts(lows, hit, tells), &one);
                sum.merge(&one);
            }
            // The first entry is exact; end times rise and durations fall.
            prop_assert_eq!(sum.new_minima[0].0, whole.new_minima[0].0);
            prop_assert!(sum.new_minima.is_sorted_by(|one, two| one.0 <= two.0 && one.1 > two.1));
            prop_assert!(sum.new_minima.len() <= 80);
            let least = |opening: &CacheWarmup| opening.new_minima.last().map_or(0, |low| low.1);
            let shortest = answers.iter().map(|answer| answer.1).min().unwrap_or(0);
            prop_assert!(least(&sum) <= shortest * 25 / 16 + 1, "{} {shortest}", least(&sum));
        }
    }
}
