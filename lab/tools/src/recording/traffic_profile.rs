//! Analyzes the visitors of a site from its `access.log`: number, times, and requested addresses.
//!
//! In: a log, and a target. Out: a [`TrafficProfile`], and from it a plan with the same mix, and goals from the same
//! traffic.
//!
//! The log's clock has whole seconds, so nothing is derived for shorter periods.

use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;
use std::path::Path;

use tympan_lab_plan::plan_draft::{DraftScenario, DraftStep, PlanDraft, quote_toml};
use tympan_web::access_log;

use crate::{Error, Result};

/// The relevant fields of one log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogVisit {
    /// Seconds since the Unix epoch.
    pub epoch_second: i64,
    /// The client's address.
    pub client: String,
    /// The HTTP method, such as `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The response's status.
    pub status: u16,
}

/// Reads a log. Returns its visits sorted by time, and the number of malformed lines.
///
/// # Errors
/// [`Error::FileAccess`] while reading; [`Error::UnusableInput`] if no line is in the format of such a log.
pub fn read_access_log(input: &mut dyn BufRead, name: &str) -> Result<(Vec<AccessLogVisit>, u64)> {
    let mut visits = Vec::new();
    let mut malformed = 0;
    let mut text = Vec::new();
    loop {
        text.clear();
        let read = input.read_until(b'\n', &mut text);
        if read.map_err(|source| Error::read_failed(Path::new(name), source))? == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&text);
        let line = line.trim_end();
        if line.is_empty() {
            continue;
        }
        match parse_visit(line) {
            Some(visit) => visits.push(visit),
            None => malformed += 1,
        }
    }
    if visits.is_empty() {
        return Err(Error::UnusableInput(format!(
            "{name} contains no line of an access.log; is it a request.log?"
        )));
    }
    // Lines are written when responses end, so they are only nearly in order.
    visits.sort_by_key(|visit| visit.epoch_second);
    Ok((visits, malformed))
}

fn parse_visit(line: &str) -> Option<AccessLogVisit> {
    let line = access_log::parse_access_log_line(line).ok()?;
    let mut words = line.request.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    // Scanners send targets that are not paths, which a plan cannot send.
    let is_path = target.starts_with('/') && !target.chars().any(char::is_control);
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    (is_path && is_method).then(|| AccessLogVisit {
        epoch_second: line.completed_at.unix_seconds(),
        client: line.client,
        method: method.to_owned(),
        target: target.to_owned(),
        status: line.status,
    })
}

/// Statistics of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficProfile {
    /// Number of requests.
    pub requests: u64,
    /// Number of malformed lines.
    pub malformed_lines: u64,
    /// Seconds from the first to the last, inclusive.
    pub span_seconds: u64,
    /// Average requests per second.
    pub average_rate: f64,
    /// Requests per second in the busiest minute.
    pub peak_minute_rate: f64,
    /// Requests in the busiest second.
    pub peak_second_requests: u64,
    /// Share of the requests in the busiest fifth of the minutes.
    pub busiest_fifth_share: f64,
    /// Share of the requests for the most requested fifth of the addresses.
    pub popular_fifth_share: f64,
    /// Variance of the requests per second divided by their mean: 1 if visitors arrive independently.
    pub dispersion: f64,
    /// Number of clients.
    pub client_count: usize,
    /// Requests per method.
    pub methods: BTreeMap<String, u64>,
    /// Requests per status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests per method and address, the most requested first.
    pub requests_per_address: Vec<(String, String, u64)>,
    /// Share of responses with status 400 and above.
    pub error_rate: f64,
}

