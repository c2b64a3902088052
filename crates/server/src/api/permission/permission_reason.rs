//! The reasons why a user has or lacks permissions at a node.

use http::StatusCode;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    Node, NodePath, PrivilegeCause, PrivilegeExplanation, Privileges, Snapshot, Viewer,
};

use super::{PATH_PARAMETER, require_privileges};
use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::node::find_node;
use crate::api::schema::{
    array_schema, count_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};

/// The API endpoints that this module defines.
pub(crate) const PERMISSION_REASON_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/permissions/why",
    id: "explainPermissions",
    description: "Explains for each privilege why a user has it at a node or not: the entry that decided, or \
        what decided in its place. Requires `jcr:readAccessControl`.",
    parameters: &[
        PATH_PARAMETER,
        EndpointParameter::required("user", ParameterKind::Name, "The user, or `anonymous`."),
        EndpointParameter::new(
            "privilege",
            ParameterKind::Texts,
            "A privilege. May be repeated. Default: all.",
        ),
    ],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("Why", "The reasons.")],
    handler: EndpointHandler::Blocking(explain_permission),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn permission_reason_schemas() -> Map<String, Json> {
    let texts = || array_schema(text_schema());
    let flag = || json!({ "type": "boolean" });
    let cause = object_schema(&[("kind", text_schema())]);
    let cause = with_cause_details(cause);
    schemas_by_name([(
        "Why",
        object_schema(&[
            ("user", text_schema()),
            ("path", text_schema()),
            ("groups", texts()),
            (
                "privileges",
                array_schema(object_schema(&[
                    ("privilege", text_schema()),
                    ("granted", flag()),
                    ("cause", cause),
                ])),
            ),
        ]),
    )])
}

/// Adds the details of a cause to its description.
fn with_cause_details(mut cause: Json) -> Json {
    let more = [
        ("node", text_or_null_schema()),
        ("policy", text_schema()),
        ("number", count_schema()),
        ("name", text_schema()),
        ("principal", text_schema()),
        ("through", array_schema(text_schema())),
        ("restrictions", array_schema(text_schema())),
    ];
    if let Some(members) = cause.get_mut("properties").and_then(Json::as_object_mut) {
        members.extend(more.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    }
    cause
}

fn explain_permission(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    find_node(&snapshot, &path)?;
    require_privileges(&snapshot, &path, Privileges::READ_ACCESS_CONTROL)?;
    let user = call.parameter("user").unwrap_or_default();
    let missing =
        || RequestFailure::new(StatusCode::NOT_FOUND, format!("there is no user `{user}`"));
    if user != "anonymous" && user != call.user_name() {
        let account = instance.repository.account_path(user)?.ok_or_else(missing)?;
        let is_user = |node: Node| node.primary_type() != "rep:Group";
        snapshot.node(&account)?.filter(|node| is_user(node.clone())).ok_or_else(missing)?;
    }
    let mut privileges = Privileges::NONE;
    for name in call.parameter_values("privilege") {
        let unknown = || RequestFailure::unprocessable(format!("there is no privilege `{name}`"));
        privileges = privileges | Privileges::find(name).ok_or_else(unknown)?;
    }
    let privileges = if privileges.is_empty() { Privileges::ALL } else { privileges };
    let viewer = Viewer::of_user(Some(user));
    let reasons = instance.repository.explain_privileges(&viewer, &path, privileges)?;
    let reasons = reasons.iter().map(|reason| reason_json(&snapshot, reason));
    let mut groups = instance.repository.groups_of_viewer(&viewer)?;
    let mut visible_groups = Vec::new();
    for group in groups.drain(..) {
        let account = instance.repository.account_path(&group)?;
        let node = account.map(|path| snapshot.node(&path)).transpose()?;
        if group == "everyone" || node.flatten().is_some() {
            visible_groups.push(group);
        }
    }
    Ok(ApiResponse::json(json!({
        "user": user,
        "path": path.as_str(),
        "groups": visible_groups,
        "privileges": reasons.collect::<Result<Vec<_>>>()?,
    })))
}

/// Describes a reason. If the requesting user may not read the policy, only its existence is reported.
fn reason_json(snapshot: &Snapshot, reason: &PrivilegeExplanation) -> Result<Json> {
    let is_hidden = match &reason.cause {
        PrivilegeCause::Entry(entry) => {
            let node = entry.policy_path.parent().unwrap_or_else(NodePath::root);
            !snapshot.has_privileges(&node, Privileges::READ_ACCESS_CONTROL)?
        }
        _ => false,
    };
    let cause = match &reason.cause {
        PrivilegeCause::Entry(_) if is_hidden => json!({ "kind": "hidden" }),
        PrivilegeCause::Administrator => json!({ "kind": "administrator" }),
        PrivilegeCause::Default => json!({ "kind": "nothing" }),
        PrivilegeCause::ClosedGroup(node) => {
            json!({ "kind": "closedGroup", "node": node.as_ref().map(NodePath::as_str) })
        }
        PrivilegeCause::Entry(entry) => json!({
            "kind": "entry",
            "policy": entry.policy_path.as_str(),
            "number": entry.entry_number,
            "name": entry.entry_name,
            "principal": entry.principal,
            "through": entry.group_chain,
            "restrictions": entry.restrictions,
        }),
    };
    Ok(json!({ "privilege": reason.privilege, "granted": reason.is_granted, "cause": cause }))
}
