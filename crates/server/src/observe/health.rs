//! `/health`, `/health/ready` and `/metrics`: served without the pool that renders pages.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, header};
use serde_json::json;
use tympan_render::FragmentCacheReport;
use tympan_render::ledger::DependencyLedger;
use tympan_web::listen::ConnectionPeer;
use tympan_web::request_head::is_addressed_by_ip;
use tympan_web::request_histogram::RequestHistogram;

use crate::observe::process_metrics::process_metrics;
use crate::observe::readiness::{ReadinessScope, check_readiness};
use crate::observe::readiness_probe::within_probe_timeout;
use crate::{Instance, InstanceRole};

/// Returns the state of every component as text, with status 503 if one does not work.
pub(crate) async fn serve_health(State(instance): State<Arc<Instance>>) -> Response {
    health_response(&instance, ReadinessScope::AllParts, HealthDetails::Shown).await
}

/// Returns whether the instance can serve requests, for load balancers.
pub(crate) async fn serve_readiness(State(instance): State<Arc<Instance>>) -> Response {
    health_response(&instance, ReadinessScope::RequestParts, HealthDetails::Shown).await
}

/// Serves the main listener, which visitors can reach. Requests from this machine and from users of an author receive
/// the state of every component, as from [`serve_health`]; all others receive only whether the instance is healthy.
pub(crate) async fn serve_main_health(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let details = health_details_for(&instance, request).await;
    health_response(&instance, ReadinessScope::AllParts, details).await
}

/// Same as [`serve_readiness`] for the main listener, with details as in [`serve_main_health`].
pub(crate) async fn serve_main_readiness(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let details = health_details_for(&instance, request).await;
    health_response(&instance, ReadinessScope::RequestParts, details).await
}

/// Level of detail of a health response: with or without the components and their faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthDetails {
    Shown,
    Hidden,
}

async fn health_details_for(instance: &Instance, request: Request) -> HealthDetails {
    let (parts, _) = request.into_parts();
    match is_local_request(&parts) || is_author_user(instance, &parts).await {
        true => HealthDetails::Shown,
        false => HealthDetails::Hidden,
    }
}

/// Returns true if a request comes from this machine itself. Requests forwarded by a local proxy count as remote, and so
/// do those of a browser that another site directed here.
fn is_local_request(parts: &Parts) -> bool {
    let is_passed_on = ["via", "forwarded", "x-forwarded-for", "x-real-ip"]
        .iter()
        .any(|name| parts.headers.contains_key(*name));
    parts.extensions.get::<ConnectionPeer>().is_some_and(|peer| peer.is_loopback)
        && is_addressed_by_ip(&parts.headers)
        && !is_passed_on
}

async fn is_author_user(instance: &Instance, parts: &Parts) -> bool {
    // The health response must be timely even if the login database hangs.
    instance.role == InstanceRole::Author
        && matches!(
            within_probe_timeout(instance.identify_monitoring(parts)).await,
            Some(Ok(Some(_)))
        )
}

async fn health_response(
    instance: &Arc<Instance>,
    scope: ReadinessScope,
    details: HealthDetails,
) -> Response {
    let report = check_readiness(instance, scope).await;
    let (status, role) = (report.worst_level(), instance.role.name());
    let body = match details {
        HealthDetails::Shown => {
            let uptime = SystemTime::now().duration_since(instance.started_at).unwrap_or_default();
            json!({
                "status": status,
                "role": role,
                "uptime_s": uptime.as_secs(),
                "checks": report.checks_json(),
            })
        }
        HealthDetails::Hidden => json!({ "status": status, "role": role }),
    };
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (report.status_code(), no_store, axum::Json(body)).into_response()
}

impl Instance {
    /// Adds a source to `/metrics`. `source` takes the name of the role and returns Prometheus text. It may read small
    /// files, and runs on a blocking thread.
    pub fn add_metrics_source(&self, source: impl Fn(&str) -> String + Send + Sync + 'static) {
        self.external_metrics.add(Box::new(source));
    }

    /// Adds a check to `/health` under a name of its own. `source` returns the current fault; it must not block.
    pub fn add_health_check(
        &self,
        name: &'static str,
        source: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        self.health_checks.add(name, Box::new(source));
    }
}

