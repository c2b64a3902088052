//! The OpenAPI 3.1 description of the API, generated from the table of endpoints.

use serde_json::{Map, Value, json};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    RequestBodySpec, ResponseContent, ResponseSpec,
};
use crate::api::{all_endpoints, schema, schema_catalog};
use crate::failure::Result;

/// The API endpoints that this module defines.
pub(crate) const OPENAPI_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/openapi.json",
    id: "readDescription",
    description: "This document.",
    parameters: &[],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("OpenApi", "An OpenAPI 3.1 document.")],
    handler: EndpointHandler::Blocking(read_openapi),
}];

/// Failures that every endpoint can return.
const COMMON_PROBLEMS: &[(u16, &str)] = &[
    (400, "The request does not match this description."),
    (401, "The request is not authenticated."),
    (403, "The user is not allowed to do this, or the CSRF token is missing."),
    (404, "The object does not exist, or the user may not read it."),
    (429, "Too many failed logins; `Retry-After` says when to try again."),
    (500, "Internal server error; see the error log of the server."),
    (503, "The server is busy; try again in a moment."),
];

/// Additional failures of reads.
const READ_PROBLEMS: &[(u16, &str)] = &[
    (410, "The cursor is no longer valid; the problem says where to begin again."),
    (422, "The result is too large for one response."),
];

/// Additional failures of endpoints with a body.
const BODY_PROBLEMS: &[(u16, &str)] = &[
    (408, "Timed out while receiving the body."),
    (413, "The body is too large."),
    (415, "The body has an unsupported type."),
];

/// Additional failures of writes.
const WRITE_PROBLEMS: &[(u16, &str)] = &[
    (409, "Concurrent changes conflict with this one; the problem lists every conflict."),
    (412, "The condition is not met; the problem contains the current `ETag`."),
    (422, "The content does not allow the change; the problem says why."),
    (428, "A condition is required."),
    (507, "The disk is full: nothing was saved."),
];

fn read_openapi(_: &Instance, _: &ApiRequest) -> Result<ApiResponse> {
    Ok(ApiResponse::json(openapi_document()))
}

/// Builds the OpenAPI document.
fn openapi_document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in all_endpoints() {
        let entry = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        if let Some(operations) = entry.as_object_mut() {
            operations.insert(endpoint.method.name().to_lowercase(), operation_object(endpoint));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tympan",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Content over JSON. Every response has an `ETag`; reads accept `If-None-Match`, \
                writes `If-Match`. Failures are problem details (RFC 9457). Unknown parameters and members \
                are refused.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "basic": [] }, { "bearer": [] }, { "cookie": [], "csrf": [] }],
        "paths": paths,
        "components": {
            "schemas": schema_catalog::all_schemas(),
            "securitySchemes": {
                "basic": { "type": "http", "scheme": "basic" },
                "bearer": { "type": "http", "scheme": "bearer", "description": "A token created by `tympan \
                    user token`." },
                "cookie": { "type": "apiKey", "in": "cookie", "name": crate::login::SESSION_COOKIE },
                "csrf": { "type": "apiKey", "in": "header", "name": "X-CSRF-Token", "description": "Required \
                    for writes: `csrf` of `/api/v1/me`." },
            },
        },
    })
}

fn operation_object(endpoint: &Endpoint) -> Value {
    let mut described = json!({
        "operationId": endpoint.id,
        "summary": endpoint.description,
        "parameters": endpoint.parameters.iter().map(parameter_object).collect::<Vec<_>>(),
        "responses": response_objects(endpoint),
    });
    let media_types: &[(&str, Value)] = &match endpoint.body {
        RequestBodySpec::None => Vec::new(),
        RequestBodySpec::Json(schema) | RequestBodySpec::QueryJson(schema) => {
            vec![("application/json", schema_reference(schema))]
        }
        RequestBodySpec::Patch(schema) => vec![
            ("application/merge-patch+json", schema_reference(schema)),
            ("application/json", schema_reference(schema)),
        ],
        RequestBodySpec::Form(fields) => {
            vec![("application/x-www-form-urlencoded", schema::form_schema(fields))]
        }
        RequestBodySpec::Text => vec![("text/plain", json!({ "type": "string", "minLength": 1 }))],
        RequestBodySpec::Bytes => {
            vec![("application/octet-stream", json!({ "type": "string", "format": "binary" }))]
        }
    };
    if let (Some(described), false) = (described.as_object_mut(), media_types.is_empty()) {
        described.insert(
            "requestBody".to_owned(),
            json!({ "required": true, "content": content_object(media_types) }),
        );
    }
    described
}

