//! What requests took lately: the newest, the slowest, and percentiles of each component.
//!
//! In: the [`Timing`] of each request. Out: [`Profile::report`]. Memory is bounded, and a request costs one lock.
//!
//! Not here: taking times ([`crate::timing`]).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::timing::{Row, Timing};

/// Requests that are kept of each kind.
const RECENT: usize = 100;
const SLOWEST: usize = 50;
/// Components that have percentiles; more are summed up as one.
const COMPONENTS: usize = 1000;
/// Buckets of a histogram: four for each doubling of microseconds, up to about an hour.
const BUCKETS: usize = 128;

/// One request.
#[derive(Debug, Clone)]
pub struct Profiled {
    /// What was asked for.
    pub url: Arc<str>,
    /// When it was answered.
    pub at: SystemTime,
    /// The times of its components.
    pub timing: Arc<Timing>,
}

/// What a component took over all requests since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentReport {
    /// The script.
    pub script: Arc<str>,
    /// How often it ran.
    pub calls: u64,
    /// How many queries it ran, without what it included.
    pub queries: u64,
    /// From its start to its end, with what it included.
    pub total: Duration,
    /// Without what it included.
    pub own: Duration,
    /// Half of the calls took at most this, with what they included.
    pub median: Duration,
    /// Nine of ten.
    pub p90: Duration,
    /// 99 of a hundred.
    pub p99: Duration,
}

/// What is told.
#[derive(Debug, Clone)]
pub struct ProfileReport {
    /// The newest requests, newest first.
    pub recent: Vec<Profiled>,
    /// The slowest requests, slowest first.
    pub slowest: Vec<Profiled>,
    /// All components, those that took most by themselves first.
    pub components: Vec<ComponentReport>,
}

/// Counts how often something took how long.
#[derive(Debug)]
struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    calls: u64,
    queries: u64,
    total: Duration,
    own: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = Box::new([0; BUCKETS]);
        Self { counts, calls: 0, queries: 0, total: Duration::ZERO, own: Duration::ZERO }
    }
}

/// Returns the bucket of a time.
fn bucket_of(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
    let doublings = micros.ilog2() as usize;
    let quarter = match doublings {
        0 | 1 => 0,
        _ => ((micros >> (doublings - 2)) & 3) as usize,
    };
    (doublings * 4 + quarter).min(BUCKETS - 1)
}

/// Returns the longest time of a bucket.
fn end_of(bucket: usize) -> Duration {
    let (doublings, quarter) = (bucket / 4, bucket as u64 % 4);
    let micros = match doublings {
        0 => 1,
        1 => 3,
        _ => (5 + quarter) * (1 << (doublings - 2)) - 1,
    };
    Duration::from_micros(micros)
}

impl Histogram {
    fn add(&mut self, row: &Row, queries: u64) {
        let each = row.total / u32::try_from(row.calls.max(1)).unwrap_or(u32::MAX);
        if let Some(count) = self.counts.get_mut(bucket_of(each)) {
            *count = count.saturating_add(u32::try_from(row.calls).unwrap_or(u32::MAX));
        }
        self.calls += row.calls;
        self.queries += queries;
        self.total += row.total;
        self.own += row.self_time;
    }

    /// Returns the time that a share of the calls did not exceed.
    fn percentile(&self, percent: u64) -> Duration {
        let all: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        let wanted = (all * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted && *count > 0 {
                return end_of(bucket);
            }
        }
        Duration::ZERO
    }
}

/// Returns how many queries each row ran without those of the rows that it called, which follow it.
fn own_queries(rows: &[Row]) -> Vec<u64> {
    // Hardly any component asks.
    if rows.iter().all(|row| row.queries == 0) {
        return vec![0; rows.len()];
    }
    let mut own: Vec<u64> = rows.iter().map(|row| row.queries).collect();
    let mut callers: Vec<(usize, usize)> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        while callers.pop_if(|(_, depth)| *depth >= row.depth).is_some() {}
        if let Some(caller) = callers.last().and_then(|(caller, _)| own.get_mut(*caller)) {
            *caller = caller.saturating_sub(row.queries);
        }
        callers.push((at, row.depth));
    }
    own
}

#[derive(Debug, Default)]
struct State {
    recent: VecDeque<Profiled>,
    slowest: Vec<Profiled>,
    components: HashMap<Arc<str>, Histogram>,
}

/// The requests of one instance.
#[derive(Default)]
pub struct Profile(Mutex<State>);

impl Profile {
    /// Notes a request; one in which no component ran is left out.
    pub fn note(&self, url: &str, timing: &Timing, at: SystemTime) {
        if timing.rows.is_empty() {
            return;
        }
        let profiled = Profiled { url: url.into(), at, timing: Arc::new(timing.clone()) };
        let mut state = self.0.lock();
        for (row, queries) in timing.rows.iter().zip(own_queries(&timing.rows)) {
            if let Some(known) = state.components.get_mut(&row.script) {
                known.add(row, queries);
                continue;
            }
            let is_full = state.components.len() >= COMPONENTS;
            let name = if is_full { Arc::from("others") } else { Arc::clone(&row.script) };
            state.components.entry(name).or_default().add(row, queries);
        }
        let total = timing.total();
        let is_among = |last: &Profiled| last.timing.total() < total;
        // Most requests are none of the slowest.
        if state.slowest.len() < SLOWEST || state.slowest.last().is_some_and(is_among) {
            let place = state.slowest.partition_point(|one| one.timing.total() >= total);
            state.slowest.insert(place, profiled.clone());
            state.slowest.truncate(SLOWEST);
        }
        if state.recent.len() >= RECENT {
            state.recent.pop_back();
        }
        state.recent.push_front(profiled);
    }

