//! Workflows: starting, listing and ending them.
//!
//! The initiator of an instance and administrators see it completely. The assignee of a step sees the step (`step`).
//! For all other users it does not exist. A workflow can be started only for content that the requesting user may read,
//! and the payload of a workflow never reveals a node that the user may not read.

pub(super) mod inbox_step;

use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_content::{NodePath, Snapshot};
use tympan_jobs::workflow::{
    WorkflowEngine, WorkflowFilter, WorkflowInstance, WorkflowStart, WorkflowState,
};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::iso_time::to_iso_time;
use crate::api::schema::{
    array_schema, count_schema, object_schema, partial_object_schema, reference_schema,
    schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};

/// Maximum number of instances or steps in a response.
const MAX_LISTED_WORKFLOWS: u32 = 500;
/// Maximum age for a purge, in days: a century.
const MAX_PURGE_DAYS: u64 = 36_500;

const NUMBER_KIND: ParameterKind = ParameterKind::Integer(0, i64::MAX as u64);
const WORKFLOW_ID_PARAMETER: EndpointParameter =
    EndpointParameter::required("id", NUMBER_KIND, "The number of the instance.");
const COMMENT_PARAMETER: EndpointParameter =
    EndpointParameter::new("comment", ParameterKind::Text, "A comment for the history.");
const DATA_PARAMETER: EndpointParameter = EndpointParameter::new(
    "data",
    ParameterKind::Pairs,
    "Values to add to the data of the instance: `name=value`. May be repeated.",
);

/// The API endpoints that this module defines.
pub(crate) const WORKFLOW_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/workflows",
        id: "listWorkflows",
        description: "Lists instances, the newest first: those that the caller started; all of them for \
            administrators.",
        parameters: &[
            EndpointParameter::new(
                "model",
                ParameterKind::Text,
                "Only those of the model at this path.",
            ),
            EndpointParameter::new(
                "payload",
                ParameterKind::Text,
                "Only those with this path as their \
                payload.",
            ),
            EndpointParameter::new(
                "state",
                ParameterKind::Text,
                "Only those in this state: RUNNING, SUSPENDED, COMPLETED, ABORTED or STALE \
                 (case-insensitive).",
            ),
            EndpointParameter::new(
                "before",
                NUMBER_KIND,
                "Only those with smaller numbers than this.",
            ),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, MAX_LISTED_WORKFLOWS as u64),
                "Page size. Default 100.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Workflows", "The instances.")],
        handler: EndpointHandler::Async(list_workflows),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows",
        id: "startWorkflow",
        description: "Starts an instance whose payload is a node that the caller may read.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            EndpointParameter::required("model", ParameterKind::Path, "The path of the model."),
            EndpointParameter::required("payload", ParameterKind::Path, "The payload node."),
            DATA_PARAMETER,
        ]),
        responses: &[ResponseSpec::created_json("WorkflowStarted", "The workflow was started.")],
        handler: EndpointHandler::Async(start_workflow),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/workflows/models",
        id: "listWorkflowModels",
        description: "Lists the models that the caller may read, with the errors of those that cannot be \
            started, including unknown processes.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("WorkflowModels", "The models.")],
        handler: EndpointHandler::Blocking(list_workflow_models),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/workflows/instance",
        id: "readWorkflow",
        description: "Returns an instance that the caller started, with its open steps and its history; any \
            for administrators.",
        parameters: &[WORKFLOW_ID_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("WorkflowDetails", "The instance.")],
        handler: EndpointHandler::Async(read_workflow),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows/terminate",
        id: "terminateWorkflow",
        description: "Terminates an instance that the caller started; any for administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[WORKFLOW_ID_PARAMETER, COMMENT_PARAMETER]),
        responses: &[ResponseSpec::json("WorkflowTerminated", "The instance was terminated.")],
        handler: EndpointHandler::Async(terminate_workflow),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows/suspend",
        id: "suspendWorkflow",
        description: "Suspends an instance that the caller started; any for administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[WORKFLOW_ID_PARAMETER]),
        responses: &[ResponseSpec::json("Changed", "Whether the instance was running before.")],
        handler: EndpointHandler::Async(suspend_workflow),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows/resume",
        id: "resumeWorkflow",
        description: "Resumes an instance that the caller started; any for administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[WORKFLOW_ID_PARAMETER]),
        responses: &[ResponseSpec::json("Changed", "Whether the instance was suspended before.")],
        handler: EndpointHandler::Async(resume_workflow),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows/purge",
        id: "purgeWorkflows",
        description: "Removes instances that ended more than this number of days ago. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            EndpointParameter::required(
                "days",
                ParameterKind::Integer(0, MAX_PURGE_DAYS),
                "The number of days to keep.",
            ),
            EndpointParameter::new(
                "model",
                ParameterKind::Text,
                "Only those of the model at this path.",
            ),
        ]),
        responses: &[ResponseSpec::json("WorkflowsPurged", "The number of removed instances.")],
        handler: EndpointHandler::Async(purge_workflows),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn workflow_schemas() -> Map<String, Value> {
    let members = || {
        vec![
            ("id", count_schema()),
            ("model", text_schema()),
            ("title", text_schema()),
            ("payload", text_or_null_schema()),
            ("state", json!({ "enum": WorkflowState::ALL.map(WorkflowState::name) })),
            ("data", json!({ "type": "object" })),
            ("initiator", text_schema()),
            ("started", text_schema()),
            ("ended", text_or_null_schema()),
        ]
    };
    let entry = object_schema(&[
        ("step", text_schema()),
        ("title", text_schema()),
        ("action", text_schema()),
        ("user", text_schema()),
        ("at", text_schema()),
        ("comment", text_or_null_schema()),
    ]);
    let mut details = members();
    details.extend([
        ("steps", array_schema(reference_schema("WorkItem"))),
        ("history", array_schema(entry)),
    ]);
    let model = partial_object_schema(
        &["path"],
        &[
            ("path", text_schema()),
            ("title", text_schema()),
            ("transient", json!({ "type": "boolean" })),
            ("topic", text_schema()),
            ("fault", text_schema()),
        ],
    );
    schemas_by_name([
        ("Workflow", object_schema(&members())),
        ("Workflows", object_schema(&[("workflows", array_schema(reference_schema("Workflow")))])),
        ("WorkflowDetails", object_schema(&details)),
        ("WorkflowModels", object_schema(&[("models", array_schema(model))])),
        ("WorkflowStarted", object_schema(&[("id", count_schema())])),
        ("WorkflowTerminated", object_schema(&[("terminated", count_schema())])),
        ("WorkflowsPurged", object_schema(&[("removed", count_schema())])),
    ])
}

