//! Queues of jobs: how they are configured, and whether they begin anything.

use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_content::{NodePath, Property, Session, Value as NodeValue, ValueType};
use tympan_jobs::{
    CONFIG_TYPE, MAIN_QUEUE, QUEUE_FACTORY, QueueConfig, TopicPattern, set_queue_property,
};

use super::LOOK_AFTER;
use super::statistics::{self, by_queue, millis};
use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::schema::{array, count, named, object, reference, sent, text, text_or_null};
use crate::failure::{Failure, Result};

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
/// The longest name of a queue, in characters: with its PID it must be the name of a node.
const MAX_NAME: usize = 150;
/// What this program does something with; other configurations are listed as ignored.
const KNOWN: &[&str] = &[
    QUEUE_FACTORY,
    tympan_jobs::MAIN_QUEUE_PID,
    tympan_jobs::mount::MOUNT_FACTORY,
    tympan_jobs::mount::SYNCHRONIZATION_PIDS[0],
    tympan_jobs::mount::SYNCHRONIZATION_PIDS[1],
    crate::post::CREATE_ASSET_PID,
];

const SETTINGS: Parameter = Parameter::new(
    "set",
    Kind::Pairs,
    "A property and its value: `queue.retries=3`. May be repeated.",
);
const ONE_QUEUE: Parameter = Parameter::required("queue", Kind::Filled, "The name of the queue.");

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/jobs/queues",
        id: "listJobQueues",
        about: "Lists the queues with their configuration and figures, and the processes that work on them. For \
                administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("JobQueues", "The queues.")],
        handler: Handler::Task(queues),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/jobs/queues",
        id: "addJobQueue",
        about: "Makes a queue: a configuration in content. For administrators.",
        parameters: &[],
        body: Body::Form(&[
            Parameter::required("name", Kind::Filled, "The name of the queue."),
            Parameter::required("topic", Kind::Texts, "A topic that it takes. May be repeated."),
            SETTINGS,
        ]),
        answers: &[Answer::json("JobQueueMade", "It is there now.")],
        handler: Handler::Task(add),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/jobs/queues/set",
        id: "setJobQueue",
        about: "Changes properties of a queue where it is configured; one that comes with the program gets a \
                configuration. For administrators.",
        parameters: &[],
        body: Body::Form(&[ONE_QUEUE, SETTINGS]),
        answers: &[Answer::json("JobQueueConfig", "The queue as it is configured now.")],
        handler: Handler::Task(set),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/jobs/queues/pause",
        id: "pauseJobQueue",
        about: "Lets a queue begin nothing more. For administrators.",
        parameters: &[],
        body: Body::Form(&[ONE_QUEUE]),
        answers: &[Answer::json("JobQueuePaused", "It is paused.")],
        handler: Handler::Task(pause),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/jobs/queues/resume",
        id: "resumeJobQueue",
        about: "Lets a queue go on, also one that is no longer configured. For administrators.",
        parameters: &[],
        body: Body::Form(&[ONE_QUEUE]),
        answers: &[Answer::json("JobQueuePaused", "It is not paused.")],
        handler: Handler::Task(resume),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/jobs/configurations",
        id: "listConfigurations",
        about: "Lists what configurations there are, which nobody here knows, and what is wrong with others. For \
                administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Configurations", "The configurations.")],
        handler: Handler::Work(configurations),
    },
];

/// The schemas of this part.
pub(super) fn schemas() -> Map<String, Value> {
    let flag = || json!({ "type": "boolean" });
    let number = || json!({ "type": "number" });
    let config = || {
        vec![
            ("pid", text()),
            ("path", text_or_null()),
            ("topics", array(text())),
            ("type", text()),
            ("maxParallel", number()),
            ("parallelHere", count()),
            ("retries", json!({ "type": "integer", "minimum": -1 })),
            ("retryDelayMs", count()),
            ("keepJobs", flag()),
            ("ranking", json!({ "type": "integer" })),
        ]
    };
    let mut queue = config();
    queue.extend(statistics::members());
    queue.extend([("paused", flag()), ("runningHere", count()), ("name", text())]);
    let worker = object(&[("name", text()), ("role", text())]);
    let configuration = object(&[("pid", text()), ("path", text()), ("ignored", flag())]);
    let fault = object(&[("path", text()), ("message", text())]);
    let paused = [("queue", text()), ("paused", flag()), ("changed", flag())];
    named([
        ("JobQueue", object(&queue)),
        (
            "JobQueues",
            object(&[("queues", array(reference("JobQueue"))), ("workers", array(worker))]),
        ),
        ("JobQueueMade", object(&[("queue", text()), ("pid", text())])),
        ("JobQueueConfig", object(&config())),
        ("JobQueuePaused", sent(&["queue", "paused"], &paused)),
        (
            "Configurations",
            object(&[("configurations", array(configuration)), ("faults", array(fault))]),
        ),
    ])
}

