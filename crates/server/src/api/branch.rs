//! Branches and launches: begun at any instant, compared, merged back whole or in part, promoted; and the history.
//!
//! Invariants
//! * Content of a branch is read and edited like that of `main` (parameter `branch`), and shows no more of it.
//! * Making, merging, promoting and removing a branch is for administrators, and so is the history: these work on the
//!   whole content, whatever policies say of its parts.

mod merge;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    Branch, ChangeKind, ChunkId, Date, Node, PathChange, Revising, Snapshot, Subtree,
};

pub(crate) use self::merge::ENDPOINTS as MERGES;
use crate::Instance;
use crate::api::endpoint::{
    Answer, BRANCH, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb, on_branch,
};
use crate::api::node::{given, own_tree};
use crate::api::schema::{
    array, count as number, named, object, reference, sent, text, text_or_null,
};
use crate::api::version::differences;
use crate::failure::{Failure, Result};
use crate::metrics::count;

const NAME: Parameter = Parameter::required("name", Kind::Text, "The branch.");
/// The most changes of one answer.
const MAX_CHANGES: u64 = 10_000;
/// The branch that all others come from.
const MAIN: &str = "main";

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/branches",
        id: "listBranches",
        about: "Lists the branches.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Branches", "The branches, by name.")],
        handler: Handler::Work(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/branches",
        id: "createBranch",
        about: "Makes a branch that begins as another is now, as it was at an instant, or at a root of the history. For \
                administrators.",
        parameters: &[],
        body: Body::Json("NewBranch"),
        answers: &[Answer::created("Branch", "It is there now.")],
        handler: Handler::Work(create),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/branches",
        id: "deleteBranch",
        about: "Removes a branch; its history is kept for a while. For administrators.",
        parameters: &[NAME],
        body: Body::None,
        answers: &[Answer::nothing(204, "It is gone.")],
        handler: Handler::Work(delete),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/branches/diff",
        id: "compareBranch",
        about: "Lists what a branch has changed since it was made or last merged, as far as the asker may read.",
        parameters: &[
            NAME,
            Parameter::new("path", Kind::Path, "Only this node and what is below it."),
            Parameter::new(
                "details",
                Kind::Flag,
                "Whether to tell what differs in each document. Default false.",
            ),
            Parameter::new(
                "limit",
                Kind::Integer(1, MAX_CHANGES),
                "The most changes. Default 1000.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("BranchChanges", "The documents that differ, by path.")],
        handler: Handler::Work(compare),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/branches/promote",
        id: "promoteBranch",
        about: "Makes `main` as a branch is. Refused (409) if `main` has changed since, unless `replace` says to drop \
                that. For administrators.",
        parameters: &[],
        body: Body::Json("Promotion"),
        answers: &[Answer::json("Branch", "`main` as it is now.")],
        handler: Handler::Work(promote),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/revisions",
        id: "listRevisions",
        about: "Lists the history of a branch, the newest revision first. For administrators.",
        parameters: &[
            BRANCH,
            Parameter::new(
                "before",
                Kind::Integer(0, i64::MAX as u64),
                "Only revisions with smaller numbers.",
            ),
            Parameter::new("limit", Kind::Integer(1, 1000), "The length of the page. Default 100."),
        ],
        body: Body::None,
        answers: &[Answer::json("Revisions", "The revisions.")],
        handler: Handler::Work(revisions),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let name = || json!({ "type": "string", "minLength": 1, "maxLength": 200 });
    let kind = || json!({ "enum": ["added", "removed", "changed"] });
    let root = json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" });
    let mut all = named([
        ("Branches", object(&[("branches", array(reference("Branch")))])),
        ("Branch", object(&[("name", text()), ("root", text()), ("base", text_or_null())])),
        (
            "NewBranch",
            sent(
                &["name"],
                &[
                    ("name", name()),
                    ("from", name()),
                    ("at", crate::api::schema::time()),
                    ("root", root),
                ],
            ),
        ),
        (
            "BranchChanges",
            object(&[
                ("name", text()),
                (
                    "changes",
                    array(sent(
                        &["path", "kind"],
                        &[
                            ("path", text()),
                            ("kind", kind()),
                            ("nodes", array(reference("NodeDifference"))),
                        ],
                    )),
                ),
                ("isComplete", flag()),
            ]),
        ),
        ("Promotion", sent(&["name"], &[("name", name()), ("replace", flag())])),
        (
            "Revisions",
            object(&[(
                "revisions",
                array(object(&[
                    ("sequence", number()),
                    ("time", text()),
                    ("user", text()),
                    ("message", text()),
                    ("root", text_or_null()),
                ])),
            )]),
        ),
    ]);
    all.extend(merge::schemas());
    all
}

fn describe(branch: &Branch) -> Json {
    json!({
        "name": branch.name,
        "root": branch.root.to_string(),
        "base": branch.base.map(|base| base.to_string()),
    })
}

fn list(instance: &Instance, _: &Call) -> Result<Reply> {
    let branches = instance.repository.branches()?;
    let branches: Vec<Json> = branches.iter().map(describe).collect();
    Ok(Reply::json(json!({ "branches": branches })))
}

fn read_branch(instance: &Instance, name: &str) -> Result<Json> {
    let branches = instance.repository.branches()?;
    let missing = || Failure::new(StatusCode::NOT_FOUND, format!("there is no branch `{name}`"));
    Ok(describe(branches.iter().find(|branch| branch.name == name).ok_or_else(missing)?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBranch {
    name: String,
    #[serde(default, deserialize_with = "given")]
    from: Option<String>,
    #[serde(default, deserialize_with = "given")]
    at: Option<String>,
    #[serde(default, deserialize_with = "given")]
    root: Option<String>,
}

fn create(instance: &Instance, call: &Call) -> Result<Reply> {
    let NewBranch { name, from, at, root } = call.body()?;
    call.require_administrator("make branches")?;
    let from = on_branch(&instance.repository, from.as_deref().unwrap_or(MAIN))?;
    let message = format!("create branch {name}");
    let revising = revising(call, &message);
    match (at, root) {
        (None, None) => from.create_branch(&name, revising)?,
        (Some(at), None) => {
            let root = from.root_at(Date::parse(&at)?.to_system_time())?;
            from.create_branch_at(&name, root, revising)?
        }
        (None, Some(root)) => from.create_branch_at(&name, read_root(&root)?, revising)?,
        (Some(_), Some(_)) => {
            let message = "say either `at` or `root`, not both";
            return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
    };
    count(&instance.metrics.commits);
    Ok(Reply::created(read_branch(instance, &name)?))
}

fn read_root(text: &str) -> Result<ChunkId> {
    text.parse()
        .map_err(|_| Failure::bad_request(format!("`{text}` is no root: 64 digits of 0-9a-f")))
}

fn revising<'a>(call: &'a Call, message: &'a str) -> Revising<'a> {
    Revising { user: call.user(), message, at: call.now }
}

fn delete(instance: &Instance, call: &Call) -> Result<Reply> {
    let name = call.text("name").unwrap_or_default();
    call.require_administrator("remove branches")?;
    on_branch(&instance.repository, name)?;
    let message = format!("delete branch {name}");
    instance.repository.delete_branch(name, revising(call, &message))?;
    count(&instance.metrics.commits);
    Ok(Reply::nothing())
}

fn compare(instance: &Instance, call: &Call) -> Result<Reply> {
    let name = call.text("name").unwrap_or_default();
    on_branch(&instance.repository, name)?;
    let [before, after] = instance.repository.launched(name)?;
    let seen = [before.seen_by(&call.viewer), after.seen_by(&call.viewer)];
    let (below, limit) = (call.path("path")?, call.number("limit", 1000));
    let mut changes = Vec::new();
    let mut is_complete = true;
    for change in before.diff(&after) {
        let change = change?;
        if !change.path.is_within(&below) {
            continue;
        }
        let Some(described) = describe_change(&seen, &change, call.flag("details"))? else {
            continue;
        };
        if changes.len() >= limit {
            is_complete = false;
            break;
        }
        changes.push(described);
    }
    Ok(Reply::json(json!({ "name": name, "changes": changes, "isComplete": is_complete })))
}

/// Describes a changed document as far as the asker sees it; nothing of a change that it does not see.
fn describe_change(
    [before, after]: &[Snapshot; 2],
    change: &PathChange,
    has_details: bool,
) -> Result<Option<Json>> {
    let (old, new) = (before.node(&change.path)?, after.node(&change.path)?);
    let (kind, nodes) = match (&old, &new) {
        (None, None) => return Ok(None),
        (None, Some(node)) => (ChangeKind::Added, differences(&Subtree::default(), &own(node)?)),
        (Some(node), None) => (ChangeKind::Removed, differences(&own(node)?, &Subtree::default())),
        (Some(old), Some(new)) => {
            let nodes = differences(&own(old)?, &own(new)?);
            if nodes.is_empty() && !change.is_reordered_only() {
                return Ok(None);
            }
            (ChangeKind::Changed, nodes)
        }
    };
    let mut described = json!({ "path": change.path.as_str(), "kind": kind.name() });
    if let (true, Some(described)) = (has_details, described.as_object_mut()) {
        described.insert("nodes".to_owned(), nodes.into());
    }
    Ok(Some(described))
}

fn own(node: &Node) -> Result<Subtree> {
    own_tree(node)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Promotion {
    name: String,
    #[serde(default)]
    replace: bool,
}

fn promote(instance: &Instance, call: &Call) -> Result<Reply> {
    let Promotion { name, replace } = call.body()?;
    call.require_administrator("promote branches")?;
    on_branch(&instance.repository, &name)?;
    let [base, branch] = instance.repository.launched(&name)?;
    let is_moved = base.diff(&instance.repository.snapshot()?).next().is_some();
    if is_moved && !replace {
        let message = format!(
            "`main` was changed since `{name}` was made or last merged; merge the branch, or say `replace` to drop that"
        );
        return Err(Failure::new(StatusCode::CONFLICT, message));
    }
    let message = format!("promote branch {name}");
    instance.repository.revert_to(branch.root_id(), revising(call, &message))?;
    count(&instance.metrics.commits);
    Ok(Reply::json(read_branch(instance, MAIN)?))
}

fn revisions(_: &Instance, call: &Call) -> Result<Reply> {
    call.require_administrator("read the history")?;
    let before = call.text("before").and_then(|text| text.parse().ok());
    let revisions = call.repository()?.revisions(before, call.number("limit", 100))?;
    let revisions = revisions.iter().map(|revision| {
        json!({
            "sequence": revision.sequence,
            "time": Date::from_system_time(revision.update.at).to_string(),
            "user": revision.update.author,
            "message": revision.update.message,
            "root": revision.update.new.map(|root| root.to_string()),
        })
    });
    Ok(Reply::json(json!({ "revisions": revisions.collect::<Vec<_>>() })))
}
