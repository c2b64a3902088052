//! Trees that are activated or deactivated in parts: a wish for very many documents is one job, which becomes messages of
//! bounded size one by one.
//!
//! In: a wish that covers more than [`MAX_AT_ONCE`] documents: an activation with [`Depth::Subtree`], or a deactivation. Out: for
//! each part of up to [`PART_DOCUMENTS`] a commit that notes it in content, and a job for each agent.
//!
//! Invariants
//! * Memory holds one part. A tree has at most one part that waits in the queue of an agent that can send, beside one that is
//!   being sent, so that what is wished meanwhile waits for no more than these.
//! * A document is sent as it was when the tree was wished. It carries the time of the wish, so that a later change shows.
//! * What was activated or taken away by name since the wish is left as it is.
//! * An activation goes from parents to children, a deactivation from children to parents. Policies go with what they are for,
//!   so that nothing is open to visitors for a while that was closed before.
//! * The next part is stored before the job of this one goes. A crash between the two makes a part twice, which changes
//!   nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tracing::{info, warn};
use tympan_content::{
    After, CheckIn, ChunkId, Date, Depth, JCR_CONTENT, NodePath, Repository, Session, Snapshot,
    StoredDocument,
};
use tympan_jobs::{Claim, Job, JobState, NewJob, Queues, chain};

use crate::activation::{Action, Keeping, Wish, is_policy, is_stamped, stamp};
use crate::agent::{AgentKind, agents};
use crate::message::parse_chunk_id;
use crate::replicator::{IDLE, LEASE, Replicator, topic_of};
use crate::send::blocking;
use crate::{Agent, Error, Result};

/// The topic of trees that are activated or deactivated in parts.
pub const TREES: &str = "com/day/cq/replication/tree/author";
/// The most documents of one part.
pub const PART_DOCUMENTS: usize = 200;
/// A tree of up to this many documents is one message.
const MAX_AT_ONCE: usize = 500;
/// How often it is looked whether a part was delivered by another process.
const LOOK: Duration = Duration::from_millis(200);
/// So many jobs of an agent are looked through for a part of a tree.
const MAX_LOOKED_AT: u32 = 500;
/// The most nodes of later wishes that are noted with a tree.
const MAX_NOTED: usize = 1000;

/// The property of a job with the documents of a part.
const DOCUMENTS: &str = "documents";
/// The property with those among them that changed since the wish.
const CHANGED: &str = "changed";
/// The property with the state that the tree was wished in.
const WISHED_ROOT: &str = "wishedRoot";
/// The property of a deactivation with what was activated by name since.
const ACTIVATED_SINCE: &str = "activatedSince";

/// Tells whether a wish is carried out in parts.
pub(crate) fn is_in_parts(snapshot: &Snapshot, wish: &Wish) -> Result<bool> {
    if wish.action == Action::Activate && wish.depth == Depth::Document {
        return Ok(false);
    }
    Ok(snapshot.document_paths(&wish.path, None, MAX_AT_ONCE + 1)?.len() > MAX_AT_ONCE)
}

/// Returns the properties of the job of a tree.
pub(crate) fn tree_payload(wish: &Wish, now: SystemTime) -> Json {
    json!({
        "action": wish.action.name(),
        "path": wish.path.as_str(),
        "deep": true,
        "wished": Date::from_system_time(now).millis,
    })
}

/// Notes later wishes with the trees that wait: parts to come leave what they are about.
pub(crate) async fn note_with_trees(queues: &Queues, wishes: &[Wish]) -> Result<()> {
    for job in queues.list_topic(TREES, MAX_LOOKED_AT).await? {
        let Some(mut tree) = WishedTree::of(&job) else { continue };
        let mut is_changed = false;
        for wish in wishes {
            is_changed |= tree.note(wish);
        }
        let mut properties = job.properties;
        if let Some(members) = properties.as_object_mut().filter(|_| is_changed) {
            let paths: Vec<&str> = tree.taken_away.iter().map(NodePath::as_str).collect();
            members.insert("takenAway".to_owned(), json!(paths));
            members.insert(ACTIVATED_SINCE.to_owned(), tree.activated.to_json());
            queues.amend(job.id, &properties).await?;
        }
    }
    Ok(())
}

