//! Page visits as in a browser: the page and everything it makes a browser fetch, six requests at a time per host.
//!
//! A page's time is from its start to the last byte of its last part. Parts of parts (images in style sheets) are
//! fetched after all style sheets are complete.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tympan_lab_engine::goal::{format_response_time, judge_goals};
use tympan_lab_engine::load::scripted_fetch::{
    ScriptedRequest, ScriptedResponse, run_fetch_script,
};
use tympan_lab_engine::measurement::{LabelSeries, RunResults};
use tympan_lab_engine::net::{TargetResponseHead, cache_hit_from_header, is_server_specific};
use tympan_lab_engine::plan_run::client_cache::{
    CacheFreshnessMode, CacheableExchange, ClientCache,
};
use tympan_lab_engine::report::report_sheet::{
    ReportPart, ReportSheet, ReportTable, ReportTone, WaterfallBar,
};
use tympan_lab_plan::goal::LoadGoal;
use tympan_lab_plan::{AbsoluteUrl, decode_text};

use crate::page::reference;
use crate::{Error, Result};

/// Options of page visits.
#[derive(Debug, Clone)]
pub struct PageVisitOptions {
    /// The pages.
    pub urls: Vec<String>,
    /// Sent with every request; credentials, cookies and `Host` only to the server of the named page.
    pub headers: Vec<(String, String)>,
    /// Number of visits per page.
    pub visits_per_page: usize,
    /// True if later visits of a page reuse the browser cache of the first one.
    pub reuses_cache: bool,
    /// Limits for `*`, or for the URL of a page.
    pub goals: Vec<LoadGoal>,
}

/// Maximum number of concurrent requests per host, as in browsers.
const MAX_PARALLEL_PER_HOST: usize = 6;
const MAX_REDIRECTS: usize = 20;
/// Maximum number of parts of a page; more indicate a loop of pages that refer to each other.
const MAX_PAGE_PARTS: usize = 2000;

/// One request of a visit.
#[derive(Debug, Clone)]
pub struct VisitRequest {
    /// The requested URL.
    pub url: String,
    /// The media type, without parameters.
    pub media_type: String,
    /// Start time since the start of the visit.
    pub start_offset: Duration,
    /// Connect time.
    pub connect_time: Duration,
    /// Time until the first byte, after connecting.
    pub wait_time: Duration,
    /// Time from the first to the last byte.
    pub receive_time: Duration,
    /// 0 if there was no response.
    pub status: u16,
    /// The failure reason.
    pub failure: Option<String>,
    /// Bytes received over the network.
    pub received_bytes: u64,
    /// True if headers report that a cache in front of the site served the response.
    pub is_cache_hit: bool,
    /// Phases of the server, in milliseconds, from `Server-Timing`.
    pub server_phases: Vec<(String, f64)>,
}

impl VisitRequest {
    fn from_response(got: &ScriptedResponse, began: Instant) -> Self {
        let sent = got.started_at + got.connect_time;
        let media_type = got.response_head.header("Content-Type").unwrap_or_default();
        Self {
            url: format_url(&got.url),
            media_type: media_type.split(';').next().unwrap_or_default().trim().to_owned(),
            start_offset: got.started_at.saturating_duration_since(began),
            connect_time: got.connect_time,
            wait_time: got.first_byte_at.saturating_duration_since(sent),
            receive_time: got.ended_at.saturating_duration_since(got.first_byte_at),
            status: got.status,
            failure: got.failure.clone(),
            received_bytes: got.received_bytes,
            is_cache_hit: is_cache_hit_head(&got.response_head),
            server_phases: parse_server_timing(&got.response_head),
        }
    }

    fn elapsed(&self) -> Duration {
        self.connect_time + self.wait_time + self.receive_time
    }

    fn is_ok(&self) -> bool {
        (200..400).contains(&self.status)
    }
}

pub(crate) fn format_url(url: &AbsoluteUrl) -> String {
    let (scheme, default) = if url.is_tls { ("https", 443) } else { ("http", 80) };
    let port = if url.port == default { String::new() } else { format!(":{}", url.port) };
    format!("{scheme}://{}{port}{}", url.host, url.path_and_query)
}

/// Returns true if headers report a cache hit.
pub(crate) fn is_cache_hit_head(head: &TargetResponseHead) -> bool {
    ["X-Cache", "Cache-Status", "X-Cache-Info", "Age"].into_iter().any(|name| {
        head.header_values(name).any(|value| cache_hit_from_header(name, value) == Some(true))
    })
}

