//! Changes of the policy of a node.
//!
//! Invariant: a policy that names unknown privileges, restrictions or principals is refused, because it would grant
//! less, or deny more, than its author intends.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    MIXIN_TYPES, NodePath, Privileges, Property, Session, Subtree, Value, ValueType,
};

use super::{
    PATH_PARAMETER, POLICY_NODE_NAME, RESTRICTION_TYPES, policy_entries_json, policy_tag,
    property_texts, require_privileges,
};
use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::entity_tag::WriteCondition;
use crate::api::node::find_node;
use crate::api::schema::{
    name_schema, object_schema, partial_object_schema, reference_schema, schemas_by_name,
    text_schema,
};
use crate::failure::{RequestFailure, Result};
use crate::observe::metrics::increment;

const IF_MATCH_PARAMETER: EndpointParameter = EndpointParameter::new(
    "If-Match",
    ParameterKind::Header,
    "The `ETag` of the document as it was read; the change is refused (412) if the document has changed \
     since.",
);
/// Maximum number of entries in a policy.
const MAX_POLICY_ENTRIES: usize = 1000;
/// Mixin type of nodes with a policy.
const ACCESS_CONTROL_MIXIN: &str = "rep:AccessControllable";

/// The API endpoints that this module defines.
pub(crate) const POLICY_CHANGE_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Put,
        path: "/api/v1/permissions",
        id: "putPolicy",
        description: "Sets the policy of a node to these entries and replaces the existing one. Requires \
            `jcr:modifyAccessControl`.",
        parameters: &[PATH_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::Json("NewPolicy"),
        responses: &[ResponseSpec::json("Policy", "The updated policy.")],
        handler: EndpointHandler::Blocking(put_policy),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/permissions",
        id: "addEntry",
        description: "Adds an entry at the end of a node's policy, where it takes precedence over the others.",
        parameters: &[PATH_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::Json("NewEntry"),
        responses: &[ResponseSpec::json("Policy", "The updated policy.")],
        handler: EndpointHandler::Blocking(add_entry),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/permissions",
        id: "removePolicy",
        description: "Removes an entry of a node's policy, or the whole policy.",
        parameters: &[
            PATH_PARAMETER,
            EndpointParameter::new(
                "entry",
                ParameterKind::Name,
                "The name of the entry. Default: the whole policy.",
            ),
            IF_MATCH_PARAMETER,
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Policy", "The updated policy.")],
        handler: EndpointHandler::Blocking(remove_entry),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn policy_change_schemas() -> Map<String, Json> {
    let restrictions: Map<String, Json> = RESTRICTION_TYPES
        .iter()
        .map(|(name, ..)| {
            (
                (*name).to_owned(),
                json!({ "type": "array", "items": { "type": "string", "maxLength": 1000 } }),
            )
        })
        .collect();
    let sent_restrictions =
        json!({ "type": "object", "properties": restrictions, "additionalProperties": false });
    let new_entry = partial_object_schema(
        &["principal", "privileges"],
        &[
            ("allow", json!({ "type": "boolean" })),
            ("principal", name_schema()),
            ("privileges", json!({ "type": "array", "minItems": 1, "items": text_schema() })),
            ("restrictions", sent_restrictions),
        ],
    );
    schemas_by_name([
        (
            "NewPolicy",
            object_schema(&[(
                "entries",
                json!({ "type": "array", "maxItems": MAX_POLICY_ENTRIES, "items": reference_schema("NewEntry") }),
            )]),
        ),
        ("NewEntry", new_entry),
    ])
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewPolicy {
    entries: Vec<NewPolicyEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewPolicyEntry {
    #[serde(default = "default_true")]
    allow: bool,
    principal: String,
    privileges: Vec<String>,
    #[serde(default)]
    restrictions: BTreeMap<String, Vec<String>>,
}

fn default_true() -> bool {
    true
}

fn policy_failure(message: impl Into<String>) -> RequestFailure {
    RequestFailure::new(StatusCode::UNPROCESSABLE_ENTITY, message)
}

impl NewPolicyEntry {
    /// Builds the node of a policy entry.
    fn to_subtree(&self, instance: &Instance, name: String) -> Result<Subtree> {
        let kind = if self.allow { "rep:GrantACE" } else { "rep:DenyACE" };
        if self.privileges.is_empty() {
            return Err(policy_failure("an entry must name at least one privilege"));
        }
        for privilege in &self.privileges {
            if Privileges::find(privilege).is_none() {
                return Err(policy_failure(format!("there is no privilege `{privilege}`")));
            }
        }
        let is_everybody = matches!(&*self.principal, "everyone" | "anonymous");
        if !is_everybody && instance.repository.account_path(&self.principal)?.is_none() {
            return Err(policy_failure(format!("there is no user or group `{}`", self.principal)));
        }
        let privileges = self.privileges.iter().map(String::as_str);
        let mut node = Subtree::new(name, kind)
            .with_property("rep:principalName", Property::text(&*self.principal))
            .with_property("rep:privileges", Property::parse_list(ValueType::Name, privileges)?);
        if !self.restrictions.is_empty() {
            let mut child = Subtree::new("rep:restrictions", "rep:Restrictions");
            for (name, values) in &self.restrictions {
                child.properties.insert(name.clone(), restriction_property(name, values)?);
            }
            node.put_child(child);
        }
        Ok(node)
    }
}

/// Parses the values of a restriction.
fn restriction_property(name: &str, values: &[String]) -> Result<Property> {
    let restriction_type = RESTRICTION_TYPES.iter().find(|(candidate, ..)| *candidate == name);
    let Some((_, value_type, is_list)) = restriction_type else {
        let names: Vec<&str> = RESTRICTION_TYPES.iter().map(|(candidate, ..)| *candidate).collect();
        return Err(policy_failure(format!(
            "there is no restriction `{name}`; use one of {}",
            names.join(", ")
        )));
    };
    match values {
        [value] if !is_list => Ok(Property::Single(Value::parse(*value_type, value)?)),
        _ if !is_list => Err(policy_failure(format!("`{name}` must have exactly one value"))),
        [] => Err(policy_failure(format!("`{name}` must have a value"))),
        values => Ok(Property::parse_list(*value_type, values.iter().map(String::as_str))?),
    }
}

/// A policy of a node while it is being changed.
struct PolicyEdit {
    session: Session,
    path: NodePath,
    policy: Option<Subtree>,
}

impl PolicyEdit {
    fn begin(call: &ApiRequest) -> Result<Self> {
        // Read everything in one session, so that the commit is refused if anything changes after that.
        let (mut session, path) = (call.begin_session()?, call.path_parameter("path")?);
        let snapshot = session.snapshot()?;
        let node = find_node(&snapshot, &path)?;
        require_privileges(&snapshot, &path, Privileges::READ_ACCESS_CONTROL)?;
        require_privileges(&snapshot, &path, Privileges::MODIFY_ACCESS_CONTROL)?;
        let stored = node.child(POLICY_NODE_NAME)?;
        let condition = WriteCondition::of_headers(&call.headers);
        condition.check_document(&call.instance, Some(stored.as_ref().unwrap_or(&node)))?;
        if condition != WriteCondition::None {
            session.expect_unchanged(stored.as_ref().unwrap_or(&node).path())?;
        }
        let policy = stored.map(|policy| policy.read_subtree()).transpose()?;
        Ok(Self { session, path, policy })
    }

    /// Stores the policy; removes it if it has no entries.
    fn commit_policy(
        mut self,
        instance: &Instance,
        call: &ApiRequest,
        policy: Subtree,
    ) -> Result<ApiResponse> {
        let (path, session) = (&self.path, &mut self.session);
        let at = path.child(POLICY_NODE_NAME)?;
        if !policy.children.is_empty() {
            session.put_node(&at, policy)?;
            set_policy_mixin(session, path, true)?;
        } else if self.policy.is_some() {
            session.remove_node(&at)?;
            set_policy_mixin(session, path, false)?;
        }
        let root = session.commit(&format!("change permissions at {path}"), call.now)?;
        increment(&instance.metrics.commits);
        let snapshot = instance.repository.snapshot_at(root)?.as_viewer(&call.viewer);
        let node = find_node(&snapshot, path)?;
        let tag = policy_tag(instance, &node)?;
        let entries = match snapshot.node(&at)? {
            Some(policy) => policy_entries_json(&policy)?,
            None => Vec::new(),
        };
        let etag = tag.as_ref().map(|tag| format!("\"{tag}.-\""));
        let response_body = json!({ "path": path.as_str(), "etag": etag, "entries": entries });
        Ok(ApiResponse::tagged(response_body, tag))
    }
}

/// Adds or removes the mixin type of nodes with a policy; the root never has it.
fn set_policy_mixin(session: &mut Session, path: &NodePath, is_controlled: bool) -> Result<()> {
    let node = session.node(path)?.filter(|_| !path.is_root());
    let Some(node) = node else { return Ok(()) };
    let mut mixins = property_texts(&node, MIXIN_TYPES);
    drop(node);
    let had = mixins.iter().any(|mixin| mixin == ACCESS_CONTROL_MIXIN);
    if had == is_controlled {
        return Ok(());
    }
    mixins.retain(|mixin| mixin != ACCESS_CONTROL_MIXIN);
    if is_controlled {
        mixins.push(ACCESS_CONTROL_MIXIN.to_owned());
    }
    if mixins.is_empty() {
        session.remove_property(path, MIXIN_TYPES)?;
        return Ok(());
    }
    let mixins = Property::parse_list(ValueType::Name, mixins.iter().map(String::as_str))?;
    Ok(session.set_property(path, MIXIN_TYPES, mixins)?)
}

/// Returns an unused name for an entry.
fn free_entry_name(policy: &Subtree, allow: bool) -> String {
    let stem = if allow { "allow" } else { "deny" };
    let names =
        std::iter::once(stem.to_owned()).chain((0..).map(|number| format!("{stem}{number}")));
    names.into_iter().find(|name| policy.child(name).is_none()).unwrap_or_default()
}

fn put_policy(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let NewPolicy { entries } = call.parse_body()?;
    if entries.len() > MAX_POLICY_ENTRIES {
        return Err(policy_failure(format!(
            "a policy can have at most {MAX_POLICY_ENTRIES} entries"
        )));
    }
    let changing = PolicyEdit::begin(call)?;
    let mut policy = Subtree::new(POLICY_NODE_NAME, "rep:ACL");
    for entry in &entries {
        policy.put_child(entry.to_subtree(instance, free_entry_name(&policy, entry.allow))?);
    }
    changing.commit_policy(instance, call, policy)
}

fn add_entry(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let entry: NewPolicyEntry = call.parse_body()?;
    let changing = PolicyEdit::begin(call)?;
    let mut policy =
        changing.policy.clone().unwrap_or_else(|| Subtree::new(POLICY_NODE_NAME, "rep:ACL"));
    if policy.children.len() >= MAX_POLICY_ENTRIES {
        return Err(policy_failure(format!(
            "a policy can have at most {MAX_POLICY_ENTRIES} entries"
        )));
    }
    policy.put_child(entry.to_subtree(instance, free_entry_name(&policy, entry.allow))?);
    changing.commit_policy(instance, call, policy)
}

fn remove_entry(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let changing = PolicyEdit::begin(call)?;
    let missing = || {
        let message = format!("`{}` has no such policy or entry", changing.path);
        RequestFailure::new(StatusCode::NOT_FOUND, message)
    };
    let mut policy = changing.policy.clone().ok_or_else(missing)?;
    match call.parameter("entry") {
        Some(name) => drop(policy.remove_child(name).ok_or_else(missing)?),
        None => policy.children.clear(),
    }
    changing.commit_policy(instance, call, policy)
}