/// What was activated by name since a deactivation was wished: nodes, and for each whether everything below went along.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ActivatedSince(BTreeMap<NodePath, bool>);

impl ActivatedSince {
    fn of(properties: &Json) -> Self {
        let nodes = properties.get(ACTIVATED_SINCE).and_then(Json::as_object);
        let nodes = nodes.into_iter().flatten().filter_map(|(path, is_deep)| {
            Some((NodePath::new(path).ok()?, is_deep.as_bool().unwrap_or(false)))
        });
        Self(nodes.collect())
    }

    fn to_json(&self) -> Json {
        let nodes = self.0.iter().map(|(path, is_deep)| (path.to_string(), json!(is_deep)));
        Json::Object(nodes.collect())
    }

    /// Adds a node. Too many are taken for everything below the top of the tree.
    fn add(&mut self, wish: &Wish, top: &NodePath) {
        if self.0.len() >= MAX_NOTED {
            self.0 = BTreeMap::from([(top.clone(), true)]);
        }
        *self.0.entry(wish.path.clone()).or_default() |= wish.depth == Depth::Subtree;
    }

    /// Tells whether anything at or below a node may be among it.
    fn meets(&self, path: &NodePath) -> bool {
        let meets = |(top, is_deep): (&NodePath, &bool)| {
            top.is_within(path) || (*is_deep && path.is_within(top))
        };
        self.0.iter().any(meets)
    }
}

/// A tree that is to be activated or deactivated, as its job says.
#[derive(Debug, Clone)]
struct WishedTree {
    action: Action,
    path: NodePath,
    user: String,
    wished: SystemTime,
    /// The state in which it was wished.
    root: Option<ChunkId>,
    /// The last document of the part before.
    after: Option<NodePath>,
    /// For an activation: what was taken away by name since.
    taken_away: BTreeSet<NodePath>,
    /// For a deactivation: what was activated by name since.
    activated: ActivatedSince,
}

impl WishedTree {
    /// Reads it from its job; nothing if that makes no sense.
    fn of(job: &Job) -> Option<Self> {
        let text = |name: &str| job.properties.get(name).and_then(Json::as_str);
        let path = |text: &str| NodePath::new(text).ok();
        let millis = job.properties.get("wished").and_then(Json::as_i64)?;
        let taken_away = job.properties.get("takenAway").and_then(Json::as_array);
        let taken_away = taken_away.into_iter().flatten().filter_map(Json::as_str);
        Some(Self {
            action: Action::find(text("action")?)?,
            path: path(text("path")?)?,
            user: job.user.clone(),
            wished: Date { millis, offset_minutes: 0 }.to_system_time(),
            root: text("root").and_then(|root| parse_chunk_id(root).ok()),
            after: text("after").and_then(path),
            taken_away: taken_away.filter_map(path).collect(),
            activated: ActivatedSince::of(&job.properties),
        })
    }

    /// Notes a later wish if it takes something back; tells whether it does.
    fn note(&mut self, wish: &Wish) -> bool {
        let is_deep = wish.depth == Depth::Subtree || wish.action == Action::Deactivate;
        let meets = wish.path.is_within(&self.path) || (is_deep && self.path.is_within(&wish.path));
        if !meets || wish.action == self.action {
            return false;
        }
        match wish.action {
            Action::Activate => self.activated.add(wish, &self.path),
            Action::Deactivate if self.taken_away.len() < MAX_NOTED => {
                self.taken_away.insert(wish.path.clone());
            }
            Action::Deactivate => return false,
        }
        true
    }

