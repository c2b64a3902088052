//! The registry of processes and choosers that steps may name.
//!
//! Models contain class names. If the full name is unknown, its last part is matched, so
//! `com.day.cq.wcm.workflow.process.ActivatePageProcess` and any other `…ActivatePageProcess` are equivalent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tympan_content::{LookupIndex, Repository};

use crate::workflow::model::{WorkflowModel, WorkflowModelRoots};
use crate::workflow::model_step::WorkflowStepKind;
use crate::workflow::step_run::{StepRun, WorkflowProcess};
use crate::{Error, Result};

/// Selects the participant of a dynamic participant's step when it begins. It may be called more than once.
pub trait ParticipantChooser: Send + Sync {
    /// Returns the name used in models as `DYNAMIC_PARTICIPANT`.
    fn name(&self) -> &str;

    /// Returns a user or a group.
    ///
    /// # Errors
    /// The reason why no participant was found.
    fn choose_participant(&self, step: &StepRun) -> Result<String, String>;
}

/// The processes and choosers that steps may name.
#[derive(Default, Clone)]
pub struct StepRegistry {
    processes: BTreeMap<String, Arc<dyn WorkflowProcess>>,
    choosers: BTreeMap<String, Arc<dyn ParticipantChooser>>,
    pub(crate) repository: Option<Repository>,
}

impl StepRegistry {
    /// Returns a registry without processes and choosers, whose service users are those of a repository.
    pub(crate) fn for_repository(repository: &Repository) -> Self {
        Self { repository: Some(repository.clone()), ..Self::default() }
    }

    /// Checks that an account is a service user. Nobody can log in as one, and only users who may write models can name
    /// one.
    pub(crate) fn require_service_user(&self, name: &str) -> Result<()> {
        let is_found = match &self.repository {
            Some(repository) => {
                let snapshot = repository.snapshot()?;
                let mut is_found = false;
                for path in snapshot.look_up_paths(LookupIndex::Type, "rep:SystemUser")? {
                    let node = snapshot.node(&path)?;
                    let id = node.and_then(|node| node.text("rep:authorizableId"));
                    is_found |= id.as_deref().unwrap_or(path.name()) == name;
                }
                is_found
            }
            None => false,
        };
        let fault =
            || Error::Workflow(format!("there is no service user `{name}` (`rep:SystemUser`)"));
        if is_found { Ok(()) } else { Err(fault()) }
    }

    /// Adds a process.
    #[must_use]
    pub fn with_process(mut self, process: Arc<dyn WorkflowProcess>) -> Self {
        self.processes.insert(process.name().to_owned(), process);
        self
    }

    /// Adds a chooser.
    #[must_use]
    pub fn with_chooser(mut self, chooser: Arc<dyn ParticipantChooser>) -> Self {
        self.choosers.insert(chooser.name().to_owned(), chooser);
        self
    }

    /// Returns a process by its name or the last part of it.
    pub(crate) fn find_process(&self, name: &str) -> Option<&Arc<dyn WorkflowProcess>> {
        find_by_name(&self.processes, name)
    }

    /// Returns a chooser by its name or the last part of it.
    pub(crate) fn find_chooser(&self, name: &str) -> Option<&Arc<dyn ParticipantChooser>> {
        find_by_name(&self.choosers, name)
    }

    /// Returns an error for a model with a step that cannot be executed here.
    pub(crate) fn check_model(
        &self,
        model: &WorkflowModel,
        roots: &WorkflowModelRoots,
    ) -> Result<()> {
        for step in model.steps.values() {
            let fault = |message: String| {
                let (title, path) = (&step.title, &model.path);
                Err(Error::Workflow(format!("the step `{title}` of `{path}` {message}")))
            };
            match step.kind {
                WorkflowStepKind::Process | WorkflowStepKind::External => {
                    let name = step.text_argument("PROCESS").unwrap_or_default();
                    if self.find_process(name).is_none() {
                        let known_names = join_names(&self.processes);
                        return fault(format!(
                            "names the unknown process `{name}`; known processes are {known_names}"
                        ));
                    }
                }
                WorkflowStepKind::DynamicParticipant => {
                    let name = step.chooser_name().unwrap_or_default();
                    if self.find_chooser(name).is_none() {
                        let known_names = join_names(&self.choosers);
                        return fault(format!(
                            "names the unknown chooser `{name}`; known choosers are {known_names}"
                        ));
                    }
                }
                WorkflowStepKind::Container => {
                    let path = step.inner_model_path().unwrap_or_default();
                    if let Err(reason) = self.read_model(path, roots) {
                        return fault(format!("uses an invalid model: {reason}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the model of a container.
    pub(crate) fn read_model(
        &self,
        path: &str,
        roots: &WorkflowModelRoots,
    ) -> Result<WorkflowModel> {
        let nowhere = || Error::Workflow("this worker cannot read models".to_owned());
        let repository = self.repository.as_ref().ok_or_else(nowhere)?;
        roots.read_model(&repository.snapshot()?, path)
    }
}

fn last_name_part(name: &str) -> &str {
    name.rsplit(['.', '/']).next().unwrap_or(name)
}

fn find_by_name<'a, T: ?Sized>(
    all: &'a BTreeMap<String, Arc<T>>,
    name: &str,
) -> Option<&'a Arc<T>> {
    let by_last = || {
        let mut matches =
            all.iter().filter(|(full_name, _)| last_name_part(full_name) == last_name_part(name));
        matches.next().map(|(_, value)| value)
    };
    all.get(name).or_else(by_last)
}

fn join_names<T: ?Sized>(all: &BTreeMap<String, Arc<T>>) -> String {
    all.keys().map(|name| last_name_part(name)).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for StepRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepRegistry")
            .field("processes", &self.processes.keys())
            .field("choosers", &self.choosers.keys())
            .finish_non_exhaustive()
    }
}
