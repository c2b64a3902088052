//! How a package is installed, beyond what the package itself says.

use std::time::SystemTime;

use super::filter::Mode;
use super::properties::AccessControl;
use super::words;

/// How a package is installed. What is not said here, the package says.
#[derive(Debug, Clone, Default)]
pub struct InstallOptions {
    /// How access control meets what is there.
    pub access_control: Option<AccessControl>,
    /// How closed user groups meet what is there.
    pub closed_user_groups: Option<AccessControl>,
    /// The mode of all filters.
    pub mode: Option<Mode>,
    /// What to do when a node elsewhere has the identifier of a node in the package.
    pub identifiers: IdentifierRule,
    /// What to do with packages within the package.
    pub nested: NestedRule,
    /// What to do about packages that this one needs.
    pub dependencies: DependencyRule,
    /// Who installs it, when; the packages that are stored say so then.
    pub stamp: Option<Stamp>,
}

/// What to do when a node elsewhere, which stays, has the identifier (`jcr:uuid`) of a node in the package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdentifierRule {
    /// The package is refused.
    #[default]
    Refuse,
    /// The node of the package gets another identifier.
    New,
    /// The node elsewhere is removed.
    Replace,
}

impl IdentifierRule {
    const ALL: [(Self, &str); 3] =
        [(Self::Refuse, "refuse"), (Self::New, "new"), (Self::Replace, "replace")];

    /// Returns the rule's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        words::name_of(&Self::ALL, self)
    }

    /// Finds the rule of a name.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        words::find(&Self::ALL, text)
    }
}

/// What to do with packages within a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NestedRule {
    /// What the package's `subPackageHandling` says.
    #[default]
    AsSaid,
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
        words::name_of(&Self::ALL, self)
    }

    /// Finds the rule of a name.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        words::find(&Self::ALL, text)
    }
}

/// Who does something, and when.
#[derive(Debug, Clone)]
pub struct Stamp {
    /// The user.
    pub user: String,
    /// The time.
    pub at: SystemTime,
}
