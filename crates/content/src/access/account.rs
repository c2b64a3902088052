//! Creates and changes users and groups, in the form in which Oak stores them.
//!
//! In: a session. Out: pending edits below `/home`. The caller hashes the passwords.

use std::time::SystemTime;

use crate::access::policy::{ACCESS_CONTROL_TYPES, AccountKind};
use crate::{Error, NodePath, Property, Repository, Result, Session, Subtree, Value, ValueType};

/// The folder of users.
const USERS_PATH: &str = "/home/users";
/// The folder of groups.
const GROUPS_PATH: &str = "/home/groups";

/// Names that no account may have.
const RESERVED_ACCOUNT_NAMES: [&str; 3] = ["anonymous", "everyone", "system"];

impl Repository {
    /// Assigns an identifier (`jcr:uuid`) to every user and group that lacks one, in one commit; accounts from packages
    /// may lack it. Returns the number of accounts changed.
    ///
    /// # Errors
    /// If the store fails.
    pub fn assign_account_identifiers(&self, at: SystemTime) -> Result<usize> {
        let policies = self.0.cache.access_policies.policies_of_main(&self.0)?;
        let paths: Vec<NodePath> =
            policies.accounts.accounts_without_identifier().cloned().collect();
        let mut session = self.session("system")?;
        let mut count = 0;
        for path in &paths {
            let node = session.unrestricted_snapshot()?.node(path)?;
            if node.is_some_and(|node| node.text("jcr:uuid").is_none()) {
                session.set_property(path, "jcr:uuid", Property::text(new_identifier()))?;
                count += 1;
            }
        }
        match session.commit("assign identifiers to accounts", at) {
            Ok(_) => Ok(count),
            // Another process is assigning them at the same time.
            Err(Error::Conflicts(_)) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl Session {
    /// Returns the editor of users and groups.
    pub fn accounts(&mut self) -> AccountEditor<'_> {
        AccountEditor { session: self }
    }
}

/// Adds, changes and removes users and groups in a session.
#[derive(Debug)]
pub struct AccountEditor<'a> {
    session: &'a mut Session,
}

impl AccountEditor<'_> {
    /// Adds a user with the hash of its password.
    ///
    /// # Errors
    /// [`Error::NodeExists`] if a user or group has the name; [`Error::InvalidName`].
    pub fn add_user(&mut self, id: &str, password_hash: &str) -> Result<()> {
        self.add_user_in("", id, password_hash).map(drop)
    }

    /// Adds a user in a folder below `/home/users`, such as `north/berlin`; missing folders are created. An empty
    /// `folder` means `/home/users` itself. Returns the path of the user.
    ///
    /// # Errors
    /// [`Error::NodeExists`] if a user or group has the name; [`Error::InvalidName`]; [`Error::InvalidEdit`] if a node
    /// on the path is not a folder.
    pub fn add_user_in(&mut self, folder: &str, id: &str, password_hash: &str) -> Result<NodePath> {
        let node = build_account_node(id, "rep:User")?
            .with_property("rep:password", Property::text(password_hash));
        let mut folders = NodePath::new(USERS_PATH)?;
        for name in folder.split('/').filter(|name| !name.is_empty()) {
            folders = folders.child(name)?;
        }
        self.add_account(folders.as_str(), id, node)
    }

    /// Adds an account in a folder below `/home/users`, or below `/home/groups` for a group, as
    /// [`AccountEditor::add_user_in`] does. A user has no password and cannot log in until it gets one. Returns the path.
    ///
    /// # Errors
    /// As [`AccountEditor::add_user_in`].
    pub fn add_account_in(
        &mut self,
        kind: AccountKind,
        folder: &str,
        id: &str,
    ) -> Result<NodePath> {
        let root = if kind == AccountKind::Group { GROUPS_PATH } else { USERS_PATH };
        let mut folders = NodePath::new(root)?;
        for name in folder.split('/').filter(|name| !name.is_empty()) {
            folders = folders.child(name)?;
        }
        let node = build_account_node(id, kind.primary_type())?;
        self.add_account(folders.as_str(), id, node)
    }

