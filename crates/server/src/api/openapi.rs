//! The description of the API in OpenAPI 3.1, made from the table of endpoints.

use serde_json::{Map, Value, json};

use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Content, Endpoint, Handler, Parameter, Reply, Verb,
};
use crate::api::{endpoints, schema};
use crate::failure::Result;

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    verb: Verb::Get,
    path: "/api/v1/openapi.json",
    id: "readDescription",
    about: "This document.",
    parameters: &[],
    body: Body::None,
    answers: &[Answer::json("OpenApi", "An OpenAPI 3.1 document.")],
    handler: Handler::Work(read),
}];

/// What every endpoint can answer when it does not do what was asked.
const PROBLEMS: &[(u16, &str)] = &[
    (400, "The request does not fit this description."),
    (401, "Nobody is logged in."),
    (403, "The user may not do that, or the CSRF token is missing."),
    (404, "There is no such thing that the user may read."),
    (429, "Too many logins failed; `Retry-After` says when to try again."),
    (500, "The server failed; its error log says why."),
    (503, "The server is busy; try again in a moment."),
];

/// What reads can answer besides.
const PROBLEMS_OF_READS: &[(u16, &str)] = &[
    (410, "The cursor leads nowhere; the problem says where to begin again."),
    (422, "This is too much for one answer."),
];

/// What endpoints with a body can answer besides.
const PROBLEMS_OF_BODIES: &[(u16, &str)] = &[
    (408, "The body stopped arriving."),
    (413, "The body is too long."),
    (415, "The body is of another type."),
];

/// What writes can answer besides.
const PROBLEMS_OF_WRITES: &[(u16, &str)] = &[
    (409, "Others changed the same things; the problem lists every conflict."),
    (412, "The condition does not hold; the problem has the current tag."),
    (422, "The content refuses the change; the problem says why."),
    (428, "A condition is asked for."),
    (507, "The disk is full: nothing was saved."),
];

fn read(_: &Instance, _: &Call) -> Result<Reply> {
    Ok(Reply::json(document()))
}

/// Makes the document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in endpoints() {
        let entry = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        if let Some(operations) = entry.as_object_mut() {
            operations.insert(endpoint.verb.name().to_lowercase(), operation(endpoint));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tympan",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Content over JSON. Every answer has an `ETag`; reads take `If-None-Match`, writes `If-Match`. \
                Failures are problem details (RFC 9457). Unknown parameters and members are refused.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "basic": [] }, { "bearer": [] }, { "cookie": [], "csrf": [] }],
        "paths": paths,
        "components": {
            "schemas": schema::all(),
            "securitySchemes": {
                "basic": { "type": "http", "scheme": "basic" },
                "bearer": { "type": "http", "scheme": "bearer", "description": "A token of `tympan user token`." },
                "cookie": { "type": "apiKey", "in": "cookie", "name": crate::login::COOKIE },
                "csrf": { "type": "apiKey", "in": "header", "name": "X-CSRF-Token", "description": "For writes: `csrf` of `/api/v1/me`." },
            },
        },
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut described = json!({
        "operationId": endpoint.id,
        "summary": endpoint.about,
        "parameters": endpoint.parameters.iter().map(parameter).collect::<Vec<_>>(),
        "responses": responses(endpoint),
    });
    let media_types: &[(&str, Value)] = &match endpoint.body {
        Body::None => Vec::new(),
        Body::Json(schema) | Body::Question(schema) => {
            vec![("application/json", reference(schema))]
        }
        Body::Patch(schema) => vec![
            ("application/merge-patch+json", reference(schema)),
            ("application/json", reference(schema)),
        ],
        Body::Form(fields) => {
            vec![("application/x-www-form-urlencoded", schema::of_form(fields))]
        }
        Body::Text => vec![("text/plain", json!({ "type": "string", "minLength": 1 }))],
        Body::Bytes => {
            vec![("application/octet-stream", json!({ "type": "string", "format": "binary" }))]
        }
    };
    if let (Some(described), false) = (described.as_object_mut(), media_types.is_empty()) {
        described.insert(
            "requestBody".to_owned(),
            json!({ "required": true, "content": content(media_types) }),
        );
    }
    described
}

