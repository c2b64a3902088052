//! The handler of process steps.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value as Json};
use tokio::runtime::Handle;
use tympan_notation::error_chain_text;

use crate::workflow::engine::{StepActionContext, StepCompletion, WorkflowEngine, WorkflowStart};
use crate::workflow::model::WorkflowModel;
use crate::workflow::model_step::{WorkflowStep, WorkflowStepKind};
use crate::workflow::step_registry::StepRegistry;
use crate::workflow::step_run::{StepOutcome, StepRun, WorkflowProcess};
use crate::workflow::step_timeout_job::StepTimeoutHandler;
use crate::workflow::workflow_state::WorkflowState;
use crate::{
    EXTERNAL_TOPIC, Job, JobContext, JobHandler, JobOutcome, TIMEOUT_TOPIC, TRANSIENT_TOPIC,
    WORKFLOW_TOPIC,
};

/// Interval at which a suspended instance is checked.
const SUSPENDED_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Handles the jobs of workflow steps.
pub struct WorkflowHandler {
    engine: WorkflowEngine,
    runtime: Handle,
    topic: String,
    step_registry: Arc<StepRegistry>,
}

impl WorkflowHandler {
    /// Creates the handlers of all workflow topics for some processes, to register with a worker.
    #[must_use]
    pub fn for_processes(
        workflows: &WorkflowEngine,
        runtime: &Handle,
        processes: Vec<Arc<dyn WorkflowProcess>>,
    ) -> Vec<Arc<dyn JobHandler>> {
        let steps = processes.into_iter().fold(StepRegistry::default(), StepRegistry::with_process);
        Self::for_registry(workflows, runtime, steps)
    }

    /// Creates the handlers of all workflow topics. From now on, starting an instance on these queues fails if its
    /// model names other processes or choosers.
    #[must_use]
    pub fn for_registry(
        workflows: &WorkflowEngine,
        runtime: &Handle,
        steps: StepRegistry,
    ) -> Vec<Arc<dyn JobHandler>> {
        let steps = Arc::new(steps);
        workflows.queues().set_step_registry(&steps);
        let handler = |base: &str| -> Arc<dyn JobHandler> {
            Arc::new(Self {
                engine: workflows.clone(),
                runtime: runtime.clone(),
                topic: format!("{base}/**"),
                step_registry: steps.clone(),
            })
        };
        let mut all = [WORKFLOW_TOPIC, TRANSIENT_TOPIC, EXTERNAL_TOPIC].map(handler).to_vec();
        all.push(Arc::new(StepTimeoutHandler {
            engine: workflows.clone(),
            runtime: runtime.clone(),
            topic: format!("{TIMEOUT_TOPIC}/**"),
        }));
        all
    }

    fn run_step(&self, item: i64, job: &Job, context: &JobContext) -> crate::Result<JobOutcome> {
        let loaded = self.runtime.block_on(self.engine.load_open_item(item))?;
        // An earlier attempt completed the step, or somebody terminated the instance.
        let Some((instance, name, saved_data)) = loaded else { return Ok(JobOutcome::Done) };
        if instance.state != WorkflowState::Running {
            return Ok(JobOutcome::Wait { after: SUSPENDED_POLL_INTERVAL });
        }
        let failed = |reason: String| Ok(JobOutcome::Failed { reason });
        let Some(step) = instance.model.steps.get(&name) else {
            return failed(format!("the model has no step `{name}`"));
        };
        let actor = match step.text_argument("serviceUser") {
            Some(name) => match self.step_registry.require_service_user(name) {
                Ok(()) => name.to_owned(),
                Err(error) => return failed(error_chain_text(&error)),
            },
            None => instance.initiator.clone(),
        };
        let run = StepRun {
            workflow_id: instance.id,
            item_id: item,
            model: instance.model.path.clone(),
            payload: instance.payload.clone(),
            initiator: instance.initiator.clone(),
            effective_user: actor,
            title: step.title.clone(),
            arguments: step.arguments.clone(),
            data: instance.data.clone(),
            saved_data,
        };
        match step.kind {
            WorkflowStepKind::DynamicParticipant => self.assign_participant(item, step, &run),
            WorkflowStepKind::Container => {
                let inner = step.inner_model_path().unwrap_or_default();
                let model = self.step_registry.read_model(inner, &self.engine.model_roots())?;
                let now = SystemTime::now();
                self.runtime.block_on(self.engine.begin_nested_workflow(
                    item,
                    instance.id,
                    model,
                    now,
                ))?;
                Ok(JobOutcome::Done)
            }
            _ => self.execute_process(item, step, &run, job, context),
        }
    }

