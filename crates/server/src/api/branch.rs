//! Branches and launches: created at any point in time, compared, merged completely or in part, and promoted; and the
//! history.
//!
//! Invariants
//! * Content of a branch is read and edited like that of `main` (parameter `branch`), under the same access control.
//! * Only administrators may create, merge, promote and remove branches, and read the history: these operations work on
//!   the whole content, regardless of policies.

pub(super) mod merge;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    BranchState, ChangeKind, ChunkId, JcrDate, Node, PathChange, RevisionDetails, Snapshot, Subtree,
};

use crate::Instance;
use crate::api::document_tree::read_document_tree;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler, EndpointMethod,
    EndpointParameter, ParameterKind, RequestBodySpec, ResponseSpec, open_branch_of,
};
use crate::api::node::deserialize_present;
use crate::api::schema::{
    array_schema, count_schema as number, object_schema, partial_object_schema, reference_schema,
    schemas_by_name, text_or_null_schema, text_schema,
};
use crate::api::version::subtree_differences_json;
use crate::failure::{RequestFailure, Result};
use crate::observe::metrics::increment;
use crate::query::budget::ReadBudget;

const NAME_PARAMETER: EndpointParameter =
    EndpointParameter::required("name", ParameterKind::Text, "The branch.");
/// Maximum number of changes in a response.
const MAX_LISTED_CHANGES: u64 = 10_000;
/// The advice where a comparison reads too much.
const NARROWER_COMPARISON: &str = "specify a `path` with fewer changes, or a lower `limit`";
/// The branch that all other branches are created from.
const MAIN_BRANCH: &str = "main";

/// The API endpoints that this module defines.
pub(crate) const BRANCH_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/branches",
        id: "listBranches",
        description: "Lists the branches.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Branches", "The branches, by name.")],
        handler: EndpointHandler::Blocking(list_branches),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/branches",
        id: "createBranch",
        description: "Creates a branch from the current state of another one, its state at an instant, or a \
            root of its history. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Json("NewBranch"),
        responses: &[ResponseSpec::created_json("Branch", "The branch was created.")],
        handler: EndpointHandler::Blocking(create_branch),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/branches",
        id: "deleteBranch",
        description: "Removes a branch; its history is kept for a while. For administrators.",
        parameters: &[NAME_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::empty(204, "The branch was removed.")],
        handler: EndpointHandler::Blocking(delete_branch),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/branches/diff",
        id: "compareBranch",
        description: "Lists what a branch has changed since it was created or last merged, limited to what \
            the caller may read. Stopped (422) by the limits of the caller's queries.",
        parameters: &[
            NAME_PARAMETER,
            EndpointParameter::new(
                "path",
                ParameterKind::Path,
                "Only this node and what is below it.",
            ),
            EndpointParameter::new(
                "details",
                ParameterKind::Flag,
                "Whether to list the differences within each document. Default false.",
            ),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, MAX_LISTED_CHANGES),
                "Maximum number of changes. Default 1000.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("BranchChanges", "The documents that differ, by path.")],
        handler: EndpointHandler::Blocking(compare_branches),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/branches/promote",
        id: "promoteBranch",
        description: "Sets `main` to the state of a branch. Refused (409) if `main` has changed since, unless \
            `replace` allows discarding those changes. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Json("Promotion"),
        responses: &[ResponseSpec::json("Branch", "The updated `main`.")],
        handler: EndpointHandler::Blocking(promote_branch),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/revisions",
        id: "listRevisions",
        description: "Lists the history of a branch, the newest revision first. For administrators.",
        parameters: &[
            BRANCH_PARAMETER,
            EndpointParameter::new(
                "before",
                ParameterKind::Integer(0, i64::MAX as u64),
                "Only revisions with smaller numbers.",
            ),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, 1000),
                "Page size. Default 100.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Revisions", "The revisions.")],
        handler: EndpointHandler::Blocking(list_revisions),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn branch_schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let name = || json!({ "type": "string", "minLength": 1, "maxLength": 200 });
    let kind = || json!({ "enum": ["added", "removed", "changed"] });
    let root = json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" });
    schemas_by_name([
        ("Branches", object_schema(&[("branches", array_schema(reference_schema("Branch")))])),
        (
            "Branch",
            object_schema(&[
                ("name", text_schema()),
                ("root", text_schema()),
                ("base", text_or_null_schema()),
            ]),
        ),
        (
            "NewBranch",
            partial_object_schema(
                &["name"],
                &[
                    ("name", name()),
                    ("from", name()),
                    ("at", crate::api::schema::time_schema()),
                    ("root", root),
                ],
            ),
        ),
        (
            "BranchChanges",
            object_schema(&[
                ("name", text_schema()),
                (
                    "changes",
                    array_schema(partial_object_schema(
                        &["path", "kind"],
                        &[
                            ("path", text_schema()),
                            ("kind", kind()),
                            ("nodes", array_schema(reference_schema("NodeDifference"))),
                        ],
                    )),
                ),
                ("isComplete", flag()),
            ]),
        ),
        ("Promotion", partial_object_schema(&["name"], &[("name", name()), ("replace", flag())])),
        (
            "Revisions",
            object_schema(&[(
                "revisions",
                array_schema(object_schema(&[
                    ("sequence", number()),
                    ("time", text_schema()),
                    ("user", text_schema()),
                    ("message", text_schema()),
                    ("root", text_or_null_schema()),
                ])),
            )]),
        ),
    ])
}