fn queue_json(config: &QueueConfig, cores: usize) -> Map<String, Value> {
    let value = json!({
        "pid": config.pid,
        "path": config.path,
        "topics": config.topics.iter().map(TopicPattern::text).collect::<Vec<_>>(),
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

fn queues(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let instance = &call.instance;
        let worker = instance.configurator.worker();
        let set = worker.queue_set();
        let topics = instance.queues.topics().await?;
        let paused = instance.queues.paused().await?;
        let load = worker.load();
        let mut listed = Vec::new();
        for (name, figures) in by_queue(&set, &topics) {
            let Some(config) = set.config_of(&name) else { continue };
            let running = load.get(&name).map_or(0, |load| load.0);
            let mut members = queue_json(config, worker.options().cores);
            members.extend(statistics::described(&figures));
            members.insert("paused".to_owned(), paused.contains(&name).into());
            members.insert("runningHere".to_owned(), running.into());
            members.insert("name".to_owned(), name.into());
            listed.push(Value::Object(members));
        }
        let workers = instance.queues.workers(call.now).await?;
        let workers = workers.iter().map(|one| json!({ "name": one.name, "role": one.role }));
        Ok(Reply::json(json!({ "queues": listed, "workers": workers.collect::<Vec<_>>() })))
    })
}

fn configurations(instance: &Instance, call: &Call) -> Result<Reply> {
    call.require_administrator(LOOK_AFTER)?;
    let configs = instance.configurator.configs();
    let ignored: Vec<&str> = configs.ignored(KNOWN).map(|config| config.pid.as_str()).collect();
    let all = configs.configs.iter().map(|config| {
        let is_ignored = ignored.contains(&config.pid.as_str());
        json!({ "pid": config.pid, "path": config.path, "ignored": is_ignored })
    });
    let faults = configs.faults.iter();
    let faults = faults.map(|fault| json!({ "path": fault.path, "message": fault.message }));
    Ok(Reply::json(json!({
        "configurations": all.collect::<Vec<_>>(), "faults": faults.collect::<Vec<_>>(),
    })))
}

/// Returns the properties that are to be set, each as `name=value`.
fn settings_of(call: &Call) -> Result<Vec<(String, Value)>> {
    let mut settings: Vec<(String, Value)> = Vec::new();
    for text in call.texts("set") {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        if !PROPERTIES.contains(&name) {
            let name: String = name.chars().take(100).collect();
            let known = PROPERTIES.join(", ");
            let message = format!("`{name}` is no property of a queue; there are {known}");
            return Err(Failure::unfit(message));
        }
        let value = match name {
            "queue.topics" => Value::from(value.split(',').collect::<Vec<_>>()),
            "queue.keepJobs" => Value::from(value == "true"),
            _ => Value::from(value),
        };
        // What cannot be read is refused before anything is stored.
        let mut trial = QueueConfig::new("trial", &[]);
        set_queue_property(&mut trial, name, &value).map_err(Failure::unfit)?;
        settings.push((name.to_owned(), value));
    }
    Ok(settings)
}

fn add(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let instance = &call.instance;
        let name = call.text("name").unwrap_or_default().to_owned();
        if name.chars().count() > MAX_NAME {
            return Err(Failure::unfit(format!(
                "a queue has a name of at most {MAX_NAME} characters"
            )));
        }
        let topics: Vec<&str> =
            call.texts("topic").filter(|topic| !topic.trim().is_empty()).collect();
        if topics.is_empty() {
            return Err(Failure::unfit("say which topics it takes: `topic`"));
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
        settings.extend(settings_of(&call)?);
        let pid = format!("{QUEUE_FACTORY}-{}", pid_part(&name));
        store(&call, format!("{CONFIG_FOLDER}/{pid}"), settings).await?;
        Ok(Reply::json(json!({ "queue": name, "pid": pid })))
    })
}

/// Returns the part of a PID that names a queue.
fn pid_part(name: &str) -> String {
    let kept = |letter: char| {
        if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' }
    };
    name.chars().map(kept).collect()
}

fn set(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let instance = call.instance.clone();
        let name = call.text("queue").unwrap_or_default().to_owned();
        let settings = settings_of(&call)?;
        let set = instance.configurator.worker().queue_set();
        let config = set.config_of(&name).ok_or_else(|| missing(&name))?;
        let path = match &config.path {
            Some(path) if path.ends_with(".config") || path.ends_with(".json") => {
                let message =
                    format!("the queue `{name}` is configured by the file `{path}`; change that");
                return Err(Failure::new(StatusCode::CONFLICT, message));
            }
            Some(path) => path.clone(),
            None => format!("{CONFIG_FOLDER}/{}", config.pid),
        };
        store(&call, path, settings).await?;
        let worker = instance.configurator.worker();
        let set = worker.queue_set();
        let config = set.config_of(&name).or_else(|| set.find(MAIN_QUEUE));
        let config = config.ok_or_else(|| missing(&name))?;
        Ok(Reply::json(Value::Object(queue_json(config, worker.options().cores))))
    })
}

fn missing(name: &str) -> Failure {
    let name: String = name.chars().take(100).collect();
    Failure::new(StatusCode::NOT_FOUND, format!("there is no queue `{name}`"))
}

/// Stores properties of a configuration, and has them applied.
async fn store(call: &Call, path: String, settings: Vec<(String, Value)>) -> Result<()> {
    let (instance, viewer, now) = (call.instance.clone(), call.viewer.clone(), call.now);
    instance
        .work(move |instance| {
            let path = NodePath::new(&path)?;
            let mut session = instance.repository.session_of(&viewer)?;
            add_folders(&mut session, &path)?;
            if session.node(&path)?.is_none() {
                session.add_node(&path, CONFIG_TYPE)?;
            }
            for (name, value) in &settings {
                session.set_property(&path, name, property_of(name, value))?;
            }
            session.commit("configure a queue", now)?;
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

fn pause(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let name = call.text("queue").unwrap_or_default();
        if call.instance.configurator.worker().queue_set().config_of(name).is_none() {
            return Err(missing(name));
        }
        call.instance.queues.pause(name, call.user(), call.now).await?;
        Ok(Reply::json(json!({ "queue": name, "paused": true })))
    })
}

fn resume(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let name = call.text("queue").unwrap_or_default();
        let was_paused = call.instance.queues.resume(name).await?;
        Ok(Reply::json(json!({ "queue": name, "paused": false, "changed": was_paused })))
    })
}
