//! `/bin/replicate.json` and the address of tree activations: activates and deactivates.
//!
//! In: `cmd`, one or more `path`, and switches: `deep`, `onlyModified`, `onlyActivated`, `ignoreDeactivated`, `agentId`.
//! Out: Sling's status with the path.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;
use tympan_content::{Node, NodePath, Snapshot};
use tympan_replicate::{ReplicationStatus, read_agents, stamped_status};

use super::aem_request::{AemRequest, PendingAemResponse, missing_node, serve_request};
use super::refusal::not_implemented;
use crate::Instance;
use crate::api::MAX_REQUEST_PATHS;
use crate::failure::{RequestFailure, Result};
use crate::resource_request::serve_resource;
use crate::write::sling_post::PostOutcome;

/// The documents of a tree that an activation leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ActivationFilter {
    /// Leaves out what visitors have in its current state.
    only_modified: bool,
    /// Leaves out what was never activated, or was deactivated since.
    only_activated: bool,
    /// Leaves out what was deactivated.
    ignores_deactivated: bool,
}

impl ActivationFilter {
    fn of_request(request: &AemRequest) -> Self {
        Self {
            only_modified: request.is_set("onlyModified"),
            only_activated: request.is_set("onlyActivated"),
            ignores_deactivated: request.is_set("ignoreDeactivated"),
        }
    }

    fn accepts(self, node: &Node) -> bool {
        match stamped_status(node) {
            ReplicationStatus::Never => !self.only_activated,
            ReplicationStatus::Live => !self.only_modified,
            ReplicationStatus::Outdated => true,
            ReplicationStatus::Deactivated => !self.only_activated && !self.ignores_deactivated,
        }
    }
}

/// What a request asks for.
struct ReplicateParameters {
    /// The name of the action in the JSON API.
    action: &'static str,
    paths: Vec<NodePath>,
    is_deep: bool,
    filter: ActivationFilter,
}

/// Activates or deactivates the paths of a request.
pub(super) fn replicate(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        request.require_post()?;
        let is_deep = request.is_set("deep");
        let outcome = run_replication(&request, is_deep).await;
        Ok(request.status_response(outcome))
    })
}

/// Activates a tree; other requests to the address get the content there.
pub(super) async fn serve_tree_activation(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    if request.method() != http::Method::POST {
        return serve_resource(State(instance), request).await;
    }
    serve_request(&instance, request, |request| {
        Box::pin(async move {
            let outcome = run_replication(&request, true).await;
            Ok(request.status_response(outcome))
        })
    })
    .await
}

async fn run_replication(request: &AemRequest, is_deep: bool) -> Result<PostOutcome> {
    let command = read_command(request, is_deep)?;
    require_agent(request)?;
    let (filter, is_deep, paths) = (command.filter, command.is_deep, command.paths.clone());
    let is_filtered = filter != ActivationFilter::default() && command.action == "activate";
    let targets: Vec<String> = match is_filtered {
        true => {
            request
                .read_content(move |snapshot| filtered_documents(snapshot, &paths, filter, is_deep))
                .await?
        }
        false => paths.iter().map(ToString::to_string).collect(),
    };
    let first = command.paths.first().map(ToString::to_string).unwrap_or_default();
    let message = format!("Replication started for {first}");
    if targets.is_empty() {
        let message = "nothing to replicate: the switches leave out everything".to_owned();
        return Ok(PostOutcome { path: first, message: Some(message), ..PostOutcome::default() });
    }
    let body = json!({
        "action": command.action, "paths": targets, "deep": is_deep && !is_filtered,
    });
    let done = &request.call("replicate", &[], &body).await?;
    let keyword = if command.action == "activate" { "activated" } else { "deactivated" };
    let paths = done["paths"].as_array().into_iter().flatten();
    let changes = paths.filter_map(|path| Some((keyword, vec![path.as_str()?.to_owned()])));
    Ok(PostOutcome {
        path: first,
        message: Some(message),
        changes: changes.collect(),
        ..PostOutcome::default()
    })
}

fn read_command(request: &AemRequest, is_deep: bool) -> Result<ReplicateParameters> {
    let action = match request.required("cmd")?.to_ascii_lowercase().as_str() {
        "activate" => "activate",
        // A deletion also removes the document from the publishers; the author keeps its own.
        "deactivate" | "delete" => "deactivate",
        other => {
            let other: String = other.chars().take(40).collect();
            return not_implemented(format!(
                "`cmd={other}` is not supported; use Activate, Deactivate or Delete"
            ));
        }
    };
    let paths = request.values("path").map(NodePath::new);
    let paths = paths.collect::<tympan_content::Result<Vec<_>>>()?;
    if paths.is_empty() || paths.len() > MAX_REQUEST_PATHS {
        let message = format!("send 1 to {MAX_REQUEST_PATHS} parameters `path`");
        return Err(RequestFailure::bad_request(message));
    }
    Ok(ReplicateParameters {
        action,
        paths,
        is_deep,
        filter: ActivationFilter::of_request(request),
    })
}

/// Refuses a request for one agent of several: every enabled agent sends each request.
fn require_agent(request: &AemRequest) -> Result<()> {
    let Some(wanted) = request.value("agentId") else { return Ok(()) };
    let instance = &request.instance;
    let agents = read_agents(&instance.repository.snapshot()?, instance.role.name())?;
    let mut enabled = agents.iter().filter(|agent| agent.is_enabled);
    match (enabled.next(), enabled.next()) {
        (Some(only), None) if only.name == wanted => Ok(()),
        _ => not_implemented(
            "`agentId` is supported only for the one enabled agent; without it all enabled agents send the request",
        ),
    }
}

/// Returns the pages and assets at, and if requested below, some paths that a filter accepts.
fn filtered_documents(
    snapshot: &Snapshot,
    paths: &[NodePath],
    filter: ActivationFilter,
    is_deep: bool,
) -> Result<Vec<String>> {
    let mut documents = Vec::new();
    for path in paths {
        let top = snapshot.node(path)?.ok_or_else(|| missing_node(path))?;
        let mut add = |node: &Node| -> Result<()> {
            let is_document = matches!(node.primary_type(), "cq:Page" | "dam:Asset");
            if is_document && filter.accepts(node) {
                if documents.len() == MAX_REQUEST_PATHS {
                    return Err(RequestFailure::unprocessable(format!(
                        "more than {MAX_REQUEST_PATHS} documents would be activated; activate parts of the tree"
                    )));
                }
                documents.push(node.path().to_string());
            }
            Ok(())
        };
        add(&top)?;
        if is_deep {
            top.visit_listed_descendants(|node| add(&node))?;
        }
    }
    Ok(documents)
}
