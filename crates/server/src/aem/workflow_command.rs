//! AEM's addresses of workflows: `/etc/workflow/instances`, `/etc/workflow/models.json` and `/bin/workflow/inbox`.
//!
//! In: the forms of AEM's workflow console. Out: its JSON. Everything else below `/etc/workflow` is content.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use super::aem_request::{AemRequest, PendingAemResponse, serve_request};
use super::refusal::not_implemented;
use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::resource_request::serve_resource;
use crate::write::sling_post::PostOutcome;

const INSTANCES_ADDRESS: &str = "/etc/workflow/instances";
/// The parameters of a start that are no data of the instance.
const START_PARAMETERS: [&str; 5] =
    ["model", "payload", "payloadType", "_charset_", ":cq_csrf_token"];

/// Handles the lists of instances and models, and the start of an instance.
pub(super) async fn serve_list(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_instances = name == "instances" || name.starts_with("instances.");
    match (is_read, is_instances) {
        (true, true) if name.ends_with(".json") => {
            serve_request(&instance, request, list_instances).await
        }
        (true, false) if name == "models.json" => {
            serve_request(&instance, request, list_models).await
        }
        (false, true) if *request.method() == Method::POST => {
            serve_request(&instance, request, start_instance).await
        }
        _ => serve_resource(State(instance), request).await,
    }
}

/// Shows an instance, or changes its state.
pub(super) async fn serve_instance(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match instance_number(request.uri().path()) {
        Some(_) if is_read => serve_request(&instance, request, show_instance).await,
        Some(_) if *request.method() == Method::POST => {
            serve_request(&instance, request, change_instance).await
        }
        _ => serve_resource(State(instance), request).await,
    }
}

/// Returns the number of the instance in a URL.
fn instance_number(address: &str) -> Option<u32> {
    let rest = address.strip_prefix(INSTANCES_ADDRESS)?.strip_prefix('/')?;
    let rest = rest.strip_suffix(".json").unwrap_or(rest);
    rest.parse().ok()
}

fn instance_address(id: &Value) -> String {
    format!("{INSTANCES_ADDRESS}/{id}")
}

fn list_instances(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        // `instances.RUNNING.json` selects a state.
        let name = request.path().rsplit('/').next().unwrap_or_default();
        let state = name.strip_prefix("instances.").and_then(|rest| rest.strip_suffix(".json"));
        let mut parameters = vec![("limit", "500")];
        parameters.extend(state.map(|state| ("state", state)));
        let listed = &request.call("listWorkflows", &parameters, &Value::Null).await?;
        let workflows = listed["workflows"].as_array().into_iter().flatten();
        let addresses =
            workflows.map(|workflow| json!({ "uri": instance_address(&workflow["id"]) }));
        Ok(Json(addresses.collect::<Vec<_>>()).into_response())
    })
}

fn list_models(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        let listed = &request.call("listWorkflowModels", &[], &Value::Null).await?;
        let models = listed["models"].as_array().into_iter().flatten();
        let is_id = request.value("format") == Some("id");
        let models = models.map(|model| match is_id {
            true => json!({ "value": model["path"], "text": model["title"] }),
            false => json!({ "uri": model["path"] }),
        });
        Ok(Json(models.collect::<Vec<_>>()).into_response())
    })
}

/// Starts an instance; other parameters become its data.
fn start_instance(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        if let Some(kind) = request.value("payloadType")
            && kind != "JCR_PATH"
        {
            return not_implemented("the only supported `payloadType` is JCR_PATH");
        }
        let data = request.parameters().filter(|(name, _)| !START_PARAMETERS.contains(name));
        let data: Vec<String> = data.map(|(name, value)| format!("{name}={value}")).collect();
        let mut parameters =
            vec![("model", request.required("model")?), ("payload", request.required("payload")?)];
        parameters.extend(data.iter().map(|pair| ("data", pair.as_str())));
        let started = &request.call("startWorkflow", &parameters, &Value::Null).await?;
        let address = instance_address(&started["id"]);
        let outcome = PostOutcome {
            path: address.clone(),
            status: Some(StatusCode::CREATED),
            message: Some("Workflow started".to_owned()),
            ..PostOutcome::default()
        };
        let mut response = request.status_response(Ok(outcome));
        if let Ok(address) = HeaderValue::from_str(&address) {
            response.headers_mut().insert(header::LOCATION, address);
        }
        Ok(response)
    })
}

