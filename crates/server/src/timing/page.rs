//! What requests took, as a page without scripts: flame graphs of the slowest and the newest, components, kept fragments.
//!
//! In: a [`ProfileReport`]. Out: HTML. The same figures are in `/system/timing.json`, for programs.

use std::time::{Duration, SystemTime};

use minijinja::Environment;
use minijinja::value::{Serde, Value};
use serde::Serialize;
use tympan_render::FragmentReport;
use tympan_render::profile::{ComponentReport, ProfileReport, Profiled};
use tympan_render::timing::Row;

use crate::failure::Result;

/// Nothing is loaded and nothing runs; the styles are in the page.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Requests that are drawn of each kind.
const DRAWN: usize = 50;
/// Width of a flame graph, in units of its own.
const WIDTH: f64 = 1000.0;
/// Height of a bar, likewise.
const BAR: usize = 20;
/// Shades that tell which share of a request's time a bar took by itself.
const SHADES: f64 = 5.0;

/// A bar of a flame graph.
#[derive(Debug, Serialize)]
struct Bar {
    x: f64,
    y: usize,
    width: f64,
    /// From 0, little of the request's time went by here, to 4, most of it.
    shade: u8,
    name: String,
    title: String,
}

/// A request with its flames.
#[derive(Debug, Serialize)]
struct Drawn<'a> {
    url: &'a str,
    at: String,
    took: String,
    height: usize,
    bars: Vec<Bar>,
}

#[derive(Debug, Serialize)]
struct Component<'a> {
    script: &'a str,
    calls: u64,
    queries: u64,
    own: String,
    total: String,
    median: String,
    p90: String,
    p99: String,
}

#[derive(Debug, Serialize)]
struct Place<'a> {
    place: &'a str,
    variations: usize,
    kib: u64,
    hits: u64,
    misses: u64,
    saved: String,
    uncached: String,
}

#[derive(Debug, Serialize)]
struct Fragments<'a> {
    kib: u64,
    max_kib: u64,
    working_set_kib: u64,
    entries: usize,
    hits: u64,
    misses: u64,
    evicted: u64,
    fault: Option<String>,
    places: Vec<Place<'a>>,
}

#[derive(Debug, Serialize)]
struct Page<'a> {
    role: &'a str,
    slowest: Vec<Drawn<'a>>,
    recent: Vec<Drawn<'a>>,
    components: Vec<Component<'a>>,
    fragments: Option<Fragments<'a>>,
}

/// Returns the page of an instance with a role.
pub(super) fn draw(
    role: &str,
    report: &ProfileReport,
    fragments: Option<&FragmentReport>,
) -> Result<String> {
    let page = Page {
        role,
        slowest: report.slowest.iter().take(DRAWN).map(drawn).collect(),
        recent: report.recent.iter().take(DRAWN).map(drawn).collect(),
        components: report.components.iter().map(component).collect(),
        fragments: fragments.map(kept),
    };
    let mut environment = Environment::new();
    // The name's ending has every value escaped.
    environment.add_template("timing.html", include_str!("page.html.j2"))?;
    Ok(environment.get_template("timing.html")?.render(Value::from(Serde(&page)))?)
}

fn drawn(one: &Profiled) -> Drawn<'_> {
    let bars = bars(&one.timing.rows, one.timing.total());
    Drawn {
        url: &one.url,
        at: httpdate::fmt_http_date(one.at.max(SystemTime::UNIX_EPOCH)),
        took: millis(one.timing.total()),
        height: bars.iter().map(|bar| bar.y + BAR).max().unwrap_or(BAR),
        bars,
    }
}

/// Lays rows out: what a row called lies below it, side by side, from the left, as wide as it took long.
fn bars(rows: &[Row], all: Duration) -> Vec<Bar> {
    let share = |time: Duration| time.as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE);
    // Where the next bar of each depth begins.
    let mut next: Vec<f64> = vec![0.0];
    let mut bars = Vec::with_capacity(rows.len());
    for row in rows {
        let depth = row.depth.min(next.len() - 1);
        next.truncate(depth + 1);
        let Some(from) = next.last_mut() else { break };
        let (x, width) = (*from, (WIDTH * share(row.total)).min(WIDTH - *from).max(0.0));
        *from += width;
        next.push(x);
        bars.push(Bar {
            x: rounded(x),
            y: depth * BAR,
            width: rounded(width),
            shade: (share(row.self_time) * SHADES).min(SHADES - 1.0) as u8,
            name: short(&row.script),
            title: format!(
                "{} {}: {} ms, {} ms of it by itself; calls: {}, look-ups: {}, queries: {}",
                row.script,
                row.path,
                millis(row.total),
                millis(row.self_time),
                row.calls,
                row.reads,
                row.queries
            ),
        });
    }
    bars
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn millis(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1000.0)
}

