//! Merging a branch into `main`: all of it or some paths, with decisions about conflicts, or as a trial.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{MergeChoice, Merged, NodePath, Side};

use super::revising;
use crate::Instance;
use crate::api::endpoint::{Answer, Body, Call, Endpoint, Handler, Reply, Verb, on_branch};
use crate::api::node::given;
use crate::api::schema::{
    array, conflict_members, named, object, path_schema, reference, sent, text, text_or_null,
};
use crate::failure::{Failure, Result, describe};
use crate::metrics::count;

/// The most paths and decisions of a merge.
const MAX_PATHS: usize = 1000;

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    verb: Verb::Post,
    path: "/api/v1/branches/merge",
    id: "mergeBranch",
    about: "Merges what a branch has changed into `main`, all of it or some paths. Conflicts that nobody decides are \
                listed, and nothing is merged. For administrators.",
    parameters: &[],
    body: Body::Json("Merge"),
    answers: &[Answer::json("Merged", "What was merged, or with `dryRun` would be.")],
    handler: Handler::Work(merge),
}];

/// The schemas of this part.
pub(super) fn schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let name = || json!({ "type": "string", "minLength": 1, "maxLength": 200 });
    let side = || json!({ "enum": ["mine", "theirs"] });
    let kind = json!({ "enum": ["added", "removed", "changed"] });
    let change = object(&[("path", text()), ("kind", kind)]);
    let mut decided = conflict_members();
    decided.push(("side", side()));
    let paths = json!({ "type": "array", "maxItems": MAX_PATHS, "items": path_schema() });
    let decisions = json!({ "type": "object", "propertyNames": path_schema(), "additionalProperties": side(), "maxProperties": MAX_PATHS });
    named([
        (
            "Merge",
            sent(
                &["name"],
                &[
                    ("name", name()),
                    ("only", paths),
                    ("prefer", side()),
                    ("decisions", decisions),
                    ("dryRun", flag()),
                ],
            ),
        ),
        (
            "Merged",
            object(&[
                ("root", text_or_null()),
                ("changes", array(change)),
                ("decided", array(object(&decided))),
                ("conflicts", array(reference("Conflict"))),
            ]),
        ),
    ])
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum SideWord {
    Mine,
    Theirs,
}

impl From<SideWord> for Side {
    fn from(word: SideWord) -> Self {
        match word {
            SideWord::Mine => Self::Mine,
            SideWord::Theirs => Self::Theirs,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Merge {
    name: String,
    #[serde(default)]
    only: Vec<String>,
    #[serde(default, deserialize_with = "given")]
    prefer: Option<SideWord>,
    #[serde(default)]
    decisions: BTreeMap<String, SideWord>,
    #[serde(default)]
    dry_run: bool,
}

fn merge(instance: &Instance, call: &Call) -> Result<Reply> {
    let Merge { name, only, prefer, decisions, dry_run } = call.body()?;
    call.require_administrator("merge branches")?;
    on_branch(&instance.repository, &name)?;
    if only.len() > MAX_PATHS || decisions.len() > MAX_PATHS {
        let message = format!("say at most {MAX_PATHS} paths and {MAX_PATHS} decisions");
        return Err(Failure::bad_request(message));
    }
    let only = only.iter().map(|path| NodePath::new(path)).collect::<Result<Vec<_>, _>>()?;
    let decided = |(path, side): (&String, &SideWord)| Ok((NodePath::new(path)?, (*side).into()));
    let decisions = decisions.iter().map(decided).collect::<Result<_>>()?;
    let choice = MergeChoice { only, prefer: prefer.map(Into::into), decisions };
    if dry_run {
        return Ok(Reply::json(merged_json(&instance.repository.try_merge(&name, &choice)?)));
    }
    let message = format!("merge branch {name}");
    let merged = instance.repository.merge_part(&name, &choice, revising(call, &message))?;
    count(&instance.metrics.commits);
    Ok(Reply::json(merged_json(&merged)))
}

fn merged_json(merged: &Merged) -> Json {
    let changes = merged.changes.iter();
    let changes = changes.map(|(path, kind)| json!({ "path": path.as_str(), "kind": kind.name() }));
    let decided = merged.decided.iter().map(|(one, side)| {
        let mut described = describe(one);
        let side = if *side == Side::Mine { "mine" } else { "theirs" };
        if let Some(described) = described.as_object_mut() {
            described.insert("side".to_owned(), side.into());
        }
        described
    });
    json!({
        "root": merged.root.map(|root| root.to_string()),
        "changes": changes.collect::<Vec<_>>(),
        "decided": decided.collect::<Vec<_>>(),
        "conflicts": merged.conflicts.iter().map(describe).collect::<Vec<_>>(),
    })
}