    /// Returns the next documents in the state in which the tree was wished.
    fn next_documents(&self, wished: &Snapshot) -> Result<Vec<NodePath>> {
        let after = self.after.as_ref();
        Ok(match self.action {
            Action::Activate => wished.document_paths(&self.path, after, PART_DOCUMENTS)?,
            Action::Deactivate => wished.document_paths_back(&self.path, after, PART_DOCUMENTS)?,
        })
    }

    /// Tells whether a document was activated or taken away by name since the tree was wished.
    fn is_decided_since(&self, newest: &Snapshot, path: &NodePath) -> Result<bool> {
        if self.taken_away.iter().any(|top| path.is_within(top)) {
            return Ok(true);
        }
        // Dates are kept in milliseconds.
        let wished = Date::from_system_time(self.wished).millis;
        let Some(node) = newest.node(path)? else { return Ok(true) };
        if is_stamped(&node) {
            let noted = node.summary().and_then(|summary| summary.activated());
            return Ok(noted.is_some_and(|noted| noted.millis > wished));
        }
        let noted = newest.activated_documents(path, Depth::Document)?;
        let noted = noted.first().map(|document| Date::from_system_time(document.at).millis);
        Ok(noted.is_some_and(|noted| noted > wished))
    }
}

/// A part of a tree, as the job of an agent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreePart {
    paths: Vec<NodePath>,
    changed: BTreeSet<NodePath>,
    wished_root: ChunkId,
    activated: ActivatedSince,
}

impl TreePart {
    /// Returns the paths of its documents.
    pub(crate) fn paths(&self) -> &[NodePath] {
        &self.paths
    }

    /// Tells whether anything at or below a document may have been activated by name since the tree was wished.
    pub(crate) fn is_activated_since(&self, path: &NodePath) -> bool {
        self.activated.meets(path)
    }

    /// Reads its documents: as they were marked, or, where they changed since the wish, as they were wished.
    pub(crate) fn documents(
        &self,
        repository: &Repository,
        marked: &Snapshot,
    ) -> Result<Vec<StoredDocument>> {
        let wished = repository.snapshot_at(self.wished_root)?;
        let mut documents = Vec::new();
        for path in &self.paths {
            let snapshot = if self.changed.contains(path) { &wished } else { marked };
            documents.extend(snapshot.documents(path, Depth::Document)?);
        }
        Ok(documents)
    }
}

/// Returns the paths of the documents of a part of a tree; of any other job, none.
pub(crate) fn paths_of_part(properties: &Json) -> Vec<NodePath> {
    let documents = properties.get(DOCUMENTS).and_then(Json::as_array);
    let documents = documents.into_iter().flatten().filter_map(Json::as_str);
    documents.filter_map(|path| NodePath::new(path).ok()).collect()
}

/// Tells whether a job sends a part of a tree.
pub(crate) fn is_part_of_tree(job: &Job) -> bool {
    job.properties.get(DOCUMENTS).is_some()
}

/// Reads a part of a tree from the job of an agent; nothing if it is about something else.
pub(crate) fn part_of_tree(job: &Job) -> Result<Option<TreePart>> {
    if !is_part_of_tree(job) {
        return Ok(None);
    }
    let root = job.properties.get(WISHED_ROOT).and_then(Json::as_str).unwrap_or_default();
    let wished_root = parse_chunk_id(root)?;
    let changed = job.properties.get(CHANGED).and_then(Json::as_array);
    let changed = changed.into_iter().flatten().filter_map(Json::as_str);
    let changed = changed.filter_map(|path| NodePath::new(path).ok()).collect();
    let activated = ActivatedSince::of(&job.properties);
    Ok(Some(TreePart { paths: paths_of_part(&job.properties), changed, wished_root, activated }))
}

/// A part that was noted in content.
#[derive(Debug)]
struct NotedPart {
    root: ChunkId,
    wished_root: ChunkId,
    paths: Vec<NodePath>,
    changed: Vec<NodePath>,
    /// The last document that was looked at; nothing if there is none behind it.
    last: Option<NodePath>,
}

