//! Withdrawals: what commits removed from the author and visitors still have becomes jobs for the agents.
//!
//! In: the entries that commits write beside the content (`content::Withdrawal`). Out: jobs for the agents, and
//! afterwards the removal of the entries.
//!
//! Invariants
//! * Jobs are stored before their entries are removed. A crash between the two stores them a second time, which has no
//!   further effect, because the documents that a withdrawal retains are read from the newest state when it is sent.
//! * A document that was moved stays with visitors at its old path until they have it at the new one.
//! * An entry that no agent accepts stays, and is listed as an orphan.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tympan_content::{Node, NodePath, Snapshot, SubtreeScope, Withdrawal};
use tympan_jobs::{Job, NewJob};

use crate::agent::{ReplicationAgent, ReplicationAgentKind, agent_topic, read_agents};
use crate::request::replication_request::{ReplicationAction, carries_replication_stamp};
use crate::request::replication_status::{ReplicationStatus, stamped_status};
use crate::{Error, Result};

/// The property of a job that withdraws what a commit removed, except for what is live in the newest state.
const WITHDRAWAL_PROPERTY: &str = "withdrawal";

/// Returns true if a job withdraws what a commit removed, not what a user requested.
pub(crate) fn is_withdrawal(job: &Job) -> bool {
    job.properties.get(WITHDRAWAL_PROPERTY).and_then(Json::as_bool).unwrap_or(false)
}

/// A document that visitors have although it is no longer at this path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanedDocument {
    /// The path.
    pub path: NodePath,
    /// The new path of the document; visitors keep the old one until it is activated there.
    pub moved_to: Option<NodePath>,
    /// The user who removed or moved it.
    pub removed_by: String,
    /// The time of the removal or move.
    pub removed_at: SystemTime,
    /// True if it waits for an activation. Otherwise it is withdrawn as soon as there is an agent for it.
    pub awaits_activation: bool,
}

/// Lists what visitors have at and below a node that is no longer there.
///
/// # Errors
/// If content fails.
pub fn list_orphaned_documents(
    snapshot: &Snapshot,
    top: &NodePath,
) -> Result<Vec<OrphanedDocument>> {
    let mut orphans = Vec::new();
    for entry in snapshot.withdrawals(top)?.into_iter().filter(|entry| entry.was_activated) {
        let is_waiting = awaits_activation(snapshot, &entry)?;
        let Withdrawal { path, moved_to, user, withdrawn_at, .. } = entry;
        orphans.push(OrphanedDocument {
            path,
            moved_to,
            removed_by: user,
            removed_at: withdrawn_at,
            awaits_activation: is_waiting,
        });
    }
    Ok(orphans)
}

/// Returns true if a moved document is not yet activated at its new path.
fn awaits_activation(snapshot: &Snapshot, entry: &Withdrawal) -> Result<bool> {
    let Some(to) = entry.moved_to.as_ref().filter(|_| entry.was_activated) else {
        return Ok(false);
    };
    let Some(moved) = snapshot.node(to)? else { return Ok(false) };
    if carries_replication_stamp(&moved) {
        return Ok(stamped_status(&moved) == ReplicationStatus::Never);
    }
    // A folder waits only for its content.
    let is_activated =
        || Ok::<_, Error>(!snapshot.activated_documents(to, SubtreeScope::Document)?.is_empty());
    Ok(moved.summary().is_some() && !moved.is_folder() && !is_activated()?)
}

/// Returns true if an entry is about a folder, which stays as long as visitors have anything in it.
fn is_folder_withdrawal(snapshot: &Snapshot, entry: &Withdrawal) -> Result<bool> {
    let Some(to) = entry.moved_to.as_ref().filter(|_| entry.was_activated) else {
        return Ok(!entry.was_activated);
    };
    let moved = snapshot.node(to)?;
    Ok(moved.is_some_and(|node| !carries_replication_stamp(&node) && node.is_folder()))
}

/// Divides entries into those to carry out and those that wait.
fn partition_due_withdrawals(
    snapshot: &Snapshot,
    entries: Vec<Withdrawal>,
) -> Result<(Vec<Withdrawal>, Vec<Withdrawal>)> {
    let (mut due, mut waiting, mut folders) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        if is_folder_withdrawal(snapshot, &entry)? {
            folders.push(entry);
        } else if awaits_activation(snapshot, &entry)? {
            waiting.push(entry);
        } else {
            due.push(entry);
        }
    }
    // A folder, with the policies that protect it, stays as long as visitors have anything in it.
    for folder in folders {
        let is_needed = waiting.iter().any(|entry| entry.path.is_within(&folder.path));
        if is_needed { waiting.push(folder) } else { due.push(folder) }
    }
    Ok((due, waiting))
}

