//! References to and from a node.

use serde_json::{Map, Value as Json, json};
use tympan_content::{NodeReference, Referrer, SkippedReference};

use crate::Instance;
use crate::api::endpoint::{
    AT_PARAMETER, ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler,
    EndpointMethod, EndpointParameter, ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::node::find_node;
use crate::api::schema::{
    array_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::Result;
use crate::query::budget::ReadBudget;

/// The API endpoints that this module defines.
pub(crate) const REFERENCE_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/references",
    id: "listReferences",
    description: "Lists where a node is used, and what it and the rest of its document below it refer to: by \
        identifier, path, link in a text, or name of a tag or policy, limited to what the caller may read.",
    parameters: &[
        EndpointParameter::required("path", ParameterKind::Path, "The node."),
        EndpointParameter::new(
            "deep",
            ParameterKind::Flag,
            "Whether `usedBy` also covers all nodes below the node, without references from within this \
             subtree. Default false.",
        ),
        BRANCH_PARAMETER,
        AT_PARAMETER,
    ],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("References", "The references in both directions.")],
    handler: EndpointHandler::Blocking(list_references),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn reference_schemas() -> Map<String, Json> {
    let kind = json!({ "enum": ["reference", "weakReference", "path", "link", "tag", "policy"] });
    let referrer = [("path", text_schema()), ("property", text_schema()), ("kind", kind)];
    let reference =
        [&referrer[..], &[("text", text_schema()), ("target", text_or_null_schema())]].concat();
    let members = [&referrer[..], &[("reason", text_schema())]].concat();
    schemas_by_name([
        ("Referrer", object_schema(&referrer)),
        ("KeptReference", object_schema(&members)),
        (
            "References",
            object_schema(&[
                ("path", text_schema()),
                ("usedBy", array_schema(object_schema(&referrer))),
                ("uses", array_schema(object_schema(&reference))),
            ]),
        ),
    ])
}

fn list_references(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    let node = find_node(&snapshot, &path)?;
    let used_by = match call.flag_parameter("deep") {
        true => {
            let engine = instance.query_engine_for(&call.viewer)?;
            ReadBudget::for_memory(engine.limits()).count_subtree(&node)?;
            snapshot.referrers_within(&path)?
        }
        false => snapshot.referrers(&path)?,
    };
    let uses = snapshot.references_in_document(&path)?;
    crate::page::check_snapshot_failure(&snapshot)?;
    Ok(ApiResponse::json(json!({
        "path": path.as_str(),
        "usedBy": used_by.iter().map(referrer_json).collect::<Vec<_>>(),
        "uses": uses.iter().map(reference_json).collect::<Vec<_>>(),
    })))
}

/// Describes a property that references a node.
pub(crate) fn referrer_json(referrer: &Referrer) -> Json {
    let Referrer { path, property, kind } = referrer;
    json!({ "path": path.as_str(), "property": property, "kind": kind.name() })
}

/// Describes a reference that a move did not rewrite.
pub(crate) fn skipped_reference_json(reference: &SkippedReference) -> Json {
    let mut members = referrer_json(&reference.referrer);
    if let Some(members) = members.as_object_mut() {
        members.insert("reason".to_owned(), reference.reason.into());
    }
    members
}

fn reference_json(reference: &NodeReference) -> Json {
    let NodeReference { path, property, kind, text, target } = reference;
    json!({
        "path": path.as_str(),
        "property": property,
        "kind": kind.name(),
        "text": text,
        "target": target.as_ref().map(|target| target.as_str()),
    })
}
