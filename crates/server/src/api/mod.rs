//! The JSON API below `/api/v1`: one table of endpoints generates the routes, the checks and the OpenAPI document.
//!
//! In: JSON, conditions (`If-Match`), cursors. Out: JSON, problem details (RFC 9457), server-sent events.
//!
//! Invariants
//! * Every endpoint that is served is described, and vice versa: both come from [`all_endpoints`].
//! * Every endpoint identifies the requesting user and shows only what that user may read. Anything else is reported as
//!   missing, also in failures.
//! * Every response has an entity tag; every write accepts conditions on it.
//!
//! Not here: Sling's own protocol (`write`, `page`).

mod account;
mod agent;
mod agent_queue;
pub(crate) mod backup;
mod blob;
mod branch;
mod change_feed;
mod children;
mod combined_read;
mod document_tree;
pub(crate) mod endpoint;
mod endpoint_dispatch;
mod entity_tag;
mod failed_step;
mod identity;
mod iso_time;
pub(crate) mod job;
pub(crate) mod mount;
mod node;
mod node_type;
mod node_write;
mod openapi;
mod operations;
mod package;
mod page;
mod page_template;
mod permission;
pub(crate) mod presence;
mod query;
mod reference;
mod repoinit;
mod schedule;
mod schema;
mod schema_catalog;
mod version;
pub(crate) mod workflow;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, on};
use serde_json::Value;

pub(crate) use self::agent_queue::MAX_REQUEST_PATHS;
pub(crate) use self::entity_tag::WriteCondition;
pub(crate) use self::identity::MonitoringIdentity;
use crate::Instance;
pub(crate) use crate::api::endpoint::MAX_JSON_BYTES;
use crate::api::endpoint::{Endpoint, EndpointHandler, EndpointMethod};
use crate::failure::{RequestFailure, Result};
use crate::login::RequestIdentity;

/// The endpoint tables of all modules.
const ENDPOINT_TABLES: &[&[Endpoint]] = &[
    node::NODE_ENDPOINTS,
    children::CHILDREN_ENDPOINTS,
    combined_read::COMBINED_READ_ENDPOINTS,
    node_write::WRITE_ENDPOINTS,
    blob::BLOB_ENDPOINTS,
    version::VERSION_ENDPOINTS,
    reference::REFERENCE_ENDPOINTS,
    query::QUERY_ENDPOINTS,
    account::user::USER_ENDPOINTS,
    account::group::GROUP_ENDPOINTS,
    account::token::TOKEN_ENDPOINTS,
    permission::PERMISSION_ENDPOINTS,
    permission::policy_change::POLICY_CHANGE_ENDPOINTS,
    permission::permission_reason::PERMISSION_REASON_ENDPOINTS,
    branch::BRANCH_ENDPOINTS,
    branch::merge::MERGE_ENDPOINTS,
    node_type::NODE_TYPE_ENDPOINTS,
    package::PACKAGE_ENDPOINTS,
    repoinit::REPOINIT_ENDPOINTS,
    change_feed::FEED_ENDPOINTS,
    page::PAGE_ENDPOINTS,
    presence::PRESENCE_ENDPOINTS,
    page_template::PAGE_TEMPLATE_ENDPOINTS,
    agent_queue::AGENT_QUEUE_ENDPOINTS,
    job::JOB_ENDPOINTS,
    job::queue::QUEUE_ENDPOINTS,
    workflow::WORKFLOW_ENDPOINTS,
    workflow::inbox_step::INBOX_ENDPOINTS,
    agent::AGENT_ENDPOINTS,
    schedule::SCHEDULE_ENDPOINTS,
    backup::BACKUP_ENDPOINTS,
    failed_step::FAILED_STEP_ENDPOINTS,
    mount::MOUNT_ENDPOINTS,
    openapi::OPENAPI_ENDPOINTS,
];

/// Returns all endpoints.
fn all_endpoints() -> impl Iterator<Item = &'static Endpoint> {
    let tables = ENDPOINT_TABLES.iter().chain(&operations::OPERATIONS_TABLES);
    tables.flat_map(|table| table.iter())
}

/// Calls the endpoint with an identifier for a request to another address, as
/// [`endpoint_dispatch::call_endpoint`] does.
///
/// # Errors
/// As the endpoint itself, with the same statuses.
pub(crate) async fn call_endpoint(
    caller: (&Arc<Instance>, &RequestIdentity),
    id: &str,
    parameters: &[(&str, &str)],
    body: &Value,
) -> Result<Value> {
    let missing =
        || RequestFailure::new(http::StatusCode::NOT_FOUND, format!("no endpoint `{id}`"));
    let endpoint = all_endpoints().find(|endpoint| endpoint.id == id).ok_or_else(missing)?;
    endpoint_dispatch::call_endpoint(endpoint, caller, parameters, body).await
}

/// Returns the routes of the endpoints that a publisher serves: queries and its own jobs.
pub(crate) fn publish_routes() -> Router<Arc<Instance>> {
    endpoint_routes(
        [query::QUERY_ENDPOINTS, job::JOB_ENDPOINTS, job::queue::QUEUE_ENDPOINTS]
            .into_iter()
            .flatten(),
    )
}

/// Returns the routes of all endpoints.
pub(crate) fn author_routes() -> Router<Arc<Instance>> {
    let router = endpoint_routes(all_endpoints());
    router
        .route("/api/{*path}", any(unknown_path_response))
        .method_not_allowed_fallback(wrong_method_response)
}

fn endpoint_routes(endpoints: impl Iterator<Item = &'static Endpoint>) -> Router<Arc<Instance>> {
    let mut router = Router::new();
    for endpoint in endpoints {
        let route = match endpoint.handler {
            EndpointHandler::Route(route) => route(),
            EndpointHandler::Blocking(_) | EndpointHandler::Async(_) => {
                let handler = move |State(instance), request: Request| {
                    endpoint_dispatch::handle_request(endpoint, instance, request)
                };
                on(endpoint.method.to_method_filter(), handler)
            }
        };
        router = router.route(endpoint.path, route);
    }
    router
}

/// Returns the response for a path that does not exist in the API.
async fn unknown_path_response(request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let hint = "the API is described at `/api/v1/openapi.json`";
    RequestFailure::new(http::StatusCode::NOT_FOUND, format!("`{path}` is not an endpoint; {hint}"))
        .into_problem_response()
}

/// Returns the response for a method that an endpoint does not support.
async fn wrong_method_response(request: Request) -> Response {
    let path = request.uri().path();
    let methods: Vec<&str> = all_endpoints()
        .filter(|endpoint| endpoint.path == path)
        .map(|endpoint| endpoint.method.name())
        .collect();
    if methods.is_empty() {
        return RequestFailure::new(
            http::StatusCode::METHOD_NOT_ALLOWED,
            "this path does not support the method",
        )
        .into_response();
    }
    let message = format!("`{path}` supports only {}", methods.join(", "));
    let mut response =
        RequestFailure::new(http::StatusCode::METHOD_NOT_ALLOWED, message).into_problem_response();
    let mut allow = methods.join(", ");
    if methods.contains(&EndpointMethod::Get.name()) {
        allow.push_str(", HEAD");
    }
    if let Ok(allow) = http::HeaderValue::from_str(&allow) {
        response.headers_mut().insert(http::header::ALLOW, allow);
    }
    response
}
