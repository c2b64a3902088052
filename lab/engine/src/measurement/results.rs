//! The results of a whole run: totals and seconds of every label, and data about the generator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::jtl::JtlRow;
use super::label::{OTHER_LABELS, counted_label};
use super::process_metrics::ProcessMetrics;
use super::recorder::WorkerInterval;
use super::slow_sample::{ServerLogJoin, SlowSample, SlowestSamples, parse_mark_field};
use super::trace::{ExchangeTrace, TraceQuota};
use super::{SampleStats, TimingHistogram};
use crate::measurement::log_watch_result::LogWatchResult;

/// The measurements of a run.
#[derive(Debug, Clone)]
pub struct RunResults {
    /// Start time of the run.
    pub started: SystemTime,
    /// Duration of the run.
    pub elapsed: Duration,
    /// Results per label, ordered by name.
    pub labels: BTreeMap<Arc<str>, LabelSeries>,
    /// Results per transaction: sums over samples that `labels` holds too.
    pub transactions: BTreeMap<Arc<str>, LabelSeries>,
    /// Data about the generator.
    pub generator: GeneratorStats,
    /// Exchanges that were stored completely, per label.
    pub traces: BTreeMap<Arc<str>, Vec<ExchangeTrace>>,
    /// The processes that generated the load together; empty if there was one.
    pub processes: Vec<LoadProcess>,
    /// The goal whose miss ended the run early.
    pub breached_goal: Option<String>,
    /// True if `labels` holds the sums of transactions, because their samples are unknown.
    pub has_only_transactions: bool,
    /// Metrics of the tested process, oldest first; empty unless it was monitored.
    pub target_facts: Vec<ProcessMetrics>,
    /// Errors in the watched logs.
    pub log_watches: Vec<LogWatchResult>,
    /// The slowest samples, if requests carried sample marks.
    pub slowest_samples: SlowestSamples,
    /// Data on marked samples from a server log, if one was read with the results.
    pub server_log_join: Option<ServerLogJoin>,
    /// The precision of the times per second.
    histogram_precision: HistogramPrecision,
}

/// The precision of the times of single seconds: as recorded, until a run has so many seconds that memory would grow
/// with its length. Totals always keep their three digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HistogramPrecision {
    /// Number of leading binary digits of a time that are kept.
    kept_bits: u32,
    /// Total number of buckets of all seconds.
    bucket_count: usize,
}

/// Histograms of three digits distinguish this many binary digits.
const MAX_PRECISION_BITS: u32 = 11;
/// Minimum precision of times: 6 %.
const MIN_PRECISION_BITS: u32 = 5;
/// Number of buckets of all seconds above which the precision is reduced: 64 MiB.
const MAX_SECOND_BUCKETS: usize = 4 << 20;

/// One of several processes that generated the load.
#[derive(Debug, Clone)]
pub struct LoadProcess {
    /// The display name.
    pub name: String,
    /// The process's own limits.
    pub generator: GeneratorStats,
    /// Duration of its work.
    pub elapsed: Duration,
    /// Number of samples that it reported.
    pub sample_count: u64,
    /// The reason for its loss, if it is lost.
    pub loss_reason: Option<String>,
}

/// The results of one label.
#[derive(Debug, Clone, Default)]
pub struct LabelSeries {
    /// Statistics of the whole run.
    pub total: SampleStats,
    /// Data per second of the run in which a sample ended.
    pub seconds: BTreeMap<u32, LabelSecond>,
}

/// One label in one second.
#[derive(Debug, Clone, Default)]
pub struct LabelSecond {
    /// Number of samples that ended.
    pub sample_count: u64,
    /// Number of failed samples.
    pub error_count: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Response times: upper bound of the bucket in microseconds, and count.
    pub time_buckets: Vec<(u64, u64)>,
}

impl LabelSecond {
    /// Merges buckets that are equal at `bits` binary digits.
    fn merge_buckets(&mut self, bits: u32) {
        for (time, _) in &mut self.time_buckets {
            *time = coarse_bucket_end(*time, bits);
        }
        self.time_buckets.sort_unstable();
        self.time_buckets.dedup_by(|next, previous| {
            let is_same = next.0 == previous.0;
            if is_same {
                previous.1 += next.1;
            }
            is_same
        });
    }
}

