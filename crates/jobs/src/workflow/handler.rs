//! The handler of steps that processes carry out.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value as Json};
use tokio::runtime::Handle;

use crate::error::chain;
use crate::workflow::engine::{Ending, Move, StartWorkflow, Workflows};
use crate::workflow::model::{Model, Step, StepKind};
use crate::workflow::query::WorkflowState;
use crate::workflow::registry::Steps;
use crate::workflow::timeout::TimeoutHandler;
use crate::{
    EXTERNAL_TOPIC, Handler, Job, JobContext, Outcome, TIMEOUT_TOPIC, TRANSIENT_TOPIC,
    WORKFLOW_TOPIC,
};

/// How often a suspended instance is looked at.
const SUSPENDED: Duration = Duration::from_secs(10);

/// Carries out steps. It runs on a thread of its own, at least once for each step.
pub trait Process: Send + Sync {
    /// Returns the name that models write as `PROCESS`.
    fn name(&self) -> &str;

    /// Carries out one step.
    fn run(&self, step: &StepRun, context: &JobContext) -> StepOutcome;
}

/// A step that is carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRun {
    /// Its instance.
    pub workflow: i64,
    /// The number of the step: another one each time that the instance comes to it, the same for each attempt.
    pub item: i64,
    /// The path of the model.
    pub model: String,
    /// What it is about: a node path.
    pub payload: String,
    /// Who started it.
    pub initiator: String,
    /// Whose rights it uses: who started the instance, or the service user that the model names.
    pub actor: String,
    /// What people call the step.
    pub title: String,
    /// The arguments of the model: `PROCESS_ARGS` and others.
    pub arguments: Map<String, Json>,
    /// What earlier steps left for later ones.
    pub data: Map<String, Json>,
    /// What this step remembered when it said that it waits: nothing at first.
    pub kept: Map<String, Json>,
}

/// How a step went.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOutcome {
    /// It is done, and leaves this for later steps.
    Done(Map<String, Json>),
    /// It is done, and lets a reader know: the notice is stored together with the end of the step.
    Notify {
        /// Who is to know: a user or a group.
        reader: String,
        /// What.
        title: String,
        /// What it leaves for later steps.
        data: Map<String, Json>,
    },
    /// It is done, and what the workflow is about is elsewhere now.
    Moved {
        /// Where: a node path.
        payload: String,
    },
    /// What it started elsewhere goes on: look again after a while, and remember this.
    Wait {
        /// How long to wait.
        after: Duration,
        /// What to remember.
        keep: Map<String, Json>,
    },
    /// Try again, as often as the queue says.
    Retry(String),
    /// Trying again cannot help; somebody has to look.
    Failed(String),
}

/// Carries out the jobs of workflow steps.
pub struct WorkflowHandler {
    workflows: Workflows,
    runtime: Handle,
    topic: String,
    steps: Arc<Steps>,
}

impl WorkflowHandler {
    /// Makes the handlers of all workflow topics for some processes, to be registered with a worker.
    #[must_use]
    pub fn all(
        workflows: &Workflows,
        runtime: &Handle,
        processes: Vec<Arc<dyn Process>>,
    ) -> Vec<Arc<dyn Handler>> {
        let steps = processes.into_iter().fold(Steps::default(), Steps::process);
        Self::of(workflows, runtime, steps)
    }

    /// Makes the handlers of all workflow topics. From now on instances of models that name other processes or choosers
    /// are refused when they are started on these queues.
    #[must_use]
    pub fn of(workflows: &Workflows, runtime: &Handle, steps: Steps) -> Vec<Arc<dyn Handler>> {
        let steps = Arc::new(steps);
        workflows.queues().know_steps(&steps);
        let handler = |base: &str| -> Arc<dyn Handler> {
            Arc::new(Self {
                workflows: workflows.clone(),
                runtime: runtime.clone(),
                topic: format!("{base}/**"),
                steps: steps.clone(),
            })
        };
        let mut all = [WORKFLOW_TOPIC, TRANSIENT_TOPIC, EXTERNAL_TOPIC].map(handler).to_vec();
        all.push(Arc::new(TimeoutHandler {
            workflows: workflows.clone(),
            runtime: runtime.clone(),
            topic: format!("{TIMEOUT_TOPIC}/**"),
        }));
        all
    }

