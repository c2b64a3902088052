//! Node types and namespaces: listed, written and read as CND. All users may read them.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::node_type::{NodeTypeDefinition, write_cnd};
use tympan_content::{Error, NodePath, Privileges};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseContent, ResponseSpec,
};
use crate::api::schema::{
    array_schema, name_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};
use crate::observe::metrics::increment;

/// The API endpoints that this module defines.
pub(crate) const NODE_TYPE_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/types",
        id: "listTypes",
        description: "Lists the node types.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("NodeTypes", "The types, by name.")],
        handler: EndpointHandler::Blocking(list_node_types),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/types",
        id: "removeType",
        description: "Removes a node type that this repository defines; a changed standard type is reset to \
            its standard definition. Requires `jcr:nodeTypeDefinitionManagement`.",
        parameters: &[EndpointParameter::required("name", ParameterKind::Name, "The type.")],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::empty(204, "The type was removed or reset.")],
        handler: EndpointHandler::Blocking(remove_node_type),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/types/cnd",
        id: "readTypes",
        description: "Returns node types as CND.",
        parameters: &[EndpointParameter::new(
            "name",
            ParameterKind::Texts,
            "A type. May be repeated. Default: those that this repository defines.",
        )],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec {
            status: 200,
            description: "The types as CND.",
            content: ResponseContent::Bytes,
        }],
        handler: EndpointHandler::Blocking(read_node_type),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/types/cnd",
        id: "defineTypes",
        description: "Defines the node types and namespaces of a CND text; existing types are changed. \
            Requires `jcr:nodeTypeDefinitionManagement`.",
        parameters: &[],
        body: RequestBodySpec::Text,
        responses: &[ResponseSpec::empty(204, "The types were defined.")],
        handler: EndpointHandler::Async(define_node_types),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/namespaces",
        id: "listNamespaces",
        description: "Lists the namespaces by prefix.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Namespaces", "The namespaces.")],
        handler: EndpointHandler::Blocking(list_namespaces),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/namespaces",
        id: "registerNamespace",
        description: "Registers a prefix for a namespace. Requires `jcr:namespaceManagement`.",
        parameters: &[],
        body: RequestBodySpec::Json("Namespace"),
        responses: &[ResponseSpec::empty(204, "The prefix was registered.")],
        handler: EndpointHandler::Blocking(register_namespace),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn node_type_schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let namespace = object_schema(&[("prefix", text_schema()), ("uri", text_schema())]);
    let uri = json!({ "type": "string", "minLength": 1, "maxLength": 1000 });
    schemas_by_name([
        (
            "NodeTypes",
            object_schema(&[(
                "types",
                array_schema(object_schema(&[
                    ("name", text_schema()),
                    ("supertypes", array_schema(text_schema())),
                    ("isMixin", flag()),
                    ("isAbstract", flag()),
                    ("hasOrderableChildren", flag()),
                    ("primaryItem", text_or_null_schema()),
                    ("isOwn", flag()),
                ])),
            )]),
        ),
        ("Namespaces", object_schema(&[("namespaces", array_schema(namespace))])),
        ("Namespace", object_schema(&[("prefix", name_schema()), ("uri", uri)])),
    ])
}

/// The privilege required to change node types.
const TYPES_PRIVILEGE: &str = "jcr:nodeTypeDefinitionManagement";
const NAMESPACES_PRIVILEGE: &str = "jcr:namespaceManagement";

/// Refuses users who lack a repository privilege, whether or not the request would change anything.
fn require_privilege(call: &ApiRequest, privilege: &'static str) -> Result<()> {
    let privileges = Privileges::find(privilege).unwrap_or(Privileges::ALL);
    if call.pin_snapshot()?.has_repository_privileges(privileges) {
        return Ok(());
    }
    Err(Error::AccessDenied { path: NodePath::root(), privilege }.into())
}

/// Names the missing privilege to users who cannot even see the nodes that store the types.
fn name_privilege(error: Error, privilege: &'static str) -> Error {
    match error {
        Error::NodeMissing(path) | Error::NodeExists(path) => {
            Error::AccessDenied { path, privilege }
        }
        error => error,
    }
}

fn list_node_types(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let types = call.pin_snapshot()?.node_types()?;
    let own: Vec<&str> =
        types.custom_definitions().map(|node_type| node_type.name.as_str()).collect();
    let types = types.iter().map(|node_type| {
        let definition = &node_type.definition;
        json!({
            "name": definition.name,
            "supertypes": definition.supertypes,
            "isMixin": definition.flags.is_mixin,
            "isAbstract": definition.flags.is_abstract,
            "hasOrderableChildren": definition.flags.has_orderable_children,
            "primaryItem": definition.primary_item,
            "isOwn": own.contains(&definition.name.as_str()),
        })
    });
    Ok(ApiResponse::json(json!({ "types": types.collect::<Vec<_>>() })))
}

