//! Versions of nodes: listed, created, labeled, compared, restored, removed.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    CheckInOptions, CheckOutState, JcrDate, LabelConflictPolicy, NodeDifference, NodePath,
    NodeVersion, Property, Snapshot, Subtree,
};

use crate::Instance;
use crate::api::document_tree::read_document_tree;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler, EndpointMethod,
    EndpointParameter, ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::entity_tag::{self, WriteCondition};
use crate::api::node::{
    MAX_READ_DEPTH, MAX_READ_NODES, deserialize_present, find_node, node_json as describe_node,
    property_json,
};
use crate::api::node_write::written_node_response;
use crate::api::schema::{
    array_schema, name_schema, object_schema, partial_object_schema, path_schema, reference_schema,
    schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};
use crate::observe::metrics::increment;
use crate::write::page_modification::record_page_modification;

const PATH_PARAMETER: EndpointParameter =
    EndpointParameter::required("path", ParameterKind::Path, "The node.");
const VERSION_PARAMETER: EndpointParameter = EndpointParameter::required(
    "version",
    ParameterKind::Text,
    "The name or label of the version.",
);
const IF_MATCH_PARAMETER: EndpointParameter = EndpointParameter::new(
    "If-Match",
    ParameterKind::Header,
    "The `ETag` of the document as it was read; the change is refused (412) if the document has changed \
     since.",
);

/// The API endpoints that this module defines.
pub(crate) const VERSION_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/versions",
        id: "listVersions",
        description: "Lists the versions of a node, the oldest first; also those of a deleted node.",
        parameters: &[PATH_PARAMETER, BRANCH_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Versions", "The versions.")],
        handler: EndpointHandler::Blocking(list_versions),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/versions",
        id: "keepVersion",
        description: "Creates a version from the current state of a node; `checkIn` makes the node read-only \
            until it is checked out.",
        parameters: &[IF_MATCH_PARAMETER],
        body: RequestBodySpec::Json("NewVersion"),
        responses: &[ResponseSpec::created_json("Version", "The version was created.")],
        handler: EndpointHandler::Blocking(create_version),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/versions",
        id: "removeVersion",
        description: "Removes a version.",
        parameters: &[PATH_PARAMETER, VERSION_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::empty(204, "The version was removed.")],
        handler: EndpointHandler::Blocking(remove_version),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/versions/checkout",
        id: "checkOut",
        description: "Checks out a node that was checked in, so that it can be changed.",
        parameters: &[],
        body: RequestBodySpec::Json("CheckedOut"),
        responses: &[ResponseSpec::json("Written", "The node is checked out.")],
        handler: EndpointHandler::Blocking(check_out_node),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/versions/node",
        id: "readVersion",
        description: "Returns a node as it is stored in a version.",
        parameters: &[
            PATH_PARAMETER,
            VERSION_PARAMETER,
            EndpointParameter::new(
                "depth",
                ParameterKind::Integer(0, MAX_READ_DEPTH as u64),
                "Levels of children. Default 0.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Node", "The node at that version.")],
        handler: EndpointHandler::Blocking(read_version),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/versions/diff",
        id: "compareVersions",
        description: "Returns the differences between two versions of a node, or between a version and the \
            current node.",
        parameters: &[
            PATH_PARAMETER,
            EndpointParameter::new(
                "from",
                ParameterKind::Text,
                "The name or label of the earlier version. Default: the newest version.",
            ),
            EndpointParameter::new(
                "to",
                ParameterKind::Text,
                "The name or label of the later version. Default: the current node.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Differences", "The differences, node by node.")],
        handler: EndpointHandler::Blocking(compare_versions),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/versions/label",
        id: "addLabel",
        description: "Adds a label to a version; with `move`, even if another version of the node has it.",
        parameters: &[],
        body: RequestBodySpec::Json("NewLabel"),
        responses: &[ResponseSpec::empty(204, "The label was added.")],
        handler: EndpointHandler::Blocking(add_label),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/versions/label",
        id: "removeLabel",
        description: "Removes a label from the version of the node that has it.",
        parameters: &[
            PATH_PARAMETER,
            EndpointParameter::required("label", ParameterKind::Name, "The label."),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::empty(204, "The label was removed.")],
        handler: EndpointHandler::Blocking(remove_label),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/versions/restore",
        id: "restoreVersion",
        description: "Restores a node, or a part of it, from one of its versions; a deleted node is created \
            again.",
        parameters: &[IF_MATCH_PARAMETER],
        body: RequestBodySpec::Json("RestoredVersion"),
        responses: &[ResponseSpec::json("Written", "The node was restored.")],
        handler: EndpointHandler::Blocking(restore_version),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/versions/deleted",
        id: "listDeleted",
        description: "Lists the deleted nodes at and below a path that still have versions.",
        parameters: &[PATH_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("DeletedNodes", "The nodes that can be restored.")],
        handler: EndpointHandler::Blocking(list_deleted_nodes),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn version_schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let version = object_schema(&[
        ("name", text_schema()),
        ("path", text_schema()),
        ("time", text_schema()),
        ("user", text_schema()),
        ("comment", text_schema()),
        ("labels", array_schema(text_schema())),
        ("isBase", flag()),
    ]);
    let comment = json!({ "type": "string", "maxLength": 4096 });
    let property = object_schema(&[
        ("name", text_schema()),
        ("before", json!({ "anyOf": [reference_schema("Property"), { "type": "null" }] })),
        ("after", json!({ "anyOf": [reference_schema("Property"), { "type": "null" }] })),
    ]);
    let difference = object_schema(&[
        ("path", text_schema()),
        ("kind", json!({ "enum": ["added", "removed", "changed"] })),
        ("isReordered", flag()),
        ("properties", array_schema(property)),
    ]);
    let part = json!({ "type": "string", "maxLength": 1000 });
    schemas_by_name([
        (
            "Versions",
            object_schema(&[
                ("path", text_schema()),
                ("versions", array_schema(reference_schema("Version"))),
            ]),
        ),
        ("Version", version),
        (
            "NewVersion",
            partial_object_schema(
                &["path"],
                &[("path", path_schema()), ("comment", comment), ("checkIn", flag())],
            ),
        ),
        ("CheckedOut", object_schema(&[("path", path_schema())])),
        (
            "NewLabel",
            partial_object_schema(
                &["path", "version", "label"],
                &[
                    ("path", path_schema()),
                    ("version", text_schema()),
                    ("label", name_schema()),
                    ("move", flag()),
                ],
            ),
        ),
        (
            "RestoredVersion",
            partial_object_schema(
                &["path", "version"],
                &[("path", path_schema()), ("version", text_schema()), ("part", part)],
            ),
        ),
        ("NodeDifference", difference),
        (
            "Differences",
            object_schema(&[
                ("path", text_schema()),
                ("from", text_schema()),
                ("to", text_or_null_schema()),
                ("nodes", array_schema(reference_schema("NodeDifference"))),
            ]),
        ),
        (
            "DeletedNodes",
            object_schema(&[
                ("path", text_schema()),
                (
                    "nodes",
                    array_schema(object_schema(&[
                        ("path", text_schema()),
                        ("versions", array_schema(reference_schema("Version"))),
                    ])),
                ),
            ]),
        ),
    ])
}

