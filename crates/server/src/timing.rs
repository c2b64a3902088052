//! What requests took: told to administrators, as JSON of the newest and slowest requests, and on a page they ask for.
//!
//! `/system/timing.json` has the newest and the slowest requests as trees, and percentiles of each component;
//! `/system/timing.html` draws the same as flame graphs and tables. `?tympan-profile=1` adds the times of one request to
//! its answer.
//!
//! Not here: taking times (`render::timing`).

mod page;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::request::Parts;
use http::{StatusCode, header};
use serde_json::{Value, json};
use tympan_render::profile::Profiled;
use tympan_render::timing::{Row, Timing};
use tympan_render::{FragmentCounts, FragmentReport};

use crate::Instance;
use crate::failure::{Failure, Result};

/// Places of components that are listed.
const PLACES: usize = 100;
/// Components that a header names.
const NAMED: usize = 12;

/// Returns the routes.
pub(crate) fn routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/system/timing.json", get(report))
        .route("/system/timing.html", get(flame_page))
}

/// Fails for all but administrators.
async fn require_administrator(instance: &Instance, parts: &Parts) -> Result<()> {
    let identity = instance.identify(parts).await?;
    if identity.is_none() {
        return Err(Failure::new(StatusCode::UNAUTHORIZED, "log in first"));
    }
    let viewer = instance.viewer_of(identity.as_ref())?;
    instance.require_administrator(&viewer, "see what requests took")
}

/// Answers with everything that is known as a page, for administrators.
async fn flame_page(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let (parts, _) = request.into_parts();
    require_administrator(&instance, &parts).await?;
    let fragments = instance.renderer.fragments().map(|cache| cache.report(PLACES));
    let html = page::draw(instance.role.name(), &instance.profile.report(), fragments.as_ref())?;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "private, no-store"),
        (header::CONTENT_SECURITY_POLICY, page::POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, html).into_response())
}

/// Answers with everything that is known, for administrators.
async fn report(State(instance): State<Arc<Instance>>, request: Request) -> Result<Json<Value>> {
    let (parts, _) = request.into_parts();
    require_administrator(&instance, &parts).await?;
    let report = instance.profile.report();
    let requests = |all: Vec<Profiled>| all.iter().map(to_json).collect::<Vec<_>>();
    let micros = |time: std::time::Duration| time.as_micros() as u64;
    let components: Vec<Value> = report
        .components
        .iter()
        .map(|one| {
            json!({
                "script": &*one.script,
                "calls": one.calls,
                "queries": one.queries,
                "total_us": micros(one.total),
                "self_us": micros(one.own),
                "p50_us": micros(one.median),
                "p90_us": micros(one.p90),
                "p99_us": micros(one.p99),
            })
        })
        .collect();
    let fragments = instance.renderer.fragments().map(|cache| fragments(&cache.report(PLACES)));
    Ok(Json(json!({
        "recent": requests(report.recent),
        "slowest": requests(report.slowest),
        "components": components,
        "fragments": fragments,
    })))
}

fn to_json(one: &Profiled) -> Value {
    let since = one.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "url": &*one.url,
        "at_ms": since.as_millis() as u64,
        "total_us": one.timing.total().as_micros() as u64,
        "flame": flames(&mut one.timing.rows.iter().peekable(), 0),
    })
}

/// Turns rows at a depth, and what lies below them, into trees.
fn flames<'a>(
    rows: &mut std::iter::Peekable<impl Iterator<Item = &'a Row>>,
    depth: usize,
) -> Vec<Value> {
    let mut trees = Vec::new();
    while let Some(row) = rows.next_if(|row| row.depth >= depth) {
        let children = flames(rows, depth + 1);
        trees.push(json!({
            "name": &*row.script,
            "path": &*row.path,
            "calls": row.calls,
            "value": row.total.as_micros() as u64,
            "self": row.self_time.as_micros() as u64,
            "reads": row.reads,
            "queries": row.queries,
            "children": children,
        }));
    }
    trees
}

