//! Statements of repository initialization, after parsing.

use std::fmt;

use tympan_content::AccountKind;

/// A statement, or one line of a block such as `set ACL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepoinitStatement {
    /// The line, counted from 1.
    pub(super) line: u32,
    /// The statement on one line; of a block, its head and the line.
    pub(super) text: String,
    pub(super) operation: RepoinitOperation,
}

/// The effect that a statement asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RepoinitOperation {
    /// Creates nodes unless they exist: each path with its type and mixins.
    CreateNodes(Vec<InitialNode>),
    CreateAccounts {
        kind: AccountKind,
        names: Vec<String>,
        /// The folder below `/home/users` or `/home/groups`.
        folder: Option<String>,
        has_password: bool,
    },
    AddMembers {
        members: Vec<String>,
        group: String,
    },
    DisableUser {
        name: String,
        reason: String,
    },
    AddEntry {
        target: PolicyTarget,
        entry: EntryTemplate,
    },
    /// Removes all entries of the principals.
    RemoveEntries(PolicyTarget),
    SetProperty {
        targets: Vec<RepoinitPath>,
        property: PropertyAssignment,
    },
    RegisterNodeTypes(String),
    RegisterNamespace {
        prefix: String,
        uri: String,
    },
    /// A statement that is not carried out, with the reason.
    Skip(String),
}

/// A node of `create path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InitialNode {
    pub(super) path: String,
    /// The primary type; by default that of the folder above.
    pub(super) primary_type: Option<String>,
    pub(super) mixins: Vec<String>,
}

/// The policies that a line of an ACL changes: one for each path, or one for each principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyTarget {
    pub(super) paths: Vec<RepoinitPath>,
    pub(super) principals: Vec<String>,
    /// True if the entries belong to the service users instead of the nodes.
    pub(super) is_principal_based: bool,
}

/// An entry of a policy without its principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryTemplate {
    pub(super) is_grant: bool,
    pub(super) privileges: Vec<String>,
    /// The names and values of restrictions.
    pub(super) restrictions: Vec<(String, Vec<String>)>,
}

/// A property of `set properties`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PropertyAssignment {
    pub(super) name: String,
    pub(super) type_name: String,
    pub(super) is_list: bool,
    pub(super) values: Vec<String>,
    /// True if an existing property stays as it is.
    pub(super) is_default: bool,
}

/// The place of a node or policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RepoinitPath {
    Node(String),
    /// The node of an account, and a path relative to it, which is empty or begins with `/`.
    Account(String, String),
    /// `:repository`, the repository as a whole.
    Repository,
}

impl fmt::Display for RepoinitPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(path) => f.write_str(path),
            Self::Account(name, rest) => write!(f, "home({name}){rest}"),
            Self::Repository => f.write_str(":repository"),
        }
    }
}
