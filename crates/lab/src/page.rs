//! Pages as visitors see them: the page, and everything it makes a browser fetch, six at a time from each host.
//!
//! A page's time is from its start to the last byte of its last part. Parts of parts (pictures of style sheets) are
//! fetched when all style sheets are there.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::browse::{Ask, Got, browse};
use crate::goal::{Goal, judge, show};
use crate::html_parts;
use crate::net::{Head, Url, cache_says, is_for_one_server};
use crate::plan::answer::to_text;
use crate::plan::cache::{Cache, Exchanged, Freshness};
use crate::record::{Results, Series};
use crate::report::sheet::{Bar, Grid, Part, Sheet, Tone};
use crate::{Error, Result};

/// How pages are visited.
#[derive(Debug, Clone)]
pub struct Visits {
    /// The pages.
    pub urls: Vec<String>,
    /// Sent with every request; credentials, cookies and `Host` only to the server of the page that is named.
    pub headers: Vec<(String, String)>,
    /// How often each page is visited.
    pub count: usize,
    /// Later visits of a page have the browser's cache of the first one.
    pub is_warm: bool,
    /// Limits for `*`, or for the address of a page.
    pub goals: Vec<Goal>,
}

/// Requests at a time to one host, as browsers do.
const PARALLEL: usize = 6;
const MOST_HOPS: usize = 20;
/// Parts of a page; more are a loop of pages that refer to each other.
const MOST_PARTS: usize = 2000;

/// One request of a visit.
#[derive(Debug, Clone)]
pub struct Element {
    /// Its address.
    pub url: String,
    /// The media type, without parameters.
    pub media_type: String,
    /// Since the visit's start.
    pub start: Duration,
    /// Connecting.
    pub connect: Duration,
    /// Until the first byte, after connecting.
    pub wait: Duration,
    /// Until the last byte.
    pub receive: Duration,
    /// 0 if there was no response.
    pub status: u16,
    /// Why it failed.
    pub failure: Option<String>,
    /// Bytes over the wire.
    pub bytes: u64,
    /// A cache in front of the site answered, as headers tell.
    pub is_hit: bool,
    /// Phases of the server, in milliseconds, from `Server-Timing`.
    pub phases: Vec<(String, f64)>,
}

impl Element {
    fn of(got: &Got, began: Instant) -> Self {
        let sent = got.started + got.connect;
        let media_type = got.head.header("Content-Type").unwrap_or_default();
        Self {
            url: show_url(&got.url),
            media_type: media_type.split(';').next().unwrap_or_default().trim().to_owned(),
            start: got.started.saturating_duration_since(began),
            connect: got.connect,
            wait: got.first_byte.saturating_duration_since(sent),
            receive: got.ended.saturating_duration_since(got.first_byte),
            status: got.status,
            failure: got.failure.clone(),
            bytes: got.received,
            is_hit: is_hit(&got.head),
            phases: server_timing(&got.head),
        }
    }

    fn elapsed(&self) -> Duration {
        self.connect + self.wait + self.receive
    }

    fn is_ok(&self) -> bool {
        (200..400).contains(&self.status)
    }
}

pub(crate) fn show_url(url: &Url) -> String {
    let (scheme, default) = if url.is_tls { ("https", 443) } else { ("http", 80) };
    let port = if url.port == default { String::new() } else { format!(":{}", url.port) };
    format!("{scheme}://{}{port}{}", url.host, url.target)
}

/// Reports whether headers say that a cache answered.
pub(crate) fn is_hit(head: &Head) -> bool {
    ["X-Cache", "Cache-Status", "X-Cache-Info", "Age"]
        .into_iter()
        .any(|name| head.all(name).any(|value| cache_says(name, value) == Some(true)))
}

/// Returns the phases that the server tells: names and milliseconds.
pub(crate) fn server_timing(head: &Head) -> Vec<(String, f64)> {
    let mut phases = Vec::new();
    for value in head.all("Server-Timing") {
        for entry in split_outside_quotes(value, ',') {
            let mut parts = split_outside_quotes(entry, ';').into_iter().map(str::trim);
            let Some(name) = parts.next().filter(|name| !name.is_empty()) else { continue };
            let (mut millis, mut words) = (0.0, None);
            for part in parts {
                match part.split_once('=') {
                    Some(("dur", number)) => {
                        millis = number.trim_matches('"').parse().unwrap_or(0.0)
                    }
                    Some(("desc", text)) => words = Some(text.trim_matches('"').to_owned()),
                    _ => {}
                }
            }
            phases.push((words.unwrap_or_else(|| name.to_owned()), millis));
        }
    }
    phases
}