/// Returns the phases that the server reports: names and milliseconds.
pub(crate) fn parse_server_timing(head: &TargetResponseHead) -> Vec<(String, f64)> {
    let mut phases = Vec::new();
    for value in head.header_values("Server-Timing") {
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

/// The measurements of one page visit.
#[derive(Debug, Clone)]
struct PageVisit {
    visit_requests: Vec<VisitRequest>,
    /// Number of parts served from the browser's own cache.
    browser_cache_hits: usize,
}

impl PageVisit {
    fn load_time(&self) -> Duration {
        self.visit_requests
            .iter()
            .map(|element| element.start_offset + element.elapsed())
            .max()
            .unwrap_or_default()
    }

    fn is_ok(&self) -> bool {
        !self.visit_requests.is_empty() && self.visit_requests.iter().all(VisitRequest::is_ok)
    }
}

/// The script of one visit.
struct PageVisitScript {
    /// The URL of the page, whose server receives the credentials.
    page_url: AbsoluteUrl,
    headers: Vec<(String, String)>,
    cache: Option<Arc<Mutex<ClientCache>>>,
    requested_urls: HashSet<String>,
    started_at: Option<Instant>,
    redirect_count: usize,
    is_page_loaded: bool,
    visit: Arc<Mutex<PageVisit>>,
}

impl PageVisitScript {
    fn next_requests(&mut self, got: &[ScriptedResponse]) -> Vec<ScriptedRequest> {
        let began = *self.started_at.get_or_insert_with(Instant::now);
        if got.is_empty() {
            let url = self.page_url.clone();
            return self.build_requests(vec![url]);
        }
        let mut requests = Vec::new();
        for got in got {
            self.record_response(got, began);
            requests.extend(self.referenced_urls(got));
        }
        self.build_requests(requests)
    }

    fn record_response(&mut self, got: &ScriptedResponse, began: Instant) {
        let mut visit = self.visit.lock().unwrap_or_else(PoisonError::into_inner);
        visit.visit_requests.push(VisitRequest::from_response(got, began));
        if let Some(cache) = &self.cache {
            let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
            let exchanged = CacheableExchange {
                url: &format_url(&got.url),
                request_headers: &[],
                status: got.status,
                head: &got.response_head,
            };
            cache.record_response(
                &exchanged,
                CacheFreshnessMode::ExplicitHeaders,
                SystemTime::now(),
            );
        }
    }

    /// Returns the URLs that a response makes a browser fetch.
    fn referenced_urls(&mut self, got: &ScriptedResponse) -> Vec<AbsoluteUrl> {
        let location =
            got.response_head.header("Location").filter(|_| (301..=308).contains(&got.status));
        if let Some(location) = location {
            self.redirect_count += 1;
            let next = got.url.join(location).ok();
            return next.into_iter().filter(|_| self.redirect_count <= MAX_REDIRECTS).collect();
        }
        let media_type =
            got.response_head.header("Content-Type").unwrap_or_default().to_ascii_lowercase();
        let text = || decode_text(got.body.clone(), got.response_head.header("Content-Type"));
        let (base, references) = if media_type.contains("html") && !self.is_page_loaded {
            self.is_page_loaded = true;
            let parts = reference::parse_page_references(&text());
            let base = parts.base_href.and_then(|base| got.url.join(&base).ok());
            (base.unwrap_or_else(|| got.url.clone()), parts.references)
        } else if media_type.contains("css") {
            (got.url.clone(), reference::parse_style_references(&text()))
        } else {
            return Vec::new();
        };
        references.iter().filter_map(|reference| base.join(reference).ok()).collect()
    }

    fn headers_for(&self, url: &AbsoluteUrl) -> Vec<(String, String)> {
        let is_home = url.is_same_server(&self.page_url);
        let mut headers = self.headers.clone();
        headers.retain(|(name, _)| is_home || !is_server_specific(name));
        headers
    }

    fn build_requests(&mut self, urls: Vec<AbsoluteUrl>) -> Vec<ScriptedRequest> {
        let mut asks = Vec::new();
        for url in urls {
            let url_text = format_url(&url);
            if self.requested_urls.len() >= MAX_PAGE_PARTS
                || !self.requested_urls.insert(url_text.clone())
            {
                continue;
            }
            let headers = self.headers_for(&url);
            let mut ask = ScriptedRequest::get(url, &headers);
            if let Some(cache) = &self.cache {
                let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                // The page itself is requested again, as by a returning visitor.
                if self.is_page_loaded && cache.is_fresh(&url_text, &[], SystemTime::now()) {
                    self.visit.lock().unwrap_or_else(PoisonError::into_inner).browser_cache_hits +=
                        1;
                    continue;
                }
                ask.headers.extend(cache.conditional_headers(&url_text, &[]));
            }
            if !ask.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Accept-Encoding")) {
                ask.headers.push(("Accept-Encoding".to_owned(), "gzip, deflate".to_owned()));
            }
            asks.push(ask);
        }
        asks
    }
}

fn visit_page(
    url: &AbsoluteUrl,
    visits: &PageVisitOptions,
    cache: Option<&Arc<Mutex<ClientCache>>>,
) -> Result<PageVisit> {
    let visit =
        Arc::new(Mutex::new(PageVisit { visit_requests: Vec::new(), browser_cache_hits: 0 }));
    let mut browser = PageVisitScript {
        page_url: url.clone(),
        headers: visits.headers.clone(),
        cache: cache.cloned(),
        requested_urls: HashSet::new(),
        started_at: None,
        redirect_count: 0,
        is_page_loaded: false,
        visit: Arc::clone(&visit),
    };
    run_fetch_script(MAX_PARALLEL_PER_HOST, move |got| browser.next_requests(&got))?;
    let mut visit = visit.lock().unwrap_or_else(PoisonError::into_inner).clone();
    visit.visit_requests.sort_by_key(|element| element.start_offset);
    Ok(visit)
}

/// Visits every page.
///
/// # Errors
/// `Error::InvalidUrl`, [`Error::UnusableInput`], [`Error::Engine`].
pub fn visit_pages(visits: &PageVisitOptions) -> Result<ReportSheet> {
    if visits.urls.is_empty() || visits.visits_per_page == 0 {
        return Err(Error::UnusableInput("no page is to be visited".to_owned()));
    }
    let urls = visits
        .urls
        .iter()
        .map(|url| AbsoluteUrl::parse(url))
        .collect::<Result<Vec<AbsoluteUrl>, _>>()?;
    let mut results = RunResults::new(SystemTime::now());
    let started = Instant::now();
    let mut all: Vec<(String, Vec<PageVisit>)> = Vec::new();
    for url in &urls {
        let cache = visits.reuses_cache.then(|| Arc::new(Mutex::new(ClientCache::default())));
        let mut of_page = Vec::new();
        for _ in 0..visits.visits_per_page {
            of_page.push(visit_page(url, visits, cache.as_ref())?);
        }
        let mut series = LabelSeries::default();
        // The first visit fills the cache; the goals apply to the returning visitor.
        let judged = usize::from(visits.reuses_cache && of_page.len() > 1);
        for visit in of_page.iter().skip(judged) {
            series.total.response_times.record(visit.load_time());
            series.total.error_count += u64::from(!visit.is_ok());
        }
        results.labels.insert(format_url(url).into(), series);
        all.push((format_url(url), of_page));
    }
    results.elapsed = started.elapsed();
    Ok(build_visit_sheet(visits, &all, &results))
}

fn build_visit_sheet(
    visits: &PageVisitOptions,
    all: &[(String, Vec<PageVisit>)],
    results: &RunResults,
) -> ReportSheet {
    let mut sheet = ReportSheet::new("Pages");
    sheet.judged_goals = judge_goals(&visits.goals, results);
    let mut pages = ReportTable::new(
        "Pages",
        &["page", "visits", "median", "slowest", "requests", "bytes", "from caches", "failed", ""],
    );
    let mut json_entries = Vec::new();
    for (url, of_page) in all {
        let Some(last) = of_page.last() else { continue };
        let failed = last.visit_requests.iter().filter(|element| !element.is_ok()).count();
        let timing = results
            .labels
            .get(url.as_str())
            .map(|series| series.total.response_times.clone())
            .unwrap_or_default();
        let hits = last.visit_requests.iter().filter(|element| element.is_cache_hit).count();
        let (tone, label) = if failed == 0 {
            (ReportTone::Good, "whole")
        } else {
            (ReportTone::Bad, "parts failed")
        };
        pages.add_row(
            tone,
            vec![
                url.clone(),
                of_page.len().to_string(),
                format_response_time(timing.quantile(0.5)),
                format_response_time(timing.max()),
                last.visit_requests.len().to_string(),
                last.visit_requests
                    .iter()
                    .map(|element| element.received_bytes)
                    .sum::<u64>()
                    .to_string(),
                format!(
                    "{hits} of {}, {} cached by the browser",
                    last.visit_requests.len(),
                    last.browser_cache_hits
                ),
                failed.to_string(),
                label.to_owned(),
            ],
        );
        if last.visit_requests.iter().all(|element| element.status == 0) {
            sheet.add_verdict(ReportTone::Doubtful, format!("{url} never responded"));
        } else if failed > 0 {
            let which: Vec<String> = last
                .visit_requests
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
            sheet.add_verdict(
                ReportTone::Bad,
                format!("{url}: {failed} requests failed: {}", which.join(", ")),
            );
        }
        json_entries.push(visits_to_json(url, of_page, last));
    }
    sheet.parts.push(ReportPart::Table(pages));
    for (url, of_page) in all {
        let Some(last) = of_page.last() else { continue };
        sheet.parts.push(ReportPart::Table(request_grid(url, of_page)));
        sheet
            .parts
            .push(ReportPart::Waterfall(last.visit_requests.iter().map(waterfall_bar).collect()));
        if let Some(grid) = server_phase_grid(url, of_page) {
            sheet.parts.push(ReportPart::Table(grid));
        }
    }
    sheet.json_result = json!({ "pages": json_entries });
    sheet
}

fn waterfall_bar(element: &VisitRequest) -> WaterfallBar {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    WaterfallBar {
        request_name: element.url.clone(),
        start_ms: ms(element.start_offset),
        connect_ms: ms(element.connect_time),
        wait_ms: ms(element.wait_time),
        receive_ms: ms(element.receive_time),
        is_failed: !element.is_ok(),
    }
}

/// Returns the averages of every request of a page over its visits.
fn request_grid(url: &str, visits: &[PageVisit]) -> ReportTable {
    let mut sums: Vec<(String, u32, Duration, Duration, VisitRequest)> = Vec::new();
    for element in visits.iter().flat_map(|visit| &visit.visit_requests) {
        match sums.iter_mut().find(|(element_url, ..)| *element_url == element.url) {
            Some((_, count, wait, whole, last)) => {
                *count += 1;
                *wait += element.wait_time;
                *whole += element.elapsed();
                *last = element.clone();
            }
            None => sums.push((
                element.url.clone(),
                1,
                element.wait_time,
                element.elapsed(),
                element.clone(),
            )),
        }
    }
    let mut grid = ReportTable::new(
        &format!("Requests of {url}, on average"),
        &["request", "type", "status", "bytes", "waited", "whole", "cache"],
    );
    for (name, count, wait, whole, last) in sums {
        let tone = if last.is_ok() { ReportTone::Plain } else { ReportTone::Bad };
        let status = last.failure.clone().unwrap_or_else(|| last.status.to_string());
        grid.add_row(
            tone,
            vec![
                name,
                last.media_type.clone(),
                status,
                last.received_bytes.to_string(),
                format_response_time(wait / count),
                format_response_time(whole / count),
                if last.is_cache_hit { "hit" } else { "" }.to_owned(),
            ],
        );
    }
    grid
}

/// Returns the phases that the server reported, averaged per page; `None` if there are none.
fn server_phase_grid(url: &str, visits: &[PageVisit]) -> Option<ReportTable> {
    let mut sums: BTreeMap<(String, String), (f64, u32)> = BTreeMap::new();
    for element in visits.iter().flat_map(|visit| &visit.visit_requests) {
        for (name, millis) in &element.server_phases {
            let sum = sums.entry((element.url.clone(), name.clone())).or_default();
            sum.0 += millis;
            sum.1 += 1;
        }
    }
    let mut grid =
        ReportTable::new(&format!("Inside the server of {url}"), &["request", "phase", "average"]);
    for ((request, phase), (sum, count)) in &sums {
        grid.add_row(
            ReportTone::Plain,
            vec![request.clone(), phase.clone(), format!("{:.2} ms", sum / f64::from(*count))],
        );
    }
    (!sums.is_empty()).then_some(grid)
}

fn visits_to_json(url: &str, visits: &[PageVisit], last: &PageVisit) -> Value {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let elements: Vec<Value> = last
        .visit_requests
        .iter()
        .map(|element| {
            json!({
                "url": element.url, "type": element.media_type, "status": element.status,
                "failure": element.failure, "bytes": element.received_bytes, "start_ms": ms(element.start_offset),
                "connect_ms": ms(element.connect_time), "wait_ms": ms(element.wait_time), "receive_ms": ms(element.receive_time),
                "cache_hit": element.is_cache_hit, "phases": element.server_phases,
            })
        })
        .collect();
    let hits = last.visit_requests.iter().filter(|element| element.is_cache_hit).count();
    json!({
        "url": url,
        "times_ms": visits.iter().map(|visit| ms(visit.load_time())).collect::<Vec<f64>>(),
        "requests": last.visit_requests.len(),
        "browser_cached": last.browser_cache_hits,
        "cached_share": hits as f64 / last.visit_requests.len().max(1) as f64,
        "elements": elements,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(headers: &[(&str, &str)]) -> TargetResponseHead {
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        TargetResponseHead::new("HTTP/1.1", 200, "OK", headers, 0)
    }

    #[test]
    fn server_timing_is_read_with_quotes_and_without() {
        let head = head(&[
            ("Server-Timing", "render;dur=8.5, c0;desc=\"a, b; x2\";dur=4"),
            ("server-timing", "cache"),
        ]);
        let expected = [("render", 8.5), ("a, b; x2", 4.0), ("cache", 0.0)];
        assert_eq!(parse_server_timing(&head), expected.map(|(name, ms)| (name.to_owned(), ms)));
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
            assert_eq!(is_cache_hit_head(&head(&[(name, value)])), expected, "{name}: {value}");
        }
    }
}