fn fragments(report: &FragmentReport) -> Value {
    let uncached = |all: &[(tympan_render::Uncached, u64)]| -> serde_json::Map<String, Value> {
        all.iter().map(|(why, count)| (why.name().to_owned(), json!(count))).collect()
    };
    let places: Vec<Value> = report
        .units
        .iter()
        .map(|unit| {
            json!({
                "place": unit.place,
                "variations": unit.variations,
                "bytes": unit.bytes,
                "hits": unit.hits,
                "misses": unit.misses,
                "saved_us": unit.saved.as_micros() as u64,
                "uncached": uncached(&unit.uncached),
            })
        })
        .collect();
    json!({
        "keys": report.keys,
        "entries": report.entries,
        "bytes": report.bytes,
        "max_bytes": report.max_bytes,
        "working_set_bytes": report.working_set,
        "hits": report.hits,
        "misses": report.misses,
        "evicted": report.evicted,
        "removed": report.removed,
        "uncached": uncached(&report.uncached),
        "fault": report.fault(),
        "places": places,
    })
}

/// Writes what a request took as a value of `Server-Timing`.
pub(crate) fn to_short_header(timing: &Timing) -> String {
    format!("render;dur={:.3}", timing.total().as_secs_f64() * 1000.0)
}

/// Writes the components that took most by themselves as a value of `Server-Timing`.
pub(crate) fn to_header(timing: &Timing) -> String {
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
    let mut value = format!("render;dur={:.3}", millis(timing.total()));
    let mut rows: Vec<&Row> = timing.rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.self_time));
    for (number, row) in rows.into_iter().take(NAMED).enumerate() {
        let name: String = row.script.chars().filter(|one| !matches!(one, '"' | '\\')).collect();
        let own = millis(row.self_time);
        value.push_str(&format!(", c{number};desc=\"{name} x{}\";dur={own:.3}", row.calls));
    }
    value
}

/// Writes the times of a request as a comment of HTML.
pub(crate) fn to_comment(timing: &Timing, fragments: FragmentCounts) -> String {
    // Nothing in a comment may look like its end.
    let rows = timing.to_text().replace("--", "- -").replace('>', " ");
    format!(
        "\n<!-- tympan: total us, self us, calls, look-ups, queries, script, path\n{rows}{} -->\n",
        to_counts(fragments)
    )
}

/// Writes how fragments were looked up.
pub(crate) fn to_counts(fragments: FragmentCounts) -> String {
    let FragmentCounts { hits, misses, never } = fragments;
    format!("hit={hits} miss={misses} never={never}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn timing() -> Timing {
        let row = |script: &str, depth, millis| Row {
            script: script.into(),
            path: "/a--><script>".into(),
            depth,
            calls: 2,
            total: Duration::from_millis(millis),
            self_time: Duration::from_millis(millis / 2),
            reads: 1,
            queries: 0,
        };
        Timing {
            rows: vec![row("page", 0, 8), row("par", 1, 6), row("te\"xt", 2, 2), row("foot", 1, 1)],
        }
    }

    #[test]
    fn rows_become_a_tree() {
        let trees = flames(&mut timing().rows.iter().peekable(), 0);
        let names = |of: &Value| -> Vec<String> {
            let children = of["children"].as_array().into_iter().flatten();
            children.map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(trees.len(), 1);
        let page = trees.first().unwrap();
        assert_eq!(names(page), ["par", "foot"]);
        assert_eq!(names(&page["children"][0]), ["te\"xt"]);
    }

    #[test]
    fn nothing_ends_a_header_or_comment_early() {
        let header = to_header(&timing());
        assert!(header.starts_with("render;dur=8.000, c0;desc=\"page x2\";dur=4.000"), "{header}");
        assert!(header.contains("desc=\"text x2\""), "{header}");
        let comment = to_comment(&timing(), FragmentCounts { hits: 12, misses: 3, never: 1 });
        assert_eq!(comment.matches("-->").count(), 1, "{comment}");
        assert!(comment.trim_end().ends_with("hit=12 miss=3 never=1 -->"), "{comment}");
    }
}
