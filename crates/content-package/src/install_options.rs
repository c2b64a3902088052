//! Options of an installation, beyond the settings of the package itself.

use std::time::SystemTime;

use tympan_content::RevisionDetails;

use crate::filter::ImportMode;
use crate::keyword;
use crate::package_properties::AccessControlHandling;

/// Options of an installation. Options that are not set use the settings of the package.
#[derive(Debug, Clone, Default)]
pub struct InstallOptions {
    /// The treatment of existing access control.
    pub access_control: Option<AccessControlHandling>,
    /// The treatment of existing closed user groups.
    pub closed_user_groups: Option<AccessControlHandling>,
    /// The mode of all filters.
    pub mode: Option<ImportMode>,
    /// The rule for a node elsewhere that has the identifier of a node in the package.
    pub identifier_rule: IdentifierRule,
    /// The rule for nested packages.
    pub nested_rule: NestedPackageRule,
    /// The rule for dependencies.
    pub dependency_rule: DependencyRule,
    /// The user and time of the installation, recorded in the stored packages.
    pub stamp: Option<AuditStamp>,
}

/// The rule for a remaining node elsewhere that has the identifier (`jcr:uuid`) of a node in the package.
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

    /// Finds a rule by name.
    #[must_use]
    pub fn from_name(text: &str) -> Option<Self> {
        keyword::find_by_keyword(&Self::ALL, text)
    }
}

/// The rule for nested packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NestedPackageRule {
    /// As the `subPackageHandling` of the package specifies.
    #[default]
    AsDeclared,
    /// They are stored and not installed.
    Store,
}

/// The rule for dependencies of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DependencyRule {
    /// Stored packages are installed first; a missing one is an error.
    Required,
    /// All must already be installed.
    Strict,
    /// Stored packages are installed first; missing ones cause a warning.
    #[default]
    BestEffort,
    /// Dependencies are not checked.
    Ignore,
}

impl DependencyRule {
    const ALL: [(Self, &str); 4] = [
        (Self::Required, "required"),
        (Self::Strict, "strict"),
        (Self::BestEffort, "best_effort"),
        (Self::Ignore, "ignore"),
    ];

    /// Returns the rule's name in FileVault's spelling.
    #[must_use]
    pub fn name(self) -> &'static str {
        keyword::keyword_of(&Self::ALL, self)
    }

    /// Finds a rule by name.
    #[must_use]
    pub fn from_name(text: &str) -> Option<Self> {
        keyword::find_by_keyword(&Self::ALL, text)
    }
}

/// The user and time of an action.
#[derive(Debug, Clone)]
pub struct AuditStamp {
    /// The user.
    pub user: String,
    /// The time.
    pub time: SystemTime,
}

impl AuditStamp {
    /// Returns the details of a revision that the action makes.
    pub(crate) fn revision_details<'a>(&'a self, message: &'a str) -> RevisionDetails<'a> {
        RevisionDetails { user: &self.user, message, time: self.time }
    }
}
