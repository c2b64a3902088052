//! Health and metrics of the full-text index.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tympan_search::SearchIndexStatus;

use crate::Instance;
use crate::observe::readiness_probe::ComponentHealth;

/// Lag of the index, or build time of the first one, above which health reports a warning.
const INDEX_LAG_WARN: Duration = Duration::from_secs(10);
/// Lag above which the index is reported as failed.
const INDEX_LAG_FAIL: Duration = Duration::from_secs(30);

/// Returns the health of the index.
pub(crate) async fn index_health(instance: &Arc<Instance>, now: SystemTime) -> ComponentHealth {
    let age = now.duration_since(instance.started_at).unwrap_or_default();
    match index_status(instance, now).await {
        Ok(status) => index_health_of(&status, age),
        Err(reason) => ComponentHealth::Failed(reason),
    }
}

fn index_health_of(status: &SearchIndexStatus, age: Duration) -> ComponentHealth {
    if let Some(reason) = &status.pause_reason {
        return ComponentHealth::Failed(format!(
            "the full-text index is not being updated: {reason}"
        ));
    }
    if status.indexed_root.is_none() {
        let progress = status.rebuild_progress.map_or_else(String::new, |progress| {
            format!(": {} of {} documents read", progress.done_documents, progress.total_documents)
        });
        // Building ends without intervention, and search responses report it.
        let building = || format!("the full-text index is being built{progress}");
        return ComponentHealth::from_warning((age > INDEX_LAG_WARN).then(building));
    }
    if status.lag <= INDEX_LAG_WARN {
        return ComponentHealth::Healthy;
    }
    let (revisions, seconds) = (status.lag_revisions, status.lag.as_secs());
    let reason =
        format!("the full-text index is {revisions} revisions and {seconds} s behind the content");
    if status.lag > INDEX_LAG_FAIL {
        ComponentHealth::Failed(reason)
    } else {
        ComponentHealth::Degraded(reason)
    }
}

/// Returns the metrics of the index as Prometheus text.
pub(crate) async fn search_metrics(instance: &Arc<Instance>, role: &str) -> String {
    let counters = instance.search.counters();
    let mut text = String::new();
    for (name, help, value) in [
        (
            "documents_indexed",
            "Documents written to the full-text index; the indexing load.",
            &counters.indexed_documents,
        ),
        (
            "documents_failed",
            "Documents that could not be indexed completely; a rise means damaged uploads.",
            &counters.failed_documents,
        ),
        (
            "rebuilds",
            "Full rebuilds of the index; a rise means that it was damaged or too far behind.",
            &counters.rebuilds,
        ),
        (
            "pauses",
            "Times that index updates were interrupted; a rise means a full disk or a failing store.",
            &counters.pauses,
        ),
        ("queries", "Full-text queries; the query load.", &counters.queries),
        (
            "failed_queries",
            "Full-text queries that were refused or failed.",
            &counters.failed_queries,
        ),
    ] {
        let value = value.load(Ordering::Relaxed);
        let name = format!("tympan_search_{name}_total");
        // Writing to a string cannot fail.
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
    let Ok(status) = index_status(instance, SystemTime::now()).await else { return text };
    for (name, help, value) in [
        ("documents", "Documents in the full-text index.", status.documents as f64),
        ("bytes", "Bytes of the index files.", status.bytes as f64),
        (
            "lag_revisions",
            "Content revisions that are not indexed yet.",
            status.lag_revisions as f64,
        ),
        (
            "lag_seconds",
            "Age of the oldest revision that is not indexed yet.",
            status.lag.as_secs_f64(),
        ),
    ] {
        let name = format!("tympan_search_{name}");
        write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{role=\"{role}\"}} {value}\n"
        )
        .ok();
    }
    text
}

/// Requests the status of the index, which reads the history of the content.
async fn index_status(
    instance: &Arc<Instance>,
    now: SystemTime,
) -> Result<SearchIndexStatus, String> {
    let search = instance.search.clone();
    let read_status = move || search.status(now).map_err(|error| error.to_string());
    tokio::task::spawn_blocking(read_status).await.map_err(|error| error.to_string())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_wrong() {
        let (young, old) = (Duration::from_secs(1), Duration::from_mins(1));
        let building = SearchIndexStatus::default();
        assert_eq!(index_health_of(&building, young), ComponentHealth::Healthy);
        let reason = "the full-text index is being built".to_owned();
        assert_eq!(index_health_of(&building, old), ComponentHealth::Degraded(reason));
        let paused = SearchIndexStatus {
            pause_reason: Some("no space".to_owned()),
            ..SearchIndexStatus::default()
        };
        let reason = "the full-text index is not being updated: no space".to_owned();
        assert_eq!(index_health_of(&paused, young), ComponentHealth::Failed(reason));
    }

    #[test]
    fn an_index_that_stays_behind_has_failed() {
        let behind = |seconds| SearchIndexStatus {
            indexed_root: Some(tympan_content::ChunkId::from_bytes([1; 32])),
            lag: Duration::from_secs(seconds),
            lag_revisions: 3,
            ..SearchIndexStatus::default()
        };
        let reason = |seconds| {
            format!("the full-text index is 3 revisions and {seconds} s behind the content")
        };
        for (seconds, expected) in [
            (10, ComponentHealth::Healthy),
            (11, ComponentHealth::Degraded(reason(11))),
            (30, ComponentHealth::Degraded(reason(30))),
            (31, ComponentHealth::Failed(reason(31))),
        ] {
            assert_eq!(index_health_of(&behind(seconds), Duration::ZERO), expected);
        }
    }
}
