//! The identity of a node of a plan.

/// The index of a node in the nodes of a plan.
pub type PlanNodeId = usize;
