//! What the dispatcher counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tympan_web::listen::Counters;
use tympan_web::request_histogram::RequestHistogram;

use crate::answer::Outcome;
use crate::cacheable::Reason;
use crate::gossip::SiblingStatus;
use crate::top::Top;
use crate::upstream::RenderStatus;

/// A counter; the index into [`COUNTERS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    Hits,
    Stale,
    Misses,
    Passes,
    Collapsed,
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
    KeptHits,
    LaneHits,
    LaneRefusals,
    AnswersGivenUp,
    Renewed,
    NegativeHits,
    StaleOnError,
    WarmedUp,
    WarmUpFailures,
    SiblingsAsked,
    SiblingFills,
    SiblingsServed,
    ShadowsSame,
    ShadowsDifferent,
    ShadowFailures,
    ShadowsSkipped,
    FlushesPassed,
    FlushesHeard,
    SiblingResets,
    VariantsRefused,
    VariantsReplaced,
    CollapsedInVain,
    CookiesLeftOut,
    VariesLeftOut,
}

/// Every counter: name and what a rise means.
pub(crate) const COUNTERS: [(Counter, &str, &str); 44] = [
    (Counter::Hits, "hits", "Requests served from a fresh file; a rise is good."),
    (
        Counter::Stale,
        "stale",
        "Requests served from a file that is being replaced; it follows flushes.",
    ),
    (
        Counter::Misses,
        "misses",
        "Requests whose page was fetched and stored; a rise without flushes means new URLs.",
    ),
    (
        Counter::Passes,
        "passes",
        "Requests forwarded without storing; a rise means that pages are not cacheable.",
    ),
    (
        Counter::Collapsed,
        "collapsed",
        "Requests that waited for another one's fetch; a rise means a herd that was held off.",
    ),
    (
        Counter::Refused,
        "refused",
        "Requests refused by a filter or for their path; a rise may be an attack.",
    ),
    (Counter::Stored, "stored", "Files put into the cache."),
    (
        Counter::StoreFailures,
        "store_failures",
        "Pages that could not be stored; a rise means a full or read-only disk.",
    ),
    (
        Counter::RenderFailures,
        "render_failures",
        "Requests that no render answered; a rise means that renders are down or slow.",
    ),
    (Counter::Flushes, "flushes", "Flushes obeyed."),
    (
        Counter::FlushesRefused,
        "flushes_refused",
        "Flushes from addresses that may not flush; check /allowedClients.",
    ),
    (Counter::FilesDeleted, "files_deleted", "Files and folders that flushes removed."),
    (Counter::FilesMarked, "files_marked", "Files that flushes marked as stale."),
    (Counter::Refetches, "refetches", "Flushed files that were fetched again in the background."),
    (
        Counter::RefetchFailures,
        "refetch_failures",
        "Background fetches given up; visitors fetch these pages instead.",
    ),
    (Counter::BytesStored, "bytes_stored", "Bytes of bodies put into the cache."),
    (
        Counter::Proxied,
        "proxied",
        "Requests that a rule of `tympan.toml` let another server answer; they are never cached.",
    ),
    (Counter::Includes, "includes", "Parts that were filled into pages for their visitors."),
    (
        Counter::IncludeFailures,
        "include_failures",
        "Parts that could not be had; a rise means that renders fail, or that the filter refuses a part.",
    ),
    (
        Counter::RateLimited,
        "rate_limited",
        "Requests refused with 429, as their client asked too much; a rise may be an attack, or a proxy that many share.",
    ),
    (
        Counter::KeptHits,
        "kept_hits",
        "Hits that were answered from memory, without looking at files; a rise is good.",
    ),
    (
        Counter::LaneHits,
        "lane_hits",
        "Those of them that needed no HTTP server either; few mean odd headers or methods.",
    ),
    (
        Counter::LaneRefusals,
        "lane_refusals",
        "Connections that the kernel would not let the lane for kept answers wait for; the HTTP server took them. A rise \
         means a limit of the kernel, such as `fs.epoll.max_user_watches`.",
    ),
    (
        Counter::AnswersGivenUp,
        "answers_given_up",
        "Answers of the lane that their clients took too slowly or not at all; many mean clients that mean no good, or a \
         network that loses them.",
    ),
    (
        Counter::Renewed,
        "renewed",
        "Copies that their render confirmed with 304 (`/x-revalidate`); a rise spares the network and the render.",
    ),
    (
        Counter::NegativeHits,
        "negative_hits",
        "Requests answered with a remembered error (`/x-negativeTTL`); a rise means links to pages that are missing, or \
         that fail.",
    ),
    (
        Counter::StaleOnError,
        "stale_on_error",
        "Old pages that stood in for a failing render; look at the renders.",
    ),
    (
        Counter::WarmedUp,
        "warmed_up",
        "Pages that were fetched at the start (`[dispatcher.warm_up]`).",
    ),
    (
        Counter::WarmUpFailures,
        "warm_up_failures",
        "Pages that could not be fetched at the start; visitors fetch them instead.",
    ),
    (
        Counter::SiblingsAsked,
        "siblings_asked",
        "Absent pages that siblings were asked for (`/x-siblings`).",
    ),
    (
        Counter::SiblingFills,
        "sibling_fills",
        "Pages that a sibling had, so that no render was asked; few of those asked for mean that siblings are cold, too.",
    ),
    (Counter::SiblingsServed, "siblings_served", "Copies that were given to siblings."),
    (
        Counter::ShadowsSame,
        "shadow_same",
        "Pages for which a shadow (`/x-shadow`) gave the same answer as the render.",
    ),
    (
        Counter::ShadowsDifferent,
        "shadow_different",
        "Pages for which a shadow gave another answer; the log says which, and what differs.",
    ),
    (Counter::ShadowFailures, "shadow_failures", "Pages for which a shadow gave no answer."),
    (
        Counter::ShadowsSkipped,
        "shadow_skipped",
        "Pages of the share that were not compared, as the shadow is too slow.",
    ),
    (
        Counter::FlushesPassed,
        "flushes_passed",
        "Flushes that siblings were told and have carried out (`/x-passFlushes`), each sibling counted.",
    ),
    (Counter::FlushesHeard, "flushes_heard", "Flushes of siblings that were carried out."),
    (
        Counter::SiblingResets,
        "sibling_resets",
        "How often a whole document root was taken for out of date, as nobody could tell which flushes of a sibling it has \
         missed; it follows siblings that were away for long, or that lost their document root.",
    ),
    (
        Counter::VariantsRefused,
        "variants_refused",
        "Requests refused with 429, as too many variants of a page were asked for (`/x-variantLimit`); a rise may be an attack \
         on the cache, or a page whose parameters belong into `/ignoreUrlParams` or `/x-cacheKeyParams`.",
    ),
    (
        Counter::VariantsReplaced,
        "variants_replaced",
        "Such requests that got the page without its query (`/over \"plain\"`).",
    ),
    (
        Counter::CollapsedInVain,
        "collapsed_in_vain",
        "Requests that waited for another one's fetch and were answered with 503, as it takes too long; look at the renders.",
    ),
    (
        Counter::CookiesLeftOut,
        "cookies_left_out",
        "Pages that were stored without the cookies that their render set; let it forbid to cache those that are one visitor's.",
    ),
    (
        Counter::VariesLeftOut,
        "varies_left_out",
        "Pages that were stored although their `Vary` says that others may get another page; only the URL tells pages apart.",
    ),
];

