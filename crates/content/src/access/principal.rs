//! Users and groups, and the principals of a viewer: the user, its groups (direct and transitive), and everyone.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::NodePath;
use crate::access::policy::{AccessControlDocument, AccountKind, StoredAccount};
use crate::access::viewer::{ANONYMOUS_PRINCIPAL, Viewer, ViewerIdentity};

/// The name of the user to whom no policy applies.
pub const ADMIN_USER: &str = "admin";
/// The group to whose members no policy applies.
pub(crate) const ADMINISTRATORS_GROUP: &str = "administrators";
/// The principal of every viewer.
pub(crate) const EVERYONE_PRINCIPAL: &str = "everyone";

/// All accounts of one state of the content.
#[derive(Debug, Default)]
pub(crate) struct AccountDirectory {
    /// Users by identifier.
    users: BTreeMap<String, UserAccount>,
    groups: BTreeMap<String, GroupAccount>,
    /// The groups that list an account as a member, by the account's `jcr:uuid`.
    groups_by_member: HashMap<String, Vec<String>>,
}

#[derive(Debug)]
struct UserAccount {
    path: NodePath,
    principal: String,
    uuid: String,
    is_disabled: bool,
    is_system: bool,
}

#[derive(Debug)]
struct GroupAccount {
    path: NodePath,
    principal: String,
    uuid: String,
}

/// The principals of one viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ViewerPrincipals {
    /// The user's own principal.
    pub(crate) user: Option<String>,
    /// The groups, each with the chain of groups that leads to it; `everyone` last.
    pub(crate) groups: Vec<(String, Vec<String>)>,
    pub(crate) is_admin: bool,
}

