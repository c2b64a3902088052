//! Administration of agents, companions of an activation, and the list of live documents.

use serde_json::{Map, Value as Json, json};
use tympan_content::{JcrDate, NodePath, Privileges, Snapshot, SubtreeScope};
use tympan_replicate::{
    OrphanedDocument, ReferencedDocument, ReplicatedDocument, list_live_documents,
    list_orphaned_documents, list_referenced_documents,
};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::node::find_node;
use crate::api::schema::{
    array_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::Result;
use crate::query::budget::ReadBudget;

/// Maximum number of documents in a response.
const MAX_LISTED_DOCUMENTS: u64 = 1000;

const AGENT_COMMANDS: &[&str] = &["test", "pause", "resume", "clear", "retry"];

/// The API endpoints that this module defines.
pub(crate) const AGENT_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/agents",
        id: "commandAgent",
        description: "Tests the connection of an agent, pauses or resumes its jobs, removes those that are \
            not being sent, or retries all of them now. For administrators.",
        parameters: &[
            EndpointParameter::required(
                "name",
                ParameterKind::Text,
                "The agent's name, as `/api/v1/queue` lists it.",
            ),
            EndpointParameter::required(
                "command",
                ParameterKind::Keyword(AGENT_COMMANDS),
                "The command to run.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("AgentDone", "The result of the command.")],
        handler: EndpointHandler::Async(run_agent_command),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/replication/companions",
        id: "listCompanions",
        description: "Lists the documents that activated documents refer to, with the published state of each \
            and whether it is preselected for activation.",
        parameters: &[
            EndpointParameter::required("path", ParameterKind::Path, "The document."),
            EndpointParameter::new(
                "deep",
                ParameterKind::Flag,
                "Whether all nodes below are activated too.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Companions", "The referenced documents, at most 1,000.")],
        handler: EndpointHandler::Blocking(list_companions),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/replication/live",
        id: "listLive",
        description: "Lists published pages and assets at and below a node: since when, by whom, and whether \
            they have changed since; and those that are still published although they were removed or moved \
            here.",
        parameters: &[
            EndpointParameter::required("path", ParameterKind::Path, "The node."),
            EndpointParameter::new(
                "after",
                ParameterKind::Path,
                "The last document of the previous page.",
            ),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, MAX_LISTED_DOCUMENTS),
                "Page size. Default 100.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("LiveList", "The documents, in content order.")],
        handler: EndpointHandler::Blocking(serve_live_documents),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn agent_schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let document = [
        ("path", text_schema()),
        ("title", text_or_null_schema()),
        ("status", json!({ "enum": ["never", "live", "outdated", "taken-away"] })),
        ("at", text_or_null_schema()),
        ("by", text_or_null_schema()),
    ];
    let orphan = [
        ("path", text_schema()),
        ("movedTo", text_or_null_schema()),
        ("at", text_schema()),
        ("by", text_schema()),
        ("waits", flag()),
    ];
    let kind = json!({ "enum": ["asset", "tag", "template", "fragment", "page", "other"] });
    let more =
        [("kind", kind), ("ticked", flag()), ("allowed", flag()), ("referrer", text_schema())];
    let companion = [&document[..], &more].concat();
    schemas_by_name([
        (
            "AgentDone",
            object_schema(&[
                ("done", flag()),
                ("reason", text_or_null_schema()),
                ("jobs", json!({ "type": "integer", "minimum": 0 })),
            ]),
        ),
        ("Companions", object_schema(&[("companions", array_schema(object_schema(&companion)))])),
        (
            "LiveList",
            object_schema(&[
                ("documents", array_schema(object_schema(&document))),
                ("orphans", array_schema(object_schema(&orphan))),
            ]),
        ),
    ])
}

/// Runs a command on an agent: test, pause, resume, clear or retry.
fn run_agent_command(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("manage agents")?;
        let name = call.parameter("name").unwrap_or_default().to_owned();
        let replicator = &call.instance.replicator;
        let agent = match replicator.find_agent(&name).await {
            Ok(agent) => agent.name,
            Err(error @ tympan_replicate::Error::InvalidAgent { .. }) => {
                return Err(crate::failure::RequestFailure::new(
                    http::StatusCode::NOT_FOUND,
                    error.to_string(),
                ));
            }
            Err(error) => return Err(error.into()),
        };
        let mut jobs = 0;
        let mut is_done = true;
        match call.parameter("command").unwrap_or_default() {
            "test" => {
                if let Err(error) = replicator.test_agent(&agent).await {
                    let reason = tympan_notation::error_chain_text(&error);
                    return Ok(ApiResponse::json(
                        json!({ "done": false, "reason": reason, "jobs": 0 }),
                    ));
                }
            }
            "pause" => replicator.pause_agent(&agent, call.user_name(), call.now).await?,
            "resume" => is_done = replicator.resume_agent(&agent).await?,
            "clear" => jobs = replicator.clear_jobs(&agent).await?,
            _ => jobs = replicator.retry_jobs(&agent, call.now).await?,
        }
        Ok(ApiResponse::json(json!({ "done": is_done, "reason": null, "jobs": jobs })))
    })
}