/// Notes the next part of a tree in content, in one commit.
fn note_part(
    repository: &Repository,
    tree: &WishedTree,
    keeping: Keeping,
    now: SystemTime,
) -> Result<NotedPart> {
    // A job without a root was stored just before a crash: what it announced is in the newest state, if anywhere.
    let wished_root = tree.root.map_or_else(|| repository.head(), Ok)?;
    let wished = repository.snapshot_at(wished_root)?;
    let looked_at = tree.next_documents(&wished)?;
    let mut session = repository.session(&tree.user)?;
    session.note_replication(Vec::new());
    let newest = session.snapshot()?;
    let mut paths = Vec::new();
    for path in &looked_at {
        if !is_policy(path) && !tree.is_decided_since(&newest, path)? {
            paths.push(path.clone());
        }
    }
    let mut changed = Vec::new();
    match tree.action {
        Action::Activate => {
            for path in &paths {
                let is_same = wished.documents(path, Depth::Document)?.first()
                    == newest.documents(path, Depth::Document)?.first();
                note_document(&mut session, path, (tree, is_same, keeping), now)?;
                if !is_same {
                    changed.push(path.clone());
                }
            }
        }
        Action::Deactivate => note_taken_away(&mut session, tree, &paths)?,
    }
    let root = match paths.is_empty() {
        true => newest.root_id(),
        false => {
            let message = format!("{} {} in parts", tree.action.name(), tree.path);
            session.commit(&message, now)?
        }
    };
    let last = looked_at.last().filter(|_| looked_at.len() == PART_DOCUMENTS).cloned();
    Ok(NotedPart { root, wished_root, paths, changed, last })
}

/// Notes that documents are taken away from visitors, with everything below them but for what was activated since.
fn note_taken_away(session: &mut Session, tree: &WishedTree, paths: &[NodePath]) -> Result<()> {
    let (emptied, gone): (Vec<_>, Vec<_>) =
        paths.iter().cloned().partition(|path| tree.activated.meets(path));
    session.note_replication(gone);
    session.note_emptied(emptied);
    for path in paths {
        let Some(node) = session.node(path)? else { continue };
        if is_stamped(&node) && node.content()?.is_some() {
            drop(node);
            let content = path.child(JCR_CONTENT)?;
            stamp(session, &content, (tree.action, &tree.user), tree.wished)?;
        }
    }
    Ok(())
}

fn note_document(
    session: &mut Session,
    path: &NodePath,
    (tree, is_same, keeping): (&WishedTree, bool, Keeping),
    now: SystemTime,
) -> Result<()> {
    let Some(node) = session.node(path)? else { return Ok(()) };
    if !is_stamped(&node) {
        session.note_activated([path.clone()], tree.wished);
        return Ok(());
    }
    if node.content()?.is_none() {
        return Ok(());
    }
    drop(node);
    if keeping == Keeping::Version && is_same {
        let check_in = CheckIn { comment: "activated", at: now, after: After::CheckedOut };
        session.keep_version(path, &check_in)?;
    }
    let content = path.child(JCR_CONTENT)?;
    stamp(session, &content, (Action::Activate, &tree.user), tree.wished)
}

/// What one look at the trees has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeStep {
    /// There is no tree to carry out.
    Idle,
    /// A part still waits in the queue of an agent that can send.
    Waiting,
    /// A part was noted and stored for the agents.
    Stored,
}

impl Replicator {
    /// Activates and deactivates trees part by part until `stop` turns true.
    pub(crate) async fn carry_out_trees(self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            // Registered before looking, so that a bell between looking and waiting is heard.
            let bell = self.bell().notified();
            let pause = match self.carry_out_part(SystemTime::now()).await {
                Ok(TreeStep::Stored) => continue,
                Ok(TreeStep::Waiting) => LOOK,
                Ok(TreeStep::Idle) => IDLE,
                Err(error) => {
                    warn!(
                        reason = chain(&error),
                        "a tree cannot be activated or deactivated further"
                    );
                    IDLE
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = bell => {}
                _ = stop.changed() => {}
            }
        }
    }

