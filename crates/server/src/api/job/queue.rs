//! Job queues: their configuration, and whether they start jobs.

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_content::{NodePath, Property, Session, Value as NodeValue, ValueType, Viewer};
use tympan_jobs::{
    MAIN_QUEUE, OSGI_CONFIG_NODE_TYPE, QUEUE_FACTORY, QueueConfig, TopicPattern, set_queue_property,
};

use super::JOB_ADMINISTRATION;
use super::statistics::{self, statistics_by_queue, to_millis};
use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::schema::{
    array_schema, count_schema, object_schema, partial_object_schema, reference_schema,
    schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};

/// Folder of the configurations that are created here, the same as that of AEM's console.
const CONFIG_FOLDER: &str = "/apps/system/config";
/// The properties of a queue that may be set.
pub(crate) const QUEUE_PROPERTIES: &[&str] = &[
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
/// Maximum length of a queue name, in characters: together with the PID it must be a valid node name.
const MAX_QUEUE_NAME_CHARS: usize = 150;
/// The PIDs that this program uses; other configurations are listed as ignored.
pub const SUPPORTED_CONFIG_PIDS: &[&str] = &[
    QUEUE_FACTORY,
    tympan_jobs::MAIN_QUEUE_PID,
    tympan_mounts::MOUNT_FACTORY,
    tympan_mounts::SYNCHRONIZATION_PIDS[0],
    tympan_mounts::SYNCHRONIZATION_PIDS[1],
    crate::write::sling_post::CREATE_ASSET_SERVLET_PID,
];

const SETTINGS_PARAMETER: EndpointParameter = EndpointParameter::new(
    "set",
    ParameterKind::Pairs,
    "A property and its value: `queue.retries=3`. May be repeated.",
);
const QUEUE_NAME_PARAMETER: EndpointParameter =
    EndpointParameter::required("queue", ParameterKind::NonEmptyText, "The name of the queue.");

/// The API endpoints that this module defines.
pub(crate) const QUEUE_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/jobs/queues",
        id: "listJobQueues",
        description: "Lists the queues with their configuration and statistics, and the processes that work \
            on them. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("JobQueues", "The queues.")],
        handler: EndpointHandler::Async(list_queues),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/jobs/queues",
        id: "addJobQueue",
        description: "Creates a queue, stored as a configuration in content. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            EndpointParameter::required(
                "name",
                ParameterKind::NonEmptyText,
                "The name of the queue.",
            ),
            EndpointParameter::required(
                "topic",
                ParameterKind::Texts,
                "A topic of the queue. May be repeated.",
            ),
            EndpointParameter::new(
                "pid",
                ParameterKind::Name,
                "The PID of the configuration: that of the factory, `-`, `~` or `.`, and a name. Default: \
                 from the name of the queue.",
            ),
            SETTINGS_PARAMETER,
        ]),
        responses: &[ResponseSpec::json("JobQueueMade", "The queue was created.")],
        handler: EndpointHandler::Async(add_queue),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/jobs/queues/set",
        id: "setJobQueue",
        description: "Changes properties of a queue where it is configured; a built-in queue gets a \
            configuration. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[QUEUE_NAME_PARAMETER, SETTINGS_PARAMETER]),
        responses: &[ResponseSpec::json(
            "JobQueueConfig",
            "The updated configuration of the queue.",
        )],
        handler: EndpointHandler::Async(change_queue),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/jobs/queues/pause",
        id: "pauseJobQueue",
        description: "Pauses a queue, so that it starts no more jobs. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[QUEUE_NAME_PARAMETER]),
        responses: &[ResponseSpec::json("JobQueuePaused", "The queue is paused.")],
        handler: EndpointHandler::Async(pause_queue),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/jobs/queues/resume",
        id: "resumeJobQueue",
        description: "Resumes a queue, even one that is no longer configured. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[QUEUE_NAME_PARAMETER]),
        responses: &[ResponseSpec::json("JobQueuePaused", "The queue is not paused.")],
        handler: EndpointHandler::Async(resume_queue),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/jobs/configurations",
        id: "listConfigurations",
        description: "Lists the configurations, including those that are unknown to this instance, and the \
            errors in them. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Configurations", "The configurations.")],
        handler: EndpointHandler::Blocking(list_configurations),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn queue_schemas() -> Map<String, Value> {
    let flag = || json!({ "type": "boolean" });
    let number = || json!({ "type": "number" });
    let config = || {
        vec![
            ("pid", text_schema()),
            ("path", text_or_null_schema()),
            ("topics", array_schema(text_schema())),
            ("type", text_schema()),
            ("maxParallel", number()),
            ("parallelHere", count_schema()),
            ("retries", json!({ "type": "integer", "minimum": -1 })),
            ("retryDelayMs", count_schema()),
            ("keepJobs", flag()),
            ("ranking", json!({ "type": "integer" })),
        ]
    };
    let mut queue = config();
    queue.extend(statistics::statistics_members());
    queue.extend([("paused", flag()), ("runningHere", count_schema()), ("name", text_schema())]);
    let worker = object_schema(&[("name", text_schema()), ("role", text_schema())]);
    let configuration =
        object_schema(&[("pid", text_schema()), ("path", text_schema()), ("ignored", flag())]);
    let fault = object_schema(&[("path", text_schema()), ("message", text_schema())]);
    let paused = [("queue", text_schema()), ("paused", flag()), ("changed", flag())];
    schemas_by_name([
        ("JobQueue", object_schema(&queue)),
        (
            "JobQueues",
            object_schema(&[
                ("queues", array_schema(reference_schema("JobQueue"))),
                ("workers", array_schema(worker)),
            ]),
        ),
        ("JobQueueMade", object_schema(&[("queue", text_schema()), ("pid", text_schema())])),
        ("JobQueueConfig", object_schema(&config())),
        ("JobQueuePaused", partial_object_schema(&["queue", "paused"], &paused)),
        (
            "Configurations",
            object_schema(&[
                ("configurations", array_schema(configuration)),
                ("faults", array_schema(fault)),
            ]),
        ),
    ])
}