fn split_outside_quotes(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut from, mut is_quoted) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == '"' {
            is_quoted = !is_quoted;
        } else if c == separator && !is_quoted {
            parts.extend(text.get(from..at));
            from = at + c.len_utf8();
        }
    }
    parts.extend(text.get(from..));
    parts
}

/// What a page took.
#[derive(Debug, Clone)]
struct Visit {
    elements: Vec<Element>,
    /// Parts that the browser's own cache had.
    kept: usize,
}

impl Visit {
    fn time(&self) -> Duration {
        self.elements
            .iter()
            .map(|element| element.start + element.elapsed())
            .max()
            .unwrap_or_default()
    }

    fn is_ok(&self) -> bool {
        !self.elements.is_empty() && self.elements.iter().all(Element::is_ok)
    }
}

/// The script of one visit.
struct Browser {
    /// The page as it was named, whose server is told the credentials.
    url: Url,
    headers: Vec<(String, String)>,
    cache: Option<Arc<Mutex<Cache>>>,
    asked: HashSet<String>,
    began: Option<Instant>,
    hops: usize,
    is_page_there: bool,
    visit: Arc<Mutex<Visit>>,
}

impl Browser {
    fn next(&mut self, got: &[Got]) -> Vec<Ask> {
        let began = *self.began.get_or_insert_with(Instant::now);
        if got.is_empty() {
            let url = self.url.clone();
            return self.ask(vec![url]);
        }
        let mut wanted = Vec::new();
        for got in got {
            self.note(got, began);
            wanted.extend(self.parts(got));
        }
        self.ask(wanted)
    }

    fn note(&mut self, got: &Got, began: Instant) {
        let mut visit = self.visit.lock().unwrap_or_else(PoisonError::into_inner);
        visit.elements.push(Element::of(got, began));
        if let Some(cache) = &self.cache {
            let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
            let exchanged = Exchanged {
                url: &show_url(&got.url),
                request: &[],
                status: got.status,
                head: &got.head,
            };
            cache.note(&exchanged, Freshness::Browser, SystemTime::now());
        }
    }

    /// Returns what an answer makes a browser fetch.
    fn parts(&mut self, got: &Got) -> Vec<Url> {
        let location = got.head.header("Location").filter(|_| (301..=308).contains(&got.status));
        if let Some(location) = location {
            self.hops += 1;
            let next = got.url.join(location).ok();
            return next.into_iter().filter(|_| self.hops <= MOST_HOPS).collect();
        }
        let media_type = got.head.header("Content-Type").unwrap_or_default().to_ascii_lowercase();
        let text = || to_text(got.body.clone(), got.head.header("Content-Type"));
        let (base, references) = if media_type.contains("html") && !self.is_page_there {
            self.is_page_there = true;
            let parts = html_parts::of_page(&text());
            let base = parts.base.and_then(|base| got.url.join(&base).ok());
            (base.unwrap_or_else(|| got.url.clone()), parts.references)
        } else if media_type.contains("css") {
            (got.url.clone(), html_parts::of_style(&text()))
        } else {
            return Vec::new();
        };
        references.iter().filter_map(|reference| base.join(reference).ok()).collect()
    }

    fn headers_for(&self, url: &Url) -> Vec<(String, String)> {
        let is_home = url.is_same_server(&self.url);
        let mut headers = self.headers.clone();
        headers.retain(|(name, _)| is_home || !is_for_one_server(name));
        headers
    }

    fn ask(&mut self, urls: Vec<Url>) -> Vec<Ask> {
        let mut asks = Vec::new();
        for url in urls {
            let shown = show_url(&url);
            if self.asked.len() >= MOST_PARTS || !self.asked.insert(shown.clone()) {
                continue;
            }
            let headers = self.headers_for(&url);
            let mut ask = Ask::get(url, &headers);
            if let Some(cache) = &self.cache {
                let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                // The page itself is asked for again, as by a visitor who comes back.
                if self.is_page_there && cache.is_fresh(&shown, &[], SystemTime::now()) {
                    self.visit.lock().unwrap_or_else(PoisonError::into_inner).kept += 1;
                    continue;
                }
                ask.headers.extend(cache.conditions(&shown, &[]));
            }
            if !ask.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Accept-Encoding")) {
                ask.headers.push(("Accept-Encoding".to_owned(), "gzip, deflate".to_owned()));
            }
            asks.push(ask);
        }
        asks
    }
}

