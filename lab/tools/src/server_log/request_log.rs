//! Reads `request.log` and `access.log`: slowest requests, concurrent requests, times per type, and the requests that a
//! cache kept from the server.
//!
//! Entries and exits are joined by the request's number, and by the instance where lines name it. Numbers repeat after
//! a restart, so an entry with a known number replaces the old one, which then counts as unfinished.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::BufRead;
use std::time::Duration;

use tympan_lab_engine::measurement::TimingHistogram;
use tympan_lab_plan::goal::LATENCY_GOAL;
use tympan_web::log_time::LogTime;
use tympan_web::{access_log, request_log};

use crate::calculator::CacheHitRatio;
use crate::{Error, Result};

/// A finished request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRequest {
    /// The time of the entry.
    pub entry_time: LogTime,
    /// The HTTP method, such as `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The response's status.
    pub status: u16,
    /// The response's media type, if any.
    pub media_type: Option<String>,
    /// Time from entry to exit.
    pub elapsed: Duration,
    /// The mark of the lab's sample that the request belongs to, if the request carried one.
    pub sample_mark: Option<String>,
}

/// Limits on reading a log.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestLogLimits {
    /// rlog's `-m`: stop after this many requests.
    pub max_requests: Option<u64>,
    /// rlog's `-xdev`: leave out POST requests to CRXDE.
    pub skips_crxde: bool,
}

/// Totals of the requests for one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTotal {
    /// The path without a query.
    pub path: String,
    /// Number of requests.
    pub request_count: u64,
    /// Sum of the times from entry to exit.
    pub total_elapsed: Duration,
}

/// Entries without an exit yet, by instance and number.
type UnfinishedRequests = HashMap<(Option<String>, u64), (LogTime, String, String)>;

/// The contents of a `request.log`.
#[derive(Debug, Clone, Default)]
pub struct RequestLog {
    /// Finished requests, in the order of their exits.
    pub requests: Vec<LoggedRequest>,
    /// Entries without an exit.
    pub unfinished_count: u64,
    /// Exits without an entry, because the log begins in the middle.
    pub orphan_exits: u64,
    /// Lines that are not in the format of such a log.
    pub malformed_lines: u64,
    /// Maximum number of concurrent requests.
    pub max_concurrent: usize,
}

/// Reads a `request.log`.
///
/// # Errors
/// [`Error::FileAccess`] while reading; [`Error::UnusableInput`] if no line is in the format of such a log.
pub fn read_request_log(
    input: &mut dyn BufRead,
    name: &str,
    limits: RequestLogLimits,
) -> Result<RequestLog> {
    let mut log = RequestLog::default();
    let mut open = UnfinishedRequests::new();
    let mut text = Vec::new();
    loop {
        text.clear();
        let read = input.read_until(b'\n', &mut text);
        if read.map_err(|source| Error::read_failed(std::path::Path::new(name), source))? == 0 {
            break;
        }
        if limits.max_requests.is_some_and(|most| log.requests.len() as u64 >= most) {
            break;
        }
        let line = String::from_utf8_lossy(&text);
        let line = line.trim_end();
        if line.is_empty() {
            continue;
        }
        let (line, instance) = request_log::split_instance_name(line);
        match request_log::parse_request_log_line(line) {
            Err(_) => log.malformed_lines += 1,
            Ok(line) => log.add_line((line, instance), &mut open, limits),
        }
    }
    log.unfinished_count += open.len() as u64;
    if log.requests.is_empty() && log.unfinished_count == 0 && log.malformed_lines > 0 {
        return Err(Error::UnusableInput(format!(
            "{name} contains no line of a request.log; is it an access.log?"
        )));
    }
    Ok(log)
}

impl RequestLog {
    fn add_line(
        &mut self,
        (line, instance): (request_log::RequestLogLine, Option<&str>),
        open: &mut UnfinishedRequests,
        limits: RequestLogLimits,
    ) {
        let key = (instance.map(str::to_owned), line.request_number);
        match line.event {
            request_log::RequestLogEvent::Entry { method, target, .. } => {
                let replaced = open.insert(key, (line.logged_at, method, target));
                self.unfinished_count += u64::from(replaced.is_some());
                self.max_concurrent = self.max_concurrent.max(open.len());
            }
            request_log::RequestLogEvent::Exit { status, media_type, elapsed, sample } => {
                let Some((at, method, target)) = open.remove(&key) else {
                    self.orphan_exits += 1;
                    return;
                };
                let is_crxde = method == "POST" && target.contains("/crx");
                if limits.skips_crxde && is_crxde {
                    return;
                }
                self.requests.push(LoggedRequest {
                    entry_time: at,
                    method,
                    target,
                    status,
                    media_type,
                    elapsed,
                    sample_mark: sample,
                });
            }
        }
    }

