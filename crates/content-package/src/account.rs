//! Users and groups in packages: an existing account keeps its path, whatever its path in the package.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};

use tympan_content::{NodePath, Property, Subtree, ValueType};

use crate::Result;
use crate::import_node::{ImportNode, ImportProperty};
use crate::install_target::InstallTarget;
use crate::installer::{PackageInstaller, primary_type_of};
use crate::policy;

/// The types of users and groups.
pub const ACCOUNT_NODE_TYPES: [&str; 3] = ["rep:User", "rep:SystemUser", "rep:Group"];

const MEMBERS_PROPERTY: &str = "rep:members";

/// Returns the accounts of a package that exist at another path, as pairs of the package path and the stored path.
pub(crate) fn find_relocated_accounts(
    root: &ImportNode,
    target: &mut dyn InstallTarget,
) -> Result<BTreeMap<NodePath, NodePath>> {
    let mut brought = Vec::new();
    collect_accounts(root, &NodePath::root(), &mut brought);
    if brought.is_empty() {
        return Ok(BTreeMap::new());
    }
    let existing = target.accounts()?;
    let moved = brought.into_iter().filter_map(|(id, path)| {
        let stored_path = existing.get(&id)?.clone();
        (stored_path != path).then_some((path, stored_path))
    });
    Ok(moved.collect())
}

fn collect_accounts(node: &ImportNode, path: &NodePath, out: &mut Vec<(String, NodePath)>) {
    if node.primary_type().is_some_and(|name| ACCOUNT_NODE_TYPES.contains(&name)) {
        let id = match node.properties().get("rep:authorizableId") {
            Some(ImportProperty::Value(id)) => id.first().map(|id| id.to_text().into_owned()),
            _ => None,
        };
        out.push((id.unwrap_or_else(|| node.name().to_owned()), path.clone()));
        return;
    }
    for child in node.children() {
        collect_accounts(child, &path.child_unchecked(child.name()), out);
    }
}

impl<R: Read + Seek> PackageInstaller<'_, R> {
    /// Returns the stored path of the node that has this path in the package.
    pub(crate) fn stored_path(&self, path: &NodePath) -> NodePath {
        let moved = self.relocated_accounts.iter().find_map(|(from, to)| path.rebase(from, to));
        moved.unwrap_or_else(|| path.clone())
    }
}

/// Returns the properties of an existing node in mode merge: unchanged, except that a group's members are combined.
/// Large groups have members in a subtree on both sides.
pub(crate) fn merge_member_list(
    node: &ImportNode,
    old: &BTreeMap<String, Property>,
    group_path: &NodePath,
    target: &mut dyn InstallTarget,
) -> Result<BTreeMap<String, Property>> {
    let mut merged = old.clone();
    if primary_type_of(old) != "rep:Group" {
        return Ok(merged);
    }
    let mut brought = Vec::new();
    collect_package_members(node, &mut brought);
    let stored_ids =
        target.read_subtree(group_path)?.map(|group| stored_member_ids(&group)).unwrap_or_default();
    brought.retain(|member| !stored_ids.contains(member));
    if !brought.is_empty() {
        let brought = Property::parse_list(
            ValueType::WeakReference,
            brought.iter().map(|member_id| &**member_id),
        )?;
        let joined = policy::union_values(old.get(MEMBERS_PROPERTY), Some(&brought));
        merged.extend(joined.map(|joined| (MEMBERS_PROPERTY.to_owned(), joined)));
    }
    Ok(merged)
}

fn collect_package_members(node: &ImportNode, out: &mut Vec<String>) {
    if let Some(ImportProperty::Value(members)) = node.properties().get(MEMBERS_PROPERTY) {
        out.extend(members.values().iter().map(|member| member.to_text().into_owned()));
    }
    for child in node.children().iter().filter(|child| is_member_list_type(child.primary_type())) {
        collect_package_members(child, out);
    }
}

fn stored_member_ids(node: &Subtree) -> BTreeSet<String> {
    let own = node.properties.get(MEMBERS_PROPERTY).map(Property::values).unwrap_or_default();
    let below =
        node.children.iter().filter(|child| is_member_list_type(Some(child.primary_type())));
    own.iter()
        .map(|member| member.to_text().into_owned())
        .chain(below.flat_map(stored_member_ids))
        .collect()
}

fn is_member_list_type(primary_type: Option<&str>) -> bool {
    matches!(
        primary_type,
        Some("rep:MemberReferencesList" | "rep:MemberReferences" | "rep:Members")
    )
}
