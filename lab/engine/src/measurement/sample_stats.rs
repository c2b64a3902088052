//! Times as histograms with exact extremes, and the related counters.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::cache_warmup::{CacheWarmup, FirstCachedResponse};

/// Maximum time of a histogram: an hour, in microseconds.
const MAX_TIME_US: u64 = 3_600_000_000;

/// Maximum number of distinct failure reasons per label.
const MAX_FAILURE_REASONS: usize = 200;
/// The reason that further failures are counted under.
const OTHER_FAILURE_REASONS: &str = "other reasons";

/// A histogram of times with three significant digits; count, sum, minimum and maximum are exact.
#[derive(Debug, Clone)]
pub struct TimingHistogram {
    histogram: Histogram<u64>,
    sum_us: u128,
    min_us: u64,
    max_us: u64,
}

impl Default for TimingHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl TimingHistogram {
    /// Returns an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        #[expect(clippy::expect_used, reason = "three digits are within what the library accepts")]
        let histogram = Histogram::new(3).expect("the precision is valid");
        Self { histogram, sum_us: 0, min_us: u64::MAX, max_us: 0 }
    }

    /// Adds one time.
    pub fn record(&mut self, time: Duration) {
        self.record_us(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), 1);
    }

    /// Adds a time that occurred `count` times.
    pub fn record_us(&mut self, us: u64, count: u64) {
        // The histogram resizes automatically and the value is bounded, so recording cannot fail.
        self.histogram.record_n(us.clamp(1, MAX_TIME_US), count).ok();
        self.sum_us += u128::from(us) * u128::from(count);
        self.min_us = self.min_us.min(us);
        self.max_us = self.max_us.max(us);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        // Histograms of equal precision resize as needed, so no value is out of range.
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
    pub fn standard_deviation(&self) -> Duration {
        Duration::from_micros(self.histogram.stdev() as u64)
    }

    /// Returns the time that `share` (0 to 1) of all times do not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        if self.count() == 0 {
            return Duration::ZERO;
        }
        let value = self.histogram.value_at_quantile(share.clamp(0.0, 1.0));
        // The upper bound of a bucket may exceed the recorded maximum.
        Duration::from_micros(value.clamp(self.min_us, self.max_us))
    }

    /// Returns the share (0 to 1) of times at most `limit`.
    #[must_use]
    pub fn share_within(&self, limit: Duration) -> f64 {
        if self.count() == 0 {
            return 1.0;
        }
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).clamp(1, MAX_TIME_US);
        if limit >= self.max_us {
            return 1.0;
        }
        self.histogram.count_between(0, limit) as f64 / self.count() as f64
    }

    /// Returns the non-empty buckets: upper bound in microseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
    }

    /// Returns the exact values besides the buckets: sum, minimum and maximum, in microseconds.
    pub(crate) fn exact_parts(&self) -> (u128, u64, u64) {
        (self.sum_us, self.min_us, self.max_us)
    }

    /// Restores a histogram from the output of [`TimingHistogram::exact_parts`] and [`TimingHistogram::buckets`].
    pub(crate) fn from_parts(
        sum_us: u128,
        min_us: u64,
        max_us: u64,
        buckets: impl Iterator<Item = (u64, u64)>,
    ) -> Self {
        let mut timing = Self { sum_us, min_us, max_us, ..Self::new() };
        for (us, count) in buckets {
            timing.histogram.record_n(us.clamp(1, MAX_TIME_US), count).ok();
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

/// Statistics of the samples of one label in a time span.
#[derive(Debug, Clone, Default)]
pub struct SampleStats {
    /// Time from when the request was due until its last byte: the visitor's wait.
    pub response_times: TimingHistogram,
    /// Time from when the request was sent until its last byte: the server's time.
    pub service_times: TimingHistogram,
    /// Time until the first byte.
    pub latency_times: TimingHistogram,
    /// Connect time, TLS included; only of exchanges that opened a connection.
    pub connect_times: TimingHistogram,
    /// Number of failed samples.
    pub error_count: u64,
    /// Response times of the failed samples, which `response_times` includes too; `None` as long as none failed.
    pub failed_response_times: Option<Box<TimingHistogram>>,
    /// Bytes received, headers included.
    pub received_bytes: u64,
    /// Bytes of bodies received.
    pub body_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Number of samples per status; 0 if there was no response.
    pub status_counts: BTreeMap<u16, u64>,
    /// Number of failed samples per reason.
    pub failure_reason_counts: BTreeMap<String, u64>,
    /// The server's own timing, per phase.
    pub server_phases: BTreeMap<String, TimingHistogram>,
    /// The start of successful responses.
    pub cache_warmup: CacheWarmup,
}

impl SampleStats {
    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.response_times.count()
    }

    /// Returns the share of failed samples, 0 to 1.
    #[must_use]
    pub fn error_rate(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.error_count as f64 / self.count() as f64 }
    }

    /// Returns the time at which responses began to come from a cache, if there is evidence.
    #[must_use]
    pub fn first_cached(&self) -> Option<FirstCachedResponse> {
        self.cache_warmup.first_cached(self.service_times.quantile(0.5))
    }

    /// Counts samples that failed for a reason. Reasons may quote responses: reasons beyond the limit are counted
    /// together, because memory would otherwise grow with the run.
    pub(crate) fn count_failure_reason(&mut self, reason: &str, count: u64) {
        if let Some(reason_count) = self.failure_reason_counts.get_mut(reason) {
            *reason_count += count;
            return;
        }
        let name = if self.failure_reason_counts.len() < MAX_FAILURE_REASONS {
            reason
        } else {
            OTHER_FAILURE_REASONS
        };
        *self.failure_reason_counts.entry(name.to_owned()).or_default() += count;
    }

    /// Records the time of a failed sample, which `response_times` includes already.
    pub(crate) fn record_failed_us(&mut self, us: u64) {
        self.error_count += 1;
        self.failed_response_times.get_or_insert_default().record_us(us, 1);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        if let Some(failed) = &other.failed_response_times {
            self.failed_response_times.get_or_insert_default().merge(failed);
        }
        self.response_times.merge(&other.response_times);
        self.service_times.merge(&other.service_times);
        self.latency_times.merge(&other.latency_times);
        self.connect_times.merge(&other.connect_times);
        self.error_count += other.error_count;
        self.received_bytes += other.received_bytes;
        self.body_bytes += other.body_bytes;
        self.sent_bytes += other.sent_bytes;
        for (status, count) in &other.status_counts {
            *self.status_counts.entry(*status).or_default() += count;
        }
        for (reason, count) in &other.failure_reason_counts {
            self.count_failure_reason(reason, *count);
        }
        for (phase, timing) in &other.server_phases {
            self.server_phases.entry(phase.clone()).or_default().merge(timing);
        }
        self.cache_warmup.merge(&other.cache_warmup);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_timing_is_all_zero() {
        let timing = TimingHistogram::new();
        assert_eq!(
            (timing.min(), timing.max(), timing.mean(), timing.quantile(0.99)),
            Default::default()
        );
        assert_eq!(timing.share_within(Duration::from_millis(1)), 1.0);
    }

    #[test]
    fn reasons_without_end_are_counted_together() {
        let mut stats = SampleStats::default();
        for number in 0..1000 {
            stats.count_failure_reason(&format!("found `{number}`"), 1);
        }
        stats.count_failure_reason("found `3`", 1);
        assert_eq!(stats.failure_reason_counts.len(), MAX_FAILURE_REASONS + 1);
        assert_eq!(stats.failure_reason_counts["found `3`"], 2);
        assert_eq!(stats.failure_reason_counts.values().sum::<u64>(), 1001);
        let mut sum = SampleStats::default();
        sum.count_failure_reason("mine", 1);
        sum.merge(&stats);
        assert_eq!(sum.failure_reason_counts.values().sum::<u64>(), 1002);
        assert_eq!(sum.failure_reason_counts.len(), MAX_FAILURE_REASONS + 1);
    }

    proptest! {
        #[test]
        fn quantiles_agree_with_sorting(mut times in prop::collection::vec(1u64..5_000_000, 1..400)) {
            let mut timing = TimingHistogram::new();
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
            let mut whole = TimingHistogram::new();
            let mut parts = vec![TimingHistogram::new(); 4];
            for &(time, part) in &times {
                whole.record_us(time, 1);
                parts[part].record_us(time, 1);
            }
            let mut sum = TimingHistogram::new();
            for part in &parts {
                sum.merge(part);
            }
            prop_assert_eq!(sum.buckets().collect::<Vec<_>>(), whole.buckets().collect::<Vec<_>>());
            prop_assert_eq!((sum.mean(), sum.min(), sum.max()), (whole.mean(), whole.min(), whole.max()));
        }
    }
}
