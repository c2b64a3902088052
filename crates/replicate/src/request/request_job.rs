//! The jobs of replication requests: stored before content records the requests, released to the agents after it.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tympan_content::{ChunkId, Repository, SubtreeScope};
use tympan_jobs::{JobId, JobQueues, NewJob};

use crate::agent::{ReplicationAgent, ReplicationAgentKind, agent_topic, read_agents};
use crate::blocking::run_blocking;
use crate::request::replication_request::{ReplicationAction, ReplicationRequest};
use crate::request::requested_tree::{
    TREE_TOPIC, find_partwise_requests, record_with_waiting_trees, tree_job_payload,
};
use crate::{Error, Result};

/// Jobs that are stored before the request is recorded in content, so that a crash between the two loses neither.
#[derive(Debug)]
pub struct ReplicationRequestJobs {
    jobs: Vec<(JobId, Json)>,
    /// The indexes of the requests that are carried out in parts.
    partwise_requests: BTreeSet<usize>,
}

/// Stores a held job for each request and each enabled agent of the author that sends to a publisher. For a tree that
/// is carried out in parts, it stores one job for all agents.
///
/// # Errors
/// [`Error::InvalidAgent`] if there is no agent for a request; errors of the queues.
pub async fn store_request_jobs(
    repository: &Repository,
    queues: &JobQueues,
    requests: &[ReplicationRequest],
    now: SystemTime,
) -> Result<ReplicationRequestJobs> {
    let (reading, request_copies) = (repository.clone(), requests.to_vec());
    let (agents, in_parts) = run_blocking(move || -> Result<_> {
        let snapshot = reading.snapshot()?;
        let in_parts = find_partwise_requests(&snapshot, &request_copies)?;
        Ok((read_agents(&snapshot, "author")?, in_parts))
    })
    .await??;
    record_with_waiting_trees(queues, requests).await?;
    let agents: Vec<ReplicationAgent> = agents
        .into_iter()
        .filter(|agent| agent.is_enabled && agent.kind == ReplicationAgentKind::Publish)
        .collect();
    let nobody = |reason: String| Error::InvalidAgent { agent: "author".to_owned(), reason };
    if agents.is_empty() {
        let reason =
            "no enabled agent sends to a publisher; add one below `/etc/replication/agents.author`";
        return Err(nobody(reason.to_owned()));
    }
    let mut job_parts = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        let accepting_agents: Vec<String> = agents
            .iter()
            .filter(|agent| is_agent_for_request(agent, request))
            .map(|agent| agent_topic("author", &agent.name))
            .collect();
        if accepting_agents.is_empty() {
            let path = &request.path;
            return Err(nobody(format!(
                "no enabled agent accepts `{path}`: all of them are for other paths"
            )));
        }
        if in_parts.contains(&number) {
            job_parts.push((TREE_TOPIC.to_owned(), tree_job_payload(request, now), request));
            continue;
        }
        for topic in &accepting_agents {
            let payload = json!({
                "action": request.action.name(),
                "path": request.path.as_str(),
                "deep": request.depth == SubtreeScope::Subtree,
            });
            job_parts.push((topic.clone(), payload, request));
        }
    }
    let jobs = job_parts.iter().map(|(topic, payload, request)| {
        NewJob::new(topic.as_str(), payload.clone())
            .with_user(request.user.as_str())
            .with_subject_path(request.path.clone())
    });
    let ids = queues.held_jobs().add(jobs.collect(), now).await?;
    let payloads = job_parts.iter().map(|(_, payload, _)| payload.clone());
    Ok(ReplicationRequestJobs {
        jobs: ids.into_iter().zip(payloads).collect(),
        partwise_requests: in_parts,
    })
}

/// Returns true if an agent handles a request, or a part of it.
fn is_agent_for_request(agent: &ReplicationAgent, request: &ReplicationRequest) -> bool {
    if request.depth == SubtreeScope::Subtree || request.action == ReplicationAction::Deactivate {
        agent.accepts_any_below(&request.path)
    } else {
        agent.accepts_path(&request.path)
    }
}

impl ReplicationRequestJobs {
    /// Returns the requests that are recorded in content at once; the others are recorded part by part.
    #[must_use]
    pub fn immediate_requests(&self, requests: &[ReplicationRequest]) -> Vec<ReplicationRequest> {
        let requests = requests.iter().enumerate();
        let at_once = requests.filter(|(number, _)| !self.partwise_requests.contains(number));
        at_once.map(|(_, request)| request.clone()).collect()
    }

    /// Releases the jobs to the agents, to be sent from the state created since.
    ///
    /// # Errors
    /// Errors of the queues.
    pub async fn release(
        mut self,
        queues: &JobQueues,
        root: ChunkId,
        now: SystemTime,
    ) -> Result<()> {
        for (_, payload) in &mut self.jobs {
            if let Some(payload) = payload.as_object_mut() {
                payload.insert("root".to_owned(), root.to_string().into());
            }
        }
        Ok(queues.held_jobs().release(&self.jobs, now).await?)
    }

    /// Removes the jobs, because the change for which they were stored did not happen.
    ///
    /// # Errors
    /// Errors of the queues.
    pub async fn discard(self, queues: &JobQueues) -> Result<()> {
        let ids: Vec<JobId> = self.jobs.iter().map(|(id, _)| *id).collect();
        Ok(queues.held_jobs().discard(&ids).await?)
    }
}