fn queue_json(config: &QueueConfig, cores: usize) -> Map<String, Value> {
    let value = json!({
        "pid": config.pid,
        "path": config.path,
        "topics": config.topics.iter().map(TopicPattern::text).collect::<Vec<_>>(),
        "type": config.kind.name(),
        "maxParallel": config.max_parallel.to_number(),
        "parallelHere": config.max_parallel.job_limit(cores),
        "retries": config.retries.map_or(-1, i64::from),
        "retryDelayMs": to_millis(config.retry_delay),
        "keepJobs": config.keeps_finished_jobs,
        "ranking": config.ranking,
    });
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

fn list_queues(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let described = describe_queues(&call.instance, call.now).await?;
        Ok(ApiResponse::json(Value::Object(described)))
    })
}

/// Describes the queues and the processes that work on them.
pub(crate) async fn describe_queues(
    instance: &Instance,
    now: SystemTime,
) -> Result<Map<String, Value>> {
    let worker = instance.configurator.worker();
    let set = worker.queue_set();
    let topics = instance.queues.statistics().topic_statistics().await?;
    let paused = instance.queues.paused_queues().await?;
    let load = worker.queue_load();
    let mut listed = Vec::new();
    for (name, figures) in statistics_by_queue(&set, &topics) {
        let Some(config) = set.config_for_queue(&name) else { continue };
        let running = load.get(&name).map_or(0, |load| load.0);
        let mut members = queue_json(config, worker.options().cores);
        members.extend(statistics::statistics_json(&figures));
        members.insert("paused".to_owned(), paused.contains(&name).into());
        members.insert("runningHere".to_owned(), running.into());
        members.insert("name".to_owned(), name.into());
        listed.push(Value::Object(members));
    }
    let workers = instance.queues.statistics().live_workers(now).await?;
    let workers: Vec<Value> = workers
        .iter()
        .map(|queue_worker| json!({ "name": queue_worker.name, "role": queue_worker.role }))
        .collect();
    Ok(Map::from_iter([
        ("queues".to_owned(), Value::Array(listed)),
        ("workers".to_owned(), Value::Array(workers)),
    ]))
}

