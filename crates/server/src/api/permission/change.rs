//! Changes of the policy of a node.
//!
//! Invariant: a policy names privileges, restrictions and principals that exist, or it is refused: what is not known
//! would grant less, or deny more, than its author thinks.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    MIXIN_TYPES, NodePath, Privileges, Property, Session, Subtree, Value, ValueType,
};

use super::{PATH, POLICY, RESTRICTIONS, entries_json, need, tag_of, texts};
use crate::Instance;
use crate::api::endpoint::{Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb};
use crate::api::node::find;
use crate::api::schema::{name_schema, named, object, reference, sent, text};
use crate::api::tag::Condition;
use crate::failure::{Failure, Result};
use crate::metrics::count;

const IF_MATCH: Parameter = Parameter::new(
    "If-Match",
    Kind::Header,
    "The tag of what was read; the change is refused (412) if the document was changed since.",
);
/// The most entries of a policy.
const MAX_ENTRIES: usize = 1000;
/// The mixin of nodes with a policy.
const CONTROLLED: &str = "rep:AccessControllable";

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Put,
        path: "/api/v1/permissions",
        id: "putPolicy",
        about: "Gives a node a policy of these entries in place of the one that it has. It takes `jcr:modifyAccessControl`.",
        parameters: &[PATH, IF_MATCH],
        body: Body::Json("NewPolicy"),
        answers: &[Answer::json("Policy", "The policy as it is now.")],
        handler: Handler::Work(put),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/permissions",
        id: "addEntry",
        about: "Adds an entry at the end of a node's policy, where it counts before the others.",
        parameters: &[PATH, IF_MATCH],
        body: Body::Json("NewEntry"),
        answers: &[Answer::json("Policy", "The policy as it is now.")],
        handler: Handler::Work(add),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/permissions",
        id: "removePolicy",
        about: "Removes one entry of a node's policy, or all of it.",
        parameters: &[
            PATH,
            Parameter::new(
                "entry",
                Kind::Name,
                "The name of the entry. Default: the whole policy.",
            ),
            IF_MATCH,
        ],
        body: Body::None,
        answers: &[Answer::json("Policy", "The policy as it is now.")],
        handler: Handler::Work(remove),
    },
];

/// The schemas of this part.
pub(super) fn schemas() -> Map<String, Json> {
    let known: Map<String, Json> = RESTRICTIONS
        .iter()
        .map(|(name, ..)| {
            (
                (*name).to_owned(),
                json!({ "type": "array", "items": { "type": "string", "maxLength": 1000 } }),
            )
        })
        .collect();
    let sent_restrictions =
        json!({ "type": "object", "properties": known, "additionalProperties": false });
    let new_entry = sent(
        &["principal", "privileges"],
        &[
            ("allow", json!({ "type": "boolean" })),
            ("principal", name_schema()),
            ("privileges", json!({ "type": "array", "minItems": 1, "items": text() })),
            ("restrictions", sent_restrictions),
        ],
    );
    named([
        (
            "NewPolicy",
            object(&[(
                "entries",
                json!({ "type": "array", "maxItems": MAX_ENTRIES, "items": reference("NewEntry") }),
            )]),
        ),
        ("NewEntry", new_entry),
    ])
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewPolicy {
    entries: Vec<NewEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewEntry {
    #[serde(default = "yes")]
    allow: bool,
    principal: String,
    privileges: Vec<String>,
    #[serde(default)]
    restrictions: BTreeMap<String, Vec<String>>,
}

fn yes() -> bool {
    true
}

fn refused(message: impl Into<String>) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message)
}

impl NewEntry {
    /// Makes the node of an entry.
    fn to_node(&self, instance: &Instance, name: String) -> Result<Subtree> {
        let kind = if self.allow { "rep:GrantACE" } else { "rep:DenyACE" };
        if self.privileges.is_empty() {
            return Err(refused("an entry names at least one privilege"));
        }
        for privilege in &self.privileges {
            if Privileges::find(privilege).is_none() {
                return Err(refused(format!("there is no privilege `{privilege}`")));
            }
        }
        let is_everybody = matches!(&*self.principal, "everyone" | "anonymous");
        if !is_everybody && instance.repository.account_path(&self.principal)?.is_none() {
            return Err(refused(format!("there is no user or group `{}`", self.principal)));
        }
        let privileges = self.privileges.iter().map(String::as_str);
        let mut node = Subtree::new(name, kind)
            .with("rep:principalName", Property::text(&*self.principal))
            .with("rep:privileges", Property::parse_list(ValueType::Name, privileges)?);
        if !self.restrictions.is_empty() {
            let mut child = Subtree::new("rep:restrictions", "rep:Restrictions");
            for (name, values) in &self.restrictions {
                child.properties.insert(name.clone(), restriction(name, values)?);
            }
            node.put_child(child);
        }
        Ok(node)
    }
}

/// Reads the values of a restriction.
fn restriction(name: &str, values: &[String]) -> Result<Property> {
    let known = RESTRICTIONS.iter().find(|(known, ..)| *known == name);
    let Some((_, value_type, is_list)) = known else {
        let names: Vec<&str> = RESTRICTIONS.iter().map(|(known, ..)| *known).collect();
        return Err(refused(format!("there is no restriction `{name}`, but {}", names.join(", "))));
    };
    match values {
        [value] if !is_list => Ok(Property::Single(Value::parse(*value_type, value)?)),
        _ if !is_list => Err(refused(format!("`{name}` has one value"))),
        [] => Err(refused(format!("`{name}` has no value"))),
        values => Ok(Property::parse_list(*value_type, values.iter().map(String::as_str))?),
    }
}

