//! Why a user may do something at a node, or not.

use http::StatusCode;
use serde_json::{Map, Value as Json, json};
use tympan_content::{Cause, Node, NodePath, Privileges, Reason, Snapshot};

use super::{PATH, need};
use crate::Instance;
use crate::api::endpoint::{Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb};
use crate::api::node::find;
use crate::api::schema::{array, count, named, object, text, text_or_null};
use crate::failure::{Failure, Result};

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[Endpoint {
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
}];

/// The schemas of this part.
pub(super) fn schemas() -> Map<String, Json> {
    let texts = || array(text());
    let flag = || json!({ "type": "boolean" });
    let cause = object(&[("kind", text())]);
    let cause = with_more(cause);
    named([(
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
    )])
}

/// Describes what a cause holds besides its kind.
fn with_more(mut cause: Json) -> Json {
    let more = [
        ("node", text_or_null()),
        ("policy", text()),
        ("number", count()),
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
        let unknown = || Failure::unfit(format!("there is no privilege `{name}`"));
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