/// Returns the workflow engine of an instance.
pub(crate) fn open_workflows(instance: &Instance) -> WorkflowEngine {
    WorkflowEngine::new(instance.queues.clone())
}

/// Returns the entries to add to the metadata of an instance.
fn workflow_data_of(call: &ApiRequest) -> Map<String, Value> {
    let data = call.parameter_values("data").filter_map(|text| text.split_once('='));
    data.map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
}

/// Returns the number in a required field.
fn number_field(call: &ApiRequest, name: &str) -> Result<i64> {
    call.integer_parameter(name)
        .ok_or_else(|| RequestFailure::bad_request(format!("`{name}` is missing")))
}

/// Returns a field; `None` if it is empty.
fn non_empty_field<'a>(call: &'a ApiRequest, name: &str) -> Option<&'a str> {
    call.parameter(name).filter(|text| !text.is_empty())
}

/// Returns true if the requesting user may manage the workflow instances of all users.
fn is_administrator(call: &ApiRequest) -> Result<bool> {
    call.instance.is_administrator(&call.viewer)
}

/// Returns the payload of an instance, if the requesting user may read it, or could read it if it still existed.
fn visible_payload<'a>(snapshot: &Snapshot, payload: &'a str) -> Option<&'a str> {
    let path = NodePath::new(payload).ok()?;
    snapshot.can_see(&path, "cq:Page").then_some(payload)
}

/// Describes an instance; its payload only if the requesting user may see it.
pub(crate) fn workflow_json(workflow: &WorkflowInstance, snapshot: &Snapshot) -> Value {
    json!({
        "id": workflow.id,
        "model": workflow.model,
        "title": workflow.title,
        "payload": visible_payload(snapshot, &workflow.payload),
        "state": workflow.state.name(),
        "data": workflow.data,
        "initiator": workflow.initiator,
        "started": to_iso_time(workflow.started_at),
        "ended": workflow.ended_at.map(to_iso_time),
    })
}

fn list_workflows(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let initiator = (!is_administrator(&call)?).then(|| call.user_name().to_owned());
        let mut filter = WorkflowFilter {
            model: non_empty_field(&call, "model").map(str::to_owned),
            payload: non_empty_field(&call, "payload").map(str::to_owned),
            before_id: call.integer_parameter("before"),
            initiator,
            state: None,
        };
        if let Some(state) = call.parameter("state") {
            let unknown = || {
                let names = WorkflowState::ALL.map(WorkflowState::name).join(", ");
                RequestFailure::unprocessable(format!("`state` must be one of {names}"))
            };
            filter.state = Some(WorkflowState::from_name(state).ok_or_else(unknown)?);
        }
        let limit =
            u32::try_from(call.number_parameter("limit", 100)).unwrap_or(MAX_LISTED_WORKFLOWS);
        let workflows = open_workflows(&call.instance).list_instances(&filter, limit).await?;
        let snapshot = call.pin_snapshot()?;
        let listed: Vec<Value> =
            workflows.iter().map(|workflow| workflow_json(workflow, &snapshot)).collect();
        Ok(ApiResponse::json(json!({ "workflows": listed })))
    })
}

