//! The latency goal of a publisher: 70, 95, 99 and 100 % of the pages under 100, 300, 500 and 1000 ms.
//!
//! It holds under five conditions, which are checked here: measured on publish; by the server's own clock; not cached;
//! complex pages only; nothing else running. What was measured otherwise is told to be not comparable.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::browse::{Ask, Got, basic, browse, fetch};
use crate::goal::{Judged, judge, latency_goal, show};
use crate::net::Url;
use crate::page::{is_hit, server_timing, show_url};
use crate::record::{Results, Series, Timing};
use crate::report::sheet::{Grid, Part, Sheet, Tone};
use crate::requests::judge_latency;
use crate::server_counters::ServerCounters;
use crate::{Error, Result};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Pages {
    /// Asked in turn.
    pub urls: Vec<String>,
    /// Requests in all.
    pub samples: u64,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// `user:password` of an administrator, by whom the server's caches are passed by.
    pub login: Option<String>,
    /// Added to every address, so that the server draws the page; `_flex=nocache` with a login.
    pub bypass: Option<String>,
    /// The admin listener of the server, `http://host:port`, if `/health` and `/metrics` are not at the pages' own address.
    pub admin: Option<String>,
}

/// Whether a condition held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Yes,
    No,
    Unknown,
}

/// One of the five conditions.
#[derive(Debug, Clone)]
struct Condition {
    name: &'static str,
    held: Held,
    why: String,
}

impl Condition {
    fn new(name: &'static str, held: Held, why: impl Into<String>) -> Self {
        Self { name, held, why: why.into() }
    }
}

/// Fewer samples say nothing about the last 1 %.
const FEWEST: usize = 100;
/// Requests that the looks at the server's counters are.
const LOOKS: f64 = 2.0;

/// The times that are judged, one per sample.
#[derive(Debug)]
enum Clock {
    /// The server's, as each answer tells it.
    Answers(Vec<Duration>),
    /// The server's, as its histogram of requests tells it: what is known is how long each took at most.
    Histogram(Vec<Duration>),
    /// That of the lab, with the network.
    Client(Vec<Duration>),
}

impl Clock {
    fn of(samples: &[Sample], rise: &ServerCounters, is_alone: bool) -> Self {
        let told: Vec<Duration> = samples.iter().filter_map(|sample| sample.server).collect();
        if !samples.is_empty() && told.len() == samples.len() {
            return Self::Answers(told);
        }
        // What else was answered meanwhile stands in the same buckets.
        let times = rise.times(samples.len()).filter(|_| is_alone && !samples.is_empty());
        if let Some(times) = times {
            return Self::Histogram(times);
        }
        Self::Client(samples.iter().map(|sample| sample.client).collect())
    }

    fn times(&self) -> &[Duration] {
        match self {
            Self::Answers(times) | Self::Histogram(times) | Self::Client(times) => times,
        }
    }

    fn word(&self) -> &'static str {
        if matches!(self, Self::Client(_)) { "client" } else { "server" }
    }
}

/// One answer.
struct Sample {
    url: String,
    /// By the server's clock, if it told.
    server: Option<Duration>,
    client: Duration,
    status: u16,
    media_type: String,
    /// Why it is known to come from a cache.
    cached: Option<&'static str>,
    /// Known to be drawn for this request.
    is_drawn: bool,
}

impl Sample {
    fn of(got: &Got) -> Self {
        let phases = server_timing(&got.head);
        let named =
            |wanted: &str| phases.iter().find(|(name, _)| name == wanted).map(|phase| phase.1);
        let millis = named("render").or_else(|| named("total")).or_else(|| named("app"));
        let fragments = got.head.header("X-Tympan-Fragments").unwrap_or_default();
        let hits = fragments.split_whitespace().find_map(|word| word.strip_prefix("hit="));
        let cached = if is_hit(&got.head) {
            Some("a cache in front answered")
        } else if hits.is_some_and(|hits| hits != "0") {
            Some("fragments came from the server's cache")
        } else {
            None
        };
        let media_type = got.head.header("Content-Type").unwrap_or_default();
        Self {
            url: show_url(&got.url),
            server: millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok()),
            client: got.elapsed(),
            status: got.status,
            media_type: media_type
                .split(';')
                .next()
                .unwrap_or_default()
                .trim()
                .to_ascii_lowercase(),
            cached,
            is_drawn: hits == Some("0"),
        }
    }

    fn is_complex(&self) -> bool {
        const COMPLEX: [&str; 6] = ["html", "javascript", "pdf", "json", "xml", "css"];
        COMPLEX.iter().any(|kind| self.media_type.contains(kind))
            && !self.media_type.contains("svg")
    }
}

