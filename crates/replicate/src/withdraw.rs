//! Withdrawals: what commits took from the author and visitors still have becomes work for the agents.
//!
//! In: the entries that commits leave beside the content (`content::Withdrawal`). Out: jobs for the agents, and afterwards
//! the removal of the entries.
//!
//! Invariants
//! * Jobs are stored before their entries go. A crash between the two stores them a second time, which changes nothing, as
//!   what a withdrawal leaves is read from the newest state when it is sent.
//! * A document that was moved stays with visitors at its old address until they have it at the new one.
//! * An entry that no agent takes stays, and is listed as an orphan.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::json;
use tokio::sync::watch;
use tracing::info;
use tympan_content::{ChunkId, Depth, Node, NodePath, Revising, Snapshot, Withdrawal};
use tympan_jobs::{NewJob, Rounds, chain};

use crate::activation::{Action, is_stamped};
use crate::agent::{AgentKind, agents};
use crate::replicator::{IDLE, Replicator, look_of, topic_of};
use crate::send::blocking;
use crate::status::{Status, status_of};
use crate::{Agent, Error, Result};

/// The property of a job that takes away what a commit removed, but for what is live by the newest state.
pub(crate) const WITHDRAWAL: &str = "withdrawal";

/// A document that visitors have although it is not at this address any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// The address.
    pub path: NodePath,
    /// Where the document is now; visitors keep the old one until it is activated there.
    pub moved_to: Option<NodePath>,
    /// Who removed or moved it.
    pub by: String,
    /// When.
    pub at: SystemTime,
    /// Whether it waits for an activation; else it is about to be taken away, as soon as an agent is there for it.
    pub is_waiting: bool,
}

/// Lists what visitors have at and below a node that is not there any more.
///
/// # Errors
/// If content fails.
pub fn orphans(snapshot: &Snapshot, top: &NodePath) -> Result<Vec<Orphan>> {
    let mut found = Vec::new();
    for entry in snapshot.withdrawals(top)?.into_iter().filter(|entry| entry.was_activated) {
        let is_waiting = is_awaited(snapshot, &entry)?;
        let Withdrawal { path, moved_to, user: by, at, .. } = entry;
        found.push(Orphan { path, moved_to, by, at, is_waiting });
    }
    Ok(found)
}

/// Tells whether a moved document is still to be activated at its new address.
fn is_awaited(snapshot: &Snapshot, entry: &Withdrawal) -> Result<bool> {
    let Some(to) = entry.moved_to.as_ref().filter(|_| entry.was_activated) else {
        return Ok(false);
    };
    let Some(moved) = snapshot.node(to)? else { return Ok(false) };
    if is_stamped(&moved) {
        return Ok(status_of(&moved) == Status::Never);
    }
    // A folder waits for nothing but what is in it.
    let is_activated =
        || Ok::<_, Error>(!snapshot.activated_documents(to, Depth::Document)?.is_empty());
    Ok(moved.summary().is_some() && !moved.is_folder() && !is_activated()?)
}

/// Tells whether an entry is about a folder, which stays as long as visitors have anything in it.
fn is_about_folder(snapshot: &Snapshot, entry: &Withdrawal) -> Result<bool> {
    let Some(to) = entry.moved_to.as_ref().filter(|_| entry.was_activated) else {
        return Ok(!entry.was_activated);
    };
    let moved = snapshot.node(to)?;
    Ok(moved.is_some_and(|node| !is_stamped(&node) && node.is_folder()))
}

/// Divides entries into those that are to be carried out and those that wait.
fn divided(
    snapshot: &Snapshot,
    entries: Vec<Withdrawal>,
) -> Result<(Vec<Withdrawal>, Vec<Withdrawal>)> {
    let (mut due, mut waiting, mut folders) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        if is_about_folder(snapshot, &entry)? {
            folders.push(entry);
        } else if is_awaited(snapshot, &entry)? {
            waiting.push(entry);
        } else {
            due.push(entry);
        }
    }
    // A folder stays as long as visitors have anything in it, with the policies that close it.
    for folder in folders {
        let is_needed = waiting.iter().any(|entry| entry.path.is_within(&folder.path));
        if is_needed { waiting.push(folder) } else { due.push(folder) }
    }
    Ok((due, waiting))
}

/// Returns the documents at and below an address that were activated last.
pub(crate) fn live_at(snapshot: &Snapshot, top: &NodePath) -> Result<BTreeSet<NodePath>> {
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
    let activated = snapshot.activated_documents(top, Depth::Subtree)?;
    live.extend(activated.into_iter().map(|document| document.path));
    Ok(live)
}

