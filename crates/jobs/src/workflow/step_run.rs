//! The execution of one step by a process: its input and its outcome.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::JobContext;

/// Executes steps. It runs on a thread of its own, at least once for each step.
pub trait WorkflowProcess: Send + Sync {
    /// Returns the name used in models as `PROCESS`.
    fn name(&self) -> &str;

    /// Executes one step.
    fn run(&self, step: &StepRun, context: &JobContext) -> StepOutcome;
}

/// A step to execute.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRun {
    /// The instance's number.
    pub workflow_id: i64,
    /// The number of the step: a new one each time that the instance reaches it, the same for each attempt.
    pub item_id: i64,
    /// The path of the model.
    pub model: String,
    /// The payload: a node path.
    pub payload: String,
    /// The user who started the instance.
    pub initiator: String,
    /// The user whose permissions apply: the one who started the instance, or the service user that the model names.
    pub effective_user: String,
    /// The step's title.
    pub title: String,
    /// The arguments from the model: `PROCESS_ARGS` and others.
    pub arguments: Map<String, Json>,
    /// Data from earlier steps.
    pub data: Map<String, Json>,
    /// Data that this step saved when it returned `Wait`; empty at first.
    pub saved_data: Map<String, Json>,
}

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOutcome {
    /// The step is done, with data for later steps.
    Done(Map<String, Json>),
    /// The step is done, and a reader is notified: the notice is stored together with the end of the step.
    Notify {
        /// The reader: a user or a group.
        reader: String,
        /// The title of the notice.
        title: String,
        /// Data for later steps.
        data: Map<String, Json>,
    },
    /// The step is done, and the payload has moved.
    Moved {
        /// The new payload: a node path.
        payload: String,
    },
    /// Work in another system continues: run the step again after a delay, with the saved data.
    Wait {
        /// The delay.
        after: Duration,
        /// Data to save.
        saved_data: Map<String, Json>,
    },
    /// Retry, as often as the queue allows.
    Retry(String),
    /// A retry cannot help; the step needs attention.
    Failed(String),
}
