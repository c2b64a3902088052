//! Queues and jobs: what waits, what runs, what failed, and what to do about it.
//!
//! Only the administrator may ask: a job holds what any user asked for. Queues are configured in content, so that what is
//! set here is seen by all processes and by packages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Query, Request, State};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use http::StatusCode;
use http::request::Parts;
use serde_json::{Map, Value, json};
use tympan_content::{Date, NodePath, Property, Session, Value as NodeValue, ValueType};
use tympan_jobs::{
    CONFIG_TYPE, Job, JobFilter, JobId, JobState, MAIN_QUEUE, QUEUE_FACTORY, QueueConfig, QueueSet,
    TopicStatistics, set_queue_property,
};

use crate::Instance;
use crate::api::require_user;
use crate::failure::{Failure, Result};
use crate::login::{CSRF_HEADER, Identity, check_csrf, check_origin};

const ADMIN: &str = "admin";
/// The most jobs of one answer.
const MAX_JOBS: u32 = 1000;
/// Where configurations that are made here are stored, as AEM's console does.
const CONFIG_FOLDER: &str = "/apps/system/config";
/// Properties of a queue that may be set.
const PROPERTIES: &[&str] = &[
    "queue.name",
    "queue.topics",
    "queue.type",
    "queue.maxparallel",
    "queue.retries",
    "queue.retrydelay",
    "queue.priority",
    "queue.keepJobs",
    "service.ranking",
];
/// What this program does something with; other configurations are listed as ignored.
const KNOWN: &[&str] = &[QUEUE_FACTORY, tympan_jobs::MAIN_QUEUE_PID];

pub(crate) fn routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/api/v1/jobs", get(list))
        .route("/api/v1/jobs/topics", get(topics))
        .route("/api/v1/jobs/queues", get(queues).post(add_queue))
        .route("/api/v1/jobs/queues/set", post(set))
        .route("/api/v1/jobs/queues/pause", post(pause))
        .route("/api/v1/jobs/queues/resume", post(resume))
        .route("/api/v1/jobs/retry", post(retry))
        .route("/api/v1/jobs/stop", post(stop))
        .route("/api/v1/jobs/cancel", post(cancel))
        .route("/api/v1/jobs/schedules", get(schedules))
        .route("/api/v1/jobs/configurations", get(configurations))
}

type Parameters = BTreeMap<String, String>;

/// Tells who asks, or refuses all but the administrator.
async fn require_admin(instance: &Instance, parts: &Parts) -> Result<Identity> {
    let identity = require_user(instance, parts).await?;
    if identity.user != ADMIN {
        let message = "only the administrator may look after jobs";
        return Err(Failure::new(StatusCode::FORBIDDEN, message));
    }
    if !parts.method.is_safe() {
        let token = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
        check_csrf(&identity, token)?;
        check_origin(&identity, &parts.headers)?;
    }
    Ok(identity)
}

async fn admin_of(instance: &Instance, request: Request) -> Result<Identity> {
    require_admin(instance, &request.into_parts().0).await
}

