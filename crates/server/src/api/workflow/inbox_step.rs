//! Workflow steps for people: the inbox, completing a step, and delegating it.

use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_content::Snapshot;
use tympan_jobs::workflow::{StepActionContext, WorkItem};

use super::{
    COMMENT_PARAMETER, DATA_PARAMETER, MAX_LISTED_WORKFLOWS, NUMBER_KIND, non_empty_field,
    number_field, open_workflows, visible_payload, workflow_data_of,
};
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

const STEP_NUMBER_PARAMETER: EndpointParameter =
    EndpointParameter::required("item", NUMBER_KIND, "The number of the step.");

/// The API endpoints that this module defines.
pub(crate) const INBOX_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/workflows/inbox",
        id: "readInbox",
        description: "Lists the open steps that are assigned to the caller or one of their groups; all of \
            them for administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Inbox", "The steps.")],
        handler: EndpointHandler::Async(list_inbox),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows/complete",
        id: "completeStep",
        description: "Completes a step of the caller's inbox.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            STEP_NUMBER_PARAMETER,
            EndpointParameter::new(
                "route",
                ParameterKind::Text,
                "The step to continue with, where there is a choice.",
            ),
            COMMENT_PARAMETER,
            DATA_PARAMETER,
        ]),
        responses: &[ResponseSpec::json("StepCompleted", "The step was completed.")],
        handler: EndpointHandler::Async(complete_step),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/workflows/delegate",
        id: "delegateStep",
        description: "Delegates a step of the caller's inbox to another user or group.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            STEP_NUMBER_PARAMETER,
            EndpointParameter::required("to", ParameterKind::NonEmptyText, "The user or group."),
        ]),
        responses: &[ResponseSpec::json("StepDelegated", "The step was delegated.")],
        handler: EndpointHandler::Async(delegate_step),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn inbox_schemas() -> Map<String, Value> {
    let item = object_schema(&[
        ("id", count_schema()),
        ("workflow", count_schema()),
        ("model", text_schema()),
        ("step", text_schema()),
        ("title", text_schema()),
        ("type", text_schema()),
        ("assignee", text_or_null_schema()),
        ("started", text_schema()),
        ("payload", text_or_null_schema()),
        ("routes", array_schema(text_schema())),
    ]);
    schemas_by_name([
        ("WorkItem", item),
        ("Inbox", object_schema(&[("items", array_schema(reference_schema("WorkItem")))])),
        ("StepCompleted", object_schema(&[("completed", count_schema())])),
        ("StepDelegated", object_schema(&[("delegated", count_schema()), ("to", text_schema())])),
    ])
}

pub(super) fn work_item_json(item: &WorkItem, snapshot: &Snapshot) -> Value {
    json!({
        "id": item.id,
        "workflow": item.workflow_id,
        "model": item.model,
        "step": item.step,
        "title": item.title,
        "type": item.kind,
        "assignee": item.assignee,
        "started": to_iso_time(item.started_at),
        "payload": visible_payload(snapshot, &item.payload),
        "routes": item.routes,
    })
}

/// Returns the names to which a step of the requesting user may be assigned; empty for administrators, who may complete
/// all steps.
pub(crate) fn assignee_names(call: &ApiRequest) -> Result<Vec<String>> {
    if super::is_administrator(call)? {
        return Ok(Vec::new());
    }
    let mut names = call.instance.repository.groups_of_viewer(&call.viewer)?;
    names.push(call.user_name().to_owned());
    Ok(names)
}

/// Returns an error if a step is not in the inbox of the requesting user.
pub(crate) async fn require_open_step(
    call: &ApiRequest,
    names: &[String],
    item: i64,
) -> Result<()> {
    let open = open_workflows(&call.instance).list_inbox(names, u32::MAX).await?;
    if open.iter().any(|step| step.id == item) { Ok(()) } else { Err(missing_step_failure(item)) }
}

fn missing_step_failure(item: i64) -> RequestFailure {
    RequestFailure::new(StatusCode::NOT_FOUND, format!("the step {item} is not open"))
}

fn list_inbox(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let items = open_workflows(&call.instance)
            .list_inbox(&assignee_names(&call)?, MAX_LISTED_WORKFLOWS)
            .await?;
        let snapshot = call.pin_snapshot()?;
        let items: Vec<Value> = items.iter().map(|item| work_item_json(item, &snapshot)).collect();
        Ok(ApiResponse::json(json!({ "items": items })))
    })
}

fn complete_step(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let (item, names) = (number_field(&call, "item")?, assignee_names(&call)?);
        require_open_step(&call, &names, item).await?;
        let action = StepActionContext {
            user: call.user_name(),
            comment: non_empty_field(&call, "comment"),
            now: call.now,
        };
        let (route, data) = (non_empty_field(&call, "route"), workflow_data_of(&call));
        open_workflows(&call.instance)
            .complete_participant_step(item, &names, route, data, &action)
            .await?;
        Ok(ApiResponse::json(json!({ "completed": item })))
    })
}

fn delegate_step(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let (item, names) = (number_field(&call, "item")?, assignee_names(&call)?);
        // Check this first, so that users without a step to delegate cannot probe which users exist.
        require_open_step(&call, &names, item).await?;
        let to = call.parameter("to").unwrap_or_default();
        if call.instance.repository.account_path(to)?.is_none() {
            let to: String = to.chars().take(100).collect();
            return Err(RequestFailure::unprocessable(format!("there is no user or group `{to}`")));
        }
        if !open_workflows(&call.instance).delegate_step(item, to).await? {
            return Err(missing_step_failure(item));
        }
        Ok(ApiResponse::json(json!({ "delegated": item, "to": to })))
    })
}