fn visit(url: &Url, visits: &Visits, cache: Option<&Arc<Mutex<Cache>>>) -> Result<Visit> {
    let visit = Arc::new(Mutex::new(Visit { elements: Vec::new(), kept: 0 }));
    let mut browser = Browser {
        url: url.clone(),
        headers: visits.headers.clone(),
        cache: cache.cloned(),
        asked: HashSet::new(),
        began: None,
        hops: 0,
        is_page_there: false,
        visit: Arc::clone(&visit),
    };
    browse(PARALLEL, move |got| browser.next(&got))?;
    let mut visit = visit.lock().unwrap_or_else(PoisonError::into_inner).clone();
    visit.elements.sort_by_key(|element| element.start);
    Ok(visit)
}

/// Visits every page.
///
/// # Errors
/// [`Error::Url`], [`Error::Input`], [`Error::Engine`].
pub fn run(visits: &Visits) -> Result<Sheet> {
    if visits.urls.is_empty() || visits.count == 0 {
        return Err(Error::Input("no page is to be visited".to_owned()));
    }
    let urls = visits.urls.iter().map(|url| Url::parse(url)).collect::<Result<Vec<Url>>>()?;
    let mut results = Results::new(SystemTime::now());
    let started = Instant::now();
    let mut all: Vec<(String, Vec<Visit>)> = Vec::new();
    for url in &urls {
        let cache = visits.is_warm.then(|| Arc::new(Mutex::new(Cache::default())));
        let mut of_page = Vec::new();
        for _ in 0..visits.count {
            of_page.push(visit(url, visits, cache.as_ref())?);
        }
        let mut series = Series::default();
        // The first visit fills the cache; what is judged is the visitor who comes back.
        let judged = usize::from(visits.is_warm && of_page.len() > 1);
        for visit in of_page.iter().skip(judged) {
            series.total.response.record(visit.time());
            series.total.errors += u64::from(!visit.is_ok());
        }
        results.labels.insert(show_url(url).into(), series);
        all.push((show_url(url), of_page));
    }
    results.elapsed = started.elapsed();
    Ok(tell(visits, &all, &results))
}

fn tell(visits: &Visits, all: &[(String, Vec<Visit>)], results: &Results) -> Sheet {
    let mut sheet = Sheet::new("Pages");
    sheet.goals = judge(&visits.goals, results);
    let mut pages = Grid::new(
        "Pages",
        &["page", "visits", "median", "slowest", "requests", "bytes", "from caches", "failed", ""],
    );
    let mut told = Vec::new();
    for (url, of_page) in all {
        let Some(last) = of_page.last() else { continue };
        let failed = last.elements.iter().filter(|element| !element.is_ok()).count();
        let timing = results
            .labels
            .get(url.as_str())
            .map(|series| series.total.response.clone())
            .unwrap_or_default();
        let hits = last.elements.iter().filter(|element| element.is_hit).count();
        let (tone, word) =
            if failed == 0 { (Tone::Good, "whole") } else { (Tone::Bad, "parts fail") };
        pages.add(
            tone,
            vec![
                url.clone(),
                of_page.len().to_string(),
                show(timing.quantile(0.5)),
                show(timing.max()),
                last.elements.len().to_string(),
                last.elements.iter().map(|element| element.bytes).sum::<u64>().to_string(),
                format!("{hits} of {}, {} kept by the browser", last.elements.len(), last.kept),
                failed.to_string(),
                word.to_owned(),
            ],
        );
        if last.elements.iter().all(|element| element.status == 0) {
            sheet.say(Tone::Doubt, format!("{url} never answered"));
        } else if failed > 0 {
            let which: Vec<String> = last
                .elements
                .iter()
                .filter(|element| !element.is_ok())
                .take(5)
                .map(|element| {
                    let why = element
                        .failure
                        .clone()
                        .unwrap_or_else(|| format!("status {}", element.status));
                    format!("{} ({why})", element.url)
                })
                .collect();
            sheet.say(Tone::Bad, format!("{url}: {failed} requests failed: {}", which.join(", ")));
        }
        told.push(page_json(url, of_page, last));
    }
    sheet.parts.push(Part::Grid(pages));
    for (url, of_page) in all {
        let Some(last) = of_page.last() else { continue };
        sheet.parts.push(Part::Grid(elements(url, of_page)));
        sheet.parts.push(Part::Waterfall(last.elements.iter().map(bar).collect()));
        if let Some(grid) = phases(url, of_page) {
            sheet.parts.push(Part::Grid(grid));
        }
    }
    sheet.json = json!({ "pages": told });
    sheet
}

