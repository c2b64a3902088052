//! Jobs: waiting, running and failed ones, and the commands to manage them.
//!
//! Restricted to administrators, because a job contains the data of any user's request. Queues are configured in
//! content, so all processes and packages see what is set here.

pub(crate) mod queue;
mod statistics;

use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_jobs::{Job, JobFilter, JobId, JobState, QueueSet, aem_topic_names, topic_of_aem_name};

pub(crate) use self::statistics::{job_metrics, queue_health, statistics_json};
use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::iso_time::to_iso_time;
use crate::api::schema::{
    array_schema, count_schema, object_schema, reference_schema, schemas_by_name,
    text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};

/// Maximum number of jobs in a response.
const MAX_LISTED_JOBS: u32 = 1000;
/// Completes "only administrators may".
pub(crate) const JOB_ADMINISTRATION: &str = "manage jobs";

const QUEUE_PARAMETER: EndpointParameter =
    EndpointParameter::new("queue", ParameterKind::NonEmptyText, "The name of a queue.");
const JOB_ID_PARAMETERS: &[EndpointParameter] = &[EndpointParameter::required(
    "id",
    ParameterKind::Integer(0, i64::MAX as u64),
    "The number of the job.",
)];

/// The API endpoints that this module defines.
pub(crate) const JOB_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/jobs",
        id: "listJobs",
        description: "Lists jobs, the oldest first. For administrators.",
        parameters: &[
            EndpointParameter::new(
                "topic",
                ParameterKind::Text,
                "Only those of this topic; its AEM name is accepted too.",
            ),
            EndpointParameter::new(
                "queue",
                ParameterKind::Text,
                "Only those of this queue; cannot be combined with `topic`.",
            ),
            EndpointParameter::new(
                "state",
                ParameterKind::Text,
                "Only those in this state: HELD, DELAYED, QUEUED, ACTIVE, SUCCEEDED, STOPPED, GIVEN_UP or \
                 ERROR (case-insensitive).",
            ),
            EndpointParameter::new(
                "after",
                ParameterKind::Integer(0, i64::MAX as u64),
                "Only those with larger numbers than this.",
            ),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, MAX_LISTED_JOBS as u64),
                "Page size. Default 100.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Jobs", "The jobs.")],
        handler: EndpointHandler::Async(list_jobs),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/jobs/topics",
        id: "listJobTopics",
        description: "Lists the known topics, each with its queue and its statistics. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("JobTopics", "The topics.")],
        handler: EndpointHandler::Async(list_topics),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/jobs/schedules",
        id: "listJobSchedules",
        description: "Lists the schedules of recurring jobs. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("JobSchedules", "The schedules.")],
        handler: EndpointHandler::Async(list_schedules),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/jobs/retry",
        id: "retryJobs",
        description: "Retries a job now, or all jobs of a queue that were given up. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            QUEUE_PARAMETER,
            EndpointParameter::new(
                "id",
                ParameterKind::Integer(0, i64::MAX as u64),
                "The number of the job.",
            ),
        ]),
        responses: &[ResponseSpec::json("JobsChanged", "The number of affected jobs.")],
        handler: EndpointHandler::Async(retry_job),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/jobs/stop",
        id: "stopJob",
        description: "Asks a running job to stop. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(JOB_ID_PARAMETERS),
        responses: &[ResponseSpec::json("Changed", "Whether such a job is running.")],
        handler: EndpointHandler::Async(stop_job),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/jobs/cancel",
        id: "removeJob",
        description: "Removes a job that is not running. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(JOB_ID_PARAMETERS),
        responses: &[ResponseSpec::json("Changed", "Whether there was such a job.")],
        handler: EndpointHandler::Async(cancel_job),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn job_schemas() -> Map<String, Value> {
    let progress = object_schema(&[
        ("done", count_schema()),
        ("total", count_schema()),
        ("message", text_schema()),
    ]);
    let job = object_schema(&[
        ("id", count_schema()),
        ("topic", text_schema()),
        ("queue", text_schema()),
        ("state", json!({ "enum": JobState::ALL.map(JobState::name) })),
        ("properties", json!({})),
        ("key", text_or_null_schema()),
        ("priority", json!({ "type": "integer" })),
        ("tenant", text_schema()),
        ("attempt", count_schema()),
        ("runAt", text_schema()),
        ("created", text_schema()),
        ("started", text_or_null_schema()),
        ("ended", text_or_null_schema()),
        ("user", text_schema()),
        ("worker", text_or_null_schema()),
        ("progress", json!({ "anyOf": [progress, { "type": "null" }] })),
        ("lastError", text_or_null_schema()),
    ]);
    let mut topic = statistics::statistics_members();
    topic.extend([
        ("topic", text_schema()),
        ("alsoCalled", array_schema(text_schema())),
        ("queue", text_schema()),
        ("handled", json!({ "type": "boolean" })),
    ]);
    let schedule = object_schema(&[
        ("name", text_schema()),
        ("topic", text_schema()),
        ("rule", text_schema()),
        ("properties", json!({})),
        ("nextRun", text_or_null_schema()),
        ("user", text_schema()),
    ]);
    let flag = json!({ "type": "boolean" });
    schemas_by_name([
        ("Job", job),
        ("Jobs", object_schema(&[("jobs", array_schema(reference_schema("Job")))])),
        ("JobTopics", object_schema(&[("topics", array_schema(object_schema(&topic)))])),
        ("JobSchedules", object_schema(&[("schedules", array_schema(schedule))])),
        ("JobsChanged", object_schema(&[("changed", flag), ("jobs", count_schema())])),
    ])
}

