//! Constraint violations of a commit, with Oak's numbers.

use std::fmt;

use crate::NodePath;
use crate::model::referrer::Referrer;

/// Maximum number of nodes named in a message; the others are only counted.
const MAX_LISTED_NODES: usize = 5;

/// One violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConstraintViolation {
    /// The node.
    pub path: NodePath,
    /// The rule.
    pub kind: ConstraintViolationKind,
    /// The offending property, child, type or prefix.
    pub item: String,
    /// The found and the allowed values, if any.
    pub detail: String,
    /// The properties that refer to the node, if they are the reason.
    pub referrers: Vec<Referrer>,
    /// The nodes that already have the identifier or name, if they are the reason.
    pub conflicting_paths: Vec<NodePath>,
    /// Number of referrers and other nodes that are omitted because the viewer may not see them.
    pub hidden_count: usize,
}

impl ConstraintViolation {
    pub(crate) fn new(
        path: &NodePath,
        kind: ConstraintViolationKind,
        item: impl Into<String>,
    ) -> Self {
        let (path, item) = (path.clone(), item.into());
        let (referrers, others) = (Vec::new(), Vec::new());
        Self {
            path,
            kind,
            item,
            detail: String::new(),
            referrers,
            conflicting_paths: others,
            hidden_count: 0,
        }
    }

    pub(crate) fn with_detail(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }
}

/// A rule of node types, names and references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ConstraintViolationKind {
    /// The primary type is unknown.
    UnknownPrimaryType,
    /// A mixin is used as the primary type.
    MixinAsPrimaryType,
    /// An abstract type is used as the primary type.
    AbstractPrimaryType,
    /// A node has no primary type, and its parent's type defines no default.
    NoPrimaryType,
    /// A mixin is unknown.
    UnknownMixin,
    /// A primary type is used as a mixin.
    PrimaryTypeAsMixin,
    /// An abstract mixin is used.
    AbstractMixin,
    /// The type does not allow the child.
    UnknownChild,
    /// The type does not allow the property, or not with this type or multiplicity.
    UnknownProperty,
    /// The value violates the constraints of the type.
    ValueConstraint,
    /// A mandatory property has another type.
    RequiredType,
    /// The `jcr:uuid` of a referenceable node is not a valid identifier.
    InvalidIdentifier,
    /// A mandatory property is missing.
    MandatoryProperty,
    /// A mandatory property is removed.
    MandatoryPropertyRemoved,
    /// A mandatory child is missing.
    MandatoryChild,
    /// A mandatory child is removed.
    MandatoryChildRemoved,
    /// The property may be set only by the repository.
    Protected,
    /// Two nodes have the same `jcr:uuid`.
    DuplicateIdentifier,
    /// Two users or groups have the same name.
    DuplicateAccount,
    /// A name has a prefix without a namespace.
    UnknownPrefix,
    /// A value of type name is not a valid name.
    InvalidName,
    /// A removed node is still referenced.
    Referenced,
    /// A reference points to a node that does not exist.
    DanglingReference,
}

