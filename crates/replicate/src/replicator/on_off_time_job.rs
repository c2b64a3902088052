//! Jobs for on and off times: the follower that stores them, and the handler that carries them out.
//!
//! Invariants
//! * Each change of content is processed once, in order: the cursor after it is stored together with the resulting
//!   jobs. Times that pass while no process runs are caught up.
//! * An action at a time needs `crx:replicate` of the user who made the change from which it results.
//! * If the times of a page are changed, only the new ones apply.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::debug;
use tympan_content::{
    ChangeCursor, JCR_CONTENT, JcrDate, Node, NodePath, RevisionChanges, SubtreeScope, Viewer,
};
use tympan_jobs::{
    ChangesAfterCursor, FollowerLoop, Job, JobContext, JobHandler, JobOutcome, NewJob,
    read_changes_after,
};
use tympan_notation::error_chain_text;

use super::Replicator;
use crate::blocking::run_blocking;
use crate::request::on_off_time::read_time;
use crate::request::replication_request::{
    ReplicationAction, ReplicationRequest, is_live, require_replicate_permission,
};
use crate::{Error, Result};

/// The topic of the jobs for on and off times.
const ON_OFF_TIME_TOPIC: &str = "com/day/cq/replication/times";
const ON_OFF_TIME_FOLLOWER_NAME: &str = "replication-times";
/// The name of the follower in the log.
const FOLLOWER_LOG_NAME: &str = "on and off times";
/// The interval at which content is polled.
const CONTENT_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of changes processed per step.
const MAX_CHANGES_PER_STEP: usize = 1000;

/// Follows content and stores jobs for on and off times.
#[derive(Debug, Clone)]
pub struct OnOffTimeFollower {
    replicator: Replicator,
}

impl OnOffTimeFollower {
    /// Creates the follower of an author.
    #[must_use]
    pub fn new(replicator: Replicator) -> Self {
        Self { replicator }
    }

    /// Follows content until `stop` becomes true.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let mut follower_loop =
            FollowerLoop::new(FOLLOWER_LOG_NAME, stop, CONTENT_POLL_INTERVAL * 10);
        while !follower_loop.is_stopped() {
            let done = self.process_next_changes(SystemTime::now()).await;
            let wait =
                done.map(|is_end| if is_end { CONTENT_POLL_INTERVAL } else { Duration::ZERO });
            follower_loop.finish_round(wait.map_err(|error| error_chain_text(&error))).await;
        }
    }

    /// Processes the next changes. Returns true if there are no more. The first call only stores the start position.
    ///
    /// # Errors
    /// If content or the queues fail.
    pub async fn process_next_changes(&self, now: SystemTime) -> Result<bool> {
        let queues = self.replicator.queues();
        let stored = queues.followers().root_of(ON_OFF_TIME_FOLLOWER_NAME).await?;
        let (this, from) = (self.clone(), stored.clone());
        let (jobs, next, is_end) =
            run_blocking(move || this.collect_jobs(from.as_deref(), now)).await??;
        let next = next.to_string();
        if stored.as_deref() != Some(&*next) {
            queues
                .followers()
                .advance(ON_OFF_TIME_FOLLOWER_NAME, (stored.as_deref(), &next), jobs, now)
                .await?;
        }
        Ok(is_end)
    }

    fn collect_jobs(
        &self,
        from: Option<&str>,
        now: SystemTime,
    ) -> Result<(Vec<NewJob>, ChangeCursor, bool)> {
        let repository = self.replicator.repository();
        let page =
            match read_changes_after(repository, from, MAX_CHANGES_PER_STEP, FOLLOWER_LOG_NAME)? {
                ChangesAfterCursor::Changes(page) => page,
                ChangesAfterCursor::Start(cursor) => return Ok((Vec::new(), cursor, true)),
            };
        let mut jobs = Vec::new();
        for revision in &page.revisions {
            self.collect_revision_jobs(revision, now, &mut jobs)?;
        }
        Ok((jobs, page.next, page.is_end))
    }

    fn collect_revision_jobs(
        &self,
        revision: &RevisionChanges,
        now: SystemTime,
        jobs: &mut Vec<NewJob>,
    ) -> Result<()> {
        let mut pages = BTreeSet::new();
        for change in &revision.changes {
            let path = &change.path;
            if path.name() == JCR_CONTENT {
                pages.extend(path.parent());
            } else {
                pages.insert(path.clone());
            }
        }
        let repository = self.replicator.repository();
        // The state after the commit, or the newest one if that was collected.
        let snapshot = repository.snapshot_at(revision.root).or_else(|_| repository.snapshot())?;
        let made = JcrDate::from_system_time(revision.time).millis;
        for path in pages {
            let Some(node) = snapshot.node(&path)?.filter(Node::is_page) else { continue };
            for (name, action) in [
                ("onTime", ReplicationAction::Activate),
                ("offTime", ReplicationAction::Deactivate),
            ] {
                // A time that was already in the past when it was set needs no job.
                let time = read_time(&node, name)?.filter(|time| time.millis > made);
                let Some(time) = time else { continue };
                let wait = time.to_system_time().duration_since(now).unwrap_or_default();
                let (user, at) = (revision.user.as_str(), time.millis);
                let properties =
                    json!({ "path": path.as_str(), "action": action.name(), "at": at });
                let job = NewJob::new(ON_OFF_TIME_TOPIC, properties)
                    .with_key(format!("{} {at} {user} {path}", action.name()))
                    .with_user(user)
                    .with_delay(wait);
                jobs.push(job);
            }
        }
        Ok(())
    }
}

