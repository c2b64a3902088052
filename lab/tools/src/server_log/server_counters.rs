//! Reads a server's metrics of the requests that it answered.
//!
//! In: text in Prometheus format, before and after a measurement. Out: the number of requests answered in between, the
//! number of them answered from memory, and their times by the server's own clock.
//!
//! Not here: metrics of the process (`phase::process_watch`).

use std::collections::BTreeMap;
use std::time::Duration;

/// Counters of requests.
const REQUEST_COUNTERS: [&str; 2] = ["tympan_requests_total", "http_requests_total"];
/// Counters of requests answered without rendering, with a description of each.
const CACHED_COUNTERS: [(&str, &str); 2] = [
    ("tympan_response_cache_hits_total", "responses came from the server's memory"),
    ("tympan_fragment_hits_total", "components came from the server's fragment cache"),
];
/// Prefixes of the names of request histograms; their unit is the second.
const REQUEST_HISTOGRAM_PREFIXES: [&str; 3] =
    ["tympan_request", "http_request_duration_seconds", "http_server_request_duration_seconds"];

/// A server's counters at one moment, or their increase between two moments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ServerCounters {
    request_count: Option<f64>,
    /// In the order of `CACHED_COUNTERS`.
    cached_counts: [Option<f64>; CACHED_COUNTERS.len()],
    /// Number of requests by their maximum time in microseconds; not cumulative.
    request_histogram: BTreeMap<u64, f64>,
}

/// One line of metrics.
struct MetricSample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> MetricSample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (series, value) = line.trim().rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.trim_end_matches('}')),
            None => (series, ""),
        };
        Some(Self { name, labels, value: value.parse().ok()? })
    }

    fn label_value(&self, name: &str) -> Option<&'a str> {
        let pairs = self.labels.split(',').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"')).next()
    }
}

impl ServerCounters {
    /// Parses metrics.
    pub(crate) fn parse(text: &str) -> Self {
        let mut counters = Self::default();
        let mut series: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
        for sample in
            text.lines().filter(|line| !line.starts_with('#')).filter_map(MetricSample::parse)
        {
            if REQUEST_COUNTERS.contains(&sample.name) {
                *counters.request_count.get_or_insert_default() += sample.value;
            }
            for ((name, _), count) in CACHED_COUNTERS.iter().zip(&mut counters.cached_counts) {
                if sample.name == *name {
                    *count.get_or_insert_default() += sample.value;
                }
            }
            let is_get = sample.label_value("method").is_none_or(|method| method == "GET");
            if is_get
                && let Some(name) = sample.name.strip_suffix("_bucket")
                && name.ends_with("seconds")
                && REQUEST_HISTOGRAM_PREFIXES.iter().any(|start| name.starts_with(start))
                && let Some(end) = sample.label_value("le").and_then(parse_bucket_end_us)
            {
                let others =
                    sample.labels.split(',').filter(|pair| !pair.trim().starts_with("le="));
                let key = format!("{name} {}", others.collect::<Vec<_>>().join(","));
                series.entry(key).or_default().push((end, sample.value));
            }
        }
        for mut buckets in series.into_values() {
            buckets.sort_unstable_by_key(|(end, _)| *end);
            let mut before = 0.0;
            for (end, sum) in buckets {
                *counters.request_histogram.entry(end).or_default() += (sum - before).max(0.0);
                before = sum;
            }
        }
        counters
    }

    /// Returns the increase of the counters since `before`.
    pub(crate) fn difference_since(&self, before: &Self) -> Self {
        let rise = |now: Option<f64>, then: Option<f64>| now.map(|now| now - then.unwrap_or(0.0));
        let mut cached = self.cached_counts;
        for (count, then) in cached.iter_mut().zip(before.cached_counts) {
            *count = rise(*count, then);
        }
        let then = |end: &u64| before.request_histogram.get(end).copied().unwrap_or(0.0);
        let histogram = self.request_histogram.iter().map(|(end, count)| (*end, count - then(end)));
        Self {
            request_count: rise(self.request_count, before.request_count),
            cached_counts: cached,
            request_histogram: histogram.filter(|(_, count)| *count > 0.0).collect(),
        }
    }

    /// Returns the number of answered requests.
    pub(crate) fn request_count(&self) -> Option<f64> {
        self.request_count
    }