    /// Adds a group without members.
    ///
    /// # Errors
    /// [`Error::NodeExists`] if a user or group has the name; [`Error::InvalidName`].
    pub fn add_group(&mut self, id: &str) -> Result<()> {
        self.add_account(GROUPS_PATH, id, build_account_node(id, "rep:Group")?).map(drop)
    }

    /// Adds a user or group to a group; does nothing if it is already a member.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if there is no such user or group.
    pub fn add_member(&mut self, group: &str, member: &str) -> Result<()> {
        let member = self.account_path(member)?;
        self.add_member_path(group, &member)
    }

    /// Adds the user or group at a path to a group, as [`AccountEditor::add_member`] does. The member may have been created
    /// in this session.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if there is no such user or group.
    pub fn add_member_path(&mut self, group: &str, member: &NodePath) -> Result<()> {
        let group = self.account_path(group)?;
        self.add_member_at(&group, member).map(drop)
    }

    /// Adds the user or group at a path to the group at a path; both may have been created in this session. Returns
    /// false if it is a member already.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if there is no such user or group.
    pub fn add_member_at(&mut self, group: &NodePath, member: &NodePath) -> Result<bool> {
        let uuid = self.account_identifier(member)?;
        let mut members = self.group_members(group)?;
        if members.contains(&uuid) {
            return Ok(false);
        }
        members.push(uuid);
        let values = members.into_iter().map(Value::WeakReference).collect();
        let list = Property::List(ValueType::WeakReference, values);
        self.session.set_property(group, "rep:members", list)?;
        Ok(true)
    }

    /// Removes a user or group from a group.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if there is no such user or group.
    pub fn remove_member(&mut self, group: &str, member: &str) -> Result<()> {
        let (group, uuid) = self.resolve_membership(group, member)?;
        let mut members = self.group_members(&group)?;
        members.retain(|member_id| *member_id != uuid);
        let values = members.into_iter().map(Value::WeakReference).collect();
        self.session.set_property(
            &group,
            "rep:members",
            Property::List(ValueType::WeakReference, values),
        )
    }

    /// Disables the login of a user with a reason; enables it again if `reason` is `None`.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if there is no such user.
    pub fn set_disabled(&mut self, user: &str, reason: Option<&str>) -> Result<()> {
        let path = self.account_path(user)?;
        match reason {
            Some(reason) => {
                self.session.set_property(&path, "rep:disabled", Property::text(reason))
            }
            None => self.session.remove_property(&path, "rep:disabled").map(drop),
        }
    }

    /// Removes a user or group, and removes it from all groups.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if there is no such user or group.
    pub fn remove_account(&mut self, id: &str) -> Result<()> {
        let path = self.account_path(id)?;
        let node = self
            .session
            .unrestricted_snapshot()?
            .node(&path)?
            .ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let uuid = node.text("jcr:uuid").unwrap_or_default();
        drop(node);
        // An account that gets the same identifier later, by an import or a new user of the same name, must not inherit
        // the membership.
        for group in self.session.repository().groups_listing_member(&uuid)? {
            if let Some(tree) = self.session.unrestricted_snapshot()?.read_subtree(&group)? {
                self.remove_from_member_lists(&group, &tree, &uuid)?;
            }
        }
        self.session.remove_node(&path)
    }

    /// Removes a member from a group's own list and from the nodes that the list is split into.
    fn remove_from_member_lists(
        &mut self,
        path: &NodePath,
        node: &Subtree,
        uuid: &str,
    ) -> Result<()> {
        if let Some(members) = node.properties.get("rep:members") {
            let remaining_members: Vec<Value> = members
                .values()
                .iter()
                .filter(|member| member.to_text() != uuid)
                .cloned()
                .collect();
            if remaining_members.len() < members.values().len() {
                let list = Property::List(ValueType::WeakReference, remaining_members);
                self.session.set_property(path, "rep:members", list)?;
            }
        }
        for child in &node.children {
            self.remove_from_member_lists(&path.child(&child.name)?, child, uuid)?;
        }
        Ok(())
    }

