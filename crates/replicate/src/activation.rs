//! Wishes: a user activates or deactivates, and jobs for every agent are stored.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tympan_content::{
    After, CheckIn, ChunkId, Date, Depth, JCR_CONTENT, Node, NodePath, Privileges, Property,
    Repository, Session, Snapshot, Value, Viewer,
};
use tympan_jobs::{JobId, NewJob, Queues};

use crate::agent::{AgentKind, agents};
use crate::replicator::topic_of;
use crate::send::blocking;
use crate::tree::{TREES, is_in_parts, note_with_trees, tree_payload};
use crate::{Agent, Error, Result};

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

/// Whether what is activated is kept as a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keeping {
    /// Every page and asset whose newest version is not what is activated gets one.
    #[default]
    Version,
    /// No versions are made.
    Nothing,
}

/// Notes wishes in the content itself: `cq:lastReplicated` and its companions on every page and asset that they cover,
/// in one commit, which keeps what is activated as a version. Returns the root to send from, which every later change
/// leaves as it is.
///
/// # Errors
/// If a node to activate is missing or content fails.
pub fn mark(repository: &Repository, wishes: &[Wish], now: SystemTime) -> Result<ChunkId> {
    mark_keeping(repository, wishes, Keeping::Version, now)
}

/// Does the same as [`mark`], with the choice whether versions are kept.
///
/// # Errors
/// If a node to activate is missing or content fails.
pub fn mark_keeping(
    repository: &Repository,
    wishes: &[Wish],
    keeping: Keeping,
    now: SystemTime,
) -> Result<ChunkId> {
    let Some(first) = wishes.first() else { return Ok(repository.head()?) };
    let user = &first.user;
    let mut session = repository.session(user)?;
    let taken_away = wishes.iter().filter(|wish| wish.action == Action::Deactivate);
    session.note_replication(taken_away.map(|wish| wish.path.clone()).collect());
    let snapshot = session.snapshot()?;
    let mut message = String::new();
    for wish in wishes {
        session.note_activated(unstamped(&snapshot, wish)?, now);
        for path in stamped(&snapshot, wish)? {
            if wish.action == Action::Activate
                && keeping == Keeping::Version
                && let Some(document) = path.parent()
            {
                let comment = "activated";
                let check_in = CheckIn { comment, at: now, after: After::CheckedOut };
                session.keep_version(&document, &check_in)?;
            }
            stamp(&mut session, &path, (wish.action, &wish.user), now)?;
        }
        message = format!("{} {}", wish.action.name(), wish.path);
    }
    Ok(session.commit(&message, now)?)
}

/// Returns who it is in whose name something is done later. No account has the program's own name.
///
/// # Errors
/// If content fails.
pub(crate) fn viewer_of(repository: &Repository, user: &str) -> Result<Viewer> {
    if user == Viewer::system().name() {
        return Ok(Viewer::system());
    }
    Ok(repository.viewer(Some(user))?)
}

/// Refuses a wish that the viewer of a snapshot may not have: it takes `crx:replicate` at each document that an activation
/// shows or a deactivation takes away.
///
/// # Errors
/// Access denied, with the first document where the privilege is missing; with the node of the wish where the viewer does
/// not see that document. If content fails.
pub fn require_replicate(seen: &Snapshot, wish: &Wish) -> Result<()> {
    let denied = |path: &NodePath| {
        let (path, privilege) = (path.clone(), "crx:replicate");
        Err(tympan_content::Error::AccessDenied { path, privilege }.into())
    };
    if !seen.allows(&wish.path, Privileges::REPLICATE)? {
        return denied(&wish.path);
    }
    if wish.depth == Depth::Document && wish.action == Action::Activate {
        return Ok(());
    }
    let whole = seen.seen_by(&Viewer::system());
    let Some(top) = whole.node(&wish.path)? else { return Ok(()) };
    let is_shown = |node: &Node| node.summary().is_some_and(|summary| summary.is_activated());
    top.visit_listed_descendants(|node| {
        let is_concerned = wish.action == Action::Activate || is_shown(&node);
        if is_concerned && !seen.allows(node.path(), Privileges::REPLICATE)? {
            let is_seen = seen.would_see(node.path(), node.primary_type());
            return denied(if is_seen { node.path() } else { &wish.path });
        }
        Ok(())
    })
}

/// Notes on the content of a page or an asset what was said about it last.
pub(crate) fn stamp(
    session: &mut Session,
    content: &NodePath,
    (action, user): (Action, &str),
    at: SystemTime,
) -> Result<()> {
    let date = Property::Single(Value::Date(Date::from_system_time(at)));
    session.set_property(content, "cq:lastReplicated", date)?;
    session.set_property(content, "cq:lastReplicatedBy", Property::text(user))?;
    session.set_property(content, "cq:lastReplicationAction", Property::text(action.name()))?;
    Ok(())
}

