//! The view of caches: the fragment cache of this instance, and the dispatchers that it knows, with the explanation of an
//! address and flushes.
//!
//! Dispatchers are asked at their admin listeners, whose addresses the configuration names; content cannot add any.

use futures_util::future::join_all;
use http::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value as Json, json};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::schema::{
    array_schema, count_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};
use crate::known_dispatcher::DispatcherAdmin;
use crate::observe::timing::fragments_json;

/// Completes "only administrators may".
const CACHE_ADMINISTRATION: &str = "manage caches";
/// Maximum number of paths of a flush, as dispatchers accept.
const MAX_FLUSHED_PATHS: usize = 100;
/// Maximum number of components in the report of the fragment cache.
const MAX_LISTED_COMPONENTS: usize = 20;

impl Instance {
    /// Lets administrators see and flush a dispatcher. A later one of the same name replaces it.
    pub fn add_dispatcher(&self, dispatcher: DispatcherAdmin) {
        self.dispatchers.add(dispatcher);
    }
}

/// The API endpoints that this module defines.
pub(crate) const CACHES_VIEW_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/operations/caches",
        id: "viewCaches",
        description: "Returns the state of the fragment cache and of each dispatcher in `[operations]`. For \
            administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("CachesView", "The caches.")],
        handler: EndpointHandler::Async(view_caches),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/operations/caches/explain",
        id: "explainAddress",
        description: "Explains how a dispatcher would answer a visitor's request for an address: its farm, \
            filter, and why it is or is not cached. For administrators.",
        parameters: &[
            DISPATCHER_PARAMETER,
            EndpointParameter::required(
                "url",
                ParameterKind::NonEmptyText,
                "A path, or a URL with a host.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("AddressExplanation", "The explanation.")],
        handler: EndpointHandler::Async(explain_address),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/operations/caches/flush",
        id: "flushPaths",
        description: "Flushes paths at a dispatcher. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            DISPATCHER_PARAMETER,
            EndpointParameter::required(
                "path",
                ParameterKind::Texts,
                "A path: of a page for all its files, or with an extension. May be repeated.",
            ),
            EndpointParameter::new(
                "refetch",
                ParameterKind::Flag,
                "Whether the paths are fetched again at once, while visitors get the old files.",
            ),
            EndpointParameter::new(
                "tree",
                ParameterKind::Flag,
                "Whether other files below the same `.stat` files become stale too.",
            ),
        ]),
        responses: &[ResponseSpec::json("PathsFlushed", "The paths were flushed.")],
        handler: EndpointHandler::Async(flush_paths),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/operations/caches/fragments",
        id: "clearFragments",
        description: "Removes all fragments from the cache of this instance. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("FragmentsCleared", "The fragment cache is empty.")],
        handler: EndpointHandler::Blocking(clear_fragments),
    },
];

const DISPATCHER_PARAMETER: EndpointParameter = EndpointParameter::required(
    "dispatcher",
    ParameterKind::NonEmptyText,
    "The name of a dispatcher.",
);

/// Returns the JSON schemas that this module defines.
pub(crate) fn caches_view_schemas() -> Map<String, Json> {
    let object_or_null = || json!({ "type": ["object", "null"] });
    let dispatcher = object_schema(&[
        ("name", text_schema()),
        ("url", text_schema()),
        ("canFlush", json!({ "type": "boolean" })),
        ("status", object_or_null()),
        ("problem", text_or_null_schema()),
    ]);
    schemas_by_name([
        (
            "CachesView",
            object_schema(&[
                ("fragments", object_or_null()),
                ("dispatchers", array_schema(dispatcher)),
            ]),
        ),
        (
            "AddressExplanation",
            object_schema(&[
                ("request", text_schema()),
                ("rules", text_or_null_schema()),
                ("farm", text_schema()),
                ("filter", text_schema()),
                ("cache", text_schema()),
                ("stat", text_or_null_schema()),
                ("state", text_or_null_schema()),
                ("is_served", json!({ "type": "boolean" })),
            ]),
        ),
        ("PathsFlushed", object_schema(&[("paths", count_schema()), ("farms", count_schema())])),
        ("FragmentsCleared", object_schema(&[("fragments", count_schema())])),
    ])
}