/// The counters of a dispatcher.
#[derive(Debug)]
pub(crate) struct Metrics {
    values: [AtomicU64; COUNTERS.len()],
    present: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { values: std::array::from_fn(|_| AtomicU64::new(0)), present: AtomicU64::new(0) }
    }
}

/// Counts a request as in flight until it is dropped.
pub(crate) struct Present<'a>(&'a AtomicU64);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(crate) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(crate) fn add(&self, counter: Counter, by: u64) {
        if let Some(value) = self.values.get(counter as usize) {
            value.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Counts a request as in flight.
    pub(crate) fn enter(&self) -> Present<'_> {
        self.present.fetch_add(1, Ordering::Relaxed);
        Present(&self.present)
    }

    /// Returns how many requests are in flight.
    pub(crate) fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    pub(crate) fn value(&self, counter: Counter) -> u64 {
        self.values.get(counter as usize).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Returns the share of requests that no render was asked for, in percent.
    pub(crate) fn hit_ratio(&self) -> f64 {
        let served = self.value(Counter::Hits) + self.value(Counter::Stale);
        let asked = served + self.value(Counter::Misses) + self.value(Counter::Passes);
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more than 52 bits")]
        let ratio = served as f64 * 100.0 / asked.max(1) as f64;
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

/// What the cache did with the requests of one farm.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    outcomes: [AtomicU64; OUTCOMES.len()],
    reasons: [AtomicU64; Reason::ALL.len()],
    prefixes: RwLock<BTreeMap<String, Arc<Served>>>,
    /// What was warned of already.
    warned: Mutex<BTreeSet<(&'static str, String)>>,
    pub(crate) top: Top,
    pub(crate) times: RequestHistogram,
}

/// The outcomes by name, in the order of [`index`].
pub(crate) const OUTCOMES: [&str; 4] = ["hit", "stale", "miss", "pass"];

/// Requests below one prefix.
#[derive(Debug, Default)]
pub(crate) struct Served {
    all: AtomicU64,
    from_cache: AtomicU64,
}

/// So many prefixes are counted apart; visitors of others are counted together.
const MAX_PREFIXES: usize = 100;

/// What stands for all prefixes beyond [`MAX_PREFIXES`].
const OTHER_PREFIXES: &str = "(other)";

/// So many warnings are remembered, and no more are given.
const MAX_WARNINGS: usize = 100;

/// How often pages below a prefix came from the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrefixRatio {
    pub(crate) prefix: String,
    pub(crate) requests: u64,
    pub(crate) from_cache: u64,
}

impl Tally {
    /// Counts a request for `path`.
    pub(crate) fn count(&self, path: &str, outcome: Outcome) {
        let index = index(outcome);
        if let Some(counter) = index.and_then(|index| self.outcomes.get(index)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let Outcome::Pass(reason) | Outcome::Refused(reason) = outcome
            && let Some(counter) = self.reasons.get(reason as usize)
        {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if index.is_none() {
            return;
        }
        self.note(&self.served(path), path, outcome);
    }

    /// Counts a request for `path` by what [`Tally::served`] gave for it.
    pub(crate) fn count_kept(&self, served: &Served, path: &str, outcome: Outcome) {
        if let Some(counter) = index(outcome).and_then(|index| self.outcomes.get(index)) {
            counter.fetch_add(1, Ordering::Relaxed);
            self.note(served, path, outcome);
        }
    }

    fn note(&self, served: &Served, path: &str, outcome: Outcome) {
        self.top.count(path);
        served.all.fetch_add(1, Ordering::Relaxed);
        if matches!(outcome, Outcome::Hit | Outcome::Negative | Outcome::Stale) {
            served.from_cache.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns what counts the requests below the prefix of `path`.
    pub(crate) fn served(&self, path: &str) -> Arc<Served> {
        let prefix = prefix(path);
        let known = |prefixes: &BTreeMap<String, Arc<Served>>| {
            let is_full = prefixes.len() >= MAX_PREFIXES;
            let other = || prefixes.get(OTHER_PREFIXES).filter(|_| is_full);
            prefixes.get(prefix).or_else(other).cloned()
        };
        if let Some(served) = known(&self.prefixes.read()) {
            return served;
        }
        let mut prefixes = self.prefixes.write();
        let is_known = prefixes.contains_key(prefix) || prefixes.len() < MAX_PREFIXES;
        let key = if is_known { prefix } else { OTHER_PREFIXES };
        Arc::clone(prefixes.entry(key.to_owned()).or_default())
    }

    /// Returns the pattern of URLs to which `path` belongs, if nobody was warned of `what` at these yet.
    pub(crate) fn first_warning(&self, what: &'static str, path: &str) -> Option<String> {
        let name = path.rsplit('/').next().unwrap_or_default();
        let extension = name.rfind('.').and_then(|at| name.get(at..)).unwrap_or_default();
        let pattern = format!("{}/*{extension}", prefix(path).trim_end_matches('/'));
        let mut warned = self.warned.lock();
        let is_new = warned.len() < MAX_WARNINGS && warned.insert((what, pattern.clone()));
        is_new.then_some(pattern)
    }

    /// Returns how often the cache did what, in the order of [`OUTCOMES`].
    pub(crate) fn outcomes(&self) -> [u64; OUTCOMES.len()] {
        self.outcomes.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Returns the reasons for which answers were not stored, and how often; the most frequent one first.
    pub(crate) fn reasons(&self) -> Vec<(Reason, u64)> {
        let counts = self.reasons.iter().map(|counter| counter.load(Ordering::Relaxed));
        let mut reasons: Vec<(Reason, u64)> =
            Reason::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        reasons
    }

    /// Returns the prefixes, the one with the most requests first.
    pub(crate) fn prefixes(&self) -> Vec<PrefixRatio> {
        let ratio = |(prefix, served): (&String, &Arc<Served>)| PrefixRatio {
            prefix: prefix.clone(),
            requests: served.all.load(Ordering::Relaxed),
            from_cache: served.from_cache.load(Ordering::Relaxed),
        };
        let mut prefixes: Vec<PrefixRatio> = self.prefixes.read().iter().map(ratio).collect();
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.requests));
        prefixes
    }

    /// Writes the farm's counters in Prometheus' text format, without their heads.
    fn write(&self, farm: &str, texts: &mut [String; 3]) {
        let farm = label(farm);
        let [outcomes, reasons, prefixes] = texts;
        for (name, count) in OUTCOMES.iter().zip(self.outcomes()) {
            line(outcomes, "requests_total", &format!("farm=\"{farm}\",cache=\"{name}\""), count);
        }
        for (reason, count) in self.reasons() {
            let labels = format!("farm=\"{farm}\",reason=\"{reason:?}\"");
            line(reasons, "not_cached_total", &labels, count);
        }
        for prefix in self.prefixes() {
            let path = label(&prefix.prefix);
            for (kind, count) in [("all", prefix.requests), ("cache", prefix.from_cache)] {
                let labels = format!("farm=\"{farm}\",prefix=\"{path}\",from=\"{kind}\"");
                line(prefixes, "prefix_requests_total", &labels, count);
            }
        }
    }
}

/// Returns the counters of all farms in Prometheus' text format.
pub(crate) fn farms_to_text<'a>(farms: impl Iterator<Item = (&'a str, &'a Tally)>) -> String {
    let mut texts: [String; 3] = [
        head("requests_total", "Requests that came to the cache of a farm, by what it did."),
        head(
            "not_cached_total",
            "Answers that were not stored, by reason; mend the most frequent one.",
        ),
        head(
            "prefix_requests_total",
            "Requests below a prefix: all, and those that came from the cache.",
        ),
    ];
    let mut times = String::new();
    let about = "Time until the head of an answer, by method and class of status.";
    RequestHistogram::write_head(&mut times, "tympan_dispatcher_request_seconds", about);
    for (name, tally) in farms {
        tally.write(name, &mut texts);
        let labels = format!("farm=\"{}\"", label(name));
        tally.times.write(&mut times, "tympan_dispatcher_request_seconds", &labels);
    }
    texts.concat() + &times
}

/// Returns what renders do in Prometheus' text format.
pub(crate) fn renders_to_text<'a>(
    farms: impl Iterator<Item = (&'a str, Vec<RenderStatus>)>,
) -> String {
    let mut requests =
        head("render_requests_total", "Requests to a render: answered and failed ones.");
    let mut sticky = head(
        "render_sticky_total",
        "Requests that a render answered since the visitor's cookie names it; a large share of its requests means that the \
         load cannot be balanced.",
    );
    let mut gauges = [
        gauge("render_in_flight", "Requests that a render works on."),
        gauge("render_up", "1 if a render is asked, 0 if it is left alone; look at its log then."),
        gauge("render_score_ms", "The score of a render; the lower one is asked first."),
    ];
    for (farm, renders) in farms {
        for render in renders {
            let labels = format!("farm=\"{}\",render=\"{}\"", label(farm), label(&render.name));
            for (outcome, count) in [("answered", render.answered), ("failed", render.failed)] {
                let labels = format!("{labels},outcome=\"{outcome}\"");
                line(&mut requests, "render_requests_total", &labels, count);
            }
            line(&mut sticky, "render_sticky_total", &labels, render.sticky);
            let [in_flight, up, score] = &mut gauges;
            let is_up = !matches!(render.standing, "out" | "ill");
            line(in_flight, "render_in_flight", &labels, render.in_flight.into());
            line(up, "render_up", &labels, is_up.into());
            writeln!(score, "tympan_dispatcher_render_score_ms{{{labels}}} {:.3}", render.score)
                .ok();
        }
    }
    requests + &sticky + &gauges.concat()
}

/// Writes how siblings stand that are told what is flushed; nothing where no farm tells any.
pub(crate) fn siblings_to_text<'a>(
    farms: impl Iterator<Item = (&'a str, Vec<SiblingStatus>)>,
) -> String {
    let mut reached = gauge(
        "sibling_reached",
        "1 if a sibling takes what is flushed, 0 if it is away or refuses; look at the logs of both then.",
    );
    let mut behind = gauge(
        "sibling_behind",
        "Flushes that a sibling has not carried out yet; a rise means that it is away.",
    );
    let mut is_empty = true;
    for (farm, siblings) in farms {
        for sibling in siblings {
            is_empty = false;
            let labels = format!("farm=\"{}\",sibling=\"{}\"", label(farm), label(&sibling.name));
            line(&mut reached, "sibling_reached", &labels, sibling.is_reached.into());
            line(&mut behind, "sibling_behind", &labels, sibling.behind);
        }
    }
    if is_empty { String::new() } else { reached + &behind }
}

/// Writes what listeners count.
pub(crate) fn connections_to_text(text: &mut String, listeners: &[Arc<Counters>]) {
    let sum = |count: fn(&Counters) -> &AtomicU64| -> u64 {
        listeners.iter().map(|listener| count(listener).load(Ordering::Relaxed)).sum()
    };
    let counters = [
        ("connections_total", "Connections accepted.", sum(|counters| &counters.accepted)),
        (
            "connections_failed_total",
            "Connections that ended with an error: slow heads, garbage, peers that read nothing, floods.",
            sum(|counters| &counters.failed),
        ),
        (
            "connections_crowded_total",
            "Connections closed as their client had too many.",
            sum(|counters| &counters.crowded),
        ),
        (
            "connections_saturated_total",
            "Connections that came while all places were taken; raise `max_connections` if it repeats.",
            sum(|counters| &counters.saturated),
        ),
        (
            "connections_evicted_total",
            "Connections closed while nothing was asked on them, as others waited; raise `max_connections`.",
            sum(|counters| &counters.evicted),
        ),
        (
            "connections_released_total",
            "Connections closed with an answer, as hardly any place was free; raise `max_connections`.",
            sum(|counters| &counters.released),
        ),
        (
            "bodies_refused_total",
            "Requests refused for the announced size of their body.",
            sum(|counters| &counters.bodies_refused),
        ),
    ];
    for (name, help, value) in counters {
        text.push_str(&head(name, help));
        writeln!(text, "tympan_dispatcher_{name} {value}").ok();
    }
    text.push_str(&gauge("connections", "Connections open now."));
    writeln!(text, "tympan_dispatcher_connections {}", sum(|counters| &counters.open)).ok();
}

fn head(name: &str, help: &str) -> String {
    format!("# HELP tympan_dispatcher_{name} {help}\n# TYPE tympan_dispatcher_{name} counter\n")
}

fn gauge(name: &str, help: &str) -> String {
    format!("# HELP tympan_dispatcher_{name} {help}\n# TYPE tympan_dispatcher_{name} gauge\n")
}

fn line(text: &mut String, name: &str, labels: &str, value: u64) {
    // Writing to a string cannot fail.
    writeln!(text, "tympan_dispatcher_{name}{{{labels}}} {value}").ok();
}

/// Escapes what a label's value must not hold.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace(|char: char| char.is_control(), "?")
}

fn index(outcome: Outcome) -> Option<usize> {
    match outcome {
        Outcome::Apart | Outcome::Refused(_) => None,
        Outcome::Hit | Outcome::Negative => Some(0),
        Outcome::Stale => Some(1),
        Outcome::Miss { .. } => Some(2),
        Outcome::Pass(_) => Some(3),
    }
}

/// Returns the first two folders of a path.
fn prefix(path: &str) -> &str {
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
    use super::{COUNTERS, Counter, MAX_PREFIXES, Metrics, Tally, farms_to_text, prefix};
    use crate::answer::Outcome;
    use crate::cacheable::Reason;

    #[test]
    fn prefixes_are_two_folders_and_bounded() {
        for (path, expected) in [
            ("/", "/"),
            ("/a.html", "/"),
            ("/content/a.html", "/content"),
            ("/content/site/en.html", "/content/site"),
            ("/content/site/en/a.html", "/content/site"),
        ] {
            assert_eq!(prefix(path), expected, "{path}");
        }
        let tally = Tally::default();
        for number in 0..MAX_PREFIXES * 2 {
            tally.count(&format!("/p{number}/x/y"), Outcome::Hit);
        }
        let prefixes = tally.prefixes();
        assert_eq!(prefixes.len(), MAX_PREFIXES + 1);
        assert_eq!(prefixes[0].prefix, "(other)");
        assert_eq!(prefixes.iter().map(|prefix| prefix.requests).sum::<u64>(), 200);
    }

    #[test]
    fn a_warning_is_given_once_for_each_pattern_of_urls() {
        let tally = Tally::default();
        for (what, path, expected) in [
            ("vary", "/content/site/en.html", Some("/content/site/*.html")),
            ("vary", "/content/site/en/a.print.html", None),
            ("vary", "/content/site/en/a.json", Some("/content/site/*.json")),
            ("cookie", "/content/site/en.html", Some("/content/site/*.html")),
            ("cookie", "/a", Some("/*")),
            ("cookie", "/content/b.html/c", Some("/content/b.html/*")),
        ] {
            assert_eq!(tally.first_warning(what, path).as_deref(), expected, "{what} {path}");
        }
        let some = (0..1000).filter(|at| tally.first_warning("x", &format!("/{at}/a/b")).is_some());
        assert_eq!(some.count(), super::MAX_WARNINGS - 5);
    }

    #[test]
    fn reasons_are_counted_by_name() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index, "{reason:?}");
        }
        let tally = Tally::default();
        tally.count("/a\"b/c/d", Outcome::Pass(Reason::Query));
        tally.count("/a/c/d", Outcome::Pass(Reason::Rules));
        tally.count("/a/c/d", Outcome::Pass(Reason::Rules));
        assert_eq!(tally.reasons(), [(Reason::Rules, 2), (Reason::Query, 1)]);
        let text = farms_to_text([("site", &tally)].into_iter());
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
        let metrics = Metrics::default();
        metrics.add(Counter::Hits, 3);
        metrics.count(Counter::Misses);
        assert!((metrics.hit_ratio() - 75.0).abs() < 1e-9);
        let text = metrics.to_text(&[("queue", "Waiting.", 7)]);
        assert!(text.contains("\ntympan_dispatcher_hits_total 3\n"), "{text}");
        assert!(
            text.ends_with("# TYPE tympan_dispatcher_queue gauge\ntympan_dispatcher_queue 7\n")
        );
    }
}
