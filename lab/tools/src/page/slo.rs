//! Checks the latency goal of a publisher: 70, 95, 99 and 100 % of the pages under 100, 300, 500 and 1000 ms.
//!
//! The goal applies under five conditions, which are checked here: measured on publish; by the server's own clock; not
//! cached; complex pages only; nothing else running. Other measurements are reported as not comparable.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tympan_lab_engine::goal::{GoalResult, format_response_time, judge_goals};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::load::scripted_fetch::{
    ScriptedRequest, ScriptedResponse, fetch_once, run_fetch_script,
};
use tympan_lab_engine::measurement::{LabelSeries, RunResults, TimingHistogram};
use tympan_lab_engine::report::report_sheet::{ReportPart, ReportSheet, ReportTable, ReportTone};
use tympan_lab_plan::AbsoluteUrl;
use tympan_lab_plan::goal::latency_goals;

use crate::page::visit::{format_url, is_cache_hit_head, parse_server_timing};
use crate::server_log::request_log::judge_latency;
use crate::server_log::server_counters::ServerCounters;
use crate::{Error, Result};

/// Configuration of the check.
#[derive(Debug, Clone)]
pub struct SloCheck {
    /// URLs that are requested in turn.
    pub urls: Vec<String>,
    /// Total number of requests.
    pub sample_count: u64,
    /// Headers sent with every request.
    pub headers: Vec<(String, String)>,
    /// The credentials of an administrator, used to bypass the server's caches.
    pub authorization: Option<RequestAuthorization>,
    /// Query parameter added to every address, so that the server renders the page; `_flex=nocache` with a login.
    pub cache_bypass: Option<String>,
    /// The server's admin listener, `http://host:port`, if `/health` and `/metrics` are not at the pages' own address.
    pub admin_url: Option<String>,
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConditionStatus {
    Yes,
    No,
    Unknown,
}

/// One of the five conditions.
#[derive(Debug, Clone)]
struct SloCondition {
    name: &'static str,
    status: ConditionStatus,
    reason: String,
}

impl SloCondition {
    fn new(name: &'static str, status: ConditionStatus, why: impl Into<String>) -> Self {
        Self { name, status, reason: why.into() }
    }
}

/// Minimum number of samples for judging the last 1 %.
const MIN_SLO_SAMPLES: usize = 100;
/// Requests that the queries of the server's counters cause.
const COUNTER_QUERY_REQUESTS: f64 = 2.0;

/// The times to judge, one per sample.
#[derive(Debug)]
enum SloTimes {
    /// The server's times, as reported by each response.
    Responses(Vec<Duration>),
    /// The server's times, as upper bounds from its histogram of requests.
    Histogram(Vec<Duration>),
    /// The lab's times, including the network.
    Client(Vec<Duration>),
}

impl SloTimes {
    fn from_samples(samples: &[SloSample], rise: &ServerCounters, is_alone: bool) -> Self {
        let server_times: Vec<Duration> =
            samples.iter().filter_map(|sample| sample.server_time).collect();
        if !samples.is_empty() && server_times.len() == samples.len() {
            return Self::Responses(server_times);
        }
        // Other requests answered during the measurement are in the same buckets.
        let times = rise.request_times(samples.len()).filter(|_| is_alone && !samples.is_empty());
        if let Some(times) = times {
            return Self::Histogram(times);
        }
        Self::Client(samples.iter().map(|sample| sample.client_time).collect())
    }

    fn times(&self) -> &[Duration] {
        match self {
            Self::Responses(times) | Self::Histogram(times) | Self::Client(times) => times,
        }
    }

    fn source_name(&self) -> &'static str {
        if matches!(self, Self::Client(_)) { "client" } else { "server" }
    }
}

/// One response.
struct SloSample {
    url: String,
    /// Time by the server's clock, if reported.
    server_time: Option<Duration>,
    client_time: Duration,
    status: u16,
    media_type: String,
    /// The evidence that the response came from a cache.
    cache_evidence: Option<&'static str>,
    /// True if the page is known to have been rendered for this request.
    is_rendered: bool,
}