    /// Returns the path of a user or group, pending edits included.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if there is no such user or group.
    pub fn account_path(&mut self, id: &str) -> Result<NodePath> {
        match self.find_account(id)? {
            Some(path) => Ok(path),
            None => Err(Error::NodeMissing(NodePath::new(USERS_PATH)?.child(id)?)),
        }
    }

    fn find_account(&mut self, id: &str) -> Result<Option<NodePath>> {
        let stored_path = self.session.repository().account_path(id)?;
        let made = [USERS_PATH, GROUPS_PATH].map(|folder| NodePath::new(folder)?.child(id));
        for path in stored_path.into_iter().map(Ok).chain(made) {
            let path = path?;
            let node = self.session.unrestricted_snapshot()?.node(&path)?;
            if node.is_some_and(|node| ACCESS_CONTROL_TYPES.contains(&node.primary_type())) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn add_account(&mut self, folder: &str, id: &str, node: Subtree) -> Result<NodePath> {
        if RESERVED_ACCOUNT_NAMES.contains(&id) {
            let path = NodePath::new(folder)?.child(id)?;
            let reason = "the name is reserved";
            return Err(Error::InvalidEdit { action: "add", path, reason });
        }
        if let Some(path) = self.find_account(id)? {
            return Err(Error::NodeExists(path));
        }
        let ends = folder.match_indices('/').skip(1).map(|(at, _)| at).chain([folder.len()]);
        for folder in ends.filter_map(|end| folder.get(..end)) {
            let path = NodePath::new(folder)?;
            let folder_type = self
                .session
                .unrestricted_snapshot()?
                .node(&path)?
                .map(|node| node.primary_type().to_owned());
            match folder_type.as_deref() {
                None => self.session.add_node(&path, "rep:AuthorizableFolder")?,
                Some(kind) if ACCESS_CONTROL_TYPES.contains(&kind) => {
                    let reason = "a user or group cannot contain other accounts";
                    return Err(Error::InvalidEdit {
                        action: "add an account below",
                        path,
                        reason,
                    });
                }
                Some(_) => {}
            }
        }
        let path = NodePath::new(folder)?.child(id)?;
        self.session.put_node(&path, node)?;
        Ok(path)
    }

    /// Returns a group's path and a member's identifier.
    fn resolve_membership(&mut self, group: &str, member: &str) -> Result<(NodePath, String)> {
        let (group, member) = (self.account_path(group)?, self.account_path(member)?);
        let uuid = self.account_identifier(&member)?;
        Ok((group, uuid))
    }

    fn account_identifier(&mut self, account: &NodePath) -> Result<String> {
        let node = self
            .session
            .unrestricted_snapshot()?
            .node(account)?
            .ok_or_else(|| Error::NodeMissing(account.clone()))?;
        Ok(node.text("jcr:uuid").unwrap_or_default())
    }

    fn group_members(&mut self, group: &NodePath) -> Result<Vec<String>> {
        let node = self
            .session
            .unrestricted_snapshot()?
            .node(group)?
            .ok_or_else(|| Error::NodeMissing(group.clone()))?;
        let members = node.property("rep:members");
        let values = members.as_ref().map(Property::values).unwrap_or_default();
        Ok(values.iter().map(|value| value.to_text().into_owned()).collect())
    }
}

fn build_account_node(id: &str, primary_type: &str) -> Result<Subtree> {
    crate::check_item_name(id)?;
    Ok(Subtree::new(id, primary_type)
        // Not derived from the name: groups refer to members by identifier, and a name can be reused.
        .with_property("jcr:uuid", new_identifier().as_str())
        .with_property("rep:authorizableId", id)
        .with_property("rep:principalName", id))
}

fn new_identifier() -> String {
    uuid::Uuid::new_v4().to_string()
}