fn bar(element: &Element) -> Bar {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    Bar {
        name: element.url.clone(),
        start: ms(element.start),
        connect: ms(element.connect),
        wait: ms(element.wait),
        receive: ms(element.receive),
        is_bad: !element.is_ok(),
    }
}

/// Returns the average of every request of a page over its visits.
fn elements(url: &str, visits: &[Visit]) -> Grid {
    let mut sums: Vec<(String, u32, Duration, Duration, Element)> = Vec::new();
    for element in visits.iter().flat_map(|visit| &visit.elements) {
        match sums.iter_mut().find(|(known, ..)| *known == element.url) {
            Some((_, count, wait, whole, last)) => {
                *count += 1;
                *wait += element.wait;
                *whole += element.elapsed();
                *last = element.clone();
            }
            None => sums.push((
                element.url.clone(),
                1,
                element.wait,
                element.elapsed(),
                element.clone(),
            )),
        }
    }
    let mut grid = Grid::new(
        &format!("Requests of {url}, on average"),
        &["request", "type", "status", "bytes", "waited", "whole", "cache"],
    );
    for (name, count, wait, whole, last) in sums {
        let tone = if last.is_ok() { Tone::Plain } else { Tone::Bad };
        let status = last.failure.clone().unwrap_or_else(|| last.status.to_string());
        grid.add(
            tone,
            vec![
                name,
                last.media_type.clone(),
                status,
                last.bytes.to_string(),
                show(wait / count),
                show(whole / count),
                if last.is_hit { "hit" } else { "" }.to_owned(),
            ],
        );
    }
    grid
}

/// Returns the phases that the server told, averaged per page.
fn phases(url: &str, visits: &[Visit]) -> Option<Grid> {
    let mut sums: BTreeMap<(String, String), (f64, u32)> = BTreeMap::new();
    for element in visits.iter().flat_map(|visit| &visit.elements) {
        for (name, millis) in &element.phases {
            let sum = sums.entry((element.url.clone(), name.clone())).or_default();
            sum.0 += millis;
            sum.1 += 1;
        }
    }
    let mut grid =
        Grid::new(&format!("Inside the server of {url}"), &["request", "phase", "average"]);
    for ((request, phase), (sum, count)) in &sums {
        grid.add(
            Tone::Plain,
            vec![request.clone(), phase.clone(), format!("{:.2} ms", sum / f64::from(*count))],
        );
    }
    (!sums.is_empty()).then_some(grid)
}

fn page_json(url: &str, visits: &[Visit], last: &Visit) -> Value {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let elements: Vec<Value> = last
        .elements
        .iter()
        .map(|element| {
            json!({
                "url": element.url, "type": element.media_type, "status": element.status,
                "failure": element.failure, "bytes": element.bytes, "start_ms": ms(element.start),
                "connect_ms": ms(element.connect), "wait_ms": ms(element.wait), "receive_ms": ms(element.receive),
                "cache_hit": element.is_hit, "phases": element.phases,
            })
        })
        .collect();
    let hits = last.elements.iter().filter(|element| element.is_hit).count();
    json!({
        "url": url,
        "times_ms": visits.iter().map(|visit| ms(visit.time())).collect::<Vec<f64>>(),
        "requests": last.elements.len(),
        "kept_by_browser": last.kept,
        "cached_share": hits as f64 / last.elements.len().max(1) as f64,
        "elements": elements,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(headers: &[(&str, &str)]) -> Head {
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        Head::new(("HTTP/1.1", 200, "OK"), headers, 0)
    }

    #[test]
    fn server_timing_is_read_with_quotes_and_without() {
        let head = head(&[
            ("Server-Timing", "render;dur=8.5, c0;desc=\"a, b; x2\";dur=4"),
            ("server-timing", "cache"),
        ]);
        let expected = [("render", 8.5), ("a, b; x2", 4.0), ("cache", 0.0)];
        assert_eq!(server_timing(&head), expected.map(|(name, ms)| (name.to_owned(), ms)));
    }

    #[test]
    fn caches_tell_by_several_headers() {
        for (name, value, expected) in [
            ("X-Cache", "HIT from x", true),
            ("X-Cache", "MISS", false),
            ("Age", "0", false),
            ("Age", "3", true),
            ("X-Cache-Info", "target file cached", true),
            ("X-Cache-Info", "caching", false),
            ("Cache-Status", "tympan; hit", true),
            ("Cache-Status", "tympan; fwd=miss; stored", false),
        ] {
            assert_eq!(is_hit(&head(&[(name, value)])), expected, "{name}: {value}");
        }
    }
}