fn parameter_object(parameter: &EndpointParameter) -> Value {
    let mut described = json!({
        "name": parameter.name,
        "in": if parameter.kind.is_header() { "header" } else { "query" },
        "required": parameter.is_required,
        "description": parameter.description,
        "schema": schema::parameter_schema(parameter),
    });
    if let (Some(described), true) = (described.as_object_mut(), parameter.kind.is_repeatable()) {
        described.insert("style".to_owned(), json!("form"));
        described.insert("explode".to_owned(), json!(true));
    }
    described
}

fn response_objects(endpoint: &Endpoint) -> Map<String, Value> {
    let mut responses = Map::new();
    for response in endpoint.responses {
        let json = |schema| ("application/json", schema_reference(schema));
        let media_types: Vec<(&str, Value)> = match response.content {
            ResponseContent::Empty => Vec::new(),
            ResponseContent::Json(schema) => vec![json(schema)],
            ResponseContent::JsonOrEvents(schema) => {
                vec![json(schema), ("text/event-stream", json!({ "type": "string" }))]
            }
            ResponseContent::Bytes => {
                vec![("*/*", json!({ "type": "string", "format": "binary" }))]
            }
        };
        let mut described = json!({ "description": response.description });
        if let (Some(described), false) = (described.as_object_mut(), media_types.is_empty()) {
            described.insert("content".to_owned(), content_object(&media_types));
        }
        responses.insert(response.status.to_string(), described);
    }
    if endpoint.method == EndpointMethod::Get {
        responses
            .insert("304".to_owned(), json!({ "description": "The client's copy is current." }));
    }
    let more = if endpoint.is_write() { WRITE_PROBLEMS } else { READ_PROBLEMS };
    // The listener sends this response before anything reads the request.
    let about = "The request head is too large.";
    responses.insert("431".to_owned(), json!({ "description": about }));
    let of_bodies = if endpoint.body == RequestBodySpec::None { &[] } else { BODY_PROBLEMS };
    for (status, about) in COMMON_PROBLEMS.iter().chain(more).chain(of_bodies) {
        let problem = content_object(&[("application/problem+json", schema_reference("Problem"))]);
        let problem = json!({ "description": about, "content": problem });
        responses.entry(status.to_string()).or_insert(problem);
    }
    responses
}

fn content_object(media_types: &[(&str, Value)]) -> Value {
    let entries =
        media_types.iter().map(|(name, schema)| ((*name).to_owned(), json!({ "schema": schema })));
    Value::Object(entries.collect())
}

fn schema_reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::endpoint::ParameterKind;

    /// Collects the names of all referenced schemas.
    fn references(value: &Value, targets: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    match (name.as_str(), member.as_str()) {
                        ("$ref", Some(target)) => drop(targets.insert(target.to_owned())),
                        _ => references(member, targets),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, targets)),
            _ => {}
        }
    }

    #[test]
    fn every_endpoint_is_described_once_and_every_reference_leads_somewhere() {
        let document = openapi_document();
        let mut ids = BTreeSet::new();
        for endpoint in all_endpoints() {
            let operation =
                &document["paths"][endpoint.path][endpoint.method.name().to_lowercase()];
            assert_eq!(
                operation["operationId"],
                endpoint.id,
                "{} {}",
                endpoint.method.name(),
                endpoint.path
            );
            assert!(ids.insert(endpoint.id), "`{}` is the name of two endpoints", endpoint.id);
            assert!(!endpoint.responses.is_empty(), "{}", endpoint.id);
        }
        let mut targets = BTreeSet::new();
        references(&document, &mut targets);
        for target in &targets {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        for name in schema_catalog::all_schemas().keys() {
            assert!(
                targets.contains(&format!("#/components/schemas/{name}")),
                "nobody uses {name}"
            );
        }
    }

    #[test]
    fn parameters_of_a_path_are_named_once() {
        for endpoint in all_endpoints() {
            let names: BTreeSet<_> =
                endpoint.parameters.iter().map(|parameter| parameter.name).collect();
            assert_eq!(names.len(), endpoint.parameters.len(), "{}", endpoint.id);
            assert!(
                endpoint
                    .parameters
                    .iter()
                    .all(|one| one.kind != ParameterKind::Header || !one.is_required)
            );
        }
    }
}