fn list_configurations(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator(JOB_ADMINISTRATION)?;
    Ok(ApiResponse::json(describe_configurations(instance)))
}

/// Describes the configurations in content, and the faults in them.
pub(crate) fn describe_configurations(instance: &Instance) -> Value {
    let configs = instance.configurator.configs();
    let ignored: Vec<&str> =
        configs.iter_unknown(SUPPORTED_CONFIG_PIDS).map(|config| config.pid.as_str()).collect();
    let all = configs.configs.iter().map(|config| {
        let is_ignored = ignored.contains(&config.pid.as_str());
        json!({ "pid": config.pid, "path": config.path, "ignored": is_ignored })
    });
    let faults = configs.faults.iter();
    let faults = faults.map(|fault| json!({ "path": fault.path, "message": fault.message }));
    json!({ "configurations": all.collect::<Vec<_>>(), "faults": faults.collect::<Vec<_>>() })
}

/// Returns the properties to set, each given as `name=value`.
fn submitted_settings(call: &ApiRequest) -> Result<Vec<(String, Value)>> {
    let mut settings: Vec<(String, Value)> = Vec::new();
    for text in call.parameter_values("set") {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        if !QUEUE_PROPERTIES.contains(&name) {
            let name: String = name.chars().take(100).collect();
            let property_names = QUEUE_PROPERTIES.join(", ");
            let message =
                format!("`{name}` is not a property of a queue; use one of {property_names}");
            return Err(RequestFailure::unprocessable(message));
        }
        let value = match name {
            "queue.topics" => Value::from(value.split(',').collect::<Vec<_>>()),
            "queue.keepJobs" => Value::from(value == "true"),
            _ => Value::from(value),
        };
        // Refuse unreadable values before anything is stored.
        let mut trial = QueueConfig::new("trial", &[]);
        set_queue_property(&mut trial, name, &value).map_err(RequestFailure::unprocessable)?;
        settings.push((name.to_owned(), value));
    }
    Ok(settings)
}

fn add_queue(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let instance = &call.instance;
        let name = call.parameter("name").unwrap_or_default().to_owned();
        if name.chars().count() > MAX_QUEUE_NAME_CHARS {
            return Err(RequestFailure::unprocessable(format!(
                "the name of a queue can have at most {MAX_QUEUE_NAME_CHARS} characters"
            )));
        }
        let topics: Vec<&str> =
            call.parameter_values("topic").filter(|topic| !topic.trim().is_empty()).collect();
        if topics.is_empty() {
            return Err(RequestFailure::unprocessable(
                "`topic` is missing: specify the topics of the queue",
            ));
        }
        let set = instance.configurator.worker().queue_set();
        if set.config_for_queue(&name).is_some() {
            let message = format!("there is a queue `{name}` already; change it with `set`");
            return Err(RequestFailure::new(StatusCode::CONFLICT, message));
        }
        let mut settings = vec![
            ("queue.name".to_owned(), Value::from(name.as_str())),
            ("queue.topics".to_owned(), Value::from(topics)),
        ];
        settings.extend(submitted_settings(&call)?);
        let pid = match call.parameter("pid") {
            Some(pid) if is_queue_pid(pid) => pid.to_owned(),
            Some(_) => {
                let message = format!("`pid` must be `{QUEUE_FACTORY}~` with a name");
                return Err(RequestFailure::unprocessable(message));
            }
            None => format!("{QUEUE_FACTORY}-{}", pid_suffix(&name)),
        };
        store_settings((instance, &call.viewer), configuration_path(&pid), settings).await?;
        Ok(ApiResponse::json(json!({ "queue": name, "pid": pid })))
    })
}

