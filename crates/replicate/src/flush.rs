//! Flushing: a publisher tells its dispatchers which paths changed.

use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tympan_content::Repository;
use tympan_jobs::{Job, NewJob, Queues};
use tympan_web::client::Client;
use tympan_web::flush_message::{Action, FlushMessage};

use crate::agent::{AgentKind, agents};
use crate::message::parse_chunk_id;
use crate::replicator::topic_of;
use crate::send::{answer_of, blocking};
use crate::{Agent, Error, Result};

/// The follower that turns what changed on a publisher into flushes.
const FOLLOWER: &str = "flush";

/// Stores a flush for each document that changed since the last call and for each enabled dispatcher of this publisher;
/// returns how many. The root that was followed so far is stored with the flushes, so that none is lost or doubled,
/// whenever the process ends. The first call only notes where to begin.
///
/// # Errors
/// If content or the queues fail.
pub async fn follow(repository: &Repository, queues: &Queues, now: SystemTime) -> Result<usize> {
    loop {
        let from = queues.digested(FOLLOWER).await?;
        let (reading, begin) = (repository.clone(), from.clone());
        let (to, flushes) = blocking(move || flushes_since(&reading, begin.as_deref())).await??;
        if from.as_deref() == Some(&*to) {
            return Ok(0);
        }
        let count = flushes.len();
        let jobs = flushes
            .into_iter()
            .map(|(topic, payload)| NewJob::new(topic, payload).user("replication"));
        if queues.digest(FOLLOWER, (from.as_deref(), &to), jobs.collect(), now).await? {
            return Ok(count);
        }
    }
}

/// Returns the newest root, and the topic and properties of each flush that leads there from an older one.
fn flushes_since(
    repository: &Repository,
    from: Option<&str>,
) -> Result<(String, Vec<(String, Json)>)> {
    let now = repository.snapshot()?;
    let to = now.root_id().to_string();
    let Some(from) = from.filter(|from| *from != to) else { return Ok((to, Vec::new())) };
    let before = repository.snapshot_at(parse_chunk_id(from)?)?;
    let agents = agents(&now, "publish")?;
    let mut flushes = Vec::new();
    for path in before.changed_paths(&now)? {
        let node = now.node(&path)?;
        let action = if node.is_some() { "Activate" } else { "Delete" };
        let is_page = node.is_some_and(|node| node.is_page());
        let payload = json!({ "action": action, "path": path.as_str(), "page": is_page });
        for agent in &agents {
            if agent.is_enabled && agent.kind != AgentKind::Publish {
                flushes.push((topic_of("publish", &agent.name), payload.clone()));
            }
        }
    }
    Ok((to, flushes))
}

/// Sends one flush.
pub(crate) async fn send_flush(client: &Client, agent: &Agent, job: &Job) -> Result<()> {
    let text = |name: &str| job.properties.get(name).and_then(Json::as_str).unwrap_or_default();
    let path = text("path");
    let action = if text("action") == "Delete" { Action::Delete } else { Action::Activate };
    let is_page = job.properties.get("page").and_then(Json::as_bool).unwrap_or(false);
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