/// Measures once.
///
/// # Errors
/// [`Error::Url`], [`Error::Input`], [`Error::Engine`].
pub fn run(pages: &Pages) -> Result<Sheet> {
    let mut urls = pages.urls.iter().map(|url| Url::parse(url)).collect::<Result<Vec<Url>>>()?;
    let Some(first) = urls.first().cloned() else {
        return Err(Error::Input("no page is to be measured".to_owned()));
    };
    let default = pages.login.is_some().then(|| "_flex=nocache".to_owned());
    let bypass = pages.bypass.clone().or(default);
    if let Some(bypass) = &bypass {
        for url in &mut urls {
            let sign = if url.target.contains('?') { '&' } else { '?' };
            url.target.push_str(&format!("{sign}{bypass}"));
        }
    }
    let mut headers = pages.headers.clone();
    headers.extend(pages.login.as_deref().map(basic));
    headers.push(("Cache-Control".to_owned(), "no-cache".to_owned()));
    let admin = match &pages.admin {
        Some(admin) => Url::parse(admin)?,
        None => first,
    };
    let role = role(&admin, &headers);
    let before = counters(&admin, &headers);
    let started = (SystemTime::now(), Instant::now());
    let samples = measure(&urls, pages.samples, &headers)?;
    let rise = match (before, counters(&admin, &headers)) {
        (Some(before), Some(after)) => after.since(&before),
        _ => ServerCounters::default(),
    };
    // Each look at the counters may be a request too.
    let others = rise.requests().map(|requests| requests - samples.len() as f64);
    let is_alone = others.is_some_and(|others| others <= LOOKS);
    let clock = Clock::of(&samples, &rise, is_alone);
    let conditions = vec![
        on_publish(role.as_deref()),
        by_server(&samples, &clock),
        not_cached(&samples, bypass.as_deref(), &rise, is_alone),
        complex_only(&samples),
        nothing_else(others),
    ];
    Ok(tell(pages, &samples, &clock, &conditions, started))
}

/// Asks for the pages, one at a time.
fn measure(urls: &[Url], count: u64, headers: &[(String, String)]) -> Result<Vec<Sample>> {
    let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
    let kept = Arc::clone(&samples);
    let (urls, headers) = (urls.to_vec(), headers.to_vec());
    let mut turns = urls
        .into_iter()
        .cycle()
        .take(usize::try_from(count).unwrap_or(usize::MAX))
        .collect::<Vec<_>>()
        .into_iter();
    browse(1, move |got| {
        kept.lock().unwrap_or_else(PoisonError::into_inner).extend(got.iter().map(Sample::of));
        turns.next().map(|url| Ask::get(url, &headers)).into_iter().collect()
    })?;
    let samples = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(samples)
}

fn ask(at: &Url, path: &str, headers: &[(String, String)]) -> Option<Got> {
    let url = Url { target: path.to_owned(), ..at.clone() };
    fetch(Ask::get(url, headers)).ok().filter(|got| got.status == 200)
}

/// Returns the role that the server says it has.
fn role(at: &Url, headers: &[(String, String)]) -> Option<String> {
    let got = ask(at, "/health", headers)?;
    let health: Value = serde_json::from_slice(&got.body).ok()?;
    health.get("role")?.as_str().map(str::to_owned)
}

/// Returns the counters of the server, if it tells them.
fn counters(at: &Url, headers: &[(String, String)]) -> Option<ServerCounters> {
    let got = ask(at, "/metrics", headers)?;
    Some(ServerCounters::parse(&String::from_utf8_lossy(&got.body)))
}

fn on_publish(role: Option<&str>) -> Condition {
    let name = "measured on publish";
    match role {
        Some("publish") => Condition::new(name, Held::Yes, "the server says it is a publisher"),
        Some(role) => Condition::new(name, Held::No, format!("the server says it is an {role}")),
        None => Condition::new(
            name,
            Held::Unknown,
            "the server's /health tells no role; name its admin listener with --admin",
        ),
    }
}