impl TrafficProfile {
    /// Returns the profile of visits that are sorted by time.
    #[must_use]
    pub fn from_visits(visits: &[AccessLogVisit], malformed: u64) -> Self {
        let first = visits.first().map_or(0, |visit| visit.epoch_second);
        let last = visits.last().map_or(0, |visit| visit.epoch_second);
        let seconds = u64::try_from(last - first).unwrap_or(0) + 1;
        let mut per_second: BTreeMap<i64, u64> = BTreeMap::new();
        let mut per_minute: BTreeMap<i64, u64> = BTreeMap::new();
        let mut methods: BTreeMap<String, u64> = BTreeMap::new();
        let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
        let mut targets: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let mut clients = std::collections::HashSet::new();
        for visit in visits {
            let at = visit.epoch_second - first;
            *per_second.entry(at).or_default() += 1;
            *per_minute.entry(at / 60).or_default() += 1;
            *methods.entry(visit.method.clone()).or_default() += 1;
            *statuses.entry(visit.status).or_default() += 1;
            *targets.entry((&visit.method, &visit.target)).or_default() += 1;
            clients.insert(&visit.client);
        }
        let requests = visits.len() as u64;
        let errors: u64 =
            statuses.iter().filter(|(status, _)| **status >= 400).map(|(_, count)| count).sum();
        let mut targets: Vec<(String, String, u64)> = targets
            .into_iter()
            .map(|((method, target), count)| (method.to_owned(), target.to_owned(), count))
            .collect();
        targets.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
        let average = requests as f64 / seconds as f64;
        let minutes = seconds.div_ceil(60);
        // The last minute of a log is usually partial, and its few seconds are not representative.
        let peak_minute = per_minute.values().copied().max().unwrap_or(0) as f64 / 60.0;
        Self {
            requests,
            malformed_lines: malformed,
            span_seconds: seconds,
            average_rate: average,
            peak_minute_rate: if seconds < 60 { average } else { peak_minute },
            peak_second_requests: per_second.values().copied().max().unwrap_or(0),
            busiest_fifth_share: top_fifth_share(per_minute.values().copied(), minutes, requests),
            popular_fifth_share: top_fifth_share(
                targets.iter().map(|(_, _, count)| *count),
                targets.len() as u64,
                requests,
            ),
            dispersion: index_of_dispersion(per_second.values().copied(), seconds, average),
            client_count: clients.len(),
            methods,
            statuses,
            requests_per_address: targets,
            error_rate: if requests == 0 { 0.0 } else { errors as f64 / requests as f64 },
        }
    }

    /// Returns a plan that requests the same addresses in the same proportions, at the average rate.
    ///
    /// The plan contains the `most` most requested addresses. It contains only GET and HEAD requests, because a log
    /// does not contain request bodies.
    #[must_use]
    pub fn plan(&self, target: &str, most: usize) -> PlanDraft {
        let can_be_sent = |method: &str| matches!(method, "GET" | "HEAD");
        let all: Vec<_> =
            self.requests_per_address.iter().filter(|(method, ..)| can_be_sent(method)).collect();
        let top_addresses: Vec<_> = all.iter().take(most).collect();
        let sum = |list: &mut dyn Iterator<Item = u64>| list.sum::<u64>();
        let covered = sum(&mut top_addresses.iter().map(|(_, _, count)| *count));
        let share = if self.requests == 0 { 0.0 } else { covered as f64 / self.requests as f64 };
        let mut remarks = vec![format!(
            "From a log of {} requests in {} s: {:.2}/s on average, {:.2}/s in the busiest minute.",
            self.requests, self.span_seconds, self.average_rate, self.peak_minute_rate
        )];
        remarks.push(format!(
            "{} of {} addresses, which are {:.1} % of the requests.",
            top_addresses.len(),
            self.requests_per_address.len(),
            share * 100.0
        ));
        let left: u64 = self
            .requests_per_address
            .iter()
            .filter(|(method, ..)| !can_be_sent(method))
            .map(|(_, _, count)| count)
            .sum();
        if left > 0 {
            remarks.push(format!(
                "Left out: {left} requests that send data; the log does not contain the data."
            ));
        }
        let weights =
            scale_weights(&top_addresses.iter().map(|(_, _, count)| *count).collect::<Vec<_>>());
        PlanDraft {
            comment_lines: remarks,
            name: "visitors of a log".to_owned(),
            target: target.to_owned(),
            load_settings: vec![
                ("rate".to_owned(), quote_toml(&format!("{:.3}/s", self.average_rate.max(0.001)))),
                ("arrivals".to_owned(), quote_toml("poisson")),
                ("duration".to_owned(), quote_toml("10m")),
            ],
            scenarios: top_addresses
                .iter()
                .zip(weights)
                .map(|((method, path, _), weight)| DraftScenario {
                    name: format!("{method} {path}"),
                    weight,
                    steps: vec![DraftStep {
                        method: method.clone(),
                        path: path.clone(),
                        ..DraftStep::default()
                    }],
                })
                .collect(),
        }
    }

