//! Flushing: a publisher tells its dispatchers which paths changed.

use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tympan_content::{NodePath, Repository};
use tympan_jobs::{Job, NewJob, Queues};
use tympan_web::client::Client;
use tympan_web::flush_message::{Action, FlushMessage};

use crate::agent::{AgentKind, agents};
use crate::replicator::queue_of;
use crate::send::answer_of;
use crate::{Agent, Error, Result};

/// Stores a flush for each changed path and each enabled dispatcher of this publisher; returns how many.
///
/// # Errors
/// If content or the queues fail.
pub async fn enqueue_flushes(
    repository: &Repository,
    queues: &Queues,
    changed: &[NodePath],
    user: &str,
    now: SystemTime,
) -> Result<usize> {
    let snapshot = repository.snapshot()?;
    let agents = agents(&snapshot, "publish")?;
    let mut count = 0;
    for agent in agents.iter().filter(|agent| agent.is_enabled && agent.kind != AgentKind::Publish)
    {
        let queue = queue_of("publish", &agent.name);
        for path in changed {
            let node = snapshot.node(path)?;
            let action = if node.is_some() { "Activate" } else { "Delete" };
            let is_page = node.is_some_and(|node| node.is_page());
            let payload = json!({ "action": action, "path": path.as_str(), "page": is_page });
            let job =
                NewJob { queue: &queue, topic: "tympan/flush", payload: &payload, key: None, user };
            queues.add(job, now).await?;
            count += 1;
        }
    }
    Ok(count)
}

/// Sends one flush.
pub(crate) async fn send_flush(client: &Client, agent: &Agent, job: &Job) -> Result<()> {
    let text = |name: &str| job.payload.get(name).and_then(Json::as_str).unwrap_or_default();
    let path = text("path");
    let action = if text("action") == "Delete" { Action::Delete } else { Action::Activate };
    let is_page = job.payload.get("page").and_then(Json::as_bool).unwrap_or(false);
    let refetch = match agent.kind {
        AgentKind::FlushRefetch if is_page && action == Action::Activate => {
            vec![format!("{path}.html")]
        }
        AgentKind::FlushRefetch | AgentKind::Flush | AgentKind::Publish => Vec::new(),
    };
    let message = FlushMessage {
        action,
        handle: path.to_owned(),
        scope: None,
        refetch,
        sequence: u64::try_from(job.id.0).ok(),
    };
    let malformed = |reason: String| Error::Agent { agent: agent.name.clone(), reason };
    let target: http::Uri =
        agent.target.parse().map_err(|_| malformed(format!("`{}` is no URI", agent.target)))?;
    let host = target.authority().map(ToString::to_string).unwrap_or_default();
    let mut request = message.to_request(&host).map_err(|fault| malformed(fault.to_string()))?;
    *request.uri_mut() = target;
    answer_of(client, &agent.target, request).await.map(|_| ())
}