fn by_server(samples: &[Sample], clock: &Clock) -> Condition {
    let name = "by the server's clock";
    match clock {
        Clock::Answers(_) => Condition::new(name, Held::Yes, "Server-Timing"),
        Clock::Histogram(_) => Condition::new(
            name,
            Held::Yes,
            "the server's histogram of requests; a time is the end of its bucket",
        ),
        Clock::Client(_) => {
            let told = samples.iter().filter(|sample| sample.server.is_some()).count();
            let why = match told {
                0 => "no answer has Server-Timing, and no histogram of requests tells their times: the client's clock is used, with the network; Tympan tells times to those who log in (--login) and on its admin listener (--admin)".to_owned(),
                told => format!("{told} of {} answers have Server-Timing", samples.len()),
            };
            Condition::new(name, Held::No, why)
        }
    }
}

fn not_cached(
    samples: &[Sample],
    bypass: Option<&str>,
    rise: &ServerCounters,
    is_alone: bool,
) -> Condition {
    let name = "not cached";
    let cached: Vec<&Sample> = samples.iter().filter(|sample| sample.cached.is_some()).collect();
    if let Some(first) = cached.first() {
        let why = first.cached.unwrap_or_default();
        return Condition::new(
            name,
            Held::No,
            format!("{} of {}: {why}, such as {}", cached.len(), samples.len(), first.url),
        );
    }
    if !samples.is_empty() && samples.iter().all(|sample| sample.is_drawn) {
        return Condition::new(
            name,
            Held::Yes,
            "the server says that no fragment came from its cache",
        );
    }
    // What others asked for meanwhile is counted, too.
    if is_alone {
        match rise.cached() {
            Some(Some((count, words))) => {
                return Condition::new(name, Held::No, format!("{count:.0} {words}"));
            }
            Some(None) => {
                let why = "the server's counters of its caches did not rise";
                return Condition::new(name, Held::Yes, why);
            }
            None => {}
        }
    }
    let why = match bypass {
        Some(bypass) => format!("no answer says that it came from a cache, and none that it did not, with `{bypass}`"),
        None => "no answer says that it came from a cache, and none that it did not; pass by the server's cache with --login or --bypass".to_owned(),
    };
    Condition::new(name, Held::Unknown, why)
}

fn complex_only(samples: &[Sample]) -> Condition {
    let name = "complex pages only";
    match samples.iter().find(|sample| !sample.is_complex()) {
        None => Condition::new(name, Held::Yes, "all are HTML, scripts, documents or data"),
        Some(other) => {
            let kind = if other.media_type.is_empty() { "of no type" } else { &other.media_type };
            Condition::new(name, Held::No, format!("{} is {kind}", other.url))
        }
    }
}

fn nothing_else(others: Option<f64>) -> Condition {
    let name = "nothing else running";
    match others {
        None => Condition::new(
            name,
            Held::Unknown,
            "the server's /metrics tell no requests; one request at a time was sent; name its admin listener with --admin",
        ),
        Some(others) if others <= LOOKS => {
            Condition::new(name, Held::Yes, "the server's counters rose by these requests only")
        }
        Some(others) => Condition::new(
            name,
            Held::No,
            format!("the server answered {others:.0} other requests meanwhile"),
        ),
    }
}