fn parameter(parameter: &Parameter) -> Value {
    let mut described = json!({
        "name": parameter.name,
        "in": if parameter.kind.is_header() { "header" } else { "query" },
        "required": parameter.is_required,
        "description": parameter.about,
        "schema": schema::of_parameter(parameter),
    });
    if let (Some(described), true) = (described.as_object_mut(), parameter.kind.is_list()) {
        described.insert("style".to_owned(), json!("form"));
        described.insert("explode".to_owned(), json!(true));
    }
    described
}

fn responses(endpoint: &Endpoint) -> Map<String, Value> {
    let mut responses = Map::new();
    for answer in endpoint.answers {
        let json = |schema| ("application/json", reference(schema));
        let media_types: Vec<(&str, Value)> = match answer.content {
            Content::Nothing => Vec::new(),
            Content::Json(schema) => vec![json(schema)],
            Content::JsonOrEvents(schema) => {
                vec![json(schema), ("text/event-stream", json!({ "type": "string" }))]
            }
            Content::Bytes => vec![("*/*", json!({ "type": "string", "format": "binary" }))],
        };
        let mut described = json!({ "description": answer.about });
        if let (Some(described), false) = (described.as_object_mut(), media_types.is_empty()) {
            described.insert("content".to_owned(), content(&media_types));
        }
        responses.insert(answer.status.to_string(), described);
    }
    if endpoint.verb == Verb::Get {
        responses.insert("304".to_owned(), json!({ "description": "The client has it already." }));
    }
    let more = if endpoint.writes() { PROBLEMS_OF_WRITES } else { PROBLEMS_OF_READS };
    // The listener answers that before anything reads the request.
    let about = "The head of the request is too long.";
    responses.insert("431".to_owned(), json!({ "description": about }));
    let of_bodies = if endpoint.body == Body::None { &[] } else { PROBLEMS_OF_BODIES };
    for (status, about) in PROBLEMS.iter().chain(more).chain(of_bodies) {
        let problem = content(&[("application/problem+json", reference("Problem"))]);
        let problem = json!({ "description": about, "content": problem });
        responses.entry(status.to_string()).or_insert(problem);
    }
    responses
}

fn content(media_types: &[(&str, Value)]) -> Value {
    let entries =
        media_types.iter().map(|(name, schema)| ((*name).to_owned(), json!({ "schema": schema })));
    Value::Object(entries.collect())
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::endpoint::Kind;

    /// Finds all names that references lead to.
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    match (name.as_str(), member.as_str()) {
                        ("$ref", Some(target)) => drop(found.insert(target.to_owned())),
                        _ => references(member, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_endpoint_is_described_once_and_every_reference_leads_somewhere() {
        let document = document();
        let mut ids = BTreeSet::new();
        for endpoint in endpoints() {
            let operation = &document["paths"][endpoint.path][endpoint.verb.name().to_lowercase()];
            assert_eq!(
                operation["operationId"],
                endpoint.id,
                "{} {}",
                endpoint.verb.name(),
                endpoint.path
            );
            assert!(ids.insert(endpoint.id), "`{}` is the name of two endpoints", endpoint.id);
            assert!(!endpoint.answers.is_empty(), "{}", endpoint.id);
        }
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for target in &found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        for name in schema::all().keys() {
            assert!(found.contains(&format!("#/components/schemas/{name}")), "nobody uses {name}");
        }
    }

    #[test]
    fn parameters_of_a_path_are_named_once() {
        for endpoint in endpoints() {
            let names: BTreeSet<_> = endpoint.parameters.iter().map(|one| one.name).collect();
            assert_eq!(names.len(), endpoint.parameters.len(), "{}", endpoint.id);
            assert!(
                endpoint.parameters.iter().all(|one| one.kind != Kind::Header || !one.is_required)
            );
        }
    }
}
