//! Jobs: what waits, what runs, what failed, and what to do about it.
//!
//! Only administrators may ask: a job holds what any user asked for. Queues are configured in content, so that what is
//! set here is seen by all processes and by packages.

mod queue;
mod statistics;

use std::time::SystemTime;

use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_content::Date;
use tympan_jobs::{Job, JobFilter, JobId, JobState, QueueSet, aem_names, own_topic};

pub(crate) use self::queue::ENDPOINTS as QUEUES;
pub(crate) use self::statistics::{condition, metrics};
use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::schema::{array, count, named, object, reference, text, text_or_null};
use crate::failure::{Failure, Result};

/// The most jobs of one answer.
const MAX_JOBS: u32 = 1000;
/// Completes "only administrators may".
const LOOK_AFTER: &str = "look after jobs";

const QUEUE: Parameter = Parameter::new("queue", Kind::Filled, "The name of a queue.");
const ONE_JOB: &[Parameter] =
    &[Parameter::required("id", Kind::Integer(0, i64::MAX as u64), "The job's number.")];

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/jobs",
        id: "listJobs",
        about: "Lists jobs, the oldest first. For administrators.",
        parameters: &[
            Parameter::new(
                "topic",
                Kind::Text,
                "Only those of this topic, also by its name in AEM.",
            ),
            Parameter::new("queue", Kind::Text, "Only those of this queue; not with `topic`."),
            Parameter::new(
                "state",
                Kind::Text,
                "Only those in this state: HELD, DELAYED, QUEUED, ACTIVE, SUCCEEDED, STOPPED, GIVEN_UP or ERROR, in letters \
                 of any case.",
            ),
            Parameter::new(
                "after",
                Kind::Integer(0, i64::MAX as u64),
                "Only those with larger numbers.",
            ),
            Parameter::new(
                "limit",
                Kind::Integer(1, MAX_JOBS as u64),
                "The length of the page. Default 100.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("Jobs", "The jobs.")],
        handler: Handler::Task(list),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/jobs/topics",
        id: "listJobTopics",
        about: "Lists the topics that were seen, each with its queue and its figures. For administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("JobTopics", "The topics.")],
        handler: Handler::Task(topics),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/jobs/schedules",
        id: "listJobSchedules",
        about: "Lists what is started again and again. For administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("JobSchedules", "The schedules.")],
        handler: Handler::Task(schedules),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/jobs/retry",
        id: "retryJobs",
        about: "Lets a job run again now, or all of a queue that were given up. For administrators.",
        parameters: &[],
        body: Body::Form(&[
            QUEUE,
            Parameter::new("id", Kind::Integer(0, i64::MAX as u64), "The job's number."),
        ]),
        answers: &[Answer::json("JobsChanged", "How many jobs it was.")],
        handler: Handler::Task(retry),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/jobs/stop",
        id: "stopJob",
        about: "Asks a running job to stop. For administrators.",
        parameters: &[],
        body: Body::Form(ONE_JOB),
        answers: &[Answer::json("Changed", "Whether such a job runs.")],
        handler: Handler::Task(stop),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/jobs/cancel",
        id: "removeJob",
        about: "Removes a job that does not run. For administrators.",
        parameters: &[],
        body: Body::Form(ONE_JOB),
        answers: &[Answer::json("Changed", "Whether there was such a job.")],
        handler: Handler::Task(cancel),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Value> {
    let progress = object(&[("done", count()), ("total", count()), ("message", text())]);
    let job = object(&[
        ("id", count()),
        ("topic", text()),
        ("queue", text()),
        ("state", json!({ "enum": JobState::ALL.map(JobState::name) })),
        ("properties", json!({})),
        ("key", text_or_null()),
        ("priority", json!({ "type": "integer" })),
        ("tenant", text()),
        ("attempt", count()),
        ("runAt", text()),
        ("created", text()),
        ("started", text_or_null()),
        ("ended", text_or_null()),
        ("user", text()),
        ("worker", text_or_null()),
        ("progress", json!({ "anyOf": [progress, { "type": "null" }] })),
        ("lastError", text_or_null()),
    ]);
    let mut topic = statistics::members();
    topic.extend([
        ("topic", text()),
        ("alsoCalled", array(text())),
        ("queue", text()),
        ("handled", json!({ "type": "boolean" })),
    ]);
    let schedule = object(&[
        ("name", text()),
        ("topic", text()),
        ("rule", text()),
        ("properties", json!({})),
        ("nextRun", text_or_null()),
        ("user", text()),
    ]);
    let flag = json!({ "type": "boolean" });
    let mut all = named([
        ("Job", job),
        ("Jobs", object(&[("jobs", array(reference("Job")))])),
        ("JobTopics", object(&[("topics", array(object(&topic)))])),
        ("JobSchedules", object(&[("schedules", array(schedule))])),
        ("JobsChanged", object(&[("changed", flag), ("jobs", count())])),
    ]);
    all.extend(queue::schemas());
    all
}

fn iso(time: SystemTime) -> String {
    Date::from_system_time(time).to_string()
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
    let topics = instance.queues.topic_names().await?;
    Ok(topics.into_iter().filter(|topic| set.queue_of(topic).name == queue).collect())
}

fn list(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let instance = &call.instance;
        let mut filter = JobFilter::default();
        if let Some(topic) = call.text("topic") {
            filter.topics.push(topic.to_owned());
            let own = own_topic(topic);
            filter.topics.extend((own != topic).then(|| own.to_owned()));
        } else if let Some(queue) = call.text("queue") {
            filter.topics = topics_of(instance, queue).await?;
            if filter.topics.is_empty() {
                return Ok(Reply::json(json!({ "jobs": [] })));
            }
        }
        if let Some(state) = call.text("state") {
            let unknown = || {
                let names = JobState::ALL.map(JobState::name).join(", ");
                Failure::unfit(format!("`state` is one of {names}"))
            };
            filter.state = Some(JobState::find(state).ok_or_else(unknown)?);
        }
        filter.after = call.whole("after").map(JobId);
        let limit = u32::try_from(call.number("limit", 100)).unwrap_or(MAX_JOBS);
        let jobs = instance.queues.list(&filter, limit).await?;
        let set = instance.configurator.worker().queue_set();
        let jobs = jobs.iter().map(|job| job_json(job, &set)).collect::<Vec<_>>();
        Ok(Reply::json(json!({ "jobs": jobs })))
    })
}

