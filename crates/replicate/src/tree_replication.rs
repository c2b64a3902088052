//! Trees that are activated or deactivated in parts: a request for very many documents is one job, which is split step
//! by step into messages of bounded size.
//!
//! In: requests that together cover more than [`MAX_SINGLE_MESSAGE_DOCUMENTS`] documents: activations with
//! [`SubtreeScope::Subtree`], or deactivations. Out: for each part of up to [`MAX_PART_DOCUMENTS`] a commit that
//! records it in content, and a job for each agent.
//!
//! Invariants
//! * Memory holds one part. Besides the part being sent, a tree has at most one part waiting in the queue of an agent
//!   that can send, so that other requests wait for no more than these.
//! * A document is sent in the state at the time of the tree's request. It carries the time of the request, so that a
//!   later change is visible.
//! * Documents activated or withdrawn by name since the request are left unchanged.
//! * An activation proceeds from parents to children, a deactivation from children to parents. Policies are replicated
//!   with the nodes that they protect, so that nothing protected is temporarily open to visitors.
//! * The next part is stored before the job of this one is removed. A crash between the two creates a part twice, which
//!   has no further effect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tracing::{info, warn};
use tympan_content::{
    CheckInOptions, CheckOutState, ChunkId, JCR_CONTENT, JcrDate, NodePath, Repository, Session,
    Snapshot, StoredDocument, SubtreeScope,
};
use tympan_jobs::{Job, JobClaim, JobQueues, JobState, NewJob, format_error_chain};

use crate::agent::{ReplicationAgentKind, read_agents};
use crate::message::parse_chunk_id;
use crate::message_sender::run_blocking;
use crate::replication_request::{
    ActivationVersioning, ReplicationAction, ReplicationRequest, carries_replication_stamp,
    is_policy, write_replication_stamp,
};
use crate::replicator::{IDLE_POLL_INTERVAL, JOB_LEASE, Replicator, agent_topic};
use crate::{Error, ReplicationAgent, Result};

/// The topic of trees that are activated or deactivated in parts.
pub const TREE_TOPIC: &str = "com/day/cq/replication/tree/author";
/// The maximum number of documents in one part.
pub const MAX_PART_DOCUMENTS: usize = 200;
/// The maximum number of documents of the trees that a user requests at once and that are each sent as one message.
const MAX_SINGLE_MESSAGE_DOCUMENTS: usize = 500;
/// The interval for checking whether another process has delivered a part.
const DELIVERY_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum number of jobs of an agent that are searched for a part of a tree.
const MAX_SCANNED_JOBS: u32 = 500;
/// The maximum number of nodes of later requests that are recorded with a tree.
const MAX_LATER_REQUESTS: usize = 1000;

/// The job property with the documents of a part.
const DOCUMENTS_PROPERTY: &str = "documents";
/// The job property with those among them that changed since the request.
const CHANGED_PROPERTY: &str = "changed";
/// The job property with the state in which the tree was requested.
const REQUESTED_ROOT_PROPERTY: &str = "wishedRoot";
/// The job property of a deactivation with what was activated by name since.
const ACTIVATED_SINCE_PROPERTY: &str = "activatedSince";

/// Returns the indexes of the requests that are carried out in parts: the trees that exceed
/// [`MAX_SINGLE_MESSAGE_DOCUMENTS`] together with the trees before them, as all others are recorded in one commit.
pub(crate) fn find_partwise_requests(
    snapshot: &Snapshot,
    requests: &[ReplicationRequest],
) -> Result<BTreeSet<usize>> {
    let mut remaining = MAX_SINGLE_MESSAGE_DOCUMENTS;
    let mut partwise = BTreeSet::new();
    for (number, request) in requests.iter().enumerate() {
        let is_tree = request.action == ReplicationAction::Deactivate
            || request.depth == SubtreeScope::Subtree;
        if !is_tree {
            continue;
        }
        // A single document has no parts.
        match snapshot.document_paths(&request.path, None, remaining.max(1) + 1)?.len() {
            count if count <= remaining => remaining -= count,
            0 | 1 => {}
            _exceeding => {
                partwise.insert(number);
            }
        }
    }
    Ok(partwise)
}

/// Returns the properties of the job of a tree.
pub(crate) fn tree_job_payload(request: &ReplicationRequest, now: SystemTime) -> Json {
    json!({
        "action": request.action.name(),
        "path": request.path.as_str(),
        "deep": true,
        "wished": JcrDate::from_system_time(now).millis,
    })
}