impl SloSample {
    fn from_fetch(got: &ScriptedResponse) -> Self {
        let phases = parse_server_timing(&got.response_head);
        let named = |phase_name: &str| {
            phases.iter().find(|(name, _)| name == phase_name).map(|phase| phase.1)
        };
        let millis = named("render").or_else(|| named("total")).or_else(|| named("app"));
        let fragments = got.response_head.header("X-Tympan-Fragments").unwrap_or_default();
        let hits = fragments.split_whitespace().find_map(|field| field.strip_prefix("hit="));
        let cached = if is_cache_hit_head(&got.response_head) {
            Some("served by a cache in front of the server")
        } else if hits.is_some_and(|hits| hits != "0") {
            Some("fragments came from the server's cache")
        } else {
            None
        };
        let media_type = got.response_head.header("Content-Type").unwrap_or_default();
        Self {
            url: format_url(&got.url),
            server_time: millis
                .and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok()),
            client_time: got.elapsed(),
            status: got.status,
            media_type: media_type
                .split(';')
                .next()
                .unwrap_or_default()
                .trim()
                .to_ascii_lowercase(),
            cache_evidence: cached,
            is_rendered: hits == Some("0"),
        }
    }

    fn is_complex(&self) -> bool {
        const COMPLEX: [&str; 6] = ["html", "javascript", "pdf", "json", "xml", "css"];
        COMPLEX.iter().any(|kind| self.media_type.contains(kind))
            && !self.media_type.contains("svg")
    }
}

/// Runs the check once.
///
/// # Errors
/// `Error::InvalidUrl`, [`Error::UnusableInput`], [`Error::Engine`].
pub fn run_slo_check(pages: &SloCheck) -> Result<ReportSheet> {
    let mut urls = pages
        .urls
        .iter()
        .map(|url| AbsoluteUrl::parse(url))
        .collect::<Result<Vec<AbsoluteUrl>, _>>()?;
    let Some(first) = urls.first().cloned() else {
        return Err(Error::UnusableInput("no page is to be measured".to_owned()));
    };
    let default = pages.authorization.is_some().then(|| "_flex=nocache".to_owned());
    let bypass = pages.cache_bypass.clone().or(default);
    if let Some(bypass) = &bypass {
        for url in &mut urls {
            let sign = if url.path_and_query.contains('?') { '&' } else { '?' };
            url.path_and_query.push_str(&format!("{sign}{bypass}"));
        }
    }
    let mut headers = pages.headers.clone();
    headers.extend(pages.authorization.as_ref().map(RequestAuthorization::to_header));
    headers.push(("Cache-Control".to_owned(), "no-cache".to_owned()));
    let admin = match &pages.admin_url {
        Some(admin) => AbsoluteUrl::parse(admin)?,
        None => first,
    };
    let role = fetch_server_role(&admin, &headers);
    let before = fetch_counters(&admin, &headers);
    let started = (SystemTime::now(), Instant::now());
    let samples = fetch_samples(&urls, pages.sample_count, &headers)?;
    let rise = match (before, fetch_counters(&admin, &headers)) {
        (Some(before), Some(after)) => after.difference_since(&before),
        _ => ServerCounters::default(),
    };
    // Each query of the counters may itself count as a request.
    let others = rise.request_count().map(|requests| requests - samples.len() as f64);
    let is_alone = others.is_some_and(|others| others <= COUNTER_QUERY_REQUESTS);
    let clock = SloTimes::from_samples(&samples, &rise, is_alone);
    let conditions = vec![
        check_on_publish(role.as_deref()),
        check_by_server(&samples, &clock),
        check_not_cached(&samples, bypass.as_deref(), &rise, is_alone),
        check_complex_only(&samples),
        check_no_other_requests(others),
    ];
    Ok(build_slo_sheet(pages, &samples, &clock, &conditions, started))
}

