//! Workflow steps that leave their usual course: failed steps, and steps that are sent back.

use serde_json::{Map, Value as Json, json};
use tympan_content::JcrDate;
use tympan_jobs::workflow::{FailedWorkflowStep, StepActionContext, WorkflowEngine};

use super::workflow::inbox_step::{assignee_names, require_open_step};
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::schema::{
    array_schema, count_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::Result;

/// Maximum number of steps in a response.
const MAX_LISTED_STEPS: u32 = 500;

const STEP_NUMBER_PARAMETER: EndpointParameter = EndpointParameter::required(
    "item",
    ParameterKind::Integer(0, i64::MAX as u64),
    "The number of the step.",
);

/// The API endpoints that this module defines.
pub(crate) const FAILED_STEP_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/workflows/failures",
        id: "listFailedSteps",
        description: "Lists the workflow steps that were given up, at most 500, oldest first. For \
            administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("FailedSteps", "The steps, with the reasons.")],
        handler: EndpointHandler::Async(list_failed_steps),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows/restart",
        id: "restartStep",
        description: "Runs a failed step again, with all its attempts. For administrators.",
        parameters: &[STEP_NUMBER_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("StepDone", "The step.")],
        handler: EndpointHandler::Async(restart_step),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/workflows/back",
        id: "listBackRoutes",
        description: "Lists the steps to which an open step can be sent back, the newest first.",
        parameters: &[STEP_NUMBER_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("BackRoutes", "The names of the steps.")],
        handler: EndpointHandler::Async(list_back_routes),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows/back",
        id: "sendStepBack",
        description: "Sends a step of the caller's inbox back to a previously completed one.",
        parameters: &[
            STEP_NUMBER_PARAMETER,
            EndpointParameter::new(
                "to",
                ParameterKind::Name,
                "The step to return to. Default: the last one.",
            ),
            EndpointParameter::new("comment", ParameterKind::Text, "The reason, for the history."),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("StepDone", "The step.")],
        handler: EndpointHandler::Async(send_step_back),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn failed_step_schemas() -> Map<String, Json> {
    let failed = object_schema(&[
        ("item", count_schema()),
        ("workflow", count_schema()),
        ("title", text_schema()),
        ("payload", text_schema()),
        ("job", count_schema()),
        ("reason", text_schema()),
        ("ended", text_or_null_schema()),
    ]);
    schemas_by_name([
        ("FailedSteps", object_schema(&[("steps", array_schema(failed))])),
        ("StepDone", object_schema(&[("item", count_schema())])),
        ("BackRoutes", object_schema(&[("routes", array_schema(text_schema()))])),
    ])
}

fn open_workflows(call: &ApiRequest) -> WorkflowEngine {
    WorkflowEngine::new(call.instance.queues.clone())
}

fn step_number_of(call: &ApiRequest) -> i64 {
    call.parameter("item").and_then(|item| item.parse().ok()).unwrap_or_default()
}

fn list_failed_steps(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("list failed steps")?;
        let failed = open_workflows(&call).list_failed_steps(MAX_LISTED_STEPS).await?;
        let failed: Vec<Json> = failed.iter().map(failed_step_json).collect();
        Result::Ok(ApiResponse::json(json!({ "steps": failed })))
    })
}

fn failed_step_json(step: &FailedWorkflowStep) -> Json {
    json!({
        "item": step.item_id,
        "workflow": step.workflow_id,
        "title": step.title,
        "payload": step.payload,
        "job": step.job_id,
        "reason": step.reason,
        "ended": step.given_up_at.map(|at| JcrDate::from_system_time(at).to_string()),
    })
}

fn restart_step(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("restart workflow steps")?;
        let item = step_number_of(&call);
        open_workflows(&call).restart_failed_step(item, call.user_name(), call.now).await?;
        Result::Ok(ApiResponse::json(json!({ "item": item })))
    })
}

fn list_back_routes(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let (names, item) = (assignee_names(&call)?, step_number_of(&call));
        require_open_step(&call, &names, item).await?;
        let routes = open_workflows(&call).back_targets_for(item, &names).await?;
        Result::Ok(ApiResponse::json(json!({ "routes": routes })))
    })
}

fn send_step_back(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let (names, item) = (assignee_names(&call)?, step_number_of(&call));
        require_open_step(&call, &names, item).await?;
        let action = StepActionContext {
            user: call.user_name(),
            comment: call.parameter("comment"),
            now: call.now,
        };
        open_workflows(&call).step_back(item, call.parameter("to"), &names, &action).await?;
        Result::Ok(ApiResponse::json(json!({ "item": item })))
    })
}
