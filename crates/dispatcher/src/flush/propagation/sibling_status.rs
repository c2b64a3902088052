//! The status of a sibling, for monitoring.

/// The status of a sibling, for monitoring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SiblingStatus {
    pub(crate) name: String,
    pub(crate) is_reached: bool,
    /// The number of events that it has not applied yet.
    pub(crate) pending_events: u64,
}