/// The policy of a node that is being changed.
struct Changing {
    session: Session,
    path: NodePath,
    policy: Option<Subtree>,
}

impl Changing {
    fn begin(call: &Call) -> Result<Self> {
        // All is read in one session: the commit is refused if something is changed after that.
        let (mut session, path) = (call.session()?, call.path("path")?);
        let snapshot = session.snapshot()?;
        let node = find(&snapshot, &path)?;
        need(&snapshot, &path, Privileges::READ_ACCESS_CONTROL)?;
        need(&snapshot, &path, Privileges::MODIFY_ACCESS_CONTROL)?;
        let stored = node.child(POLICY)?;
        let condition = Condition::of(&call.headers);
        condition.check(&call.instance, Some(stored.as_ref().unwrap_or(&node)))?;
        if condition != Condition::None {
            session.expect_unchanged(stored.as_ref().unwrap_or(&node).path())?;
        }
        let policy = stored.map(|policy| policy.read()).transpose()?;
        Ok(Self { session, path, policy })
    }

    /// Stores the policy; one without entries goes.
    fn store(mut self, instance: &Instance, call: &Call, policy: Subtree) -> Result<Reply> {
        let (path, session) = (&self.path, &mut self.session);
        let at = path.child(POLICY)?;
        if !policy.children.is_empty() {
            session.put(&at, policy)?;
            mark(session, path, true)?;
        } else if self.policy.is_some() {
            session.remove(&at)?;
            mark(session, path, false)?;
        }
        let root = session.commit(&format!("change permissions at {path}"), call.now)?;
        count(&instance.metrics.commits);
        let snapshot = instance.repository.snapshot_at(root)?.seen_by(&call.viewer);
        let node = find(&snapshot, path)?;
        let tag = tag_of(instance, &node)?;
        let entries = match snapshot.node(&at)? {
            Some(policy) => entries_json(&policy)?,
            None => Vec::new(),
        };
        let etag = tag.as_ref().map(|tag| format!("\"{tag}.-\""));
        let answer = json!({ "path": path.as_str(), "etag": etag, "entries": entries });
        Ok(Reply::tagged(answer, tag))
    }
}

/// Gives a node the mixin of those with policies, or takes it; the root goes without.
fn mark(session: &mut Session, path: &NodePath, is_controlled: bool) -> Result<()> {
    let node = session.node(path)?.filter(|_| !path.is_root());
    let Some(node) = node else { return Ok(()) };
    let mut mixins = texts(&node, MIXIN_TYPES);
    drop(node);
    let had = mixins.iter().any(|one| one == CONTROLLED);
    if had == is_controlled {
        return Ok(());
    }
    mixins.retain(|one| one != CONTROLLED);
    if is_controlled {
        mixins.push(CONTROLLED.to_owned());
    }
    if mixins.is_empty() {
        session.remove_property(path, MIXIN_TYPES)?;
        return Ok(());
    }
    let mixins = Property::parse_list(ValueType::Name, mixins.iter().map(String::as_str))?;
    Ok(session.set_property(path, MIXIN_TYPES, mixins)?)
}

/// Returns a name that no entry has.
fn free_name(policy: &Subtree, allow: bool) -> String {
    let stem = if allow { "allow" } else { "deny" };
    let names =
        std::iter::once(stem.to_owned()).chain((0..).map(|number| format!("{stem}{number}")));
    names.into_iter().find(|name| policy.child(name).is_none()).unwrap_or_default()
}

fn put(instance: &Instance, call: &Call) -> Result<Reply> {
    let NewPolicy { entries } = call.body()?;
    if entries.len() > MAX_ENTRIES {
        return Err(refused(format!("a policy has at most {MAX_ENTRIES} entries")));
    }
    let changing = Changing::begin(call)?;
    let mut policy = Subtree::new(POLICY, "rep:ACL");
    for entry in &entries {
        policy.put_child(entry.to_node(instance, free_name(&policy, entry.allow))?);
    }
    changing.store(instance, call, policy)
}

fn add(instance: &Instance, call: &Call) -> Result<Reply> {
    let entry: NewEntry = call.body()?;
    let changing = Changing::begin(call)?;
    let mut policy = changing.policy.clone().unwrap_or_else(|| Subtree::new(POLICY, "rep:ACL"));
    if policy.children.len() >= MAX_ENTRIES {
        return Err(refused(format!("a policy has at most {MAX_ENTRIES} entries")));
    }
    policy.put_child(entry.to_node(instance, free_name(&policy, entry.allow))?);
    changing.store(instance, call, policy)
}

fn remove(instance: &Instance, call: &Call) -> Result<Reply> {
    let changing = Changing::begin(call)?;
    let missing = || {
        let message = format!("`{}` has no such policy or entry", changing.path);
        Failure::new(StatusCode::NOT_FOUND, message)
    };
    let mut policy = changing.policy.clone().ok_or_else(missing)?;
    match call.text("entry") {
        Some(name) => drop(policy.remove_child(name).ok_or_else(missing)?),
        None => policy.children.clear(),
    }
    changing.store(instance, call, policy)
}
