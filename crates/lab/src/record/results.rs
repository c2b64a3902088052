//! The whole of a run: every label's totals and seconds, and what is known about the generator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::jtl::Row;
use super::recorder::Interval;
use super::trace::{Quota, Trace};
use super::{Stats, Timing};

/// What a run measured.
#[derive(Debug, Clone)]
pub struct Results {
    /// When the run started.
    pub started: SystemTime,
    /// How long it took.
    pub elapsed: Duration,
    /// Per label, in the order of their names.
    pub labels: BTreeMap<Arc<str>, Series>,
    /// Per transaction: sums over samples that `labels` holds too.
    pub transactions: BTreeMap<Arc<str>, Series>,
    /// What is known about the generator.
    pub generator: Generator,
    /// Exchanges that were kept whole, per label.
    pub traces: BTreeMap<Arc<str>, Vec<Trace>>,
    /// The processes that made the load together; empty if it was one.
    pub members: Vec<Member>,
}

/// One of several processes that made the load.
#[derive(Debug, Clone)]
pub struct Member {
    /// For people.
    pub name: String,
    /// Its own limits.
    pub generator: Generator,
    /// How long it worked.
    pub elapsed: Duration,
    /// Samples that it told of.
    pub samples: u64,
    /// Why it is lost, if it is.
    pub lost: Option<String>,
}

/// One label.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// The whole run.
    pub total: Stats,
    /// Per second of the run in which something ended.
    pub seconds: BTreeMap<u32, Second>,
}

/// One label in one second.
#[derive(Debug, Clone, Default)]
pub struct Second {
    /// Samples that ended.
    pub count: u64,
    /// Those that failed.
    pub errors: u64,
    /// Bytes received.
    pub received: u64,
    /// Response times: upper end of the bucket in microseconds, and count.
    pub times: Vec<(u64, u64)>,
}

/// What is known about the generator, so that a reader can tell whether to believe it.
#[derive(Debug, Clone, Default)]
pub struct Generator {
    /// Threads that sent.
    pub workers: usize,
    /// Processors that it may use.
    pub processors: usize,
    /// Processor time of the threads that sent.
    pub cpu: Duration,
    /// How much later than planned it acted.
    pub lag: Timing,
    /// Arrivals that found no free user.
    pub late: u64,
    /// Arrivals that the run's end left unsent.
    pub unsent: u64,
    /// Most users at a time.
    pub most_active: u64,
    /// Whether it followed a schedule of arrivals.
    pub is_open: bool,
    /// Arrivals that it was asked for per second.
    pub offered: Option<f64>,
    /// What it did per second of the run; empty where other processes made the load.
    pub seconds: BTreeMap<u32, OwnSecond>,
}

/// The generator in one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnSecond {
    /// Processor time of all threads that sent.
    pub cpu: Duration,
    /// How much later than planned it acted: the worst 99th percentile of its threads.
    pub lag: Duration,
    /// Arrivals that found no free user.
    pub late: u64,
    /// Users at a time.
    pub active: u64,
}

impl Generator {
    /// Returns the share of its processors that it used, 0 to 1.
    #[must_use]
    pub fn cpu_share(&self, elapsed: Duration) -> f64 {
        let may = self.workers.min(self.processors).max(1) as f64;
        let span = elapsed.as_secs_f64() * may;
        if span > 0.0 { self.cpu.as_secs_f64() / span } else { 0.0 }
    }
}

