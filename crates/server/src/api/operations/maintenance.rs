//! The view of maintenance: recurring jobs with their last results, property indexes, and slow statements.

use serde_json::{Map, Value as Json, json};

use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, PendingApiResponse,
    RequestBodySpec, ResponseSpec,
};
use crate::api::iso_time::to_iso_time;
use crate::api::job::statistics_json;
use crate::api::query::{describe_indexes, describe_slow_statements};
use crate::api::schema::{array_schema, object_schema, reference_schema, schemas_by_name};

/// Maximum number of schedules in a response.
const MAX_LISTED_SCHEDULES: usize = 500;

/// The API endpoints that this module defines.
pub(crate) const MAINTENANCE_VIEW_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/operations/maintenance",
    id: "viewMaintenance",
    description: "Lists the schedules with the statistics of their jobs, the property indexes, and slow \
        statements. For administrators.",
    parameters: &[],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("MaintenanceView", "The schedules, indexes and statements.")],
    handler: EndpointHandler::Async(view_maintenance),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn maintenance_view_schemas() -> Map<String, Json> {
    schemas_by_name([(
        "MaintenanceView",
        object_schema(&[
            ("schedules", array_schema(json!({ "type": "object" }))),
            ("indexes", array_schema(json!({ "type": "object" }))),
            ("slow", reference_schema("SlowStatements")),
        ]),
    )])
}

fn view_maintenance(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("view maintenance")?;
        let instance = &call.instance;
        let topics = instance.queues.statistics().topic_statistics().await?;
        let schedules = instance.queues.schedules().list().await?;
        let schedules: Vec<Json> = schedules
            .iter()
            .take(MAX_LISTED_SCHEDULES)
            .map(|schedule| {
                json!({
                    "name": schedule.name,
                    "topic": schedule.topic,
                    "rule": schedule.rule_text,
                    "nextRun": schedule.next_run.map(to_iso_time),
                    "jobs": topics.get(&schedule.topic).map(statistics_json),
                })
            })
            .collect();
        let (indexes, slow) = instance
            .run_work(|instance| {
                Ok((describe_indexes(instance)?, describe_slow_statements(instance)))
            })
            .await?;
        Ok(ApiResponse::json(json!({ "schedules": schedules, "indexes": indexes, "slow": slow })))
    })
}
