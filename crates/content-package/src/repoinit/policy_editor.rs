//! Entries of policies: added unless they exist, and removed by principal.

use tympan_content::{
    MIXIN_TYPES, NodePath, Privileges, Property, Session, Subtree, ValueType,
    is_restriction_property,
};

use super::statement::EntryTemplate;
use crate::Result;

const PRINCIPAL_NAME: &str = "rep:principalName";
const PRIVILEGES: &str = "rep:privileges";
const RESTRICTIONS: &str = "rep:restrictions";
const EFFECTIVE_PATH: &str = "rep:effectivePath";

/// A policy of a node, or of a service user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyLocation {
    /// The node that has the policy as a child.
    pub(super) owner: NodePath,
    pub(super) kind: PolicyKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PolicyKind {
    Node,
    Repository,
    /// The policy of a service user, and the path from which the entry applies.
    Principal(String),
}

impl PolicyLocation {
    fn path(&self) -> Result<NodePath> {
        Ok(self.owner.child(self.node_name())?)
    }

    fn node_name(&self) -> &'static str {
        match self.kind {
            PolicyKind::Node => "rep:policy",
            PolicyKind::Repository => "rep:repoPolicy",
            PolicyKind::Principal(_) => "rep:principalPolicy",
        }
    }

    fn mixin(&self) -> &'static str {
        match self.kind {
            PolicyKind::Node => "rep:AccessControllable",
            PolicyKind::Repository => "rep:RepoAccessControllable",
            PolicyKind::Principal(_) => "rep:PrincipalBasedMixin",
        }
    }
}

/// Adds an entry at the end of a policy; returns false if the policy has it.
pub(super) fn add_policy_entry(
    session: &mut Session,
    location: &PolicyLocation,
    principal: &str,
    entry: &EntryTemplate,
) -> Result<bool> {
    let node = entry_node(location, principal, entry)?;
    let at = location.path()?;
    let stored = session.snapshot()?.read_subtree(&at)?;
    let mut policy = stored.unwrap_or_else(|| match location.kind {
        PolicyKind::Principal(_) => Subtree::new(location.node_name(), "rep:PrincipalPolicy")
            .with_property(PRINCIPAL_NAME, principal),
        _ => Subtree::new(location.node_name(), "rep:ACL"),
    });
    if policy.children.iter().any(|existing| is_same_entry(existing, &node)) {
        return Ok(false);
    }
    let stem = match location.kind {
        PolicyKind::Principal(_) => "entry",
        _ if entry.is_grant => "allow",
        _ => "deny",
    };
    let names =
        std::iter::once(stem.to_owned()).chain((0..).map(|number| format!("{stem}{number}")));
    let name = names.into_iter().find(|name| policy.child(name).is_none()).unwrap_or_default();
    policy.put_child(Subtree { name, ..node });
    add_mixin(session, location)?;
    session.put_node(&at, policy)?;
    Ok(true)
}

/// Removes the entries of principals; returns false if there are none.
pub(super) fn remove_policy_entries(
    session: &mut Session,
    location: &PolicyLocation,
    principals: &[String],
) -> Result<bool> {
    let at = location.path()?;
    let Some(mut policy) = session.snapshot()?.read_subtree(&at)? else { return Ok(false) };
    let count = policy.children.len();
    policy.children.retain(|entry| {
        let of_path = match &location.kind {
            PolicyKind::Principal(path) => entry.text(EFFECTIVE_PATH) == Some(path.as_str()),
            _ => entry
                .text(PRINCIPAL_NAME)
                .is_some_and(|name| principals.iter().any(|principal| principal == name)),
        };
        !of_path
    });
    if policy.children.len() == count {
        return Ok(false);
    }
    session.put_node(&at, policy)?;
    Ok(true)
}

fn entry_node(
    location: &PolicyLocation,
    principal: &str,
    entry: &EntryTemplate,
) -> Result<Subtree> {
    let privileges = entry.privileges.iter().map(String::as_str);
    let privileges = Property::parse_list(ValueType::Name, privileges)?;
    let mut node = match &location.kind {
        PolicyKind::Principal(path) => Subtree::new("", "rep:PrincipalEntry").with_property(
            EFFECTIVE_PATH,
            Property::Single(tympan_content::Value::Path(path.clone())),
        ),
        _ => {
            let kind = if entry.is_grant { "rep:GrantACE" } else { "rep:DenyACE" };
            Subtree::new("", kind).with_property(PRINCIPAL_NAME, principal)
        }
    }
    .with_property(PRIVILEGES, privileges);
    if !entry.restrictions.is_empty() {
        let mut restrictions = Subtree::new(RESTRICTIONS, "rep:Restrictions");
        for (name, values) in &entry.restrictions {
            let (name, property) = restriction_property(name, values)?;
            restrictions.properties.insert(name.to_owned(), property);
        }
        node.put_child(restrictions);
    }
    Ok(node)
}

/// Returns a restriction as it is stored.
fn restriction_property<'a>(name: &'a str, values: &[String]) -> Result<(&'a str, Property)> {
    let texts = values.iter().map(String::as_str);
    Ok(match (name, values) {
        // The node alone.
        ("rep:glob", []) => (name, Property::text("")),
        ("rep:glob", [glob]) => (name, Property::text(glob.as_str())),
        ("rep:glob", _) => ("rep:globs", Property::parse_list(ValueType::String, texts)?),
        ("rep:ntNames" | "rep:itemNames", _) => {
            (name, Property::parse_list(ValueType::Name, texts)?)
        }
        _ => (name, Property::parse_list(ValueType::String, texts)?),
    })
}

/// Returns true if two entries have the same effect. The order of privileges does not matter.
fn is_same_entry(left: &Subtree, right: &Subtree) -> bool {
    let restrictions = |entry: &Subtree| {
        let own = entry.properties.iter().filter(|(name, _)| is_restriction_property(name));
        let child = entry.child(RESTRICTIONS).into_iter().flat_map(|node| &node.properties);
        let child = child.filter(|(name, _)| is_restriction_property(name));
        own.chain(child).map(|(name, value)| (name.clone(), value.clone())).collect::<Vec<_>>()
    };
    left.primary_type() == right.primary_type()
        && [PRINCIPAL_NAME, EFFECTIVE_PATH].iter().all(|name| left.text(name) == right.text(name))
        && privileges_of(left) == privileges_of(right)
        && restrictions(left) == restrictions(right)
}

fn privileges_of(entry: &Subtree) -> Privileges {
    let values = entry.properties.get(PRIVILEGES).map(Property::values).unwrap_or_default();
    let privileges = values.iter().filter_map(|value| Privileges::find(&value.to_text()));
    privileges.fold(Privileges::NONE, |all, privilege| all | privilege)
}

/// Adds the mixin of nodes with a policy; the root never has one.
fn add_mixin(session: &mut Session, location: &PolicyLocation) -> Result<()> {
    let Some(node) = session.node(&location.owner)?.filter(|_| !location.owner.is_root()) else {
        return Ok(());
    };
    let stored = node.property(MIXIN_TYPES);
    let values = stored.as_ref().map(Property::values).unwrap_or_default();
    let mut mixins: Vec<String> = values.iter().map(|value| value.to_text().into_owned()).collect();
    drop(node);
    if mixins.iter().any(|mixin| mixin == location.mixin()) {
        return Ok(());
    }
    mixins.push(location.mixin().to_owned());
    let mixins = Property::parse_list(ValueType::Name, mixins.iter().map(String::as_str))?;
    Ok(session.set_property(&location.owner, MIXIN_TYPES, mixins)?)
}
