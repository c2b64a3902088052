//! Reads the stored form of policies, closed user groups and accounts.
//!
//! In: the tree of a document. Out: its access control content, in document order.

use std::sync::Arc;

use crate::access::privilege::Privileges;
use crate::access::restriction::Restrictions;
use crate::model::node_path::is_path_within;
use crate::{NodePath, Subtree, Value};

/// The node types that this module reads. Their index entries locate policies and accounts.
pub(crate) const ACCESS_CONTROL_TYPES: [&str; 6] =
    ["rep:ACL", "rep:CugPolicy", "rep:PrincipalPolicy", "rep:User", "rep:SystemUser", "rep:Group"];

/// The names of the nodes that hold access control content.
pub(crate) const POLICY_NAMES: [&str; 4] =
    ["rep:policy", "rep:repoPolicy", "rep:cugPolicy", "rep:principalPolicy"];

/// The root of accounts; nodes of these types elsewhere are plain content.
pub(crate) const ACCOUNTS_ROOT: &str = "/home";
/// The subtree in which closed user groups apply.
const CUG_ROOT_PATH: &str = "/content";

/// The access control content of one document.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AccessControlDocument {
    pub(crate) policies: Vec<AccessPolicy>,
    pub(crate) closed_user_groups: Vec<ClosedUserGroup>,
    pub(crate) accounts: Vec<StoredAccount>,
}

/// The ordered entries that apply to a node and its descendants.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AccessPolicy {
    /// The controlled node; `None` for the repository as a whole.
    pub(crate) controlled_node: Option<NodePath>,
    /// The path of the policy node.
    pub(crate) stored_path: NodePath,
    pub(crate) entries: Vec<Arc<AccessControlEntry>>,
}

/// One entry of a policy.
#[derive(Debug, PartialEq)]
pub(crate) struct AccessControlEntry {
    pub(crate) is_grant: bool,
    pub(crate) principal: String,
    pub(crate) privileges: Privileges,
    pub(crate) restrictions: Option<Restrictions>,
    /// The name of the entry's node.
    pub(crate) node_name: String,
}

/// A closed user group: the only principals that may read a node and its descendants.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClosedUserGroup {
    pub(crate) node: NodePath,
    pub(crate) principals: Vec<String>,
}

/// A user or group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredAccount {
    pub(crate) path: NodePath,
    pub(crate) id: String,
    pub(crate) principal: String,
    pub(crate) uuid: String,
    pub(crate) kind: AccountKind,
    /// The identifiers of a group's members.
    pub(crate) member_ids: Vec<String>,
    pub(crate) is_disabled: bool,
}

/// The kind of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountKind {
    /// A user, who may log in.
    User,
    /// A service user, who never logs in.
    SystemUser,
    /// A group.
    Group,
}

/// Returns true if a node of this name holds access control content, which is visible only with the privilege to read
/// it.
#[must_use]
pub fn is_policy_name(name: &str) -> bool {
    POLICY_NAMES.contains(&name)
}

/// Returns true if a path names a node that holds access control content, or one below it.
pub(crate) fn is_policy_path(path: &str) -> bool {
    // Nearly all paths fail this first test.
    path.contains("/rep:") && path.split('/').any(is_policy_name)
}

impl AccessControlDocument {
    /// Reads the access control content of a document.
    pub(crate) fn from_subtree(path: &NodePath, tree: &Subtree) -> Self {
        let mut document = Self::default();
        document.collect_from(path, tree);
        document
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.closed_user_groups.is_empty() && self.accounts.is_empty()
    }

    /// Returns true if a policy or closed user group of the document controls one of certain nodes.
    pub(super) fn controls_any(&self, is_included: impl Fn(&NodePath) -> bool) -> bool {
        self.policies.iter().filter_map(|policy| policy.controlled_node.as_ref()).any(&is_included)
            || self.closed_user_groups.iter().any(|group| is_included(&group.node))
    }

    /// Retains the policies and closed user groups of certain nodes, and the policies of the repository as a whole.
    pub(super) fn retain_policies(&mut self, is_included: impl Fn(&NodePath) -> bool) {
        self.policies.retain(|policy| policy.controlled_node.as_ref().is_none_or(&is_included));
        self.closed_user_groups.retain(|group| is_included(&group.node));
    }

    /// Appends the policies and closed user groups of another document.
    pub(super) fn append_policies(&mut self, other: Self) {
        self.policies.extend(other.policies);
        self.closed_user_groups.extend(other.closed_user_groups);
    }

