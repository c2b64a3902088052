//! The metrics of the dispatcher.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;
use parking_lot::{Mutex, RwLock};
use tympan_web::listen::ListenerCounters;
use tympan_web::request_histogram::RequestHistogram;

use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::outcome::CacheOutcome;
use crate::flush::heavy_hitter::UrlHeavyHitters;
use crate::flush::propagation::SiblingStatus;
use crate::upstream::RenderStatus;

/// A counter; the index into [`COUNTERS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DispatcherCounter {
    Hits,
    Stale,
    Misses,
    Passes,
    Coalesced,
    Refused,
    Stored,
    StoreFailures,
    RenderFailures,
    Flushes,
    FlushesRefused,
    FilesDeleted,
    FilesMarked,
    Refetches,
    RefetchFailures,
    BytesStored,
    Proxied,
    Includes,
    IncludeFailures,
    RateLimited,
    MemoryHits,
    FastPathHits,
    FastPathRefusals,
    ResponsesAbandoned,
    Revalidated,
    NegativeHits,
    StaleOnError,
    WarmedUp,
    WarmUpFailures,
    SiblingQueries,
    SiblingHits,
    SiblingCopiesServed,
    ShadowMatches,
    ShadowDifferences,
    ShadowFailures,
    ShadowsSkipped,
    FlushesForwarded,
    SiblingFlushes,
    SiblingResets,
    VariantsRefused,
    VariantsReplaced,
    CoalescingFailures,
    CookiesOmitted,
    HeaderVariants,
    WebSockets,
    WebSocketsRefused,
    Resumed,
}

