//! The user, time and contents of a commit, and the checks that apply to it.

use std::time::SystemTime;

use crate::NodePath;
use crate::version::version_entry::VersionEdits;

/// The user, time and contents of a commit.
#[derive(Debug)]
pub(crate) struct CommitDetails<'a> {
    pub(crate) user: &'a str,
    pub(crate) message: &'a str,
    pub(crate) time: SystemTime,
    /// The edits to the map of versions.
    pub(crate) version_edits: &'a VersionEdits,
    /// The moves as pairs of source and target, in order.
    pub(crate) moves: &'a [(NodePath, NodePath)],
    /// The changes by replication, for a commit with which replication records its actions.
    pub(crate) replication: Option<&'a ReplicationChanges>,
}

/// The checks of edits against the rules of node types, names and references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitChecks {
    /// All checks apply, and the repository sets its own properties.
    All,
    /// All checks apply. The edits come from a package, which determines the properties of its nodes.
    Package,
    /// No checks. The edits were checked by another instance and are stored unchanged.
    Unchecked,
    /// No checks, for an author that replicates received content further; it manages its own activation status.
    UncheckedRelay,
}

/// The replication changes that a commit records.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplicationChanges {
    /// The nodes that are withdrawn from visitors, with everything below them.
    pub(crate) withdrawn_paths: Vec<NodePath>,
    /// The documents that are withdrawn from visitors while something below them stays.
    pub(crate) emptied_paths: Vec<NodePath>,
    /// The documents that are activated for visitors and carry no stamps, with the time of the request.
    pub(crate) activated_documents: Vec<(NodePath, SystemTime)>,
}