    fn step(&self, item: i64, job: &Job, context: &JobContext) -> crate::Result<Outcome> {
        let loaded = self.runtime.block_on(self.workflows.load_item(item))?;
        // An earlier attempt ended the step, or somebody ended the instance.
        let Some((instance, name, kept)) = loaded else { return Ok(Outcome::Done) };
        if instance.state != WorkflowState::Running {
            return Ok(Outcome::Wait { after: SUSPENDED });
        }
        let failed = |reason: String| Ok(Outcome::Failed { reason });
        let Some(step) = instance.model.steps.get(&name) else {
            return failed(format!("the model has no step `{name}`"));
        };
        let actor = match step.text("serviceUser") {
            Some(name) => match self.steps.service_user(name) {
                Ok(()) => name.to_owned(),
                Err(error) => return failed(chain(&error)),
            },
            None => instance.initiator.clone(),
        };
        let run = StepRun {
            workflow: instance.id,
            item,
            model: instance.model.path.clone(),
            payload: instance.payload.clone(),
            initiator: instance.initiator.clone(),
            actor,
            title: step.title.clone(),
            arguments: step.data.clone(),
            data: instance.data.clone(),
            kept,
        };
        match step.kind {
            StepKind::DynamicParticipant => self.choose((item, step), &run),
            StepKind::Container => {
                let inner = step.inner_model().unwrap_or_default();
                let model = self.steps.read_model(inner, &self.workflows.models())?;
                let now = SystemTime::now();
                self.runtime.block_on(self.workflows.begin_part(
                    (item, instance.id),
                    model,
                    now,
                ))?;
                Ok(Outcome::Done)
            }
            _ => self.carry_out((item, step), &run, (job, context)),
        }
    }

    /// Finds out who is to do a step.
    fn choose(&self, (item, step): (i64, &Step), run: &StepRun) -> crate::Result<Outcome> {
        let wanted = step.chooser().unwrap_or_default();
        let Some(chooser) = self.steps.find_chooser(wanted) else {
            let reason = format!("no chooser `{wanted}` is known here");
            return Ok(Outcome::Failed { reason });
        };
        match chooser.choose(run) {
            Ok(chosen) => {
                self.runtime.block_on(self.workflows.assign(item, &chosen))?;
                Ok(Outcome::Done)
            }
            Err(reason) => Ok(Outcome::Failed { reason }),
        }
    }

    fn carry_out(
        &self,
        (item, step): (i64, &Step),
        run: &StepRun,
        (job, context): (&Job, &JobContext),
    ) -> crate::Result<Outcome> {
        let wanted = step.text("PROCESS").unwrap_or_default();
        let Some(process) = self.steps.find_process(wanted) else {
            let reason = format!(
                "no process `{wanted}` is known here; register it, or change the step `{}` of `{}`",
                step.title, run.model
            );
            return Ok(Outcome::Failed { reason });
        };
        let moving = Move { user: &job.user, comment: None, now: SystemTime::now() };
        let end = |data, payload, notice| {
            let ending = Ending { payload, ..Ending::new(item, run.workflow, data) };
            self.runtime.block_on(self.workflows.end_with_notice(ending, notice, &moving))
        };
        Ok(match process.run(run, context) {
            StepOutcome::Done(data) => {
                end(data, None, None)?;
                Outcome::Done
            }
            StepOutcome::Moved { payload } => {
                end(Map::new(), Some(payload), None)?;
                Outcome::Done
            }
            StepOutcome::Notify { reader, title, data } => {
                let model = Model::notice(&title, &reader);
                let (payload, initiator) = (run.payload.clone(), run.initiator.clone());
                end(
                    data,
                    None,
                    Some(StartWorkflow { model, payload, initiator, data: Map::new() }),
                )?;
                Outcome::Done
            }
            StepOutcome::Wait { after, keep } => {
                if keep != run.kept {
                    self.runtime.block_on(self.workflows.keep_step_data(item, &keep))?;
                }
                Outcome::Wait { after }
            }
            StepOutcome::Retry(reason) => Outcome::Retry { after: None, reason },
            StepOutcome::Failed(reason) => Outcome::Failed { reason },
        })
    }
}

impl Handler for WorkflowHandler {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, job: &Job, context: &JobContext) -> Outcome {
        let Some(item) = job.properties.get("item").and_then(Json::as_i64) else {
            return Outcome::Failed { reason: "the job names no work item".to_owned() };
        };
        match self.step(item, job, context) {
            Ok(outcome) => outcome,
            Err(error) if error.is_transient() => {
                Outcome::Retry { after: None, reason: chain(&error) }
            }
            Err(error) => Outcome::Failed { reason: chain(&error) },
        }
    }
}

impl std::fmt::Debug for WorkflowHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WorkflowHandler({})", self.topic)
    }
}
