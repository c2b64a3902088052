//! Statistics of topics and queues: for responses, health checks and metrics.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use tympan_jobs::{QueueSet, TopicStatistics};

use crate::Instance;
use crate::api::iso_time::to_iso_time;
use crate::api::schema::{count_schema, text_or_null_schema};
use crate::observe::readiness_probe::ComponentHealth;

/// Number of queued jobs above which a health check warns.
const QUEUED_JOBS_WARN_LIMIT: u64 = 1000;
/// Time that a job may run before a health check warns.
const ACTIVE_JOB_WARN_AGE: Duration = Duration::from_hours(1);
/// How long a permanently failed job counts as a failure of the instance, unless an administrator handles it.
const FAILED_JOB_WARN_PERIOD: Duration = Duration::from_hours(24);
/// Maximum number of topics of failed jobs that are named.
const MAX_NAMED_FAILED_TOPICS: usize = 3;

/// Returns the members that describe statistics, with their schemas.
pub(super) fn statistics_members() -> Vec<(&'static str, Value)> {
    const COUNTS: [&str; 8] = [
        "queued",
        "active",
        "finished",
        "failed",
        "cancelled",
        "givenUp",
        "averageWaitMs",
        "averageRunMs",
    ];
    let counts = COUNTS.into_iter().map(|name| (name, count_schema()));
    counts.chain([("lastEnded", text_or_null_schema())]).collect()
}