/// Records later requests with the waiting trees: their remaining parts skip what these requests cover.
pub(crate) async fn record_with_waiting_trees(
    queues: &JobQueues,
    requests: &[ReplicationRequest],
) -> Result<()> {
    for job in queues.list_topic(TREE_TOPIC, MAX_SCANNED_JOBS).await? {
        let Some(mut tree) = RequestedTree::from_job(&job) else { continue };
        let mut is_changed = false;
        for request in requests {
            is_changed |= tree.record_later_request(request);
        }
        let mut properties = job.properties;
        if let Some(members) = properties.as_object_mut().filter(|_| is_changed) {
            let paths: Vec<&str> = tree.later_deactivations.iter().map(NodePath::as_str).collect();
            members.insert("takenAway".to_owned(), json!(paths));
            members.insert(ACTIVATED_SINCE_PROPERTY.to_owned(), tree.later_activations.to_json());
            queues.replace_properties(job.id, &properties).await?;
        }
    }
    Ok(())
}

/// The nodes activated by name since a deactivation was requested; for each, whether everything below it was included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct LaterActivations(BTreeMap<NodePath, bool>);

impl LaterActivations {
    fn from_properties(properties: &Json) -> Self {
        let nodes = properties.get(ACTIVATED_SINCE_PROPERTY).and_then(Json::as_object);
        let nodes = nodes.into_iter().flatten().filter_map(|(path, is_deep)| {
            Some((NodePath::new(path).ok()?, is_deep.as_bool().unwrap_or(false)))
        });
        Self(nodes.collect())
    }

    fn to_json(&self) -> Json {
        let nodes = self.0.iter().map(|(path, is_deep)| (path.to_string(), json!(is_deep)));
        Json::Object(nodes.collect())
    }

    /// Adds a node. If there are too many, everything below the top of the tree counts as activated.
    fn add(&mut self, request: &ReplicationRequest, top: &NodePath) {
        if self.0.len() >= MAX_LATER_REQUESTS {
            self.0 = BTreeMap::from([(top.clone(), true)]);
        }
        *self.0.entry(request.path.clone()).or_default() |= request.depth == SubtreeScope::Subtree;
    }

    /// Returns true if the set may contain anything at or below a node.
    fn may_overlap(&self, path: &NodePath) -> bool {
        let meets = |(top, is_deep): (&NodePath, &bool)| {
            top.is_within(path) || (*is_deep && path.is_within(top))
        };
        self.0.iter().any(meets)
    }
}

/// A tree to activate or deactivate, as stored in its job.
#[derive(Debug, Clone)]
struct RequestedTree {
    action: ReplicationAction,
    path: NodePath,
    user: String,
    requested_at: SystemTime,
    /// The state in which it was requested.
    requested_root: Option<ChunkId>,
    /// The last document of the previous part.
    last_document: Option<NodePath>,
    /// For an activation: the nodes withdrawn by name since.
    later_deactivations: BTreeSet<NodePath>,
    /// For a deactivation: the nodes activated by name since.
    later_activations: LaterActivations,
}

impl RequestedTree {
    /// Reads the tree from its job; `None` if the job is malformed.
    fn from_job(job: &Job) -> Option<Self> {
        let text = |name: &str| job.properties.get(name).and_then(Json::as_str);
        let path = |text: &str| NodePath::new(text).ok();
        let millis = job.properties.get("wished").and_then(Json::as_i64)?;
        let taken_away = job.properties.get("takenAway").and_then(Json::as_array);
        let taken_away = taken_away.into_iter().flatten().filter_map(Json::as_str);
        Some(Self {
            action: ReplicationAction::from_name(text("action")?)?,
            path: path(text("path")?)?,
            user: job.user.clone(),
            requested_at: JcrDate { millis, offset_minutes: 0 }.to_system_time(),
            requested_root: text("root").and_then(|root| parse_chunk_id(root).ok()),
            last_document: text("after").and_then(path),
            later_deactivations: taken_away.filter_map(path).collect(),
            later_activations: LaterActivations::from_properties(&job.properties),
        })
    }

    /// Records a later request if it reverts a part of this one; returns true if it does.
    fn record_later_request(&mut self, request: &ReplicationRequest) -> bool {
        let is_deep = request.depth == SubtreeScope::Subtree
            || request.action == ReplicationAction::Deactivate;
        let meets =
            request.path.is_within(&self.path) || (is_deep && self.path.is_within(&request.path));
        if !meets || request.action == self.action {
            return false;
        }
        match request.action {
            ReplicationAction::Activate => self.later_activations.add(request, &self.path),
            ReplicationAction::Deactivate
                if self.later_deactivations.len() < MAX_LATER_REQUESTS =>
            {
                self.later_deactivations.insert(request.path.clone());
            }
            ReplicationAction::Deactivate => return false,
        }
        true
    }

