//! Reads `request.log` and `access.log`: slowest requests, requests at a time, times per type, and what a cache kept away.
//!
//! Entries and exits are joined by the request's number, and by the instance where lines name it. A number occurs again after a restart, so an entry under a known
//! number replaces the old one, which then counts as unfinished.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::BufRead;
use std::time::Duration;

use tympan_web::log_time::LogTime;
use tympan_web::{access_log, request_log};

use crate::calculate::CacheRatio;
use crate::record::Timing;
use crate::{Error, Result};

/// A finished request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When it came in.
    pub at: LogTime,
    /// `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The answer's status.
    pub status: u16,
    /// The answer's media type, if it had one.
    pub media_type: Option<String>,
    /// From entry to exit.
    pub elapsed: Duration,
    /// The lab's sample that it belongs to, if the lab said so.
    pub sample: Option<String>,
}

/// What to read of a log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// rlog's `-m`: stops after this many requests.
    pub most_requests: Option<u64>,
    /// rlog's `-xdev`: leaves out POST requests to CRXDE.
    pub without_crxde: bool,
}

/// What the requests for one path took together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTotal {
    /// Without a query.
    pub path: String,
    /// Requests.
    pub count: u64,
    /// From entry to exit, all of them together.
    pub elapsed: Duration,
}

/// Entries without an exit so far, by instance and number.
type OpenRequests = HashMap<(Option<String>, u64), (LogTime, String, String)>;

/// What a `request.log` holds.
#[derive(Debug, Clone, Default)]
pub struct RequestLog {
    /// Finished requests, in the order of their exits.
    pub requests: Vec<Request>,
    /// Entries without an exit.
    pub unfinished: u64,
    /// Exits without an entry: the log begins in the middle.
    pub orphans: u64,
    /// Lines that are no lines of such a log.
    pub malformed: u64,
    /// Most requests at a time.
    pub most_at_a_time: usize,
}

/// Reads a `request.log`.
///
/// # Errors
/// [`Error::File`] while reading; [`Error::Input`] if no line is one of such a log.
pub fn read(input: &mut dyn BufRead, name: &str, limits: Limits) -> Result<RequestLog> {
    let mut log = RequestLog::default();
    let mut open = OpenRequests::new();
    let mut text = Vec::new();
    loop {
        text.clear();
        let read = input.read_until(b'\n', &mut text);
        if read.map_err(|source| Error::read(std::path::Path::new(name), source))? == 0 {
            break;
        }
        if limits.most_requests.is_some_and(|most| log.requests.len() as u64 >= most) {
            break;
        }
        let line = String::from_utf8_lossy(&text);
        let line = line.trim_end();
        if line.is_empty() {
            continue;
        }
        let (line, instance) = request_log::split_instance(line);
        match request_log::parse_line(line) {
            Err(_) => log.malformed += 1,
            Ok(line) => log.take((line, instance), &mut open, limits),
        }
    }
    log.unfinished += open.len() as u64;
    if log.requests.is_empty() && log.unfinished == 0 && log.malformed > 0 {
        return Err(Error::Input(format!(
            "{name}: no line of it is one of a request.log; is it an access.log?"
        )));
    }
    Ok(log)
}

impl RequestLog {
    fn take(
        &mut self,
        (line, instance): (request_log::Line, Option<&str>),
        open: &mut OpenRequests,
        limits: Limits,
    ) {
        let key = (instance.map(str::to_owned), line.request);
        match line.event {
            request_log::Event::Entry { method, target, .. } => {
                let replaced = open.insert(key, (line.at, method, target));
                self.unfinished += u64::from(replaced.is_some());
                self.most_at_a_time = self.most_at_a_time.max(open.len());
            }
            request_log::Event::Exit { status, media_type, elapsed, sample } => {
                let Some((at, method, target)) = open.remove(&key) else {
                    self.orphans += 1;
                    return;
                };
                let is_crxde = method == "POST" && target.contains("/crx");
                if limits.without_crxde && is_crxde {
                    return;
                }
                self.requests.push(Request {
                    at,
                    method,
                    target,
                    status,
                    media_type,
                    elapsed,
                    sample,
                });
            }
        }
    }

