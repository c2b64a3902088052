//! Permissions: the policies that count at a path, changes of the policy of a node (`change`), what the asker may do,
//! and why anybody may do something (`why`).
//!
//! Invariant: policies are shown to whoever has `jcr:readAccessControl` where they are, and to nobody else.

mod change;
mod why;

use serde_json::{Map, Value as Json, json};
use tympan_content::{
    Error, Node, NodePath, PRIMARY_TYPE, Privileges, Property, Snapshot, ValueType,
};

pub(crate) use self::change::ENDPOINTS as CHANGES;
pub(crate) use self::why::ENDPOINTS as REASONS;

use crate::Instance;
use crate::api::endpoint::{Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb};
use crate::api::node::find;
use crate::api::schema::{array, named, object, path_schema, text, text_or_null};
use crate::api::tag;
use crate::failure::Result;

const PATH: Parameter = Parameter::required("path", Kind::Path, "The node.");
/// The name of a node's policy.
const POLICY: &str = "rep:policy";
/// Restrictions, and the type of their values.
const RESTRICTIONS: [(&str, ValueType, bool); 7] = [
    ("rep:glob", ValueType::String, false),
    ("rep:globs", ValueType::String, true),
    ("rep:ntNames", ValueType::Name, true),
    ("rep:itemNames", ValueType::Name, true),
    ("rep:prefixes", ValueType::String, true),
    ("rep:current", ValueType::String, true),
    ("rep:subtrees", ValueType::String, true),
];

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/permissions",
        id: "readPermissions",
        about: "Lists the policies that count at a node, its own first, then those that come from above. It takes \
                `jcr:readAccessControl`.",
        parameters: &[PATH],
        body: Body::None,
        answers: &[Answer::json("Permissions", "The policies in effect.")],
        handler: Handler::Work(read),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/privileges",
        id: "readPrivileges",
        about: "Tells what the asker may do at a node.",
        parameters: &[PATH],
        body: Body::None,
        answers: &[Answer::json("OwnPrivileges", "The privileges.")],
        handler: Handler::Work(privileges),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let texts = || array(text());
    let flag = || json!({ "type": "boolean" });
    let restrictions = json!({ "type": "object", "additionalProperties": array(text()) });
    let entry = || {
        object(&[
            ("name", text()),
            ("allow", flag()),
            ("principal", text()),
            ("privileges", texts()),
            ("restrictions", restrictions.clone()),
        ])
    };
    let policy = object(&[
        ("path", text()),
        ("node", text()),
        ("kind", json!({ "enum": ["acl", "cug", "repository"] })),
        ("isInherited", flag()),
        ("entries", array(entry())),
        ("principals", texts()),
    ]);
    let mut all = named([
        (
            "Permissions",
            object(&[("path", text()), ("isComplete", flag()), ("policies", array(policy))]),
        ),
        (
            "Policy",
            object(&[("path", text()), ("etag", text_or_null()), ("entries", array(entry()))]),
        ),
        (
            "OwnPrivileges",
            object(&[
                ("path", path_schema()),
                ("user", text()),
                ("isAdministrator", flag()),
                ("privileges", texts()),
            ]),
        ),
    ]);
    all.extend(change::schemas());
    all.extend(why::schemas());
    all
}

/// Refuses whoever lacks a privilege at a node that it sees.
fn need(snapshot: &Snapshot, path: &NodePath, wanted: Privileges) -> Result<()> {
    if snapshot.allows(path, wanted)? {
        return Ok(());
    }
    let privilege = wanted.names().next().unwrap_or("jcr:all");
    Err(Error::AccessDenied { path: path.clone(), privilege }.into())
}

fn read(_: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    let node = find(&snapshot, &path)?;
    need(&snapshot, &path, Privileges::READ_ACCESS_CONTROL)?;
    let mut policies = Vec::new();
    let mut is_complete = true;
    let mut at = Some(path.clone());
    while let Some(controlled) = at {
        is_complete &= snapshot.allows(&controlled, Privileges::READ_ACCESS_CONTROL)?;
        for (name, kind) in
            [(POLICY, "acl"), ("rep:cugPolicy", "cug"), ("rep:repoPolicy", "repository")]
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
                    "entries": entries_json(&policy)?,
                    "principals": texts(&policy, "rep:principalNames"),
                }));
            }
        }
        at = controlled.parent();
    }
    let answer = json!({ "path": path.as_str(), "isComplete": is_complete, "policies": policies });
    Ok(Reply::tagged(answer, tag_of(&call.instance, &node)?))
}

/// Returns the tag of the policy of a node; where it has none, of the node.
fn tag_of(instance: &Instance, node: &Node) -> Result<Option<String>> {
    let policy = node.child(POLICY)?;
    Ok(tag::of_document(instance, policy.as_ref().unwrap_or(node)))
}

fn texts(node: &Node, name: &str) -> Vec<String> {
    let property = node.property(name);
    let values = property.as_ref().map(Property::values).unwrap_or_default();
    values.iter().map(|value| value.to_text().into_owned()).collect()
}

fn entries_json(policy: &Node) -> Result<Vec<Json>> {
    let mut entries = Vec::new();
    for entry in policy.children()? {
        if !matches!(entry.primary_type(), "rep:GrantACE" | "rep:DenyACE") {
            continue;
        }
        let child = entry.child("rep:restrictions")?;
        let of_child = child.iter().flat_map(Node::properties);
        let own = entry.properties().into_iter();
        let own = own.filter(|(name, _)| RESTRICTIONS.iter().any(|(known, ..)| known == name));
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
            "privileges": texts(&entry, "rep:privileges"),
            "restrictions": restrictions,
        }));
    }
    Ok(entries)
}

fn privileges(instance: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    find(&snapshot, &path)?;
    let names: Vec<&str> = snapshot.privileges(&path)?.names().collect();
    Ok(Reply::json(json!({
        "path": path.as_str(),
        "user": call.user(),
        "isAdministrator": instance.is_administrator(&call.viewer)?,
        "privileges": names,
    })))
}
