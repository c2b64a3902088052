//! Privileges by name, and sets of privileges for policies and decisions.

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};

/// A set of privileges.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Privileges(u32);

/// The elementary privileges, by bit.
const SIMPLE_PRIVILEGES: [&str; 22] = [
    "rep:readNodes",
    "rep:readProperties",
    "rep:addProperties",
    "rep:alterProperties",
    "rep:removeProperties",
    "jcr:addChildNodes",
    "jcr:removeChildNodes",
    "jcr:removeNode",
    "jcr:readAccessControl",
    "jcr:modifyAccessControl",
    "jcr:nodeTypeManagement",
    "jcr:versionManagement",
    "jcr:lockManagement",
    "jcr:lifecycleManagement",
    "jcr:retentionManagement",
    "rep:userManagement",
    "rep:indexDefinitionManagement",
    "jcr:workspaceManagement",
    "jcr:nodeTypeDefinitionManagement",
    "jcr:namespaceManagement",
    "rep:privilegeManagement",
    "crx:replicate",
];

impl Privileges {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// `rep:readNodes`.
    pub const READ_NODES: Self = Self(1);
    /// `rep:readProperties`.
    pub const READ_PROPERTIES: Self = Self(1 << 1);
    /// `jcr:read`.
    pub const READ: Self = Self(0b11);
    /// `rep:addProperties`.
    pub const ADD_PROPERTIES: Self = Self(1 << 2);
    /// `rep:alterProperties`.
    pub const ALTER_PROPERTIES: Self = Self(1 << 3);
    /// `rep:removeProperties`.
    pub const REMOVE_PROPERTIES: Self = Self(1 << 4);
    /// `jcr:modifyProperties`.
    pub const MODIFY_PROPERTIES: Self = Self(0b111 << 2);
    /// `jcr:addChildNodes`.
    pub const ADD_CHILD_NODES: Self = Self(1 << 5);
    /// `jcr:removeChildNodes`.
    pub const REMOVE_CHILD_NODES: Self = Self(1 << 6);
    /// `jcr:removeNode`.
    pub const REMOVE_NODE: Self = Self(1 << 7);
    /// `jcr:write`.
    pub const WRITE: Self = Self(0b11_1111 << 2);
    /// `jcr:readAccessControl`.
    pub const READ_ACCESS_CONTROL: Self = Self(1 << 8);
    /// `jcr:modifyAccessControl`.
    pub const MODIFY_ACCESS_CONTROL: Self = Self(1 << 9);
    /// `jcr:nodeTypeManagement`.
    pub const NODE_TYPE_MANAGEMENT: Self = Self(1 << 10);
    /// `rep:write`.
    pub const REP_WRITE: Self = Self(Self::WRITE.0 | Self::NODE_TYPE_MANAGEMENT.0);
    /// `jcr:versionManagement`.
    pub const VERSION_MANAGEMENT: Self = Self(1 << 11);
    /// `jcr:lockManagement`.
    pub const LOCK_MANAGEMENT: Self = Self(1 << 12);
    /// `rep:userManagement`.
    pub const USER_MANAGEMENT: Self = Self(1 << 15);
    /// `rep:indexDefinitionManagement`.
    pub const INDEX_DEFINITION_MANAGEMENT: Self = Self(1 << 16);
    /// `jcr:nodeTypeDefinitionManagement`, of the repository.
    pub const NODE_TYPE_DEFINITION_MANAGEMENT: Self = Self(1 << 18);
    /// `jcr:namespaceManagement`, of the repository.
    pub const NAMESPACE_MANAGEMENT: Self = Self(1 << 19);
    /// `rep:privilegeManagement`, of the repository.
    pub const PRIVILEGE_MANAGEMENT: Self = Self(1 << 20);
    /// `crx:replicate`.
    pub const REPLICATE: Self = Self(1 << 21);
    /// `jcr:all`.
    pub const ALL: Self = Self((1 << SIMPLE_PRIVILEGES.len()) - 1);

    /// Finds a privilege by name; an aggregate yields its elementary privileges.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        let aggregate = match name {
            "jcr:read" => Self::READ,
            "jcr:modifyProperties" => Self::MODIFY_PROPERTIES,
            "jcr:write" => Self::WRITE,
            "rep:write" => Self::REP_WRITE,
            "jcr:all" => Self::ALL,
            _ => {
                let bit = SIMPLE_PRIVILEGES.iter().position(|simple| *simple == name)?;
                return Some(Self(1 << bit));
            }
        };
        Some(aggregate)
    }

    /// Returns the names of the elementary privileges in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let bits = SIMPLE_PRIVILEGES.iter().enumerate();
        bits.filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| *name)
    }

    /// Returns the name of the first privilege in the set.
    pub(crate) fn first_name(self) -> &'static str {
        self.names().next().unwrap_or("jcr:all")
    }

    /// Returns true if the set contains every privilege of the other set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Privileges {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Privileges {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Privileges {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0 & Self::ALL.0)
    }
}

impl fmt::Debug for Privileges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sets_agree() {
        for name in SIMPLE_PRIVILEGES {
            let names: Vec<_> = Privileges::find(name).unwrap().names().collect();
            assert_eq!(names, [name]);
        }
        for (name, simple) in [
            ("crx:replicate", Privileges::REPLICATE),
            ("rep:userManagement", Privileges::USER_MANAGEMENT),
            ("rep:privilegeManagement", Privileges::PRIVILEGE_MANAGEMENT),
            ("jcr:namespaceManagement", Privileges::NAMESPACE_MANAGEMENT),
            ("jcr:nodeTypeDefinitionManagement", Privileges::NODE_TYPE_DEFINITION_MANAGEMENT),
            ("rep:indexDefinitionManagement", Privileges::INDEX_DEFINITION_MANAGEMENT),
            ("jcr:lockManagement", Privileges::LOCK_MANAGEMENT),
            ("jcr:versionManagement", Privileges::VERSION_MANAGEMENT),
            ("jcr:modifyAccessControl", Privileges::MODIFY_ACCESS_CONTROL),
            ("jcr:removeNode", Privileges::REMOVE_NODE),
        ] {
            assert_eq!(Privileges::find(name), Some(simple), "{name}");
        }
        let write: Vec<_> = Privileges::WRITE.names().collect();
        assert_eq!(
            write,
            [
                "rep:addProperties",
                "rep:alterProperties",
                "rep:removeProperties",
                "jcr:addChildNodes",
                "jcr:removeChildNodes",
                "jcr:removeNode"
            ]
        );
        assert!(Privileges::ALL.contains(Privileges::REP_WRITE | Privileges::REPLICATE));
        assert_eq!(Privileges::find("jcr:everything"), None);
    }
}