fn job_json(job: &Job, set: &QueueSet) -> Value {
    json!({
        "id": job.id.0,
        "topic": job.topic,
        "queue": set.queue_for_topic(&job.topic).name,
        "state": job.state.name(),
        "properties": job.properties,
        "key": job.key,
        "priority": job.priority.rank(),
        "tenant": job.tenant,
        "attempt": job.attempt,
        "runAt": to_iso_time(job.run_at),
        "created": to_iso_time(job.created_at),
        "started": job.started_at.map(to_iso_time),
        "ended": job.ended_at.map(to_iso_time),
        "user": job.user,
        "worker": job.worker,
        "progress": job.progress.as_ref().map(|progress| json!({
            "done": progress.completed, "total": progress.total, "message": progress.message,
        })),
        "lastError": job.last_error,
    })
}

/// Returns the topics of a queue.
async fn queue_topics(instance: &Instance, queue: &str) -> Result<Vec<String>> {
    let set = instance.configurator.worker().queue_set();
    let topics = instance.queues.statistics().topic_names().await?;
    Ok(topics.into_iter().filter(|topic| set.queue_for_topic(topic).name == queue).collect())
}

fn list_jobs(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let instance = &call.instance;
        let mut filter = JobFilter::default();
        if let Some(topic) = call.parameter("topic") {
            filter.topics.push(topic.to_owned());
            let own = topic_of_aem_name(topic);
            filter.topics.extend((own != topic).then(|| own.to_owned()));
        } else if let Some(queue) = call.parameter("queue") {
            filter.topics = queue_topics(instance, queue).await?;
            if filter.topics.is_empty() {
                return Ok(ApiResponse::json(json!({ "jobs": [] })));
            }
        }
        if let Some(state) = call.parameter("state") {
            let unknown = || {
                let names = JobState::ALL.map(JobState::name).join(", ");
                RequestFailure::unprocessable(format!("`state` must be one of {names}"))
            };
            filter.state = Some(JobState::from_name(state).ok_or_else(unknown)?);
        }
        filter.after_id = call.integer_parameter("after").map(JobId);
        let limit = u32::try_from(call.number_parameter("limit", 100)).unwrap_or(MAX_LISTED_JOBS);
        let jobs = instance.queues.list_jobs(&filter, limit).await?;
        let set = instance.configurator.worker().queue_set();
        let jobs = jobs.iter().map(|job| job_json(job, &set)).collect::<Vec<_>>();
        Ok(ApiResponse::json(json!({ "jobs": jobs })))
    })
}

/// Describes the jobs in a state, the oldest first.
pub(crate) async fn describe_jobs_in_state(
    instance: &Instance,
    state: JobState,
    limit: u32,
) -> Result<Vec<Value>> {
    let filter = JobFilter { state: Some(state), ..JobFilter::default() };
    let jobs = instance.queues.list_jobs(&filter, limit).await?;
    let set = instance.configurator.worker().queue_set();
    Ok(jobs.iter().map(|job| job_json(job, &set)).collect())
}

fn list_topics(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let worker = call.instance.configurator.worker();
        let set = worker.queue_set();
        let statistics = call.instance.queues.statistics().topic_statistics().await?;
        let topics = statistics.iter().map(|(topic, figures)| {
            let mut members = statistics::statistics_json(figures);
            members.insert("topic".to_owned(), topic.as_str().into());
            members.insert("alsoCalled".to_owned(), aem_topic_names(topic).into());
            members.insert("queue".to_owned(), set.queue_for_topic(topic).name.into());
            members.insert("handled".to_owned(), worker.has_handler_for(topic).into());
            Value::Object(members)
        });
        Ok(ApiResponse::json(json!({ "topics": topics.collect::<Vec<_>>() })))
    })
}

fn list_schedules(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let schedules = call.instance.queues.schedules().list().await?;
        let schedules = schedules.iter().map(|schedule| {
            json!({
                "name": schedule.name, "topic": schedule.topic, "rule": schedule.rule_text, "properties": schedule.properties,
                "nextRun": schedule.next_run.map(to_iso_time), "user": schedule.user,
            })
        });
        Ok(ApiResponse::json(json!({ "schedules": schedules.collect::<Vec<_>>() })))
    })
}

fn retry_job(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let instance = &call.instance;
        let count = match (call.parameter("queue"), call.integer_parameter("id")) {
            (Some(queue), None) => {
                let topics = queue_topics(instance, queue).await?;
                instance.queues.retry_given_up_jobs(&topics, call.now).await?
            }
            (None, Some(id)) => u64::from(instance.queues.retry_job(JobId(id), call.now).await?),
            _ => {
                return Err(RequestFailure::unprocessable("specify either `id` or `queue`"));
            }
        };
        instance.replicator.wake_agent_workers();
        Ok(ApiResponse::json(json!({ "changed": count > 0, "jobs": count })))
    })
}

fn stop_job(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let is_asked = call.instance.queues.request_stop(job_id_of(&call)?).await?;
        Ok(ApiResponse::json(json!({ "changed": is_asked })))
    })
}

fn cancel_job(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let is_done = call.instance.queues.cancel_job(job_id_of(&call)?).await?;
        call.instance.replicator.wake_agent_workers();
        Ok(ApiResponse::json(json!({ "changed": is_done })))
    })
}

fn job_id_of(call: &ApiRequest) -> Result<JobId> {
    let missing = || RequestFailure::new(StatusCode::BAD_REQUEST, "`id` is missing");
    call.integer_parameter("id").map(JobId).ok_or_else(missing)
}
