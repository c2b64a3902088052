//! Several reads in one request: what a view of the authoring interface needs to open.

use http::StatusCode;
use serde_json::{Value, json};

use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseContent, ResponseSpec,
};
use crate::api::{all_endpoints, endpoint_dispatch};
use crate::failure::{RequestFailure, Result};

/// Maximum number of reads in one request.
const MAX_READS: usize = 8;
const API_PREFIX: &str = "/api/v1/";
const READS_PATH: &str = "/api/v1/reads";

/// The API endpoints that this module defines.
pub(crate) const COMBINED_READ_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: READS_PATH,
    id: "readSeveral",
    description: "Answers up to 8 reads of this API in one response, each as if it were requested alone, one after \
        the other.",
    parameters: &[EndpointParameter::required(
        "read",
        ParameterKind::Texts,
        "A read: its path below `/api/v1/`, with its query, such as `pages?path=/content`.",
    )],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("CombinedReads", "The responses, in the order of the reads.")],
    handler: EndpointHandler::Async(answer_reads),
}];

fn answer_reads(request: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let reads: Vec<&str> = request.parameter_values("read").collect();
        if reads.len() > MAX_READS {
            let message = format!("one request may have at most {MAX_READS} reads");
            return Err(RequestFailure::unprocessable(message));
        }
        let mut answers = Vec::with_capacity(reads.len());
        for read in reads {
            answers.push(
                answer_read(&request, read).await.unwrap_or_else(|failure| failure_json(&failure)),
            );
        }
        Ok(ApiResponse::json(json!({ "answers": answers })))
    })
}

async fn answer_read(request: &ApiRequest, read: &str) -> Result<Value> {
    let (path, query) = read.split_once('?').unwrap_or((read, ""));
    let endpoint = find_json_read(path)?;
    let reply = endpoint_dispatch::read_json(endpoint, request, query).await?;
    let tag = endpoint_dispatch::entity_tag_of(&reply);
    Ok(json!({ "status": reply.status.as_u16(), "tag": tag, "value": reply.value }))
}

/// Finds the endpoint of a read that answers with JSON.
///
/// # Errors
/// Status 404 if there is none; status 400 for an endpoint that answers with something else, or with further reads.
fn find_json_read(path: &str) -> Result<&'static Endpoint> {
    let is_named = |endpoint: &&Endpoint| {
        endpoint.method == EndpointMethod::Get
            && endpoint.path.strip_prefix(API_PREFIX) == Some(path)
    };
    let Some(endpoint) = all_endpoints().find(is_named) else {
        let message = format!("`{path}` is not a read of this API");
        return Err(RequestFailure::new(StatusCode::NOT_FOUND, message));
    };
    let is_json = endpoint.responses.iter().all(|response| {
        matches!(response.content, ResponseContent::Json(_) | ResponseContent::JsonOrEvents(_))
    });
    if !is_json || endpoint.path == READS_PATH {
        let message = format!("`{path}` cannot be combined with other reads; request it alone");
        return Err(RequestFailure::bad_request(message));
    }
    Ok(endpoint)
}

fn failure_json(failure: &RequestFailure) -> Value {
    let status = failure.status.as_u16();
    json!({ "status": status, "tag": null, "value": failure.problem_details() })
}
