//! Request timing for administrators: the latest and slowest requests as JSON and as a page, and the times of a single
//! request on demand.
//!
//! `/system/timing.json` has the latest and the slowest requests as trees, and percentiles of each component;
//! `/system/timing.html` shows the same as flame graphs and tables. `?tympan-profile=1` adds the times of a request to
//! its response.
//!
//! Not here: taking times (`render_and_count::timing`).

mod timing_page;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::header;
use http::request::Parts;
use serde_json::{Value, json};
use tympan_render::profile::{ComponentTimingReport, ProfiledRequest};
use tympan_render::timing::{RenderTiming, TimingRow};
use tympan_render::{FragmentCacheReport, FragmentLookupCounts};

use crate::Instance;
use crate::failure::Result;

/// Maximum number of component locations listed.
const MAX_LISTED_PLACES: usize = 100;
/// Maximum number of components in a header.
const MAX_HEADER_COMPONENTS: usize = 12;

/// Returns the routes.
pub(crate) fn timing_routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/system/timing.json", get(serve_timing_report))
        .route("/system/timing.html", get(serve_flame_page))
}

/// Returns an error for users who are not administrators.
async fn require_administrator(instance: &Instance, parts: &Parts) -> Result<()> {
    let identity = instance.require_user(parts).await?;
    instance.require_administrator(&identity.viewer(), "view request timings")
}

/// Serves the timing data as a page, to administrators.
async fn serve_flame_page(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    let (parts, _) = request.into_parts();
    require_administrator(&instance, &parts).await?;
    let fragments = instance.renderer.fragments().map(|cache| cache.report(MAX_LISTED_PLACES));
    let html = timing_page::render_timing_page(
        instance.role.name(),
        &instance.profile.report(),
        fragments.as_ref(),
    )?;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "private, no-store"),
        (header::CONTENT_SECURITY_POLICY, timing_page::CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, html).into_response())
}

/// Serves the timing data as JSON, to administrators.
async fn serve_timing_report(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Json<Value>> {
    let (parts, _) = request.into_parts();
    require_administrator(&instance, &parts).await?;
    let report = instance.profile.report();
    let requests =
        |all: Vec<ProfiledRequest>| all.iter().map(profiled_request_json).collect::<Vec<_>>();
    let components: Vec<Value> = report.components.iter().map(component_timing_json).collect();
    let fragments =
        instance.renderer.fragments().map(|cache| fragments_json(&cache.report(MAX_LISTED_PLACES)));
    Ok(Json(json!({
        "recent": requests(report.recent),
        "slowest": requests(report.slowest),
        "components": components,
        "fragments": fragments,
    })))
}

/// Describes the times of a component as JSON.
pub(crate) fn component_timing_json(component: &ComponentTimingReport) -> Value {
    let micros = |time: std::time::Duration| time.as_micros() as u64;
    json!({
        "script": &*component.script,
        "calls": component.call_count,
        "queries": component.query_count,
        "total_us": micros(component.total_time),
        "self_us": micros(component.self_time),
        "p50_us": micros(component.median),
        "p90_us": micros(component.p90),
        "p99_us": micros(component.p99),
    })
}

/// Describes a request as JSON, with its components as a tree.
pub(crate) fn profiled_request_json(profiled_request: &ProfiledRequest) -> Value {
    let since =
        profiled_request.completed_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "url": &*profiled_request.url,
        "at_ms": since.as_millis() as u64,
        "total_us": profiled_request.timing.total_time().as_micros() as u64,
        "flame": flame_trees_json(&mut profiled_request.timing.rows.iter().peekable(), 0),
    })
}

/// Converts rows at a depth, and the rows below them, to trees.
fn flame_trees_json<'a>(
    rows: &mut std::iter::Peekable<impl Iterator<Item = &'a TimingRow>>,
    depth: usize,
) -> Vec<Value> {
    let mut trees = Vec::new();
    while let Some(row) = rows.next_if(|row| row.depth >= depth) {
        let children = flame_trees_json(rows, depth + 1);
        trees.push(json!({
            "name": &*row.script,
            "path": &*row.path,
            "calls": row.call_count,
            "value": row.total_time.as_micros() as u64,
            "self": row.self_time.as_micros() as u64,
            "reads": row.read_count,
            "queries": row.query_count,
            "children": children,
        }));
    }
    trees
}

