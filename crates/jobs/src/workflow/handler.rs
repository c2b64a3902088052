//! The handler of steps that processes carry out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value as Json};
use tokio::runtime::Handle;

use crate::worker::chain;
use crate::workflow::engine::{Move, Workflows};
use crate::workflow::query::WorkflowState;
use crate::{EXTERNAL_TOPIC, Handler, Job, JobContext, Outcome, TRANSIENT_TOPIC, WORKFLOW_TOPIC};

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
    /// The path of the model.
    pub model: String,
    /// What it is about: a node path.
    pub payload: String,
    /// Who started it.
    pub initiator: String,
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
    processes: Arc<BTreeMap<String, Arc<dyn Process>>>,
}

impl WorkflowHandler {
    /// Makes the handlers of all workflow topics, to be registered with a worker.
    #[must_use]
    pub fn all(
        workflows: &Workflows,
        runtime: &Handle,
        processes: Vec<Arc<dyn Process>>,
    ) -> Vec<Arc<dyn Handler>> {
        let named = processes.into_iter().map(|process| (process.name().to_owned(), process));
        let processes: Arc<BTreeMap<String, Arc<dyn Process>>> = Arc::new(named.collect());
        let handler = |base: &str| -> Arc<dyn Handler> {
            Arc::new(Self {
                workflows: workflows.clone(),
                runtime: runtime.clone(),
                topic: format!("{base}/**"),
                processes: processes.clone(),
            })
        };
        [WORKFLOW_TOPIC, TRANSIENT_TOPIC, EXTERNAL_TOPIC].map(handler).to_vec()
    }

    /// Finds a process by its name or by the last part of it: models write names of classes.
    fn process(&self, name: &str) -> Option<&Arc<dyn Process>> {
        let short = name.rsplit(['.', '/']).next().unwrap_or(name);
        self.processes.get(name).or_else(|| {
            let last = |known: &str| known.rsplit(['.', '/']).next() == Some(short);
            self.processes.iter().find(|(known, _)| last(known)).map(|(_, process)| process)
        })
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
        let wanted = step.text("PROCESS").unwrap_or_default();
        let Some(process) = self.process(wanted) else {
            return failed(format!(
                "no process `{wanted}` is known here; register it, or change the step `{}` of `{}`",
                step.title, instance.model.path
            ));
        };
        let run = StepRun {
            workflow: instance.id,
            model: instance.model.path.clone(),
            payload: instance.payload.clone(),
            initiator: instance.initiator.clone(),
            title: step.title.clone(),
            arguments: step.data.clone(),
            data: instance.data.clone(),
            kept,
        };
        Ok(match process.run(&run, context) {
            StepOutcome::Done(data) => {
                let moving = Move { user: &job.user, comment: None, now: SystemTime::now() };
                let end = self.workflows.end_item((item, instance.id), data, None, &moving);
                self.runtime.block_on(end)?;
                Outcome::Done
            }
            StepOutcome::Wait { after, keep } => {
                self.runtime.block_on(self.workflows.keep_step_data(item, &keep))?;
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
