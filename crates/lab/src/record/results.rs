//! The whole of a run: every label's totals and seconds, and what is known about the generator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::jtl::Row;
use super::label::{OTHER_LABELS, told};
use super::recorder::Interval;
use super::slowest::{Joined, Slow, Slowest, mark_of};
use super::trace::{Quota, Trace};
use super::{Stats, Timing};
use crate::phase::watch::Facts;
use crate::watch_log::Logged;

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
    /// The goal whose miss ended the run early.
    pub breach: Option<String>,
    /// Whether `labels` holds the sums of transactions, because nothing is known of their samples.
    pub is_of_sums: bool,
    /// What was seen of the tested process, oldest first; empty unless it was watched.
    pub target: Vec<Facts>,
    /// What was written to the logs that were watched.
    pub logged: Vec<Logged>,
    /// The slowest samples, where servers were told which sample a request belongs to.
    pub slowest: Slowest,
    /// What a log of the server says of marked samples, if one was read beside them.
    pub joined: Option<Joined>,
    /// How finely the seconds' times are kept.
    grain: Grain,
}

/// How finely the times of single seconds are kept: as they were recorded, until a run has so many of them that memory
/// would grow with its length. Totals keep their three digits in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grain {
    /// Leading binary digits of a time that are kept.
    bits: u32,
    /// Buckets that all seconds hold together.
    held: usize,
}

/// Histograms of three digits tell apart this many binary digits.
const FINEST: u32 = 11;
/// Times are kept to 6 % at least.
const COARSEST: u32 = 5;
/// Buckets of all seconds together beyond which they are kept more coarsely: 64 MiB.
const MOST_HELD: usize = 4 << 20;

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

impl Second {
    /// Puts buckets together that are the same at `bits` binary digits.
    fn sum_up(&mut self, bits: u32) {
        for (time, _) in &mut self.times {
            *time = coarse(*time, bits);
        }
        self.times.sort_unstable();
        self.times.dedup_by(|next, known| {
            let is_same = next.0 == known.0;
            if is_same {
                known.1 += next.1;
            }
            is_same
        });
    }
}