fn topics(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let worker = call.instance.configurator.worker();
        let set = worker.queue_set();
        let found = call.instance.queues.topics().await?;
        let topics = found.iter().map(|(topic, figures)| {
            let mut members = statistics::described(figures);
            members.insert("topic".to_owned(), topic.as_str().into());
            members.insert("alsoCalled".to_owned(), aem_names(topic).into());
            members.insert("queue".to_owned(), set.queue_of(topic).name.into());
            members.insert("handled".to_owned(), worker.handles(topic).into());
            Value::Object(members)
        });
        Ok(Reply::json(json!({ "topics": topics.collect::<Vec<_>>() })))
    })
}

fn schedules(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let schedules = call.instance.queues.schedules().await?;
        let schedules = schedules.iter().map(|one| {
            json!({
                "name": one.name, "topic": one.topic, "rule": one.rule, "properties": one.properties,
                "nextRun": one.next_run.map(iso), "user": one.user,
            })
        });
        Ok(Reply::json(json!({ "schedules": schedules.collect::<Vec<_>>() })))
    })
}

fn retry(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let instance = &call.instance;
        let count = match (call.text("queue"), call.whole("id")) {
            (Some(queue), None) => {
                let topics = topics_of(instance, queue).await?;
                instance.queues.retry_all(&topics, call.now).await?
            }
            (None, Some(id)) => u64::from(instance.queues.retry(JobId(id), call.now).await?),
            _ => return Err(Failure::unfit("say either which job, `id`, or which `queue`")),
        };
        instance.replicator.ring();
        Ok(Reply::json(json!({ "changed": count > 0, "jobs": count })))
    })
}

fn stop(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let is_asked = call.instance.queues.stop(job_of(&call)?).await?;
        Ok(Reply::json(json!({ "changed": is_asked })))
    })
}

fn cancel(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator(LOOK_AFTER)?;
        let is_done = call.instance.queues.cancel(job_of(&call)?).await?;
        call.instance.replicator.ring();
        Ok(Reply::json(json!({ "changed": is_done })))
    })
}

fn job_of(call: &Call) -> Result<JobId> {
    let missing = || Failure::new(StatusCode::BAD_REQUEST, "say which job: `id`");
    call.whole("id").map(JobId).ok_or_else(missing)
}