impl ConstraintViolationKind {
    /// Returns Oak's code, made of the kind of failure and its number; JCR's if Oak has none.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::UnknownPrimaryType | Self::UnknownChild => "OakConstraint0001",
            Self::MixinAsPrimaryType => "OakConstraint0002",
            Self::AbstractPrimaryType => "OakConstraint0003",
            Self::NoPrimaryType | Self::UnknownProperty => "OakConstraint0004",
            Self::UnknownMixin | Self::ValueConstraint => "OakConstraint0005",
            Self::PrimaryTypeAsMixin => "OakConstraint0006",
            Self::AbstractMixin => "OakConstraint0007",
            Self::InvalidIdentifier => "OakConstraint0012",
            Self::MandatoryProperty => "OakConstraint0021",
            Self::MandatoryPropertyRemoved => "OakConstraint0022",
            Self::MandatoryChild => "OakConstraint0025",
            Self::MandatoryChildRemoved => "OakConstraint0026",
            Self::DuplicateIdentifier | Self::DuplicateAccount => "OakConstraint0030",
            Self::RequiredType => "OakConstraint0055",
            Self::Protected => "ConstraintViolation",
            Self::UnknownPrefix => "OakName0001",
            Self::InvalidName => "OakName0003",
            Self::Referenced => "OakIntegrity0001",
            Self::DanglingReference => "ReferentialIntegrity",
        }
    }

    /// Returns true if the violation concerns the content of other nodes rather than the node itself.
    #[must_use]
    pub fn is_about_other_nodes(self) -> bool {
        matches!(
            self,
            Self::DuplicateIdentifier
                | Self::DuplicateAccount
                | Self::Referenced
                | Self::DanglingReference
        )
    }

    fn description(self) -> &'static str {
        match self {
            Self::UnknownPrimaryType => "the primary type {} does not exist",
            Self::MixinAsPrimaryType => "the mixin {} is used as the primary type",
            Self::AbstractPrimaryType => "the abstract type {} is used as the primary type",
            Self::NoPrimaryType => "no default primary type is available for the child {}",
            Self::UnknownMixin => "the mixin {} does not exist",
            Self::PrimaryTypeAsMixin => "the primary type {} is used as a mixin",
            Self::AbstractMixin => "the abstract type {} is used as a mixin",
            Self::UnknownChild => "no definition matches the child {}",
            Self::UnknownProperty => "no definition matches the property {}",
            Self::ValueConstraint => "the value of {} is not allowed",
            Self::RequiredType => "the property {} is not of the required type",
            Self::InvalidIdentifier => "the value of {} is not a UUID",
            Self::MandatoryProperty => "the mandatory property {} is missing",
            Self::MandatoryPropertyRemoved => "the mandatory property {} cannot be removed",
            Self::MandatoryChild => "the mandatory child {} is missing",
            Self::MandatoryChildRemoved => "the mandatory child {} cannot be removed",
            Self::Protected => "the property {} is protected",
            Self::DuplicateIdentifier => "the identifier {} is already in use",
            Self::DuplicateAccount => "the name {} is used by another user or group",
            Self::UnknownPrefix => "the prefix {} is not mapped to a namespace",
            Self::InvalidName => "{} is not a valid name",
            Self::Referenced => "the node with the identifier {} is referenced",
            Self::DanglingReference => "the property {} refers to a node that does not exist",
        }
    }
}

impl fmt::Display for ConstraintViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let says = self.kind.description().replace("{}", &format!("`{}`", self.item));
        write!(f, "{}: {}: {says}", self.kind.code(), self.path)?;
        if !self.detail.is_empty() {
            write!(f, "; {}", self.detail)?;
        }
        let (before, behind, mut names): (_, _, Vec<String>) =
            match (self.kind, self.conflicting_paths.is_empty()) {
                (ConstraintViolationKind::Referenced, _) => {
                    (" by ", "", self.referrers.iter().map(Referrer::to_string).collect())
                }
                (_, true) if self.hidden_count == 0 => return Ok(()),
                _ => (
                    "; ",
                    " has it",
                    self.conflicting_paths.iter().map(NodePath::to_string).collect(),
                ),
            };
        let more = names.len().saturating_sub(MAX_LISTED_NODES);
        names.truncate(MAX_LISTED_NODES);
        if more > 0 {
            names.push(format!("{more} more"));
        }
        if self.hidden_count > 0 {
            names.push(format!("{} that you may not see", self.hidden_count));
        }
        if names.is_empty() { Ok(()) } else { write!(f, "{before}{}{behind}", names.join(", ")) }
    }
}

/// Summarizes the violations of a commit: the first in full, and the number of others.
pub(crate) fn summarize_violations(violations: &[ConstraintViolation]) -> String {
    match violations {
        [] => "a node type constraint is violated".to_owned(),
        [only] => only.to_string(),
        [first, others @ ..] => format!("{first} (and {} more)", others.len()),
    }
}