    /// Returns the marks of the samples that the logged requests belong to, each with the time of its request.
    pub fn marked_times(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.requests
            .iter()
            .filter_map(|request| Some((request.sample_mark.as_deref()?, request.elapsed)))
    }

    /// Returns the requests, the slowest first.
    #[must_use]
    pub fn slowest(&self) -> Vec<&LoggedRequest> {
        let mut all: Vec<&LoggedRequest> = self.requests.iter().collect();
        all.sort_by_key(|request| std::cmp::Reverse(request.elapsed));
        all
    }

    /// Returns the times of all requests.
    #[must_use]
    pub fn request_times(&self) -> TimingHistogram {
        let mut times = TimingHistogram::new();
        self.requests.iter().for_each(|request| times.record(request.elapsed));
        times
    }

    /// Returns the times per media type; `-` for requests without one.
    #[must_use]
    pub fn times_per_media_type(&self) -> BTreeMap<String, TimingHistogram> {
        let mut types: BTreeMap<String, TimingHistogram> = BTreeMap::new();
        for request in &self.requests {
            let kind =
                request.media_type.as_deref().unwrap_or("-").split(';').next().unwrap_or("-");
            types.entry(kind.trim().to_owned()).or_default().record(request.elapsed);
        }
        types
    }

    /// Returns the totals per path, the largest first. A fast page that is requested all the time may cost more than
    /// the slowest one.
    #[must_use]
    pub fn path_totals(&self) -> Vec<PathTotal> {
        let mut paths: HashMap<&str, (u64, Duration)> = HashMap::new();
        for request in &self.requests {
            let path = request.target.split('?').next().unwrap_or_default();
            let (count, elapsed) = paths.entry(path).or_default();
            *count += 1;
            *elapsed += request.elapsed;
        }
        let total = |(path, (count, elapsed)): (&str, (u64, Duration))| PathTotal {
            path: path.to_owned(),
            request_count: count,
            total_elapsed: elapsed,
        };
        let mut totals: Vec<PathTotal> = paths.into_iter().map(total).collect();
        totals.sort_by(|left, right| {
            right.total_elapsed.cmp(&left.total_elapsed).then_with(|| left.path.cmp(&right.path))
        });
        totals
    }

    /// Returns rlog's text: at most `most` lines, the slowest first.
    #[must_use]
    pub fn to_rlog_text(&self, most: Option<usize>) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        writeln!(out, "*Info * Parsed {} requests.", self.requests.len()).ok();
        if self.unfinished_count > 0 {
            writeln!(out, "*Info * {} requests were not finished.", self.unfinished_count).ok();
        }
        if self.malformed_lines > 0 {
            writeln!(out, "*Warn * {} lines are not lines of a request.log.", self.malformed_lines)
                .ok();
        }
        writeln!(out, "------------------------------------------------------").ok();
        for request in self.slowest().into_iter().take(most.unwrap_or(usize::MAX)) {
            let kind = request.media_type.as_deref().unwrap_or("-");
            let sample = request.sample_mark.as_ref().map(|mark| format!(" lab={mark}"));
            writeln!(
                out,
                "{:>10}ms {} {} {} {} {kind}{}",
                request.elapsed.as_millis(),
                request.entry_time,
                request.status,
                request.method,
                request.target,
                sample.unwrap_or_default()
            )
            .ok();
        }
        out
    }
}

/// The measurement for one row of the latency goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyGoalRow {
    /// Required share, 0 to 1.
    pub required_share: f64,
    /// Time limit for the share, in milliseconds.
    pub limit_ms: u64,
    /// Measured share below the limit.
    pub measured_share: f64,
    /// True if enough requests were measured for a judgment.
    pub has_enough_samples: bool,
}

impl LatencyGoalRow {
    /// Returns true if the row is met.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.measured_share >= self.required_share
    }
}

