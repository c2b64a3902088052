//! Workflows: models of steps, executed by jobs and by people.
//!
//! In: models and launchers in content, requests of people. Out: instances that advance from step to step.
//!
//! Invariants
//! * An instance advances in one transaction: the step that ends, the steps that begin, their jobs and the history are
//!   stored together, so a crash at any instant neither loses nor duplicates a step's end.
//! * A process of a step runs at least once, as every job does.
//! * A change of content starts the workflows of its launchers exactly once, even across restarts.
//! * An instance keeps the model that it began with.
//! * A model that names an unknown process or chooser cannot be started.
//!
//! Not here: processes that depend on higher crates, such as activation; those crates register them.

mod control;
mod engine;
mod flow_state;
mod launcher;
mod model;
mod model_step;
pub mod process;
mod query;
mod step;
mod step_registry;
mod step_run;
mod step_timeout;
mod step_timeout_job;
mod workflow_handler;
mod workflow_state;

pub use control::FailedWorkflowStep;
pub use engine::{StepActionContext, WorkflowEngine, WorkflowId, WorkflowStart};
pub use launcher::{LauncherRule, WORKFLOW_USER, WorkflowLauncher};
pub use model::{WorkflowModel, WorkflowModelRoots, WorkflowTransition};
pub use model_step::{WorkflowStep, WorkflowStepKind};
pub use process::NoopProcess;
pub use query::{WorkItem, WorkflowFilter, WorkflowHistoryEntry, WorkflowInstance};
pub use step_registry::{ParticipantChooser, StepRegistry};
pub use step_run::{StepOutcome, StepRun, WorkflowProcess};
pub use workflow_handler::WorkflowHandler;
pub use workflow_state::WorkflowState;
