//! Processes that change the payload in place: properties, versions, locks.

use std::time::SystemTime;

use serde_json::{Map, Value as Json};
use tympan_content::{
    CheckInOptions, CheckOutState, JCR_CONTENT, LabelConflictPolicy, MIXIN_TYPES, Node, NodePath,
    Property, Repository, Session, Value, ValueType,
};

use super::{EditOutcome, edit_as_actor, into_step_outcome};
use crate::JobContext;
use crate::workflow::step_run::{StepOutcome, StepRun, WorkflowProcess};

const LOCKABLE_MIXIN: &str = "mix:lockable";
const LOCK_OWNER_PROPERTY: &str = "jcr:lockOwner";

/// Sets a property.
pub(super) struct SetPropertyProcess(pub(super) Repository);

impl SetPropertyProcess {
    fn set_property(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let (name, value) = (step.required_argument("name")?, step.argument("value"));
        let wrong = |error: tympan_content::Error| StepOutcome::from_content_error(&error);
        let mut path = step.payload_path()?;
        for part in step.argument("path").unwrap_or_default().split('/') {
            if !part.is_empty() {
                path = path.child(part).map_err(wrong)?;
            }
        }
        edit_as_actor(&self.0, step, |session, _| {
            let missing = || tympan_content::Error::NodeMissing(path.clone());
            let node = session.node(&path)?.ok_or_else(missing)?;
            let before = node.property(&name);
            let Some(text) = &value else {
                return Ok(if session.remove_property(&path, &name)? {
                    EditOutcome::Changed
                } else {
                    EditOutcome::Unchanged
                });
            };
            // A property keeps its type; a new one is a string.
            let kind = before.as_ref().map_or(ValueType::String, Property::value_type);
            let after = Property::Single(Value::parse(kind, text)?);
            if before.as_ref() == Some(&after) {
                return Ok(EditOutcome::Unchanged);
            }
            session.set_property(&path, &name, after)?;
            Ok(EditOutcome::Changed)
        })?;
        Ok(Map::new())
    }
}

impl WorkflowProcess for SetPropertyProcess {
    fn name(&self) -> &str {
        "tympan.workflow.process.SetPropertyProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        into_step_outcome(self.set_property(step))
    }
}

/// Sets values for later steps.
pub(super) struct SetVariableProcess;

impl WorkflowProcess for SetVariableProcess {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.SetVariableProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        let pairs = step.process_arg_pairs().into_iter();
        StepOutcome::Done(pairs.map(|(name, value)| (name, value.into())).collect())
    }
}

/// Creates a version.
pub(super) struct CreateVersionProcess(pub(super) Repository);

impl CreateVersionProcess {
    fn create_version(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let path = step.payload_path()?;
        let (comment, label) = (step.argument("comment"), step.argument("label"));
        let comment = comment.unwrap_or_else(|| step.title.clone());
        edit_as_actor(&self.0, step, |session, _| {
            let at = SystemTime::now();
            let check_in = CheckInOptions {
                comment: &comment,
                created_at: at,
                check_out_state: CheckOutState::CheckedOut,
            };
            // The same state is stored once, even if the step is executed again.
            let created_version = session.versions().create_version_if_changed(&path, &check_in)?;
            let (Some(version), Some(label)) = (&created_version, &label) else {
                return Ok(if created_version.is_some() {
                    EditOutcome::Changed
                } else {
                    EditOutcome::Unchanged
                });
            };
            let name = version.name.clone();
            session.versions().add_label(&path, &name, label, LabelConflictPolicy::Move)?;
            Ok(EditOutcome::Changed)
        })?;
        Ok(Map::new())
    }
}

impl WorkflowProcess for CreateVersionProcess {
    fn name(&self) -> &str {
        "com.day.cq.wcm.workflow.process.CreateVersionProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        into_step_outcome(self.create_version(step))
    }
}

/// Returns the node that holds the lock of a payload: the content node of a page or asset.
fn find_lock_node(session: &mut Session, path: &NodePath) -> tympan_content::Result<Node> {
    let missing = || tympan_content::Error::NodeMissing(path.clone());
    let node = session.node(path)?.ok_or_else(missing)?;
    Ok(node.child(JCR_CONTENT)?.unwrap_or(node))
}

/// Locks the payload for the user who started the workflow.
pub(super) struct LockProcess(pub(super) Repository);

impl LockProcess {
    fn lock_payload(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let path = step.payload_path()?;
        edit_as_actor(&self.0, step, |session, _| {
            let node = find_lock_node(session, &path)?;
            let lock_path = node.path().clone();
            match node.text(LOCK_OWNER_PROPERTY) {
                Some(owner) if owner == step.initiator => return Ok(EditOutcome::Unchanged),
                Some(owner) => {
                    tracing::debug!(path = %lock_path, user = owner, "locked by another user");
                    let reason = "another user has locked it";
                    let action = "lock";
                    return Err(tympan_content::Error::InvalidEdit {
                        action,
                        path: lock_path,
                        reason,
                    });
                }
                None => {}
            }
            let mut mixins: Vec<String> = node.property(MIXIN_TYPES).map_or_else(Vec::new, |all| {
                all.values().iter().map(|value| value.to_text().into_owned()).collect()
            });
            if !mixins.iter().any(|mixin| mixin == LOCKABLE_MIXIN) {
                mixins.push(LOCKABLE_MIXIN.to_owned());
                let mixins = mixins.into_iter().map(Value::Name).collect();
                session.set_property(
                    &lock_path,
                    MIXIN_TYPES,
                    Property::List(ValueType::Name, mixins),
                )?;
            }
            session.set_property(
                &lock_path,
                LOCK_OWNER_PROPERTY,
                Property::text(&*step.initiator),
            )?;
            let is_deep = Property::Single(Value::Boolean(false));
            session.set_property(&lock_path, "jcr:lockIsDeep", is_deep)?;
            Ok(EditOutcome::Changed)
        })?;
        Ok(Map::new())
    }
}

impl WorkflowProcess for LockProcess {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.LockProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        into_step_outcome(self.lock_payload(step))
    }
}

/// Releases the lock that an earlier step acquired.
pub(super) struct UnlockProcess(pub(super) Repository);

impl UnlockProcess {
    fn unlock_payload(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let path = step.payload_path()?;
        edit_as_actor(&self.0, step, |session, _| {
            let lock_path = find_lock_node(session, &path)?.path().clone();
            if !session.remove_property(&lock_path, LOCK_OWNER_PROPERTY)? {
                return Ok(EditOutcome::Unchanged);
            }
            session.remove_property(&lock_path, "jcr:lockIsDeep")?;
            Ok(EditOutcome::Changed)
        })?;
        Ok(Map::new())
    }
}

impl WorkflowProcess for UnlockProcess {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.UnlockProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        into_step_outcome(self.unlock_payload(step))
    }
}