fn iso(time: SystemTime) -> String {
    Date::from_system_time(time).to_string()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn statistics_json(statistics: &TopicStatistics) -> Map<String, Value> {
    let value = json!({
        "queued": statistics.queued,
        "active": statistics.active,
        "finished": statistics.finished,
        "failed": statistics.failed,
        "cancelled": statistics.cancelled,
        "givenUp": statistics.given_up,
        "averageWaitMs": millis(statistics.average_wait()),
        "averageRunMs": millis(statistics.average_run()),
        "lastEnded": statistics.last_ended.map(iso),
    });
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// Lists the topics that were seen, with their queue.
async fn topics(State(instance): State<Arc<Instance>>, request: Request) -> Result<Json<Value>> {
    admin_of(&instance, request).await?;
    let worker = instance.configurator.worker();
    let set = worker.queue_set();
    let found = instance.queues.topics().await?;
    let topics = found.iter().map(|(topic, statistics)| {
        let mut members = statistics_json(statistics);
        members.insert("topic".to_owned(), topic.as_str().into());
        members.insert("queue".to_owned(), set.queue_of(topic).name.into());
        members.insert("handled".to_owned(), worker.handles(topic).into());
        Value::Object(members)
    });
    Ok(Json(json!({ "topics": topics.collect::<Vec<_>>() })))
}

fn queue_json(config: &QueueConfig, cores: usize) -> Map<String, Value> {
    let value = json!({
        "pid": config.pid,
        "path": config.path,
        "topics": config.topics.iter().map(tympan_jobs::TopicPattern::text).collect::<Vec<_>>(),
        "type": config.kind.name(),
        "maxParallel": config.max_parallel.number(),
        "parallelHere": config.max_parallel.jobs(cores),
        "retries": config.retries.map_or(-1, i64::from),
        "retryDelayMs": millis(config.retry_delay),
        "keepJobs": config.is_keeping_jobs,
        "ranking": config.ranking,
    });
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// Adds up the statistics of each queue that a topic gave rise to, or that is configured under a plain name.
fn by_queue(
    set: &QueueSet,
    topics: &BTreeMap<String, TopicStatistics>,
) -> BTreeMap<String, TopicStatistics> {
    let mut queues: BTreeMap<String, TopicStatistics> = BTreeMap::new();
    for config in set.all().filter(|config| !config.name.contains("{0}")) {
        queues.entry(config.name.clone()).or_default();
    }
    for (topic, statistics) in topics {
        queues.entry(set.queue_of(topic).name).or_default().add(statistics);
    }
    queues
}

/// Lists the queues with their configuration and statistics, and the processes that work on them.
async fn queues(State(instance): State<Arc<Instance>>, request: Request) -> Result<Json<Value>> {
    admin_of(&instance, request).await?;
    let worker = instance.configurator.worker();
    let set = worker.queue_set();
    let topics = instance.queues.topics().await?;
    let paused = instance.queues.paused().await?;
    let load = worker.load();
    let mut listed = Vec::new();
    for (name, statistics) in by_queue(&set, &topics) {
        let Some(config) = set.config_of(&name) else { continue };
        let mut members = queue_json(config, worker.options().cores);
        members.extend(statistics_json(&statistics));
        members.insert("paused".to_owned(), paused.contains(&name).into());
        members.insert("runningHere".to_owned(), load.get(&name).map_or(0, |load| load.0).into());
        members.insert("name".to_owned(), name.into());
        listed.push(Value::Object(members));
    }
    let workers = instance.queues.workers(SystemTime::now()).await?;
    let workers = workers.iter().map(|one| json!({ "name": one.name, "role": one.role }));
    Ok(Json(json!({ "queues": listed, "workers": workers.collect::<Vec<_>>() })))
}

fn job_json(job: &Job, set: &QueueSet) -> Value {
    json!({
        "id": job.id.0,
        "topic": job.topic,
        "queue": set.queue_of(&job.topic).name,
        "state": job.state.name(),
        "properties": job.properties,
        "key": job.key,
        "priority": job.priority.rank(),
        "tenant": job.tenant,
        "attempt": job.attempt,
        "runAt": iso(job.run_at),
        "created": iso(job.created),
        "started": job.started.map(iso),
        "ended": job.ended.map(iso),
        "user": job.user,
        "worker": job.worker,
        "progress": job.progress.as_ref().map(|progress| json!({
            "done": progress.done, "total": progress.total, "message": progress.message,
        })),
        "lastError": job.last_error,
    })
}

/// Returns the topics of a queue.
async fn topics_of(instance: &Instance, queue: &str) -> Result<Vec<String>> {
    let set = instance.configurator.worker().queue_set();
    let topics = instance.queues.topics().await?;
    Ok(topics.into_keys().filter(|topic| set.queue_of(topic).name == queue).collect())
}

/// Lists jobs: of a topic, a queue, a state, after a number.
async fn list(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Json<Value>> {
    admin_of(&instance, request).await?;
    let mut filter = JobFilter::default();
    if let Some(topic) = parameters.get("topic") {
        filter.topics.push(topic.clone());
    } else if let Some(queue) = parameters.get("queue") {
        filter.topics = topics_of(&instance, queue).await?;
        if filter.topics.is_empty() {
            return Ok(Json(json!({ "jobs": [] })));
        }
    }
    if let Some(state) = parameters.get("state") {
        let names = JobState::ALL.map(JobState::name).join(", ");
        let found = JobState::find(state);
        let found =
            found.ok_or_else(|| Failure::bad_request(format!("`state` is one of {names}")))?;
        filter.state = Some(found);
    }
    filter.after = parameters.get("after").and_then(|id| id.parse().ok()).map(JobId);
    let limit = parameters.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(100);
    let jobs = instance.queues.list(&filter, limit.clamp(1, MAX_JOBS)).await?;
    let set = instance.configurator.worker().queue_set();
    Ok(Json(json!({ "jobs": jobs.iter().map(|job| job_json(job, &set)).collect::<Vec<_>>() })))
}

async fn schedules(State(instance): State<Arc<Instance>>, request: Request) -> Result<Json<Value>> {
    admin_of(&instance, request).await?;
    let schedules = instance.queues.schedules().await?;
    let schedules = schedules.iter().map(|one| {
        json!({
            "name": one.name, "topic": one.topic, "rule": one.rule, "properties": one.properties,
            "nextRun": one.next_run.map(iso), "user": one.user,
        })
    });
    Ok(Json(json!({ "schedules": schedules.collect::<Vec<_>>() })))
}

/// Lists what configurations there are, which nobody here knows, and what is wrong with others.
async fn configurations(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Json<Value>> {
    admin_of(&instance, request).await?;
    let configs = instance.configurator.configs();
    let ignored: Vec<&str> = configs.ignored(KNOWN).map(|config| config.pid.as_str()).collect();
    let all = configs.configs.iter().map(|config| {
        let is_ignored = ignored.contains(&config.pid.as_str());
        json!({ "pid": config.pid, "path": config.path, "ignored": is_ignored })
    });
    let faults = configs.faults.iter();
    let faults = faults.map(|fault| json!({ "path": fault.path, "message": fault.message }));
    Ok(Json(json!({
        "configurations": all.collect::<Vec<_>>(), "faults": faults.collect::<Vec<_>>(),
    })))
}

/// A form's fields, which may be repeated.
struct Fields(Vec<(String, String)>);

impl Fields {
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn one(&self, name: &str) -> Result<&str> {
        let found = self.all(name).find(|value| !value.is_empty());
        found.ok_or_else(|| Failure::bad_request(format!("say `{name}`")))
    }

    /// Returns the properties that are to be set, as `name=value`.
    fn settings(&self) -> Result<Vec<(String, Value)>> {
        let mut settings: Vec<(String, Value)> = Vec::new();
        for text in self.all("set") {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            if !PROPERTIES.contains(&name) {
                return Err(Failure::bad_request(format!(
                    "`{name}` is no property of a queue; there are {}",
                    PROPERTIES.join(", ")
                )));
            }
            let value = match name {
                "queue.topics" => Value::from(value.split(',').collect::<Vec<_>>()),
                "queue.keepJobs" => Value::from(value == "true"),
                _ => Value::from(value),
            };
            // What cannot be read is refused before anything is stored.
            let mut trial = QueueConfig::new("trial", &[]);
            set_queue_property(&mut trial, name, &value).map_err(Failure::bad_request)?;
            settings.push((name.to_owned(), value));
        }
        Ok(settings)
    }
}

/// Makes a queue: a configuration in content.
async fn add_queue(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Vec<(String, String)>>,
) -> Result<Json<Value>> {
    let identity = require_admin(&instance, &parts).await?;
    let fields = Fields(form);
    let name = fields.one("name")?.to_owned();
    let topics: Vec<&str> = fields.all("topic").filter(|topic| !topic.trim().is_empty()).collect();
    if topics.is_empty() {
        return Err(Failure::bad_request("say which topics it takes: `topic`"));
    }
    let set = instance.configurator.worker().queue_set();
    if set.config_of(&name).is_some() {
        let message = format!("there is a queue `{name}` already; change it with `set`");
        return Err(Failure::new(StatusCode::CONFLICT, message));
    }
    let mut settings = vec![
        ("queue.name".to_owned(), Value::from(name.as_str())),
        ("queue.topics".to_owned(), Value::from(topics)),
    ];
    settings.extend(fields.settings()?);
    let pid = format!("{QUEUE_FACTORY}-{}", pid_part(&name));
    store(&instance, identity, format!("{CONFIG_FOLDER}/{pid}"), settings).await?;
    Ok(Json(json!({ "queue": name, "pid": pid })))
}

/// Returns the part of a PID that names a queue.
fn pid_part(name: &str) -> String {
    let kept = |letter: char| {
        if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' }
    };
    name.chars().map(kept).collect()
}

/// Changes properties of a queue where it is configured; one that comes with the program gets a configuration.
async fn set(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Vec<(String, String)>>,
) -> Result<Json<Value>> {
    let identity = require_admin(&instance, &parts).await?;
    let fields = Fields(form);
    let name = fields.one("queue")?.to_owned();
    let settings = fields.settings()?;
    let set = instance.configurator.worker().queue_set();
    let missing = || Failure::new(StatusCode::NOT_FOUND, format!("there is no queue `{name}`"));
    let config = set.config_of(&name).ok_or_else(missing)?;
    let path = match &config.path {
        Some(path) if path.ends_with(".config") || path.ends_with(".json") => {
            let message =
                format!("the queue `{name}` is configured by the file `{path}`; change that");
            return Err(Failure::new(StatusCode::CONFLICT, message));
        }
        Some(path) => path.clone(),
        None => format!("{CONFIG_FOLDER}/{}", config.pid),
    };
    store(&instance, identity, path, settings).await?;
    let set = instance.configurator.worker().queue_set();
    let config = set.config_of(&name).or_else(|| set.find(MAIN_QUEUE)).ok_or_else(missing)?;
    Ok(Json(Value::Object(queue_json(config, instance.configurator.worker().options().cores))))
}

/// Stores properties of a configuration, and has them applied.
async fn store(
    instance: &Arc<Instance>,
    identity: Identity,
    path: String,
    settings: Vec<(String, Value)>,
) -> Result<()> {
    instance
        .work(move |instance| {
            let path = NodePath::new(&path)?;
            let mut session = instance.repository.session(&identity.user)?;
            add_folders(&mut session, &path)?;
            if session.node(&path)?.is_none() {
                session.add_node(&path, CONFIG_TYPE)?;
            }
            for (name, value) in &settings {
                session.set_property(&path, name, property_of(name, value))?;
            }
            session.commit("configure a queue", SystemTime::now())?;
            instance.configurator.refresh()?;
            Ok(())
        })
        .await
}

fn property_of(name: &str, value: &Value) -> Property {
    let text = value.as_str().unwrap_or_default();
    match (name, value) {
        (_, Value::Array(values)) => {
            let texts = values.iter().filter_map(Value::as_str);
            let texts = texts.map(|text| NodeValue::String(text.trim().to_owned()));
            Property::List(ValueType::String, texts.collect())
        }
        (_, Value::Bool(truth)) => Property::Single(NodeValue::Boolean(*truth)),
        ("queue.maxparallel", _) => match text.trim().parse() {
            Ok(number) => Property::Single(NodeValue::Double(number)),
            Err(_) => Property::text(text),
        },
        ("queue.retries" | "queue.retrydelay" | "service.ranking", _) => {
            match text.trim().parse() {
                Ok(number) => Property::Single(NodeValue::Long(number)),
                Err(_) => Property::text(text),
            }
        }
        _ => Property::text(text),
    }
}

fn add_folders(session: &mut Session, path: &NodePath) -> Result<()> {
    let mut missing = Vec::new();
    let mut at = path.parent();
    while let Some(folder) = at {
        if folder.is_root() || session.node(&folder)?.is_some() {
            break;
        }
        at = folder.parent();
        missing.push(folder);
    }
    for folder in missing.iter().rev() {
        session.add_node(folder, "sling:Folder")?;
    }
    Ok(())
}

async fn pause(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Vec<(String, String)>>,
) -> Result<Json<Value>> {
    let identity = require_admin(&instance, &parts).await?;
    let fields = Fields(form);
    let name = queue_named(&instance, fields.one("queue")?)?;
    instance.queues.pause(&name, &identity.user, SystemTime::now()).await?;
    Ok(Json(json!({ "queue": name, "paused": true })))
}

async fn resume(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Vec<(String, String)>>,
) -> Result<Json<Value>> {
    require_admin(&instance, &parts).await?;
    let fields = Fields(form);
    // Also one that is no longer configured.
    let name = fields.one("queue")?;
    let was_paused = instance.queues.resume(name).await?;
    Ok(Json(json!({ "queue": name, "paused": false, "changed": was_paused })))
}

fn queue_named(instance: &Instance, name: &str) -> Result<String> {
    let set = instance.configurator.worker().queue_set();
    let found = set.config_of(name).map(|_| name.to_owned());
    found.ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, format!("there is no queue `{name}`")))
}

/// Lets a job run again now, or all of a queue that were given up.
async fn retry(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Vec<(String, String)>>,
) -> Result<Json<Value>> {
    require_admin(&instance, &parts).await?;
    let fields = Fields(form);
    let now = SystemTime::now();
    let count = match fields.one("queue") {
        Ok(queue) => {
            let topics = topics_of(&instance, queue).await?;
            instance.queues.retry_all(&topics, now).await?
        }
        Err(_) => u64::from(instance.queues.retry(job_of(&fields)?, now).await?),
    };
    instance.replicator.ring();
    Ok(Json(json!({ "changed": count > 0, "jobs": count })))
}

/// Asks a running job to stop.
async fn stop(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Vec<(String, String)>>,
) -> Result<Json<Value>> {
    require_admin(&instance, &parts).await?;
    let id = job_of(&Fields(form))?;
    Ok(Json(json!({ "changed": instance.queues.stop(id).await? })))
}

/// Removes a job that does not run.
async fn cancel(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Vec<(String, String)>>,
) -> Result<Json<Value>> {
    require_admin(&instance, &parts).await?;
    let id = job_of(&Fields(form))?;
    let is_done = instance.queues.cancel(id).await?;
    instance.replicator.ring();
    Ok(Json(json!({ "changed": is_done })))
}

fn job_of(fields: &Fields) -> Result<JobId> {
    let id = fields.one("id")?.parse();
    id.map(JobId).map_err(|_| Failure::bad_request("`id` is a job's number"))
}

/// Tells what is wrong with the queues: too many wait, or a job runs for too long.
pub(crate) async fn fault(instance: &Instance, now: SystemTime) -> Option<String> {
    let topics = match instance.queues.topics().await {
        Ok(topics) => topics,
        Err(error) => return Some(error.to_string()),
    };
    let set = instance.configurator.worker().queue_set();
    for (name, statistics) in by_queue(&set, &topics) {
        if statistics.queued > QUEUED_WARN {
            return Some(format!("{} jobs wait in the queue `{name}`", statistics.queued));
        }
    }
    let oldest = instance.queues.oldest_active().await.ok().flatten()?;
    let age = now.duration_since(oldest).unwrap_or_default();
    (age > ACTIVE_WARN).then(|| format!("a job has been running for {} min", age.as_secs() / 60))
}

/// The longest that a queue may grow before health says so.
const QUEUED_WARN: u64 = 1000;
/// How long a job may run before health says so.
const ACTIVE_WARN: Duration = Duration::from_hours(1);

/// Returns the counters as Prometheus text.
pub(crate) async fn metrics(instance: &Instance, role: &str) -> String {
    let Ok(topics) = instance.queues.topics().await else { return String::new() };
    let set = instance.configurator.worker().queue_set();
    let queues = by_queue(&set, &topics);
    let mut text = String::new();
    type Read = fn(&TopicStatistics) -> f64;
    let rows: [(&str, &str, &str, Read); 7] = [
        ("tympan_jobs_queued", "gauge", "Jobs that wait in a queue.", |of| of.queued as f64),
        ("tympan_jobs_active", "gauge", "Jobs of a queue that run.", |of| of.active as f64),
        ("tympan_jobs_given_up", "gauge", "Jobs that wait for someone after they failed.", |of| {
            of.given_up as f64
        }),
        ("tympan_jobs_finished_total", "counter", "Jobs that were done.", |of| of.finished as f64),
        ("tympan_jobs_failed_total", "counter", "Attempts that failed.", |of| of.failed as f64),
        ("tympan_jobs_wait_seconds_total", "counter", "Time that finished jobs waited.", |of| {
            of.waited.as_secs_f64()
        }),
        ("tympan_jobs_run_seconds_total", "counter", "Time that finished jobs ran.", |of| {
            of.ran.as_secs_f64()
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