/// Requests the pages, one at a time.
fn fetch_samples(
    urls: &[AbsoluteUrl],
    count: u64,
    headers: &[(String, String)],
) -> Result<Vec<SloSample>> {
    let samples: Arc<Mutex<Vec<SloSample>>> = Arc::default();
    let shared_samples = Arc::clone(&samples);
    let (urls, headers) = (urls.to_vec(), headers.to_vec());
    let mut turns = urls
        .into_iter()
        .cycle()
        .take(usize::try_from(count).unwrap_or(usize::MAX))
        .collect::<Vec<_>>()
        .into_iter();
    run_fetch_script(1, move |got| {
        shared_samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(got.iter().map(SloSample::from_fetch));
        turns.next().map(|url| ScriptedRequest::get(url, &headers)).into_iter().collect()
    })?;
    let samples = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(samples)
}

fn send_get(
    at: &AbsoluteUrl,
    path: &str,
    headers: &[(String, String)],
) -> Option<ScriptedResponse> {
    let url = AbsoluteUrl { path_and_query: path.to_owned(), ..at.clone() };
    fetch_once(ScriptedRequest::get(url, headers)).ok().filter(|got| got.status == 200)
}

/// Returns the role that the server reports.
fn fetch_server_role(at: &AbsoluteUrl, headers: &[(String, String)]) -> Option<String> {
    let got = send_get(at, "/health", headers)?;
    let health: Value = serde_json::from_slice(&got.body).ok()?;
    health.get("role")?.as_str().map(str::to_owned)
}

/// Returns the server's counters, if it publishes them.
fn fetch_counters(at: &AbsoluteUrl, headers: &[(String, String)]) -> Option<ServerCounters> {
    let got = send_get(at, "/metrics", headers)?;
    Some(ServerCounters::parse(&String::from_utf8_lossy(&got.body)))
}

fn check_on_publish(role: Option<&str>) -> SloCondition {
    let name = "measured on publish";
    match role {
        Some("publish") => {
            SloCondition::new(name, ConditionStatus::Yes, "the server's role is publish")
        }
        Some(role) => {
            SloCondition::new(name, ConditionStatus::No, format!("the server's role is {role}"))
        }
        None => SloCondition::new(
            name,
            ConditionStatus::Unknown,
            "the server's /health reports no role; give its admin listener with --admin",
        ),
    }
}

fn check_by_server(samples: &[SloSample], clock: &SloTimes) -> SloCondition {
    let name = "by the server's clock";
    match clock {
        SloTimes::Responses(_) => SloCondition::new(name, ConditionStatus::Yes, "Server-Timing"),
        SloTimes::Histogram(_) => SloCondition::new(
            name,
            ConditionStatus::Yes,
            "the server's request histogram; each time is the upper bound of its bucket",
        ),
        SloTimes::Client(_) => {
            let timed_count = samples.iter().filter(|sample| sample.server_time.is_some()).count();
            let why = match timed_count {
                0 => "no response has Server-Timing, and no request histogram has their times: the client's \
                    clock is used, including the network; Tympan reports times to logged-in users (--login) \
                    and on its admin listener (--admin)".to_owned(),
                timed_count => format!("{timed_count} of {} responses have Server-Timing", samples.len()),
            };
            SloCondition::new(name, ConditionStatus::No, why)
        }
    }
}

fn check_not_cached(
    samples: &[SloSample],
    bypass: Option<&str>,
    rise: &ServerCounters,
    is_alone: bool,
) -> SloCondition {
    let name = "not cached";
    let cached: Vec<&SloSample> =
        samples.iter().filter(|sample| sample.cache_evidence.is_some()).collect();
    if let Some(first) = cached.first() {
        let why = first.cache_evidence.unwrap_or_default();
        return SloCondition::new(
            name,
            ConditionStatus::No,
            format!("{} of {}: {why}, such as {}", cached.len(), samples.len(), first.url),
        );
    }
    if !samples.is_empty() && samples.iter().all(|sample| sample.is_rendered) {
        return SloCondition::new(
            name,
            ConditionStatus::Yes,
            "the server reports that no fragment came from its cache",
        );
    }
    // The counters include requests of other clients.
    if is_alone {
        match rise.cached_count() {
            Some(Some((count, words))) => {
                return SloCondition::new(name, ConditionStatus::No, format!("{count:.0} {words}"));
            }
            Some(None) => {
                let why = "the server's cache counters did not rise";
                return SloCondition::new(name, ConditionStatus::Yes, why);
            }
            None => {}
        }
    }
    let why = match bypass {
        Some(bypass) => format!("no response tells whether it came from a cache, with `{bypass}`"),
        None => "no response tells whether it came from a cache; bypass the server's cache with --login or \
            --bypass".to_owned(),
    };
    SloCondition::new(name, ConditionStatus::Unknown, why)
}

