//! Built-in processes and choosers.
//!
//! | process | arguments | does |
//! |---|---|---|
//! | `NoopProcess` | | nothing: a place in a model, to be filled later |
//! | `SetPropertyProcess` | `name`, `value`, `path` | sets a property of the payload, or of a node below it |
//! | `SetVariableProcess` | `name=value` pairs | leaves values for rules and later steps |
//! | `CreateVersionProcess` | `comment`, `label` | keeps the payload as a version, if it differs from the newest |
//! | `MoveProcess` | `destination` | moves the payload; later steps are about the new place |
//! | `CopyProcess` | `destination` | copies the payload, to a place that is free |
//! | `DeleteNodeProcess` | | removes the payload |
//! | `LockProcess`, `UnlockProcess` | | locks the payload for who started the workflow, or lets it go |
//! | `WaitProcess` | `for` or `until` | waits for a span such as `36h`, or until a time |
//! | `NotifyProcess` | `reader`, `title` | puts a notice into an inbox |
//! | `HttpExternalProcess` | `start`, `every` | has another system do the work, and asks it until it is done |
//!
//! Arguments are stored in the step's `metaData` under their names, or in `PROCESS_ARGS` as `name=value`, separated by
//! commas or line breaks.
//!
//! Invariants
//! * Content is changed in the name of the user who started the workflow, or of the service user in the step's
//!   `serviceUser`; never in the name of the user who completed a step. A workflow has only that user's permissions.
//! * A process that is executed again after a kill changes nothing a second time.

mod chooser;
mod content;
mod external;
mod relocation;
mod wait;

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value as Json};
use tympan_content::{Error as ContentError, NodePath, Repository, Session, Viewer};
use tympan_notation::error_chain_text;
use tympan_web::outgoing_policy::OutgoingPolicy;

use crate::JobContext;
use crate::workflow::step_registry::{ParticipantChooser, StepRegistry};
use crate::workflow::step_run::{StepOutcome, StepRun, WorkflowProcess};

/// Prefix of the messages of revisions that a workflow made. Launchers ignore these, so no workflow starts itself.
pub(crate) const WORKFLOW_MESSAGE_PREFIX: &str = "workflow step: ";

/// Returns true if only workflows may use a message for their revisions. Code that accepts messages from clients must
/// reject these, because an edit with such a message would be ignored by every launcher.
#[must_use]
pub fn is_reserved_message(message: &str) -> bool {
    message.trim_start().starts_with(WORKFLOW_MESSAGE_PREFIX.trim_end())
}

impl StepRegistry {
    /// Returns the built-in processes and choosers; see [`Self::with_process`].
    #[must_use]
    pub fn standard(repository: &Repository) -> Self {
        let mut steps = Self::for_repository(repository);
        for step_process in standard_processes(repository) {
            steps = steps.with_process(step_process);
        }
        for step_chooser in standard_choosers(repository) {
            steps = steps.with_chooser(step_chooser);
        }
        steps
    }

    /// Allows steps that delegate work to other systems to request the listed hosts; without it they cannot request
    /// any.
    #[must_use]
    pub fn with_external_hosts(self, outgoing: &OutgoingPolicy) -> Self {
        self.with_process(external_process(outgoing))
    }
}

/// A process that does nothing: a placeholder in a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopProcess;

impl WorkflowProcess for NoopProcess {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.NoopProcess"
    }

    fn run(&self, _step: &StepRun, _context: &JobContext) -> StepOutcome {
        StepOutcome::Done(Map::new())
    }
}

/// Returns the built-in processes.
#[must_use]
pub fn standard_processes(repository: &Repository) -> Vec<Arc<dyn WorkflowProcess>> {
    vec![
        Arc::new(NoopProcess),
        Arc::new(content::SetPropertyProcess(repository.clone())),
        Arc::new(content::SetVariableProcess),
        Arc::new(content::CreateVersionProcess(repository.clone())),
        Arc::new(content::LockProcess(repository.clone())),
        Arc::new(content::UnlockProcess(repository.clone())),
        Arc::new(relocation::MoveProcess(repository.clone())),
        Arc::new(relocation::CopyProcess(repository.clone())),
        Arc::new(relocation::DeleteProcess(repository.clone())),
        Arc::new(wait::WaitProcess),
        Arc::new(wait::NotifyProcess),
        external_process(&OutgoingPolicy::default()),
    ]
}