    fn collect_from(&mut self, path: &NodePath, node: &Subtree) {
        let controlled = path.parent().unwrap_or_else(NodePath::root);
        match (path.name(), node.primary_type()) {
            ("rep:policy", "rep:ACL") => {
                self.policies.push(read_policy(Some(controlled), path, node))
            }
            ("rep:repoPolicy", "rep:ACL") => self.policies.push(read_policy(None, path, node)),
            ("rep:cugPolicy", "rep:CugPolicy")
                if is_path_within(controlled.as_str(), CUG_ROOT_PATH) =>
            {
                let principals = read_texts(node, "rep:principalNames");
                self.closed_user_groups.push(ClosedUserGroup { node: controlled, principals });
            }
            ("rep:principalPolicy", "rep:PrincipalPolicy")
                if is_path_within(path.as_str(), ACCOUNTS_ROOT) =>
            {
                self.policies.extend(read_principal_policies(path, node));
            }
            (_, kind) => {
                if let (Some(kind), true) = (
                    AccountKind::from_primary_type(kind),
                    is_path_within(path.as_str(), ACCOUNTS_ROOT),
                ) {
                    self.accounts.push(read_account(path, node, kind));
                }
            }
        }
        for child in &node.children {
            self.collect_from(&path.child_unchecked(&child.name), child);
        }
    }
}

impl AccountKind {
    /// Returns the node type of its accounts.
    pub(crate) fn primary_type(self) -> &'static str {
        match self {
            Self::User => "rep:User",
            Self::SystemUser => "rep:SystemUser",
            Self::Group => "rep:Group",
        }
    }

    fn from_primary_type(primary_type: &str) -> Option<Self> {
        match primary_type {
            "rep:User" => Some(Self::User),
            "rep:SystemUser" => Some(Self::SystemUser),
            "rep:Group" => Some(Self::Group),
            _ => None,
        }
    }
}

fn read_policy(node: Option<NodePath>, at: &NodePath, tree: &Subtree) -> AccessPolicy {
    let base = node.clone().unwrap_or_else(NodePath::root);
    let entries = tree.children.iter().filter_map(|child| {
        let grants = match child.primary_type() {
            "rep:GrantACE" => true,
            "rep:DenyACE" => false,
            _ => return None,
        };
        let principal = child.text("rep:principalName")?.to_owned();
        Some(Arc::new(read_entry(child, grants, principal, &base)))
    });
    AccessPolicy { entries: entries.collect(), stored_path: at.clone(), controlled_node: node }
}

fn read_entry(
    node: &Subtree,
    grants: bool,
    principal: String,
    base: &NodePath,
) -> AccessControlEntry {
    let privileges = read_texts(node, "rep:privileges");
    let known_privileges = privileges.iter().filter_map(|name| Privileges::find(name));
    AccessControlEntry {
        is_grant: grants,
        principal,
        privileges: known_privileges.fold(Privileges::NONE, |all, privilege| all | privilege),
        restrictions: Restrictions::from_entry(node, base),
        node_name: node.name.clone(),
    }
}

/// Reads the policy of a service user: each entry names the node from which it applies.
fn read_principal_policies(at: &NodePath, node: &Subtree) -> Vec<AccessPolicy> {
    let Some(principal) = node.text("rep:principalName") else { return Vec::new() };
    let policies = node.children.iter().filter_map(|child| {
        let effective = child.text("rep:effectivePath")?;
        // An empty path means the repository as a whole.
        let base = if effective.is_empty() { None } else { Some(NodePath::new(effective).ok()?) };
        let root = base.clone().unwrap_or_else(NodePath::root);
        let entry = Arc::new(read_entry(child, true, principal.to_owned(), &root));
        Some(AccessPolicy { controlled_node: base, stored_path: at.clone(), entries: vec![entry] })
    });
    policies.collect()
}

fn read_account(path: &NodePath, node: &Subtree, kind: AccountKind) -> StoredAccount {
    let id = node.text("rep:authorizableId").unwrap_or_else(|| path.name()).to_owned();
    let mut members = Vec::new();
    if kind == AccountKind::Group {
        collect_member_ids(node, &mut members);
    }
    StoredAccount {
        path: path.clone(),
        principal: node.text("rep:principalName").unwrap_or(&id).to_owned(),
        id,
        uuid: node.text("jcr:uuid").unwrap_or_default().to_owned(),
        kind,
        member_ids: members,
        is_disabled: node.properties.contains_key("rep:disabled"),
    }
}

/// Collects the members in a group's own list and in the nodes that the list is split into.
fn collect_member_ids(node: &Subtree, members: &mut Vec<String>) {
    members.extend(read_texts(node, "rep:members"));
    for child in &node.children {
        if matches!(child.primary_type(), "rep:MemberReferencesList" | "rep:MemberReferences") {
            collect_member_ids(child, members);
        }
    }
}

fn read_texts(node: &Subtree, name: &str) -> Vec<String> {
    let values = node.properties.get(name).map(crate::Property::values).unwrap_or_default();
    values.iter().map(|value: &Value| value.to_text().into_owned()).collect()
}
