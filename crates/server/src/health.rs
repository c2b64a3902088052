//! `/health`, `/health/ready` and `/metrics`: answered without touching the pool that pages are drawn on.

use std::fmt::Write;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, header};
use parking_lot::RwLock;
use serde_json::json;
use tympan_render::FragmentReport;
use tympan_render::ledger::Ledger;
use tympan_web::listen::Peer;
use tympan_web::request_histogram::RequestHistogram;

use crate::readiness::{Scope, in_time, report};
use crate::{Instance, Role};

/// Answers with the state of every part, in words, and with 503 if one does not do its work.
pub(crate) async fn health(State(instance): State<Arc<Instance>>) -> Response {
    answer(&instance, Scope::Everything, Details::Shown).await
}

/// Answers whether requests can be answered, for balancers.
pub(crate) async fn ready(State(instance): State<Arc<Instance>>) -> Response {
    answer(&instance, Scope::Requests, Details::Shown).await
}

/// Answers as [`health`] on the main listener, which visitors reach: with the state of every part to this machine and to
/// users of an author, and to everybody else whether the instance is well.
pub(crate) async fn main_health(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let details = details_for(&instance, request).await;
    answer(&instance, Scope::Everything, details).await
}

/// Answers as [`ready`] on the main listener, with details as [`main_health`].
pub(crate) async fn main_ready(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let details = details_for(&instance, request).await;
    answer(&instance, Scope::Requests, details).await
}

/// Whether an answer about health names the parts and their faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Details {
    Shown,
    Hidden,
}

async fn details_for(instance: &Instance, request: Request) -> Details {
    let (parts, _) = request.into_parts();
    match is_local(&parts) || is_user_of_author(instance, &parts).await {
        true => Details::Shown,
        false => Details::Hidden,
    }
}

/// Tells whether a request comes from this machine itself. What a proxy on this machine passes on comes from elsewhere.
fn is_local(parts: &Parts) -> bool {
    let is_passed_on = ["via", "forwarded", "x-forwarded-for", "x-real-ip"]
        .iter()
        .any(|name| parts.headers.contains_key(*name));
    parts.extensions.get::<Peer>().is_some_and(|peer| peer.is_loopback) && !is_passed_on
}

async fn is_user_of_author(instance: &Instance, parts: &Parts) -> bool {
    // Health is told in time even where the database of the logins hangs.
    instance.role == Role::Author
        && matches!(in_time(instance.identify_watcher(parts)).await, Some(Ok(Some(_))))
}

async fn answer(instance: &Arc<Instance>, scope: Scope, details: Details) -> Response {
    let report = report(instance, scope).await;
    let (status, role) = (report.word(), instance.role.name());
    let body = match details {
        Details::Shown => {
            let uptime = SystemTime::now().duration_since(instance.started).unwrap_or_default();
            json!({
                "status": status,
                "role": role,
                "uptime_s": uptime.as_secs(),
                "checks": report.checks(),
            })
        }
        Details::Hidden => json!({ "status": status, "role": role }),
    };
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (report.status(), no_store, axum::Json(body)).into_response()
}

