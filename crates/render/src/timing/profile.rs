//! Recent request times: the newest, the slowest, and percentiles of each component.
//!
//! Input: the [`RenderTiming`] of each request. Output: [`RenderProfile::report`]. Memory is bounded, and a request
//! takes one lock.
//!
//! Not here: measuring times ([`crate::timing`]).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::timing::{RenderTiming, TimingRow};

/// Number of stored requests of each kind.
const MAX_RECENT_REQUESTS: usize = 100;
const MAX_SLOWEST_REQUESTS: usize = 50;
/// Maximum number of components with percentiles; more are combined into one.
const MAX_PROFILED_COMPONENTS: usize = 1000;
/// Buckets of a histogram: four for each doubling of microseconds, up to about an hour.
const BUCKET_COUNT: usize = 128;

/// A profiled request.
#[derive(Debug, Clone)]
pub struct ProfiledRequest {
    /// The requested URL.
    pub url: Arc<str>,
    /// Time of completion.
    pub completed_at: SystemTime,
    /// The times of its components.
    pub timing: Arc<RenderTiming>,
}

/// Times of a component over all requests since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentTimingReport {
    /// The script.
    pub script: Arc<str>,
    /// Number of calls.
    pub call_count: u64,
    /// Number of queries, without those of included components.
    pub query_count: u64,
    /// Total time, including included components.
    pub total_time: Duration,
    /// Total time, without included components.
    pub self_time: Duration,
    /// Median time of a call, including included components.
    pub median: Duration,
    /// 90th percentile.
    pub p90: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

/// A report of the profile.
#[derive(Debug, Clone)]
pub struct RenderProfileReport {
    /// The newest requests, newest first.
    pub recent: Vec<ProfiledRequest>,
    /// The slowest requests, slowest first.
    pub slowest: Vec<ProfiledRequest>,
    /// All components, sorted by self time, longest first.
    pub components: Vec<ComponentTimingReport>,
}

/// A histogram of call times.
#[derive(Debug)]
struct ComponentTimeHistogram {
    bucket_counts: Box<[u32; BUCKET_COUNT]>,
    call_count: u64,
    query_count: u64,
    total_time: Duration,
    self_time: Duration,
}

impl Default for ComponentTimeHistogram {
    fn default() -> Self {
        let counts = Box::new([0; BUCKET_COUNT]);
        Self {
            bucket_counts: counts,
            call_count: 0,
            query_count: 0,
            total_time: Duration::ZERO,
            self_time: Duration::ZERO,
        }
    }
}

/// Returns the bucket of a time.
fn bucket_index(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
    let doublings = micros.ilog2() as usize;
    let quarter = match doublings {
        0 | 1 => 0,
        _ => ((micros >> (doublings - 2)) & 3) as usize,
    };
    (doublings * 4 + quarter).min(BUCKET_COUNT - 1)
}

/// Returns the longest time of a bucket.
fn bucket_upper_bound(bucket: usize) -> Duration {
    let (doublings, quarter) = (bucket / 4, bucket as u64 % 4);
    let micros = match doublings {
        0 => 1,
        1 => 3,
        _ => (5 + quarter) * (1 << (doublings - 2)) - 1,
    };
    Duration::from_micros(micros)
}

impl ComponentTimeHistogram {
    fn record(&mut self, row: &TimingRow, queries: u64) {
        let each = row.total_time / u32::try_from(row.call_count.max(1)).unwrap_or(u32::MAX);
        if let Some(count) = self.bucket_counts.get_mut(bucket_index(each)) {
            *count = count.saturating_add(u32::try_from(row.call_count).unwrap_or(u32::MAX));
        }
        self.call_count += row.call_count;
        self.query_count += queries;
        self.total_time += row.total_time;
        self.self_time += row.self_time;
    }