/// Carries out the jobs for on and off times.
#[derive(Debug)]
pub struct OnOffTimeHandler {
    replicator: Replicator,
    runtime: Handle,
}

impl OnOffTimeHandler {
    /// Creates the handler, to be registered with a worker.
    #[must_use]
    pub fn new(replicator: Replicator, runtime: Handle) -> Self {
        Self { replicator, runtime }
    }

    fn run_scheduled_action(&self, job: &Job) -> Result<()> {
        let member = |name: &str| job.properties.get(name);
        let text = |name: &str| member(name).and_then(Json::as_str).unwrap_or_default();
        let path = NodePath::new(text("path"))?;
        let unknown = || Error::Malformed(format!("the job {} has no valid action", job.id));
        let action = ReplicationAction::from_name(text("action")).ok_or_else(unknown)?;
        let snapshot = self.replicator.repository().snapshot()?;
        let Some(node) = snapshot.node(&path)? else { return Ok(()) };
        let name = if action == ReplicationAction::Activate { "onTime" } else { "offTime" };
        let at = read_time(&node, name)?.map(|time| time.millis);
        if at != member("at").and_then(Json::as_i64) || !is_action_needed(&node, action)? {
            return Ok(());
        }
        let request = ReplicationRequest {
            action,
            path,
            depth: SubtreeScope::Document,
            user: job.user.clone(),
        };
        let viewer = Viewer::from_name(&job.user);
        let replicated = require_replicate_permission(&snapshot.as_viewer(&viewer), &request)
            .and_then(|()| {
                let requests = vec![request];
                let replication = self.replicator.replicate(viewer, requests, SystemTime::now());
                self.runtime.block_on(replication)
            });
        match replicated {
            Err(Error::Content(tympan_content::Error::AccessDenied { path, .. })) => {
                debug!(path = %path, user = job.user, "the user who set a time may not replicate");
                Ok(())
            }
            replicated => replicated.map(|_| ()),
        }
    }
}

/// Returns true if a page needs the action: it is to appear because it was activated before, or to vanish because
/// visitors have it.
fn is_action_needed(node: &Node, action: ReplicationAction) -> Result<bool> {
    let was_activated = node.summary().and_then(|summary| summary.activation_action());
    match action {
        ReplicationAction::Activate => {
            Ok(was_activated == Some(ReplicationAction::Activate.name()))
        }
        ReplicationAction::Deactivate => is_live(node),
    }
}

impl JobHandler for OnOffTimeHandler {
    fn topic(&self) -> &str {
        ON_OFF_TIME_TOPIC
    }

    fn run(&self, job: &Job, _context: &JobContext) -> JobOutcome {
        match self.run_scheduled_action(job) {
            Ok(()) => JobOutcome::Done,
            Err(error) if error.is_transient() => {
                JobOutcome::Retry { after: None, reason: error_chain_text(&error) }
            }
            Err(error) => JobOutcome::Failed { reason: error_chain_text(&error) },
        }
    }
}
