//! Wishes: a user activates or deactivates, and jobs for every agent are stored.

use std::time::SystemTime;

use serde_json::json;
use tympan_content::{
    ChunkId, Date, Depth, JCR_CONTENT, Node, NodePath, Property, Repository, Snapshot, Value,
};
use tympan_jobs::{JobId, NewJob, Queues};

use crate::agent::{AgentKind, agents};
use crate::replicator::queue_of;
use crate::{Error, Result};

/// What a user wishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Show it to visitors.
    Activate,
    /// Take it away from visitors, with everything below it.
    Deactivate,
}

impl Action {
    /// Returns AEM's name of the action.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Activate => "Activate",
            Self::Deactivate => "Deactivate",
        }
    }

    /// Finds an action by its name, ignoring case.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        [Self::Activate, Self::Deactivate]
            .into_iter()
            .find(|action| action.name().eq_ignore_ascii_case(name))
    }
}

/// A user's wish about a node and, with [`Depth::Subtree`], everything below it.
#[derive(Debug, Clone)]
pub struct Wish {
    /// What.
    pub action: Action,
    /// Which node.
    pub path: NodePath,
    /// How much of it. A deactivation always takes the whole subtree.
    pub depth: Depth,
    /// Who wishes.
    pub user: String,
}

/// Notes a wish in the content itself: `cq:lastReplicated` and its companions on every page and asset that it
/// covers, in one commit. Returns the root to send from, which every later change leaves as it is.
///
/// # Errors
/// If the node is missing or content fails.
pub fn mark(repository: &Repository, wish: &Wish, now: SystemTime) -> Result<ChunkId> {
    let mut session = repository.session(&wish.user)?;
    let snapshot = session.snapshot()?;
    for path in stamped(&snapshot, wish)? {
        let date = Property::Single(Value::Date(Date::from_system_time(now)));
        session.set_property(&path, "cq:lastReplicated", date)?;
        session.set_property(&path, "cq:lastReplicatedBy", Property::text(&*wish.user))?;
        session.set_property(
            &path,
            "cq:lastReplicationAction",
            Property::text(wish.action.name()),
        )?;
    }
    Ok(session.commit(&format!("{} {}", wish.action.name(), wish.path), now)?)
}

/// Returns the content nodes that carry the stamp: those of pages and assets.
fn stamped(snapshot: &Snapshot, wish: &Wish) -> Result<Vec<NodePath>> {
    let node = snapshot
        .node(&wish.path)?
        .ok_or_else(|| tympan_content::Error::NodeMissing(wish.path.clone()))?;
    let mut nodes = vec![node.clone()];
    if wish.depth == Depth::Subtree || wish.action == Action::Deactivate {
        nodes.extend(node.listed_descendants()?);
    }
    let mut paths = Vec::new();
    for node in nodes {
        if is_stamped(&node) && node.content()?.is_some() {
            paths.push(node.path().child(JCR_CONTENT)?);
        }
    }
    Ok(paths)
}

fn is_stamped(node: &Node) -> bool {
    matches!(node.primary_type(), "cq:Page" | "dam:Asset")
}

/// Stores a job for each enabled agent of the author that talks to a publisher, and returns their numbers.
///
/// # Errors
/// [`Error::Agent`] if there is no agent to send to; errors of the queues.
pub async fn enqueue(
    repository: &Repository,
    queues: &Queues,
    wish: &Wish,
    root: ChunkId,
    now: SystemTime,
) -> Result<Vec<JobId>> {
    let agents = agents(&repository.snapshot()?, "author")?;
    let mut jobs = Vec::new();
    for agent in agents.iter().filter(|agent| agent.is_enabled && agent.kind == AgentKind::Publish)
    {
        let payload = json!({
            "action": wish.action.name(),
            "path": wish.path.as_str(),
            "deep": wish.depth == Depth::Subtree,
            "root": root.to_string(),
        });
        let queue = queue_of("author", &agent.name);
        let job = NewJob {
            queue: &queue,
            topic: "tympan/replicate",
            payload: &payload,
            key: None,
            user: &wish.user,
        };
        jobs.push(queues.add(job, now).await?);
    }
    if jobs.is_empty() {
        let reason =
            "no enabled agent talks to a publisher; add one below `/etc/replication/agents.author`";
        return Err(Error::Agent { agent: "author".to_owned(), reason: reason.to_owned() });
    }
    Ok(jobs)
}
