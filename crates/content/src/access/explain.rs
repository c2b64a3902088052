//! Why a viewer may do something at a path, or not.
//!
//! In: a viewer, a path, privileges. Out: for each privilege the entry that decided, or what decided in its place.

use crate::access::lens::{Lens, Rule};
use crate::access::principals::Principals;
use crate::access::privilege::Privileges;
use crate::access::restriction::Item;
use crate::{NodePath, Repository, Result, Viewer};

/// Why one privilege is granted or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The privilege.
    pub privilege: &'static str,
    /// Whether the viewer has it.
    pub is_granted: bool,
    /// What decided.
    pub cause: Cause,
}

/// What decided about a privilege.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// No policy binds the viewer: the user `admin`, or a member of `administrators`.
    Administrator,
    /// An entry of a policy.
    Entry(Deciding),
    /// A closed user group lets the viewer read nothing; its node.
    ClosedGroup(Option<NodePath>),
    /// No entry names the privilege, and nothing is granted by default.
    Nothing,
}

/// The entry that decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deciding {
    /// Where the policy is stored.
    pub policy: NodePath,
    /// The number of the entry in the policy, counted from 1.
    pub number: usize,
    /// The name of the entry's node.
    pub name: String,
    /// Whom the entry names: the user, or a group.
    pub principal: String,
    /// The groups through which the user is in that group, the nearest first.
    pub through: Vec<String>,
    /// The restrictions of the entry, as stored.
    pub restrictions: Vec<String>,
}

impl Repository {
    /// Tells why a viewer has privileges at a path or not, by the newest policies.
    ///
    /// # Errors
    /// If the store fails.
    pub fn explain(
        &self,
        viewer: &Viewer,
        path: &NodePath,
        privileges: Privileges,
    ) -> Result<Vec<Reason>> {
        let policies = self.0.bodies.access.of_main(&self.0)?;
        let lens = policies.lens(&viewer.0, &policies);
        let principals = policies.accounts.principals_of(&viewer.0);
        let node = self.snapshot()?.node(path)?;
        let primary_type = node.as_ref().map_or("", |node| node.primary_type());
        let item = Item { path: path.as_str(), property: None, primary_type };
        let cug = || {
            let above = policies.cugs().filter(|cug| path.is_within(&cug.node));
            above.max_by_key(|cug| cug.node.as_str().len()).map(|cug| cug.node.clone())
        };
        let reason = |privilege| {
            let wanted = Privileges::find(privilege).unwrap_or_default();
            let (is_granted, cause) = decide(&lens, &principals, &item, wanted);
            let cause =
                if cause == Cause::ClosedGroup(None) { Cause::ClosedGroup(cug()) } else { cause };
            Reason { privilege, is_granted, cause }
        };
        Ok(privileges.names().map(reason).collect())
    }
}

fn decide(
    lens: &Lens,
    principals: &Principals,
    item: &Item<'_>,
    wanted: Privileges,
) -> (bool, Cause) {
    let Some((rules, is_closed)) = lens.rules_at(item.path) else {
        return (true, Cause::Administrator);
    };
    if is_closed && Privileges::READ.contains(wanted) {
        return (false, Cause::ClosedGroup(None));
    }
    let deciding =
        rules.iter().find(|rule| rule.entry.privileges.contains(wanted) && rule.matches(item));
    match deciding {
        Some(rule) => (rule.entry.grants, Cause::Entry(described(rule, principals))),
        None => (false, Cause::Nothing),
    }
}

fn described(rule: &Rule, principals: &Principals) -> Deciding {
    let group = principals.groups.iter().find(|(group, _)| *group == rule.entry.principal);
    let restrictions = rule.entry.restrictions.as_ref();
    Deciding {
        policy: rule.policy.clone(),
        number: rule.number,
        name: rule.entry.name.clone(),
        principal: rule.entry.principal.clone(),
        through: group.map(|(_, through)| through.clone()).unwrap_or_default(),
        restrictions: restrictions.map(|one| one.texts().to_vec()).unwrap_or_default(),
    }
}
