//! Merging a branch into `main`: completely or for some paths, with decisions for conflicts, or as a dry run.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{MergeOptions, MergeOutcome, MergeSide, NodePath};

use super::revision_details;
use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, RequestBodySpec,
    ResponseSpec, open_branch_of,
};
use crate::api::node::deserialize_present;
use crate::api::schema::{
    array_schema, conflict_member_schemas, object_schema, partial_object_schema, path_schema,
    reference_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result, conflict_json};
use crate::observe::metrics::increment;

/// Maximum number of paths and decisions in a merge.
const MAX_MERGE_PATHS: usize = 1000;

/// The API endpoints that this module defines.
pub(crate) const MERGE_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Post,
    path: "/api/v1/branches/merge",
    id: "mergeBranch",
    description: "Merges the changes of a branch into `main`, all of them or only some paths. If unresolved \
        conflicts remain, they are listed and nothing is merged. For administrators.",
    parameters: &[],
    body: RequestBodySpec::Json("Merge"),
    responses: &[ResponseSpec::json(
        "Merged",
        "The merged changes, or with `dryRun` those that would be \
        merged.",
    )],
    handler: EndpointHandler::Blocking(merge_branch),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn merge_schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let name = || json!({ "type": "string", "minLength": 1, "maxLength": 200 });
    let side = || json!({ "enum": ["mine", "theirs"] });
    let kind = json!({ "enum": ["added", "removed", "changed"] });
    let change = object_schema(&[("path", text_schema()), ("kind", kind)]);
    let mut decided = conflict_member_schemas();
    decided.push(("side", side()));
    let paths = json!({ "type": "array", "maxItems": MAX_MERGE_PATHS, "items": path_schema() });
    let decisions = json!({ "type": "object", "propertyNames": path_schema(), "additionalProperties": side(), "maxProperties": MAX_MERGE_PATHS });
    schemas_by_name([
        (
            "Merge",
            partial_object_schema(
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
            object_schema(&[
                ("root", text_or_null_schema()),
                ("changes", array_schema(change)),
                ("decided", array_schema(object_schema(&decided))),
                ("conflicts", array_schema(reference_schema("Conflict"))),
            ]),
        ),
    ])
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum MergeSideKeyword {
    Mine,
    Theirs,
}

impl From<MergeSideKeyword> for MergeSide {
    fn from(keyword: MergeSideKeyword) -> Self {
        match keyword {
            MergeSideKeyword::Mine => Self::Ours,
            MergeSideKeyword::Theirs => Self::Theirs,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct BranchMergeRequest {
    name: String,
    #[serde(default)]
    only: Vec<String>,
    #[serde(default, deserialize_with = "deserialize_present")]
    prefer: Option<MergeSideKeyword>,
    #[serde(default)]
    decisions: BTreeMap<String, MergeSideKeyword>,
    #[serde(default)]
    dry_run: bool,
}

fn merge_branch(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let BranchMergeRequest { name, only, prefer, decisions, dry_run } = call.parse_body()?;
    call.require_administrator("merge branches")?;
    open_branch_of(&instance.repository, &name)?;
    if only.len() > MAX_MERGE_PATHS || decisions.len() > MAX_MERGE_PATHS {
        let message =
            format!("specify at most {MAX_MERGE_PATHS} paths and {MAX_MERGE_PATHS} decisions");
        return Err(RequestFailure::bad_request(message));
    }
    let only = only.iter().map(|path| NodePath::new(path)).collect::<Result<Vec<_>, _>>()?;
    let decided =
        |(path, side): (&String, &MergeSideKeyword)| Ok((NodePath::new(path)?, (*side).into()));
    let decisions = decisions.iter().map(decided).collect::<Result<_>>()?;
    let choice =
        MergeOptions { included_paths: only, default_side: prefer.map(Into::into), decisions };
    if dry_run {
        return Ok(ApiResponse::json(merge_outcome_json(
            &instance.repository.preview_merge(&name, &choice)?,
        )));
    }
    let message = format!("merge branch {name}");
    let merged =
        instance.repository.merge_branch_part(&name, &choice, revision_details(call, &message))?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::json(merge_outcome_json(&merged)))
}

fn merge_outcome_json(merged: &MergeOutcome) -> Json {
    let changes = merged.document_changes.iter();
    let changes = changes.map(|(path, kind)| json!({ "path": path.as_str(), "kind": kind.name() }));
    let decided = merged.resolved_conflicts.iter().map(|(conflict, side)| {
        let mut described = conflict_json(conflict);
        let side = if *side == MergeSide::Ours { "mine" } else { "theirs" };
        if let Some(described) = described.as_object_mut() {
            described.insert("side".to_owned(), side.into());
        }
        described
    });
    json!({
        "root": merged.root.map(|root| root.to_string()),
        "changes": changes.collect::<Vec<_>>(),
        "decided": decided.collect::<Vec<_>>(),
        "conflicts": merged.conflicts.iter().map(conflict_json).collect::<Vec<_>>(),
    })
}
