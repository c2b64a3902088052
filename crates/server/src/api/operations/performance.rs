//! The view of performance: the requests of the last hour, the classes of page times, and the slowest pages and
//! components with their flame graphs.

use serde_json::{Map, Value as Json, json};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, RequestBodySpec,
    ResponseSpec,
};
use crate::api::iso_time::to_iso_time;
use crate::api::schema::{array_schema, count_schema, object_schema, schemas_by_name};
use crate::failure::Result;
use crate::observe::request_history::{PAGE_CLASS_BOUNDS_MS, PAGE_CLASS_COUNT};
use crate::observe::timing::{component_timing_json, profiled_request_json};

/// The shares of pages in each class in percent, as AEM's performance guide asks for; no page may be slower than the last
/// bound.
const PAGE_CLASS_GOALS: [u64; PAGE_CLASS_COUNT] = [70, 25, 4, 1, 0];
/// Maximum number of slow requests in a response, each with its flame graph.
const MAX_SLOWEST: usize = 20;
/// Maximum number of components in a response.
const MAX_COMPONENTS: usize = 50;

/// The API endpoints that this module defines.
pub(crate) const PERFORMANCE_VIEW_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/operations/performance",
    id: "viewPerformance",
    description: "Returns the rate and the durations of the requests of the last hour, the share of pages in \
        each class of time, and the slowest pages and components. For administrators.",
    parameters: &[],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("PerformanceView", "The figures of this instance.")],
    handler: EndpointHandler::Blocking(view_performance),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn performance_view_schemas() -> Map<String, Json> {
    let number = || json!({ "type": "number" });
    let objects = || array_schema(json!({ "type": "object" }));
    let percentiles = object_schema(&[
        ("p50", number()),
        ("p90", number()),
        ("p95", number()),
        ("p99", number()),
    ]);
    let class = object_schema(&[
        ("fromMs", count_schema()),
        ("toMs", json!({ "type": ["integer", "null"] })),
        ("pages", count_schema()),
        ("goalPercent", count_schema()),
    ]);
    schemas_by_name([(
        "PerformanceView",
        object_schema(&[
            ("minutes", objects()),
            ("requests", count_schema()),
            ("errors", count_schema()),
            ("percentilesMs", percentiles),
            ("pageClasses", array_schema(class)),
            ("slowest", objects()),
            ("components", objects()),
        ]),
    )])
}

fn view_performance(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("view request timings")?;
    let history = instance.request_history.report(call.now);
    let profile = instance.profile.report();
    let minutes: Vec<Json> = history
        .minutes
        .iter()
        .map(|minute| {
            json!({
                "start": to_iso_time(minute.start),
                "requests": minute.requests,
                "errors": minute.errors,
                "p50Ms": minute.p50_ms,
                "p95Ms": minute.p95_ms,
            })
        })
        .collect();
    let [p50, p90, p95, p99] = history.percentiles_ms;
    let starts = [0].into_iter().chain(PAGE_CLASS_BOUNDS_MS);
    let ends = PAGE_CLASS_BOUNDS_MS.into_iter().map(Some).chain([None]);
    let classes: Vec<Json> = starts
        .zip(ends)
        .zip(history.page_classes.into_iter().zip(PAGE_CLASS_GOALS))
        .map(|((from, to), (pages, goal))| {
            json!({ "fromMs": from, "toMs": to, "pages": pages, "goalPercent": goal })
        })
        .collect();
    let slowest: Vec<Json> =
        profile.slowest.iter().take(MAX_SLOWEST).map(profiled_request_json).collect();
    let components: Vec<Json> =
        profile.components.iter().take(MAX_COMPONENTS).map(component_timing_json).collect();
    Ok(ApiResponse::json(json!({
        "minutes": minutes,
        "requests": history.requests,
        "errors": history.errors,
        "percentilesMs": { "p50": p50, "p90": p90, "p95": p95, "p99": p99 },
        "pageClasses": classes,
        "slowest": slowest,
        "components": components,
    })))
}
