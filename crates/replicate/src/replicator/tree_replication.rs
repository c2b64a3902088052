//! Carries out trees step by step: each part is recorded in content and stored for the agents (`requested_tree`).

use std::time::{Duration, SystemTime};
use tympan_notation::error_chain_text;

use serde_json::json;
use tokio::sync::watch;
use tracing::{info, warn};
use tympan_content::NodePath;
use tympan_jobs::{Job, JobClaim, JobState, NewJob};

use super::{IDLE_POLL_INTERVAL, JOB_LEASE, Replicator};
use crate::agent::{ReplicationAgent, ReplicationAgentKind, agent_topic, read_agents};
use crate::blocking::run_blocking;
use crate::request::requested_tree::{MAX_SCANNED_JOBS, RequestedTree, TREE_TOPIC, mark_next_part};
use crate::request::tree_part::{
    ACTIVATED_SINCE_PROPERTY, CHANGED_PROPERTY, DOCUMENTS_PROPERTY, REQUESTED_ROOT_PROPERTY,
    is_tree_part_job,
};
use crate::{Error, Result};

/// The interval for checking whether another process has delivered a part.
const DELIVERY_POLL_INTERVAL: Duration = Duration::from_millis(200);
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
                        reason = error_chain_text(&error),
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
                let reason = error_chain_text(&error);
                queues.fail_job(job.id, self.process_name(), &reason, retry_at, now).await?;
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
        let accepting_agents = agents.iter().filter(|agent| agent.accepts_any_below(&path));
        for agent in accepting_agents.filter(|_| !part.paths.is_empty()) {
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