fn show_instance(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        let number = requested_number(&request)?;
        let workflow = &request.call("readWorkflow", &[("id", &number)], &Value::Null).await?;
        let items = workflow["steps"].as_array().into_iter().flatten().map(work_item_json);
        Ok(Json(json!({
            "id": instance_address(&workflow["id"]),
            "uri": instance_address(&workflow["id"]),
            "type": "workflow",
            "state": workflow["state"],
            "model": workflow["model"],
            "initiator": workflow["initiator"],
            "startTime": workflow["started"],
            "endTime": workflow["ended"],
            "payload": workflow["payload"],
            "payloadType": "JCR_PATH",
            "metaData": workflow["data"],
            "workItems": items.collect::<Vec<_>>(),
        }))
        .into_response())
    })
}

fn requested_number(request: &AemRequest) -> Result<String> {
    let missing = || RequestFailure::not_found(request.path());
    instance_number(request.path()).map(|number| number.to_string()).ok_or_else(missing)
}

fn change_instance(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        let number = requested_number(&request)?;
        let endpoint = match request.value("state").unwrap_or_default() {
            "ABORTED" => "terminateWorkflow",
            "SUSPENDED" => "suspendWorkflow",
            "RUNNING" => "resumeWorkflow",
            _ => {
                return not_implemented("send `state` with ABORTED, SUSPENDED or RUNNING");
            }
        };
        let mut parameters = vec![("id", number.as_str())];
        if endpoint == "terminateWorkflow" {
            parameters.extend(request.value("terminateComment").map(|text| ("comment", text)));
        }
        request.call(endpoint, &parameters, &Value::Null).await?;
        let outcome = PostOutcome {
            path: format!("{INSTANCES_ADDRESS}/{number}"),
            message: Some("Workflow changed".to_owned()),
            ..PostOutcome::default()
        };
        Ok(request.status_response(Ok(outcome)))
    })
}

fn work_item_json(item: &Value) -> Value {
    let address = format!("{}/workItems/{}", instance_address(&item["workflow"]), item["id"]);
    let routes = item["routes"].as_array().into_iter().flatten();
    json!({
        "id": address,
        "uri": address,
        "nodeId": item["step"],
        "title": item["title"],
        "currentAssignee": item["assignee"],
        "startTime": item["started"],
        "payload": item["payload"],
        "payloadType": "JCR_PATH",
        "workflow": instance_address(&item["workflow"]),
        "routes": routes.map(|route| json!({ "rid": route, "label": route })).collect::<Vec<_>>(),
    })
}

/// The inbox: lists open steps, and completes, delegates or sends back one.
pub(super) fn serve_inbox(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        if request.is_read() {
            let inbox = &request.call("readInbox", &[], &Value::Null).await?;
            let items = inbox["items"].as_array().into_iter().flatten().map(work_item_json);
            return Ok(Json(items.collect::<Vec<_>>()).into_response());
        }
        request.require_post()?;
        // The number of the step, or its URI.
        let item = request.required("item")?.rsplit('/').next().unwrap_or_default();
        let given = ["delegatee", "backroute", "route"].map(|name| request.value(name));
        let (endpoint, argument) = match given {
            [Some(to), _, _] => ("delegateStep", Some(("to", to))),
            [_, Some(to), _] => ("sendStepBack", Some(("to", to))),
            [_, _, route] => ("completeStep", route.map(|route| ("route", route))),
        };
        let mut parameters = vec![("item", item)];
        parameters.extend(argument);
        if endpoint != "delegateStep" {
            parameters.extend(request.value("comment").map(|text| ("comment", text)));
        }
        request.call(endpoint, &parameters, &Value::Null).await?;
        let outcome = PostOutcome {
            path: request.path().to_owned(),
            message: Some("Work item changed".to_owned()),
            ..PostOutcome::default()
        };
        Ok(request.status_response(Ok(outcome)))
    })
}
