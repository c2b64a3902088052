//! The slowest samples, with the marks by which server logs identify them.
//!
//! In: samples that were sent with `X-Tympan-Lab`, and the entries of a `request.log` for their requests. Out: the
//! slowest samples of each label, and the division of the total time into the server's time and the rest: network and
//! queues.
//!
//! Invariant: memory grows only with the number of labels, which is bounded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tympan_web::sample_mark;

use super::TimingHistogram;

/// Number of samples stored per label.
const MAX_SLOW_SAMPLES_PER_LABEL: usize = 10;

/// Generates the marks for the samples of one run.
#[derive(Debug)]
pub(crate) struct SampleMarkGenerator {
    run_name: Box<str>,
    next_number: AtomicU64,
}

impl SampleMarkGenerator {
    pub(crate) fn for_run(run: &str) -> Self {
        Self { run_name: run.into(), next_number: AtomicU64::new(1) }
    }

    /// Returns the mark of the next sample.
    pub(crate) fn next_mark(&self) -> Box<str> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.run_name).into()
    }
}

/// Returns a name for a run that starts at `now`.
#[must_use]
pub fn run_name(now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}", since.as_millis())
}

/// Inserts a mark header into a request, after the request line.
pub(crate) fn insert_mark_header(request: &mut Arc<[u8]>, mark: &str) {
    let Some(end) = request.windows(2).position(|pair| pair == b"\r\n") else { return };
    let (line, rest) = request.split_at(end);
    let header = format!("\r\nX-Tympan-Lab: {mark}");
    *request = [line, header.as_bytes(), rest].concat().into();
}

/// A slow sample with a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowSample {
    /// The label of the sample.
    pub label: Arc<str>,
    /// The mark it was sent with: run name and number.
    pub mark: Box<str>,
    /// Send time, in milliseconds since the epoch.
    pub started_ms: u64,
    /// Microseconds from when it was due until its last byte.
    pub response_us: u64,
    /// Microseconds from when it was sent until its last byte.
    pub service_us: u64,
    /// The status, or the reason why there is none.
    pub outcome: Box<str>,
    /// The server's own timing from the response.
    pub server_timing: Option<Box<str>>,
    /// The timing of its requests in the server's log.
    pub server_log_timing: Option<ServerLogTiming>,
}

/// The timing of a sample in a `request.log`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerLogTiming {
    /// Number of requests: one, plus one for each redirect.
    pub request_count: u64,
    /// Total duration of the requests.
    pub elapsed: Duration,
}

impl SlowSample {
    /// Returns the time outside the server (network and queues), if the log has the server's time.
    #[must_use]
    pub fn time_outside_server(&self) -> Option<Duration> {
        Some(Duration::from_micros(self.service_us).saturating_sub(self.server_log_timing?.elapsed))
    }
}

/// The slowest samples of each label.
#[derive(Debug, Clone, Default)]
pub struct SlowestSamples(BTreeMap<Arc<str>, Vec<SlowSample>>);

impl SlowestSamples {
    /// Returns true if a sample of the label is slow enough to be stored.
    pub(crate) fn is_slow_enough(&self, label: &str, response_us: u64) -> bool {
        let Some(samples) = self.0.get(label) else { return true };
        samples.len() < MAX_SLOW_SAMPLES_PER_LABEL
            || samples.last().is_some_and(|least| response_us > least.response_us)
    }

    /// Adds a sample if it is one of the slowest of its label.
    pub(crate) fn add(&mut self, slow: SlowSample) {
        let samples = self.0.entry(Arc::clone(&slow.label)).or_default();
        let position = samples.partition_point(|sample| sample.response_us >= slow.response_us);
        samples.insert(position, slow);
        samples.truncate(MAX_SLOW_SAMPLES_PER_LABEL);
    }

    /// Removes and returns all samples.
    pub(crate) fn take_all(&mut self) -> Vec<SlowSample> {
        std::mem::take(&mut self.0).into_values().flatten().collect()
    }

    /// Returns all samples, the slowest first.
    #[must_use]
    pub fn sorted(&self) -> Vec<&SlowSample> {
        let mut all: Vec<&SlowSample> = self.0.values().flatten().collect();
        all.sort_by_key(|sample| std::cmp::Reverse(sample.response_us));
        all
    }
}

