//! The changes of one node, as the change feed reports them.

use crate::NodePath;

/// The kind of change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedChangeKind {
    /// The node is new.
    Added,
    /// The node was removed.
    Removed,
    /// The properties of the node changed.
    Changed,
    /// The node moved from another path, and may have changed as well.
    Moved,
    /// The order of the node's children changed.
    Reordered,
}

impl FeedChangeKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Added, Self::Removed, Self::Changed, Self::Moved, Self::Reordered];

    /// Returns the name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
            Self::Moved => "moved",
            Self::Reordered => "reordered",
        }
    }

    /// Finds the kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One changed node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeChange {
    /// The kind of change.
    pub kind: FeedChangeKind,
    /// The path of the node; the former path if it was removed.
    pub path: NodePath,
    /// The former path of a moved node.
    pub from: Option<NodePath>,
    /// The primary type; the last one of a removed node.
    pub node_type: String,
    /// The properties that differ, by name; all properties of a new node, none of a removed one.
    pub properties: Vec<PropertyChange>,
}

/// One changed property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyChange {
    /// The name of the property.
    pub name: String,
    /// [`FeedChangeKind::Added`], [`FeedChangeKind::Changed`] or [`FeedChangeKind::Removed`].
    pub kind: FeedChangeKind,
}