/// Returns the content nodes that carry the stamp: those of pages and assets.
fn stamped(snapshot: &Snapshot, wish: &Wish) -> Result<Vec<NodePath>> {
    let node = match (snapshot.node(&wish.path)?, wish.action) {
        (Some(node), _) => node,
        // What was deleted here can still be taken away from visitors.
        (None, Action::Deactivate) => return Ok(Vec::new()),
        (None, Action::Activate) => {
            return Err(tympan_content::Error::NodeMissing(wish.path.clone()).into());
        }
    };
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

/// Returns the documents that an activation covers and that carry no stamps: folders, tags, templates and others. Policies go
/// with what they are for.
fn unstamped(snapshot: &Snapshot, wish: &Wish) -> Result<Vec<NodePath>> {
    let mut paths = Vec::new();
    if wish.action == Action::Deactivate {
        return Ok(paths);
    }
    let Some(node) = snapshot.node(&wish.path)? else { return Ok(paths) };
    let Some(document) = snapshot.node(node.owner())? else { return Ok(paths) };
    let mut nodes = vec![document];
    if wish.depth == Depth::Subtree {
        nodes.extend(node.listed_descendants()?);
    }
    let nodes = nodes.iter().filter(|node| !is_stamped(node) && !is_policy(node.path()));
    paths.extend(nodes.map(|node| node.path().clone()));
    Ok(paths)
}

/// Tells whether a document is a policy of the node above it.
pub(crate) fn is_policy(path: &NodePath) -> bool {
    matches!(path.name(), "rep:policy" | "rep:cugPolicy" | "rep:repoPolicy")
}

/// Tells whether a node carries stamps of replication.
pub(crate) fn is_stamped(node: &Node) -> bool {
    matches!(node.primary_type(), "cq:Page" | "dam:Asset")
}

/// Tells whether visitors may see a node or anything below it: whether any of it was activated last.
///
/// # Errors
/// If content fails.
pub fn is_live(node: &Node) -> Result<bool> {
    let is_active = |node: &Node| node.summary().is_some_and(|summary| summary.is_activated());
    Ok(is_active(node) || node.listed_descendants()?.iter().any(is_active))
}

/// Jobs that are stored before the wish is noted in content, so that a crash between the two loses neither.
#[derive(Debug)]
pub struct Held {
    jobs: Vec<(JobId, Json)>,
    /// The wishes, by number, that are carried out in parts.
    in_parts: BTreeSet<usize>,
}

/// Stores a held job for each wish and each enabled agent of the author that talks to a publisher. For a tree that is carried
/// out in parts, one for all of them.
///
/// # Errors
/// [`Error::Agent`] if there is none for a wish; errors of the queues.
pub async fn hold(
    repository: &Repository,
    queues: &Queues,
    wishes: &[Wish],
    now: SystemTime,
) -> Result<Held> {
    let (reading, asked) = (repository.clone(), wishes.to_vec());
    let (agents, in_parts) = blocking(move || -> Result<_> {
        let snapshot = reading.snapshot()?;
        let mut in_parts = BTreeSet::new();
        for (number, wish) in asked.iter().enumerate() {
            if is_in_parts(&snapshot, wish)? {
                in_parts.insert(number);
            }
        }
        Ok((agents(&snapshot, "author")?, in_parts))
    })
    .await??;
    note_with_trees(queues, wishes).await?;
    let agents: Vec<Agent> = agents
        .into_iter()
        .filter(|agent| agent.is_enabled && agent.kind == AgentKind::Publish)
        .collect();
    let nobody = |reason: String| Error::Agent { agent: "author".to_owned(), reason };
    if agents.is_empty() {
        let reason =
            "no enabled agent talks to a publisher; add one below `/etc/replication/agents.author`";
        return Err(nobody(reason.to_owned()));
    }
    let mut wanted = Vec::new();
    for (number, wish) in wishes.iter().enumerate() {
        let takers: Vec<String> = agents
            .iter()
            .filter(|agent| is_for(agent, wish))
            .map(|agent| topic_of("author", &agent.name))
            .collect();
        if takers.is_empty() {
            let path = &wish.path;
            return Err(nobody(format!(
                "no enabled agent takes `{path}`: each is for other paths"
            )));
        }
        if in_parts.contains(&number) {
            wanted.push((TREES.to_owned(), tree_payload(wish, now), wish));
            continue;
        }
        for topic in &takers {
            let payload = json!({
                "action": wish.action.name(),
                "path": wish.path.as_str(),
                "deep": wish.depth == Depth::Subtree,
            });
            wanted.push((topic.clone(), payload, wish));
        }
    }
    let jobs = wanted.iter().map(|(topic, payload, wish)| {
        NewJob::new(topic.as_str(), payload.clone())
            .user(wish.user.as_str())
            .about(wish.path.clone())
    });
    let ids = queues.add_held(jobs.collect(), now).await?;
    let payloads = wanted.iter().map(|(_, payload, _)| payload.clone());
    Ok(Held { jobs: ids.into_iter().zip(payloads).collect(), in_parts })
}

/// Tells whether an agent is for a wish, or for a part of it.
fn is_for(agent: &Agent, wish: &Wish) -> bool {
    if wish.depth == Depth::Subtree || wish.action == Action::Deactivate {
        agent.takes_any_below(&wish.path)
    } else {
        agent.takes(&wish.path)
    }
}

impl Held {
    /// Returns the wishes that are noted in content at once; the others are noted part by part.
    #[must_use]
    pub fn noted_at_once(&self, wishes: Vec<Wish>) -> Vec<Wish> {
        let wishes = wishes.into_iter().enumerate();
        let at_once = wishes.filter(|(number, _)| !self.in_parts.contains(number));
        at_once.map(|(_, wish)| wish).collect()
    }

    /// Lets the agents send, from the state that was made meanwhile.
    ///
    /// # Errors
    /// Errors of the queues.
    pub async fn release(mut self, queues: &Queues, root: ChunkId, now: SystemTime) -> Result<()> {
        for (_, payload) in &mut self.jobs {
            if let Some(payload) = payload.as_object_mut() {
                payload.insert("root".to_owned(), root.to_string().into());
            }
        }
        Ok(queues.release(&self.jobs, now).await?)
    }

    /// Takes the jobs back, as what they were for did not come about.
    ///
    /// # Errors
    /// Errors of the queues.
    pub async fn discard(self, queues: &Queues) -> Result<()> {
        let ids: Vec<JobId> = self.jobs.iter().map(|(id, _)| *id).collect();
        Ok(queues.discard(&ids).await?)
    }
}