    /// Carries out the next part of the tree that was wished first, unless the part before still waits to be sent.
    ///
    /// # Errors
    /// If content or the queues fail.
    pub async fn carry_out_part(&self, now: SystemTime) -> Result<TreeStep> {
        let queues = self.queues();
        if queues.list_topic(TREES, 1).await?.is_empty() {
            return Ok(TreeStep::Idle);
        }
        let repository = self.repository().clone();
        let mut agents: Vec<Agent> =
            blocking(move || agents(&repository.snapshot()?, "author")).await??;
        agents.retain(|agent| agent.is_enabled && agent.kind == AgentKind::Publish);
        for agent in &agents {
            let topic = topic_of(self.role(), &agent.name);
            let jobs = queues.list_topic(&topic, MAX_LOOKED_AT).await?;
            // The next part is made while one is being sent.
            let waits = |job: &Job| {
                is_part_of_tree(job) && !matches!(job.state, JobState::GivenUp | JobState::Active)
            };
            if self.blocked(&agent.name).is_none() && jobs.iter().any(waits) {
                return Ok(TreeStep::Waiting);
            }
        }
        // Wishes wait meanwhile, so that both have one order.
        let turn = self.turn().await;
        let claim = Claim { worker: self.name(), lease: LEASE };
        let Some(job) = queues.claim_in_order(&[TREES], claim, now).await? else {
            return Ok(TreeStep::Idle);
        };
        let stored = self.store_part(&job, &agents, now).await;
        drop(turn);
        match stored {
            Ok(()) => {
                self.ring();
                Ok(TreeStep::Stored)
            }
            Err(error) => {
                let retry_at = is_worth_trying(&error).then(|| now + IDLE);
                let reason = chain(&error);
                queues.fail(job.id, self.name(), &reason, (retry_at, now)).await?;
                Err(error)
            }
        }
    }

    async fn store_part(&self, job: &Job, agents: &[Agent], now: SystemTime) -> Result<()> {
        let malformed = || Error::Malformed(format!("job {} says no tree", job.id));
        let tree = WishedTree::of(job).ok_or_else(malformed)?;
        let (repository, path) = (self.repository().clone(), tree.path.clone());
        let (action, activated) = (tree.action, tree.activated.to_json());
        let keeping = self.keeping();
        let part = blocking(move || note_part(&repository, &tree, keeping, now)).await??;
        let mut jobs = Vec::new();
        let takers = agents.iter().filter(|agent| agent.takes_any_below(&path));
        for agent in takers.filter(|_| !part.paths.is_empty()) {
            let text = |paths: &[NodePath]| -> Vec<String> {
                paths.iter().map(ToString::to_string).collect()
            };
            let payload = json!({
                "action": action.name(),
                "path": path.as_str(),
                "deep": false,
                "root": part.root.to_string(),
                DOCUMENTS: text(&part.paths),
                CHANGED: text(&part.changed),
                WISHED_ROOT: part.wished_root.to_string(),
                ACTIVATED_SINCE: activated,
            });
            let topic = topic_of(self.role(), &agent.name);
            jobs.push(NewJob::new(topic, payload).user(job.user.as_str()).about(path.clone()));
        }
        if let Some(last) = &part.last {
            let mut rest = job.properties.clone();
            if let Some(members) = rest.as_object_mut() {
                members.insert("after".to_owned(), last.as_str().into());
                members.insert("root".to_owned(), part.wished_root.to_string().into());
            }
            jobs.push(NewJob::new(TREES, rest).user(job.user.as_str()).about(path.clone()));
        } else {
            info!(path = %path, action = action.name(), "a tree was carried out");
        }
        self.queues().add_all(jobs, now).await?;
        Ok(self.queues().finish(job.id, self.name()).await?)
    }
}

fn is_worth_trying(error: &Error) -> bool {
    let is_clash = matches!(error, Error::Content(tympan_content::Error::Conflicts(_)));
    is_clash || error.is_transient()
}
