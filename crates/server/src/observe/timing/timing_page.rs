//! Request timing as a page without scripts: flame graphs of the slowest and the latest requests, components, cached
//! fragments.
//!
//! In: a [`RenderProfileReport`]. Out: HTML. `/system/timing.json` has the same values for programs.

use std::time::{Duration, SystemTime};

use minijinja::Environment;
use minijinja::value::{Serde, Value};
use serde::Serialize;
use tympan_render::FragmentCacheReport;
use tympan_render::profile::{ComponentTimingReport, ProfiledRequest, RenderProfileReport};
use tympan_render::timing::TimingRow;

use crate::failure::Result;

/// Forbids loading resources and running scripts; the styles are inline.
pub(super) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Maximum number of requests shown of each kind.
const MAX_SHOWN_REQUESTS: usize = 50;
/// Width of a flame graph, in SVG units.
const FLAME_GRAPH_WIDTH: f64 = 1000.0;
/// Height of a bar, in SVG units.
const BAR_HEIGHT: usize = 20;
/// Number of shades that show a bar's own share of the request time.
const SHADE_COUNT: f64 = 5.0;

/// A bar of a flame graph.
#[derive(Debug, Serialize)]
struct FlameGraphBar {
    x: f64,
    y: usize,
    width: f64,
    /// Share of the request time spent in the bar itself: from 0 (little) to 4 (most).
    shade: u8,
    name: String,
    title: String,
}

/// A request with its flame graph.
#[derive(Debug, Serialize)]
struct FlameGraphRequest<'a> {
    url: &'a str,
    at: String,
    took: String,
    height: usize,
    bars: Vec<FlameGraphBar>,
}

#[derive(Debug, Serialize)]
struct TimingPageComponent<'a> {
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
struct FragmentPlaceRow<'a> {
    place: &'a str,
    variations: usize,
    kib: u64,
    hits: u64,
    misses: u64,
    saved: String,
    uncached: String,
}

#[derive(Debug, Serialize)]
struct FragmentCacheSummary<'a> {
    kib: u64,
    max_kib: u64,
    working_set_kib: u64,
    entries: usize,
    hits: u64,
    misses: u64,
    evicted: u64,
    fault: Option<String>,
    places: Vec<FragmentPlaceRow<'a>>,
}

#[derive(Debug, Serialize)]
struct TimingPage<'a> {
    role: &'a str,
    slowest: Vec<FlameGraphRequest<'a>>,
    recent: Vec<FlameGraphRequest<'a>>,
    components: Vec<TimingPageComponent<'a>>,
    fragments: Option<FragmentCacheSummary<'a>>,
}

/// Returns the timing page of an instance with the given role.
pub(super) fn render_timing_page(
    role: &str,
    report: &RenderProfileReport,
    fragments: Option<&FragmentCacheReport>,
) -> Result<String> {
    let page = TimingPage {
        role,
        slowest: report.slowest.iter().take(MAX_SHOWN_REQUESTS).map(flame_graph_request).collect(),
        recent: report.recent.iter().take(MAX_SHOWN_REQUESTS).map(flame_graph_request).collect(),
        components: report.components.iter().map(timing_page_component).collect(),
        fragments: fragments.map(fragment_cache_summary),
    };
    let mut environment = Environment::new();
    // The file extension enables escaping of all values.
    environment.add_template("timing.html", include_str!("page.html.j2"))?;
    Ok(environment.get_template("timing.html")?.render(Value::from(Serde(&page)))?)
}

fn flame_graph_request(profiled_request: &ProfiledRequest) -> FlameGraphRequest<'_> {
    let bars = lay_out_bars(&profiled_request.timing.rows, profiled_request.timing.total_time());
    FlameGraphRequest {
        url: &profiled_request.url,
        at: httpdate::fmt_http_date(profiled_request.completed_at.max(SystemTime::UNIX_EPOCH)),
        took: format_millis(profiled_request.timing.total_time()),
        height: bars.iter().map(|bar| bar.y + BAR_HEIGHT).max().unwrap_or(BAR_HEIGHT),
        bars,
    }
}

