//! Choosers of participants.
//!
//! | chooser | names |
//! |---|---|
//! | `WorkflowInitiatorParticipantChooser` | who started the workflow |
//! | `PropertyParticipantChooser` | who stands in the property `property` of the payload's content, such as `cq:lastModifiedBy`; else `default` |
//! | `VariableParticipantChooser` | who stands in the value `variable` of the instance; else `default` |
//! | `RandomParticipantChooser` | one of the list `participants`, in turn by the number of the instance |

use std::sync::Arc;

use serde_json::Value as Json;
use tympan_content::{JCR_CONTENT, NodePath, Repository};
use tympan_notation::error_chain_text;

use crate::workflow::step_registry::ParticipantChooser;
use crate::workflow::step_run::StepRun;

pub(super) fn standard_choosers(repository: &Repository) -> Vec<Arc<dyn ParticipantChooser>> {
    vec![
        Arc::new(InitiatorChooser),
        Arc::new(PropertyChooser(repository.clone())),
        Arc::new(VariableChooser),
        Arc::new(RoundRobinChooser),
    ]
}

struct InitiatorChooser;

impl ParticipantChooser for InitiatorChooser {
    fn name(&self) -> &str {
        "com.day.cq.workflow.impl.process.WorkflowInitiatorParticipantChooser"
    }

    fn choose_participant(&self, step: &StepRun) -> Result<String, String> {
        Ok(step.initiator.clone())
    }
}

fn name_or_default(
    chosen_name: Option<String>,
    step: &StepRun,
    source: &str,
) -> Result<String, String> {
    let chosen_name =
        chosen_name.filter(|name| !name.is_empty()).or_else(|| step.argument("default"));
    chosen_name.ok_or_else(|| {
        format!("{source} names no participant, and the step `{}` has no `default`", step.title)
    })
}

struct PropertyChooser(Repository);

impl PropertyChooser {
    fn read_property(&self, step: &StepRun, name: &str) -> tympan_content::Result<Option<String>> {
        let snapshot = self.0.snapshot()?;
        let Some(node) = snapshot.node(&NodePath::new(&step.payload)?)? else { return Ok(None) };
        let content = node.child(JCR_CONTENT)?;
        let on_content = content.and_then(|content| content.text(name));
        Ok(on_content.or_else(|| node.text(name)))
    }
}

impl ParticipantChooser for PropertyChooser {
    fn name(&self) -> &str {
        "tympan.workflow.chooser.PropertyParticipantChooser"
    }

    fn choose_participant(&self, step: &StepRun) -> Result<String, String> {
        let name = step.argument("property").unwrap_or_else(|| "cq:lastModifiedBy".to_owned());
        let participant =
            self.read_property(step, &name).map_err(|error| error_chain_text(&error))?;
        name_or_default(participant, step, &format!("the property `{name}` of `{}`", step.payload))
    }
}

struct VariableChooser;

impl ParticipantChooser for VariableChooser {
    fn name(&self) -> &str {
        "tympan.workflow.chooser.VariableParticipantChooser"
    }

    fn choose_participant(&self, step: &StepRun) -> Result<String, String> {
        let name = step.argument("variable").ok_or("`variable` is missing")?;
        let participant = step.data.get(&name).and_then(Json::as_str).map(str::to_owned);
        name_or_default(participant, step, &format!("the value `{name}`"))
    }
}

struct RoundRobinChooser;

impl ParticipantChooser for RoundRobinChooser {
    fn name(&self) -> &str {
        "tympan.workflow.chooser.RandomParticipantChooser"
    }

    fn choose_participant(&self, step: &StepRun) -> Result<String, String> {
        // Repeated calls return the same participant.
        let names: Vec<String> = match step.arguments.get("participants") {
            Some(Json::Array(names)) => {
                names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
            }
            Some(Json::String(text)) => {
                text.split(',').map(|name| name.trim().to_owned()).collect()
            }
            _ => Vec::new(),
        };
        let count = u64::try_from(names.len()).unwrap_or_default();
        let turn = step.workflow_id.unsigned_abs().checked_rem(count);
        let turn = turn.and_then(|turn| names.get(usize::try_from(turn).ok()?));
        turn.cloned().ok_or_else(|| "`participants` names no participant".to_owned())
    }
}