    /// Returns the next documents, in the state in which the tree was requested.
    fn next_documents(&self, snapshot: &Snapshot) -> Result<Vec<NodePath>> {
        let after = self.last_document.as_ref();
        Ok(match self.action {
            ReplicationAction::Activate => {
                snapshot.document_paths(&self.path, after, MAX_PART_DOCUMENTS)?
            }
            ReplicationAction::Deactivate => {
                snapshot.document_paths_before(&self.path, after, MAX_PART_DOCUMENTS)?
            }
        })
    }

    /// Returns true if a document was activated or withdrawn by name since the tree was requested.
    fn is_decided_since(&self, newest: &Snapshot, path: &NodePath) -> Result<bool> {
        if self.later_deactivations.iter().any(|top| path.is_within(top)) {
            return Ok(true);
        }
        // Dates are stored in milliseconds.
        let requested_millis = JcrDate::from_system_time(self.requested_at).millis;
        let Some(node) = newest.node(path)? else { return Ok(true) };
        if carries_replication_stamp(&node) {
            let activation_date = node.summary().and_then(|summary| summary.activation_date());
            return Ok(activation_date.is_some_and(|date| date.millis > requested_millis));
        }
        let documents = newest.activated_documents(path, SubtreeScope::Document)?;
        let activation_millis = documents
            .first()
            .map(|document| JcrDate::from_system_time(document.activated_at).millis);
        Ok(activation_millis.is_some_and(|millis| millis > requested_millis))
    }
}

/// A part of a tree, as stored in the job of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreePart {
    document_paths: Vec<NodePath>,
    changed_paths: BTreeSet<NodePath>,
    requested_root: ChunkId,
    later_activations: LaterActivations,
}

impl TreePart {
    /// Returns the paths of its documents.
    pub(crate) fn document_paths(&self) -> &[NodePath] {
        &self.document_paths
    }

    /// Returns true if anything at or below a document may have been activated by name since the tree was requested.
    pub(crate) fn is_activated_since(&self, path: &NodePath) -> bool {
        self.later_activations.may_overlap(path)
    }

    /// Reads its documents: in the state in which they were marked, or, if they changed since the request, in the
    /// requested state.
    pub(crate) fn read_documents(
        &self,
        repository: &Repository,
        marked: &Snapshot,
    ) -> Result<Vec<StoredDocument>> {
        let requested_state = repository.snapshot_at(self.requested_root)?;
        let mut documents = Vec::new();
        for path in &self.document_paths {
            let snapshot =
                if self.changed_paths.contains(path) { &requested_state } else { marked };
            documents.extend(snapshot.stored_documents(path, SubtreeScope::Document)?);
        }
        Ok(documents)
    }
}

/// Returns the paths of the documents of a part of a tree; empty for any other job.
pub(crate) fn tree_part_paths(properties: &Json) -> Vec<NodePath> {
    let documents = properties.get(DOCUMENTS_PROPERTY).and_then(Json::as_array);
    let documents = documents.into_iter().flatten().filter_map(Json::as_str);
    documents.filter_map(|path| NodePath::new(path).ok()).collect()
}

/// Returns true if a job sends a part of a tree.
pub(crate) fn is_tree_part_job(job: &Job) -> bool {
    job.properties.get(DOCUMENTS_PROPERTY).is_some()
}

/// Reads a part of a tree from the job of an agent; `None` if it is another kind of job.
pub(crate) fn parse_tree_part(job: &Job) -> Result<Option<TreePart>> {
    if !is_tree_part_job(job) {
        return Ok(None);
    }
    let root =
        job.properties.get(REQUESTED_ROOT_PROPERTY).and_then(Json::as_str).unwrap_or_default();
    let wished_root = parse_chunk_id(root)?;
    let changed = job.properties.get(CHANGED_PROPERTY).and_then(Json::as_array);
    let changed = changed.into_iter().flatten().filter_map(Json::as_str);
    let changed = changed.filter_map(|path| NodePath::new(path).ok()).collect();
    let activated = LaterActivations::from_properties(&job.properties);
    Ok(Some(TreePart {
        document_paths: tree_part_paths(&job.properties),
        changed_paths: changed,
        requested_root: wished_root,
        later_activations: activated,
    }))
}

/// A part that was recorded in content.
#[derive(Debug)]
struct MarkedTreePart {
    root: ChunkId,
    requested_root: ChunkId,
    paths: Vec<NodePath>,
    changed_paths: Vec<NodePath>,
    /// The last document examined; `None` if there are no more after it.
    last_document: Option<NodePath>,
}

