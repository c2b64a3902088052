//! API endpoint for scripts of repository initialization, as configurations of Sling contain them.
//!
//! For administrators: a script creates accounts and policies, and its outcomes tell what exists.

use serde_json::{Map, Value as Json, json};
use tympan_content_package::run_repoinit;

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::node_type::read_text_body;
use crate::api::schema::{
    array_schema, count_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::observe::metrics::increment;

/// The API endpoints that this module defines.
pub(crate) const REPOINIT_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Post,
    path: "/api/v1/repoinit",
    id: "initializeRepository",
    description: "Carries out the repoinit statements in the body, in one commit, and returns what became of each. For \
        administrators.",
    parameters: &[EndpointParameter::new(
        "dryRun",
        ParameterKind::Flag,
        "Whether to change nothing. Default false.",
    )],
    body: RequestBodySpec::Text,
    responses: &[ResponseSpec::json("RepoinitOutcomes", "The statements, in order.")],
    handler: EndpointHandler::Async(initialize_repository),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn repoinit_schemas() -> Map<String, Json> {
    let outcome = object_schema(&[
        ("line", count_schema()),
        ("statement", text_schema()),
        ("result", json!({ "enum": ["changed", "unchanged", "skipped"] })),
        ("note", text_or_null_schema()),
    ]);
    schemas_by_name([("RepoinitOutcomes", object_schema(&[("statements", array_schema(outcome))]))])
}

fn initialize_repository(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("initialize the repository")?;
        let text = read_text_body(&call).await?;
        let instance = call.instance.clone();
        let work = move |instance: &Instance| {
            let mut session = call.begin_session()?;
            let outcomes = run_repoinit(&mut session, &text)?;
            if !call.flag_parameter("dryRun") && session.has_changes()? {
                session.commit("initialize the repository", call.now)?;
                increment(&instance.metrics.commits);
            }
            Ok(ApiResponse::json(json!({ "statements": outcomes })))
        };
        instance.run_work(work).await
    })
}