fn list_workflow_models(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let workflows = open_workflows(instance);
    let models = workflows.model_roots().find_models(&call.pin_snapshot()?)?;
    let listed = models.iter().map(|(path, model)| match model {
        Ok(model) => {
            let mut description = json!({
                "path": model.path, "title": model.title, "transient": model.is_transient,
                "topic": format!("{}/{}", tympan_jobs::WORKFLOW_TOPIC, model.topic_suffix),
            });
            if let (Err(error), Some(members)) =
                (workflows.check_model(model), description.as_object_mut())
            {
                members.insert("fault".to_owned(), error.to_string().into());
            }
            description
        }
        Err(error) => json!({ "path": path, "fault": error.to_string() }),
    });
    Ok(ApiResponse::json(json!({ "models": listed.collect::<Vec<_>>() })))
}

fn start_workflow(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let (instance, now) = (call.instance.clone(), call.now);
        let start = instance
            .run_work(move |instance| {
                let (model, payload) =
                    (call.parameter("model").unwrap_or_default(), call.path_parameter("payload")?);
                let snapshot = call.pin_snapshot()?;
                if snapshot.node(&payload)?.is_none() {
                    return Err(RequestFailure::not_found(payload.as_str()));
                }
                let (payload, initiator) = (payload.to_string(), call.user_name().to_owned());
                let model = open_workflows(instance).model_roots().read_model(&snapshot, model)?;
                Ok(WorkflowStart { model, payload, initiator, data: workflow_data_of(&call) })
            })
            .await?;
        let id = open_workflows(&instance).start_workflow(&start, now).await?;
        Ok(ApiResponse::created(json!({ "id": id })))
    })
}

/// Finds a workflow instance. For users who are neither its initiator nor administrators it is reported as missing.
async fn find_visible_workflow(call: &ApiRequest, id: i64) -> Result<WorkflowInstance> {
    let missing =
        || RequestFailure::new(StatusCode::NOT_FOUND, format!("there is no instance {id}"));
    let workflow = open_workflows(&call.instance).find_instance(id).await?.ok_or_else(missing)?;
    if workflow.initiator == call.user_name() || is_administrator(call)? {
        Ok(workflow)
    } else {
        Err(missing())
    }
}

fn read_workflow(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let id = number_field(&call, "id")?;
        let workflow = find_visible_workflow(&call, id).await?;
        let snapshot = call.pin_snapshot()?;
        let mut response_body = workflow_json(&workflow, &snapshot);
        let workflows = open_workflows(&call.instance);
        let steps = workflows.list_open_steps(id).await?;
        let steps: Vec<Value> =
            steps.iter().map(|item| inbox_step::work_item_json(item, &snapshot)).collect();
        let history = workflows.list_history(id).await?;
        let history = history.iter().map(|entry| {
            json!({
                "step": entry.step, "title": entry.title, "action": entry.action, "user": entry.user,
                "at": to_iso_time(entry.at), "comment": entry.comment,
            })
        });
        if let Some(members) = response_body.as_object_mut() {
            members.insert("steps".to_owned(), steps.into());
            members.insert("history".to_owned(), history.collect());
        }
        Ok(ApiResponse::json(response_body))
    })
}

fn terminate_workflow(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let id = number_field(&call, "id")?;
        find_visible_workflow(&call, id).await?;
        let comment = non_empty_field(&call, "comment");
        open_workflows(&call.instance).terminate(id, call.user_name(), comment, call.now).await?;
        Ok(ApiResponse::json(json!({ "terminated": id })))
    })
}

fn suspend_workflow(call: ApiRequest) -> PendingApiResponse {
    Box::pin(set_workflow_state(call, WorkflowState::Suspended))
}

fn resume_workflow(call: ApiRequest) -> PendingApiResponse {
    Box::pin(set_workflow_state(call, WorkflowState::Running))
}

async fn set_workflow_state(call: ApiRequest, to: WorkflowState) -> Result<ApiResponse> {
    let id = number_field(&call, "id")?;
    find_visible_workflow(&call, id).await?;
    let is_changed = open_workflows(&call.instance)
        .set_workflow_state(id, to, call.user_name(), call.now)
        .await?;
    Ok(ApiResponse::json(json!({ "changed": is_changed })))
}

fn purge_workflows(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("purge workflows")?;
        let days = call.number_parameter("days", 0) as u64;
        let age = Duration::from_secs(days.saturating_mul(24 * 3600));
        let before = call.now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let removed = open_workflows(&call.instance)
            .purge_ended(before, non_empty_field(&call, "model"))
            .await?;
        Ok(ApiResponse::json(json!({ "removed": removed })))
    })
}