    /// Returns the time that a percentage of the calls did not exceed.
    fn percentile(&self, percent: u64) -> Duration {
        let all: u64 = self.bucket_counts.iter().map(|count| u64::from(*count)).sum();
        let target_count = (all * percent).div_ceil(100);
        let mut seen_count = 0;
        for (bucket, count) in self.bucket_counts.iter().enumerate() {
            seen_count += u64::from(*count);
            if seen_count >= target_count && *count > 0 {
                return bucket_upper_bound(bucket);
            }
        }
        Duration::ZERO
    }
}

/// Returns the number of queries of each row without those of the rows that it called, which follow it.
fn own_query_counts(rows: &[TimingRow]) -> Vec<u64> {
    // Few components run queries.
    if rows.iter().all(|row| row.query_count == 0) {
        return vec![0; rows.len()];
    }
    let mut own: Vec<u64> = rows.iter().map(|row| row.query_count).collect();
    let mut callers: Vec<(usize, usize)> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        while callers.pop_if(|(_, depth)| *depth >= row.depth).is_some() {}
        if let Some(caller) = callers.last().and_then(|(caller, _)| own.get_mut(*caller)) {
            *caller = caller.saturating_sub(row.query_count);
        }
        callers.push((at, row.depth));
    }
    own
}

#[derive(Debug, Default)]
struct RenderProfileState {
    recent: VecDeque<ProfiledRequest>,
    slowest: Vec<ProfiledRequest>,
    components: HashMap<Arc<str>, ComponentTimeHistogram>,
}

/// The requests of one instance.
#[derive(Default)]
pub struct RenderProfile(Mutex<RenderProfileState>);

impl RenderProfile {
    /// Records a request; ignores one in which no component ran.
    pub fn record(&self, url: &str, timing: &RenderTiming, at: SystemTime) {
        if timing.rows.is_empty() {
            return;
        }
        let profiled =
            ProfiledRequest { url: url.into(), completed_at: at, timing: Arc::new(timing.clone()) };
        let mut state = self.0.lock();
        for (row, queries) in timing.rows.iter().zip(own_query_counts(&timing.rows)) {
            if let Some(component) = state.components.get_mut(&row.script) {
                component.record(row, queries);
                continue;
            }
            let is_full = state.components.len() >= MAX_PROFILED_COMPONENTS;
            let name = if is_full { Arc::from("others") } else { Arc::clone(&row.script) };
            state.components.entry(name).or_default().record(row, queries);
        }
        let total = timing.total_time();
        let is_among = |last: &ProfiledRequest| last.timing.total_time() < total;
        // Most requests are not among the slowest.
        if state.slowest.len() < MAX_SLOWEST_REQUESTS || state.slowest.last().is_some_and(is_among)
        {
            let position =
                state.slowest.partition_point(|request| request.timing.total_time() >= total);
            state.slowest.insert(position, profiled.clone());
            state.slowest.truncate(MAX_SLOWEST_REQUESTS);
        }
        if state.recent.len() >= MAX_RECENT_REQUESTS {
            state.recent.pop_back();
        }
        state.recent.push_front(profiled);
    }

    /// Returns the current report.
    #[must_use]
    pub fn report(&self) -> RenderProfileReport {
        let state = self.0.lock();
        let report =
            |(script, histogram): (&Arc<str>, &ComponentTimeHistogram)| ComponentTimingReport {
                script: Arc::clone(script),
                call_count: histogram.call_count,
                query_count: histogram.query_count,
                total_time: histogram.total_time,
                self_time: histogram.self_time,
                median: histogram.percentile(50),
                p90: histogram.percentile(90),
                p99: histogram.percentile(99),
            };
        let mut components: Vec<ComponentTimingReport> =
            state.components.iter().map(report).collect();
        components.sort_by_key(|component| std::cmp::Reverse(component.self_time));
        let recent = state.recent.iter().cloned().collect();
        RenderProfileReport { recent, slowest: state.slowest.clone(), components }
    }
}

