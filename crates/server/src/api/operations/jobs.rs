//! The view of jobs: queues, the processes that work on them, and jobs that failed for good.

use serde_json::{Map, Value as Json, json};
use tympan_jobs::JobState;

use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, PendingApiResponse,
    RequestBodySpec, ResponseSpec,
};
use crate::api::job::{JOB_ADMINISTRATION, describe_jobs_in_state, queue};
use crate::api::schema::{
    array_schema, object_schema, reference_schema, schemas_by_name, text_schema,
};

/// Maximum number of failed jobs of one state in a response.
const MAX_FAILED_JOBS: u32 = 200;

/// The API endpoints that this module defines.
pub(crate) const JOBS_VIEW_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/operations/jobs",
    id: "viewJobs",
    description: "Lists the queues, the processes that work on them, and at most 200 jobs that were given up \
        and 200 that no retry can help. For administrators.",
    parameters: &[],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("JobsView", "The queues and the failed jobs.")],
    handler: EndpointHandler::Async(view_jobs),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn jobs_view_schemas() -> Map<String, Json> {
    let worker = object_schema(&[("name", text_schema()), ("role", text_schema())]);
    schemas_by_name([(
        "JobsView",
        object_schema(&[
            ("queues", array_schema(reference_schema("JobQueue"))),
            ("workers", array_schema(worker)),
            ("failed", array_schema(reference_schema("Job"))),
        ]),
    )])
}

fn view_jobs(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(JOB_ADMINISTRATION)?;
        let mut view = queue::describe_queues(&call.instance, call.now).await?;
        let mut failed = Vec::new();
        for state in [JobState::GivenUp, JobState::Error] {
            failed.extend(describe_jobs_in_state(&call.instance, state, MAX_FAILED_JOBS).await?);
        }
        view.insert("failed".to_owned(), json!(failed));
        Ok(ApiResponse::json(Json::Object(view)))
    })
}