/// Returns the upper bound of the bucket of a time if only its first `bits` binary digits count.
fn coarse_bucket_end(us: u64, bits: u32) -> u64 {
    let more = (u64::BITS - us.leading_zeros()).saturating_sub(bits);
    if bits >= MAX_PRECISION_BITS { us } else { us | ((1u64 << more) - 1) }
}

/// Data about the generator, from which its validity can be judged.
#[derive(Debug, Clone, Default)]
pub struct GeneratorStats {
    /// Number of sending threads.
    pub worker_count: usize,
    /// Number of processors available to it.
    pub processor_count: usize,
    /// CPU time of the sending threads.
    pub cpu_time: Duration,
    /// Delay of its actions relative to their planned times.
    pub lag: TimingHistogram,
    /// Arrivals that found no free user.
    pub late_arrivals: u64,
    /// Arrivals that were unsent at the end of the run.
    pub unsent_arrivals: u64,
    /// Requests that were sent a second time because the server had closed their persistent connection.
    pub repeated_requests: u64,
    /// Maximum number of concurrent users.
    pub max_active_users: u64,
    /// True if it followed a schedule of arrivals.
    pub is_open_model: bool,
    /// Requested number of arrivals per second.
    pub offered_rate: Option<f64>,
    /// Data per second of the run; empty if other processes generated the load.
    pub seconds: BTreeMap<u32, GeneratorSecond>,
}

/// The generator in one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GeneratorSecond {
    /// CPU time of all sending threads.
    pub cpu_time: Duration,
    /// Delay of its actions: the worst 99th percentile of its threads.
    pub lag: Duration,
    /// Arrivals that found no free user.
    pub late_arrivals: u64,
    /// Number of concurrent users.
    pub active_users: u64,
}

impl GeneratorStats {
    /// Returns the used share of its processors, 0 to 1.
    #[must_use]
    pub fn cpu_share(&self, elapsed: Duration) -> f64 {
        let may = self.worker_count.min(self.processor_count).max(1) as f64;
        let span = elapsed.as_secs_f64() * may;
        if span > 0.0 { self.cpu_time.as_secs_f64() / span } else { 0.0 }
    }
}

impl RunResults {
    /// Returns empty results of a run that begins at `started`.
    #[must_use]
    pub fn new(started: SystemTime) -> Self {
        Self {
            started,
            elapsed: Duration::ZERO,
            labels: BTreeMap::new(),
            transactions: BTreeMap::new(),
            generator: GeneratorStats::default(),
            traces: BTreeMap::new(),
            processes: Vec::new(),
            breached_goal: None,
            has_only_transactions: false,
            target_facts: Vec::new(),
            log_watches: Vec::new(),
            slowest_samples: SlowestSamples::default(),
            server_log_join: None,
            histogram_precision: HistogramPrecision {
                kept_bits: MAX_PRECISION_BITS,
                bucket_count: 0,
            },
        }
    }

    /// Adds the measurements of a worker in one second.
    pub fn add_interval(&mut self, interval: &WorkerInterval) {
        for (name, stats, is_transaction) in &interval.labels {
            let labels = if *is_transaction { &mut self.transactions } else { &mut self.labels };
            let series = series_for_label(labels, name);
            series.total.merge(stats);
            let second = series.seconds.entry(interval.second).or_default();
            second.sample_count += stats.count();
            second.error_count += stats.error_count;
            second.received_bytes += stats.received_bytes;
            let before = second.time_buckets.len();
            second.time_buckets.extend(stats.response_times.buckets());
            // Measurements of several workers in the same second are stored once.
            if before > 0 || self.histogram_precision.kept_bits < MAX_PRECISION_BITS {
                second.merge_buckets(self.histogram_precision.kept_bits);
            }
            self.histogram_precision.bucket_count +=
                second.time_buckets.len().saturating_sub(before);
        }
        if self.histogram_precision.bucket_count > MAX_SECOND_BUCKETS
            && self.histogram_precision.kept_bits > MIN_PRECISION_BITS
        {
            self.coarsen_seconds(self.histogram_precision.kept_bits - 1);
        }
        self.generator.lag.merge(&interval.lag);
        self.generator.late_arrivals += interval.late_arrivals;
        self.generator.unsent_arrivals += interval.unsent_arrivals;
        self.generator.repeated_requests += interval.repeated_requests;
        for trace in &interval.traces {
            self.traces.entry(trace.label.as_str().into()).or_default().push(trace.clone());
        }
        interval.slow_samples.iter().for_each(|slow| self.slowest_samples.add(slow.clone()));
    }