/// All counters with their name and help text.
const COUNTERS: [(DispatcherCounter, &str, &str); 47] = [
    (DispatcherCounter::Hits, "hits", "Requests served from a fresh file; a rise is good."),
    (
        DispatcherCounter::Stale,
        "stale",
        "Requests served from a file that is being replaced; it follows flushes.",
    ),
    (
        DispatcherCounter::Misses,
        "misses",
        "Requests whose page was fetched and stored; a rise without flushes means new URLs.",
    ),
    (
        DispatcherCounter::Passes,
        "passes",
        "Requests forwarded without storing; a rise means that pages are not cacheable.",
    ),
    (
        DispatcherCounter::Coalesced,
        "collapsed",
        "Requests that waited for another request's fetch; a rise means that concurrent requests for one page \
         were coalesced.",
    ),
    (
        DispatcherCounter::Refused,
        "refused",
        "Requests refused by a filter or for their path; a rise may be an attack.",
    ),
    (DispatcherCounter::Stored, "stored", "Files put into the cache."),
    (
        DispatcherCounter::StoreFailures,
        "store_failures",
        "Pages that could not be stored; a rise means a full or read-only disk.",
    ),
    (
        DispatcherCounter::RenderFailures,
        "render_failures",
        "Requests that no render answered; a rise means that renders are down or slow.",
    ),
    (DispatcherCounter::Flushes, "flushes", "Flushes obeyed."),
    (
        DispatcherCounter::FlushesRefused,
        "flushes_refused",
        "Flushes from addresses that may not flush; check /allowedClients.",
    ),
    (DispatcherCounter::FilesDeleted, "files_deleted", "Files and folders that flushes removed."),
    (DispatcherCounter::FilesMarked, "files_invalidated", "Files that flushes marked as stale."),
    (
        DispatcherCounter::Refetches,
        "refetches",
        "Flushed files that were fetched again in the background.",
    ),
    (
        DispatcherCounter::RefetchFailures,
        "refetch_failures",
        "Background fetches given up; visitors fetch these pages instead.",
    ),
    (
        DispatcherCounter::BytesStored,
        "stored_bytes",
        "Bytes of response bodies put into the cache.",
    ),
    (
        DispatcherCounter::Proxied,
        "proxied",
        "Requests that a rule of `tympan.toml` proxied to another server; they are never cached.",
    ),
    (
        DispatcherCounter::Includes,
        "includes",
        "Parts that were included in pages for their visitors.",
    ),
    (
        DispatcherCounter::IncludeFailures,
        "include_failures",
        "Parts that could not be fetched; a rise means that renders fail, or that the filter refuses a part.",
    ),
    (
        DispatcherCounter::RateLimited,
        "rate_limited",
        "Requests refused with 429, as their client exceeded the rate limit; a rise may be an attack, or a \
         proxy that many share.",
    ),
    (
        DispatcherCounter::MemoryHits,
        "memory_hits",
        "Hits that were answered from memory, without file access; a rise is good.",
    ),
    (
        DispatcherCounter::FastPathHits,
        "fast_path_hits",
        "Memory hits that bypassed the HTTP server; few mean unusual headers or methods.",
    ),
    (
        DispatcherCounter::FastPathRefusals,
        "fast_path_refusals",
        "Connections for which the kernel refused to notify the fast path; the HTTP server handled them. A \
         rise means a limit of the kernel, such as `fs.epoll.max_user_watches`.",
    ),
    (
        DispatcherCounter::ResponsesAbandoned,
        "responses_abandoned",
        "Responses of the fast path that their clients read too slowly or not at all; many mean malicious \
         clients, or an unreliable network.",
    ),
    (
        DispatcherCounter::Revalidated,
        "revalidated",
        "Copies that their render confirmed with 304 (`/x-revalidate`); a rise saves load on the network and \
         the render.",
    ),
    (
        DispatcherCounter::NegativeHits,
        "negative_hits",
        "Requests answered with a cached error (`/x-negativeTTL`); a rise means links to pages that are \
         missing, or that fail.",
    ),
    (
        DispatcherCounter::StaleOnError,
        "stale_on_error",
        "Stale pages served in place of a failing render's response; check the renders.",
    ),
    (
        DispatcherCounter::WarmedUp,
        "warmed_up",
        "Pages that were fetched at the start (`[dispatcher.warm_up]`).",
    ),
    (
        DispatcherCounter::WarmUpFailures,
        "warm_up_failures",
        "Pages that could not be fetched at the start; visitors fetch them instead.",
    ),
    (
        DispatcherCounter::SiblingQueries,
        "sibling_queries",
        "Missing pages that siblings were asked for (`/x-siblings`).",
    ),
    (
        DispatcherCounter::SiblingHits,
        "sibling_hits",
        "Pages that a sibling had, so that no render was needed; few of those requested mean that siblings \
         are cold, too.",
    ),
    (
        DispatcherCounter::SiblingCopiesServed,
        "sibling_copies_served",
        "Cached copies sent to siblings.",
    ),
    (
        DispatcherCounter::ShadowMatches,
        "shadow_matches",
        "Pages for which a shadow (`/x-shadow`) gave the same response as the render.",
    ),
    (
        DispatcherCounter::ShadowDifferences,
        "shadow_differences",
        "Pages for which a shadow gave a different response; the log says which, and what differs.",
    ),
    (
        DispatcherCounter::ShadowFailures,
        "shadow_failures",
        "Pages for which a shadow gave no response.",
    ),
    (
        DispatcherCounter::ShadowsSkipped,
        "shadow_skipped",
        "Pages of the share that were not compared, as the shadow is too slow.",
    ),
    (
        DispatcherCounter::FlushesForwarded,
        "flushes_forwarded",
        "Flushes that siblings have received and applied (`/x-passFlushes`), counted per sibling.",
    ),
    (
        DispatcherCounter::SiblingFlushes,
        "sibling_flushes",
        "Flushes of siblings that were applied.",
    ),
    (
        DispatcherCounter::SiblingResets,
        "sibling_resets",
        "How often a whole document root was treated as stale, as it was unknown which flushes of a sibling \
         it had missed; it follows siblings that were down for long, or that lost their document root.",
    ),
    (
        DispatcherCounter::VariantsRefused,
        "variants_refused",
        "Requests refused with 429, as too many variants of a page were requested (`/x-variantLimit`); a rise \
         may be an attack on the cache, or a page whose parameters belong in `/ignoreUrlParams` or \
         `/x-cacheKeyParams`.",
    ),
    (
        DispatcherCounter::VariantsReplaced,
        "variants_replaced",
        "Such requests that got the page without its query (`/over \"plain\"`).",
    ),
    (
        DispatcherCounter::CoalescingFailures,
        "collapse_timeouts",
        "Requests that waited for another request's fetch and were answered with 503, as it took too long; \
         check the renders.",
    ),
    (
        DispatcherCounter::CookiesOmitted,
        "cookies_omitted",
        "Pages that were stored without the cookies that their render set; let the render forbid caching of \
         those that are for one visitor.",
    ),
    (
        DispatcherCounter::HeaderVariants,
        "header_variants",
        "Pages that were stored for visitors with the same values of the request headers that their `Vary` names; if \
         it rises as fast as the misses, each visitor has values of their own, and the farm should not pass that \
         header on (`/clientheaders`).",
    ),
    (
        DispatcherCounter::WebSockets,
        "websockets",
        "WebSockets opened to servers behind proxy rules.",
    ),
    (
        DispatcherCounter::WebSocketsRefused,
        "websockets_refused",
        "WebSockets refused with 503; raise `max_websockets` if visitors need more at once.",
    ),
    (
        DispatcherCounter::Resumed,
        "resumed",
        "Responses of renders that broke off and whose rest was requested; a rise means unstable renders.",
    ),
];

