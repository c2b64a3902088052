//! The properties that refer to a node, and the ways in which they refer.

use std::fmt;

use crate::NodePath;

/// The way in which a property refers to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReferenceKind {
    /// By identifier; the node cannot be removed while the reference exists.
    Strong,
    /// By identifier; the node may be missing.
    Weak,
    /// By path; the node may be missing.
    Path,
    /// By a link in a text, such as markup; the node may be missing.
    Link,
    /// By the name of a tag, such as `namespace:path`; the tag may be missing.
    Tag,
    /// By the name of a policy; the policy may be missing.
    Policy,
}

impl ReferenceKind {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Strong => "reference",
            Self::Weak => "weakReference",
            Self::Path => "path",
            Self::Link => "link",
            Self::Tag => "tag",
            Self::Policy => "policy",
        }
    }
}

/// A property that refers to a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Referrer {
    /// The node that has the property.
    pub path: NodePath,
    /// The property's name.
    pub property: String,
    /// The kind of the reference.
    pub kind: ReferenceKind,
}

impl fmt::Display for Referrer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` of {}", self.property, self.path)
    }
}
