//! Permissions: the policies that count at a path, changes of the policy of a node, what the asker may do, and why
//! anybody may do something.
//!
//! Invariants
//! * Policies are shown to whoever has `jcr:readAccessControl` where they are, and to nobody else.
//! * A policy names privileges, restrictions and principals that exist, or it is refused: what is not known would grant
//!   less, or deny more, than its author thinks.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    Cause, Error, MIXIN_TYPES, Node, NodePath, PRIMARY_TYPE, Privileges, Property, Reason, Session,
    Snapshot, Subtree, Value, ValueType,
};

use crate::Instance;
use crate::api::endpoint::{Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb};
use crate::api::node::find;
use crate::api::schema::{
    array, count as number, name_schema, named, object, path_schema, sent, text, text_or_null,
};
use crate::api::tag::{self, Condition};
use crate::failure::{Failure, Result};
use crate::metrics::count;

const PATH: Parameter = Parameter::required("path", Kind::Path, "The node.");
const IF_MATCH: Parameter = Parameter::new(
    "If-Match",
    Kind::Header,
    "The tag of what was read; the change is refused (412) if the document was changed since.",
);
/// The most entries of a policy.
const MAX_ENTRIES: usize = 1000;
/// The name of a node's policy.
const POLICY: &str = "rep:policy";
/// The mixin of nodes with a policy.
const CONTROLLED: &str = "rep:AccessControllable";
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
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/permissions/why",
        id: "explainPermissions",
        about: "Tells for each privilege why a user has it at a node or not: the entry that decided, or what did in its \
                place. It takes `jcr:readAccessControl`.",
        parameters: &[
            PATH,
            Parameter::required("user", Kind::Name, "The user, or `anonymous`."),
            Parameter::new("privilege", Kind::Texts, "A privilege. May be repeated. Default: all."),
        ],
        body: Body::None,
        answers: &[Answer::json("Why", "The reasons.")],
        handler: Handler::Work(why),
    },
];

/// The schemas of this part.
#[expect(clippy::too_many_lines, reason = "a flat table of schemas")]
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
            ("allow", flag()),
            ("principal", name_schema()),
            ("privileges", json!({ "type": "array", "minItems": 1, "items": text() })),
            ("restrictions", sent_restrictions),
        ],
    );
    let cause = object(&[("kind", text())]);
    let cause = with_more(cause);
    named([
        (
            "Permissions",
            object(&[("path", text()), ("isComplete", flag()), ("policies", array(policy))]),
        ),
        (
            "Policy",
            object(&[("path", text()), ("etag", text_or_null()), ("entries", array(entry()))]),
        ),
        (
            "NewPolicy",
            object(&[(
                "entries",
                json!({ "type": "array", "maxItems": MAX_ENTRIES, "items": crate::api::schema::reference("NewEntry") }),
            )]),
        ),
        ("NewEntry", new_entry),
        (
            "OwnPrivileges",
            object(&[
                ("path", path_schema()),
                ("user", text()),
                ("isAdministrator", flag()),
                ("privileges", texts()),
            ]),
        ),
        (
            "Why",
            object(&[
                ("user", text()),
                ("path", text()),
                ("groups", texts()),
                (
                    "privileges",
                    array(object(&[("privilege", text()), ("granted", flag()), ("cause", cause)])),
                ),
            ]),
        ),
    ])
}

/// Describes what a cause holds besides its kind.
fn with_more(mut cause: Json) -> Json {
    let more = [
        ("node", text_or_null()),
        ("policy", text()),
        ("number", number()),
        ("name", text()),
        ("principal", text()),
        ("through", array(text())),
        ("restrictions", array(text())),
    ];
    if let Some(members) = cause.get_mut("properties").and_then(Json::as_object_mut) {
        members.extend(more.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    }
    cause
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
        let (snapshot, path) = (call.snapshot()?, call.path("path")?);
        let node = find(&snapshot, &path)?;
        need(&snapshot, &path, Privileges::READ_ACCESS_CONTROL)?;
        need(&snapshot, &path, Privileges::MODIFY_ACCESS_CONTROL)?;
        let mut session = call.session()?;
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

fn why(instance: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    find(&snapshot, &path)?;
    need(&snapshot, &path, Privileges::READ_ACCESS_CONTROL)?;
    let user = call.text("user").unwrap_or_default();
    let missing = || Failure::new(StatusCode::NOT_FOUND, format!("there is no user `{user}`"));
    if user != "anonymous" && user != call.user() {
        let account = instance.repository.account_path(user)?.ok_or_else(missing)?;
        let is_user = |node: Node| node.primary_type() != "rep:Group";
        snapshot.node(&account)?.filter(|node| is_user(node.clone())).ok_or_else(missing)?;
    }
    let mut wanted = Privileges::NONE;
    for name in call.texts("privilege") {
        let unknown = || Failure::bad_request(format!("there is no privilege `{name}`"));
        wanted = wanted | Privileges::find(name).ok_or_else(unknown)?;
    }
    let wanted = if wanted.is_empty() { Privileges::ALL } else { wanted };
    let viewer = instance.repository.viewer(Some(user))?;
    let reasons = instance.repository.explain(&viewer, &path, wanted)?;
    let reasons = reasons.iter().map(|reason| reason_json(&snapshot, reason));
    let mut groups = instance.repository.groups_of(&viewer)?;
    let mut seen = Vec::new();
    for group in groups.drain(..) {
        let account = instance.repository.account_path(&group)?;
        let node = account.map(|path| snapshot.node(&path)).transpose()?;
        if group == "everyone" || node.flatten().is_some() {
            seen.push(group);
        }
    }
    Ok(Reply::json(json!({
        "user": user,
        "path": path.as_str(),
        "groups": seen,
        "privileges": reasons.collect::<Result<Vec<_>>>()?,
    })))
}

/// Describes a reason; of a policy that the asker may not read only that there is one.
fn reason_json(snapshot: &Snapshot, reason: &Reason) -> Result<Json> {
    let is_hidden = match &reason.cause {
        Cause::Entry(entry) => {
            let node = entry.policy.parent().unwrap_or_else(NodePath::root);
            !snapshot.allows(&node, Privileges::READ_ACCESS_CONTROL)?
        }
        _ => false,
    };
    let cause = match &reason.cause {
        Cause::Entry(_) if is_hidden => json!({ "kind": "hidden" }),
        Cause::Administrator => json!({ "kind": "administrator" }),
        Cause::Nothing => json!({ "kind": "nothing" }),
        Cause::ClosedGroup(node) => {
            json!({ "kind": "closedGroup", "node": node.as_ref().map(NodePath::as_str) })
        }
        Cause::Entry(entry) => json!({
            "kind": "entry",
            "policy": entry.policy.as_str(),
            "number": entry.number,
            "name": entry.name,
            "principal": entry.principal,
            "through": entry.through,
            "restrictions": entry.restrictions,
        }),
    };
    Ok(json!({ "privilege": reason.privilege, "granted": reason.is_granted, "cause": cause }))
}