/// Judges times by the latency goal, cumulatively: a site that is faster than a row requires meets the row.
#[must_use]
pub fn judge_latency(times: &[Duration]) -> Vec<LatencyGoalRow> {
    LATENCY_GOAL
        .iter()
        .map(|&(required_share, limit_ms)| {
            let limit = Duration::from_millis(limit_ms);
            let under = times.iter().filter(|time| **time < limit).count();
            LatencyGoalRow {
                required_share,
                limit_ms,
                measured_share: if times.is_empty() {
                    0.0
                } else {
                    under as f64 / times.len() as f64
                },
                // A share of one in a hundred needs at least a hundred requests.
                has_enough_samples: times.len() >= if required_share > 0.95 { 100 } else { 1 },
            }
        })
        .collect()
}

/// The requests that reached the publisher, in total and per extension and folder.
#[derive(Debug, Clone, Default)]
pub struct CacheReachReport {
    /// Total number of requests, as logged by the dispatcher.
    pub total_requests: u64,
    /// Requests that reached the publisher.
    pub publisher_requests: u64,
    /// Total and publisher requests per extension.
    pub counts_per_extension: BTreeMap<String, (u64, u64)>,
    /// Total and publisher requests per leading path segments.
    pub counts_per_folder: BTreeMap<String, (u64, u64)>,
    /// Requests at the publisher with a query string, per path.
    pub query_requests_per_path: BTreeMap<String, u64>,
}

impl CacheReachReport {
    /// Adds the dispatcher's `access.log`.
    ///
    /// # Errors
    /// [`Error::FileAccess`] while reading.
    pub fn add_access_log(&mut self, input: &mut dyn BufRead, name: &str) -> Result<u64> {
        for_each_line(input, name, &mut |line| {
            let Ok(line) = access_log::parse_access_log_line(line) else { return false };
            let Some(target) = line.request.split(' ').nth(1) else { return false };
            self.total_requests += 1;
            self.counts_per_extension.entry(target_extension(target)).or_default().0 += 1;
            self.counts_per_folder.entry(target_folder(target)).or_default().0 += 1;
            true
        })
    }

    /// Adds the publisher's `request.log`.
    ///
    /// # Errors
    /// [`Error::FileAccess`] while reading.
    pub fn add_request_log(&mut self, input: &mut dyn BufRead, name: &str) -> Result<u64> {
        for_each_line(input, name, &mut |line| {
            let (line, _) = request_log::split_instance_name(line);
            let Ok(line) = request_log::parse_request_log_line(line) else { return false };
            let request_log::RequestLogEvent::Entry { target, .. } = line.event else {
                return true;
            };
            self.publisher_requests += 1;
            self.counts_per_extension.entry(target_extension(&target)).or_default().1 += 1;
            self.counts_per_folder.entry(target_folder(&target)).or_default().1 += 1;
            if let Some((path, _)) = target.split_once('?') {
                *self.query_requests_per_path.entry(path.to_owned()).or_default() += 1;
            }
            true
        })
    }

    /// Returns the cache hit ratio of all requests.
    #[must_use]
    pub fn cache_ratio(&self) -> CacheHitRatio {
        CacheHitRatio {
            total_requests: self.total_requests,
            publisher_requests: self.publisher_requests,
        }
    }
}

/// Calls `each` with every line. Returns the number of malformed lines.
fn for_each_line(
    input: &mut dyn BufRead,
    name: &str,
    each: &mut dyn FnMut(&str) -> bool,
) -> Result<u64> {
    let mut text = Vec::new();
    let mut malformed = 0;
    loop {
        text.clear();
        let read = input.read_until(b'\n', &mut text);
        if read.map_err(|source| Error::read_failed(std::path::Path::new(name), source))? == 0 {
            return Ok(malformed);
        }
        let line = String::from_utf8_lossy(&text);
        let line = line.trim_end();
        if !line.is_empty() && !each(line) {
            malformed += 1;
        }
    }
}

fn target_extension(target: &str) -> String {
    let path = target.split('?').next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').map_or("-", |(_, extension)| extension).to_owned()
}

fn target_folder(target: &str) -> String {
    let path = target.split('?').next().unwrap_or_default();
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let first: Vec<&str> = parts.by_ref().take(2).collect();
    if parts.next().is_some() { format!("/{}/", first.join("/")) } else { "/".to_owned() }
}