    /// Returns what is known.
    #[must_use]
    pub fn report(&self) -> ProfileReport {
        let state = self.0.lock();
        let report = |(script, histogram): (&Arc<str>, &Histogram)| ComponentReport {
            script: Arc::clone(script),
            calls: histogram.calls,
            queries: histogram.queries,
            total: histogram.total,
            own: histogram.own,
            median: histogram.percentile(50),
            p90: histogram.percentile(90),
            p99: histogram.percentile(99),
        };
        let mut components: Vec<ComponentReport> = state.components.iter().map(report).collect();
        components.sort_by_key(|one| std::cmp::Reverse(one.own));
        let recent = state.recent.iter().cloned().collect();
        ProfileReport { recent, slowest: state.slowest.clone(), components }
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Profile")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(script: &str, millis: u64, calls: u64) -> Arc<Timing> {
        let row = Row {
            script: script.into(),
            path: "/p".into(),
            depth: 0,
            calls,
            total: Duration::from_millis(millis),
            self_time: Duration::from_millis(millis / 2),
            reads: 3,
            queries: 0,
        };
        Arc::new(Timing { rows: vec![row] })
    }

    #[test]
    fn buckets_hold_their_times() {
        for micros in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 100, 1000, 123_456, 9_999_999] {
            let (time, bucket) =
                (Duration::from_micros(micros), bucket_of(Duration::from_micros(micros)));
            assert!(time <= end_of(bucket), "{micros}");
            assert!(end_of(bucket) <= time * 2, "{micros}: {:?}", end_of(bucket));
            assert!(bucket == 0 || end_of(bucket) > end_of(bucket - 1) || bucket < 8, "{micros}");
        }
        assert_eq!(bucket_of(Duration::from_secs(1 << 40)), BUCKETS - 1);
    }

    #[test]
    fn keeps_the_newest_the_slowest_and_percentiles() {
        let profile = Profile::default();
        profile.note("/nothing", &Arc::new(Timing::default()), SystemTime::UNIX_EPOCH);
        for number in 0..1000_u64 {
            let slow = if number == 500 { 5000 } else { 1 + number % 10 };
            profile.note(&format!("/{number}"), &timing("page", slow, 1), SystemTime::UNIX_EPOCH);
        }
        profile.note("/other", &timing("list", 100, 10), SystemTime::UNIX_EPOCH);
        let report = profile.report();
        assert_eq!((report.recent.len(), report.slowest.len()), (RECENT, SLOWEST));
        assert_eq!((&*report.recent[0].url, &*report.slowest[0].url), ("/other", "/500"));
        let page = report.components.iter().find(|one| &*one.script == "page").unwrap();
        assert_eq!(page.calls, 1000);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        assert!((5.0..7.0).contains(&millis(page.median)), "{page:?}");
        assert!((9.0..12.5).contains(&millis(page.p90)) && millis(page.p99) < 13.0, "{page:?}");
        let list = report.components.iter().find(|one| &*one.script == "list").unwrap();
        assert!((10.0..13.0).contains(&millis(list.median)) && list.calls == 10, "{list:?}");
    }

    #[test]
    fn queries_are_those_of_the_component_itself() {
        let row = |depth, queries| {
            let one = timing("x", 1, 1);
            Row { depth, queries, ..one.rows[0].clone() }
        };
        let rows = [row(0, 7), row(1, 4), row(2, 3), row(1, 2), row(0, 1)];
        assert_eq!(own_queries(&rows), [1, 1, 3, 2, 1]);
        let profile = Profile::default();
        let named = ["page", "list", "search", "list", "other"].into_iter().zip(rows);
        let rows = named.map(|(script, row)| Row { script: script.into(), ..row }).collect();
        profile.note("/x", &Timing { rows }, SystemTime::UNIX_EPOCH);
        let report = profile.report();
        let queries = |name: &str| {
            report.components.iter().find(|one| &*one.script == name).map(|one| one.queries)
        };
        let expected = [("page", 1), ("list", 3), ("search", 3), ("other", 1)];
        expected.iter().for_each(|(name, count)| assert_eq!(queries(name), Some(*count), "{name}"));
    }

    #[test]
    fn very_many_components_are_summed_up() {
        let profile = Profile::default();
        for number in 0..COMPONENTS + 50 {
            profile.note("/x", &timing(&format!("c{number}"), 1, 1), SystemTime::UNIX_EPOCH);
        }
        let report = profile.report();
        assert_eq!(report.components.len(), COMPONENTS + 1);
        assert!(report.components.iter().any(|one| &*one.script == "others" && one.calls == 50));
    }
}
