//! The full-text index in `/health` and `/metrics`.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tympan_search::Status;

use crate::Instance;
use crate::readiness::Condition;

/// The index may be behind for so long, and the first one may take so long to build, before health says so.
const LAG_WARN: Duration = Duration::from_secs(10);
/// An index that is behind for so long does not do its work.
const LAG_FAIL: Duration = Duration::from_secs(30);

/// Tells the condition of the index.
pub(crate) async fn condition(instance: &Arc<Instance>, now: SystemTime) -> Condition {
    let age = now.duration_since(instance.started).unwrap_or_default();
    match status(instance, now).await {
        Ok(status) => condition_of(&status, age),
        Err(reason) => Condition::Failed(reason),
    }
}

fn condition_of(status: &Status, age: Duration) -> Condition {
    if let Some(reason) = &status.paused {
        return Condition::Failed(format!("the full-text index does not follow: {reason}"));
    }
    if status.indexed_root.is_none() {
        let progress = status.rebuilding.map_or_else(String::new, |progress| {
            format!(": {} of {} documents are read", progress.done, progress.total)
        });
        // It ends by itself, and searches say meanwhile what they lack.
        let building = || format!("the full-text index is being built{progress}");
        return Condition::of_warning((age > LAG_WARN).then(building));
    }
    if status.lag <= LAG_WARN {
        return Condition::Well;
    }
    let (revisions, seconds) = (status.lag_revisions, status.lag.as_secs());
    let reason =
        format!("the full-text index is {revisions} revisions and {seconds} s behind the content");
    if status.lag > LAG_FAIL { Condition::Failed(reason) } else { Condition::Degraded(reason) }
}

/// Writes what the index counts as Prometheus text.
pub(crate) async fn metrics(instance: &Arc<Instance>, role: &str) -> String {
    let counters = instance.search.counters();
    let mut text = String::new();
    for (name, help, value) in [
        (
            "indexed",
            "Documents written to the full-text index; the load of following.",
            &counters.indexed,
        ),
        (
            "failed",
            "Documents of which a part could not be indexed; a rise means damaged uploads.",
            &counters.failed,
        ),
        (
            "rebuilds",
            "Builds of the index from nothing; a rise means that it was damaged or left behind.",
            &counters.rebuilds,
        ),
        (
            "pauses",
            "Times that the index could not follow; a rise means a full disk or a failing store.",
            &counters.pauses,
        ),
        ("queries", "Full-text queries; the load.", &counters.queries),
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
    let Ok(status) = status(instance, SystemTime::now()).await else { return text };
    for (name, help, value) in [
        ("documents", "Documents in the full-text index.", status.documents as f64),
        ("bytes", "Bytes of the files of the index.", status.bytes as f64),
        (
            "lag_revisions",
            "Revisions of the content that are not in the index yet.",
            status.lag_revisions as f64,
        ),
        ("lag_seconds", "How old the oldest of them is.", status.lag.as_secs_f64()),
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

/// Asks the index, which reads the history of the content.
async fn status(instance: &Arc<Instance>, now: SystemTime) -> Result<Status, String> {
    let search = instance.search.clone();
    let status = tokio::task::spawn_blocking(move || search.status(now)).await;
    status.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_wrong() {
        let (young, old) = (Duration::from_secs(1), Duration::from_mins(1));
        let building = Status::default();
        assert_eq!(condition_of(&building, young), Condition::Well);
        let reason = "the full-text index is being built".to_owned();
        assert_eq!(condition_of(&building, old), Condition::Degraded(reason));
        let paused = Status { paused: Some("no space".to_owned()), ..Status::default() };
        let reason = "the full-text index does not follow: no space".to_owned();
        assert_eq!(condition_of(&paused, young), Condition::Failed(reason));
    }

    #[test]
    fn an_index_that_stays_behind_has_failed() {
        let behind = |seconds| Status {
            indexed_root: Some(tympan_content::ChunkId::from_bytes([1; 32])),
            lag: Duration::from_secs(seconds),
            lag_revisions: 3,
            ..Status::default()
        };
        let reason = |seconds| {
            format!("the full-text index is 3 revisions and {seconds} s behind the content")
        };
        for (seconds, expected) in [
            (10, Condition::Well),
            (11, Condition::Degraded(reason(11))),
            (30, Condition::Degraded(reason(30))),
            (31, Condition::Failed(reason(31))),
        ] {
            assert_eq!(condition_of(&behind(seconds), Duration::ZERO), expected);
        }
    }
}
