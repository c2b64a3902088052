//! Processes that change the payload where it is: properties, versions, locks.

use std::time::SystemTime;

use serde_json::{Map, Value as Json};
use tympan_content::{
    After, CheckIn, JCR_CONTENT, LabelClash, MIXIN_TYPES, Node, NodePath, Property, Repository,
    Session, Value, ValueType,
};

use super::{Edited, edit, outcome};
use crate::JobContext;
use crate::workflow::handler::{Process, StepOutcome, StepRun};

const LOCKABLE: &str = "mix:lockable";
const OWNER: &str = "jcr:lockOwner";

/// Sets a property.
pub(super) struct SetProperty(pub(super) Repository);

impl SetProperty {
    fn set(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let (name, value) = (step.required("name")?, step.argument("value"));
        let wrong = |error: tympan_content::Error| super::failed(&error);
        let mut path = step.payload_path()?;
        for part in step.argument("path").unwrap_or_default().split('/') {
            if !part.is_empty() {
                path = path.child(part).map_err(wrong)?;
            }
        }
        edit(&self.0, step, |session, _| {
            let missing = || tympan_content::Error::NodeMissing(path.clone());
            let node = session.node(&path)?.ok_or_else(missing)?;
            let before = node.property(&name);
            let Some(text) = &value else {
                return Ok(if session.remove_property(&path, &name)? {
                    Edited::Something
                } else {
                    Edited::Nothing
                });
            };
            // A property keeps its type; a new one is text.
            let kind = before.as_ref().map_or(ValueType::String, Property::value_type);
            let after = Property::Single(Value::parse(kind, text)?);
            if before.as_ref() == Some(&after) {
                return Ok(Edited::Nothing);
            }
            session.set_property(&path, &name, after)?;
            Ok(Edited::Something)
        })?;
        Ok(Map::new())
    }
}

impl Process for SetProperty {
    fn name(&self) -> &str {
        "tympan.workflow.process.SetPropertyProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        outcome(self.set(step))
    }
}

/// Leaves values for later steps.
pub(super) struct SetVariable;

impl Process for SetVariable {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.SetVariableProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        let pairs = step.pairs().into_iter();
        StepOutcome::Done(pairs.map(|(name, value)| (name, value.into())).collect())
    }
}

/// Keeps a version.
pub(super) struct CreateVersion(pub(super) Repository);

impl CreateVersion {
    fn keep(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let path = step.payload_path()?;
        let (comment, label) = (step.argument("comment"), step.argument("label"));
        let comment = comment.unwrap_or_else(|| step.title.clone());
        edit(&self.0, step, |session, _| {
            let at = SystemTime::now();
            let check_in = CheckIn { comment: &comment, at, after: After::CheckedOut };
            // The same state is kept once, also when the step is begun again.
            let kept = session.keep_version(&path, &check_in)?;
            let (Some(version), Some(label)) = (&kept, &label) else {
                return Ok(if kept.is_some() { Edited::Something } else { Edited::Nothing });
            };
            let name = version.name.clone();
            session.add_label(&path, &name, label, LabelClash::Move)?;
            Ok(Edited::Something)
        })?;
        Ok(Map::new())
    }
}

impl Process for CreateVersion {
    fn name(&self) -> &str {
        "com.day.cq.wcm.workflow.process.CreateVersionProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        outcome(self.keep(step))
    }
}

/// Returns where the lock of a payload stands: on the content of a page or asset.
fn locked_node(session: &mut Session, path: &NodePath) -> tympan_content::Result<Node> {
    let missing = || tympan_content::Error::NodeMissing(path.clone());
    let node = session.node(path)?.ok_or_else(missing)?;
    Ok(node.child(JCR_CONTENT)?.unwrap_or(node))
}

/// Locks the payload for who started the workflow.
pub(super) struct Lock(pub(super) Repository);

impl Lock {
    fn lock(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let path = step.payload_path()?;
        edit(&self.0, step, |session, _| {
            let node = locked_node(session, &path)?;
            let place = node.path().clone();
            match node.text(OWNER) {
                Some(owner) if owner == step.initiator => return Ok(Edited::Nothing),
                Some(owner) => {
                    tracing::debug!(path = %place, user = owner, "locked by somebody else");
                    let reason = "somebody else has locked it";
                    let action = "lock";
                    return Err(tympan_content::Error::Refused { action, path: place, reason });
                }
                None => {}
            }
            let mut mixins: Vec<String> = node.property(MIXIN_TYPES).map_or_else(Vec::new, |all| {
                all.values().iter().map(|value| value.to_text().into_owned()).collect()
            });
            if !mixins.iter().any(|mixin| mixin == LOCKABLE) {
                mixins.push(LOCKABLE.to_owned());
                let mixins = mixins.into_iter().map(Value::Name).collect();
                session.set_property(
                    &place,
                    MIXIN_TYPES,
                    Property::List(ValueType::Name, mixins),
                )?;
            }
            session.set_property(&place, OWNER, Property::text(&*step.initiator))?;
            let is_deep = Property::Single(Value::Boolean(false));
            session.set_property(&place, "jcr:lockIsDeep", is_deep)?;
            Ok(Edited::Something)
        })?;
        Ok(Map::new())
    }
}

impl Process for Lock {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.LockProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        outcome(self.lock(step))
    }
}

/// Lets the payload go that a step before has locked.
pub(super) struct Unlock(pub(super) Repository);

impl Unlock {
    fn unlock(&self, step: &StepRun) -> Result<Map<String, Json>, StepOutcome> {
        let path = step.payload_path()?;
        edit(&self.0, step, |session, _| {
            let place = locked_node(session, &path)?.path().clone();
            if !session.remove_property(&place, OWNER)? {
                return Ok(Edited::Nothing);
            }
            session.remove_property(&place, "jcr:lockIsDeep")?;
            Ok(Edited::Something)
        })?;
        Ok(Map::new())
    }
}

impl Process for Unlock {
    fn name(&self) -> &str {
        "com.adobe.granite.workflow.core.process.UnlockProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        outcome(self.unlock(step))
    }
}