impl Results {
    /// Returns empty results of a run that begins at `started`.
    #[must_use]
    pub fn new(started: SystemTime) -> Self {
        Self {
            started,
            elapsed: Duration::ZERO,
            labels: BTreeMap::new(),
            transactions: BTreeMap::new(),
            generator: Generator::default(),
            traces: BTreeMap::new(),
            members: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, interval: &Interval) {
        for (name, stats, is_transaction) in &interval.labels {
            let labels = if *is_transaction { &mut self.transactions } else { &mut self.labels };
            let series = labels.entry(Arc::clone(name)).or_default();
            series.total.add(stats);
            let second = series.seconds.entry(interval.second).or_default();
            second.count += stats.count();
            second.errors += stats.errors;
            second.received += stats.received;
            second.times.extend(stats.response.buckets());
        }
        self.generator.lag.add(&interval.lag);
        self.generator.late += interval.late;
        self.generator.unsent += interval.unsent;
        for trace in &interval.traces {
            self.traces.entry(trace.label.as_str().into()).or_default().push(trace.clone());
        }
    }

    /// Leaves of each label the first exchanges, and the first that failed, of all that workers kept.
    pub(crate) fn thin_traces(&mut self, most: usize) {
        for traces in self.traces.values_mut() {
            traces.sort_by_key(|trace| trace.started_ms);
            let mut quota = Quota::default();
            traces.retain(|trace| quota.takes(trace.is_ok, most));
        }
    }

    /// Adds a part that was run after this one.
    pub(crate) fn append(&mut self, part: Self) {
        let offset = u32::try_from(self.elapsed.as_secs()).unwrap_or(u32::MAX);
        for (own, other) in
            [(&mut self.labels, part.labels), (&mut self.transactions, part.transactions)]
        {
            for (name, series) in other {
                let known = own.entry(name).or_default();
                known.total.add(&series.total);
                for (second, mut values) in series.seconds {
                    let place = known.seconds.entry(second.saturating_add(offset)).or_default();
                    place.count += values.count;
                    place.errors += values.errors;
                    place.received += values.received;
                    place.times.append(&mut values.times);
                }
            }
        }
        for (label, mut traces) in part.traces {
            self.traces.entry(label).or_default().append(&mut traces);
        }
        self.elapsed += part.elapsed;
        let (own, other) = (&mut self.generator, part.generator);
        own.workers = own.workers.max(other.workers);
        own.processors = other.processors;
        own.cpu += other.cpu;
        own.lag.add(&other.lag);
        own.late += other.late;
        own.unsent += other.unsent;
        own.most_active = own.most_active.max(other.most_active);
        own.is_open |= other.is_open;
        own.offered = own.offered.or(other.offered);
        for (second, values) in other.seconds {
            let place = own.seconds.entry(second.saturating_add(offset)).or_default();
            place.cpu += values.cpu;
            place.lag = place.lag.max(values.lag);
            place.late += values.late;
            place.active = place.active.max(values.active);
        }
    }

    /// Adds a row of a file that ended in `second`.
    pub(crate) fn add_row(&mut self, row: &Row<'_>, second: u32) {
        let labels = if row.is_transaction() { &mut self.transactions } else { &mut self.labels };
        if !labels.contains_key(row.label.as_ref()) {
            labels.insert(Arc::from(row.label.as_ref()), Series::default());
        }
        let Some(series) = labels.get_mut(row.label.as_ref()) else { return };
        let us = |ms: u64| ms.saturating_mul(1000);
        let total = &mut series.total;
        total.response.record_us(us(row.elapsed), 1);
        total.latency.record_us(us(row.latency), 1);
        if row.connect > 0 {
            total.connect.record_us(us(row.connect), 1);
        }
        total.received += row.bytes;
        total.sent += row.sent;
        *total.statuses.entry(row.code.parse().unwrap_or(0)).or_default() += 1;
        let place = series.seconds.entry(second).or_default();
        place.count += 1;
        place.received += row.bytes;
        place.times.push((us(row.elapsed), 1));
        if !row.is_ok {
            total.errors += 1;
            place.errors += 1;
            let reason = if row.failure.is_empty() {
                format!("{} {}", row.code, row.message).trim().to_owned()
            } else {
                row.failure.to_string()
            };
            *total.reasons.entry(reason).or_default() += 1;
        }
    }

    /// Puts together what rows left apart: equal times of a second, and service times, which rows do not have.
    pub(crate) fn sum_up(&mut self) {
        for series in self.labels.values_mut().chain(self.transactions.values_mut()) {
            series.total.service = series.total.response.clone();
            for second in series.seconds.values_mut() {
                second.times.sort_unstable();
                let mut counted: Vec<(u64, u64)> = Vec::new();
                for &(time, count) in &second.times {
                    match counted.last_mut() {
                        Some((known, sum)) if *known == time => *sum += count,
                        _ => counted.push((time, count)),
                    }
                }
                second.times = counted;
            }
        }
    }

    /// Returns all labels together.
    #[must_use]
    pub fn total(&self) -> Stats {
        let mut total = Stats::default();
        for series in self.labels.values() {
            total.add(&series.total);
        }
        total
    }

    /// Returns samples per second.
    #[must_use]
    pub fn rate(&self, count: u64) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
    }
}