fn remove_node_type(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    require_privilege(call, TYPES_PRIVILEGE)?;
    let name = call.parameter("name").unwrap_or_default();
    if call.pin_snapshot()?.node_types()?.find(name).is_none() {
        let message = format!("there is no node type `{name}`");
        return Err(RequestFailure::new(StatusCode::NOT_FOUND, message));
    }
    let mut session = call.begin_session()?;
    session
        .types()
        .remove_types(&[name])
        .map_err(|error| name_privilege(error, TYPES_PRIVILEGE))?;
    session.commit(&format!("remove the node type {name}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::empty())
}

fn read_node_type(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let types = snapshot.node_types()?;
    let mut definitions: Vec<NodeTypeDefinition> = Vec::new();
    for name in call.parameter_values("name") {
        let missing = || {
            RequestFailure::new(StatusCode::NOT_FOUND, format!("there is no node type `{name}`"))
        };
        definitions.push(types.find(name).ok_or_else(missing)?.definition.clone());
    }
    if definitions.is_empty() {
        definitions = types.custom_definitions().cloned().collect();
    }
    let namespaces = snapshot.namespaces()?;
    let without_types = write_cnd(&definitions, &BTreeMap::new());
    let is_used =
        |prefix: &str| !prefix.is_empty() && without_types.contains(&format!("{prefix}:"));
    let used = namespaces.iter().filter(|(prefix, _)| is_used(prefix));
    let used = used.map(|(prefix, uri)| (prefix.to_owned(), uri.to_owned())).collect();
    let text = write_cnd(&definitions, &used);
    let media_type = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok(ApiResponse::Http(axum::response::IntoResponse::into_response((media_type, text))))
}

fn define_node_types(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let text = read_text_body(&call).await?;
        let instance = call.instance.clone();
        let work = move |instance: &Instance| {
            require_privilege(&call, TYPES_PRIVILEGE)?;
            let mut session = call.begin_session()?;
            session
                .types()
                .register_types(&text)
                .map_err(|error| name_privilege(error, TYPES_PRIVILEGE))?;
            if session.has_changes()? {
                session.commit("define node types", call.now)?;
                increment(&instance.metrics.commits);
            }
            Ok(ApiResponse::empty())
        };
        instance.run_work(work).await
    })
}

/// Reads a text body.
pub(crate) async fn read_text_body(call: &ApiRequest) -> Result<String> {
    let body = call.body_stream.lock().take();
    let body = body.unwrap_or_default();
    let limited = tympan_web::body_limit::limit_body(body, crate::api::endpoint::MAX_JSON_BYTES);
    let bytes: Bytes = axum::body::Body::new(limited)
        .collect()
        .await
        .map_err(|error| RequestFailure::unreadable_body(&error))?
        .to_bytes();
    if bytes.is_empty() {
        return Err(RequestFailure::bad_request("the body is missing"));
    }
    String::from_utf8(bytes.to_vec())
        .map_err(|_| RequestFailure::bad_request("the body is not UTF-8"))
}

fn list_namespaces(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let namespaces = call.pin_snapshot()?.namespaces()?;
    let namespaces = namespaces.iter().map(|(prefix, uri)| json!({ "prefix": prefix, "uri": uri }));
    Ok(ApiResponse::json(json!({ "namespaces": namespaces.collect::<Vec<_>>() })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceRegistration {
    prefix: String,
    uri: String,
}

fn register_namespace(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let NamespaceRegistration { prefix, uri } = call.parse_body()?;
    tympan_content::check_item_name(&prefix)?;
    if uri.is_empty() || uri.chars().count() > 1000 {
        return Err(RequestFailure::bad_request("`uri` must be a string of 1 to 1000 characters"));
    }
    require_privilege(call, NAMESPACES_PRIVILEGE)?;
    let mut session = call.begin_session()?;
    session
        .types()
        .register_namespace(&prefix, &uri)
        .map_err(|error| name_privilege(error, NAMESPACES_PRIVILEGE))?;
    if session.has_changes()? {
        session.commit(&format!("register the prefix {prefix}"), call.now)?;
        increment(&instance.metrics.commits);
    }
    Ok(ApiResponse::empty())
}