fn check_complex_only(samples: &[SloSample]) -> SloCondition {
    let name = "complex pages only";
    match samples.iter().find(|sample| !sample.is_complex()) {
        None => SloCondition::new(
            name,
            ConditionStatus::Yes,
            "all are HTML, scripts, documents or data",
        ),
        Some(other) => {
            let kind =
                if other.media_type.is_empty() { "of unknown type" } else { &other.media_type };
            SloCondition::new(name, ConditionStatus::No, format!("{} is {kind}", other.url))
        }
    }
}

fn check_no_other_requests(others: Option<f64>) -> SloCondition {
    let name = "nothing else running";
    match others {
        None => SloCondition::new(
            name,
            ConditionStatus::Unknown,
            "the server's /metrics report no requests; requests were sent one at a time; give its admin \
             listener with --admin",
        ),
        Some(others) if others <= COUNTER_QUERY_REQUESTS => SloCondition::new(
            name,
            ConditionStatus::Yes,
            "the server's counters rose by these requests only",
        ),
        Some(others) => SloCondition::new(
            name,
            ConditionStatus::No,
            format!("the server served {others:.0} other requests meanwhile"),
        ),
    }
}

fn build_slo_sheet(
    pages: &SloCheck,
    samples: &[SloSample],
    clock: &SloTimes,
    conditions: &[SloCondition],
    started: (SystemTime, Instant),
) -> ReportSheet {
    let mut sheet = ReportSheet::new("Latency goal");
    let times = clock.times();
    // A histogram does not associate times with pages.
    let time = |sample: &SloSample| match clock {
        SloTimes::Responses(_) => sample.server_time.unwrap_or(sample.client_time),
        SloTimes::Histogram(_) | SloTimes::Client(_) => sample.client_time,
    };
    let mut results = RunResults::new(started.0);
    results.elapsed = started.1.elapsed();
    let mut series = LabelSeries::default();
    times.iter().for_each(|time| series.total.response_times.record(*time));
    let failed = samples.iter().filter(|sample| !(200..400).contains(&sample.status)).count();
    results.labels.insert("pages".into(), series);
    sheet.judged_goals = judge_goals(&latency_goals(), &results);
    sheet.judged_goals.push(GoalResult {
        label: "*".to_owned(),
        requirement: "every page gets a response".to_owned(),
        measured: format!("{failed} of {} failed", samples.len()),
        is_met: failed == 0,
    });
    if samples.iter().all(|sample| sample.status == 0) {
        sheet.add_verdict(ReportTone::Doubtful, "the pages never responded");
    }
    let is_met = sheet.judged_goals.iter().all(|goal| goal.is_met);
    let (tone, status) =
        if is_met { (ReportTone::Good, "met") } else { (ReportTone::Bad, "missed") };
    sheet.add_verdict(tone, format!("latency goal: {status}"));
    let open: Vec<&SloCondition> =
        conditions.iter().filter(|condition| condition.status != ConditionStatus::Yes).collect();
    if !open.is_empty() {
        let names: Vec<&str> = open.iter().map(|condition| condition.name).collect();
        sheet.add_verdict(
            ReportTone::Plain,
            format!("NOT COMPARABLE with the goal: conditions not confirmed: {}", names.join(", ")),
        );
    }
    if samples.len() < MIN_SLO_SAMPLES {
        sheet.add_verdict(
            ReportTone::Plain,
            format!(
                "fewer than {MIN_SLO_SAMPLES} samples: the rows of 99 and 100 % cannot be judged"
            ),
        );
    }
    sheet.parts.push(ReportPart::Table(condition_table(conditions)));
    sheet.parts.push(ReportPart::Table(latency_bucket_table(times)));
    let slowest = slowest_urls(samples, &time);
    let mut grid = ReportTable::new("Slowest pages", &["page", "slowest", "median", "samples"]);
    for (url, timing) in slowest.iter().take(10) {
        grid.add_row(
            ReportTone::Plain,
            vec![
                url.clone(),
                format_response_time(timing.max()),
                format_response_time(timing.quantile(0.5)),
                timing.count().to_string(),
            ],
        );
    }
    sheet.parts.push(ReportPart::Table(grid));
    sheet.json_result = json!({
        "samples": samples.len(),
        "pages": pages.urls,
        "clock": clock.source_name(),
        "met": is_met,
        "comparable": open.is_empty(),
        "conditions": conditions.iter().map(|one| json!({ "name": one.name, "held": match one.status { ConditionStatus::Yes => Value::from(true), ConditionStatus::No => Value::from(false), ConditionStatus::Unknown => Value::Null }, "why": one.reason })).collect::<Vec<_>>(),
        "p70_ms": time_quantile_ms(times, 0.70), "p95_ms": time_quantile_ms(times, 0.95), "p99_ms": time_quantile_ms(times, 0.99), "max_ms": time_quantile_ms(times, 1.0),
    });
    sheet
}