/// Returns the documents at and below an address that visitors are to keep when everything else there is taken away.
pub(crate) fn kept_at(snapshot: &Snapshot, top: &NodePath) -> Result<Vec<NodePath>> {
    let mut kept = live_at(snapshot, top)?;
    let (_, waiting) = divided(snapshot, snapshot.withdrawals(top)?)?;
    kept.extend(waiting.into_iter().map(|entry| entry.path));
    Ok(kept.into_iter().collect())
}

/// Tells whether visitors are to get a document by the newest state, whatever an older wish said: whether it is neither
/// gone nor taken away.
pub(crate) fn is_still_wished(newest: &Snapshot, path: &NodePath) -> Result<bool> {
    match newest.node(path)? {
        Some(node) => Ok(status_of(&node) != Status::TakenAway),
        None => {
            let entries = newest.withdrawals(path)?;
            let Some(entry) = entries.iter().find(|entry| entry.path == *path) else {
                return Ok(false);
            };
            is_awaited(newest, entry)
        }
    }
}

/// Returns those entries that are not below others.
fn tops(due: &[Withdrawal]) -> Vec<&Withdrawal> {
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
type Planned = (Vec<NewJob>, Vec<Withdrawal>);

fn plan(snapshot: &Snapshot) -> Result<Planned> {
    let (mut jobs, mut done) = (Vec::new(), Vec::new());
    let entries = snapshot.withdrawals(&NodePath::root())?;
    if entries.is_empty() {
        return Ok((jobs, done));
    }
    let (due, _) = divided(snapshot, entries)?;
    let mut agents: Vec<Agent> = agents(snapshot, "author")?;
    agents.retain(|agent| agent.is_enabled && agent.kind == AgentKind::Publish);
    for top in tops(&due) {
        let takers = agents.iter().filter(|agent| agent.takes_any_below(&top.path));
        let before = jobs.len();
        for agent in takers {
            let topic = topic_of("author", &agent.name);
            let at = tympan_content::Date::from_system_time(top.at).millis;
            let key = format!("withdraw {topic} {at} {}", top.path);
            let payload = json!({
                "action": Action::Deactivate.name(),
                "path": top.path.as_str(),
                "deep": true,
                WITHDRAWAL: true,
            });
            let job = NewJob::new(topic, payload).user(top.user.as_str());
            jobs.push(job.about(top.path.clone()).key(key));
        }
        if jobs.len() > before {
            let covered = due.iter().filter(|entry| entry.path.is_within(&top.path));
            done.extend(covered.cloned());
        }
    }
    Ok((jobs, done))
}

impl Replicator {
    /// Stores jobs for what commits took from the author and visitors still have; returns how many.
    ///
    /// # Errors
    /// If content or the queues fail.
    pub async fn withdraw(&self, now: SystemTime) -> Result<usize> {
        let turn = self.turn().await;
        let repository = self.repository().clone();
        let (jobs, done) = blocking(move || plan(&repository.snapshot()?)).await??;
        if jobs.is_empty() {
            return Ok(0);
        }
        let count = self.queues().add_all(jobs, now).await?.len();
        let repository = self.repository().clone();
        blocking(move || -> Result<()> {
            let message = match done.as_slice() {
                [one] => format!("withdraw {}", one.path),
                all => format!("withdraw {} addresses", all.len()),
            };
            let revising = Revising { user: "system", message: &message, at: now };
            Ok(repository.settle_withdrawals(&done, revising)?)
        })
        .await??;
        drop(turn);
        info!(jobs = count, "what was removed or moved is taken away from visitors");
        self.ring();
        Ok(count)
    }

    /// Follows content until `stop` turns true: what other processes, commands and crashes left is withdrawn, too.
    pub async fn keep_withdrawing(self, stop: watch::Receiver<bool>) {
        let look = look_of(self.repository());
        let mut rounds = Rounds::new("withdrawals", stop, IDLE);
        let mut last = None;
        while !rounds.is_over() {
            let round = self.withdraw_new(&mut last).await.map(|()| look);
            rounds.end(round.map_err(|error| chain(&error))).await;
        }
    }

    /// Withdraws if content has moved on since the last look.
    async fn withdraw_new(&self, last: &mut Option<ChunkId>) -> Result<()> {
        let repository = self.repository().clone();
        let head = blocking(move || repository.head()).await??;
        if *last == Some(head) {
            return Ok(());
        }
        self.withdraw(SystemTime::now()).await?;
        *last = Some(head);
        Ok(())
    }
}