    /// Returns the number of requests answered without rendering, with a description; `None` if the server does not
    /// count them.
    pub(crate) fn cached_count(&self) -> Option<Option<(f64, &'static str)>> {
        let counts: Vec<(f64, &'static str)> = self
            .cached_counts
            .iter()
            .zip(CACHED_COUNTERS)
            .filter_map(|(count, (_, words))| count.map(|count| (count, words)))
            .collect();
        if counts.len() < CACHED_COUNTERS.len() {
            return None;
        }
        Some(counts.into_iter().find(|(count, _)| *count > 0.0))
    }

    /// Returns an upper bound of each request's time by the server's clock: the end of the bucket that it fell into.
    /// `None` unless there were exactly `count` requests.
    pub(crate) fn request_times(&self, count: usize) -> Option<Vec<Duration>> {
        let buckets = self.request_histogram.iter().map(|(end, count)| (*end, *count as usize));
        let all =
            buckets.flat_map(|(end, count)| std::iter::repeat_n(Duration::from_micros(end), count));
        // One extra entry shows that there were other requests, and bounds the memory whatever number a server reports.
        let times: Vec<Duration> = all.take(count.saturating_add(1)).collect();
        (times.len() == count).then_some(times)
    }
}

/// Returns the maximum time of a bucket. The maximum of the last bucket stands for all longer times.
fn parse_bucket_end_us(end: &str) -> Option<u64> {
    if end == "+Inf" {
        return Some(Duration::from_hours(1).as_micros() as u64);
    }
    let end = Duration::try_from_secs_f64(end.parse().ok()?).ok()?;
    // A time at the upper end of a bucket counts as below it, as with the goal's limits.
    Some((end.as_micros() as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# TYPE tympan_requests_total counter\n\
        tympan_requests_total{role=\"publish\"} 5\n\
        tympan_response_cache_hits_total{role=\"publish\"} 2\n\
        tympan_fragment_hits_total{role=\"publish\"} 1\n\
        tympan_request_duration_seconds_bucket{role=\"publish\",method=\"GET\",status=\"2xx\",le=\"0.1\"} 3\n\
        tympan_request_duration_seconds_bucket{role=\"publish\",method=\"GET\",status=\"2xx\",le=\"+Inf\"} 4\n";

    #[test]
    fn what_rose_is_counted_by_buckets_of_gets() {
        let after = "tympan_requests_total{role=\"publish\"} 9\n\
            tympan_response_cache_hits_total{role=\"publish\"} 2\n\
            tympan_fragment_hits_total{role=\"publish\"} 1\n\
            tympan_request_duration_seconds_bucket{role=\"publish\",method=\"GET\",status=\"2xx\",le=\"0.1\"} 5\n\
            tympan_request_duration_seconds_bucket{role=\"publish\",method=\"GET\",status=\"2xx\",le=\"0.5\"} 6\n\
            tympan_request_duration_seconds_bucket{role=\"publish\",method=\"GET\",status=\"2xx\",le=\"+Inf\"} 7\n\
            tympan_request_duration_seconds_bucket{role=\"publish\",method=\"POST\",status=\"2xx\",le=\"0.1\"} 8\n";
        let rise = ServerCounters::parse(after).difference_since(&ServerCounters::parse(BEFORE));
        assert_eq!(rise.request_count(), Some(4.0));
        assert_eq!(rise.cached_count(), Some(None));
        let times = rise.request_times(3).unwrap();
        assert_eq!(times.iter().map(Duration::as_millis).collect::<Vec<_>>(), [99, 99, 499]);
        assert_eq!((rise.request_times(2), rise.request_times(4)), (None, None));
    }

    #[test]
    fn what_a_server_does_not_count_is_not_known() {
        let rise = ServerCounters::parse("http_requests_total 3\nx{le=\"a b\"} 1\nnothing\n");
        assert_eq!(
            (rise.request_count(), rise.cached_count(), rise.request_times(1)),
            (Some(3.0), None, None)
        );
        let before = ServerCounters::parse(
            "tympan_response_cache_hits_total 1\ntympan_fragment_hits_total 0",
        );
        let after = ServerCounters::parse(
            "tympan_response_cache_hits_total 4\ntympan_fragment_hits_total 0",
        );
        let words = "responses came from the server's memory";
        assert_eq!(after.difference_since(&before).cached_count(), Some(Some((3.0, words))));
    }
}