/// Returns the upper end of the bucket that a time falls into where only its first `bits` binary digits count.
fn coarse(us: u64, bits: u32) -> u64 {
    let more = (u64::BITS - us.leading_zeros()).saturating_sub(bits);
    if bits >= FINEST { us } else { us | ((1u64 << more) - 1) }
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
    /// Requests that were sent a second time because the server had closed their kept connection.
    pub repeated: u64,
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
            breach: None,
            is_of_sums: false,
            target: Vec::new(),
            logged: Vec::new(),
            slowest: Slowest::default(),
            joined: None,
            grain: Grain { bits: FINEST, held: 0 },
        }
    }

    pub(crate) fn add(&mut self, interval: &Interval) {
        for (name, stats, is_transaction) in &interval.labels {
            let labels = if *is_transaction { &mut self.transactions } else { &mut self.labels };
            let series = series_of(labels, name);
            series.total.add(stats);
            let second = series.seconds.entry(interval.second).or_default();
            second.count += stats.count();
            second.errors += stats.errors;
            second.received += stats.received;
            let before = second.times.len();
            second.times.extend(stats.response.buckets());
            // What several workers saw in the same second is kept once.
            if before > 0 || self.grain.bits < FINEST {
                second.sum_up(self.grain.bits);
            }
            self.grain.held += second.times.len().saturating_sub(before);
        }
        if self.grain.held > MOST_HELD && self.grain.bits > COARSEST {
            self.coarsen(self.grain.bits - 1);
        }
        self.generator.lag.add(&interval.lag);
        self.generator.late += interval.late;
        self.generator.unsent += interval.unsent;
        self.generator.repeated += interval.repeated;
        for trace in &interval.traces {
            self.traces.entry(trace.label.as_str().into()).or_default().push(trace.clone());
        }
        interval.slowest.iter().for_each(|slow| self.slowest.add(slow.clone()));
    }

    /// Keeps the times of all seconds so far with fewer digits.
    fn coarsen(&mut self, bits: u32) {
        let mut held = 0;
        for series in self.labels.values_mut().chain(self.transactions.values_mut()) {
            for second in series.seconds.values_mut() {
                second.sum_up(bits);
                second.times.shrink_to_fit();
                held += second.times.len();
            }
        }
        self.grain = Grain { bits, held };
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
    pub(crate) fn append(&mut self, mut part: Self) {
        let offset = u32::try_from(self.elapsed.as_secs()).unwrap_or(u32::MAX);
        for (own, other) in
            [(&mut self.labels, part.labels), (&mut self.transactions, part.transactions)]
        {
            for (name, series) in other {
                let known = series_of(own, &name);
                let mut total = series.total;
                total.opening.shift(self.elapsed);
                known.total.add(&total);
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
        part.slowest.take().into_iter().for_each(|slow| self.slowest.add(slow));
        self.breach = self.breach.take().or(part.breach);
        self.elapsed += part.elapsed;
        self.grain.bits = self.grain.bits.min(part.grain.bits);
        self.grain.held += part.grain.held;
        let (own, other) = (&mut self.generator, part.generator);
        own.workers = own.workers.max(other.workers);
        own.processors = other.processors;
        own.cpu += other.cpu;
        own.lag.add(&other.lag);
        own.late += other.late;
        own.unsent += other.unsent;
        own.repeated += other.repeated;
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
        let series = series_of(labels, row.label.as_ref());
        let us = |ms: u64| ms.saturating_mul(1000);
        let elapsed = if row.elapsed_us > 0 { row.elapsed_us } else { us(row.elapsed) };
        let total = &mut series.total;
        total.response.record_us(elapsed, 1);
        total.latency.record_us(us(row.latency), 1);
        if row.connect > 0 {
            total.connect.record_us(us(row.connect), 1);
        }
        total.received += row.bytes;
        total.sent += row.sent;
        *total.statuses.entry(row.code.parse().unwrap_or(0)).or_default() += 1;
        self.generator.most_active = self.generator.most_active.max(row.all_threads);
        let own = self.generator.seconds.entry(second).or_default();
        own.active = own.active.max(row.all_threads);
        let place = series.seconds.entry(second).or_default();
        place.count += 1;
        place.received += row.bytes;
        place.times.push((elapsed, 1));
        if row.is_ok && !row.is_transaction() {
            let end = row.time_stamp.saturating_add(row.elapsed);
            total.opening.note(us(end), elapsed, None);
        }
        if !row.is_ok {
            total.fail_us(elapsed);
            place.errors += 1;
            let reason = if row.failure.is_empty() {
                format!("{} {}", row.code, row.message).trim().to_owned()
            } else {
                row.failure.to_string()
            };
            let reason = if reason.is_empty() { "no reason is given".to_owned() } else { reason };
            total.blame(&reason, 1);
        }
        if let Some(mark) = mark_of(&row.mark).filter(|_| !row.is_transaction()) {
            self.add_marked(row, mark, elapsed);
        }
    }

    /// Adds a row that says by which mark servers know its sample.
    fn add_marked(&mut self, row: &Row<'_>, mark: &str, elapsed_us: u64) {
        let served = self.joined.as_mut().and_then(|joined| joined.add(mark, elapsed_us));
        let known = self.labels.get_key_value(row.label.as_ref());
        let label = known.map_or_else(|| OTHER_LABELS.into(), |(label, _)| Arc::clone(label));
        if !self.slowest.wants(&label, elapsed_us) {
            return;
        }
        self.slowest.add(Slow {
            label,
            mark: mark.into(),
            started_ms: row.time_stamp,
            response_us: elapsed_us,
            service_us: elapsed_us,
            answer: row.code.as_ref().into(),
            server_timing: None,
            served,
        });
    }

    /// Counts seconds from a later one on, before which there is nothing.
    pub(crate) fn count_seconds_from(&mut self, first: u32) {
        fn shift<T>(seconds: &mut BTreeMap<u32, T>, first: u32) {
            let all = std::mem::take(seconds).into_iter();
            seconds.extend(all.map(|(second, values)| (second.saturating_sub(first), values)));
        }
        for series in self.labels.values_mut().chain(self.transactions.values_mut()) {
            shift(&mut series.seconds, first);
        }
        shift(&mut self.generator.seconds, first);
    }

    /// Counts the moments of rows, which tell the time of day, from the beginning of the run: a millisecond of the epoch.
    pub(crate) fn count_openings_from(&mut self, first: u64) {
        for series in self.labels.values_mut() {
            series.total.opening.count_from(first.saturating_mul(1000));
        }
    }

    /// Takes transactions for samples where rows hold nothing else.
    pub(crate) fn count_sums(&mut self) {
        if self.labels.is_empty() && !self.transactions.is_empty() {
            std::mem::swap(&mut self.labels, &mut self.transactions);
            self.is_of_sums = true;
        }
    }

    /// Puts together what rows left apart: equal times of a second, and service times, which rows do not have.
    pub(crate) fn sum_up(&mut self) {
        for series in self.labels.values_mut().chain(self.transactions.values_mut()) {
            series.total.service = series.total.response.clone();
            for second in series.seconds.values_mut() {
                second.sum_up(FINEST);
                second.times.shrink_to_fit();
            }
        }
    }

    /// Returns how many samples, and sums of transactions, count under [`OTHER_LABELS`].
    #[must_use]
    pub fn others(&self) -> u64 {
        let of = |labels: &BTreeMap<Arc<str>, Series>| {
            labels.get(OTHER_LABELS).map_or(0, |series| series.total.count())
        };
        of(&self.labels) + of(&self.transactions)
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

/// Returns the series that a label counts under.
fn series_of<'s>(labels: &'s mut BTreeMap<Arc<str>, Series>, name: &str) -> &'s mut Series {
    if labels.contains_key(name) {
        #[expect(clippy::expect_used, reason = "the line above found it")]
        return labels.get_mut(name).expect("the label is there");
    }
    let name = told(name, |name| labels.contains_key(name), labels.len());
    labels.entry(name.into()).or_default()
}

#[cfg(test)]
mod tests {
    use super::super::MOST_LABELS;
    use super::*;

    /// Adds a second in which a label has samples of `count` different times.
    fn second(results: &mut Results, second: u32, count: u64) {
        let mut stats = Stats::default();
        // Above 2 ms each time of three digits has a bucket of its own.
        for number in 0..count {
            stats.response.record_us(2_048 + number * 16, 1);
        }
        results.add(&Interval {
            worker: 0,
            second,
            labels: vec![("page".into(), stats, false)],
            lag: Timing::new(),
            late: 0,
            unsent: 0,
            repeated: 0,
            active: 1,
            cpu: Duration::ZERO,
            traces: Vec::new(),
            slowest: Vec::new(),
        });
    }

    #[test]
    fn long_runs_keep_their_seconds_more_coarsely_and_their_totals_exactly() {
        let mut results = Results::new(SystemTime::UNIX_EPOCH);
        let (seconds, samples) = (2_000u32, 4_000u64);
        for at in 0..seconds {
            second(&mut results, at, samples);
        }
        let series = &results.labels["page"];
        let held: usize = series.seconds.values().map(|second| second.times.len()).sum();
        assert!(held <= MOST_HELD && held == results.grain.held, "{held}");
        assert!(results.grain.bits < FINEST);
        for second in series.seconds.values() {
            assert_eq!(second.times.iter().map(|(_, count)| count).sum::<u64>(), samples);
            // No time is told as shorter than it was, nor as longer by more than its digits.
            let (first, last) = (second.times[0].0, second.times[second.times.len() - 1].0);
            assert!((2_048..=2_048 + 2_048 / 16).contains(&first), "{first}");
            let longest = 2_048 + (samples - 1) * 16;
            assert!((longest..=longest + longest / 16).contains(&last), "{last}");
        }
        assert_eq!(series.total.count(), u64::from(seconds) * samples);
        assert!(series.total.response.buckets().count() > 1_000, "totals keep their digits");
    }

    #[test]
    fn labels_without_end_count_together_and_no_sample_is_lost() {
        let mut results = Results::new(SystemTime::UNIX_EPOCH);
        let row = |number: usize| Row { label: format!("item {number}").into(), ..Row::default() };
        for number in 0..3 * MOST_LABELS {
            results.add_row(&row(number), 0);
        }
        // Those that are told apart stay so.
        results.add_row(&row(0), 1);
        assert_eq!(results.labels.len(), MOST_LABELS + 1);
        assert_eq!(results.others(), 2 * MOST_LABELS as u64);
        assert_eq!(results.labels["item 0"].total.count(), 2);
        assert_eq!(results.total().count(), 3 * MOST_LABELS as u64 + 1);
        // Another part whose labels are other ones, as of another worker.
        let mut part = Results::new(SystemTime::UNIX_EPOCH);
        (0..10).for_each(|number| part.add_row(&row(10 * MOST_LABELS + number), 0));
        results.append(part);
        assert_eq!(results.labels.len(), MOST_LABELS + 1);
        assert_eq!(results.others(), 2 * MOST_LABELS as u64 + 10);
    }

    #[test]
    fn what_workers_saw_in_one_second_is_kept_once() {
        let mut results = Results::new(SystemTime::UNIX_EPOCH);
        for _ in 0..8 {
            second(&mut results, 3, 50);
        }
        let times = &results.labels["page"].seconds[&3].times;
        assert_eq!(times.len(), 50);
        assert!(times.iter().all(|(_, count)| *count == 8));
    }
}