    /// Reduces the precision of the times of all seconds so far.
    fn coarsen_seconds(&mut self, bits: u32) {
        let mut bucket_count = 0;
        for series in self.labels.values_mut().chain(self.transactions.values_mut()) {
            for second in series.seconds.values_mut() {
                second.merge_buckets(bits);
                second.time_buckets.shrink_to_fit();
                bucket_count += second.time_buckets.len();
            }
        }
        self.histogram_precision = HistogramPrecision { kept_bits: bits, bucket_count };
    }

    /// Retains of each label the first exchanges, and the first that failed, of all that workers stored.
    pub fn limit_traces(&mut self, most: usize) {
        for traces in self.traces.values_mut() {
            traces.sort_by_key(|trace| trace.started_ms);
            let mut quota = TraceQuota::default();
            traces.retain(|trace| quota.try_take(trace.is_ok, most));
        }
    }

    /// Appends the results of a part that was run after this one.
    pub fn append_part(&mut self, mut part: Self) {
        let offset = u32::try_from(self.elapsed.as_secs()).unwrap_or(u32::MAX);
        for (own, part_labels) in
            [(&mut self.labels, part.labels), (&mut self.transactions, part.transactions)]
        {
            for (name, series) in part_labels {
                let own_series = series_for_label(own, &name);
                let mut total = series.total;
                total.cache_warmup.shift_later(self.elapsed);
                own_series.total.merge(&total);
                for (second, mut values) in series.seconds {
                    let bucket =
                        own_series.seconds.entry(second.saturating_add(offset)).or_default();
                    bucket.sample_count += values.sample_count;
                    bucket.error_count += values.error_count;
                    bucket.received_bytes += values.received_bytes;
                    bucket.time_buckets.append(&mut values.time_buckets);
                }
            }
        }
        for (label, mut traces) in part.traces {
            self.traces.entry(label).or_default().append(&mut traces);
        }
        part.slowest_samples.take_all().into_iter().for_each(|slow| self.slowest_samples.add(slow));
        self.breached_goal = self.breached_goal.take().or(part.breached_goal);
        self.elapsed += part.elapsed;
        self.histogram_precision.kept_bits =
            self.histogram_precision.kept_bits.min(part.histogram_precision.kept_bits);
        self.histogram_precision.bucket_count += part.histogram_precision.bucket_count;
        let (own, part_generator) = (&mut self.generator, part.generator);
        own.worker_count = own.worker_count.max(part_generator.worker_count);
        own.processor_count = part_generator.processor_count;
        own.cpu_time += part_generator.cpu_time;
        own.lag.merge(&part_generator.lag);
        own.late_arrivals += part_generator.late_arrivals;
        own.unsent_arrivals += part_generator.unsent_arrivals;
        own.repeated_requests += part_generator.repeated_requests;
        own.max_active_users = own.max_active_users.max(part_generator.max_active_users);
        own.is_open_model |= part_generator.is_open_model;
        own.offered_rate = own.offered_rate.or(part_generator.offered_rate);
        for (second, values) in part_generator.seconds {
            let bucket = own.seconds.entry(second.saturating_add(offset)).or_default();
            bucket.cpu_time += values.cpu_time;
            bucket.lag = bucket.lag.max(values.lag);
            bucket.late_arrivals += values.late_arrivals;
            bucket.active_users = bucket.active_users.max(values.active_users);
        }
    }

