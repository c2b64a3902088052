//! Immediate runs of scheduled jobs.

use serde_json::{Map, Value as Json, json};

use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::schema::{count_schema, object_schema, schemas_by_name};
use crate::failure::{RequestFailure, Result};

/// The API endpoints that this module defines.
pub(crate) const SCHEDULE_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Post,
    path: "/api/v1/schedules/run",
    id: "runSchedule",
    description: "Adds the job of a schedule now, unless one is queued or running; its next scheduled time is \
        unchanged. For administrators.",
    parameters: &[EndpointParameter::required(
        "name",
        ParameterKind::Text,
        "The name of the schedule, as `/api/v1/jobs/schedules` lists it.",
    )],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("ScheduleRun", "The job.")],
    handler: EndpointHandler::Async(run_schedule),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn schedule_schemas() -> Map<String, Json> {
    schemas_by_name([("ScheduleRun", object_schema(&[("job", count_schema())]))])
}

fn run_schedule(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("run schedules")?;
        let name = call.parameter("name").unwrap_or_default().to_owned();
        let job =
            call.instance.queues.schedules().run_now(&name, call.user_name(), call.now).await?;
        let missing = || {
            let message =
                format!("there is no schedule `{name}`; `/api/v1/jobs/schedules` lists them");
            RequestFailure::new(http::StatusCode::NOT_FOUND, message)
        };
        let job = job.ok_or_else(missing)?;
        Result::Ok(ApiResponse::json(json!({ "job": job.0 })))
    })
}