/// Records the next part of a tree in content, in one commit.
fn mark_next_part(
    repository: &Repository,
    tree: &RequestedTree,
    keeping: ActivationVersioning,
    now: SystemTime,
) -> Result<MarkedTreePart> {
    // A job without a root was stored right before a crash. If its request was recorded at all, it is in the newest
    // state.
    let wished_root = tree.requested_root.map_or_else(|| repository.head_root(), Ok)?;
    let requested_state = repository.snapshot_at(wished_root)?;
    let looked_at = tree.next_documents(&requested_state)?;
    let mut session = repository.session(&tree.user)?;
    session.record_replication(Vec::new());
    let newest = session.snapshot()?;
    let mut paths = Vec::new();
    for path in &looked_at {
        if !is_policy(path) && !tree.is_decided_since(&newest, path)? {
            paths.push(path.clone());
        }
    }
    let mut changed = Vec::new();
    match tree.action {
        ReplicationAction::Activate => {
            for path in &paths {
                let is_same =
                    requested_state.stored_documents(path, SubtreeScope::Document)?.first()
                        == newest.stored_documents(path, SubtreeScope::Document)?.first();
                mark_activated(&mut session, path, (tree, is_same, keeping), now)?;
                if !is_same {
                    changed.push(path.clone());
                }
            }
        }
        ReplicationAction::Deactivate => mark_deactivated(&mut session, tree, &paths)?,
    }
    let root = match paths.is_empty() {
        true => newest.root_id(),
        false => {
            let message = format!("{} {} in parts", tree.action.name(), tree.path);
            session.commit(&message, now)?
        }
    };
    let last = looked_at.last().filter(|_| looked_at.len() == MAX_PART_DOCUMENTS).cloned();
    Ok(MarkedTreePart {
        root,
        requested_root: wished_root,
        paths,
        changed_paths: changed,
        last_document: last,
    })
}

/// Records that documents are withdrawn from visitors, with everything below them except what was activated since.
fn mark_deactivated(session: &mut Session, tree: &RequestedTree, paths: &[NodePath]) -> Result<()> {
    let (emptied, removed_paths): (Vec<_>, Vec<_>) =
        paths.iter().cloned().partition(|path| tree.later_activations.may_overlap(path));
    session.record_replication(removed_paths);
    session.record_emptied_documents(emptied);
    for path in paths {
        let Some(node) = session.node(path)? else { continue };
        if carries_replication_stamp(&node) && node.content_node()?.is_some() {
            drop(node);
            let content = path.child(JCR_CONTENT)?;
            write_replication_stamp(
                session,
                &content,
                (tree.action, &tree.user),
                tree.requested_at,
            )?;
        }
    }
    Ok(())
}

fn mark_activated(
    session: &mut Session,
    path: &NodePath,
    (tree, is_same, keeping): (&RequestedTree, bool, ActivationVersioning),
    now: SystemTime,
) -> Result<()> {
    let Some(node) = session.node(path)? else { return Ok(()) };
    if !carries_replication_stamp(&node) {
        session.record_activated_documents([path.clone()], tree.requested_at);
        return Ok(());
    }
    if node.content_node()?.is_none() {
        return Ok(());
    }
    drop(node);
    if keeping == ActivationVersioning::CreateVersion && is_same {
        let check_in = CheckInOptions {
            comment: "activated",
            created_at: now,
            check_out_state: CheckOutState::CheckedOut,
        };
        session.create_version_if_changed(path, &check_in)?;
    }
    let content = path.child(JCR_CONTENT)?;
    write_replication_stamp(
        session,
        &content,
        (ReplicationAction::Activate, &tree.user),
        tree.requested_at,
    )
}

/// The result of one step of the trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreePartOutcome {
    /// There is no tree to process.
    Idle,
    /// A part is still waiting in the queue of an agent that can send.
    Waiting,
    /// A part was recorded and stored for the agents.
    Stored,
}

impl Replicator {
    /// Activates and deactivates trees part by part until `stop` becomes true.
    pub(crate) async fn run_tree_loop(self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            // Register before checking, so that a signal between the check and the wait is not lost.
            let wakeup = self.wake_signal().notified();
            let pause = match self.replicate_next_part(SystemTime::now()).await {
                Ok(TreePartOutcome::Stored) => continue,
                Ok(TreePartOutcome::Waiting) => DELIVERY_POLL_INTERVAL,
                Ok(TreePartOutcome::Idle) => IDLE_POLL_INTERVAL,
                Err(error) => {
                    warn!(
                        reason = format_error_chain(&error),
                        "cannot continue to activate or deactivate a tree"
                    );
                    IDLE_POLL_INTERVAL
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = wakeup => {}
                _ = stop.changed() => {}
            }
        }
    }

