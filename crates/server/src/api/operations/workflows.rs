//! The view of workflows: the instances of all users, and the models with their steps and transitions.

use serde_json::{Map, Value as Json, json};
use tympan_jobs::workflow::{WorkflowFilter, WorkflowModel, WorkflowState};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, PendingApiResponse,
    RequestBodySpec, ResponseSpec,
};
use crate::api::schema::{array_schema, object_schema, reference_schema, schemas_by_name};
use crate::api::workflow::{open_workflows, workflow_json};
use crate::failure::Result;

/// Maximum number of listed instances in each state that needs attention, and in each state after the end.
const MAX_OPEN_INSTANCES: u32 = 200;
const MAX_ENDED_INSTANCES: u32 = 20;
/// Maximum number of models, and of steps and transitions of a model.
const MAX_LISTED_MODELS: usize = 200;
const MAX_LISTED_STEPS: usize = 200;

/// The API endpoints that this module defines.
pub(crate) const WORKFLOWS_VIEW_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/operations/workflows",
    id: "viewWorkflows",
    description: "Lists the workflow instances of all users, at most 200 in each state, and the models with \
        their steps and transitions. For administrators.",
    parameters: &[],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("WorkflowsView", "The instances and the models.")],
    handler: EndpointHandler::Async(view_workflows),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn workflows_view_schemas() -> Map<String, Json> {
    schemas_by_name([(
        "WorkflowsView",
        object_schema(&[
            ("workflows", array_schema(reference_schema("Workflow"))),
            ("models", array_schema(json!({ "type": "object" }))),
        ]),
    )])
}

fn view_workflows(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("view the workflows of all users")?;
        let engine = open_workflows(&call.instance);
        let mut instances = Vec::new();
        for state in WorkflowState::ALL {
            let limit = match state {
                WorkflowState::Completed | WorkflowState::Aborted => MAX_ENDED_INSTANCES,
                _ => MAX_OPEN_INSTANCES,
            };
            let filter = WorkflowFilter { state: Some(state), ..WorkflowFilter::default() };
            instances.extend(engine.list_instances(&filter, limit).await?);
        }
        instances.sort_by_key(|instance| std::cmp::Reverse(instance.id));
        let snapshot = call.pin_snapshot()?;
        let workflows: Vec<Json> =
            instances.iter().map(|instance| workflow_json(instance, &snapshot)).collect();
        let models = call.instance.clone().run_work(list_models).await?;
        Ok(ApiResponse::json(json!({ "workflows": workflows, "models": models })))
    })
}

fn list_models(instance: &Instance) -> Result<Vec<Json>> {
    let engine = open_workflows(instance);
    let models = engine.model_roots().find_models(&instance.repository.snapshot()?)?;
    let listed = models.iter().take(MAX_LISTED_MODELS).map(|(path, model)| match model {
        Ok(model) => {
            let fault = engine.check_model(model).err().map(|error| error.to_string());
            model_json(model, fault.as_deref())
        }
        Err(error) => json!({
            "path": path, "title": null, "fault": error.to_string(), "steps": [], "transitions": [],
        }),
    });
    Ok(listed.collect())
}

fn model_json(model: &WorkflowModel, fault: Option<&str>) -> Json {
    let steps: Vec<Json> = model
        .steps
        .iter()
        .take(MAX_LISTED_STEPS)
        .map(|(name, step)| json!({ "name": name, "title": step.title, "type": step.kind.name() }))
        .collect();
    let transitions: Vec<Json> = model
        .transitions
        .iter()
        .take(MAX_LISTED_STEPS)
        .map(|way| json!({ "from": way.from, "to": way.to, "rule": way.rule }))
        .collect();
    json!({
        "path": model.path, "title": model.title, "fault": fault, "steps": steps, "transitions": transitions,
    })
}
