//! The steps of workflow models.

use serde_json::{Map, Value as Json};

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowStepKind {
    /// The start of an instance.
    Start,
    /// The end of an instance.
    End,
    /// A process executes it.
    Process,
    /// A process starts it in another system and monitors it.
    External,
    /// A person does it.
    Participant,
    /// A person does it, whom a chooser selects when the step begins.
    DynamicParticipant,
    /// Runs a nested workflow.
    Container,
    /// All routes are taken.
    AndSplit,
    /// Waits for all routes.
    AndJoin,
    /// One route is taken: the first whose rule is true.
    OrSplit,
    /// Continues with any arriving route.
    OrJoin,
    /// Goes to the step that it names if its rule is true, otherwise to the next step.
    Goto,
}

impl WorkflowStepKind {
    const STEP_KIND_NAMES: [(Self, &'static str); 12] = [
        (Self::Start, "START"),
        (Self::End, "END"),
        (Self::Process, "PROCESS"),
        (Self::External, "EXTERNAL_PROCESS"),
        (Self::Participant, "PARTICIPANT"),
        (Self::DynamicParticipant, "DYNAMIC_PARTICIPANT"),
        (Self::Container, "CONTAINER"),
        (Self::AndSplit, "AND_SPLIT"),
        (Self::AndJoin, "AND_JOIN"),
        (Self::OrSplit, "OR_SPLIT"),
        (Self::OrJoin, "OR_JOIN"),
        (Self::Goto, "GOTO"),
    ];

    /// Returns AEM's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::STEP_KIND_NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::STEP_KIND_NAMES
            .iter()
            .find(|(_, kind_name)| *kind_name == name)
            .map(|(kind, _)| *kind)
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowStep {
    /// The kind of the step.
    pub kind: WorkflowStepKind,
    /// The step's title.
    pub title: String,
    /// Its arguments: `PROCESS`, `PROCESS_ARGS`, `PARTICIPANT` and all other properties of its `metaData`.
    pub arguments: Map<String, Json>,
}

impl WorkflowStep {
    /// Returns an argument as text.
    #[must_use]
    pub fn text_argument(&self, name: &str) -> Option<&str> {
        self.arguments.get(name).and_then(Json::as_str).filter(|text| !text.is_empty())
    }

    /// Returns the name of the chooser of a dynamic participant.
    #[must_use]
    pub fn chooser_name(&self) -> Option<&str> {
        self.text_argument("DYNAMIC_PARTICIPANT").or_else(|| self.text_argument("PROCESS"))
    }

    /// Returns the path of the nested model of a container.
    #[must_use]
    pub fn inner_model_path(&self) -> Option<&str> {
        self.text_argument("SUB_WORKFLOW").or_else(|| self.text_argument("MODEL"))
    }
}
