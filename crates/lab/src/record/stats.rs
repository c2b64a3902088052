//! Times as histograms with exact ends, and the counters beside them.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::opening::{FirstCached, Opening};

/// Longest time that a histogram tells apart: an hour, in microseconds.
const LONGEST: u64 = 3_600_000_000;

/// Most reasons of failure that are told apart for one label.
const MOST_REASONS: usize = 200;
/// What the others are counted as.
const OTHER_REASONS: &str = "other reasons";

/// Times with three significant digits; count, sum, shortest and longest are exact.
#[derive(Debug, Clone)]
pub struct Timing {
    histogram: Histogram<u64>,
    sum_us: u128,
    min_us: u64,
    max_us: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self::new()
    }
}

impl Timing {
    /// Returns an empty one.
    #[must_use]
    pub fn new() -> Self {
        #[expect(clippy::expect_used, reason = "three digits are within what the library accepts")]
        let histogram = Histogram::new(3).expect("the precision is sound");
        Self { histogram, sum_us: 0, min_us: u64::MAX, max_us: 0 }
    }

    /// Adds one time.
    pub fn record(&mut self, time: Duration) {
        self.record_us(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), 1);
    }

    /// Adds a time that occurred `count` times.
    pub fn record_us(&mut self, us: u64, count: u64) {
        // It grows with the value, which is bounded, so recording cannot fail.
        self.histogram.record_n(us.clamp(1, LONGEST), count).ok();
        self.sum_us += u128::from(us) * u128::from(count);
        self.min_us = self.min_us.min(us);
        self.max_us = self.max_us.max(us);
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Self) {
        // Histograms of one precision grow as they must, so nothing can fall outside.
        self.histogram.add(&other.histogram).ok();
        self.sum_us += other.sum_us;
        self.min_us = self.min_us.min(other.min_us);
        self.max_us = self.max_us.max(other.max_us);
    }

    /// Returns the number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the shortest time; zero if there is none.
    #[must_use]
    pub fn min(&self) -> Duration {
        Duration::from_micros(if self.count() == 0 { 0 } else { self.min_us })
    }

    /// Returns the longest time.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_micros(self.max_us)
    }

    /// Returns the mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let count = u128::from(self.count());
        let mean = self.sum_us.checked_div(count).unwrap_or(0);
        Duration::from_micros(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Returns the standard deviation.
    #[must_use]
    pub fn deviation(&self) -> Duration {
        Duration::from_micros(self.histogram.stdev() as u64)
    }

    /// Returns the time that `share` (0 to 1) of all did not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        if self.count() == 0 {
            return Duration::ZERO;
        }
        let value = self.histogram.value_at_quantile(share.clamp(0.0, 1.0));
        // A bucket's upper end may lie above what was seen.
        Duration::from_micros(value.clamp(self.min_us, self.max_us))
    }

    /// Returns the share (0 to 1) of times at most `limit`.
    #[must_use]
    pub fn share_within(&self, limit: Duration) -> f64 {
        if self.count() == 0 {
            return 1.0;
        }
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).clamp(1, LONGEST);
        if limit >= self.max_us {
            return 1.0;
        }
        self.histogram.count_between(0, limit) as f64 / self.count() as f64
    }

    /// Returns the buckets that hold something: upper end in microseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
    }

    /// Returns what is exact beside the buckets: sum, shortest and longest, in microseconds.
    pub(crate) fn exact(&self) -> (u128, u64, u64) {
        (self.sum_us, self.min_us, self.max_us)
    }

    /// Puts back together what [`Timing::exact`] and [`Timing::buckets`] took apart.
    pub(crate) fn from_parts(
        (sum_us, min_us, max_us): (u128, u64, u64),
        buckets: impl Iterator<Item = (u64, u64)>,
    ) -> Self {
        let mut timing = Self { sum_us, min_us, max_us, ..Self::new() };
        for (us, count) in buckets {
            timing.histogram.record_n(us.clamp(1, LONGEST), count).ok();
        }
        timing
    }

    pub(crate) fn clear(&mut self) {
        self.histogram.clear();
        self.sum_us = 0;
        self.min_us = u64::MAX;
        self.max_us = 0;
    }
}

/// What is known about the samples of one label in some span of time.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// From when the request was due until its last byte: what a visitor waits.
    pub response: Timing,
    /// From when the request was sent until its last byte: what the server takes.
    pub service: Timing,
    /// Until the first byte.
    pub latency: Timing,
    /// Connecting, TLS included; only exchanges that had to.
    pub connect: Timing,
    /// Failed samples.
    pub errors: u64,
    /// Response times of the failed samples, which `response` holds too; nothing as long as none failed.
    pub failed: Option<Box<Timing>>,
    /// Bytes received, heads included.
    pub received: u64,
    /// Bytes of bodies received.
    pub body: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Samples per status; 0 where there was no response.
    pub statuses: BTreeMap<u16, u64>,
    /// Failed samples per reason.
    pub reasons: BTreeMap<String, u64>,
    /// What the server said of its own time, per phase.
    pub phases: BTreeMap<String, Timing>,
    /// How good answers began.
    pub opening: Opening,
}

