//! Processes that change where the payload is: move, copy, delete.

use serde_json::{Map, Value as Json};
use tympan_content::{NodePath, Repository};

use super::{Edited, edit, failed, outcome};
use crate::JobContext;
use crate::workflow::handler::{Process, StepOutcome, StepRun};

/// Tells whether a node is there, whoever may see it.
fn is_there(repository: &Repository, path: &NodePath) -> Result<bool, StepOutcome> {
    let found = repository.snapshot().and_then(|snapshot| snapshot.node(path));
    found.map(|node| node.is_some()).map_err(|error| failed(&error))
}

/// Returns the place that `destination` names: a node that is there is the parent of the new one.
fn destination(repository: &Repository, step: &StepRun) -> Result<NodePath, StepOutcome> {
    let named = step.required("destination")?;
    let wrong = |error: tympan_content::Error| failed(&error);
    let named = NodePath::new(named.trim_end_matches('/')).map_err(wrong)?;
    if is_there(repository, &named)? {
        return named.child(step.payload_path()?.name()).map_err(wrong);
    }
    Ok(named)
}

/// Returns the place that an earlier attempt chose, or notes it: only then it is known what is this step's own work.
fn chosen(repository: &Repository, step: &StepRun) -> Result<NodePath, StepOutcome> {
    if let Some(kept) = step.kept.get("to").and_then(Json::as_str) {
        return NodePath::new(kept).map_err(|error| failed(&error));
    }
    let to = destination(repository, step)?;
    if is_there(repository, &to)? {
        return Err(StepOutcome::Failed(format!("`{to}` is there already")));
    }
    let mut keep = Map::new();
    keep.insert("to".to_owned(), to.to_string().into());
    Err(StepOutcome::Wait { after: std::time::Duration::ZERO, keep })
}

/// Moves the payload.
pub(super) struct Move(pub(super) Repository);

impl Move {
    fn put(&self, step: &StepRun) -> Result<StepOutcome, StepOutcome> {
        let (from, to) = (step.payload_path()?, chosen(&self.0, step)?);
        let moved = || StepOutcome::Moved { payload: to.to_string() };
        if !is_there(&self.0, &from)? && is_there(&self.0, &to)? {
            return Ok(moved());
        }
        edit(&self.0, step, |session, _| {
            session.move_node(&from, &to)?;
            Ok(Edited::Something)
        })?;
        Ok(moved())
    }
}

impl Process for Move {
    fn name(&self) -> &str {
        "tympan.workflow.process.MoveProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        self.put(step).unwrap_or_else(|outcome| outcome)
    }
}

/// Copies the payload.
pub(super) struct Copy(pub(super) Repository);

impl Copy {
    fn put(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let (from, to) = (step.payload_path()?, chosen(&self.0, step)?);
        if !is_there(&self.0, &to)? {
            edit(&self.0, step, |session, _| {
                session.copy_node(&from, &to)?;
                Ok(Edited::Something)
            })?;
        }
        let mut data = Map::new();
        data.insert("copy".to_owned(), to.to_string().into());
        Ok(data)
    }
}

impl Process for Copy {
    fn name(&self) -> &str {
        "tympan.workflow.process.CopyProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        outcome(self.put(step))
    }
}

/// Removes the payload.
pub(super) struct Delete(pub(super) Repository);

impl Delete {
    fn remove(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let path = step.payload_path()?;
        if is_there(&self.0, &path)? {
            edit(&self.0, step, |session, _| {
                session.remove(&path)?;
                Ok(Edited::Something)
            })?;
        }
        Ok(Map::new())
    }
}

impl Process for Delete {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.DeleteNodeProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        outcome(self.remove(step))
    }
}