/// Lays out the bars of a flame graph: callees are below their caller, side by side from the left, with widths in
/// proportion to their times.
fn lay_out_bars(rows: &[TimingRow], all: Duration) -> Vec<FlameGraphBar> {
    let share = |time: Duration| time.as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE);
    // Start of the next bar at each depth.
    let mut next: Vec<f64> = vec![0.0];
    let mut bars = Vec::with_capacity(rows.len());
    for row in rows {
        let depth = row.depth.min(next.len() - 1);
        next.truncate(depth + 1);
        let Some(from) = next.last_mut() else { break };
        let (x, width) = (
            *from,
            (FLAME_GRAPH_WIDTH * share(row.total_time)).min(FLAME_GRAPH_WIDTH - *from).max(0.0),
        );
        *from += width;
        next.push(x);
        bars.push(FlameGraphBar {
            x: round_coordinate(x),
            y: depth * BAR_HEIGHT,
            width: round_coordinate(width),
            shade: (share(row.self_time) * SHADE_COUNT).min(SHADE_COUNT - 1.0) as u8,
            name: short_script_name(&row.script),
            title: format!(
                "{} {}: {} ms, {} ms self time; calls: {}, look-ups: {}, queries: {}",
                row.script,
                row.path,
                format_millis(row.total_time),
                format_millis(row.self_time),
                row.call_count,
                row.read_count,
                row.query_count
            ),
        });
    }
    bars
}

fn round_coordinate(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn format_millis(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1000.0)
}

/// Returns the file name of a script with that of its folder.
fn short_script_name(script: &str) -> String {
    let mut parts: Vec<&str> = script.rsplit('/').take(2).collect();
    parts.reverse();
    parts.join("/")
}

fn timing_page_component(report: &ComponentTimingReport) -> TimingPageComponent<'_> {
    TimingPageComponent {
        script: &report.script,
        calls: report.call_count,
        queries: report.query_count,
        own: format_millis(report.self_time),
        total: format_millis(report.total_time),
        median: format_millis(report.median),
        p90: format_millis(report.p90),
        p99: format_millis(report.p99),
    }
}

fn fragment_cache_summary(report: &FragmentCacheReport) -> FragmentCacheSummary<'_> {
    let kib = |bytes: usize| bytes.div_ceil(1024) as u64;
    let rows = report.components.iter().map(|unit| FragmentPlaceRow {
        place: &unit.component_key,
        variations: unit.variation_count,
        kib: kib(unit.bytes),
        hits: unit.hits,
        misses: unit.misses,
        saved: format_millis(unit.saved_time),
        uncached: unit
            .uncached_counts
            .iter()
            .map(|(why, count)| format!("{} {count}", why.name()))
            .collect::<Vec<_>>()
            .join(", "),
    });
    FragmentCacheSummary {
        kib: kib(report.bytes),
        max_kib: kib(report.max_bytes),
        working_set_kib: kib(report.working_set_bytes),
        entries: report.fragment_count,
        hits: report.hits,
        misses: report.misses,
        evicted: report.evicted,
        fault: report.operator_warning(),
        places: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tympan_render::timing::RenderTiming;

    use super::*;

    fn row(script: &str, depth: usize, total: u64, own: u64) -> TimingRow {
        TimingRow {
            script: script.into(),
            path: "/content/<b>".into(),
            depth,
            call_count: 1,
            total_time: Duration::from_millis(total),
            self_time: Duration::from_millis(own),
            read_count: 2,
            query_count: 0,
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
        let laid: Vec<_> = lay_out_bars(&rows, Duration::from_millis(10))
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
        // Rows that share a script below different callers may together exceed their caller's time.
        let rows =
            [row("a", 3, 10, 1), row("b", 9, 20, 20), row("c", 1, 30, 30), row("d", 0, 9, 0)];
        for all in [Duration::ZERO, Duration::from_millis(10)] {
            for bar in lay_out_bars(&rows, all) {
                assert!(
                    bar.x >= 0.0 && bar.width >= 0.0 && bar.x + bar.width <= FLAME_GRAPH_WIDTH,
                    "{bar:?}"
                );
            }
        }
        assert!(lay_out_bars(&[], Duration::ZERO).is_empty());
    }

    #[test]
    fn what_visitors_sent_is_text() {
        let timing = Arc::new(RenderTiming { rows: vec![row("/apps/<i>/x.html", 0, 2, 2)] });
        let url = "/<script>alert(1)</script>\"'&".into();
        let profiled_request =
            ProfiledRequest { url, completed_at: SystemTime::UNIX_EPOCH, timing };
        let report = RenderProfileReport {
            recent: vec![profiled_request.clone()],
            slowest: vec![profiled_request],
            components: Vec::new(),
        };
        let page = render_timing_page("publish", &report, None).unwrap();
        // In both lists, as text and as the title of the graph.
        assert_eq!(page.matches("&lt;script&gt;alert(1)").count(), 4, "{page}");
        for hostile in ["<script", "<i>", "<b>"] {
            assert!(!page.contains(hostile), "{hostile}: {page}");
        }
        assert!(page.contains("2.000 ms") && page.contains("<rect"), "{page}");
    }
}
