//! Versions of nodes: listed, kept, restored.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tympan_content::{After, CheckIn, Date, NodePath, Version};

use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Content, Endpoint, Handler, JsonReply, Kind, Parameter, Reply, Verb,
};
use crate::api::node::{find, given};
use crate::api::tag;
use crate::api::write::written;
use crate::failure::Result;
use crate::touch::touch_pages;

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/versions",
        id: "listVersions",
        about: "Lists the versions of a node, the oldest first.",
        parameters: &[Parameter::required("path", Kind::Path, "The node.")],
        body: Body::None,
        answers: &[Answer::json("Versions", "The versions.")],
        handler: Handler::Work(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/versions",
        id: "keepVersion",
        about: "Keeps a node as it is now as its next version.",
        parameters: &[],
        body: Body::Json("NewVersion"),
        answers: &[Answer { status: 201, about: "It is kept.", content: Content::Json("Version") }],
        handler: Handler::Work(keep),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/versions/restore",
        id: "restoreVersion",
        about: "Makes a node as one of its versions holds it.",
        parameters: &[],
        body: Body::Json("RestoredVersion"),
        answers: &[Answer::json("Written", "The node is as it was.")],
        handler: Handler::Work(restore),
    },
];

fn list(_: &Instance, call: &Call) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    let path = call.path("path")?;
    find(&snapshot, &path)?;
    let versions: Vec<Json> = snapshot.versions(&path)?.iter().map(describe).collect();
    Ok(Reply::json(json!({ "path": path.as_str(), "versions": versions })))
}

fn describe(version: &Version) -> Json {
    json!({
        "name": version.name,
        "path": version.path.as_str(),
        "time": Date::from_system_time(version.at).to_string(),
        "user": version.user,
        "comment": version.comment,
        "labels": version.labels,
        "isBase": version.is_base,
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewVersion {
    path: String,
    #[serde(default, deserialize_with = "given")]
    comment: Option<String>,
}

fn keep(instance: &Instance, call: &Call) -> Result<Reply> {
    let NewVersion { path, comment } = call.body()?;
    let path = NodePath::new(&path)?;
    let mut session = instance.repository.session_of(&call.viewer)?;
    let comment = comment.unwrap_or_default();
    let how = CheckIn { comment: &comment, at: call.now, after: After::CheckedOut };
    let version = session.check_in(&path, &how)?;
    session.commit(&format!("keep a version of {path}"), call.now)?;
    Ok(Reply::Json(JsonReply {
        status: StatusCode::CREATED,
        value: describe(&version),
        tag: None,
        location: None,
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RestoredVersion {
    path: String,
    version: String,
}

fn restore(instance: &Instance, call: &Call) -> Result<Reply> {
    let RestoredVersion { path, version } = call.body()?;
    let path = NodePath::new(&path)?;
    let mut session = instance.repository.session_of(&call.viewer)?;
    session.restore(&path, &version, call.now, After::CheckedOut)?;
    touch_pages(&mut session, [format!("{path}/jcr:content")], call.user(), call.now)?;
    let root = session.commit(&format!("restore {version} of {path}"), call.now)?;
    let snapshot = instance.repository.snapshot_at(root)?.seen_by(&call.viewer);
    let tag = snapshot.node(&path)?.as_ref().and_then(tag::of_document);
    Ok(written(&path, tag, StatusCode::OK))
}