    /// Processes the next part of the tree that was requested first, unless the previous part is still waiting to be
    /// sent.
    ///
    /// # Errors
    /// If content or the queues fail.
    pub async fn replicate_next_part(&self, now: SystemTime) -> Result<TreePartOutcome> {
        let queues = self.queues();
        if queues.list_topic(TREE_TOPIC, 1).await?.is_empty() {
            return Ok(TreePartOutcome::Idle);
        }
        let repository = self.repository().clone();
        let mut agents: Vec<ReplicationAgent> =
            run_blocking(move || read_agents(&repository.snapshot()?, "author")).await??;
        agents.retain(|agent| agent.is_enabled && agent.kind == ReplicationAgentKind::Publish);
        for agent in &agents {
            let topic = agent_topic(self.role(), &agent.name);
            let jobs = queues.list_topic(&topic, MAX_SCANNED_JOBS).await?;
            // The next part is created while one is being sent.
            let waits = |job: &Job| {
                is_tree_part_job(job) && !matches!(job.state, JobState::GivenUp | JobState::Active)
            };
            if self.blocked_reason(&agent.name).is_none() && jobs.iter().any(waits) {
                return Ok(TreePartOutcome::Waiting);
            }
        }
        // The lock holds back other requests, so that content and jobs have the same order.
        let turn = self.lock_requests().await;
        let claim = JobClaim { worker: self.process_name(), lease: JOB_LEASE };
        let Some(job) = queues.claim_in_order(&[TREE_TOPIC], claim, now).await? else {
            return Ok(TreePartOutcome::Idle);
        };
        let stored = self.store_part_jobs(&job, &agents, now).await;
        drop(turn);
        match stored {
            Ok(()) => {
                self.wake_agent_workers();
                Ok(TreePartOutcome::Stored)
            }
            Err(error) => {
                let retry_at = is_retryable(&error).then(|| now + IDLE_POLL_INTERVAL);
                let reason = format_error_chain(&error);
                queues.fail_job(job.id, self.process_name(), &reason, (retry_at, now)).await?;
                Err(error)
            }
        }
    }

    async fn store_part_jobs(
        &self,
        job: &Job,
        agents: &[ReplicationAgent],
        now: SystemTime,
    ) -> Result<()> {
        let malformed = || Error::Malformed(format!("job {} names no tree", job.id));
        let tree = RequestedTree::from_job(job).ok_or_else(malformed)?;
        let (repository, path) = (self.repository().clone(), tree.path.clone());
        let (action, activated) = (tree.action, tree.later_activations.to_json());
        let keeping = self.versioning();
        let part = run_blocking(move || mark_next_part(&repository, &tree, keeping, now)).await??;
        let mut jobs = Vec::new();
        let takers = agents.iter().filter(|agent| agent.accepts_any_below(&path));
        for agent in takers.filter(|_| !part.paths.is_empty()) {
            let text = |paths: &[NodePath]| -> Vec<String> {
                paths.iter().map(ToString::to_string).collect()
            };
            let payload = json!({
                "action": action.name(),
                "path": path.as_str(),
                "deep": false,
                "root": part.root.to_string(),
                DOCUMENTS_PROPERTY: text(&part.paths),
                CHANGED_PROPERTY: text(&part.changed_paths),
                REQUESTED_ROOT_PROPERTY: part.requested_root.to_string(),
                ACTIVATED_SINCE_PROPERTY: activated,
            });
            let topic = agent_topic(self.role(), &agent.name);
            jobs.push(
                NewJob::new(topic, payload)
                    .with_user(job.user.as_str())
                    .with_subject_path(path.clone()),
            );
        }
        if let Some(last) = &part.last_document {
            let mut rest = job.properties.clone();
            if let Some(members) = rest.as_object_mut() {
                members.insert("after".to_owned(), last.as_str().into());
                members.insert("root".to_owned(), part.requested_root.to_string().into());
            }
            jobs.push(
                NewJob::new(TREE_TOPIC, rest)
                    .with_user(job.user.as_str())
                    .with_subject_path(path.clone()),
            );
        } else {
            info!(path = %path, action = action.name(), "tree replicated");
        }
        self.queues().add_jobs(jobs, now).await?;
        Ok(self.queues().finish_job(job.id, self.process_name()).await?)
    }
}

fn is_retryable(error: &Error) -> bool {
    let is_clash = matches!(error, Error::Content(tympan_content::Error::Conflicts(_)));
    is_clash || error.is_transient()
}