    /// Returns the requests, the slowest first.
    #[must_use]
    pub fn slowest(&self) -> Vec<&Request> {
        let mut all: Vec<&Request> = self.requests.iter().collect();
        all.sort_by_key(|request| std::cmp::Reverse(request.elapsed));
        all
    }

    /// Returns the times of all requests.
    #[must_use]
    pub fn times(&self) -> Timing {
        let mut times = Timing::new();
        self.requests.iter().for_each(|request| times.record(request.elapsed));
        times
    }

    /// Returns the times per media type; `-` where there is none.
    #[must_use]
    pub fn per_type(&self) -> BTreeMap<String, Timing> {
        let mut types: BTreeMap<String, Timing> = BTreeMap::new();
        for request in &self.requests {
            let kind =
                request.media_type.as_deref().unwrap_or("-").split(';').next().unwrap_or("-");
            types.entry(kind.trim().to_owned()).or_default().record(request.elapsed);
        }
        types
    }

    /// Returns what each path took in all, the most first: a page that is quick and asked for all the time may cost more
    /// than the slowest one.
    #[must_use]
    pub fn totals(&self) -> Vec<PathTotal> {
        let mut paths: HashMap<&str, (u64, Duration)> = HashMap::new();
        for request in &self.requests {
            let path = request.target.split('?').next().unwrap_or_default();
            let (count, elapsed) = paths.entry(path).or_default();
            *count += 1;
            *elapsed += request.elapsed;
        }
        let total = |(path, (count, elapsed)): (&str, (u64, Duration))| PathTotal {
            path: path.to_owned(),
            count,
            elapsed,
        };
        let mut totals: Vec<PathTotal> = paths.into_iter().map(total).collect();
        totals.sort_by(|one, other| {
            other.elapsed.cmp(&one.elapsed).then_with(|| one.path.cmp(&other.path))
        });
        totals
    }

