//! Conflicts: what two sessions changed so that both cannot hold.

use std::fmt;

use crate::{NodePath, Property};

/// The kinds of conflict, by Oak's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// Both added the property, with different values.
    AddExistingProperty,
    /// This session removed a property that the other had removed.
    RemoveRemovedProperty,
    /// This session removed a property that the other had changed.
    RemoveChangedProperty,
    /// This session changed a property that the other had removed.
    ChangeRemovedProperty,
    /// Both changed the property, to different values.
    ChangeChangedProperty,
    /// Both added the node, with different content.
    AddExistingNode,
    /// This session removed a node that the other had removed.
    RemoveRemovedNode,
    /// This session removed a node that the other had changed.
    RemoveChangedNode,
    /// This session changed a node that the other had removed.
    ChangeRemovedNode,
}

impl ConflictKind {
    /// Returns Oak's name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AddExistingProperty => "addExistingProperty",
            Self::RemoveRemovedProperty => "removeRemovedProperty",
            Self::RemoveChangedProperty => "removeChangedProperty",
            Self::ChangeRemovedProperty => "changeRemovedProperty",
            Self::ChangeChangedProperty => "changeChangedProperty",
            Self::AddExistingNode => "addExistingNode",
            Self::RemoveRemovedNode => "removeRemovedNode",
            Self::RemoveChangedNode => "removeChangedNode",
            Self::ChangeRemovedNode => "changeRemovedNode",
        }
    }
}

/// One thing that two sessions changed differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The node.
    pub path: NodePath,
    /// What happened.
    pub kind: ConflictKind,
    /// The property, where the conflict is about one.
    pub property: Option<String>,
    /// The property's value when this session began.
    pub base: Option<Property>,
    /// The value that this session wants.
    pub ours: Option<Property>,
    /// The value that is stored now.
    pub theirs: Option<Property>,
}

impl Conflict {
    /// Makes a conflict about a whole node.
    pub(crate) fn of_node(path: &NodePath, kind: ConflictKind) -> Self {
        Self { path: path.clone(), kind, property: None, base: None, ours: None, theirs: None }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at `{}`", self.kind.name(), self.path)?;
        match &self.property {
            Some(property) => write!(f, ", property `{property}`"),
            None => Ok(()),
        }
    }
}