    /// Determines the assignee of a step.
    fn assign_participant(
        &self,
        item: i64,
        step: &WorkflowStep,
        run: &StepRun,
    ) -> crate::Result<JobOutcome> {
        let chooser_name = step.chooser_name().unwrap_or_default();
        let Some(chooser) = self.step_registry.find_chooser(chooser_name) else {
            let reason = format!("no chooser `{chooser_name}` is registered here");
            return Ok(JobOutcome::Failed { reason });
        };
        match chooser.choose_participant(run) {
            Ok(chosen) => {
                self.runtime.block_on(self.engine.assign_step(item, &chosen))?;
                Ok(JobOutcome::Done)
            }
            Err(reason) => Ok(JobOutcome::Failed { reason }),
        }
    }

    fn execute_process(
        &self,
        item: i64,
        step: &WorkflowStep,
        run: &StepRun,
        job: &Job,
        context: &JobContext,
    ) -> crate::Result<JobOutcome> {
        let process_name = step.text_argument("PROCESS").unwrap_or_default();
        let Some(process) = self.step_registry.find_process(process_name) else {
            let reason = format!(
                "no process `{process_name}` is registered here; register it, or change the step `{}` of `{}`",
                step.title, run.model
            );
            return Ok(JobOutcome::Failed { reason });
        };
        let moving = StepActionContext { user: &job.user, comment: None, now: SystemTime::now() };
        let end = |data, payload, notice| {
            let ending =
                StepCompletion { payload, ..StepCompletion::new(item, run.workflow_id, data) };
            self.runtime.block_on(self.engine.complete_step_with_notice(ending, notice, &moving))
        };
        Ok(match process.run(run, context) {
            StepOutcome::Done(data) => {
                end(data, None, None)?;
                JobOutcome::Done
            }
            StepOutcome::Moved { payload } => {
                end(Map::new(), Some(payload), None)?;
                JobOutcome::Done
            }
            StepOutcome::Notify { reader, title, data } => {
                let model = WorkflowModel::notice_model(&title, &reader);
                let (payload, initiator) = (run.payload.clone(), run.initiator.clone());
                end(
                    data,
                    None,
                    Some(WorkflowStart { model, payload, initiator, data: Map::new() }),
                )?;
                JobOutcome::Done
            }
            StepOutcome::Wait { after, saved_data } => {
                if saved_data != run.saved_data {
                    self.runtime.block_on(self.engine.save_step_data(item, &saved_data))?;
                }
                JobOutcome::Wait { after }
            }
            StepOutcome::Retry(reason) => JobOutcome::Retry { after: None, reason },
            StepOutcome::Failed(reason) => JobOutcome::Failed { reason },
        })
    }
}

impl JobHandler for WorkflowHandler {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, job: &Job, context: &JobContext) -> JobOutcome {
        let Some(item) = job.properties.get("item").and_then(Json::as_i64) else {
            return JobOutcome::Failed { reason: "the job names no work item".to_owned() };
        };
        match self.run_step(item, job, context) {
            Ok(outcome) => outcome,
            Err(error) if error.is_transient() => {
                JobOutcome::Retry { after: None, reason: error_chain_text(&error) }
            }
            Err(error) => JobOutcome::Failed { reason: error_chain_text(&error) },
        }
    }
}

impl std::fmt::Debug for WorkflowHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WorkflowHandler({})", self.topic)
    }
}