impl Stats {
    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.response.count()
    }

    /// Returns the share of failed samples, 0 to 1.
    #[must_use]
    pub fn error_rate(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.errors as f64 / self.count() as f64 }
    }

    /// Returns when answers began to come from a cache, if anything tells.
    #[must_use]
    pub fn first_cached(&self) -> Option<FirstCached> {
        self.opening.first_cached(self.service.quantile(0.5))
    }

    /// Counts samples that failed for a reason. Reasons may quote what came back: those beyond the first are counted
    /// together, or memory would grow with the run.
    pub(crate) fn blame(&mut self, reason: &str, count: u64) {
        if let Some(known) = self.reasons.get_mut(reason) {
            *known += count;
            return;
        }
        let name = if self.reasons.len() < MOST_REASONS { reason } else { OTHER_REASONS };
        *self.reasons.entry(name.to_owned()).or_default() += count;
    }

    /// Counts a failed sample that took so long; `response` counts it already.
    pub(crate) fn fail_us(&mut self, us: u64) {
        self.errors += 1;
        self.failed.get_or_insert_default().record_us(us, 1);
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Self) {
        if let Some(failed) = &other.failed {
            self.failed.get_or_insert_default().add(failed);
        }
        self.response.add(&other.response);
        self.service.add(&other.service);
        self.latency.add(&other.latency);
        self.connect.add(&other.connect);
        self.errors += other.errors;
        self.received += other.received;
        self.body += other.body;
        self.sent += other.sent;
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (reason, count) in &other.reasons {
            self.blame(reason, *count);
        }
        for (phase, timing) in &other.phases {
            self.phases.entry(phase.clone()).or_default().add(timing);
        }
        self.opening.add(&other.opening);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_timing_is_all_zero() {
        let timing = Timing::new();
        assert_eq!(
            (timing.min(), timing.max(), timing.mean(), timing.quantile(0.99)),
            Default::default()
        );
        assert_eq!(timing.share_within(Duration::from_millis(1)), 1.0);
    }

    #[test]
    fn reasons_without_end_are_counted_together() {
        let mut stats = Stats::default();
        for number in 0..1000 {
            stats.blame(&format!("found `{number}`"), 1);
        }
        stats.blame("found `3`", 1);
        assert_eq!(stats.reasons.len(), MOST_REASONS + 1);
        assert_eq!(stats.reasons["found `3`"], 2);
        assert_eq!(stats.reasons.values().sum::<u64>(), 1001);
        let mut sum = Stats::default();
        sum.blame("mine", 1);
        sum.add(&stats);
        assert_eq!(sum.reasons.values().sum::<u64>(), 1002);
        assert_eq!(sum.reasons.len(), MOST_REASONS + 1);
    }

    proptest! {
        #[test]
        fn quantiles_agree_with_sorting(mut times in prop::collection::vec(1u64..5_000_000, 1..400)) {
            let mut timing = Timing::new();
            for &time in &times {
                timing.record_us(time, 1);
            }
            times.sort_unstable();
            for share in [0.0, 0.5, 0.9, 0.99, 1.0] {
                let rank = ((share * times.len() as f64).ceil() as usize).clamp(1, times.len());
                let exact = times[rank - 1] as f64;
                let told = timing.quantile(share).as_micros() as f64;
                prop_assert!((told - exact).abs() <= exact * 0.001 + 1.0, "{share}: {told} {exact}");
            }
            prop_assert_eq!(timing.max().as_micros() as u64, times[times.len() - 1]);
            prop_assert_eq!(timing.min().as_micros() as u64, times[0]);
        }

        #[test]
        fn parts_add_up_to_the_whole(times in prop::collection::vec((1u64..9_000_000, 0usize..4), 1..200)) {
            let mut whole = Timing::new();
            let mut parts = vec![Timing::new(); 4];
            for &(time, part) in &times {
                whole.record_us(time, 1);
                parts[part].record_us(time, 1);
            }
            let mut sum = Timing::new();
            for part in &parts {
                sum.add(part);
            }
            prop_assert_eq!(sum.buckets().collect::<Vec<_>>(), whole.buckets().collect::<Vec<_>>());
            prop_assert_eq!((sum.mean(), sum.min(), sum.max()), (whole.mean(), whole.min(), whole.max()));
        }
    }
}