type Check = (&'static str, Option<String>);

/// Checks of what is kept elsewhere, by name. Each tells at once what is wrong.
#[derive(Default)]
pub(crate) struct Checks(RwLock<Vec<(&'static str, Source)>>);

type Source = Box<dyn Fn() -> Option<String> + Send + Sync>;

impl Checks {
    pub(crate) fn all(&self) -> Vec<Check> {
        self.0.read().iter().map(|(name, source)| (*name, source())).collect()
    }
}

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Checks")
    }
}

impl Instance {
    /// Shows in `/health` what `source` says is wrong, under a name of its own. It must answer without waiting.
    pub fn watch_health(
        &self,
        name: &'static str,
        source: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        self.checks.0.write().push((name, Box::new(source)));
    }
}

/// Answers with the counters as Prometheus text.
pub(crate) async fn metrics(State(instance): State<Arc<Instance>>) -> Response {
    let role = instance.role.name();
    let mut text = instance.metrics.to_prometheus(role);
    let dropped = instance.request_log.dropped() + instance.access_log.dropped();
    let free = instance.work.free();
    // Writing to a string cannot fail.
    write!(
        text,
        "# HELP tympan_log_lines_dropped_total Log lines lost to a full queue or disk.\n\
         # TYPE tympan_log_lines_dropped_total counter\n\
         tympan_log_lines_dropped_total{{role=\"{role}\"}} {dropped}\n\
         # HELP tympan_work_permits_free Requests that could start to render or edit now.\n\
         # TYPE tympan_work_permits_free gauge\n\
         tympan_work_permits_free{{role=\"{role}\"}} {free}\n"
    )
    .ok();
    write_request_times(&mut text, &instance.request_times, role);
    if let Some(ledger) = &instance.ledger {
        write_ledger(&mut text, ledger, role);
    }
    if let Some(fragments) = instance.renderer.fragments() {
        write_fragments(&mut text, &fragments.report(0), role);
    }
    text.push_str(&in_time(crate::search::metrics(&instance, role)).await.unwrap_or_default());
    text.push_str(&in_time(crate::api::job::metrics(&instance, role)).await.unwrap_or_default());
    text.push_str(&crate::image::metrics(&instance, role));
    text.push_str(&crate::api::mount::metrics(&instance, role));
    text.push_str(&crate::pool::metrics(&instance, role));
    text.push_str(&instance.watched.text(role));
    // The folder of open files is read, which may be long under a crowd.
    let process = tokio::task::spawn_blocking(crate::process::metrics).await;
    text.push_str(&process.unwrap_or_default());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Writes how long requests took.
fn write_request_times(text: &mut String, times: &RequestHistogram, role: &str) {
    let name = "tympan_request_seconds";
    let about = "Time until the last byte of an answer had left, by method and class of status.";
    RequestHistogram::write_head(text, name, about);
    times.write(text, name, &format!("role=\"{role}\""));
}

/// Writes what the ledger counts.
fn write_ledger(text: &mut String, ledger: &Ledger, role: &str) {
    for (name, help, value) in ledger.counters().all() {
        let name = format!("tympan_ledger_{name}_total");
        // Writing to a string cannot fail.
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
    let (urls, dependencies) = ledger.size();
    for (name, help, value) in [
        ("urls", "URLs whose dependencies are kept.", urls),
        ("dependencies", "Dependencies of all kept URLs.", dependencies),
    ] {
        let name = format!("tympan_ledger_{name}");
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
}

/// Writes what the fragment cache counts.
fn write_fragments(text: &mut String, report: &FragmentReport, role: &str) {
    let FragmentReport { hits, misses, evicted, removed, regretted, .. } = *report;
    for (name, help, value) in [
        ("hits", "Components answered from the cache.", hits),
        ("misses", "Components drawn to be kept.", misses),
        (
            "evicted",
            "Fragments that went for want of room; a rise means that the cache is too small.",
            evicted,
        ),
        ("removed", "Fragments that changes removed.", removed),
        ("regretted", "Look-ups of fragments that had gone for want of room.", regretted),
    ] {
        let name = format!("tympan_fragment_{name}_total");
        // Writing to a string cannot fail.
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
    let name = "tympan_fragment_uncached_total";
    write!(
        text,
        "# HELP {name} Components drawn and not kept, by reason.\n# TYPE {name} counter\n"
    )
    .ok();
    for (why, count) in &report.uncached {
        writeln!(text, "{name}{{role=\"{role}\",reason=\"{}\"}} {count}", why.name()).ok();
    }
    for (name, help, value) in [
        ("bytes", "Bytes of all kept fragments.", report.bytes),
        ("max_bytes", "Bytes that they may take: `max_bytes` of `[fragments]`.", report.max_bytes),
        ("entries", "Kept fragments.", report.entries),
        ("working_set_bytes", "About how many bytes the site needs at once.", report.working_set),
    ] {
        let name = format!("tympan_fragment_{name}");
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
}