/// The entries of a `request.log` for marked samples, and the division of the time of the matched ones.
#[derive(Debug, Clone)]
pub struct ServerLogJoin {
    timing_by_mark: HashMap<String, ServerLogTiming>,
    /// Number of marked samples.
    pub marked_samples: u64,
    /// Number of marked samples whose requests are in the log.
    pub matched_samples: u64,
    /// Client-side times of the matched samples.
    pub client_times: TimingHistogram,
    /// Server-side times of the matched samples.
    pub server_times: TimingHistogram,
    /// The remaining times: network and queues.
    pub other_times: TimingHistogram,
}

impl ServerLogJoin {
    /// Collects the requests of logs: the mark of each, and its time on the server.
    #[must_use]
    pub fn from_marked_times<'a>(requests: impl Iterator<Item = (&'a str, Duration)>) -> Self {
        let mut served: HashMap<String, ServerLogTiming> = HashMap::new();
        for (mark, elapsed) in requests {
            let log_entry = served.entry(mark.to_owned()).or_default();
            log_entry.request_count += 1;
            log_entry.elapsed += elapsed;
        }
        let [client, server, elsewhere] = [(); 3].map(|()| TimingHistogram::new());
        Self {
            timing_by_mark: served,
            marked_samples: 0,
            matched_samples: 0,
            client_times: client,
            server_times: server,
            other_times: elsewhere,
        }
    }

    /// Adds a sample; returns its timing in the log, if any.
    pub(crate) fn match_sample(&mut self, mark: &str, service_us: u64) -> Option<ServerLogTiming> {
        self.marked_samples += 1;
        let served = *self.timing_by_mark.get(mark)?;
        self.matched_samples += 1;
        let client = Duration::from_micros(service_us);
        self.client_times.record(client);
        self.server_times.record(served.elapsed);
        self.other_times.record(client.saturating_sub(served.elapsed));
        Some(served)
    }
}

/// Returns the mark in a field of a row; `None` if the field is not a mark.
pub(crate) fn parse_mark_field(field: &str) -> Option<&str> {
    sample_mark::parse_sample_mark(field.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(label: &str, response_us: u64) -> SlowSample {
        SlowSample {
            label: label.into(),
            mark: format!("run-{response_us}").into(),
            started_ms: 0,
            response_us,
            service_us: response_us,
            outcome: "200".into(),
            server_timing: None,
            server_log_timing: None,
        }
    }

    #[test]
    fn the_slowest_of_each_label_are_kept_and_no_more() {
        let mut slowest = SlowestSamples::default();
        for time in [5, 3, 9, 1, 7].into_iter().chain(100..200) {
            if slowest.is_slow_enough("page", time) {
                slowest.add(slow("page", time));
            }
        }
        slowest.add(slow("picture", 150));
        let times: Vec<u64> = slowest.sorted().iter().map(|sample| sample.response_us).collect();
        assert_eq!(times, [199, 198, 197, 196, 195, 194, 193, 192, 191, 190, 150]);
        assert!(!slowest.is_slow_enough("page", 190) && slowest.is_slow_enough("page", 191));
        assert_eq!(slowest.take_all().len(), 11);
        assert!(slowest.sorted().is_empty() && slowest.is_slow_enough("page", 0));
    }

    #[test]
    fn a_mark_stands_behind_the_first_line_whatever_follows() {
        let mut request: Arc<[u8]> = (*b"POST /a HTTP/1.1\r\nHost: h\r\n\r\na\r\nb").into();
        let marks = SampleMarkGenerator::for_run("1a2b");
        insert_mark_header(&mut request, &marks.next_mark());
        insert_mark_header(&mut request, &marks.next_mark());
        assert_eq!(
            &*request,
            b"POST /a HTTP/1.1\r\nX-Tympan-Lab: 1a2b-2\r\nX-Tympan-Lab: 1a2b-1\r\nHost: h\r\n\r\na\r\nb"
        );
    }

    #[test]
    fn every_run_has_a_name_that_servers_take() {
        let name = run_name(SystemTime::now());
        assert!(parse_mark_field(&format!("{name}-{}", u64::MAX / 4096)).is_some(), "{name}");
        assert_eq!(run_name(SystemTime::UNIX_EPOCH + Duration::from_millis(0x1a2b)), "1a2b");
    }
}