    /// Adds a row of a result file that ended in `second`.
    pub(crate) fn add_row(&mut self, row: &JtlRow<'_>, second: u32) {
        let labels = if row.is_transaction() { &mut self.transactions } else { &mut self.labels };
        let series = series_for_label(labels, row.label.as_ref());
        let us = |ms: u64| ms.saturating_mul(1000);
        let elapsed = if row.elapsed_us > 0 { row.elapsed_us } else { us(row.elapsed_ms) };
        let total = &mut series.total;
        total.response_times.record_us(elapsed, 1);
        total.latency_times.record_us(us(row.latency_ms), 1);
        if row.connect_ms > 0 {
            total.connect_times.record_us(us(row.connect_ms), 1);
        }
        total.received_bytes += row.received_bytes;
        total.sent_bytes += row.sent_bytes;
        *total.status_counts.entry(row.response_code.parse().unwrap_or(0)).or_default() += 1;
        self.generator.max_active_users = self.generator.max_active_users.max(row.all_threads);
        let own = self.generator.seconds.entry(second).or_default();
        own.active_users = own.active_users.max(row.all_threads);
        let bucket = series.seconds.entry(second).or_default();
        bucket.sample_count += 1;
        bucket.received_bytes += row.received_bytes;
        bucket.time_buckets.push((elapsed, 1));
        if row.is_ok && !row.is_transaction() {
            let end = row.start_ms.saturating_add(row.elapsed_ms);
            total.cache_warmup.record_response(us(end), elapsed, None);
        }
        if !row.is_ok {
            total.record_failed_us(elapsed);
            bucket.error_count += 1;
            let reason = if row.failure.is_empty() {
                format!("{} {}", row.response_code, row.response_message).trim().to_owned()
            } else {
                row.failure.to_string()
            };
            let reason = if reason.is_empty() { "no reason given".to_owned() } else { reason };
            total.count_failure_reason(&reason, 1);
        }
        if let Some(mark) = parse_mark_field(&row.mark).filter(|_| !row.is_transaction()) {
            self.add_marked(row, mark, elapsed);
        }
    }

    /// Adds a row that has a sample mark.
    fn add_marked(&mut self, row: &JtlRow<'_>, mark: &str, elapsed_us: u64) {
        let served =
            self.server_log_join.as_mut().and_then(|joined| joined.match_sample(mark, elapsed_us));
        let label_entry = self.labels.get_key_value(row.label.as_ref());
        let label = label_entry.map_or_else(|| OTHER_LABELS.into(), |(label, _)| Arc::clone(label));
        if !self.slowest_samples.is_slow_enough(&label, elapsed_us) {
            return;
        }
        self.slowest_samples.add(SlowSample {
            label,
            mark: mark.into(),
            started_ms: row.start_ms,
            response_us: elapsed_us,
            service_us: elapsed_us,
            outcome: row.response_code.as_ref().into(),
            server_timing: None,
            server_log_timing: served,
        });
    }

    /// Renumbers seconds from a later origin, before which there is no data.
    pub(crate) fn rebase_seconds(&mut self, first: u32) {
        fn shift<T>(seconds: &mut BTreeMap<u32, T>, first: u32) {
            let all = std::mem::take(seconds).into_iter();
            seconds.extend(all.map(|(second, values)| (second.saturating_sub(first), values)));
        }
        for series in self.labels.values_mut().chain(self.transactions.values_mut()) {
            shift(&mut series.seconds, first);
        }
        shift(&mut self.generator.seconds, first);
    }

    /// Converts the moments of rows, which are wall-clock times, to times since the start of the run; `first` is in
    /// milliseconds since the epoch.
    pub(crate) fn rebase_cache_warmups(&mut self, first: u64) {
        for series in self.labels.values_mut() {
            series.total.cache_warmup.shift_earlier(first.saturating_mul(1000));
        }
    }

    /// Uses transactions as samples if the rows hold nothing else.
    pub(crate) fn use_transactions_as_labels(&mut self) {
        if self.labels.is_empty() && !self.transactions.is_empty() {
            std::mem::swap(&mut self.labels, &mut self.transactions);
            self.has_only_transactions = true;
        }
    }

    /// Completes results from rows: merges equal times of a second, and fills in service times, which rows do not have.
    pub(crate) fn finish_rows(&mut self) {
        for series in self.labels.values_mut().chain(self.transactions.values_mut()) {
            series.total.service_times = series.total.response_times.clone();
            for second in series.seconds.values_mut() {
                second.merge_buckets(MAX_PRECISION_BITS);
                second.time_buckets.shrink_to_fit();
            }
        }
    }

    /// Returns the number of samples, and sums of transactions, that count under [`OTHER_LABELS`].
    #[must_use]
    pub fn other_label_samples(&self) -> u64 {
        let of = |labels: &BTreeMap<Arc<str>, LabelSeries>| {
            labels.get(OTHER_LABELS).map_or(0, |series| series.total.count())
        };
        of(&self.labels) + of(&self.transactions)
    }

    /// Returns the statistics of all labels together.
    #[must_use]
    pub fn total_stats(&self) -> SampleStats {
        let mut total = SampleStats::default();
        for series in self.labels.values() {
            total.merge(&series.total);
        }
        total
    }

