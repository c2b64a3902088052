//! How a package is installed, beyond what the package itself says.

use std::time::SystemTime;

use super::filter::ImportMode;
use super::keyword;
use super::package_properties::AccessControlHandling;

/// How a package is installed. What is not said here, the package says.
#[derive(Debug, Clone, Default)]
pub struct InstallOptions {
    /// How access control meets what is there.
    pub access_control: Option<AccessControlHandling>,
    /// How closed user groups meet what is there.
    pub closed_user_groups: Option<AccessControlHandling>,
    /// The mode of all filters.
    pub mode: Option<ImportMode>,
    /// What to do when a node elsewhere has the identifier of a node in the package.
    pub identifier_rule: IdentifierRule,
    /// What to do with packages within the package.
    pub nested_rule: NestedPackageRule,
    /// What to do about packages that this one needs.
    pub dependency_rule: DependencyRule,
    /// Who installs it, when; the packages that are stored say so then.
    pub stamp: Option<AuditStamp>,
}

/// What to do when a node elsewhere, which stays, has the identifier (`jcr:uuid`) of a node in the package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdentifierRule {
    /// The package is refused.
    #[default]
    Refuse,
    /// The node of the package gets another identifier.
    Regenerate,
    /// The node elsewhere is removed.
    RemoveExisting,
}

impl IdentifierRule {
    const ALL: [(Self, &str); 3] =
        [(Self::Refuse, "refuse"), (Self::Regenerate, "new"), (Self::RemoveExisting, "replace")];

    /// Returns the rule's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        keyword::keyword_of(&Self::ALL, self)
    }

    /// Finds the rule of a name.
    #[must_use]
    pub fn from_name(text: &str) -> Option<Self> {
        keyword::find_by_keyword(&Self::ALL, text)
    }
}

/// What to do with packages within a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NestedPackageRule {
    /// What the package's `subPackageHandling` says.
    #[default]
    AsDeclared,
    /// They are stored and not installed.
    Store,
}

/// What to do about packages that a package needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DependencyRule {
    /// Those that are stored are installed first; a missing one refuses the package.
    Required,
    /// All must be installed already.
    Strict,
    /// Those that are stored are installed first; missing ones are a warning.
    #[default]
    BestEffort,
    /// Nobody looks.
    Ignore,
}

impl DependencyRule {
    const ALL: [(Self, &str); 4] = [
        (Self::Required, "required"),
        (Self::Strict, "strict"),
        (Self::BestEffort, "best_effort"),
        (Self::Ignore, "ignore"),
    ];

    /// Returns the rule's name, as FileVault spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        keyword::keyword_of(&Self::ALL, self)
    }

    /// Finds the rule of a name.
    #[must_use]
    pub fn from_name(text: &str) -> Option<Self> {
        keyword::find_by_keyword(&Self::ALL, text)
    }
}

/// Who does something, and when.
#[derive(Debug, Clone)]
pub struct AuditStamp {
    /// The user.
    pub user: String,
    /// The time.
    pub time: SystemTime,
}
