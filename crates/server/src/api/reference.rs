//! Who refers to a node, and what it refers to.

use serde_json::{Map, Value as Json, json};
use tympan_content::{KeptReference, Reference, Referrer};

use crate::Instance;
use crate::api::endpoint::{
    AT, Answer, BRANCH, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb,
};
use crate::api::node::find;
use crate::api::schema::{array, named, object, text, text_or_null};
use crate::failure::Result;

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    verb: Verb::Get,
    path: "/api/v1/references",
    id: "listReferences",
    about: "Tells where a node is used, and what it and the rest of its document below it refer to, by identifier, path, link in \
            a text, name of a tag or of a policy, as far as the asker may read.",
    parameters: &[
        Parameter::required("path", Kind::Path, "The node."),
        Parameter::new(
            "deep",
            Kind::Flag,
            "Whether `usedBy` is about all nodes below it as well, and leaves out what is there itself. Default false.",
        ),
        BRANCH,
        AT,
    ],
    body: Body::None,
    answers: &[Answer::json("References", "The references in both directions.")],
    handler: Handler::Work(list),
}];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let kind = json!({ "enum": ["reference", "weakReference", "path", "link", "tag", "policy"] });
    let referrer = [("path", text()), ("property", text()), ("kind", kind)];
    let reference = [&referrer[..], &[("text", text()), ("target", text_or_null())]].concat();
    let kept = [&referrer[..], &[("reason", text())]].concat();
    named([
        ("Referrer", object(&referrer)),
        ("KeptReference", object(&kept)),
        (
            "References",
            object(&[
                ("path", text()),
                ("usedBy", array(object(&referrer))),
                ("uses", array(object(&reference))),
            ]),
        ),
    ])
}

fn list(_: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    find(&snapshot, &path)?;
    let used_by = match call.flag("deep") {
        true => snapshot.referrers_within(&path)?,
        false => snapshot.referrers(&path)?,
    };
    let uses = snapshot.references_of(&path)?;
    crate::page::check_failure(&snapshot)?;
    Ok(Reply::json(json!({
        "path": path.as_str(),
        "usedBy": used_by.iter().map(referrer_json).collect::<Vec<_>>(),
        "uses": uses.iter().map(reference_json).collect::<Vec<_>>(),
    })))
}

/// Describes a property that refers to a node.
pub(crate) fn referrer_json(referrer: &Referrer) -> Json {
    let Referrer { path, property, kind } = referrer;
    json!({ "path": path.as_str(), "property": property, "kind": kind.name() })
}

/// Describes a reference that a move left as it is.
pub(crate) fn kept_json(kept: &KeptReference) -> Json {
    let mut members = referrer_json(&kept.referrer);
    if let Some(members) = members.as_object_mut() {
        members.insert("reason".to_owned(), kept.reason.into());
    }
    members
}

fn reference_json(reference: &Reference) -> Json {
    let Reference { path, property, kind, text, target } = reference;
    json!({
        "path": path.as_str(),
        "property": property,
        "kind": kind.name(),
        "text": text,
        "target": target.as_ref().map(|target| target.as_str()),
    })
}