/// Describes statistics as JSON.
pub(crate) fn statistics_json(figures: &TopicStatistics) -> Map<String, Value> {
    let value = json!({
        "queued": figures.queued,
        "active": figures.active,
        "finished": figures.finished,
        "failed": figures.failed,
        "cancelled": figures.cancelled,
        "givenUp": figures.given_up,
        "averageWaitMs": to_millis(figures.average_wait()),
        "averageRunMs": to_millis(figures.average_run()),
        "lastEnded": figures.last_ended.map(to_iso_time),
    });
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

pub(super) fn to_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Sums the statistics by queue, for queues that topics created and queues configured under a plain name.
pub(super) fn statistics_by_queue(
    set: &QueueSet,
    topics: &BTreeMap<String, TopicStatistics>,
) -> BTreeMap<String, TopicStatistics> {
    let mut queues: BTreeMap<String, TopicStatistics> = BTreeMap::new();
    for config in set.iter_configs().filter(|config| !config.name.contains("{0}")) {
        queues.entry(config.name.clone()).or_default();
    }
    for (topic, figures) in topics {
        queues.entry(set.queue_for_topic(topic).name).or_default().merge(figures);
    }
    queues
}

/// Returns the health of the queues: whether they are processed, whether jobs failed permanently, whether too many jobs
/// wait, and whether a job runs for too long.
pub(crate) async fn queue_health(instance: &Instance, now: SystemTime) -> ComponentHealth {
    if let Some(reason) = instance.configurator.worker().claim_fault() {
        return ComponentHealth::Failed(format!("queues cannot be processed: {reason}"));
    }
    let since = now.checked_sub(FAILED_JOB_WARN_PERIOD).unwrap_or(SystemTime::UNIX_EPOCH);
    match instance.queues.statistics().count_given_up_since(since).await {
        Ok(topics) if topics.is_empty() => {}
        Ok(topics) => return ComponentHealth::Failed(failed_jobs_message(&topics)),
        Err(error) => return ComponentHealth::Failed(error.to_string()),
    }
    ComponentHealth::from_warning(queue_fault(instance, now).await)
}

/// Returns a message that names the permanently failed jobs and how to handle them.
fn failed_jobs_message(topics: &[(String, u64)]) -> String {
    let descriptions: Vec<String> = topics
        .iter()
        .take(MAX_NAMED_FAILED_TOPICS)
        .map(|(topic, count)| format!("{count} of the topic `{topic}`"))
        .collect();
    let more = if topics.len() > MAX_NAMED_FAILED_TOPICS { " and others" } else { "" };
    format!(
        "jobs failed permanently: {}{more}; see `tympan jobs list` for the reasons, and run `tympan jobs \
         retry` when the cause is fixed",
        descriptions.join(", ")
    )
}

/// Returns the fault of queues that are processed: too many jobs wait, or one job runs for too long.
async fn queue_fault(instance: &Instance, now: SystemTime) -> Option<String> {
    let topics = match instance.queues.statistics().topic_statistics().await {
        Ok(topics) => topics,
        Err(error) => return Some(error.to_string()),
    };
    let set = instance.configurator.worker().queue_set();
    for (name, statistics) in statistics_by_queue(&set, &topics) {
        if statistics.queued > QUEUED_JOBS_WARN_LIMIT {
            return Some(format!("{} jobs are waiting in the queue `{name}`", statistics.queued));
        }
    }
    if let Some(reason) = process_differences(instance, now).await.into_iter().next() {
        return Some(reason);
    }
    let oldest = instance.queues.statistics().oldest_active_start().await.ok().flatten()?;
    let age = now.duration_since(oldest).unwrap_or_default();
    (age > ACTIVE_JOB_WARN_AGE)
        .then(|| format!("a job has been running for {} min", age.as_secs() / 60))
}

/// Describes in which required respects other processes on the database differ from this one.
async fn process_differences(instance: &Instance, now: SystemTime) -> Vec<String> {
    let facts = &instance.configurator.worker().options().shared_facts;
    let unlike = match instance.queues.statistics().find_fact_mismatches(facts, now).await {
        Ok(unlike) => unlike,
        Err(error) => return vec![error.to_string()],
    };
    let words = |(fact, process): (String, tympan_jobs::WorkerProcess)| match &*fact {
        "mounts" => format!(
            "the process `{}` on this database has a different `[mounts]` section; make both the same",
            process.name
        ),
        _ => format!(
            "the process `{}` on this database uses a different {fact} folder; configure the same one for \
             both",
            process.name
        ),
    };
    unlike.into_iter().map(words).collect()
}

/// Returns the metrics of the jobs as Prometheus text.
pub(crate) async fn job_metrics(instance: &Instance, role: &str) -> String {
    let Ok(topics) = instance.queues.statistics().topic_statistics().await else {
        return String::new();
    };
    let set = instance.configurator.worker().queue_set();
    let queues = statistics_by_queue(&set, &topics);
    let mut text = String::new();
    type Read = fn(&TopicStatistics) -> f64;
    let rows: [(&str, &str, &str, Read); 7] = [
        ("tympan_jobs_queued", "gauge", "Jobs waiting in a queue.", |of| of.queued as f64),
        ("tympan_jobs_active", "gauge", "Running jobs of a queue.", |of| of.active as f64),
        (
            "tympan_jobs_given_up",
            "gauge",
            "Permanently failed jobs that await a manual retry or removal.",
            |of| of.given_up as f64,
        ),
        ("tympan_jobs_finished_total", "counter", "Finished jobs.", |of| of.finished as f64),
        ("tympan_jobs_failed_total", "counter", "Failed attempts.", |of| of.failed as f64),
        (
            "tympan_jobs_wait_seconds_total",
            "counter",
            "Total time that finished jobs waited.",
            |of| of.total_wait.as_secs_f64(),
        ),
        ("tympan_jobs_run_seconds_total", "counter", "Total time that finished jobs ran.", |of| {
            of.total_run.as_secs_f64()
        }),
    ];
    for (name, kind, about, read) in rows {
        text.push_str(&format!("# HELP {name} {about}\n# TYPE {name} {kind}\n"));
        for (queue, statistics) in &queues {
            let queue = queue.replace('\\', "\\\\").replace('"', "\\\"");
            let value = read(statistics);
            text.push_str(&format!("{name}{{role=\"{role}\",queue=\"{queue}\"}} {value}\n"));
        }
    }
    text
}
