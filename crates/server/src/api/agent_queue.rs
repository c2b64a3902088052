//! The queues of the agents, and requests to activate and deactivate.

use serde::Deserialize;
use serde_json::{Value, json};
use tympan_content::{JcrDate, NodePath, Snapshot, SubtreeScope};
use tympan_jobs::{Job, JobId};
use tympan_replicate::{
    ReplicationAction, ReplicationRequest, agent_topic, read_agents, require_replicate_permission,
};

use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::failure::{RequestFailure, Result};
use crate::write::companion_request::{AccompaniedRequests, with_companions};

/// Maximum number of jobs listed for an agent.
pub(crate) const MAX_JOBS_PER_AGENT: u32 = 500;
/// Replaces the reason why an agent cannot send, for users who do not administer agents.
const HIDDEN_FAILURE_REASON: &str = "sending failed";
/// Maximum number of paths in a request.
pub(crate) const MAX_REQUEST_PATHS: usize = 1000;

const JOB_ID_PARAMETERS: &[EndpointParameter] = &[EndpointParameter::required(
    "id",
    ParameterKind::Integer(0, i64::MAX as u64),
    "The number of the job.",
)];

/// The API endpoints that this module defines.
pub(crate) const AGENT_QUEUE_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/queue",
        id: "readQueue",
        description: "Lists the agents with their waiting jobs, at most 500 each.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Queue", "The agents.")],
        handler: EndpointHandler::Async(list_agent_queues),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/queue/retry",
        id: "retryJob",
        description: "Retries a failed or waiting job now.",
        parameters: JOB_ID_PARAMETERS,
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Changed", "Whether there was such a job.")],
        handler: EndpointHandler::Async(retry_replication),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/queue/cancel",
        id: "cancelJob",
        description: "Removes a job that is not running.",
        parameters: JOB_ID_PARAMETERS,
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Changed", "Whether there was such a job.")],
        handler: EndpointHandler::Async(cancel_replication),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/replication",
        id: "replicate",
        description: "Activates or deactivates documents; requests are sent in the order in which they were \
            stored. With `companions`, unpublished and outdated documents that they refer to are activated \
            before them; `left` lists those that the user may not activate.",
        parameters: &[],
        body: RequestBodySpec::Json("Replication"),
        responses: &[ResponseSpec::json("Replicated", "The queued requests.")],
        handler: EndpointHandler::Async(request_replication),
    },
];

/// Lists the agents with their queued jobs.
fn list_agent_queues(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let snapshot = call.pin_snapshot()?;
        let is_administrator = call.instance.is_administrator(&call.viewer)?;
        let instance = call.instance;
        let role = instance.role.name();
        let mut described = Vec::new();
        for agent in read_agents(&instance.repository.snapshot()?, role)? {
            let topic = agent_topic(role, &agent.name);
            let jobs = instance.queues.list_topic(&topic, MAX_JOBS_PER_AGENT).await?;
            let visible_jobs = jobs.iter().filter(|job| is_job_visible(job, &snapshot));
            let items: Vec<Value> =
                visible_jobs.map(|job| queued_job_json(job, is_administrator)).collect();
            let blocked = instance.replicator.blocked_reason(&agent.name);
            // Only users who administer the agent see its target, the reason why it is blocked, and the total number of
            // queued jobs.
            let (target, blocked, queued) = if is_administrator {
                let queued = instance.queues.statistics().count_jobs(&topic).await?;
                (Some(&agent.target), blocked, json!(queued))
            } else {
                (None, blocked.map(|_| HIDDEN_FAILURE_REASON.to_owned()), json!(items.len()))
            };
            described.push(json!({
                "name": agent.name,
                "title": agent.title,
                "target": target,
                "enabled": agent.is_enabled,
                "blocked": blocked,
                "queued": queued,
                "items": items,
            }));
        }
        Ok(ApiResponse::json(json!({ "agents": described })))
    })
}

/// Returns true if the requesting user may see the node of a job, whether or not the node still exists.
fn is_job_visible(job: &Job, snapshot: &Snapshot) -> bool {
    job_path(job).is_some_and(|path| snapshot.can_see(&path, "cq:Page"))
}

fn job_path(job: &Job) -> Option<NodePath> {
    NodePath::new(job.properties.get("path")?.as_str()?).ok()
}

/// Returns the replication request that a job carries out.
fn replication_request_of(job: &Job) -> ReplicationRequest {
    let property = |name: &str| job.properties.get(name);
    let is_deep = property("deep").and_then(Value::as_bool) == Some(true);
    let action = property("action").and_then(Value::as_str).and_then(ReplicationAction::from_name);
    ReplicationRequest {
        // Treat an unknown action as one that may concern more than a single document.
        action: action.unwrap_or(ReplicationAction::Deactivate),
        path: job_path(job).unwrap_or_else(NodePath::root),
        depth: if is_deep { SubtreeScope::Subtree } else { SubtreeScope::Document },
        user: job.user.clone(),
    }
}

