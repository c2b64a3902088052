//! Replication status: for each page and asset whether visitors have it, since when, by whom, and whether it changed
//! since.

use std::time::SystemTime;

use tympan_content::{Node, NodePath, Snapshot, SubtreeScope};

use crate::Result;
use crate::request::replication_request::{ReplicationAction, carries_replication_stamp};

/// The state of a document at visitors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationStatus {
    /// Visitors have nothing: it was never activated.
    Never,
    /// Visitors have its current state.
    Live,
    /// Visitors have an older state.
    Outdated,
    /// Visitors no longer have it.
    Deactivated,
}

impl ReplicationStatus {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Live => "live",
            Self::Outdated => "outdated",
            Self::Deactivated => "taken-away",
        }
    }
}

/// A document with its replication status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicatedDocument {
    /// The path of the document.
    pub path: NodePath,
    /// The title, if any.
    pub title: Option<String>,
    /// The replication status.
    pub status: ReplicationStatus,
    /// The time of the last activation or deactivation.
    pub replicated_at: Option<SystemTime>,
    /// The user who did it.
    pub replicated_by: Option<String>,
}

/// Returns the replication status of a document, including one that carries no stamps, such as a tag.
///
/// # Errors
/// If content fails.
pub fn document_status(node: &Node) -> Result<ReplicationStatus> {
    if carries_replication_stamp(node) {
        return Ok(stamped_status(node));
    }
    let activated =
        node.snapshot().activated_documents(node.record_path(), SubtreeScope::Document)?;
    Ok(match activated.first() {
        None => ReplicationStatus::Never,
        Some(document) if document.is_unchanged => ReplicationStatus::Live,
        Some(_) => ReplicationStatus::Outdated,
    })
}

/// Returns the replication status of a page or an asset.
#[must_use]
pub fn stamped_status(node: &Node) -> ReplicationStatus {
    let Some(summary) = node.summary() else { return ReplicationStatus::Never };
    match summary.activation_action().and_then(ReplicationAction::from_name) {
        None => ReplicationStatus::Never,
        Some(ReplicationAction::Deactivate) => ReplicationStatus::Deactivated,
        Some(ReplicationAction::Activate) => {
            let (modified, activated) = (summary.last_modified(), summary.activation_date());
            let changed = modified
                .zip(activated)
                .map(|(modification, activation)| modification.millis > activation.millis);
            if changed == Some(true) {
                ReplicationStatus::Outdated
            } else {
                ReplicationStatus::Live
            }
        }
    }
}

/// Lists the activated pages and assets at and below a node, in content order: at most `limit` documents after `after`.
///
/// # Errors
/// If content fails.
pub fn list_live_documents(
    snapshot: &Snapshot,
    top: &NodePath,
    after: Option<&NodePath>,
    limit: usize,
) -> Result<Vec<ReplicatedDocument>> {
    let Some(node) = snapshot.node(top)? else { return Ok(Vec::new()) };
    let mut nodes = vec![node.clone()];
    nodes.extend(node.listed_descendants()?);
    let mut documents = Vec::new();
    let mut is_behind = after.is_none();
    for node in nodes {
        if !is_behind {
            is_behind = Some(node.path()) == after;
            continue;
        }
        let status = stamped_status(&node);
        if !matches!(status, ReplicationStatus::Live | ReplicationStatus::Outdated) {
            continue;
        }
        documents.push(describe_document(&node, status)?);
        if documents.len() >= limit {
            break;
        }
    }
    Ok(documents)
}

/// Returns a document with its replication status.
pub(crate) fn describe_document(
    node: &Node,
    status: ReplicationStatus,
) -> Result<ReplicatedDocument> {
    let summary = node.summary();
    let activated = summary.and_then(|summary| summary.activation_date());
    let content = node.content_node()?;
    Ok(ReplicatedDocument {
        path: node.path().clone(),
        title: summary.and_then(|summary| summary.title()).map(str::to_owned),
        status,
        replicated_at: activated.map(tympan_content::JcrDate::to_system_time),
        replicated_by: content.and_then(|content| content.text("cq:lastReplicatedBy")),
    })
}