/// The counters of a dispatcher.
#[derive(Debug)]
pub(crate) struct DispatcherMetrics {
    values: [AtomicU64; COUNTERS.len()],
    in_flight: AtomicU64,
}

impl Default for DispatcherMetrics {
    fn default() -> Self {
        Self { values: std::array::from_fn(|_| AtomicU64::new(0)), in_flight: AtomicU64::new(0) }
    }
}

/// Counts a request as in flight until it is dropped.
pub(crate) struct InFlightGuard<'a>(&'a AtomicU64);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DispatcherMetrics {
    pub(crate) fn increment(&self, counter: DispatcherCounter) {
        self.add(counter, 1);
    }

    pub(crate) fn add(&self, counter: DispatcherCounter, by: u64) {
        if let Some(value) = self.values.get(counter as usize) {
            value.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Counts a request as in flight.
    pub(crate) fn begin_request(&self) -> InFlightGuard<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(&self.in_flight)
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn value(&self, counter: DispatcherCounter) -> u64 {
        self.values.get(counter as usize).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Returns the percentage of requests served without a request to a render.
    pub(crate) fn hit_ratio(&self) -> f64 {
        let served = self.value(DispatcherCounter::Hits) + self.value(DispatcherCounter::Stale);
        let request_count =
            served + self.value(DispatcherCounter::Misses) + self.value(DispatcherCounter::Passes);
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more than 52 bits")]
        let ratio = served as f64 * 100.0 / request_count.max(1) as f64;
        ratio
    }

    /// Returns all counters, and `gauges`, in Prometheus' text format.
    pub(crate) fn to_text(&self, gauges: &[(&str, &str, u64)]) -> String {
        let mut text = String::new();
        let mut write = |name: &str, help: &str, kind: &str, value: u64| {
            let name = format!("tympan_dispatcher_{name}");
            // Writing to a string cannot fail.
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}").ok();
        };
        for (counter, name, help) in COUNTERS {
            write(&format!("{name}_total"), help, "counter", self.value(counter));
        }
        for (name, help, value) in gauges {
            write(name, help, "gauge", *value);
        }
        text
    }
}

/// The cache outcomes of the requests of one farm.
#[derive(Debug, Default)]
pub(crate) struct FarmMetrics {
    outcomes: [AtomicU64; OUTCOME_NAMES.len()],
    reasons: [AtomicU64; NotCacheableReason::ALL.len()],
    /// The prefixes that are counted separately.
    prefixes: RwLock<BTreeMap<String, Arc<PrefixCounter>>>,
    /// All other prefixes together.
    other_prefixes: Arc<PrefixCounter>,
    /// The warnings already given.
    warned_patterns: Mutex<BTreeSet<(&'static str, String)>>,
    pub(crate) heavy_hitters: UrlHeavyHitters,
    pub(crate) request_histogram: RequestHistogram,
}

/// The outcomes by name, in the order of [`outcome_index`].
pub(crate) const OUTCOME_NAMES: [&str; 4] = ["hit", "stale", "miss", "pass"];

/// The request counts below one prefix.
#[derive(Debug, Default)]
pub(crate) struct PrefixCounter {
    all_requests: AtomicU64,
    from_cache: AtomicU64,
    /// True if the prefix lost its place to another one; it is then looked up again at each request.
    is_displaced: AtomicBool,
}

impl PrefixCounter {
    fn add(&self, all_requests: u64, from_cache: u64) {
        self.all_requests.fetch_add(all_requests, Ordering::Relaxed);
        self.from_cache.fetch_add(from_cache, Ordering::Relaxed);
    }
}

/// The maximum number of prefixes counted separately; requests below others are counted together.
const MAX_PREFIXES: usize = 100;

/// The name for all prefixes that are not counted separately.
const OTHER_PREFIXES: &str = "(other)";

/// The maximum number of warnings remembered; no more are given.
const MAX_WARNINGS: usize = 100;

/// The cache hit ratio of pages below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrefixRatio {
    pub(crate) prefix: String,
    pub(crate) requests: u64,
    pub(crate) from_cache: u64,
}

impl FarmMetrics {
    /// Counts a request for `path` and its outcome. A prefix is counted separately once a request below it succeeds, so
    /// made-up paths do not use up [`MAX_PREFIXES`].
    pub(crate) fn count_request(&self, path: &str, outcome: CacheOutcome, status: StatusCode) {
        let index = outcome_index(outcome);
        if let Some(counter) = index.and_then(|index| self.outcomes.get(index)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let CacheOutcome::Pass(reason) | CacheOutcome::Refused(reason) = outcome
            && let Some(counter) = self.reasons.get(reason as usize)
        {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if index.is_none() {
            return;
        }
        let served = match status.is_success() {
            true => self.prefix_counter(path),
            false => self.known_prefix_counter(path),
        };
        self.record_request(&served, path, outcome);
    }

    /// Counts a request for `path` with the result of [`FarmMetrics::prefix_counter`] for it.
    pub(crate) fn count_request_with(
        &self,
        served: &PrefixCounter,
        path: &str,
        outcome: CacheOutcome,
    ) {
        if let Some(counter) = outcome_index(outcome).and_then(|index| self.outcomes.get(index)) {
            counter.fetch_add(1, Ordering::Relaxed);
            self.record_request(served, path, outcome);
        }
    }

    fn record_request(&self, served: &PrefixCounter, path: &str, outcome: CacheOutcome) {
        self.heavy_hitters.count_request(path);
        let is_from_cache =
            matches!(outcome, CacheOutcome::Hit | CacheOutcome::NegativeHit | CacheOutcome::Stale);
        // A response in memory keeps the counter that it was stored with.
        match served.is_displaced.load(Ordering::Relaxed) {
            true => self.known_prefix_counter(path).add(1, u64::from(is_from_cache)),
            false => served.add(1, u64::from(is_from_cache)),
        }
    }

    /// Returns the counter for the prefix of `path`, a new one if there is none yet. If there is no place for it, it takes
    /// that of the prefix with the fewest requests, which are then counted among the others. Made-up paths therefore
    /// displace each other, and not the folders of the site.
    pub(crate) fn prefix_counter(&self, path: &str) -> Arc<PrefixCounter> {
        let prefix = path_prefix(path);
        if let Some(served) = self.prefixes.read().get(prefix) {
            return Arc::clone(served);
        }
        let mut prefixes = self.prefixes.write();
        if prefixes.len() >= MAX_PREFIXES && !prefixes.contains_key(prefix) {
            let requests = |served: &PrefixCounter| served.all_requests.load(Ordering::Relaxed);
            let least = prefixes.iter().min_by_key(|(_, served)| requests(served));
            let least = least.map(|(prefix, _)| prefix.clone());
            if let Some(displaced) = least.and_then(|prefix| prefixes.remove(&prefix)) {
                displaced.is_displaced.store(true, Ordering::Relaxed);
                let from_cache = displaced.from_cache.load(Ordering::Relaxed);
                self.other_prefixes.add(requests(&displaced), from_cache);
            }
        }
        Arc::clone(prefixes.entry(prefix.to_owned()).or_default())
    }

    /// Returns the counter for the prefix of `path` if it is counted separately, else that for all others.
    fn known_prefix_counter(&self, path: &str) -> Arc<PrefixCounter> {
        let prefixes = self.prefixes.read();
        Arc::clone(prefixes.get(path_prefix(path)).unwrap_or(&self.other_prefixes))
    }

    /// Returns the URL pattern of `path` if no warning `kind` was given for it yet; `None` otherwise.
    pub(crate) fn first_warning(&self, kind: &'static str, path: &str) -> Option<String> {
        let name = path.split('/').find(|name| has_extension(name)).unwrap_or_default();
        let extension = name.rfind('.').and_then(|at| name.get(at..)).unwrap_or_default();
        let pattern = format!("{}/*{extension}", path_prefix(path).trim_end_matches('/'));
        let mut warned = self.warned_patterns.lock();
        let is_new = warned.len() < MAX_WARNINGS && warned.insert((kind, pattern.clone()));
        is_new.then_some(pattern)
    }

    /// Returns the counts of cache outcomes, in the order of [`OUTCOME_NAMES`].
    pub(crate) fn outcome_counts(&self) -> [u64; OUTCOME_NAMES.len()] {
        self.outcomes.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Returns the reasons why responses were not stored, with their counts, the most frequent first.
    pub(crate) fn pass_reason_counts(&self) -> Vec<(NotCacheableReason, u64)> {
        let counts = self.reasons.iter().map(|counter| counter.load(Ordering::Relaxed));
        let mut reasons: Vec<(NotCacheableReason, u64)> = NotCacheableReason::ALL
            .into_iter()
            .zip(counts)
            .filter(|(_, count)| *count > 0)
            .collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        reasons
    }

    /// Returns the prefixes, the one with the most requests first.
    pub(crate) fn prefix_ratios(&self) -> Vec<PrefixRatio> {
        let ratio = |(prefix, served): (&str, &Arc<PrefixCounter>)| PrefixRatio {
            prefix: prefix.to_owned(),
            requests: served.all_requests.load(Ordering::Relaxed),
            from_cache: served.from_cache.load(Ordering::Relaxed),
        };
        let prefixes = self.prefixes.read();
        let separate = prefixes.iter().map(|(prefix, served)| (prefix.as_str(), served));
        let all = separate.chain([(OTHER_PREFIXES, &self.other_prefixes)]).map(ratio);
        let mut prefixes: Vec<PrefixRatio> = all.filter(|prefix| prefix.requests > 0).collect();
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.requests));
        prefixes
    }

    /// Writes the farm's counters in Prometheus' text format, without their heads.
    fn write_metrics(&self, farm: &str, texts: &mut [String; 3]) {
        let farm = escape_label(farm);
        let [outcomes, reasons, prefixes] = texts;
        for (name, count) in OUTCOME_NAMES.iter().zip(self.outcome_counts()) {
            write_metric_line(
                outcomes,
                "requests_total",
                &format!("farm=\"{farm}\",cache=\"{name}\""),
                count,
            );
        }
        for (reason, count) in self.pass_reason_counts() {
            let labels = format!("farm=\"{farm}\",reason=\"{reason:?}\"");
            write_metric_line(reasons, "not_cached_total", &labels, count);
        }
        for prefix in self.prefix_ratios() {
            let path = escape_label(&prefix.prefix);
            for (kind, count) in [("all", prefix.requests), ("cache", prefix.from_cache)] {
                let labels = format!("farm=\"{farm}\",prefix=\"{path}\",from=\"{kind}\"");
                write_metric_line(prefixes, "prefix_requests_total", &labels, count);
            }
        }
    }
}

/// Returns the counters of all farms in Prometheus' text format.
pub(crate) fn farms_to_text<'a>(farms: impl Iterator<Item = (&'a str, &'a FarmMetrics)>) -> String {
    let mut texts: [String; 3] = [
        counter_header("requests_total", "Requests to the cache of a farm, by outcome."),
        counter_header(
            "not_cached_total",
            "Responses that were not stored, by reason; fix the most frequent one.",
        ),
        counter_header(
            "prefix_requests_total",
            "Requests below a prefix: all, and those served from the cache.",
        ),
    ];
    let mut times = String::new();
    let about = "Time until the response head, by method and class of status.";
    RequestHistogram::write_metric_head(
        &mut times,
        "tympan_dispatcher_request_duration_seconds",
        about,
    );
    for (name, farm_metrics) in farms {
        farm_metrics.write_metrics(name, &mut texts);
        let labels = format!("farm=\"{}\"", escape_label(name));
        farm_metrics.request_histogram.write_metric(
            &mut times,
            "tympan_dispatcher_request_duration_seconds",
            &labels,
        );
    }
    texts.concat() + &times
}

/// Returns the metrics of renders in Prometheus' text format.
pub(crate) fn renders_to_text<'a>(
    farms: impl Iterator<Item = (&'a str, Vec<RenderStatus>)>,
) -> String {
    let mut requests =
        counter_header("render_requests_total", "Requests to a render: answered and failed ones.");
    let mut sticky = counter_header(
        "render_sticky_requests_total",
        "Requests that a render answered since the visitor's cookie names it; a large share of its requests means that the \
         load cannot be balanced.",
    );
    let mut gauges = [
        gauge_header("render_in_flight", "Requests in flight at a render."),
        gauge_header(
            "render_up",
            "1 if a render is in use, 0 if it is excluded for a while; check its log then.",
        ),
        gauge_header(
            "render_score_seconds",
            "The score of a render in seconds; the render with the lowest score is used \
            first.",
        ),
    ];
    for (farm, renders) in farms {
        for render in renders {
            let labels = format!(
                "farm=\"{}\",render=\"{}\"",
                escape_label(farm),
                escape_label(&render.name)
            );
            for (outcome, count) in
                [("answered", render.answered_count), ("failed", render.failed_count)]
            {
                let labels = format!("{labels},outcome=\"{outcome}\"");
                write_metric_line(&mut requests, "render_requests_total", &labels, count);
            }
            write_metric_line(
                &mut sticky,
                "render_sticky_requests_total",
                &labels,
                render.sticky_count,
            );
            let [in_flight, up, score] = &mut gauges;
            let is_up = !matches!(render.availability, "out" | "ill");
            write_metric_line(in_flight, "render_in_flight", &labels, render.in_flight.into());
            write_metric_line(up, "render_up", &labels, is_up.into());
            writeln!(
                score,
                "tympan_dispatcher_render_score_seconds{{{labels}}} {:.6}",
                render.score / 1000.0
            )
            .ok();
        }
    }
    requests + &sticky + &gauges.concat()
}

/// Returns the status of the siblings that receive flushes; empty if no farm has any.
pub(crate) fn siblings_to_text<'a>(
    farms: impl Iterator<Item = (&'a str, Vec<SiblingStatus>)>,
) -> String {
    let mut reached = gauge_header(
        "sibling_up",
        "1 if a sibling accepts flushes, 0 if it is unreachable or refuses them; check the logs of both then.",
    );
    let mut behind = gauge_header(
        "sibling_pending_flushes",
        "Flushes that a sibling has not applied yet; a rise means that it is unreachable.",
    );
    let mut is_empty = true;
    for (farm, siblings) in farms {
        for sibling in siblings {
            is_empty = false;
            let labels = format!(
                "farm=\"{}\",sibling=\"{}\"",
                escape_label(farm),
                escape_label(&sibling.name)
            );
            write_metric_line(&mut reached, "sibling_up", &labels, sibling.is_reached.into());
            write_metric_line(
                &mut behind,
                "sibling_pending_flushes",
                &labels,
                sibling.pending_events,
            );
        }
    }
    if is_empty { String::new() } else { reached + &behind }
}

/// Writes the counters of listeners.
pub(crate) fn connections_to_text(text: &mut String, listeners: &[Arc<ListenerCounters>]) {
    let sum = |count: fn(&ListenerCounters) -> &AtomicU64| -> u64 {
        listeners.iter().map(|listener| count(listener).load(Ordering::Relaxed)).sum()
    };
    let counters = [
        ("connections_total", "Connections accepted.", sum(|counters| &counters.accepted)),
        (
            "connections_failed_total",
            "Connections that ended with an error: slow request heads, malformed input, peers that do not \
             read, floods.",
            sum(|counters| &counters.failed),
        ),
        (
            "connections_over_client_limit_total",
            "Connections closed because their client had too many.",
            sum(|counters| &counters.per_client_refused),
        ),
        (
            "connections_saturated_total",
            "Connections that arrived while the connection limit was reached; raise `max_connections` if it \
             repeats.",
            sum(|counters| &counters.saturated),
        ),
        (
            "connections_evicted_total",
            "Idle connections closed because others waited; raise `max_connections`.",
            sum(|counters| &counters.evicted),
        ),
        (
            "connections_released_total",
            "Connections closed after a response because the connection limit was nearly reached; raise \
             `max_connections`.",
            sum(|counters| &counters.closed_when_scarce),
        ),
        (
            "bodies_refused_total",
            "Requests refused because of the declared size of their body.",
            sum(|counters| &counters.bodies_refused),
        ),
    ];
    for (name, help, value) in counters {
        text.push_str(&counter_header(name, help));
        writeln!(text, "tympan_dispatcher_{name} {value}").ok();
    }
    text.push_str(&gauge_header("connections", "Connections open now."));
    writeln!(text, "tympan_dispatcher_connections {}", sum(|counters| &counters.open)).ok();
}

fn counter_header(name: &str, help: &str) -> String {
    format!("# HELP tympan_dispatcher_{name} {help}\n# TYPE tympan_dispatcher_{name} counter\n")
}

fn gauge_header(name: &str, help: &str) -> String {
    format!("# HELP tympan_dispatcher_{name} {help}\n# TYPE tympan_dispatcher_{name} gauge\n")
}

fn write_metric_line(text: &mut String, name: &str, labels: &str, value: u64) {
    // Writing to a string cannot fail.
    writeln!(text, "tympan_dispatcher_{name}{{{labels}}} {value}").ok();
}

/// Escapes the special characters of a label value.
fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace(|char: char| char.is_control(), "?")
}

fn outcome_index(outcome: CacheOutcome) -> Option<usize> {
    match outcome {
        CacheOutcome::Bypassed | CacheOutcome::Refused(_) => None,
        CacheOutcome::Hit | CacheOutcome::NegativeHit => Some(0),
        CacheOutcome::Stale => Some(1),
        CacheOutcome::Miss { .. } => Some(2),
        CacheOutcome::Pass(_) => Some(3),
    }
}

/// The folder under which renders serve client libraries. Other names with a dot are those of resources.
const CLIENT_LIBRARY_FOLDER: &str = "etc.clientlibs";

/// Returns true if a name consists of a resource's name, an extension, and possibly selectors. What follows it in a path
/// is a suffix.
fn has_extension(name: &str) -> bool {
    name.find('.').is_some_and(|at| at > 0) && name != CLIENT_LIBRARY_FOLDER
}

/// Returns the first two folders of a path. Selectors, extensions and suffixes, which visitors can make up, are no part of
/// it.
fn path_prefix(path: &str) -> &str {
    let mut names = path.split_inclusive('/');
    let mut folders_end = 0;
    for name in names.by_ref().take_while(|name| !has_extension(name.trim_end_matches('/'))) {
        folders_end += name.len();
    }
    let path = path.get(..folders_end).unwrap_or(path);
    let mut slashes = path.match_indices('/').skip(1).map(|(at, _)| at);
    let end = match (slashes.next(), slashes.next()) {
        (_, Some(second)) => second,
        (Some(first), None) => first,
        (None, None) => return "/",
    };
    path.get(..end).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::{
        COUNTERS, DispatcherCounter, DispatcherMetrics, FarmMetrics, MAX_PREFIXES, farms_to_text,
        path_prefix,
    };
    use crate::cache::not_cacheable_reason::NotCacheableReason;
    use crate::cache::outcome::CacheOutcome;

    #[test]
    fn prefixes_are_two_folders_and_bounded() {
        for (path, expected) in [
            ("/", "/"),
            ("/a.html", "/"),
            ("/content/a.html", "/content"),
            ("/content/site/en.html", "/content/site"),
            ("/content/site/en/a.html", "/content/site"),
            ("/content/site.made.up.html", "/content"),
            ("/content/site.made.up.html/a/suffix", "/content"),
            ("/content.made.up.html/a/suffix", "/"),
            ("/content.html/a/suffix/x", "/"),
            ("/content/.hidden/a", "/content/.hidden"),
            ("/etc.clientlibs/site/main.css", "/etc.clientlibs/site"),
        ] {
            assert_eq!(path_prefix(path), expected, "{path}");
        }
        let farm_metrics = FarmMetrics::default();
        for number in 0..MAX_PREFIXES * 2 {
            let path = format!("/p{number}/x/y");
            farm_metrics.count_request(&path, CacheOutcome::Hit, StatusCode::OK);
        }
        let prefixes = farm_metrics.prefix_ratios();
        assert_eq!(prefixes.len(), MAX_PREFIXES + 1);
        assert_eq!((prefixes[0].prefix.as_str(), prefixes[0].requests), ("(other)", 100));
        assert_eq!(prefixes.iter().map(|prefix| prefix.requests).sum::<u64>(), 200);
    }

    #[test]
    fn made_up_paths_do_not_displace_the_folders_of_the_site() {
        let farm_metrics = FarmMetrics::default();
        let served = |path: &str| {
            farm_metrics.count_request(path, CacheOutcome::Hit, StatusCode::OK);
        };
        for number in 0..MAX_PREFIXES * 3 {
            served(&format!("/made{number}/up/page.html"));
        }
        let stored = farm_metrics.prefix_counter("/content/site/en.html");
        for path in ["/content/site/en.html", "/content/site.html"] {
            served(path);
            served(path);
        }
        for number in 0..MAX_PREFIXES * 3 {
            served(&format!("/content/site{number}.x{number}.html/suffix"));
            served(&format!("/more{number}/up/page.html"));
        }
        let requests = |prefix: &str| {
            let prefixes = farm_metrics.prefix_ratios().into_iter();
            prefixes.filter(|ratio| ratio.prefix == prefix).map(|ratio| ratio.requests).sum::<u64>()
        };
        assert_eq!(requests("/content/site"), 2);
        assert_eq!(requests("/content"), 2 + 300);
        let all: u64 = farm_metrics.prefix_ratios().iter().map(|ratio| ratio.requests).sum();
        assert_eq!(all, 4 + 3 * 300);
        // The counter that a stored response keeps is followed after it lost its place.
        for number in 0..MAX_PREFIXES {
            (0..3).for_each(|_| served(&format!("/popular{number}/up/page.html")));
        }
        assert_eq!(requests("/content/site"), 0);
        let others = requests("(other)");
        farm_metrics.count_request_with(&stored, "/content/site/en.html", CacheOutcome::Hit);
        assert_eq!(requests("(other)"), others + 1);
        served("/content/site/en.html");
        farm_metrics.count_request_with(&stored, "/content/site/en.html", CacheOutcome::Hit);
        assert_eq!(requests("/content/site"), 2);
    }

    #[test]
    fn requests_that_fail_use_up_no_prefixes() {
        let farm_metrics = FarmMetrics::default();
        let pass = CacheOutcome::Pass(NotCacheableReason::Status);
        for number in 0..MAX_PREFIXES * 2 {
            farm_metrics.count_request(&format!("/p{number}/x/y"), pass, StatusCode::NOT_FOUND);
        }
        for status in [StatusCode::OK, StatusCode::NOT_FOUND] {
            farm_metrics.count_request("/content/site/a", CacheOutcome::Hit, status);
        }
        let prefixes = farm_metrics.prefix_ratios().into_iter();
        let counts: Vec<_> = prefixes.map(|ratio| (ratio.prefix, ratio.requests)).collect();
        assert_eq!(counts, [("(other)".to_owned(), 200), ("/content/site".to_owned(), 2)]);
    }

    #[test]
    fn a_warning_is_given_once_for_each_pattern_of_urls() {
        let farm_metrics = FarmMetrics::default();
        for (kind, path, expected) in [
            ("vary", "/content/site/en.html", Some("/content/site/*.html")),
            ("vary", "/content/site/en/a.print.html", None),
            ("vary", "/content/site/en/a.json", Some("/content/site/*.json")),
            ("cookie", "/content/site/en.html", Some("/content/site/*.html")),
            ("cookie", "/a", Some("/*")),
            ("cookie", "/content/b.html/c.x", Some("/content/*.html")),
        ] {
            assert_eq!(
                farm_metrics.first_warning(kind, path).as_deref(),
                expected,
                "{kind} {path}"
            );
        }
        let warnings =
            (0..1000).filter(|at| farm_metrics.first_warning("x", &format!("/{at}/a/b")).is_some());
        assert_eq!(warnings.count(), super::MAX_WARNINGS - 5);
    }

    #[test]
    fn reasons_are_counted_by_name() {
        for (index, reason) in NotCacheableReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index, "{reason:?}");
        }
        let (farm_metrics, pass) = (FarmMetrics::default(), CacheOutcome::Pass);
        farm_metrics.count_request("/a\"b/c/d", pass(NotCacheableReason::Query), StatusCode::OK);
        farm_metrics.count_request("/a/c/d", pass(NotCacheableReason::Rules), StatusCode::OK);
        farm_metrics.count_request("/a/c/d", pass(NotCacheableReason::Rules), StatusCode::OK);
        assert_eq!(
            farm_metrics.pass_reason_counts(),
            [(NotCacheableReason::Rules, 2), (NotCacheableReason::Query, 1)]
        );
        let text = farms_to_text([("site", &farm_metrics)].into_iter());
        for expected in [
            "\ntympan_dispatcher_requests_total{farm=\"site\",cache=\"pass\"} 3\n",
            "\ntympan_dispatcher_not_cached_total{farm=\"site\",reason=\"Rules\"} 2\n",
            "prefix=\"/a\\\"b/c\",from=\"all\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    #[test]
    fn every_counter_stands_at_its_own_place() {
        for (index, (counter, name, _)) in COUNTERS.iter().enumerate() {
            assert_eq!(*counter as usize, index, "{name}");
        }
    }

    #[test]
    fn text_and_ratio() {
        let metrics = DispatcherMetrics::default();
        metrics.add(DispatcherCounter::Hits, 3);
        metrics.increment(DispatcherCounter::Misses);
        assert!((metrics.hit_ratio() - 75.0).abs() < 1e-9);
        let text = metrics.to_text(&[("queue", "Waiting.", 7)]);
        assert!(text.contains("\ntympan_dispatcher_hits_total 3\n"), "{text}");
        assert!(
            text.ends_with("# TYPE tympan_dispatcher_queue gauge\ntympan_dispatcher_queue 7\n")
        );
    }
}