/// Returns an error if the user sees neither a node nor a version at the path.
fn require_node_or_version(snapshot: &Snapshot, path: &NodePath) -> Result<()> {
    if snapshot.versions(path)?.is_empty() {
        find_node(snapshot, path)?;
    }
    Ok(())
}

fn list_versions(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    require_node_or_version(&snapshot, &path)?;
    let versions: Vec<Json> = snapshot.versions(&path)?.iter().map(version_json).collect();
    Ok(ApiResponse::json(json!({ "path": path.as_str(), "versions": versions })))
}

fn version_json(version: &NodeVersion) -> Json {
    json!({
        "name": version.name,
        "path": version.path.as_str(),
        "time": JcrDate::from_system_time(version.created_at).to_string(),
        "user": version.user,
        "comment": version.comment,
        "labels": version.labels,
        "isBase": version.is_base,
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NewVersion {
    path: String,
    #[serde(default, deserialize_with = "deserialize_present")]
    comment: Option<String>,
    #[serde(default)]
    check_in: bool,
}

/// Begins a session under the precondition in the request headers.
fn begin_guarded_session(
    instance: &Instance,
    call: &ApiRequest,
    path: &NodePath,
) -> Result<tympan_content::Session> {
    let mut session = instance.repository.session_as(&call.viewer)?;
    let condition = WriteCondition::of_headers(&call.headers);
    condition.check_document(instance, session.node(path)?.as_ref())?;
    if condition != WriteCondition::None {
        session.expect_unchanged(path)?;
    }
    Ok(session)
}

fn create_version(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let NewVersion { path, comment, check_in } = call.parse_body()?;
    let path = NodePath::new(&path)?;
    let mut session = begin_guarded_session(instance, call, &path)?;
    let comment = comment.unwrap_or_default();
    let after = if check_in { CheckOutState::CheckedIn } else { CheckOutState::CheckedOut };
    let version = session.versions().check_in(
        &path,
        &CheckInOptions { comment: &comment, created_at: call.now, check_out_state: after },
    )?;
    session.commit(&format!("create a version of {path}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::created(version_json(&version)))
}

fn remove_version(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (path, name) =
        (call.path_parameter("path")?, call.parameter("version").unwrap_or_default());
    let mut session = instance.repository.session_as(&call.viewer)?;
    session.versions().remove_version(&path, name)?;
    session.commit(&format!("remove the version {name} of {path}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::empty())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckOutRequest {
    path: String,
}

fn check_out_node(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let CheckOutRequest { path } = call.parse_body()?;
    let path = NodePath::new(&path)?;
    let mut session = instance.repository.session_as(&call.viewer)?;
    session.versions().check_out(&path)?;
    let root = session.commit(&format!("check out {path}"), call.now)?;
    increment(&instance.metrics.commits);
    node_version_response(instance, call, root, &path)
}

fn node_version_response(
    instance: &Instance,
    call: &ApiRequest,
    root: tympan_content::ChunkId,
    path: &NodePath,
) -> Result<ApiResponse> {
    let snapshot = instance.repository.snapshot_at(root)?.as_viewer(&call.viewer);
    let tag = snapshot.node(path)?.and_then(|node| entity_tag::document_tag(instance, &node));
    Ok(written_node_response(path, tag, StatusCode::OK))
}

fn read_version(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    let version_snapshot =
        snapshot.with_version(&path, call.parameter("version").unwrap_or_default())?;
    let mut left = MAX_READ_NODES;
    let value = describe_node(
        &find_node(&version_snapshot, &path)?,
        call.number_parameter("depth", 0),
        &mut left,
    )?;
    crate::page::check_snapshot_failure(&version_snapshot)?;
    Ok(ApiResponse::json(value))
}

fn compare_versions(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    let from = match call.parameter("from") {
        Some(name) => snapshot.version(&path, name)?,
        None => newest_version(&snapshot, &path)?,
    };
    let before = snapshot.read_version(&from)?;
    let (to, after) = match call.parameter("to") {
        Some(name) => {
            let to = snapshot.version(&path, name)?;
            (Some(to.name.clone()), snapshot.read_version(&to)?)
        }
        None => (None, read_document_tree(&find_node(&snapshot, &path)?)?),
    };
    let nodes = subtree_differences_json(&before, &after);
    Ok(ApiResponse::json(
        json!({ "path": path.as_str(), "from": from.name, "to": to, "nodes": nodes }),
    ))
}

fn newest_version(snapshot: &Snapshot, path: &NodePath) -> Result<NodeVersion> {
    let missing =
        || RequestFailure::new(StatusCode::NOT_FOUND, format!("there is no version of `{path}`"));
    snapshot.versions(path)?.pop().ok_or_else(missing)
}

/// Describes the differences between two subtrees.
pub(crate) fn subtree_differences_json(before: &Subtree, after: &Subtree) -> Vec<Json> {
    let describe = |difference: NodeDifference| {
        let side = |property: &Option<Property>| property.as_ref().map(property_json);
        let properties =
            difference.properties.iter().filter(|change| change.name != "rep:password");
        let properties = properties.map(|property| {
            json!({
                "name": property.name,
                "before": side(&property.before),
                "after": side(&property.after),
            })
        });
        json!({
            "path": difference.path,
            "kind": difference.kind.name(),
            "isReordered": difference.is_reordered,
            "properties": properties.collect::<Vec<_>>(),
        })
    };
    before.differences(after).into_iter().map(describe).collect()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewVersionLabel {
    path: String,
    version: String,
    label: String,
    #[serde(default)]
    r#move: bool,
}

fn add_label(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let NewVersionLabel { path, version, label, r#move } = call.parse_body()?;
    let path = NodePath::new(&path)?;
    let mut session = instance.repository.session_as(&call.viewer)?;
    let clash = if r#move { LabelConflictPolicy::Move } else { LabelConflictPolicy::Refuse };
    session.versions().add_label(&path, &version, &label, clash)?;
    session.commit(&format!("label {version} of {path} as {label}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::empty())
}

fn remove_label(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (path, label) = (call.path_parameter("path")?, call.parameter("label").unwrap_or_default());
    let mut session = instance.repository.session_as(&call.viewer)?;
    if !session.versions().remove_label(&path, label)? {
        let message = format!("no version of `{path}` has the label `{label}`");
        return Err(RequestFailure::new(StatusCode::NOT_FOUND, message));
    }
    session.commit(&format!("remove the label {label} from {path}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::empty())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionRestoreRequest {
    path: String,
    version: String,
    /// Relative path of a descendant.
    #[serde(default, deserialize_with = "deserialize_present")]
    part: Option<String>,
}

fn restore_version(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let VersionRestoreRequest { path, version, part } = call.parse_body()?;
    let path = NodePath::new(&path)?;
    let mut session = begin_guarded_session(instance, call, &path)?;
    let restored = match &part {
        Some(part) => session.versions().restore_component(&path, &version, part, call.now)?,
        None => {
            session.versions().restore_node(
                &path,
                &version,
                call.now,
                CheckOutState::CheckedOut,
            )?;
            path.child("jcr:content")?
        }
    };
    record_page_modification(&mut session, [restored.to_string()], call.user_name(), call.now)?;
    let root = session.commit(&format!("restore {version} of {path}"), call.now)?;
    increment(&instance.metrics.commits);
    node_version_response(instance, call, root, &path)
}

fn list_deleted_nodes(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    let nodes = snapshot.deleted_nodes(&path)?.into_iter().map(|node| {
        let versions: Vec<Json> = node.versions.iter().map(version_json).collect();
        json!({ "path": node.path.as_str(), "versions": versions })
    });
    let response_body = json!({ "path": path.as_str(), "nodes": nodes.collect::<Vec<_>>() });
    Ok(ApiResponse::json(response_body))
}
