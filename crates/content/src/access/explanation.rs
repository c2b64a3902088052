//! Explains why a viewer has a privilege at a path, or lacks it.
//!
//! In: a viewer, a path, privileges. Out: for each privilege the entry that decided, or the other cause of the
//! decision.

use crate::access::principal::ViewerPrincipals;
use crate::access::privilege::Privileges;
use crate::access::restriction::AccessedItem;
use crate::access::viewer_permissions::{PermissionRule, ViewerPermissions};
use crate::{NodePath, Repository, Result, Viewer};

/// Explains why one privilege is granted or denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivilegeExplanation {
    /// The privilege.
    pub privilege: &'static str,
    /// True if the viewer has the privilege.
    pub is_granted: bool,
    /// The cause of the decision.
    pub cause: PrivilegeCause,
}

/// The cause of a decision about a privilege.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrivilegeCause {
    /// No policy applies to the viewer: it is the user `admin`, or a member of `administrators`.
    Administrator,
    /// An entry of a policy.
    Entry(DecidingEntry),
    /// A closed user group denies all reading; the value is its node.
    ClosedGroup(Option<NodePath>),
    /// No entry names the privilege; the default is to deny.
    Default,
}

/// The entry that decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidingEntry {
    /// The path of the policy.
    pub policy_path: NodePath,
    /// The number of the entry in the policy, counted from 1.
    pub entry_number: usize,
    /// The name of the entry's node.
    pub entry_name: String,
    /// The principal that the entry names: the user, or a group.
    pub principal: String,
    /// The chain of groups through which the user belongs to that group, nearest first.
    pub group_chain: Vec<String>,
    /// The restrictions of the entry, as stored.
    pub restrictions: Vec<String>,
}

impl Repository {
    /// Explains why a viewer has or lacks privileges at a path, by the newest policies.
    ///
    /// # Errors
    /// If the store fails.
    pub fn explain_privileges(
        &self,
        viewer: &Viewer,
        path: &NodePath,
        privileges: Privileges,
    ) -> Result<Vec<PrivilegeExplanation>> {
        let policies = self.0.cache.access_policies.policies_of_main(&self.0)?;
        let permissions = policies.permissions_for(&viewer.0, &policies);
        let principals = policies.accounts.principals_for(&viewer.0);
        let node = self.snapshot()?.node(path)?;
        let primary_type = node.as_ref().map_or("", |node| node.primary_type());
        let item = AccessedItem { path: path.as_str(), property: None, primary_type };
        let cug = || {
            let above = policies.closed_user_groups().filter(|cug| path.is_within(&cug.node));
            above.max_by_key(|cug| cug.node.as_str().len()).map(|cug| cug.node.clone())
        };
        let reason = |privilege| {
            let requested_privileges = Privileges::find(privilege).unwrap_or_default();
            let (is_granted, cause) =
                decide_privilege(&permissions, &principals, &item, requested_privileges);
            let cause = if cause == PrivilegeCause::ClosedGroup(None) {
                PrivilegeCause::ClosedGroup(cug())
            } else {
                cause
            };
            PrivilegeExplanation { privilege, is_granted, cause }
        };
        Ok(privileges.names().map(reason).collect())
    }
}

fn decide_privilege(
    permissions: &ViewerPermissions,
    principals: &ViewerPrincipals,
    item: &AccessedItem<'_>,
    privileges: Privileges,
) -> (bool, PrivilegeCause) {
    let Some((rules, is_closed)) = permissions.rules_at(item.path) else {
        return (true, PrivilegeCause::Administrator);
    };
    if is_closed && Privileges::READ.contains(privileges) {
        return (false, PrivilegeCause::ClosedGroup(None));
    }
    let deciding =
        rules.iter().find(|rule| rule.entry.privileges.contains(privileges) && rule.matches(item));
    match deciding {
        Some(rule) => (rule.entry.is_grant, PrivilegeCause::Entry(describe_rule(rule, principals))),
        None => (false, PrivilegeCause::Default),
    }
}

fn describe_rule(rule: &PermissionRule, principals: &ViewerPrincipals) -> DecidingEntry {
    let group = principals.groups.iter().find(|(group, _)| *group == rule.entry.principal);
    let restrictions = rule.entry.restrictions.as_ref();
    DecidingEntry {
        policy_path: rule.policy_path.clone(),
        entry_number: rule.entry_number,
        entry_name: rule.entry.node_name.clone(),
        principal: rule.entry.principal.clone(),
        group_chain: group.map(|(_, through)| through.clone()).unwrap_or_default(),
        restrictions: restrictions
            .map(|restriction_set| restriction_set.stored_texts().to_vec())
            .unwrap_or_default(),
    }
}