/// Returns a script's own name and that of its folder.
fn short(script: &str) -> String {
    let mut parts: Vec<&str> = script.rsplit('/').take(2).collect();
    parts.reverse();
    parts.join("/")
}

fn component(one: &ComponentReport) -> Component<'_> {
    Component {
        script: &one.script,
        calls: one.calls,
        queries: one.queries,
        own: millis(one.own),
        total: millis(one.total),
        median: millis(one.median),
        p90: millis(one.p90),
        p99: millis(one.p99),
    }
}

fn kept(report: &FragmentReport) -> Fragments<'_> {
    let kib = |bytes: usize| bytes.div_ceil(1024) as u64;
    let places = report.units.iter().map(|unit| Place {
        place: &unit.place,
        variations: unit.variations,
        kib: kib(unit.bytes),
        hits: unit.hits,
        misses: unit.misses,
        saved: millis(unit.saved),
        uncached: unit
            .uncached
            .iter()
            .map(|(why, count)| format!("{} {count}", why.name()))
            .collect::<Vec<_>>()
            .join(", "),
    });
    Fragments {
        kib: kib(report.bytes),
        max_kib: kib(report.max_bytes),
        working_set_kib: kib(report.working_set),
        entries: report.entries,
        hits: report.hits,
        misses: report.misses,
        evicted: report.evicted,
        fault: report.fault(),
        places: places.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tympan_render::timing::Timing;

    use super::*;

    fn row(script: &str, depth: usize, total: u64, own: u64) -> Row {
        Row {
            script: script.into(),
            path: "/content/<b>".into(),
            depth,
            calls: 1,
            total: Duration::from_millis(total),
            self_time: Duration::from_millis(own),
            reads: 2,
            queries: 0,
        }
    }

    #[test]
    fn what_a_row_called_lies_below_it_side_by_side() {
        let rows = [
            row("/apps/page/page.html", 0, 10, 1),
            row("/apps/par/par.html", 1, 6, 2),
            row("/apps/text/text.html", 2, 4, 4),
            row("/apps/foot/foot.html", 1, 3, 3),
            row("/apps/other/other.html", 2, 2, 2),
        ];
        let laid: Vec<_> = bars(&rows, Duration::from_millis(10))
            .into_iter()
            .map(|bar| (bar.name, bar.x, bar.y, bar.width, bar.shade))
            .collect();
        let expected = [
            ("page/page.html", 0.0, 0, 1000.0, 0),
            ("par/par.html", 0.0, 20, 600.0, 1),
            ("text/text.html", 0.0, 40, 400.0, 2),
            ("foot/foot.html", 600.0, 20, 300.0, 1),
            ("other/other.html", 600.0, 40, 200.0, 1),
        ]
        .map(|(name, x, y, width, shade)| (name.to_owned(), x, y, width, shade));
        assert_eq!(laid, expected);
    }

    #[test]
    fn bars_stay_within_the_picture_whatever_the_rows_say() {
        // Times of rows that share a script below different callers may add up to more than their caller's.
        let rows =
            [row("a", 3, 10, 1), row("b", 9, 20, 20), row("c", 1, 30, 30), row("d", 0, 9, 0)];
        for all in [Duration::ZERO, Duration::from_millis(10)] {
            for bar in bars(&rows, all) {
                assert!(bar.x >= 0.0 && bar.width >= 0.0 && bar.x + bar.width <= WIDTH, "{bar:?}");
            }
        }
        assert!(bars(&[], Duration::ZERO).is_empty());
    }

    #[test]
    fn what_visitors_sent_is_text() {
        let timing = Arc::new(Timing { rows: vec![row("/apps/<i>/x.html", 0, 2, 2)] });
        let url = "/<script>alert(1)</script>\"'&".into();
        let one = Profiled { url, at: SystemTime::UNIX_EPOCH, timing };
        let report =
            ProfileReport { recent: vec![one.clone()], slowest: vec![one], components: Vec::new() };
        let page = draw("publish", &report, None).unwrap();
        // In either list, as text and as the name of the picture.
        assert_eq!(page.matches("&lt;script&gt;alert(1)").count(), 4, "{page}");
        for hostile in ["<script", "<i>", "<b>"] {
            assert!(!page.contains(hostile), "{hostile}: {page}");
        }
        assert!(page.contains("2.000 ms") && page.contains("<rect"), "{page}");
    }
}
