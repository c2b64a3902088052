//! Permissions: the effective policies at a path, changes of a node's policy (`policy_change`), the privileges of the
//! requesting user, and the reasons for a user's permissions (`permission_reason`).
//!
//! Invariant: policies are shown only to users with `jcr:readAccessControl` at the node of the policy.

pub(super) mod permission_reason;
pub(super) mod policy_change;

use serde_json::{Map, Value as Json, json};
use tympan_content::{
    Error, Node, NodePath, PRIMARY_TYPE, Privileges, Property, Snapshot, ValueType,
};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::entity_tag;
use crate::api::node::find_node;
use crate::api::schema::{
    array_schema, object_schema, path_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::Result;

const PATH_PARAMETER: EndpointParameter =
    EndpointParameter::required("path", ParameterKind::Path, "The node.");
/// The node name of a policy.
const POLICY_NODE_NAME: &str = "rep:policy";
/// The known restrictions, with the types of their values.
const RESTRICTION_TYPES: [(&str, ValueType, bool); 7] = [
    ("rep:glob", ValueType::String, false),
    ("rep:globs", ValueType::String, true),
    ("rep:ntNames", ValueType::Name, true),
    ("rep:itemNames", ValueType::Name, true),
    ("rep:prefixes", ValueType::String, true),
    ("rep:current", ValueType::String, true),
    ("rep:subtrees", ValueType::String, true),
];

/// The API endpoints that this module defines.
pub(crate) const PERMISSION_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/permissions",
        id: "readPermissions",
        description: "Lists the policies in effect at a node: its own first, then the inherited ones. \
            Requires `jcr:readAccessControl`.",
        parameters: &[PATH_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Permissions", "The policies in effect.")],
        handler: EndpointHandler::Blocking(read_policy),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/privileges",
        id: "readPrivileges",
        description: "Returns the privileges of the caller at a node.",
        parameters: &[PATH_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("OwnPrivileges", "The privileges.")],
        handler: EndpointHandler::Blocking(read_privileges),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn permission_schemas() -> Map<String, Json> {
    let texts = || array_schema(text_schema());
    let flag = || json!({ "type": "boolean" });
    let restrictions =
        json!({ "type": "object", "additionalProperties": array_schema(text_schema()) });
    let entry = || {
        object_schema(&[
            ("name", text_schema()),
            ("allow", flag()),
            ("principal", text_schema()),
            ("privileges", texts()),
            ("restrictions", restrictions.clone()),
        ])
    };
    let policy = object_schema(&[
        ("path", text_schema()),
        ("node", text_schema()),
        ("kind", json!({ "enum": ["acl", "cug", "repository"] })),
        ("isInherited", flag()),
        ("entries", array_schema(entry())),
        ("principals", texts()),
    ]);
    schemas_by_name([
        (
            "Permissions",
            object_schema(&[
                ("path", text_schema()),
                ("isComplete", flag()),
                ("policies", array_schema(policy)),
            ]),
        ),
        (
            "Policy",
            object_schema(&[
                ("path", text_schema()),
                ("etag", text_or_null_schema()),
                ("entries", array_schema(entry())),
            ]),
        ),
        (
            "OwnPrivileges",
            object_schema(&[
                ("path", path_schema()),
                ("user", text_schema()),
                ("isAdministrator", flag()),
                ("privileges", texts()),
            ]),
        ),
    ])
}

/// Refuses users who lack a privilege at a node that they can see.
fn require_privileges(snapshot: &Snapshot, path: &NodePath, privileges: Privileges) -> Result<()> {
    if snapshot.has_privileges(path, privileges)? {
        return Ok(());
    }
    let privilege = privileges.names().next().unwrap_or("jcr:all");
    Err(Error::AccessDenied { path: path.clone(), privilege }.into())
}

fn read_policy(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    let node = find_node(&snapshot, &path)?;
    require_privileges(&snapshot, &path, Privileges::READ_ACCESS_CONTROL)?;
    let mut policies = Vec::new();
    let mut is_complete = true;
    let mut at = Some(path.clone());
    while let Some(controlled) = at {
        is_complete &= snapshot.has_privileges(&controlled, Privileges::READ_ACCESS_CONTROL)?;
        for (name, kind) in
            [(POLICY_NODE_NAME, "acl"), ("rep:cugPolicy", "cug"), ("rep:repoPolicy", "repository")]
        {
            let is_of_all = kind == "repository";
            if let Some(policy) = snapshot.node(&controlled.child(name)?)?
                && (!is_of_all || controlled.is_root())
            {
                policies.push(json!({
                    "path": policy.path().as_str(),
                    "node": controlled.as_str(),
                    "kind": kind,
                    "isInherited": controlled != path,
                    "entries": policy_entries_json(&policy)?,
                    "principals": property_texts(&policy, "rep:principalNames"),
                }));
            }
        }
        at = controlled.parent();
    }
    let response_body =
        json!({ "path": path.as_str(), "isComplete": is_complete, "policies": policies });
    Ok(ApiResponse::tagged(response_body, policy_tag(&call.instance, &node)?))
}

/// Returns the entity tag of a node's policy, or of the node if it has no policy.
fn policy_tag(instance: &Instance, node: &Node) -> Result<Option<String>> {
    let policy = node.child(POLICY_NODE_NAME)?;
    Ok(entity_tag::document_tag(instance, policy.as_ref().unwrap_or(node)))
}

fn property_texts(node: &Node, name: &str) -> Vec<String> {
    let property = node.property(name);
    let values = property.as_ref().map(Property::values).unwrap_or_default();
    values.iter().map(|value| value.to_text().into_owned()).collect()
}

fn policy_entries_json(policy: &Node) -> Result<Vec<Json>> {
    let mut entries = Vec::new();
    for entry in policy.children()? {
        if !matches!(entry.primary_type(), "rep:GrantACE" | "rep:DenyACE") {
            continue;
        }
        let child = entry.child("rep:restrictions")?;
        let of_child = child.iter().flat_map(Node::properties);
        let own = entry.properties().into_iter();
        let own = own.filter(|(name, _)| {
            RESTRICTION_TYPES.iter().any(|(restriction, ..)| restriction == name)
        });
        let restrictions: Map<String, Json> = own
            .chain(of_child)
            .filter(|(name, _)| name != PRIMARY_TYPE)
            .map(|(name, property)| {
                let values = property.values().iter();
                (name, values.map(|value| value.to_text().into_owned()).collect::<Vec<_>>().into())
            })
            .collect();
        entries.push(json!({
            "name": entry.name(),
            "allow": entry.primary_type() == "rep:GrantACE",
            "principal": entry.text("rep:principalName").unwrap_or_default(),
            "privileges": property_texts(&entry, "rep:privileges"),
            "restrictions": restrictions,
        }));
    }
    Ok(entries)
}

fn read_privileges(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    find_node(&snapshot, &path)?;
    let names: Vec<&str> = snapshot.privileges(&path)?.names().collect();
    Ok(ApiResponse::json(json!({
        "path": path.as_str(),
        "user": call.user_name(),
        "isAdministrator": instance.is_administrator(&call.viewer)?,
        "privileges": names,
    })))
}