fn view_caches(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(CACHE_ADMINISTRATION)?;
        let known = &call.instance.dispatchers;
        let dispatchers = known.all();
        let states = join_all(dispatchers.iter().map(|dispatcher| async move {
            let status = known.ask_json(dispatcher, (Method::GET, "/status.json"), None).await;
            let (status, problem) = match status {
                Ok(status) => (Some(status), None),
                Err(problem) => (None, Some(problem)),
            };
            json!({
                "name": dispatcher.name,
                "url": dispatcher.url,
                "canFlush": dispatcher.token.is_some(),
                "status": status,
                "problem": problem,
            })
        }));
        let fragments = call.instance.renderer.fragments();
        let fragments = fragments.map(|cache| fragments_json(&cache.report(MAX_LISTED_COMPONENTS)));
        Ok(ApiResponse::json(json!({ "fragments": fragments, "dispatchers": states.await })))
    })
}

/// Returns the dispatcher that a request names.
fn find_dispatcher(call: &ApiRequest) -> Result<DispatcherAdmin> {
    let name = call.parameter("dispatcher").unwrap_or_default();
    let found = call.instance.dispatchers.all().into_iter().find(|known| known.name == name);
    found.ok_or_else(|| {
        let message = format!("there is no dispatcher `{name}` in `[operations]` of tympan.toml");
        RequestFailure::new(StatusCode::NOT_FOUND, message)
    })
}

fn explain_address(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(CACHE_ADMINISTRATION)?;
        let known = &call.instance.dispatchers;
        let dispatcher = find_dispatcher(&call)?;
        let url = call.parameter("url").unwrap_or_default().trim();
        let target = format!("/explain?url={}", utf8_percent_encode(url, NON_ALPHANUMERIC));
        let explanation = known.ask_json(&dispatcher, (Method::GET, &target), None).await;
        let explanation = explanation.map_err(RequestFailure::unprocessable)?;
        Ok(ApiResponse::json(explanation))
    })
}

fn flush_paths(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(CACHE_ADMINISTRATION)?;
        let known = &call.instance.dispatchers;
        let dispatcher = find_dispatcher(&call)?;
        let paths: Vec<&str> = call.parameter_values("path").map(str::trim).collect();
        if paths.is_empty() || paths.len() > MAX_FLUSHED_PATHS {
            let message = format!("specify 1 to {MAX_FLUSHED_PATHS} paths");
            return Err(RequestFailure::unprocessable(message));
        }
        if let Some(wrong) = paths.iter().find(|path| !path.starts_with('/')) {
            let message = format!("`{wrong}` is not a path: it must begin with `/`");
            return Err(RequestFailure::unprocessable(message));
        }
        let refetch = if call.flag_parameter("refetch") { paths.clone() } else { Vec::new() };
        let tree = call.flag_parameter("tree");
        let body = json!({ "paths": paths, "refetch": refetch, "tree": tree });
        let flushed = known.ask_json(&dispatcher, (Method::POST, "/flush"), Some(body)).await;
        let flushed = flushed.map_err(RequestFailure::unprocessable)?;
        tracing::info!(user = call.user_name(), paths = paths.len(), "flushed at a dispatcher");
        Ok(ApiResponse::json(flushed))
    })
}

fn clear_fragments(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator(CACHE_ADMINISTRATION)?;
    let missing =
        || RequestFailure::new(StatusCode::NOT_FOUND, "this instance has no fragment cache");
    let fragments = instance.renderer.fragments().ok_or_else(missing)?;
    let count = fragments.report(0).fragment_count;
    fragments.clear_fragments();
    Ok(ApiResponse::json(json!({ "fragments": count })))
}
