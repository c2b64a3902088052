//! Replication requests: a user activates or deactivates, and the content records it.

use std::time::SystemTime;

use tympan_content::{
    CheckInOptions, CheckOutState, ChunkId, JCR_CONTENT, JcrDate, Node, NodePath, Privileges,
    Property, Repository, Session, Snapshot, SubtreeScope, Value, Viewer,
};

use crate::Result;

/// The action that a user requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationAction {
    /// Publishes the node to visitors.
    Activate,
    /// Withdraws the node from visitors, with everything below it.
    Deactivate,
}

impl ReplicationAction {
    /// Returns AEM's name of the action.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Activate => "Activate",
            Self::Deactivate => "Deactivate",
        }
    }

    /// Finds an action by its name, case-insensitively.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Activate, Self::Deactivate]
            .into_iter()
            .find(|action| action.name().eq_ignore_ascii_case(name))
    }
}

/// A user's request for a node and, with [`SubtreeScope::Subtree`], everything below it.
#[derive(Debug, Clone)]
pub struct ReplicationRequest {
    /// The action.
    pub action: ReplicationAction,
    /// The path of the node.
    pub path: NodePath,
    /// The extent of the request. A deactivation always covers the whole subtree.
    pub depth: SubtreeScope,
    /// The user who makes the request.
    pub user: String,
}

/// The option to store activated documents as versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActivationVersioning {
    /// Creates a version of every activated page and asset whose newest version differs from the activated state.
    #[default]
    CreateVersion,
    /// Creates no versions.
    NoVersion,
}

/// Records requests in the content: `cq:lastReplicated` and the related properties on every page and asset that they
/// cover, in one commit, which also stores the activated state as a version. Returns the root to send from, which later
/// changes do not affect.
///
/// # Errors
/// If a node to activate is missing or content fails.
pub fn mark_replicated(
    repository: &Repository,
    requests: &[ReplicationRequest],
    now: SystemTime,
) -> Result<ChunkId> {
    mark_replicated_with_versioning(repository, requests, ActivationVersioning::CreateVersion, now)
}

/// Like [`mark_replicated`], with the option whether versions are created.
///
/// # Errors
/// If a node to activate is missing or content fails.
pub fn mark_replicated_with_versioning(
    repository: &Repository,
    requests: &[ReplicationRequest],
    versioning: ActivationVersioning,
    now: SystemTime,
) -> Result<ChunkId> {
    match requests.first() {
        Some(first) => mark_in_session(repository.session(&first.user)?, requests, versioning, now),
        None => Ok(repository.head_root()?),
    }
}

/// Records `immediate_requests` if a viewer may make all `requests` in the state in which they are recorded. Returns the
/// root to send from.
pub(crate) fn mark_if_permitted(
    repository: &Repository,
    viewer: &Viewer,
    requests: &[ReplicationRequest],
    immediate_requests: &[ReplicationRequest],
    (versioning, now): (ActivationVersioning, SystemTime),
) -> Result<ChunkId> {
    let user = requests.first().map_or_else(|| viewer.name(), |request| &request.user);
    let mut session = repository.session(user)?;
    let snapshot = session.snapshot()?;
    if !viewer.is_system() {
        let visible = snapshot.as_viewer(viewer);
        requests.iter().try_for_each(|request| require_replicate_permission(&visible, request))?;
    }
    if immediate_requests.is_empty() {
        return Ok(snapshot.root_id());
    }
    mark_in_session(session, immediate_requests, versioning, now)
}

/// Records requests in the state with which a session began.
fn mark_in_session(
    mut session: Session,
    requests: &[ReplicationRequest],
    versioning: ActivationVersioning,
    now: SystemTime,
) -> Result<ChunkId> {
    let taken_away =
        requests.iter().filter(|request| request.action == ReplicationAction::Deactivate);
    session.record_replication(taken_away.map(|request| request.path.clone()).collect());
    let snapshot = session.snapshot()?;
    let mut message = String::new();
    for request in requests {
        session.record_activated_documents(list_unstamped_documents(&snapshot, request)?, now);
        for path in list_stamped_content(&snapshot, request)? {
            if request.action == ReplicationAction::Activate
                && versioning == ActivationVersioning::CreateVersion
                && let Some(document) = path.parent()
            {
                let comment = "activated";
                let check_in = CheckInOptions {
                    comment,
                    created_at: now,
                    check_out_state: CheckOutState::CheckedOut,
                };
                session.versions().create_version_if_changed(&document, &check_in)?;
            }
            write_replication_stamp(&mut session, &path, request.action, &request.user, now)?;
        }
        message = format!("{} {}", request.action.name(), request.path);
    }
    Ok(session.commit(&message, now)?)
}