    /// Returns rlog's text: at most `most` lines, the slowest first.
    #[must_use]
    pub fn rlog(&self, most: Option<usize>) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        writeln!(out, "*Info * Parsed {} requests.", self.requests.len()).ok();
        if self.unfinished > 0 {
            writeln!(out, "*Info * {} requests were not finished.", self.unfinished).ok();
        }
        if self.malformed > 0 {
            writeln!(out, "*Warn * {} lines are no lines of a request.log.", self.malformed).ok();
        }
        writeln!(out, "------------------------------------------------------").ok();
        for request in self.slowest().into_iter().take(most.unwrap_or(usize::MAX)) {
            let kind = request.media_type.as_deref().unwrap_or("-");
            let sample = request.sample.as_ref().map(|mark| format!(" lab={mark}"));
            writeln!(
                out,
                "{:>10}ms {} {} {} {} {kind}{}",
                request.elapsed.as_millis(),
                request.at,
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

/// The rows of the latency goal: share of requests, and the time they have to stay under.
pub const LATENCY_GOAL: [(f64, u64); 4] = [(0.70, 100), (0.95, 300), (0.99, 500), (1.00, 1000)];

/// One row of the latency goal as measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoalRow {
    /// Share that is wanted, 0 to 1.
    pub wanted: f64,
    /// Milliseconds that the share has to stay under.
    pub limit_ms: u64,
    /// Share that stayed under.
    pub measured: f64,
    /// Whether enough requests were measured to tell.
    pub can_be_judged: bool,
}

impl GoalRow {
    /// Reports whether the row is met.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.measured >= self.wanted
    }
}

/// Judges times by the latency goal, cumulatively: a site that is faster than a row asks meets the row.
#[must_use]
pub fn judge_latency(times: &[Duration]) -> Vec<GoalRow> {
    LATENCY_GOAL
        .iter()
        .map(|&(wanted, limit_ms)| {
            let limit = Duration::from_millis(limit_ms);
            let under = times.iter().filter(|time| **time < limit).count();
            GoalRow {
                wanted,
                limit_ms,
                measured: if times.is_empty() { 0.0 } else { under as f64 / times.len() as f64 },
                // One request in a hundred cannot be told from fewer than a hundred.
                can_be_judged: times.len() >= if wanted > 0.95 { 100 } else { 1 },
            }
        })
        .collect()
}

/// What of a site's requests reached the publisher, as a whole and per extension and folder.
#[derive(Debug, Clone, Default)]
pub struct CacheReport {
    /// Requests at the dispatcher and at the publisher.
    pub total: u64,
    /// Requests that reached the publisher.
    pub reached: u64,
    /// Per extension: total, reached.
    pub extensions: BTreeMap<String, (u64, u64)>,
    /// Per first path segments: total, reached.
    pub folders: BTreeMap<String, (u64, u64)>,
    /// Requests at the publisher with a query string, per path.
    pub queries: BTreeMap<String, u64>,
}

impl CacheReport {
    /// Adds the dispatcher's `access.log`.
    ///
    /// # Errors
    /// [`Error::File`] while reading.
    pub fn add_access(&mut self, input: &mut dyn BufRead, name: &str) -> Result<u64> {
        each_line(input, name, &mut |line| {
            let Ok(line) = access_log::parse_line(line) else { return false };
            let Some(target) = line.request.split(' ').nth(1) else { return false };
            self.total += 1;
            self.extensions.entry(extension(target)).or_default().0 += 1;
            self.folders.entry(folder(target)).or_default().0 += 1;
            true
        })
    }

    /// Adds the publisher's `request.log`.
    ///
    /// # Errors
    /// [`Error::File`] while reading.
    pub fn add_requests(&mut self, input: &mut dyn BufRead, name: &str) -> Result<u64> {
        each_line(input, name, &mut |line| {
            let (line, _) = request_log::split_instance(line);
            let Ok(line) = request_log::parse_line(line) else { return false };
            let request_log::Event::Entry { target, .. } = line.event else { return true };
            self.reached += 1;
            self.extensions.entry(extension(&target)).or_default().1 += 1;
            self.folders.entry(folder(&target)).or_default().1 += 1;
            if let Some((path, _)) = target.split_once('?') {
                *self.queries.entry(path.to_owned()).or_default() += 1;
            }
            true
        })
    }

    /// Returns the ratio of the whole.
    #[must_use]
    pub fn ratio(&self) -> CacheRatio {
        CacheRatio { total: self.total, reached: self.reached }
    }
}

/// Calls `each` with every line; returns how many it did not understand.
fn each_line(
    input: &mut dyn BufRead,
    name: &str,
    each: &mut dyn FnMut(&str) -> bool,
) -> Result<u64> {
    let mut text = Vec::new();
    let mut malformed = 0;
    loop {
        text.clear();
        let read = input.read_until(b'\n', &mut text);
        if read.map_err(|source| Error::read(std::path::Path::new(name), source))? == 0 {
            return Ok(malformed);
        }
        let line = String::from_utf8_lossy(&text);
        let line = line.trim_end();
        if !line.is_empty() && !each(line) {
            malformed += 1;
        }
    }
}

fn extension(target: &str) -> String {
    let path = target.split('?').next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').map_or("-", |(_, extension)| extension).to_owned()
}

fn folder(target: &str) -> String {
    let path = target.split('?').next().unwrap_or_default();
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let first: Vec<&str> = parts.by_ref().take(2).collect();
    if parts.next().is_some() { format!("/{}/", first.join("/")) } else { "/".to_owned() }
}