impl fmt::Debug for RenderProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Profile")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(script: &str, millis: u64, calls: u64) -> Arc<RenderTiming> {
        let row = TimingRow {
            script: script.into(),
            path: "/p".into(),
            depth: 0,
            call_count: calls,
            total_time: Duration::from_millis(millis),
            self_time: Duration::from_millis(millis / 2),
            read_count: 3,
            query_count: 0,
        };
        Arc::new(RenderTiming { rows: vec![row] })
    }

    #[test]
    fn buckets_hold_their_times() {
        for micros in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 100, 1000, 123_456, 9_999_999] {
            let (time, bucket) =
                (Duration::from_micros(micros), bucket_index(Duration::from_micros(micros)));
            assert!(time <= bucket_upper_bound(bucket), "{micros}");
            assert!(
                bucket_upper_bound(bucket) <= time * 2,
                "{micros}: {:?}",
                bucket_upper_bound(bucket)
            );
            assert!(
                bucket == 0
                    || bucket_upper_bound(bucket) > bucket_upper_bound(bucket - 1)
                    || bucket < 8,
                "{micros}"
            );
        }
        assert_eq!(bucket_index(Duration::from_secs(1 << 40)), BUCKET_COUNT - 1);
    }

    #[test]
    fn keeps_the_newest_the_slowest_and_percentiles() {
        let profile = RenderProfile::default();
        profile.record("/nothing", &Arc::new(RenderTiming::default()), SystemTime::UNIX_EPOCH);
        for number in 0..1000_u64 {
            let slow = if number == 500 { 5000 } else { 1 + number % 10 };
            profile.record(&format!("/{number}"), &timing("page", slow, 1), SystemTime::UNIX_EPOCH);
        }
        profile.record("/other", &timing("list", 100, 10), SystemTime::UNIX_EPOCH);
        let report = profile.report();
        assert_eq!(
            (report.recent.len(), report.slowest.len()),
            (MAX_RECENT_REQUESTS, MAX_SLOWEST_REQUESTS)
        );
        assert_eq!((&*report.recent[0].url, &*report.slowest[0].url), ("/other", "/500"));
        let page = report.components.iter().find(|component| &*component.script == "page").unwrap();
        assert_eq!(page.call_count, 1000);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        assert!((5.0..7.0).contains(&millis(page.median)), "{page:?}");
        assert!((9.0..12.5).contains(&millis(page.p90)) && millis(page.p99) < 13.0, "{page:?}");
        let list = report.components.iter().find(|component| &*component.script == "list").unwrap();
        assert!((10.0..13.0).contains(&millis(list.median)) && list.call_count == 10, "{list:?}");
    }

    #[test]
    fn queries_are_those_of_the_component_itself() {
        let row = |depth, queries| {
            let sample = timing("x", 1, 1);
            TimingRow { depth, query_count: queries, ..sample.rows[0].clone() }
        };
        let rows = [row(0, 7), row(1, 4), row(2, 3), row(1, 2), row(0, 1)];
        assert_eq!(own_query_counts(&rows), [1, 1, 3, 2, 1]);
        let profile = RenderProfile::default();
        let named = ["page", "list", "search", "list", "other"].into_iter().zip(rows);
        let rows = named.map(|(script, row)| TimingRow { script: script.into(), ..row }).collect();
        profile.record("/x", &RenderTiming { rows }, SystemTime::UNIX_EPOCH);
        let report = profile.report();
        let queries = |name: &str| {
            report
                .components
                .iter()
                .find(|component| &*component.script == name)
                .map(|component| component.query_count)
        };
        let expected = [("page", 1), ("list", 3), ("search", 3), ("other", 1)];
        expected.iter().for_each(|(name, count)| assert_eq!(queries(name), Some(*count), "{name}"));
    }

    #[test]
    fn very_many_components_are_summed_up() {
        let profile = RenderProfile::default();
        for number in 0..MAX_PROFILED_COMPONENTS + 50 {
            profile.record("/x", &timing(&format!("c{number}"), 1, 1), SystemTime::UNIX_EPOCH);
        }
        let report = profile.report();
        assert_eq!(report.components.len(), MAX_PROFILED_COMPONENTS + 1);
        assert!(
            report.components.iter().any(|one| &*one.script == "others" && one.call_count == 50)
        );
    }
}