    /// Returns samples per second.
    #[must_use]
    pub fn rate_of(&self, count: u64) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
    }
}

/// Returns the series that a label counts under.
fn series_for_label<'s>(
    labels: &'s mut BTreeMap<Arc<str>, LabelSeries>,
    name: &str,
) -> &'s mut LabelSeries {
    if labels.contains_key(name) {
        #[expect(clippy::expect_used, reason = "the line above found it")]
        return labels.get_mut(name).expect("the label is there");
    }
    let name = counted_label(name, |name| labels.contains_key(name), labels.len());
    labels.entry(name.into()).or_default()
}

#[cfg(test)]
mod tests {
    use super::super::MAX_LABELS;
    use super::*;

    /// Adds a second in which a label has `count` samples with distinct times.
    fn second(results: &mut RunResults, second: u32, count: u64) {
        let mut stats = SampleStats::default();
        // Above 2 ms each time of three digits has a separate bucket.
        for number in 0..count {
            stats.response_times.record_us(2_048 + number * 16, 1);
        }
        results.add_interval(&WorkerInterval {
            worker: 0,
            second,
            labels: vec![("page".into(), stats, false)],
            lag: TimingHistogram::new(),
            late_arrivals: 0,
            unsent_arrivals: 0,
            repeated_requests: 0,
            active_users: 1,
            cpu_time: Duration::ZERO,
            traces: Vec::new(),
            slow_samples: Vec::new(),
        });
    }

    #[test]
    fn long_runs_keep_their_seconds_more_coarsely_and_their_totals_exactly() {
        let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
        let (seconds, samples) = (2_000u32, 4_000u64);
        for at in 0..seconds {
            second(&mut results, at, samples);
        }
        let series = &results.labels["page"];
        let bucket_count: usize =
            series.seconds.values().map(|second| second.time_buckets.len()).sum();
        assert!(
            bucket_count <= MAX_SECOND_BUCKETS
                && bucket_count == results.histogram_precision.bucket_count,
            "{bucket_count}"
        );
        assert!(results.histogram_precision.kept_bits < MAX_PRECISION_BITS);
        for second in series.seconds.values() {
            assert_eq!(second.time_buckets.iter().map(|(_, count)| count).sum::<u64>(), samples);
            // No time is reported as shorter than it was, nor as longer by more than the precision.
            let (first, last) =
                (second.time_buckets[0].0, second.time_buckets[second.time_buckets.len() - 1].0);
            assert!((2_048..=2_048 + 2_048 / 16).contains(&first), "{first}");
            let longest = 2_048 + (samples - 1) * 16;
            assert!((longest..=longest + longest / 16).contains(&last), "{last}");
        }
        assert_eq!(series.total.count(), u64::from(seconds) * samples);
        assert!(series.total.response_times.buckets().count() > 1_000, "totals keep their digits");
    }

    #[test]
    fn labels_without_end_count_together_and_no_sample_is_lost() {
        let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
        let row =
            |number: usize| JtlRow { label: format!("item {number}").into(), ..JtlRow::default() };
        for number in 0..3 * MAX_LABELS {
            results.add_row(&row(number), 0);
        }
        // Labels that are already distinguished stay so.
        results.add_row(&row(0), 1);
        assert_eq!(results.labels.len(), MAX_LABELS + 1);
        assert_eq!(results.other_label_samples(), 2 * MAX_LABELS as u64);
        assert_eq!(results.labels["item 0"].total.count(), 2);
        assert_eq!(results.total_stats().count(), 3 * MAX_LABELS as u64 + 1);
        // Another part with different labels, as from another worker.
        let mut part = RunResults::new(SystemTime::UNIX_EPOCH);
        (0..10).for_each(|number| part.add_row(&row(10 * MAX_LABELS + number), 0));
        results.append_part(part);
        assert_eq!(results.labels.len(), MAX_LABELS + 1);
        assert_eq!(results.other_label_samples(), 2 * MAX_LABELS as u64 + 10);
    }

    #[test]
    fn what_workers_saw_in_one_second_is_kept_once() {
        let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
        for _ in 0..8 {
            second(&mut results, 3, 50);
        }
        let times = &results.labels["page"].seconds[&3].time_buckets;
        assert_eq!(times.len(), 50);
        assert!(times.iter().all(|(_, count)| *count == 8));
    }
}