fn tell(
    pages: &Pages,
    samples: &[Sample],
    clock: &Clock,
    conditions: &[Condition],
    started: (SystemTime, Instant),
) -> Sheet {
    let mut sheet = Sheet::new("Latency goal");
    let times = clock.times();
    // A histogram does not tell which page took which time.
    let time = |sample: &Sample| match clock {
        Clock::Answers(_) => sample.server.unwrap_or(sample.client),
        Clock::Histogram(_) | Clock::Client(_) => sample.client,
    };
    let mut results = Results::new(started.0);
    results.elapsed = started.1.elapsed();
    let mut series = Series::default();
    times.iter().for_each(|time| series.total.response.record(*time));
    let failed = samples.iter().filter(|sample| !(200..400).contains(&sample.status)).count();
    results.labels.insert("pages".into(), series);
    sheet.goals = judge(&latency_goal(), &results);
    sheet.goals.push(Judged {
        label: "*".to_owned(),
        wanted: "every page is answered".to_owned(),
        measured: format!("{failed} of {} failed", samples.len()),
        is_met: failed == 0,
    });
    if samples.iter().all(|sample| sample.status == 0) {
        sheet.say(Tone::Doubt, "the pages never answered");
    }
    let is_met = sheet.goals.iter().all(|goal| goal.is_met);
    let (tone, word) = if is_met { (Tone::Good, "met") } else { (Tone::Bad, "missed") };
    sheet.say(tone, format!("latency goal: {word}"));
    let open: Vec<&Condition> = conditions.iter().filter(|one| one.held != Held::Yes).collect();
    if !open.is_empty() {
        let names: Vec<&str> = open.iter().map(|one| one.name).collect();
        sheet.say(
            Tone::Plain,
            format!("NOT COMPARABLE with the goal: not known to hold: {}", names.join(", ")),
        );
    }
    if samples.len() < FEWEST {
        sheet.say(
            Tone::Plain,
            format!("fewer than {FEWEST} samples: the rows of 99 and 100 % cannot be judged"),
        );
    }
    sheet.parts.push(Part::Grid(condition_grid(conditions)));
    sheet.parts.push(Part::Grid(buckets(times)));
    let slowest = slowest(samples, &time);
    let mut grid = Grid::new("Slowest pages", &["page", "slowest", "median", "samples"]);
    for (url, timing) in slowest.iter().take(10) {
        grid.add(
            Tone::Plain,
            vec![
                url.clone(),
                show(timing.max()),
                show(timing.quantile(0.5)),
                timing.count().to_string(),
            ],
        );
    }
    sheet.parts.push(Part::Grid(grid));
    sheet.json = json!({
        "samples": samples.len(),
        "pages": pages.urls,
        "clock": clock.word(),
        "met": is_met,
        "comparable": open.is_empty(),
        "conditions": conditions.iter().map(|one| json!({ "name": one.name, "held": match one.held { Held::Yes => Value::from(true), Held::No => Value::from(false), Held::Unknown => Value::Null }, "why": one.why })).collect::<Vec<_>>(),
        "p70_ms": quantile(times, 0.70), "p95_ms": quantile(times, 0.95), "p99_ms": quantile(times, 0.99), "max_ms": quantile(times, 1.0),
    });
    sheet
}

fn quantile(times: &[Duration], share: f64) -> f64 {
    let mut timing = Timing::new();
    times.iter().for_each(|time| timing.record(*time));
    timing.quantile(share).as_secs_f64() * 1000.0
}

fn condition_grid(conditions: &[Condition]) -> Grid {
    let mut grid = Grid::new("Conditions of the goal", &["condition", "how it is known", ""]);
    for one in conditions {
        let (tone, word) = match one.held {
            Held::Yes => (Tone::Good, "holds"),
            Held::No => (Tone::Bad, "does not hold"),
            Held::Unknown => (Tone::Plain, "not known"),
        };
        grid.add(tone, vec![one.name.to_owned(), one.why.clone(), word.to_owned()]);
    }
    grid
}

/// Returns the four buckets and the one beyond them.
fn buckets(times: &[Duration]) -> Grid {
    let mut grid = Grid::new("Shares", &["under", "pages", "share", "together", "wanted", ""]);
    let mut before = 0;
    for row in judge_latency(times) {
        let within =
            times.iter().filter(|time| time.as_millis() <= u128::from(row.limit_ms)).count();
        let (tone, word) = match (row.can_be_judged, row.is_met()) {
            (false, _) => (Tone::Plain, "too few samples"),
            (true, true) => (Tone::Good, "met"),
            (true, false) => (Tone::Bad, "missed"),
        };
        let own = within.saturating_sub(before);
        grid.add(
            tone,
            vec![
                format!("{} ms", row.limit_ms),
                own.to_string(),
                format!("{:.1} %", own as f64 / times.len().max(1) as f64 * 100.0),
                format!("{:.1} %", row.measured * 100.0),
                format!("{:.0} %", row.wanted * 100.0),
                word.to_owned(),
            ],
        );
        before = within;
    }
    let beyond = times.len().saturating_sub(before);
    let tone = if beyond == 0 { Tone::Good } else { Tone::Bad };
    grid.add(
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

fn slowest(samples: &[Sample], time: &dyn Fn(&Sample) -> Duration) -> Vec<(String, Timing)> {
    let mut pages: Vec<(String, Timing)> = Vec::new();
    for sample in samples {
        match pages.iter_mut().find(|(url, _)| *url == sample.url) {
            Some((_, timing)) => timing.record(time(sample)),
            None => {
                let mut timing = Timing::new();
                timing.record(time(sample));
                pages.push((sample.url.clone(), timing));
            }
        }
    }
    pages.sort_by_key(|(_, timing)| std::cmp::Reverse(timing.max()));
    pages
}