    /// Returns goals for the plan: it must sustain the rate of the busiest minute, and responses must meet the time
    /// limits of pages.
    #[must_use]
    pub fn goals(&self) -> String {
        let errors = (self.error_rate * 100.0).max(0.1);
        format!(
            "# For a run at the rate of the busiest minute ({:.2}/s); its errors were {:.2} %.\n\
             [goal.\"*\"]\np70 = \"100ms\"\np95 = \"300ms\"\np99 = \"500ms\"\nmax = \"1s\"\n\
             error_rate = \"{errors:.2}%\"\nthroughput = \">={:.2}/s\"\n",
            self.peak_minute_rate,
            self.error_rate * 100.0,
            self.peak_minute_rate
        )
    }
}

/// Returns weights in the given proportions whose sum fits a plan: at most 100,000 in total, each at least 1.
fn scale_weights(counts: &[u64]) -> Vec<u64> {
    const MOST: f64 = 50_000.0;
    let sum: u64 = counts.iter().sum();
    let factor = (MOST / sum.max(1) as f64).min(1.0);
    counts.iter().map(|count| ((*count as f64 * factor).round() as u64).max(1)).collect()
}

/// Returns the share of `whole` in the largest fifth of `slot_count` counts; missing counts are 0.
fn top_fifth_share(counts: impl Iterator<Item = u64>, slot_count: u64, whole: u64) -> f64 {
    let mut counts: Vec<u64> = counts.collect();
    counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
    let fifth = usize::try_from(slot_count.div_ceil(5)).unwrap_or(usize::MAX);
    let most: u64 = counts.iter().take(fifth).sum();
    if whole == 0 { 0.0 } else { most as f64 / whole as f64 }
}

fn index_of_dispersion(counts: impl Iterator<Item = u64>, seconds: u64, mean: f64) -> f64 {
    let (mut squares, mut busy) = (0.0, 0);
    for count in counts {
        squares += (count as f64 - mean).powi(2);
        busy += 1;
    }
    squares += seconds.saturating_sub(busy) as f64 * mean.powi(2);
    if mean > 0.0 { squares / seconds as f64 / mean } else { 0.0 }
}

impl fmt::Display for TrafficProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "requests     {} in {} s by {} clients{}",
            self.requests,
            self.span_seconds,
            self.client_count,
            match self.malformed_lines {
                0 => String::new(),
                lines => format!(", {lines} malformed lines"),
            }
        )?;
        writeln!(
            f,
            "rate         {:.2}/s on average, {:.2}/s in the busiest minute, {} in the busiest second",
            self.average_rate, self.peak_minute_rate, self.peak_second_requests
        )?;
        writeln!(
            f,
            "in time      {:.0} % of the requests in 20 % of the minutes",
            self.busiest_fifth_share * 100.0
        )?;
        writeln!(
            f,
            "by address   {:.0} % of the requests for 20 % of {} addresses",
            self.popular_fifth_share * 100.0,
            self.requests_per_address.len()
        )?;
        let shape = match self.dispersion {
            shape if shape < 0.5 => "more evenly than by chance",
            shape if shape <= 2.0 => "independently, as a Poisson process",
            _ => "in bursts",
        };
        writeln!(f, "arrivals     {shape} (variance / mean per second {:.2})", self.dispersion)?;
        let list = |counts: &mut dyn Iterator<Item = (String, u64)>| {
            counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        let mut methods = self.methods.iter().map(|(name, count)| (name.clone(), *count));
        writeln!(f, "methods      {}", list(&mut methods))?;
        let mut statuses = self.statuses.iter().map(|(name, count)| (name.to_string(), *count));
        write!(f, "statuses     {}", list(&mut statuses))?;
        for (method, target, count) in self.requests_per_address.iter().take(10) {
            let share = *count as f64 / self.requests.max(1) as f64 * 100.0;
            write!(f, "\n{count:>8} {share:>5.1} % {method} {target}")?;
        }
        Ok(())
    }
}
