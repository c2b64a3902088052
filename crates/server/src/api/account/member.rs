//! Group memberships, direct and transitive.

use std::collections::{BTreeMap, BTreeSet};

use tympan_content::{Node, Property, Repository, Snapshot};

use crate::failure::Result;

/// The group memberships that a snapshot shows.
#[derive(Debug, Default)]
pub(crate) struct GroupMemberships {
    /// The name of each account by identifier, and whether the account is a group.
    accounts_by_id: BTreeMap<String, (String, bool)>,
    /// The identifiers of the members that each group lists.
    member_ids_by_group: BTreeMap<String, BTreeSet<String>>,
}

impl GroupMemberships {
    /// Reads the accounts that a snapshot shows.
    pub(crate) fn read_from(repository: &Repository, snapshot: &Snapshot) -> Result<Self> {
        let mut members = Self::default();
        let users = repository.users()?.into_iter().map(|(name, _)| (name, false));
        let groups = repository.groups()?.into_iter().map(|name| (name, true));
        for (name, is_group) in users.chain(groups) {
            let Some(path) = repository.account_path(&name)? else { continue };
            let Some(node) = snapshot.node(&path)? else { continue };
            if let Some(identifier) = node.text("jcr:uuid") {
                members.accounts_by_id.insert(identifier, (name.clone(), is_group));
            }
            if is_group {
                let mut list = BTreeSet::new();
                collect_member_ids(&node, &mut list)?;
                members.member_ids_by_group.insert(name, list);
            }
        }
        Ok(members)
    }

    /// Returns the direct members of a group, by name, each with whether it is a group.
    pub(crate) fn direct_members(&self, group: &str) -> BTreeMap<&str, bool> {
        let list = self.member_ids_by_group.get(group).into_iter().flatten();
        let accounts = list.filter_map(|identifier| self.accounts_by_id.get(identifier));
        accounts.map(|(name, is_group)| (name.as_str(), *is_group)).collect()
    }

    /// Returns the direct and transitive members of a group, by name, each with whether it is a group.
    pub(crate) fn all_members(&self, group: &str) -> BTreeMap<&str, bool> {
        let mut members = BTreeMap::new();
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            for (name, is_group) in self.direct_members(group) {
                if members.insert(name, is_group).is_none() && is_group {
                    waiting.push(name);
                }
            }
        }
        members
    }

    /// Returns true if an account is a direct or transitive member of a group.
    pub(crate) fn is_within(&self, name: &str, group: &str) -> bool {
        self.all_members(group).contains_key(name)
    }

    /// Returns the groups that list an account.
    pub(crate) fn groups_of(&self, name: &str) -> Vec<&str> {
        self.member_ids_by_group
            .keys()
            .map(String::as_str)
            .filter(|group| self.direct_members(group).contains_key(name))
            .collect()
    }

    /// Returns the groups of which an account is a direct or transitive member.
    pub(crate) fn all_groups_of(&self, name: &str) -> Vec<&str> {
        let mut groups = BTreeSet::new();
        let mut waiting = vec![name];
        while let Some(name) = waiting.pop() {
            for group in self.groups_of(name) {
                if groups.insert(group) {
                    waiting.push(group);
                }
            }
        }
        groups.into_iter().collect()
    }
}

/// Collects the identifiers that a group lists, including those in the nodes that a long list is split into.
fn collect_member_ids(node: &Node, list: &mut BTreeSet<String>) -> Result<()> {
    let members = node.property("rep:members");
    let values = members.as_ref().map(Property::values).unwrap_or_default();
    list.extend(values.iter().map(|value| value.to_text().into_owned()));
    for child in node.children()? {
        if matches!(child.primary_type(), "rep:MemberReferencesList" | "rep:MemberReferences") {
            collect_member_ids(&child, list)?;
        }
    }
    Ok(())
}