/// Describes the fragment cache as JSON.
pub(crate) fn fragments_json(report: &FragmentCacheReport) -> Value {
    let uncached =
        |all: &[(tympan_render::UncachedReason, u64)]| -> serde_json::Map<String, Value> {
            all.iter().map(|(why, count)| (why.name().to_owned(), json!(count))).collect()
        };
    let components: Vec<Value> = report
        .components
        .iter()
        .map(|unit| {
            json!({
                "place": unit.component_key,
                "variations": unit.variation_count,
                "bytes": unit.bytes,
                "hits": unit.hits,
                "misses": unit.misses,
                "saved_us": unit.saved_time.as_micros() as u64,
                "uncached": uncached(&unit.uncached_counts),
            })
        })
        .collect();
    json!({
        "keys": report.component_count,
        "entries": report.fragment_count,
        "bytes": report.bytes,
        "max_bytes": report.max_bytes,
        "working_set_bytes": report.working_set_bytes,
        "hits": report.hits,
        "misses": report.misses,
        "evicted": report.evicted,
        "removed": report.removed,
        "uncached": uncached(&report.uncached_counts),
        "fault": report.operator_warning(),
        "places": components,
    })
}

/// Formats the total times of a request as a value of `Server-Timing`.
pub(crate) fn to_short_timing_header(timing: &RenderTiming) -> String {
    format!("render;dur={:.3}", timing.total_time().as_secs_f64() * 1000.0)
}

/// Formats the components with the longest own times as a value of `Server-Timing`.
pub(crate) fn to_timing_header(timing: &RenderTiming) -> String {
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
    let mut value = format!("render;dur={:.3}", millis(timing.total_time()));
    let mut rows: Vec<&TimingRow> = timing.rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.self_time));
    for (number, row) in rows.into_iter().take(MAX_HEADER_COMPONENTS).enumerate() {
        let name: String =
            row.script.chars().filter(|letter| !matches!(letter, '"' | '\\')).collect();
        let own = millis(row.self_time);
        value.push_str(&format!(", c{number};desc=\"{name} x{}\";dur={own:.3}", row.call_count));
    }
    value
}

/// Formats the times of a request as an HTML comment.
pub(crate) fn to_timing_comment(timing: &RenderTiming, fragments: FragmentLookupCounts) -> String {
    // The text must not contain the end of the comment.
    let rows = timing.to_text().replace("--", "- -").replace('>', " ");
    format!(
        "\n<!-- tympan: total us, self us, calls, look-ups, queries, script, path\n{rows}{} -->\n",
        fragment_counts_text(fragments)
    )
}

/// Formats the counts of fragment lookups.
pub(crate) fn fragment_counts_text(fragments: FragmentLookupCounts) -> String {
    let FragmentLookupCounts { hits, misses, uncacheable } = fragments;
    format!("hit={hits} miss={misses} never={uncacheable}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn timing() -> RenderTiming {
        let row = |script: &str, depth, millis| TimingRow {
            script: script.into(),
            path: "/a--><script>".into(),
            depth,
            call_count: 2,
            total_time: Duration::from_millis(millis),
            self_time: Duration::from_millis(millis / 2),
            read_count: 1,
            query_count: 0,
        };
        RenderTiming {
            rows: vec![row("page", 0, 8), row("par", 1, 6), row("te\"xt", 2, 2), row("foot", 1, 1)],
        }
    }

    #[test]
    fn rows_become_a_tree() {
        let trees = flame_trees_json(&mut timing().rows.iter().peekable(), 0);
        let names = |of: &Value| -> Vec<String> {
            let children = of["children"].as_array().into_iter().flatten();
            children.map(|child| child["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(trees.len(), 1);
        let page = trees.first().unwrap();
        assert_eq!(names(page), ["par", "foot"]);
        assert_eq!(names(&page["children"][0]), ["te\"xt"]);
    }

    #[test]
    fn nothing_ends_a_header_or_comment_early() {
        let header = to_timing_header(&timing());
        assert!(header.starts_with("render;dur=8.000, c0;desc=\"page x2\";dur=4.000"), "{header}");
        assert!(header.contains("desc=\"text x2\""), "{header}");
        let comment = to_timing_comment(
            &timing(),
            FragmentLookupCounts { hits: 12, misses: 3, uncacheable: 1 },
        );
        assert_eq!(comment.matches("-->").count(), 1, "{comment}");
        assert!(comment.trim_end().ends_with("hit=12 miss=3 never=1 -->"), "{comment}");
    }
}
