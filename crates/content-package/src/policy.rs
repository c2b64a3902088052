//! Access control in packages: nodes whose import depends on `acHandling`, whatever the filter's mode.

use std::collections::{BTreeMap, BTreeSet};

use tympan_content::{
    MIXIN_TYPES, NodePath, Property, Subtree, SubtreeChildren, Value, ValueType,
    is_restriction_property,
};

use crate::Result;
use crate::install_target::InstallTarget;
use crate::package_properties::AccessControlHandling;

/// The policy that lists the only principals that may read a subtree.
pub(crate) const CUG_POLICY_NODE: &str = "rep:cugPolicy";

const RESTRICTIONS_NODE: &str = "rep:restrictions";
const PRINCIPAL_NAME_PROPERTY: &str = "rep:principalName";
const PRINCIPAL_NAMES_PROPERTY: &str = "rep:principalNames";

/// Returns true if a node of this name holds access control content.
pub(crate) fn is_policy_name(name: &str) -> bool {
    matches!(
        name,
        "rep:policy" | "rep:repoPolicy" | "repo:policy" | "rep:cugPolicy" | "rep:principalPolicy"
    )
}

/// Returns the mixin that a node needs to have a policy of this name.
fn policy_mixin(name: &str) -> Option<&'static str> {
    Some(match name {
        "rep:policy" => "rep:AccessControllable",
        "rep:repoPolicy" => "rep:RepoAccessControllable",
        CUG_POLICY_NODE => "rep:CugMixin",
        "rep:principalPolicy" => "rep:PrincipalBasedMixin",
        _ => return None,
    })
}

/// Adds the mixins that the policies of a new node need.
pub(crate) fn add_policy_mixins(node: &mut Subtree) {
    let needed: Vec<&str> =
        node.children.iter().filter_map(|child| policy_mixin(&child.name)).collect();
    for mixin in needed {
        add_mixin(&mut node.properties, mixin);
    }
}

/// Adds the mixin that a policy needs to the node above it.
pub(crate) fn require_policy_mixin(
    target: &mut dyn InstallTarget,
    policy: &NodePath,
) -> Result<()> {
    let (Some(parent), Some(mixin)) = (policy.parent(), policy_mixin(policy.name())) else {
        return Ok(());
    };
    let Some(existing) = target.read_node(&parent)? else {
        return Ok(());
    };
    let mut properties = existing.properties;
    if add_mixin(&mut properties, mixin) {
        target.set_properties(&parent, properties)
    } else {
        Ok(())
    }
}

/// Adds a mixin if it is missing; returns true if it was.
fn add_mixin(properties: &mut BTreeMap<String, Property>, mixin: &str) -> bool {
    let existing_mixins = properties.get(MIXIN_TYPES);
    if existing_mixins.is_some_and(|mixins| {
        mixins.values().iter().any(|existing_mixin| existing_mixin.to_text() == mixin)
    }) {
        return false;
    }
    let added_mixins = Property::List(ValueType::Name, vec![Value::Name(mixin.into())]);
    let joined = union_values(existing_mixins, Some(&added_mixins));
    properties.extend(joined.map(|joined| (MIXIN_TYPES.to_owned(), joined)));
    true
}

/// Moves restrictions from an entry itself, where old tools wrote them, into `rep:restrictions`.
pub(crate) fn move_restrictions_to_node(entry: &mut Subtree) {
    if entry.primary_type() != "rep:PrincipalEntry" {
        return;
    }
    let names: Vec<String> =
        entry.properties.keys().filter(|name| is_restriction_property(name)).cloned().collect();
    for name in names {
        let Some(value) = entry.properties.remove(&name) else { continue };
        if entry.child(RESTRICTIONS_NODE).is_none() {
            entry.children.push(Subtree::new(RESTRICTIONS_NODE, "rep:Restrictions"));
        }
        let restrictions = entry.children.iter_mut().find(|child| child.name == RESTRICTIONS_NODE);
        if let Some(restrictions) = restrictions {
            restrictions.properties.entry(name).or_insert(value);
        }
    }
}