fn branch_json(branch: &BranchState) -> Json {
    json!({
        "name": branch.name,
        "root": branch.root.to_string(),
        "base": branch.base.map(|base| base.to_string()),
    })
}

fn list_branches(instance: &Instance, _: &ApiRequest) -> Result<ApiResponse> {
    let branches = instance.repository.branches()?;
    let branches: Vec<Json> = branches.iter().map(branch_json).collect();
    Ok(ApiResponse::json(json!({ "branches": branches })))
}

fn read_branch(instance: &Instance, name: &str) -> Result<Json> {
    let branches = instance.repository.branches()?;
    let missing =
        || RequestFailure::new(StatusCode::NOT_FOUND, format!("there is no branch `{name}`"));
    Ok(branch_json(branches.iter().find(|branch| branch.name == name).ok_or_else(missing)?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBranch {
    name: String,
    #[serde(default, deserialize_with = "deserialize_present")]
    from: Option<String>,
    #[serde(default, deserialize_with = "deserialize_present")]
    at: Option<String>,
    #[serde(default, deserialize_with = "deserialize_present")]
    root: Option<String>,
}

fn create_branch(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let NewBranch { name, from, at, root } = call.parse_body()?;
    call.require_administrator("create branches")?;
    let from = open_branch_of(&instance.repository, from.as_deref().unwrap_or(MAIN_BRANCH))?;
    let message = format!("create branch {name}");
    let revising = revision_details(call, &message);
    match (at, root) {
        (None, None) => from.create_branch(&name, revising)?,
        (Some(at), None) => {
            let root = from.root_at_time(JcrDate::parse(&at)?.to_system_time())?;
            from.create_branch_at(&name, root, revising)?
        }
        (None, Some(root)) => from.create_branch_at(&name, parse_root(&root)?, revising)?,
        (Some(_), Some(_)) => {
            let message = "specify either `at` or `root`, not both";
            return Err(RequestFailure::new(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
    };
    increment(&instance.metrics.commits);
    Ok(ApiResponse::created(read_branch(instance, &name)?))
}

fn parse_root(text: &str) -> Result<ChunkId> {
    text.parse().map_err(|_| {
        RequestFailure::bad_request(format!(
            "`{text}` is not a valid root: it must have 64 digits of 0-9a-f"
        ))
    })
}

fn revision_details<'a>(call: &'a ApiRequest, message: &'a str) -> RevisionDetails<'a> {
    RevisionDetails { user: call.user_name(), message, time: call.now }
}

fn delete_branch(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let name = call.parameter("name").unwrap_or_default();
    call.require_administrator("remove branches")?;
    open_branch_of(&instance.repository, name)?;
    let message = format!("delete branch {name}");
    instance.repository.delete_branch(name, revision_details(call, &message))?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::empty())
}

fn compare_branches(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let name = call.parameter("name").unwrap_or_default();
    open_branch_of(&instance.repository, name)?;
    let [before, after] = instance.repository.branch_change_states(name)?;
    let snapshots = [before.as_viewer(&call.viewer), after.as_viewer(&call.viewer)];
    let (below, limit) = (call.path_parameter("path")?, call.number_parameter("limit", 1000));
    let has_details = call.flag_parameter("details");
    let limits = instance.query_engine_for(&call.viewer)?.limits();
    let mut budget = ReadBudget::for_reading(limits);
    let mut changes = Vec::new();
    let mut listed_nodes = 0;
    let mut is_complete = true;
    for change in before.changed_documents_within(&after, &below)? {
        let described = changed_document_json(&snapshots, &change?, has_details, &mut budget)?;
        let Some(described) = described else { continue };
        if changes.len() >= limit || listed_nodes >= limits.max_rows_in_memory {
            is_complete = false;
            break;
        }
        listed_nodes += described.get("nodes").and_then(Json::as_array).map_or(0, Vec::len);
        changes.push(described);
    }
    Ok(ApiResponse::json(json!({ "name": name, "changes": changes, "isComplete": is_complete })))
}

/// Describes a changed document as far as the requesting user may read it; `None` if the user cannot see the change.
fn changed_document_json(
    [before, after]: &[Snapshot; 2],
    change: &PathChange,
    has_details: bool,
    budget: &mut ReadBudget,
) -> Result<Option<Json>> {
    let (old, new) = (before.node(&change.path)?, after.node(&change.path)?);
    budget.count_nodes(1, NARROWER_COMPARISON)?;
    let mut read = |node: &Node| {
        let tree = read_document_tree(node)?;
        budget.count_nodes(tree.node_count(), NARROWER_COMPARISON)?;
        Ok::<_, RequestFailure>(tree)
    };
    let (kind, nodes) = match (&old, &new) {
        (None, None) => return Ok(None),
        (None, Some(node)) => {
            (ChangeKind::Added, subtree_differences_json(&Subtree::default(), &read(node)?))
        }
        (Some(node), None) => {
            (ChangeKind::Removed, subtree_differences_json(&read(node)?, &Subtree::default()))
        }
        (Some(old), Some(new)) => {
            let nodes = subtree_differences_json(&read(old)?, &read(new)?);
            if nodes.is_empty() && !change.is_reorder_only() {
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BranchPromotionRequest {
    name: String,
    #[serde(default)]
    replace: bool,
}

fn promote_branch(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let BranchPromotionRequest { name, replace } = call.parse_body()?;
    call.require_administrator("promote branches")?;
    open_branch_of(&instance.repository, &name)?;
    let [base, branch] = instance.repository.branch_change_states(&name)?;
    let is_moved = base.changed_documents(&instance.repository.snapshot()?).next().is_some();
    if is_moved && !replace {
        let message = format!(
            "`main` was changed since `{name}` was created or last merged; merge the branch, or set `replace` \
             to discard those changes"
        );
        return Err(RequestFailure::new(StatusCode::CONFLICT, message));
    }
    let message = format!("promote branch {name}");
    instance.repository.revert_to_root(branch.root_id(), revision_details(call, &message))?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::json(read_branch(instance, MAIN_BRANCH)?))
}

fn list_revisions(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("read the history")?;
    let before = call.parameter("before").and_then(|text| text.parse().ok());
    let revisions = call.open_branch()?.revisions(before, call.number_parameter("limit", 100))?;
    let revisions = revisions.iter().map(|revision| {
        json!({
            "sequence": revision.sequence,
            "time": JcrDate::from_system_time(revision.update.updated_at).to_string(),
            "user": revision.update.author,
            "message": revision.update.message,
            "root": revision.update.new_root.map(|root| root.to_string()),
        })
    });
    Ok(ApiResponse::json(json!({ "revisions": revisions.collect::<Vec<_>>() })))
}
