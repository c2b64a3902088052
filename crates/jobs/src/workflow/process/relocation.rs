//! Processes that change the location of the payload: move, copy, delete.

use serde_json::{Map, Value as Json};
use tympan_content::{NodePath, Repository};

use super::{EditOutcome, edit_as_actor, into_step_outcome};
use crate::JobContext;
use crate::workflow::step_run::{StepOutcome, StepRun, WorkflowProcess};

/// Returns true if a node exists, regardless of permissions.
fn node_exists(repository: &Repository, path: &NodePath) -> Result<bool, StepOutcome> {
    let existing_node = repository.snapshot().and_then(|snapshot| snapshot.node(path));
    existing_node
        .map(|node| node.is_some())
        .map_err(|error| StepOutcome::from_content_error(&error))
}

/// Returns the path that `destination` names: if that node exists, it is the parent of the new one.
fn resolve_destination(repository: &Repository, step: &StepRun) -> Result<NodePath, StepOutcome> {
    let named = step.required_argument("destination")?;
    let wrong = |error: tympan_content::Error| StepOutcome::from_content_error(&error);
    let named = NodePath::new(named.trim_end_matches('/')).map_err(wrong)?;
    if node_exists(repository, &named)? {
        return named.child(step.payload_path()?.name()).map_err(wrong);
    }
    Ok(named)
}

/// Returns the destination that an earlier attempt chose, or records it. Only the record identifies this step's own
/// work.
fn reserve_destination(repository: &Repository, step: &StepRun) -> Result<NodePath, StepOutcome> {
    if let Some(reserved_path) = step.saved_data.get("to").and_then(Json::as_str) {
        return NodePath::new(reserved_path)
            .map_err(|error| StepOutcome::from_content_error(&error));
    }
    let to = resolve_destination(repository, step)?;
    if node_exists(repository, &to)? {
        return Err(StepOutcome::Failed(format!("`{to}` already exists")));
    }
    let mut keep = Map::new();
    keep.insert("to".to_owned(), to.to_string().into());
    Err(StepOutcome::Wait { after: std::time::Duration::ZERO, saved_data: keep })
}

/// Moves the payload.
pub(super) struct MoveProcess(pub(super) Repository);

impl MoveProcess {
    fn move_payload(&self, step: &StepRun) -> Result<StepOutcome, StepOutcome> {
        let (from, to) = (step.payload_path()?, reserve_destination(&self.0, step)?);
        let moved = || StepOutcome::Moved { payload: to.to_string() };
        if !node_exists(&self.0, &from)? && node_exists(&self.0, &to)? {
            return Ok(moved());
        }
        edit_as_actor(&self.0, step, |session, _| {
            session.move_node(&from, &to)?;
            Ok(EditOutcome::Changed)
        })?;
        Ok(moved())
    }
}

impl WorkflowProcess for MoveProcess {
    fn name(&self) -> &str {
        "tympan.workflow.process.MoveProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        self.move_payload(step).unwrap_or_else(|outcome| outcome)
    }
}

/// Copies the payload.
pub(super) struct CopyProcess(pub(super) Repository);

impl CopyProcess {
    fn copy_payload(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let (from, to) = (step.payload_path()?, reserve_destination(&self.0, step)?);
        if !node_exists(&self.0, &to)? {
            edit_as_actor(&self.0, step, |session, _| {
                session.copy_node(&from, &to)?;
                Ok(EditOutcome::Changed)
            })?;
        }
        let mut data = Map::new();
        data.insert("copy".to_owned(), to.to_string().into());
        Ok(data)
    }
}

impl WorkflowProcess for CopyProcess {
    fn name(&self) -> &str {
        "tympan.workflow.process.CopyProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        into_step_outcome(self.copy_payload(step))
    }
}

/// Removes the payload.
pub(super) struct DeleteProcess(pub(super) Repository);

impl DeleteProcess {
    fn delete_payload(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let path = step.payload_path()?;
        if node_exists(&self.0, &path)? {
            edit_as_actor(&self.0, step, |session, _| {
                session.remove_node(&path)?;
                Ok(EditOutcome::Changed)
            })?;
        }
        Ok(Map::new())
    }
}

impl WorkflowProcess for DeleteProcess {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.DeleteNodeProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        into_step_outcome(self.delete_payload(step))
    }
}