/// Merges the policy of a package with the existing one.
///
/// With [`AccessControlHandling::Merge`] the package wins for each principal that it names; with
/// [`AccessControlHandling::MergePreserve`] the existing policy wins.
pub(crate) fn merge_policy(
    existing: Subtree,
    package: Subtree,
    handling: AccessControlHandling,
) -> Subtree {
    if package.properties.contains_key(PRINCIPAL_NAMES_PROPERTY) {
        return merge_closed_user_group(existing, &package);
    }
    let (first, second) = (policy_principals(&existing), policy_principals(&package));
    let mut out = existing;
    let added: SubtreeChildren = match handling {
        AccessControlHandling::Merge => {
            out.children.retain(|entry| !is_for_principals(entry, &second));
            package.children
        }
        _ => {
            package.children.into_iter().filter(|entry| !is_for_principals(entry, &first)).collect()
        }
    };
    for mut entry in added {
        entry.name = unused_entry_name(&out, &entry.name);
        out.children.push(entry);
    }
    out
}

/// Merges the principals of closed user groups.
fn merge_closed_user_group(mut existing: Subtree, package: &Subtree) -> Subtree {
    merge_text_list(&mut existing, package, PRINCIPAL_NAMES_PROPERTY);
    existing
}

/// Adds the values of a list of texts that are missing in `into`.
fn merge_text_list(into: &mut Subtree, from: &Subtree, name: &str) {
    let joined = union_values(into.properties.get(name), from.properties.get(name));
    if let Some(joined) = joined {
        into.properties.insert(name.to_owned(), joined);
    }
}

/// Returns the first list, followed by the values of the second that it lacks.
pub(crate) fn union_values(
    first: Option<&Property>,
    second: Option<&Property>,
) -> Option<Property> {
    let (Some(first), Some(second)) = (first, second) else {
        return first.or(second).cloned();
    };
    let mut values: Vec<Value> = first.values().to_vec();
    for value in second.values() {
        if !values.iter().any(|existing_value| existing_value.to_text() == value.to_text()) {
            values.push(value.clone());
        }
    }
    let value_type = values.first().map_or(ValueType::String, Value::value_type);
    Some(Property::List(value_type, values))
}

fn policy_principals(policy: &Subtree) -> BTreeSet<String> {
    let names = policy.children.iter().filter_map(|entry| entry.text(PRINCIPAL_NAME_PROPERTY));
    names.map(str::to_owned).collect()
}

fn is_for_principals(entry: &Subtree, principals: &BTreeSet<String>) -> bool {
    entry.text(PRINCIPAL_NAME_PROPERTY).is_some_and(|name| principals.contains(name))
}

/// Returns `name`, with the first number appended that makes it unused if necessary.
fn unused_entry_name(policy: &Subtree, name: &str) -> String {
    let numbered = (0..).map(|number: usize| format!("{name}{number}"));
    std::iter::once(name.to_owned())
        .chain(numbered)
        .find(|candidate| policy.child(candidate).is_none())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(entries: &[(&str, &str, &str)]) -> Subtree {
        let mut out = Subtree::new("rep:policy", "rep:ACL");
        for (name, principal, privilege) in entries {
            let entry = Subtree::new(*name, "rep:ACE")
                .with_property(PRINCIPAL_NAME_PROPERTY, *principal)
                .with_property("rep:privileges", *privilege);
            out.children.push(entry);
        }
        out
    }

    fn check(handling: AccessControlHandling, expected: &str) {
        let existing = policy(&[
            ("deny", "everyone", "jcr:all"),
            ("allow", "bob", "jcr:read"),
            ("allow0", "bob", "jcr:write"),
        ]);
        let package = policy(&[("deny", "bob", "jcr:all"), ("allow", "alice", "jcr:read")]);
        let text: Vec<String> = merge_policy(existing, package, handling)
            .children
            .iter()
            .map(|entry| {
                let text = |name| entry.text(name).unwrap_or_default();
                format!(
                    "{}={} {}",
                    entry.name,
                    text(PRINCIPAL_NAME_PROPERTY),
                    text("rep:privileges")
                )
            })
            .collect();
        assert_eq!(text.join(", "), expected);
    }

    /// The two examples of FileVault's documentation of `acHandling`.
    #[test]
    fn entries_merge_by_principal() {
        check(
            AccessControlHandling::Merge,
            "deny=everyone jcr:all, deny0=bob jcr:all, allow=alice jcr:read",
        );
        check(
            AccessControlHandling::MergePreserve,
            "deny=everyone jcr:all, allow=bob jcr:read, allow0=bob jcr:write, allow1=alice jcr:read",
        );
    }
}