/// Returns true if a PID is that of a queue which content configures.
fn is_queue_pid(pid: &str) -> bool {
    let name = pid.strip_prefix(QUEUE_FACTORY);
    let name = name.and_then(|rest| rest.strip_prefix(['-', '~', '.']));
    name.is_some_and(|name| !name.is_empty())
}

/// Returns the path of a configuration that is created here.
pub(crate) fn configuration_path(pid: &str) -> String {
    format!("{CONFIG_FOLDER}/{pid}")
}

/// Returns the suffix of a PID that identifies a queue.
fn pid_suffix(name: &str) -> String {
    let safe_letter = |letter: char| {
        if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' }
    };
    name.chars().map(safe_letter).collect()
}

fn change_queue(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let instance = call.instance.clone();
        let name = call.parameter("queue").unwrap_or_default().to_owned();
        let settings = submitted_settings(&call)?;
        let set = instance.configurator.worker().queue_set();
        let config = set.config_for_queue(&name).ok_or_else(|| missing_queue_failure(&name))?;
        let path = match &config.path {
            Some(path) if path.ends_with(".config") || path.ends_with(".json") => {
                let message = format!(
                    "the queue `{name}` is configured in the file `{path}`; change it there"
                );
                return Err(RequestFailure::new(StatusCode::CONFLICT, message));
            }
            Some(path) => path.clone(),
            None => configuration_path(&config.pid),
        };
        store_settings((&instance, &call.viewer), path, settings).await?;
        let worker = instance.configurator.worker();
        let set = worker.queue_set();
        let config = set.config_for_queue(&name).or_else(|| set.find_config(MAIN_QUEUE));
        let config = config.ok_or_else(|| missing_queue_failure(&name))?;
        Ok(ApiResponse::json(Value::Object(queue_json(config, worker.options().cores))))
    })
}

fn missing_queue_failure(name: &str) -> RequestFailure {
    let name: String = name.chars().take(100).collect();
    RequestFailure::new(StatusCode::NOT_FOUND, format!("there is no queue `{name}`"))
}

/// Stores properties of a configuration and applies them.
pub(crate) async fn store_settings(
    (instance, viewer): (&Arc<Instance>, &Viewer),
    path: String,
    settings: Vec<(String, Value)>,
) -> Result<()> {
    let viewer = viewer.clone();
    instance
        .run_work(move |instance| {
            let path = NodePath::new(&path)?;
            let mut session = instance.repository.session_as(&viewer)?;
            add_folders(&mut session, &path)?;
            if session.node(&path)?.is_none() {
                session.add_node(&path, OSGI_CONFIG_NODE_TYPE)?;
            }
            for (name, value) in &settings {
                session.set_property(&path, name, setting_property(name, value))?;
            }
            session.commit("change a configuration", SystemTime::now())?;
            instance.configurator.refresh_configs()?;
            Ok(())
        })
        .await
}

fn setting_property(name: &str, value: &Value) -> Property {
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
        ("queue.retries" | "queue.retrydelay" | "service.ranking" | "scheduler.period", _) => {
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

fn pause_queue(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let name = call.parameter("queue").unwrap_or_default();
        if call.instance.configurator.worker().queue_set().config_for_queue(name).is_none() {
            return Err(missing_queue_failure(name));
        }
        call.instance.queues.pause_queue(name, call.user_name(), call.now).await?;
        Ok(ApiResponse::json(json!({ "queue": name, "paused": true })))
    })
}

fn resume_queue(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let name = call.parameter("queue").unwrap_or_default();
        let was_paused = call.instance.queues.resume_queue(name).await?;
        Ok(ApiResponse::json(json!({ "queue": name, "paused": false, "changed": was_paused })))
    })
}