/// Returns the documents at and below a path whose last action was an activation.
pub(crate) fn live_documents_below(
    snapshot: &Snapshot,
    top: &NodePath,
) -> Result<BTreeSet<NodePath>> {
    let mut live = BTreeSet::new();
    let mut add = |node: &Node| {
        if node.summary().is_some_and(|summary| summary.is_activated()) {
            live.insert(node.path().clone());
        }
    };
    if let Some(node) = snapshot.node(top)? {
        add(&node);
        node.visit_listed_descendants(|node| -> Result<()> {
            add(&node);
            Ok(())
        })?;
    }
    let activated = snapshot.activated_documents(top, SubtreeScope::Subtree)?;
    live.extend(activated.into_iter().map(|document| document.path));
    Ok(live)
}

/// Returns the documents at and below a path that visitors retain when everything else there is withdrawn.
pub(crate) fn retained_documents_below(
    snapshot: &Snapshot,
    top: &NodePath,
) -> Result<Vec<NodePath>> {
    let mut documents = live_documents_below(snapshot, top)?;
    let (_, waiting) = partition_due_withdrawals(snapshot, snapshot.withdrawals(top)?)?;
    documents.extend(waiting.into_iter().map(|entry| entry.path));
    Ok(documents.into_iter().collect())
}

/// Returns true if visitors are to get a document according to the newest state, regardless of an older request: if it
/// is neither removed nor withdrawn.
pub(crate) fn is_still_requested(newest: &Snapshot, path: &NodePath) -> Result<bool> {
    match newest.node(path)? {
        Some(node) => Ok(stamped_status(&node) != ReplicationStatus::Deactivated),
        None => {
            let entries = newest.withdrawals(path)?;
            let Some(entry) = entries.iter().find(|entry| entry.path == *path) else {
                return Ok(false);
            };
            awaits_activation(newest, entry)
        }
    }
}

/// Returns the entries that are not below other entries.
fn topmost_withdrawals(due: &[Withdrawal]) -> Vec<&Withdrawal> {
    let paths: BTreeSet<&NodePath> = due.iter().map(|entry| &entry.path).collect();
    let is_top = |entry: &&Withdrawal| {
        let mut above = entry.path.parent();
        while let Some(path) = above {
            if paths.contains(&path) {
                return false;
            }
            above = path.parent();
        }
        true
    };
    due.iter().filter(is_top).collect()
}

/// Jobs, and the entries that they carry out.
pub(crate) type WithdrawalPlan = (Vec<NewJob>, Vec<Withdrawal>);

/// Returns the jobs for what visitors still have of what commits removed.
pub(crate) fn plan_withdrawals(snapshot: &Snapshot) -> Result<WithdrawalPlan> {
    let (mut jobs, mut done) = (Vec::new(), Vec::new());
    let entries = snapshot.withdrawals(&NodePath::root())?;
    if entries.is_empty() {
        return Ok((jobs, done));
    }
    let (due, _) = partition_due_withdrawals(snapshot, entries)?;
    let mut agents: Vec<ReplicationAgent> = read_agents(snapshot, "author")?;
    agents.retain(|agent| agent.is_enabled && agent.kind == ReplicationAgentKind::Publish);
    for top in topmost_withdrawals(&due) {
        let accepting_agents = agents.iter().filter(|agent| agent.accepts_any_below(&top.path));
        let before = jobs.len();
        for agent in accepting_agents {
            let topic = agent_topic("author", &agent.name);
            let at = tympan_content::JcrDate::from_system_time(top.withdrawn_at).millis;
            let key = format!("withdraw {topic} {at} {}", top.path);
            let payload = json!({
                "action": ReplicationAction::Deactivate.name(),
                "path": top.path.as_str(),
                "deep": true,
                WITHDRAWAL_PROPERTY: true,
            });
            let job = NewJob::new(topic, payload).with_user(top.user.as_str());
            jobs.push(job.with_subject_path(top.path.clone()).with_key(key));
        }
        if jobs.len() > before {
            let covered = due.iter().filter(|entry| entry.path.is_within(&top.path));
            done.extend(covered.cloned());
        }
    }
    Ok((jobs, done))
}