/// Returns true if the job exists and the requesting user may see its node.
///
/// # Errors
/// If the requesting user may not replicate that node.
async fn is_job_found(call: &ApiRequest, id: JobId) -> Result<bool> {
    let (instance, snapshot) = (&call.instance, call.pin_snapshot()?);
    let role = instance.role.name();
    for agent in read_agents(&instance.repository.snapshot()?, role)? {
        let jobs =
            instance.queues.list_topic(&agent_topic(role, &agent.name), MAX_JOBS_PER_AGENT).await?;
        if let Some(job) = jobs.iter().find(|job| job.id == id && is_job_visible(job, &snapshot)) {
            require_replicate_permission(&snapshot, &replication_request_of(job))?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Describes a job of an agent; only administrators see the reason of a failure.
pub(crate) fn queued_job_json(job: &Job, is_administrator: bool) -> Value {
    // The reason contains addresses and the responses received from them.
    let reason = job.last_error.as_deref();
    let reason = reason.map(|reason| if is_administrator { reason } else { HIDDEN_FAILURE_REASON });
    json!({
        "id": job.id.0,
        "action": job.properties.get("action"),
        "path": job.properties.get("path"),
        "user": job.user,
        "created": JcrDate::from_system_time(job.created_at).to_string(),
        "attempt": job.attempt,
        "lastError": reason,
        "state": job.state.name(),
    })
}

/// Makes a job run again now.
fn retry_replication(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let id = job_id_of(&call)?;
        let is_there = is_job_found(&call, id).await?;
        let is_done = is_there && call.instance.queues.retry_job(id, call.now).await?;
        call.instance.replicator.wake_agent_workers();
        Ok(ApiResponse::json(json!({ "changed": is_done })))
    })
}

/// Removes a job that is not running.
fn cancel_replication(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let id = job_id_of(&call)?;
        let is_there = is_job_found(&call, id).await?;
        let is_done = is_there && call.instance.queues.cancel_job(id).await?;
        call.instance.replicator.wake_agent_workers();
        Ok(ApiResponse::json(json!({ "changed": is_done })))
    })
}

fn job_id_of(call: &ApiRequest) -> Result<JobId> {
    let id = call.parameter("id").and_then(|id| id.parse().ok());
    id.map(JobId).ok_or_else(|| RequestFailure::bad_request("`id` is missing"))
}

/// The replication action to apply to a set of documents.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicationCommand {
    action: ReplicationVerb,
    paths: Vec<String>,
    #[serde(default)]
    deep: bool,
    #[serde(default)]
    companions: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ReplicationVerb {
    Activate,
    Deactivate,
}

/// Activates or deactivates documents.
fn request_replication(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let ReplicationCommand { action, paths, deep, companions } = call.parse_body()?;
        if paths.is_empty() || paths.len() > MAX_REQUEST_PATHS {
            return Err(RequestFailure::bad_request(format!(
                "specify 1 to {MAX_REQUEST_PATHS} paths"
            )));
        }
        let action = match action {
            ReplicationVerb::Activate => ReplicationAction::Activate,
            ReplicationVerb::Deactivate => ReplicationAction::Deactivate,
        };
        let depth = if deep { SubtreeScope::Subtree } else { SubtreeScope::Document };
        let instance = call.instance.clone();
        let (viewer, user) = (call.viewer.clone(), call.user_name().to_owned());
        let requests = instance.run_work(move |_| {
            let snapshot = call.pin_snapshot()?;
            let mut requests = Vec::new();
            for path in paths {
                let path = NodePath::new(&path)?;
                // A document that no longer exists here can still be removed from the publishers.
                if action == ReplicationAction::Activate && snapshot.node(&path)?.is_none() {
                    return Err(RequestFailure::not_found(path.as_str()));
                }
                let request = ReplicationRequest { action, path, depth, user: user.clone() };
                require_replicate_permission(&snapshot, &request)?;
                requests.push(request);
            }
            match companions {
                true => with_companions(&snapshot, requests),
                false => Ok(AccompaniedRequests::without_companions(requests)),
            }
        });
        let AccompaniedRequests { requests, skipped_companions: left, .. } = requests.await?;
        let paths: Vec<String> = requests.iter().map(|request| request.path.to_string()).collect();
        instance.replicate(viewer, requests).await?;
        let left: Vec<&str> = left.iter().map(NodePath::as_str).collect();
        Ok(ApiResponse::json(json!({ "paths": paths, "left": left })))
    })
}