fn list_companions(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    let node = find_node(&snapshot, &path)?;
    let depth =
        if call.flag_parameter("deep") { SubtreeScope::Subtree } else { SubtreeScope::Document };
    if depth == SubtreeScope::Subtree {
        let engine = instance.query_engine_for(&call.viewer)?;
        ReadBudget::for_memory(engine.limits()).count_subtree(&node)?;
    }
    let limit = usize::try_from(MAX_LISTED_DOCUMENTS).unwrap_or(usize::MAX);
    let companions = list_referenced_documents(&snapshot, &path, depth, limit)?;
    crate::page::check_snapshot_failure(&snapshot)?;
    let companions = companions.iter().map(|companion| companion_json(&snapshot, companion));
    let companions = companions.collect::<Result<Vec<Json>>>()?;
    Ok(ApiResponse::json(json!({ "companions": companions })))
}

/// Describes a companion, and whether the viewer of the snapshot may activate it.
fn companion_json(snapshot: &Snapshot, companion: &ReferencedDocument) -> Result<Json> {
    let is_allowed = snapshot.has_privileges(&companion.document.path, Privileges::REPLICATE)?;
    let mut members = live_document_json(&companion.document);
    if let Some(members) = members.as_object_mut() {
        members.insert("kind".to_owned(), companion.kind.name().into());
        members.insert("ticked".to_owned(), companion.is_preselected.into());
        members.insert("allowed".to_owned(), is_allowed.into());
        members.insert("referrer".to_owned(), companion.referrer.as_str().into());
    }
    Ok(members)
}

fn serve_live_documents(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, path) = (call.pin_snapshot()?, call.path_parameter("path")?);
    find_node(&snapshot, &path)?;
    let after = call.parameter("after").map(|_| call.path_parameter("after")).transpose()?;
    let documents =
        list_live_documents(&snapshot, &path, after.as_ref(), call.number_parameter("limit", 100))?;
    crate::page::check_snapshot_failure(&snapshot)?;
    let documents: Vec<Json> = documents.iter().map(live_document_json).collect();
    let mut left = list_orphaned_documents(&snapshot, &path)?;
    let is_visible =
        |path: &NodePath| snapshot.has_privileges(path, Privileges::READ).unwrap_or(false);
    left.retain(|orphan| is_visible(&orphan.path));
    for orphan in &mut left {
        orphan.moved_to.take_if(|to| !is_visible(to));
    }
    let left: Vec<Json> = left.iter().map(orphan_json).collect();
    Ok(ApiResponse::json(json!({ "documents": documents, "orphans": left })))
}

fn orphan_json(orphan: &OrphanedDocument) -> Json {
    json!({
        "path": orphan.path.as_str(),
        "movedTo": orphan.moved_to.as_ref().map(NodePath::as_str),
        "at": JcrDate::from_system_time(orphan.removed_at).to_string(),
        "by": orphan.removed_by,
        "waits": orphan.awaits_activation,
    })
}

fn live_document_json(live: &ReplicatedDocument) -> Json {
    json!({
        "path": live.path.as_str(),
        "title": live.title,
        "status": live.status.name(),
        "at": live.replicated_at.map(|at| JcrDate::from_system_time(at).to_string()),
        "by": live.replicated_by,
    })
}