/// Returns the process that delegates work to other systems, for the listed hosts.
fn external_process(outgoing: &OutgoingPolicy) -> Arc<dyn WorkflowProcess> {
    Arc::new(external::ExternalProcess::new(outgoing))
}

/// Returns the built-in choosers.
#[must_use]
pub fn standard_choosers(repository: &Repository) -> Vec<Arc<dyn ParticipantChooser>> {
    chooser::standard_choosers(repository)
}

impl StepRun {
    /// Returns an argument: from the step's own data, or from `PROCESS_ARGS`.
    #[must_use]
    pub fn argument(&self, name: &str) -> Option<String> {
        let own = match self.arguments.get(name) {
            Some(Json::String(text)) => Some(text.clone()),
            Some(Json::Null) | None => None,
            Some(other) => Some(other.to_string()),
        };
        let argument_text = own.or_else(|| {
            let mut pairs = self.process_arg_pairs().into_iter();
            pairs.find(|(key, _)| key == name).map(|(_, value)| value)
        });
        argument_text.filter(|text| !text.is_empty())
    }

    /// Returns the name-value pairs of `PROCESS_ARGS`.
    fn process_arg_pairs(&self) -> Vec<(String, String)> {
        let text = self.arguments.get("PROCESS_ARGS").and_then(Json::as_str).unwrap_or_default();
        let pairs = text.split([',', '\n']).filter_map(|part| part.split_once('='));
        pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
    }

    /// Returns a required argument, or the outcome of a step that lacks it.
    fn required_argument(&self, name: &str) -> Result<String, StepOutcome> {
        self.argument(name).ok_or_else(|| {
            StepOutcome::Failed(format!("the step `{}` needs the argument `{name}`", self.title))
        })
    }

    /// Returns the payload as a path.
    ///
    /// # Errors
    /// The outcome of the step, if the payload is not a path.
    pub fn payload_path(&self) -> Result<NodePath, StepOutcome> {
        NodePath::new(&self.payload).map_err(|error| StepOutcome::from_content_error(&error))
    }
}

impl StepOutcome {
    /// Returns the outcome of a step whose access to content failed: a retry if that may succeed, else a failure.
    #[must_use]
    pub fn from_content_error(error: &ContentError) -> Self {
        let reason = error_chain_text(error);
        // Others changed the same content, or the store is temporarily unavailable; a retry may succeed.
        if error.is_transient()
            || matches!(error, ContentError::Conflicts(_) | ContentError::DocumentChanged(_))
        {
            Self::Retry(reason)
        } else {
            Self::Failed(reason)
        }
    }
}

/// The result of an edit: changes to commit, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EditOutcome {
    Changed,
    Unchanged,
}

/// Changes content in the name of a step's actor.
fn edit_as_actor(
    repository: &Repository,
    step: &StepRun,
    change: impl Fn(&mut Session, &str) -> tympan_content::Result<EditOutcome>,
) -> Result<(), StepOutcome> {
    let actor = &step.effective_user;
    let tried = (|| {
        let mut session = repository.session_as(&Viewer::from_name(actor))?;
        if change(&mut session, actor)? == EditOutcome::Changed {
            let message =
                format!("{WORKFLOW_MESSAGE_PREFIX}{} of workflow {}", step.title, step.workflow_id);
            session.commit(&message, SystemTime::now())?;
        }
        Ok(())
    })();
    tried.map_err(|error| match error {
        ContentError::AccessDenied { .. } | ContentError::NodeMissing(_) => {
            StepOutcome::Failed(format!("{} (acting as {actor})", error_chain_text(&error)))
        }
        error => StepOutcome::from_content_error(&error),
    })
}

/// Converts a result to the step's outcome.
fn into_step_outcome(result: Result<Map<String, Json>, StepOutcome>) -> StepOutcome {
    result.map_or_else(|outcome| outcome, StepOutcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_launchers_pass_over_are_kept() {
        for (message, expected) in [
            (&*format!("{WORKFLOW_MESSAGE_PREFIX}Set of workflow 7"), true),
            ("  workflow step:Set", true),
            ("a workflow step: Set", false),
            ("Workflow steps", false),
            ("", false),
        ] {
            assert_eq!(is_reserved_message(message), expected, "{message}");
        }
    }
}
