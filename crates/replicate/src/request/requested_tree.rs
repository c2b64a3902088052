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

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tympan_content::{
    CheckInOptions, CheckOutState, ChunkId, JCR_CONTENT, JcrDate, NodePath, Repository, Session,
    Snapshot, SubtreeScope,
};
use tympan_jobs::{Job, JobQueues};

use crate::Result;
use crate::delivery::message::parse_chunk_id;
use crate::request::replication_request::{
    ActivationVersioning, ReplicationAction, ReplicationRequest, carries_replication_stamp,
    is_policy, write_replication_stamp,
};
use crate::request::tree_part::{ACTIVATED_SINCE_PROPERTY, LaterActivations, MAX_LATER_REQUESTS};

/// The topic of trees that are activated or deactivated in parts.
pub const TREE_TOPIC: &str = "com/day/cq/replication/tree/author";
/// The maximum number of documents in one part.
pub const MAX_PART_DOCUMENTS: usize = 200;
/// The maximum number of documents of the trees that a user requests at once and that are each sent as one message.
const MAX_SINGLE_MESSAGE_DOCUMENTS: usize = 500;
/// The maximum number of jobs of an agent that are searched for a part of a tree.
pub(crate) const MAX_SCANNED_JOBS: u32 = 500;
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

/// A tree to activate or deactivate, as stored in its job.
#[derive(Debug, Clone)]
pub(crate) struct RequestedTree {
    pub(crate) action: ReplicationAction,
    pub(crate) path: NodePath,
    user: String,
    requested_at: SystemTime,
    /// The state in which it was requested.
    requested_root: Option<ChunkId>,
    /// The last document of the previous part.
    last_document: Option<NodePath>,
    /// For an activation: the nodes withdrawn by name since.
    later_deactivations: BTreeSet<NodePath>,
    /// For a deactivation: the nodes activated by name since.
    pub(crate) later_activations: LaterActivations,
}

impl RequestedTree {
    /// Reads the tree from its job; `None` if the job is malformed.
    pub(crate) fn from_job(job: &Job) -> Option<Self> {
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

/// A part that was recorded in content.
#[derive(Debug)]
pub(crate) struct MarkedTreePart {
    pub(crate) root: ChunkId,
    pub(crate) requested_root: ChunkId,
    pub(crate) paths: Vec<NodePath>,
    pub(crate) changed_paths: Vec<NodePath>,
    /// The last document examined; `None` if there are no more after it.
    pub(crate) last_document: Option<NodePath>,
}

/// Records the next part of a tree in content, in one commit.
pub(crate) fn mark_next_part(
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
                mark_activated(&mut session, path, tree, is_same, keeping, now)?;
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
            write_replication_stamp(session, &content, tree.action, &tree.user, tree.requested_at)?;
        }
    }
    Ok(())
}

fn mark_activated(
    session: &mut Session,
    path: &NodePath,
    tree: &RequestedTree,
    is_same: bool,
    keeping: ActivationVersioning,
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
        session.versions().create_version_if_changed(path, &check_in)?;
    }
    let content = path.child(JCR_CONTENT)?;
    write_replication_stamp(
        session,
        &content,
        ReplicationAction::Activate,
        &tree.user,
        tree.requested_at,
    )
}
