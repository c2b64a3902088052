//! One worker for each agent, which processes the jobs of the agent's queue in order.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use tympan_notation::error_chain_text;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};
use tympan_jobs::{Job, JobClaim, JobFilter, JobState};

use super::{IDLE_POLL_INTERVAL, JOB_LEASE, Replicator};
use crate::Result;
use crate::agent::{ReplicationAgent, ReplicationAgentKind, agent_topic};
use crate::flushing::flush::send_flush;
use crate::request::superseded_job::{find_given_up_before, mark_superseded};
use crate::request::tree_part::is_tree_part_job;
use crate::request::withdrawal_job::is_withdrawal;

/// The maximum pause between two attempts.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

impl Replicator {
    /// Runs until `stop` becomes true. Agents added later also get a worker.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut workers: BTreeMap<String, ()> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        if self.state.role == "author" {
            tasks.spawn(self.clone().run_tree_loop(stop.clone()));
        }
        while !*stop.borrow() {
            for agent in self.load_agents().await {
                if workers.insert(agent.name.clone(), ()).is_none() {
                    tasks.spawn(self.clone().run_agent_worker(agent.name, stop.clone()));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(IDLE_POLL_INTERVAL) => {}
                () = self.state.wake_signal.notified() => {}
                _ = stop.changed() => {}
            }
        }
        while tasks.join_next().await.is_some() {}
        // The worker's handlers hold this replicator, so the cycle is broken here.
        *self.state.worker.lock() = None;
    }

    /// Processes the jobs of one agent in order.
    async fn run_agent_worker(self, name: String, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            // Register before checking, so that a signal between the check and the wait is not lost.
            let wakeup = self.state.wake_signal.notified();
            let pause = match self.process_next_job(&name).await {
                Ok(Some(pause)) => pause,
                Ok(None) => continue,
                Err(error) => {
                    warn!(agent = name, reason = %error, "cannot process a replication queue");
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

    /// Carries out the next job, or returns how long to wait for one.
    async fn process_next_job(&self, name: &str) -> Result<Option<Duration>> {
        let Some(agent) = self.load_agents().await.into_iter().find(|agent| agent.name == name)
        else {
            return Ok(Some(IDLE_POLL_INTERVAL));
        };
        if !agent.is_enabled {
            return Ok(Some(IDLE_POLL_INTERVAL));
        }
        if let Some(fault) = &agent.config_error {
            self.block_agent(name, fault);
            return Ok(Some(IDLE_POLL_INTERVAL));
        }
        let topic = agent_topic(self.state.role, name);
        let paused = self.state.queues.paused_queues().await?;
        if paused.contains(&self.queue_name_of(name)) {
            return Ok(Some(IDLE_POLL_INTERVAL));
        }
        if agent.kind != ReplicationAgentKind::Publish
            && self.state.flush_numbers.is_unnumbered(name)
        {
            self.skip_given_up_numbers(name, &topic).await?;
        }
        let claim = JobClaim { worker: &self.state.process_name, lease: JOB_LEASE };
        let now = SystemTime::now();
        let Some(job) = self.state.queues.claim_in_order(&[&topic], claim, now).await? else {
            let next = self.state.queues.statistics().next_ordered_run(&topic).await?;
            let wait =
                next.and_then(|next| next.duration_since(now).ok()).unwrap_or(IDLE_POLL_INTERVAL);
            return Ok(Some(wait.clamp(Duration::from_millis(1), IDLE_POLL_INTERVAL)));
        };
        if is_tree_part_job(&job) {
            // The next part is created while this one is being sent.
            self.wake_agent_workers();
        }
        self.run_claimed_job(&agent, &job).await?;
        Ok(None)
    }

    /// Begins an agent's numbers with a gap if an earlier run abandoned flushes, because their dispatcher may not know
    /// of it.
    async fn skip_given_up_numbers(&self, name: &str, topic: &str) -> Result<()> {
        let given_up = JobFilter {
            state: Some(JobState::GivenUp),
            topics: vec![topic.to_owned()],
            ..JobFilter::default()
        };
        if !self.state.queues.list_jobs(&given_up, 1).await?.is_empty() {
            self.state.flush_numbers.skip_number(name);
        }
        Ok(())
    }

    /// Sends one job and records the result.
    async fn run_claimed_job(&self, agent: &ReplicationAgent, job: &Job) -> Result<()> {
        let started = SystemTime::now();
        let queues = &self.state.queues;
        let earlier = match agent.kind {
            ReplicationAgentKind::Publish if !is_withdrawal(job) => {
                find_given_up_before(queues, job).await?
            }
            // A withdrawal leaves live documents unchanged, and a repeated flush does no harm.
            _ => Vec::new(),
        };
        let sending = async {
            match agent.kind {
                ReplicationAgentKind::Publish => self.state.sender.send_job(agent, job).await,
                _ => {
                    let transport = (self.flush_client_for(agent)?, &self.state.sender.pairs);
                    send_flush(transport, &self.state.flush_numbers, agent, job).await
                }
            }
        };
        let mut sending = std::pin::pin!(sending);
        let outcome = loop {
            tokio::select! {
                outcome = &mut sending => break outcome,
                // Stop sending a job that another process has claimed.
                () = tokio::time::sleep(JOB_LEASE / 3) => {
                    queues.renew_lease(job.id, &self.state.process_name, JOB_LEASE, SystemTime::now()).await?;
                }
            }
        };
        match outcome {
            Ok(()) => {
                let elapsed_ms = started.elapsed().unwrap_or_default().as_millis() as u64;
                debug!(
                    agent = agent.name,
                    job = job.id.0,
                    attempt = job.attempt,
                    elapsed_ms,
                    "job delivered"
                );
                if self.state.blocked_agents.lock().remove(&agent.name).is_some() {
                    info!(agent = agent.name, "replication resumed");
                }
                mark_superseded(queues, &earlier, job).await?;
                queues.finish_job(job.id, &self.state.process_name).await?;
                if is_tree_part_job(job) {
                    self.wake_agent_workers();
                }
            }
            Err(error) => {
                let reason = error_chain_text(&error);
                let retry_at =
                    error.is_transient().then(|| SystemTime::now() + retry_delay(job.attempt));
                if retry_at.is_some() {
                    self.block_agent(&agent.name, &reason);
                } else {
                    warn!(agent = agent.name, job = job.id.0, reason, "replication job given up");
                }
                queues
                    .fail_job(
                        job.id,
                        &self.state.process_name,
                        &reason,
                        retry_at,
                        SystemTime::now(),
                    )
                    .await?;
            }
        }
        Ok(())
    }
}

/// Returns the pause before the next attempt, which doubles from a quarter of a second.
fn retry_delay(attempt: u32) -> Duration {
    let doubled = Duration::from_millis(250).saturating_mul(1 << attempt.saturating_sub(1).min(16));
    doubled.min(MAX_RETRY_DELAY)
}
