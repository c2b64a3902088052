//! Conflicts: incompatible changes of two sessions.

use std::fmt;
use std::time::SystemTime;

use crate::{JcrDate, NodePath, Property};

/// Maximum number of conflicts listed in a message; the others are only counted.
const MAX_LISTED_CONFLICTS: usize = 10;
/// Maximum number of characters of a value in a message.
const MAX_VALUE_CHARS: usize = 60;

/// The kinds of conflict, by Oak's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// Both added the property, with different values.
    AddExistingProperty,
    /// This session removed a property that the other had removed. Never reported: both want the same.
    RemoveRemovedProperty,
    /// This session removed a property that the other had changed.
    RemoveChangedProperty,
    /// This session changed a property that the other had removed.
    ChangeRemovedProperty,
    /// Both changed the property, to different values.
    ChangeChangedProperty,
    /// Both added the node, with different content.
    AddExistingNode,
    /// This session removed a node that the other had removed. Never reported: both want the same.
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

/// An item that two sessions changed differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeConflict {
    /// The node.
    pub path: NodePath,
    /// The kind of conflict.
    pub kind: ConflictKind,
    /// The property, if the conflict concerns one.
    pub property: Option<String>,
    /// The property's value in the base state of this session; for a node that both sides moved, its path in that
    /// state.
    pub base: Option<Property>,
    /// The value, or the path of the moved node, in this session.
    pub ours: Option<Property>,
    /// The value, or the path of the moved node, that is stored now.
    pub theirs: Option<Property>,
    /// The last stored change; `None` if the history no longer contains it.
    pub last_change: Option<ChangeAttribution>,
}

/// The user, time and revision of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeAttribution {
    /// The user.
    pub user: String,
    /// The time.
    pub time: SystemTime,
    /// The revision.
    pub revision: u64,
    /// The message in the history; `None` if it may reveal hidden content to the viewer.
    pub message: Option<String>,
}

impl MergeConflict {
    /// Creates a conflict about a whole node.
    pub(crate) fn for_node(path: &NodePath, kind: ConflictKind) -> Self {
        let path = path.clone();
        Self { path, kind, property: None, base: None, ours: None, theirs: None, last_change: None }
    }

    /// Returns the path of the node on the other side.
    pub(crate) fn their_path(&self) -> NodePath {
        let moved = self.theirs.as_ref().filter(|_| self.property.is_none());
        let path = moved.and_then(Property::first).map(|path| NodePath::new(&path.to_text()));
        path.and_then(Result::ok).unwrap_or_else(|| self.path.clone())
    }
}

impl fmt::Display for MergeConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at `{}`", self.kind.name(), self.path)?;
        if let Some(property) = &self.property {
            write!(f, ", property `{property}`")?;
        }
        if self.property.is_some() || self.theirs.is_some() {
            for (side, value) in
                [("was", &self.base), ("ours is", &self.ours), ("theirs is", &self.theirs)]
            {
                match value {
                    Some(value) => write!(f, ", {side} `{}`", abbreviated_value(value))?,
                    None => write!(f, ", {side} absent")?,
                }
            }
        }
        match &self.last_change {
            Some(by) => write!(f, ", by `{}` at {}", by.user, JcrDate::from_system_time(by.time)),
            None => Ok(()),
        }
    }
}

/// Returns the beginning of a property's value.
fn abbreviated_value(property: &Property) -> String {
    let texts: Vec<_> = property.values().iter().map(|value| value.to_text()).collect();
    let text = texts.join(", ");
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Returns the message of a commit that failed because of these conflicts; it begins like Oak's.
pub(crate) fn conflict_message(conflicts: &[MergeConflict]) -> String {
    let mut text = String::from("OakState0001: Unresolved conflicts in ");
    if let Some(first) = conflicts.first() {
        text.push_str(first.path.as_str());
    }
    for (at, conflict) in conflicts.iter().take(MAX_LISTED_CONFLICTS).enumerate() {
        text.push_str(if at == 0 { ": " } else { "; " });
        text.push_str(&conflict.to_string());
    }
    if let Some(more) = conflicts.len().checked_sub(MAX_LISTED_CONFLICTS).filter(|more| *more > 0) {
        text.push_str(&format!("; and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_message_lists_every_side_and_who_it_was() {
        let path = NodePath::new("/content/page").unwrap();
        let of_property = MergeConflict {
            property: Some("jcr:title".to_owned()),
            base: Some("old".into()),
            ours: Some("x".repeat(80).as_str().into()),
            last_change: Some(ChangeAttribution {
                user: "ann".to_owned(),
                time: UNIX_EPOCH + Duration::from_secs(1),
                revision: 7,
                message: Some("edit".to_owned()),
            }),
            ..MergeConflict::for_node(&path, ConflictKind::ChangeRemovedProperty)
        };
        let of_node = MergeConflict::for_node(&path, ConflictKind::AddExistingNode);
        let long = format!("{}…", "x".repeat(60));
        assert_eq!(
            conflict_message(&[of_property, of_node.clone()]),
            format!(
                "OakState0001: Unresolved conflicts in /content/page: changeRemovedProperty at `/content/page`, \
                 property `jcr:title`, was `old`, ours is `{long}`, theirs is absent, by `ann` at \
                 1970-01-01T00:00:01.000Z; addExistingNode at `/content/page`"
            )
        );
        let many = vec![of_node; 12];
        assert!(conflict_message(&many).ends_with("; and 2 more"));
    }
}