/// Returns the metrics as Prometheus text.
pub(crate) async fn serve_metrics(State(instance): State<Arc<Instance>>) -> Response {
    let role = instance.role.name();
    let mut text = instance.metrics.to_prometheus(role);
    let dropped = instance.request_log.dropped_lines() + instance.access_log.dropped_lines();
    let free = instance.work_gate.free_permits();
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
    write_latency_metrics(&mut text, &instance.request_latency, role);
    if let Some(ledger) = &instance.dependency_ledger {
        write_ledger_metrics(&mut text, ledger, role);
    }
    if let Some(fragments) = instance.renderer.fragments() {
        write_fragment_metrics(&mut text, &fragments.report(0), role);
    }
    text.push_str(
        &within_probe_timeout(crate::observe::search_health::search_metrics(&instance, role))
            .await
            .unwrap_or_default(),
    );
    text.push_str(
        &within_probe_timeout(crate::api::job::job_metrics(&instance, role))
            .await
            .unwrap_or_default(),
    );
    text.push_str(&crate::page::image::image_metrics(&instance, role));
    text.push_str(&crate::api::mount::mount_metrics(&instance, role));
    text.push_str(&crate::observe::pool_report::pool_metrics(&instance, role));
    let report = check_readiness(&instance, ReadinessScope::AllParts).await;
    text.push_str(&report.metrics_text(role));
    // On a blocking thread, as sources read files, and the folder of open files can be long under load.
    let blocking = tokio::task::spawn_blocking(move || {
        let mut text = instance.external_metrics.metrics_text(role);
        write_disk_metrics(&mut text, &instance.spool_folder, role);
        text.push_str(&process_metrics());
        text
    });
    let blocking = within_probe_timeout(blocking).await;
    text.push_str(&blocking.and_then(Result::ok).unwrap_or_default());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Writes the size and the free space of the disk of a folder in the home, unless the system does not tell them.
fn write_disk_metrics(text: &mut String, folder: &Path, role: &str) {
    let Ok(disk) = rustix::fs::statvfs(folder) else { return };
    for (name, help, blocks) in [
        ("size", "Size of the disk of the home.", disk.f_blocks),
        (
            "free",
            "Free space on the disk of the home; when it ends, changes are refused with a status of 507.",
            disk.f_bavail,
        ),
    ] {
        let name = format!("tympan_home_disk_{name}_bytes");
        let bytes = blocks.saturating_mul(disk.f_frsize);
        // Writing to a string cannot fail.
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{role=\"{role}\"}} {bytes}\n"
        )
        .ok();
    }
}

/// Writes the request latency histogram.
fn write_latency_metrics(text: &mut String, times: &RequestHistogram, role: &str) {
    let name = "tympan_request_duration_seconds";
    let about = "Time until the last byte of the response was sent, by method and status class.";
    RequestHistogram::write_metric_head(text, name, about);
    times.write_metric(text, name, &format!("role=\"{role}\""));
}

/// Writes the metrics of the dependency ledger.
fn write_ledger_metrics(text: &mut String, ledger: &DependencyLedger, role: &str) {
    for (name, help, value) in ledger.counters().all() {
        let name = format!("tympan_ledger_{name}_total");
        // Writing to a string cannot fail.
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
    let (urls, dependencies) = ledger.url_and_dependency_counts();
    for (name, help, value) in [
        ("urls", "URLs with stored dependencies.", urls),
        ("dependencies", "Stored dependencies of all URLs.", dependencies),
    ] {
        let name = format!("tympan_ledger_{name}");
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
}

/// Writes the metrics of the fragment cache.
fn write_fragment_metrics(text: &mut String, report: &FragmentCacheReport, role: &str) {
    let FragmentCacheReport { hits, misses, evicted, removed, ghost_hits, .. } = *report;
    for (name, help, value) in [
        ("hits", "Components served from the fragment cache.", hits),
        ("misses", "Components rendered and stored in the fragment cache.", misses),
        (
            "evicted",
            "Fragments evicted for lack of space; a rise means that the cache is too small.",
            evicted,
        ),
        ("removed", "Fragments removed because of content changes.", removed),
        ("ghost_hits", "Lookups of fragments that had been evicted.", ghost_hits),
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
        "# HELP {name} Components rendered but not cached, by reason.\n# TYPE {name} counter\n"
    )
    .ok();
    for (why, count) in &report.uncached_counts {
        writeln!(text, "{name}{{role=\"{role}\",reason=\"{}\"}} {count}", why.name()).ok();
    }
    for (name, help, value) in [
        ("bytes", "Bytes of all cached fragments.", report.bytes),
        (
            "max_bytes",
            "Maximum bytes of all cached fragments: `max_bytes` of `[fragments]`.",
            report.max_bytes,
        ),
        ("entries", "Number of cached fragments.", report.fragment_count),
        (
            "working_set_bytes",
            "Estimated working set of the site in bytes.",
            report.working_set_bytes,
        ),
    ] {
        let name = format!("tympan_fragment_{name}");
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
}
