//! What steps may name: processes that carry them out, and choosers that say who does them.
//!
//! Models write names of classes; where the whole name is not known, its last part counts, so that
//! `com.day.cq.wcm.workflow.process.ActivatePageProcess` and any other `…ActivatePageProcess` are one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tympan_content::{Index, Repository};
use tympan_web::outgoing::Outgoing;

use crate::workflow::handler::{Process, StepRun};
use crate::workflow::model::{Model, ModelRoots, StepKind};
use crate::workflow::process;
use crate::{Error, Result};

/// Says who does a dynamic participant's step, when it begins. It may be asked more than once.
pub trait Chooser: Send + Sync {
    /// Returns the name that models write as `DYNAMIC_PARTICIPANT`.
    fn name(&self) -> &str;

    /// Returns a user or a group.
    ///
    /// # Errors
    /// With the reason why nobody is found.
    fn choose(&self, step: &StepRun) -> Result<String, String>;
}

/// The processes and choosers that steps may name.
#[derive(Default, Clone)]
pub struct Steps {
    processes: BTreeMap<String, Arc<dyn Process>>,
    choosers: BTreeMap<String, Arc<dyn Chooser>>,
    pub(crate) repository: Option<Repository>,
}

impl Steps {
    /// Returns what comes with the engine: see [`process`].
    #[must_use]
    pub fn standard(repository: &Repository) -> Self {
        let mut steps = Self { repository: Some(repository.clone()), ..Self::default() };
        for one in process::processes(repository) {
            steps = steps.process(one);
        }
        for one in process::choosers(repository) {
            steps = steps.chooser(one);
        }
        steps
    }

    /// Lets steps that have other systems do the work ask the hosts that are listed; without it they ask nobody.
    #[must_use]
    pub fn asking(self, outgoing: &Outgoing) -> Self {
        self.process(process::external(outgoing))
    }

    /// Checks that an account is a service user: nobody logs in as one, and who names it in a model may write models.
    pub(crate) fn service_user(&self, name: &str) -> Result<()> {
        let is_found = match &self.repository {
            Some(repository) => {
                let snapshot = repository.snapshot()?;
                let mut is_found = false;
                for path in snapshot.look_up(Index::Type, "rep:SystemUser")? {
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
    pub fn process(mut self, process: Arc<dyn Process>) -> Self {
        self.processes.insert(process.name().to_owned(), process);
        self
    }

    /// Adds a chooser.
    #[must_use]
    pub fn chooser(mut self, chooser: Arc<dyn Chooser>) -> Self {
        self.choosers.insert(chooser.name().to_owned(), chooser);
        self
    }

    /// Finds a process by its name or by the last part of it.
    pub(crate) fn find_process(&self, name: &str) -> Option<&Arc<dyn Process>> {
        find(&self.processes, name)
    }

    /// Finds a chooser in the same way.
    pub(crate) fn find_chooser(&self, name: &str) -> Option<&Arc<dyn Chooser>> {
        find(&self.choosers, name)
    }

    /// Refuses a model with a step that nothing here can carry out.
    pub(crate) fn check(&self, model: &Model, roots: &ModelRoots) -> Result<()> {
        for step in model.steps.values() {
            let fault = |what: String| {
                let (title, path) = (&step.title, &model.path);
                Err(Error::Workflow(format!("the step `{title}` of `{path}` {what}")))
            };
            match step.kind {
                StepKind::Process | StepKind::External => {
                    let name = step.text("PROCESS").unwrap_or_default();
                    if self.find_process(name).is_none() {
                        let known = names(&self.processes);
                        return fault(format!(
                            "names the unknown process `{name}`; known are {known}"
                        ));
                    }
                }
                StepKind::DynamicParticipant => {
                    let name = step.chooser().unwrap_or_default();
                    if self.find_chooser(name).is_none() {
                        let known = names(&self.choosers);
                        return fault(format!(
                            "names the unknown chooser `{name}`; known are {known}"
                        ));
                    }
                }
                StepKind::Container => {
                    let path = step.inner_model().unwrap_or_default();
                    if let Err(reason) = self.read_model(path, roots) {
                        return fault(format!(
                            "goes through a model that cannot be used: {reason}"
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the model of a container.
    pub(crate) fn read_model(&self, path: &str, roots: &ModelRoots) -> Result<Model> {
        let nowhere = || Error::Workflow("this worker reads no models".to_owned());
        let repository = self.repository.as_ref().ok_or_else(nowhere)?;
        roots.read(&repository.snapshot()?, path)
    }
}

fn last(name: &str) -> &str {
    name.rsplit(['.', '/']).next().unwrap_or(name)
}

fn find<'a, T: ?Sized>(all: &'a BTreeMap<String, Arc<T>>, name: &str) -> Option<&'a Arc<T>> {
    let by_last = || {
        let mut known = all.iter().filter(|(known, _)| last(known) == last(name));
        known.next().map(|(_, found)| found)
    };
    all.get(name).or_else(by_last)
}

fn names<T: ?Sized>(all: &BTreeMap<String, Arc<T>>) -> String {
    all.keys().map(|name| last(name)).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps")
            .field("processes", &self.processes.keys())
            .field("choosers", &self.choosers.keys())
            .finish_non_exhaustive()
    }
}
