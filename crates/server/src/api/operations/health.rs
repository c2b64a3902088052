//! The view of health: what `/health` reports, and the resources of the process and of the home's disk.

use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, PendingApiResponse,
    RequestBodySpec, ResponseSpec,
};
use crate::api::iso_time::to_iso_time;
use crate::api::schema::{
    array_schema, count_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::observe::process_metrics::{memory_of_process, open_files_of_process};
use crate::observe::readiness::{ReadinessScope, check_readiness};

/// The API endpoints that this module defines.
pub(crate) const HEALTH_VIEW_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/operations/health",
    id: "viewHealth",
    description: "Returns the health of every component with its reason, and the resources of the process. \
        For administrators.",
    parameters: &[],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("HealthView", "The health; also if a component has failed.")],
    handler: EndpointHandler::Async(view_health),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn health_view_schemas() -> Map<String, Json> {
    let check = object_schema(&[
        ("name", text_schema()),
        ("ok", json!({ "type": "boolean" })),
        ("level", text_schema()),
        ("reason", text_or_null_schema()),
    ]);
    schemas_by_name([(
        "HealthView",
        object_schema(&[
            ("status", json!({ "enum": ["ok", "warn", "fail"] })),
            ("role", text_schema()),
            ("version", text_schema()),
            ("started", text_schema()),
            ("uptimeSeconds", count_schema()),
            ("memoryBytes", count_schema()),
            ("openFiles", count_schema()),
            ("diskFreeBytes", count_schema()),
            ("diskBytes", count_schema()),
            ("checks", array_schema(check)),
        ]),
    )])
}

fn view_health(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("view the health of components")?;
        let instance = &call.instance;
        let report = check_readiness(instance, ReadinessScope::AllParts).await;
        let uptime = SystemTime::now().duration_since(instance.started_at).unwrap_or_default();
        let home = instance.spool_folder.clone();
        let resources = tokio::task::spawn_blocking(move || {
            let disk = rustix::fs::statvfs(&home).ok();
            let disk = disk.map(|disk| {
                let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
                (bytes(disk.f_bavail), bytes(disk.f_blocks))
            });
            (memory_of_process(), open_files_of_process(), disk.unwrap_or_default())
        });
        // The values of a failed task are unknown, as those that the system does not provide.
        let (memory, files, (free, size)) = resources.await.unwrap_or_default();
        Ok(ApiResponse::json(json!({
            "status": report.worst_level(),
            "role": instance.role.name(),
            "version": env!("CARGO_PKG_VERSION"),
            "started": to_iso_time(instance.started_at),
            "uptimeSeconds": uptime.as_secs(),
            "memoryBytes": memory,
            "openFiles": files,
            "diskFreeBytes": free,
            "diskBytes": size,
            "checks": report.checks_json(),
        })))
    })
}