/// Rejects a request for which the viewer of a snapshot lacks permission: `crx:replicate` is needed on each document
/// that an activation publishes or a deactivation withdraws.
///
/// # Errors
/// Access denied, with the first document where the privilege is missing, or with the node of the request if the viewer
/// does not see that document. If content fails.
pub fn require_replicate_permission(
    snapshot: &Snapshot,
    request: &ReplicationRequest,
) -> Result<()> {
    let denied = |path: &NodePath| {
        let (path, privilege) = (path.clone(), "crx:replicate");
        Err(tympan_content::Error::AccessDenied { path, privilege }.into())
    };
    if !snapshot.has_privileges(&request.path, Privileges::REPLICATE)? {
        return denied(&request.path);
    }
    if request.depth == SubtreeScope::Document && request.action == ReplicationAction::Activate {
        return Ok(());
    }
    let whole = snapshot.as_viewer(&Viewer::system());
    let Some(top) = whole.node(&request.path)? else { return Ok(()) };
    let is_shown = |node: &Node| node.summary().is_some_and(|summary| summary.is_activated());
    top.visit_listed_descendants(|node| {
        let is_concerned = request.action == ReplicationAction::Activate || is_shown(&node);
        if is_concerned && !snapshot.has_privileges(node.path(), Privileges::REPLICATE)? {
            let is_seen = snapshot.can_see(node.path(), node.primary_type());
            return denied(if is_seen { node.path() } else { &request.path });
        }
        Ok(())
    })
}

/// Writes the last replication action to the content of a page or an asset.
pub(crate) fn write_replication_stamp(
    session: &mut Session,
    content: &NodePath,
    action: ReplicationAction,
    user: &str,
    at: SystemTime,
) -> Result<()> {
    let date = Property::Single(Value::Date(JcrDate::from_system_time(at)));
    session.set_property(content, "cq:lastReplicated", date)?;
    session.set_property(content, "cq:lastReplicatedBy", Property::text(user))?;
    session.set_property(content, "cq:lastReplicationAction", Property::text(action.name()))?;
    Ok(())
}

/// Returns the content nodes that carry the stamp: those of pages and assets.
fn list_stamped_content(
    snapshot: &Snapshot,
    request: &ReplicationRequest,
) -> Result<Vec<NodePath>> {
    let node = match (snapshot.node(&request.path)?, request.action) {
        (Some(node), _) => node,
        // A node that was deleted here can still be withdrawn from visitors.
        (None, ReplicationAction::Deactivate) => return Ok(Vec::new()),
        (None, ReplicationAction::Activate) => {
            return Err(tympan_content::Error::NodeMissing(request.path.clone()).into());
        }
    };
    let mut nodes = vec![node.clone()];
    if request.depth == SubtreeScope::Subtree || request.action == ReplicationAction::Deactivate {
        nodes.extend(node.listed_descendants()?);
    }
    let mut paths = Vec::new();
    for node in nodes {
        if carries_replication_stamp(&node) && node.content_node()?.is_some() {
            paths.push(node.path().child(JCR_CONTENT)?);
        }
    }
    Ok(paths)
}

/// Returns the documents that an activation covers and that carry no stamps: folders, tags, templates and others.
/// Policies are replicated with the nodes that they protect.
fn list_unstamped_documents(
    snapshot: &Snapshot,
    request: &ReplicationRequest,
) -> Result<Vec<NodePath>> {
    let mut paths = Vec::new();
    if request.action == ReplicationAction::Deactivate {
        return Ok(paths);
    }
    let Some(node) = snapshot.node(&request.path)? else { return Ok(paths) };
    let Some(document) = snapshot.node(node.record_path())? else { return Ok(paths) };
    let mut nodes = vec![document];
    if request.depth == SubtreeScope::Subtree {
        nodes.extend(node.listed_descendants()?);
    }
    let nodes =
        nodes.iter().filter(|node| !carries_replication_stamp(node) && !is_policy(node.path()));
    paths.extend(nodes.map(|node| node.path().clone()));
    Ok(paths)
}

/// Returns true if a document is a policy of the node above it.
pub(crate) fn is_policy(path: &NodePath) -> bool {
    matches!(path.name(), "rep:policy" | "rep:cugPolicy" | "rep:repoPolicy")
}

/// Returns true if a node carries replication stamps.
pub(crate) fn carries_replication_stamp(node: &Node) -> bool {
    matches!(node.primary_type(), "cq:Page" | "dam:Asset")
}

/// Returns true if visitors may see a node or anything below it: if activation was the last action on any part of it.
///
/// # Errors
/// If content fails.
pub fn is_live(node: &Node) -> Result<bool> {
    let is_active = |node: &Node| node.summary().is_some_and(|summary| summary.is_activated());
    Ok(is_active(node) || node.listed_descendants()?.iter().any(is_active))
}
