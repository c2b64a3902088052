//! Versions of nodes: listed, kept, labeled, compared, restored, removed.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    After, CheckIn, Date, LabelClash, NodeDifference, NodePath, Property, Snapshot, Subtree,
    Version,
};

use crate::Instance;
use crate::api::endpoint::{
    Answer, BRANCH, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb,
};
use crate::api::node::{
    MAX_DEPTH, MAX_NODES, describe as describe_node, find, given, own_tree, property_json,
};
use crate::api::schema::{
    array, name_schema, named, object, path_schema, reference, sent, text, text_or_null,
};
use crate::api::tag::{self, Condition};
use crate::api::write::written;
use crate::failure::{Failure, Result};
use crate::metrics::count;
use crate::touch::touch_pages;

const PATH: Parameter = Parameter::required("path", Kind::Path, "The node.");
const VERSION: Parameter =
    Parameter::required("version", Kind::Text, "The version's name or label.");
const IF_MATCH: Parameter = Parameter::new(
    "If-Match",
    Kind::Header,
    "The tag of what was read; the change is refused (412) if the document was changed since.",
);

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/versions",
        id: "listVersions",
        about: "Lists the versions of a node, the oldest first; also of one that is gone.",
        parameters: &[PATH, BRANCH],
        body: Body::None,
        answers: &[Answer::json("Versions", "The versions.")],
        handler: Handler::Work(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/versions",
        id: "keepVersion",
        about: "Keeps a node as it is now as its next version; `checkIn` closes it to changes until it is checked out.",
        parameters: &[IF_MATCH],
        body: Body::Json("NewVersion"),
        answers: &[Answer::created("Version", "It is kept.")],
        handler: Handler::Work(keep),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/versions",
        id: "removeVersion",
        about: "Removes a version.",
        parameters: &[PATH, VERSION],
        body: Body::None,
        answers: &[Answer::nothing(204, "It is gone.")],
        handler: Handler::Work(remove),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/versions/checkout",
        id: "checkOut",
        about: "Opens a node that was checked in to changes.",
        parameters: &[],
        body: Body::Json("CheckedOut"),
        answers: &[Answer::json("Written", "It can be changed.")],
        handler: Handler::Work(check_out),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/versions/node",
        id: "readVersion",
        about: "Reads a node as a version holds it.",
        parameters: &[
            PATH,
            VERSION,
            Parameter::new(
                "depth",
                Kind::Integer(0, MAX_DEPTH as u64),
                "Levels of children. Default 0.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("Node", "The node as it was.")],
        handler: Handler::Work(read),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/versions/diff",
        id: "compareVersions",
        about: "Tells what differs between two versions of a node, or between one and the node as it is now.",
        parameters: &[
            PATH,
            Parameter::required("from", Kind::Text, "The earlier version's name or label."),
            Parameter::new("to", Kind::Text, "The later one's. Default: the node as it is now."),
        ],
        body: Body::None,
        answers: &[Answer::json("Differences", "What differs, node by node.")],
        handler: Handler::Work(compare),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/versions/label",
        id: "addLabel",
        about: "Gives a version a label; with `move`, one that another version of the node has.",
        parameters: &[],
        body: Body::Json("NewLabel"),
        answers: &[Answer::nothing(204, "It has the label.")],
        handler: Handler::Work(label),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/versions/label",
        id: "removeLabel",
        about: "Takes a label from whichever version of the node has it.",
        parameters: &[PATH, Parameter::required("label", Kind::Name, "The label.")],
        body: Body::None,
        answers: &[Answer::nothing(204, "No version has it.")],
        handler: Handler::Work(unlabel),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/versions/restore",
        id: "restoreVersion",
        about: "Makes a node as one of its versions holds it, or a part of it; a node that is gone comes back.",
        parameters: &[IF_MATCH],
        body: Body::Json("RestoredVersion"),
        answers: &[Answer::json("Written", "The node is as it was.")],
        handler: Handler::Work(restore),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/versions/deleted",
        id: "listDeleted",
        about: "Lists the nodes at a path and below that are gone, but for their versions.",
        parameters: &[PATH],
        body: Body::None,
        answers: &[Answer::json("DeletedNodes", "The nodes that can be restored.")],
        handler: Handler::Work(deleted),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let version = object(&[
        ("name", text()),
        ("path", text()),
        ("time", text()),
        ("user", text()),
        ("comment", text()),
        ("labels", array(text())),
        ("isBase", flag()),
    ]);
    let comment = json!({ "type": "string", "maxLength": 4096 });
    let property = object(&[
        ("name", text()),
        ("before", json!({ "anyOf": [reference("Property"), { "type": "null" }] })),
        ("after", json!({ "anyOf": [reference("Property"), { "type": "null" }] })),
    ]);
    let difference = object(&[
        ("path", text()),
        ("kind", json!({ "enum": ["added", "removed", "changed"] })),
        ("isReordered", flag()),
        ("properties", array(property)),
    ]);
    let part = json!({ "type": "string", "maxLength": 1000 });
    named([
        ("Versions", object(&[("path", text()), ("versions", array(reference("Version")))])),
        ("Version", version),
        (
            "NewVersion",
            sent(&["path"], &[("path", path_schema()), ("comment", comment), ("checkIn", flag())]),
        ),
        ("CheckedOut", object(&[("path", path_schema())])),
        (
            "NewLabel",
            sent(
                &["path", "version", "label"],
                &[
                    ("path", path_schema()),
                    ("version", text()),
                    ("label", name_schema()),
                    ("move", flag()),
                ],
            ),
        ),
        (
            "RestoredVersion",
            sent(
                &["path", "version"],
                &[("path", path_schema()), ("version", text()), ("part", part)],
            ),
        ),
        ("NodeDifference", difference),
        (
            "Differences",
            object(&[
                ("path", text()),
                ("from", text()),
                ("to", text_or_null()),
                ("nodes", array(reference("NodeDifference"))),
            ]),
        ),
        (
            "DeletedNodes",
            object(&[
                ("path", text()),
                (
                    "nodes",
                    array(object(&[("path", text()), ("versions", array(reference("Version")))])),
                ),
            ]),
        ),
    ])
}

/// Refuses a path where neither a node nor a version is seen.
fn need(snapshot: &Snapshot, path: &NodePath) -> Result<()> {
    if snapshot.versions(path)?.is_empty() {
        find(snapshot, path)?;
    }
    Ok(())
}

fn list(_: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    need(&snapshot, &path)?;
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
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NewVersion {
    path: String,
    #[serde(default, deserialize_with = "given")]
    comment: Option<String>,
    #[serde(default)]
    check_in: bool,
}

/// Begins a session under the condition of the request's head.
fn begin(instance: &Instance, call: &Call, path: &NodePath) -> Result<tympan_content::Session> {
    let mut session = instance.repository.session_of(&call.viewer)?;
    let condition = Condition::of(&call.headers);
    condition.check(instance, session.node(path)?.as_ref())?;
    if condition != Condition::None {
        session.expect_unchanged(path)?;
    }
    Ok(session)
}

fn keep(instance: &Instance, call: &Call) -> Result<Reply> {
    let NewVersion { path, comment, check_in } = call.body()?;
    let path = NodePath::new(&path)?;
    let mut session = begin(instance, call, &path)?;
    let comment = comment.unwrap_or_default();
    let after = if check_in { After::CheckedIn } else { After::CheckedOut };
    let version = session.check_in(&path, &CheckIn { comment: &comment, at: call.now, after })?;
    session.commit(&format!("keep a version of {path}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::created(describe(&version)))
}

fn remove(instance: &Instance, call: &Call) -> Result<Reply> {
    let (path, name) = (call.path("path")?, call.text("version").unwrap_or_default());
    let mut session = instance.repository.session_of(&call.viewer)?;
    session.remove_version(&path, name)?;
    session.commit(&format!("remove the version {name} of {path}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::nothing())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckedOut {
    path: String,
}

fn check_out(instance: &Instance, call: &Call) -> Result<Reply> {
    let CheckedOut { path } = call.body()?;
    let path = NodePath::new(&path)?;
    let mut session = instance.repository.session_of(&call.viewer)?;
    session.check_out(&path)?;
    let root = session.commit(&format!("check out {path}"), call.now)?;
    count(&instance.metrics.commits);
    answer(instance, call, root, &path)
}

fn answer(
    instance: &Instance,
    call: &Call,
    root: tympan_content::ChunkId,
    path: &NodePath,
) -> Result<Reply> {
    let snapshot = instance.repository.snapshot_at(root)?.seen_by(&call.viewer);
    let tag = snapshot.node(path)?.and_then(|node| tag::of_document(instance, &node));
    Ok(written(path, tag, StatusCode::OK))
}

fn read(_: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    let shown = snapshot.at_version(&path, call.text("version").unwrap_or_default())?;
    let mut left = MAX_NODES;
    let value = describe_node(&find(&shown, &path)?, call.number("depth", 0), &mut left)?;
    crate::page::check_failure(&shown)?;
    Ok(Reply::json(value))
}

fn compare(_: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    let from = snapshot.version(&path, call.text("from").unwrap_or_default())?;
    let before = snapshot.read_version(&from)?;
    let (to, after) = match call.text("to") {
        Some(name) => {
            let to = snapshot.version(&path, name)?;
            (Some(to.name.clone()), snapshot.read_version(&to)?)
        }
        None => (None, own_tree(&find(&snapshot, &path)?)?),
    };
    let nodes = differences(&before, &after);
    Ok(Reply::json(json!({ "path": path.as_str(), "from": from.name, "to": to, "nodes": nodes })))
}

/// Describes what two trees have differently.
pub(crate) fn differences(before: &Subtree, after: &Subtree) -> Vec<Json> {
    let describe = |one: NodeDifference| {
        let side = |property: &Option<Property>| property.as_ref().map(property_json);
        let properties = one.properties.iter().filter(|one| one.name != "rep:password");
        let properties = properties.map(|property| {
            json!({
                "name": property.name,
                "before": side(&property.before),
                "after": side(&property.after),
            })
        });
        json!({
            "path": one.path,
            "kind": one.kind.name(),
            "isReordered": one.is_reordered,
            "properties": properties.collect::<Vec<_>>(),
        })
    };
    before.differences(after).into_iter().map(describe).collect()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLabel {
    path: String,
    version: String,
    label: String,
    #[serde(default)]
    r#move: bool,
}

fn label(instance: &Instance, call: &Call) -> Result<Reply> {
    let NewLabel { path, version, label, r#move } = call.body()?;
    let path = NodePath::new(&path)?;
    let mut session = instance.repository.session_of(&call.viewer)?;
    let clash = if r#move { LabelClash::Move } else { LabelClash::Refuse };
    session.add_label(&path, &version, &label, clash)?;
    session.commit(&format!("label {version} of {path} as {label}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::nothing())
}

fn unlabel(instance: &Instance, call: &Call) -> Result<Reply> {
    let (path, label) = (call.path("path")?, call.text("label").unwrap_or_default());
    let mut session = instance.repository.session_of(&call.viewer)?;
    if !session.remove_label(&path, label)? {
        let message = format!("no version of `{path}` has the label `{label}`");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    session.commit(&format!("take the label {label} from {path}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::nothing())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RestoredVersion {
    path: String,
    version: String,
    /// A node below, by its relative path.
    #[serde(default, deserialize_with = "given")]
    part: Option<String>,
}

fn restore(instance: &Instance, call: &Call) -> Result<Reply> {
    let RestoredVersion { path, version, part } = call.body()?;
    let path = NodePath::new(&path)?;
    let mut session = begin(instance, call, &path)?;
    let restored = match &part {
        Some(part) => session.restore_part(&path, &version, part, call.now)?,
        None => {
            session.restore(&path, &version, call.now, After::CheckedOut)?;
            path.child("jcr:content")?
        }
    };
    touch_pages(&mut session, [restored.to_string()], call.user(), call.now)?;
    let root = session.commit(&format!("restore {version} of {path}"), call.now)?;
    count(&instance.metrics.commits);
    answer(instance, call, root, &path)
}

fn deleted(_: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    let nodes = snapshot.deleted_nodes(&path)?.into_iter().map(|node| {
        let versions: Vec<Json> = node.versions.iter().map(describe).collect();
        json!({ "path": node.path.as_str(), "versions": versions })
    });
    let answer = json!({ "path": path.as_str(), "nodes": nodes.collect::<Vec<_>>() });
    Ok(Reply::json(answer))
}
