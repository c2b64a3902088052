//! The state of a workflow instance.

/// The state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowState {
    /// The instance is in progress.
    Running,
    /// Somebody suspended it.
    Suspended,
    /// It reached its end.
    Completed,
    /// Somebody terminated it.
    Aborted,
    /// It cannot continue.
    Stale,
}

impl WorkflowState {
    /// All states.
    pub const ALL: [Self; 5] =
        [Self::Running, Self::Suspended, Self::Completed, Self::Aborted, Self::Stale];

    /// Returns AEM's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completed => "COMPLETED",
            Self::Aborted => "ABORTED",
            Self::Stale => "STALE",
        }
    }

    /// Returns the state with the given name, ignoring case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(name))
    }

    /// Returns true if the instance has not ended.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Running | Self::Suspended)
    }
}