impl AccountDirectory {
    pub(crate) fn new<'a>(documents: impl Iterator<Item = &'a AccessControlDocument>) -> Self {
        let mut accounts = Self::default();
        for account in documents.flat_map(|document| &document.accounts) {
            accounts.add(account);
        }
        accounts
    }

    fn add(&mut self, account: &StoredAccount) {
        let StoredAccount { path, id, principal, uuid, kind, member_ids, is_disabled } = account;
        let (path, principal, uuid) = (path.clone(), principal.clone(), uuid.clone());
        if *kind == AccountKind::Group {
            for member in member_ids {
                self.groups_by_member.entry(member.clone()).or_default().push(id.clone());
            }
            self.groups.insert(id.clone(), GroupAccount { path, principal, uuid });
            return;
        }
        let is_system = *kind == AccountKind::SystemUser;
        let user = UserAccount { path, principal, uuid, is_disabled: *is_disabled, is_system };
        self.users.insert(id.clone(), user);
    }

    /// Returns the principals of a viewer. An unknown or disabled user has no principal of its own.
    pub(crate) fn principals_for(&self, identity: &ViewerIdentity) -> ViewerPrincipals {
        let everyone = || vec![(EVERYONE_PRINCIPAL.to_owned(), Vec::new())];
        match identity {
            ViewerIdentity::System => {
                ViewerPrincipals { user: None, groups: everyone(), is_admin: true }
            }
            ViewerIdentity::Anonymous => ViewerPrincipals {
                user: Some(ANONYMOUS_PRINCIPAL.to_owned()),
                groups: everyone(),
                is_admin: false,
            },
            ViewerIdentity::User(name) => {
                let Some(user) = self.users.get(&**name).filter(|user| !user.is_disabled) else {
                    let is_admin = **name == *ADMIN_USER && !self.users.contains_key(ADMIN_USER);
                    return ViewerPrincipals { user: None, groups: everyone(), is_admin };
                };
                let mut groups = self.transitive_groups_of(&user.uuid);
                let is_member = groups.iter().any(|(group, _)| group == ADMINISTRATORS_GROUP);
                groups.extend(everyone());
                ViewerPrincipals {
                    user: Some(user.principal.clone()),
                    groups,
                    is_admin: is_member || **name == *ADMIN_USER,
                }
            }
        }
    }

    /// Returns the groups of an account, direct and transitive; a cycle is not followed again.
    fn transitive_groups_of(&self, uuid: &str) -> Vec<(String, Vec<String>)> {
        let mut groups = Vec::new();
        let mut visited_ids = HashSet::new();
        // An account without an identifier cannot be listed as a member.
        let first = Some((uuid, Vec::new())).filter(|(uuid, _)| !uuid.is_empty());
        let mut waiting: VecDeque<(&str, Vec<String>)> = first.into_iter().collect();
        while let Some((uuid, chain)) = waiting.pop_front() {
            for id in self.groups_by_member.get(uuid).into_iter().flatten() {
                let Some(group) = self.groups.get(id) else { continue };
                if !visited_ids.insert(id) {
                    continue;
                }
                groups.push((group.principal.clone(), chain.clone()));
                let mut chain: Vec<String> = chain.clone();
                chain.push(group.principal.clone());
                if !group.uuid.is_empty() {
                    waiting.push_back((&group.uuid, chain));
                }
            }
        }
        groups
    }

    /// Returns true if no policy applies to this account or to its members.
    pub(crate) fn grants_all_rights(&self, account: &StoredAccount) -> bool {
        let is_top = match account.kind {
            AccountKind::Group => {
                account.principal == ADMINISTRATORS_GROUP || account.id == ADMINISTRATORS_GROUP
            }
            // Deferred work runs in the name of a user; no policy applies to this one.
            AccountKind::User | AccountKind::SystemUser => {
                account.id == ADMIN_USER || account.id == Viewer::system().name()
            }
        };
        is_top
            || self
                .transitive_groups_of(&account.uuid)
                .iter()
                .any(|(group, _)| group == ADMINISTRATORS_GROUP)
    }

    /// Returns the path of a user or group.
    pub(crate) fn path_of(&self, id: &str) -> Option<&NodePath> {
        let user = self.users.get(id).map(|user| &user.path);
        user.or_else(|| self.groups.get(id).map(|group| &group.path))
    }

    /// Returns the paths of the groups that list an identifier as a member.
    pub(crate) fn direct_groups_of(&self, uuid: &str) -> impl Iterator<Item = &NodePath> {
        let ids = self.groups_by_member.get(uuid).into_iter().flatten();
        ids.filter_map(|id| self.groups.get(id)).map(|group| &group.path)
    }

    /// Returns every account: its identifier, its principal name, and its path.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, &NodePath)> {
        let users = self.users.iter().map(|(id, user)| (&**id, &*user.principal, &user.path));
        let groups = self.groups.iter().map(|(id, group)| (&**id, &*group.principal, &group.path));
        users.chain(groups)
    }

    /// Returns the identifier of a user, which no later user of the same name has; `None` if the user has none.
    pub(crate) fn identifier_of(&self, id: &str) -> Option<&str> {
        self.users.get(id).map(|user| user.uuid.as_str()).filter(|uuid| !uuid.is_empty())
    }

    /// Returns the paths of the accounts without an identifier.
    pub(crate) fn accounts_without_identifier(&self) -> impl Iterator<Item = &NodePath> {
        let users = self.users.values().filter(|user| user.uuid.is_empty()).map(|user| &user.path);
        let groups =
            self.groups.values().filter(|group| group.uuid.is_empty()).map(|group| &group.path);
        users.chain(groups)
    }

    /// Returns true if the named user can log in.
    pub(crate) fn can_log_in(&self, id: &str) -> bool {
        self.users.get(id).is_some_and(|user| !user.is_disabled && !user.is_system)
    }

    /// Returns every user and whether it is disabled, sorted by name.
    pub(crate) fn users(&self) -> impl Iterator<Item = (&str, bool)> {
        self.users.iter().map(|(id, user)| (id.as_str(), user.is_disabled))
    }

    /// Returns every group, sorted by name.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }
}