fn time_quantile_ms(times: &[Duration], share: f64) -> f64 {
    let mut timing = TimingHistogram::new();
    times.iter().for_each(|time| timing.record(*time));
    timing.quantile(share).as_secs_f64() * 1000.0
}

fn condition_table(conditions: &[SloCondition]) -> ReportTable {
    let mut grid = ReportTable::new("Conditions of the goal", &["condition", "evidence", ""]);
    for condition in conditions {
        let (tone, status) = match condition.status {
            ConditionStatus::Yes => (ReportTone::Good, "holds"),
            ConditionStatus::No => (ReportTone::Bad, "does not hold"),
            ConditionStatus::Unknown => (ReportTone::Plain, "unknown"),
        };
        grid.add_row(
            tone,
            vec![condition.name.to_owned(), condition.reason.clone(), status.to_owned()],
        );
    }
    grid
}

/// Returns a table of the four buckets and the overflow bucket.
fn latency_bucket_table(times: &[Duration]) -> ReportTable {
    let mut grid =
        ReportTable::new("Shares", &["under", "pages", "share", "together", "wanted", ""]);
    let mut before = 0;
    for row in judge_latency(times) {
        let within =
            times.iter().filter(|time| time.as_millis() <= u128::from(row.limit_ms)).count();
        let (tone, status) = match (row.has_enough_samples, row.is_met()) {
            (false, _) => (ReportTone::Plain, "too few samples"),
            (true, true) => (ReportTone::Good, "met"),
            (true, false) => (ReportTone::Bad, "missed"),
        };
        let own = within.saturating_sub(before);
        grid.add_row(
            tone,
            vec![
                format!("{} ms", row.limit_ms),
                own.to_string(),
                format!("{:.1} %", own as f64 / times.len().max(1) as f64 * 100.0),
                format!("{:.1} %", row.measured_share * 100.0),
                format!("{:.0} %", row.required_share * 100.0),
                status.to_owned(),
            ],
        );
        before = within;
    }
    let beyond = times.len().saturating_sub(before);
    let tone = if beyond == 0 { ReportTone::Good } else { ReportTone::Bad };
    grid.add_row(
        tone,
        vec![
            "longer".to_owned(),
            beyond.to_string(),
            String::new(),
            String::new(),
            "none".to_owned(),
            if beyond == 0 { "met" } else { "missed" }.to_owned(),
        ],
    );
    grid
}

fn slowest_urls(
    samples: &[SloSample],
    time: &dyn Fn(&SloSample) -> Duration,
) -> Vec<(String, TimingHistogram)> {
    let mut pages: Vec<(String, TimingHistogram)> = Vec::new();
    for sample in samples {
        match pages.iter_mut().find(|(url, _)| *url == sample.url) {
            Some((_, timing)) => timing.record(time(sample)),
            None => {
                let mut timing = TimingHistogram::new();
                timing.record(time(sample));
                pages.push((sample.url.clone(), timing));
            }
        }
    }
    pages.sort_by_key(|(_, timing)| std::cmp::Reverse(timing.max()));
    pages
}
