//! The jobs that end late steps.
//!
//! Invariants
//! * A timeout is a job that is stored together with the step; it has no effect on a step that has ended.
//! * The timeout of a suspended instance continues to run, but takes effect only after the instance is resumed.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value as Json, json};
use tokio::runtime::Handle;
use tympan_notation::error_chain_text;

use crate::queue::sql::WriteTransaction;
use crate::workflow::engine::{LockedWorkflow, StepActionContext, WorkflowEngine};
use crate::workflow::model_step::WorkflowStep;
use crate::workflow::step_timeout::{LateStepAction, StepTimeout};
use crate::workflow::workflow_state::WorkflowState;
use crate::{Job, JobContext, JobHandler, JobOutcome, NewJob, Result, TIMEOUT_TOPIC};

/// The user in whose name a timeout ends a step.
const TIMEOUT_USER: &str = "timeout";
/// Interval at which a suspended instance is checked.
const SUSPENDED_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the topic and the key of a step's timeout job.
pub(crate) fn timeout_job_identity(instance: &LockedWorkflow, item: i64) -> (String, String) {
    (format!("{TIMEOUT_TOPIC}/{}", instance.model.topic_suffix), format!("item {item}"))
}

impl WorkflowEngine {
    /// Stores the timeout job of a step.
    pub(crate) async fn add_timeout_job(
        &self,
        transaction: &mut WriteTransaction,
        instance: &LockedWorkflow,
        item: i64,
        step: &WorkflowStep,
        now: SystemTime,
    ) -> Result<()> {
        let timeout = StepTimeout::of_step(step).ok().flatten();
        let Some(wait) = timeout.and_then(|timeout| timeout.remaining_wait(&instance.data, now))
        else {
            return Ok(());
        };
        let (topic, key) = timeout_job_identity(instance, item);
        let properties = json!({
            "item": item, "workflow": instance.id, "model": instance.model.path,
            "payload": instance.payload, "step": step.title,
        });
        let job = NewJob::new(topic, properties).with_key(key).with_delay(wait);
        self.queues.insert_jobs(transaction, &[(job, now)], None).await.map(|_| ())
    }
}

/// Handles the timeout jobs.
#[derive(Debug)]
pub(crate) struct StepTimeoutHandler {
    pub(crate) engine: WorkflowEngine,
    pub(crate) runtime: Handle,
    pub(crate) topic: String,
}

impl StepTimeoutHandler {
    async fn handle_late_step(&self, item: i64) -> Result<JobOutcome> {
        let Some((instance, name, _)) = self.engine.load_open_item(item).await? else {
            return Ok(JobOutcome::Done);
        };
        if instance.state != WorkflowState::Running {
            return Ok(JobOutcome::Wait { after: SUSPENDED_POLL_INTERVAL });
        }
        let timeout = instance.model.steps.get(&name).map(StepTimeout::of_step);
        let Some(Ok(Some(timeout))) = timeout else { return Ok(JobOutcome::Done) };
        let now = SystemTime::now();
        let moving =
            StepActionContext { user: TIMEOUT_USER, comment: Some("not done in time"), now };
        match timeout.late_action {
            LateStepAction::Advance => {
                self.engine.complete_step((item, instance.id), Map::new(), None, &moving).await?;
            }
            LateStepAction::Jump(target) => {
                self.engine.jump_to_step(item, instance.id, &target, "timed out", &moving).await?;
            }
            LateStepAction::Escalate(to) => {
                self.engine.escalate_step(item, instance.id, &to, &moving).await?;
            }
        }
        Ok(JobOutcome::Done)
    }
}

impl JobHandler for StepTimeoutHandler {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, job: &Job, _context: &JobContext) -> JobOutcome {
        let Some(item) = job.properties.get("item").and_then(Json::as_i64) else {
            return JobOutcome::Failed { reason: "the job names no work item".to_owned() };
        };
        match self.runtime.block_on(self.handle_late_step(item)) {
            Ok(outcome) => outcome,
            Err(error) if error.is_transient() => {
                JobOutcome::Retry { after: None, reason: error_chain_text(&error) }
            }
            Err(error) => JobOutcome::Failed { reason: error_chain_text(&error) },
        }
    }
}
