//! The JSON API below `/api/v1`: one table of endpoints, from which routes, checks and the OpenAPI document come.
//!
//! In: JSON, conditions (`If-Match`), cursors. Out: JSON, problem details (RFC 9457), server-sent events.
//!
//! Invariants
//! * What is served is described, and what is described is served: both are read from [`endpoints`].
//! * Every endpoint knows who asks and shows what they may read, nothing else: what they may not read looks as if it were
//!   not there, also in failures.
//! * Every answer has an entity tag; every write takes conditions on it.
//!
//! Not here: what a node is (`content`), Sling's own protocol (`post`, `page`).

mod account;
mod agent;
pub(crate) mod backup;
mod blob;
mod branch;
mod children;
pub(crate) mod endpoint;
mod feed;
mod guard;
mod identity;
pub(crate) mod job;
pub(crate) mod mount;
mod node;
mod node_type;
mod openapi;
mod package;
mod page;
mod permission;
mod query;
mod queue;
mod reference;
mod schedule;
mod schema;
mod step;
mod tag;
mod version;
pub(crate) mod workflow;
mod write;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, on};

pub(crate) use self::guard::broken;
pub(crate) use self::identity::{Watcher, require_reader, require_user};
pub(crate) use self::tag::Condition;
use crate::Instance;
use crate::api::endpoint::{Endpoint, Handler, Verb};
use crate::failure::Failure;

/// The tables of all rooms.
const TABLES: &[&[Endpoint]] = &[
    node::ENDPOINTS,
    children::ENDPOINTS,
    write::ENDPOINTS,
    blob::ENDPOINTS,
    version::ENDPOINTS,
    reference::ENDPOINTS,
    query::ENDPOINTS,
    account::USERS,
    account::GROUPS,
    permission::ENDPOINTS,
    permission::CHANGES,
    permission::REASONS,
    branch::ENDPOINTS,
    branch::MERGES,
    node_type::ENDPOINTS,
    package::ENDPOINTS,
    feed::ENDPOINTS,
    page::ENDPOINTS,
    queue::ENDPOINTS,
    job::ENDPOINTS,
    job::QUEUES,
    workflow::ENDPOINTS,
    workflow::STEPS,
    agent::ENDPOINTS,
    schedule::ENDPOINTS,
    backup::ENDPOINTS,
    step::ENDPOINTS,
    mount::ENDPOINTS,
    openapi::ENDPOINTS,
];

/// Returns all endpoints.
pub(crate) fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    TABLES.iter().flat_map(|table| table.iter())
}

/// Returns the routes of the endpoints that a publisher has: queries, and its jobs.
pub(crate) fn publish_routes() -> Router<Arc<Instance>> {
    routes_of([query::ENDPOINTS, job::ENDPOINTS, job::QUEUES].into_iter().flatten())
}

/// Returns the routes of all endpoints.
pub(crate) fn routes() -> Router<Arc<Instance>> {
    let router = routes_of(endpoints());
    router.route("/api/{*path}", any(missing)).method_not_allowed_fallback(wrong_method)
}

fn routes_of(endpoints: impl Iterator<Item = &'static Endpoint>) -> Router<Arc<Instance>> {
    let mut router = Router::new();
    for endpoint in endpoints {
        let route = match endpoint.handler {
            Handler::Route(route) => route(),
            Handler::Work(_) | Handler::Task(_) => {
                let handler = move |State(instance), request: Request| {
                    guard::answer(endpoint, instance, request)
                };
                on(endpoint.verb.filter(), handler)
            }
        };
        router = router.route(endpoint.path, route);
    }
    router
}

/// Answers for paths that are none of the API's.
async fn missing(request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let known = "the API is described at `/api/v1/openapi.json`";
    Failure::new(http::StatusCode::NOT_FOUND, format!("`{path}` is no endpoint; {known}"))
        .into_problem()
}

/// Answers for methods that an endpoint does not have.
async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    let methods: Vec<&str> =
        endpoints().filter(|one| one.path == path).map(|one| one.verb.name()).collect();
    if methods.is_empty() {
        return Failure::new(http::StatusCode::METHOD_NOT_ALLOWED, "this path has other methods")
            .into_response();
    }
    let message = format!("`{path}` has {}", methods.join(", "));
    let mut response = Failure::new(http::StatusCode::METHOD_NOT_ALLOWED, message).into_problem();
    let mut allow = methods.join(", ");
    if methods.contains(&Verb::Get.name()) {
        allow.push_str(", HEAD");
    }
    if let Ok(allow) = http::HeaderValue::from_str(&allow) {
        response.headers_mut().insert(http::header::ALLOW, allow);
    }
    response
}
