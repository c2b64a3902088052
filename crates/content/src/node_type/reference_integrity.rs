//! Integrity of identifiers and references in a commit: no two nodes with the same identifier, no two accounts with the
//! same name, no dangling strong reference.
//!
//! In: the changed documents before and after. Out: [`ConstraintViolation`]s.
//!
//! References in protected properties, such as those to versions, are maintained by the repository and not checked.

use std::collections::{BTreeMap, BTreeSet};

use super::node_type_rules::NodeTypeRules;
use super::node_type_validator::{DeclaredNodeTypes, NodeTypeValidator};
use super::violation::{ConstraintViolation, ConstraintViolationKind};
use crate::model::referrer::{ReferenceKind, Referrer};
use crate::model::subtree::UUID_PROPERTY;
use crate::{
    BorrowedNode, LookupIndex, NodePath, PRIMARY_TYPE, Result, Snapshot, ValueType,
    document::record_key,
};

const ACCOUNT_TYPES: [&str; 3] = ["rep:User", "rep:SystemUser", "rep:Group"];

/// The identifiers and strong references of changed documents.
#[derive(Debug, Default)]
pub(super) struct ReferenceIntegrity {
    before: IdentifierUsage,
    after: IdentifierUsage,
}

/// The identifiers of nodes, and the properties that refer to identifiers.
#[derive(Debug, Default)]
struct IdentifierUsage {
    identifiers: BTreeSet<(String, NodePath)>,
    references: BTreeMap<String, BTreeSet<Referrer>>,
    /// The names of users and groups: the id for look-up, and the principal name in policies.
    accounts: BTreeMap<NodePath, [String; 2]>,
}

impl IdentifierUsage {
    fn record_document(&mut self, path: &NodePath, node: BorrowedNode<'_>, rules: &NodeTypeRules) {
        self.record_node(path, node, rules);
        for child in node.children() {
            self.record_document(&path.child_unchecked(child.name()), child, rules);
        }
    }

    fn record_node(&mut self, path: &NodePath, node: BorrowedNode<'_>, rules: &NodeTypeRules) {
        if let Some(names) = account_names(path, node) {
            self.accounts.insert(path.clone(), names);
        }
        for (name, property) in node.properties() {
            if name == UUID_PROPERTY {
                let texts = property.values().filter_map(|value| value.as_str());
                self.identifiers.extend(texts.map(|text| (text.to_owned(), path.clone())));
            } else if property.value_type() == ValueType::Reference {
                let effective = DeclaredNodeTypes::from_node(node).effective_type(rules);
                if effective.is_protected(name, ValueType::Reference, property.is_list()) {
                    continue;
                }
                for target in property.values().filter_map(|value| value.as_str()) {
                    self.references.entry(target.to_owned()).or_default().insert(Referrer {
                        path: path.clone(),
                        property: name.to_owned(),
                        kind: ReferenceKind::Strong,
                    });
                }
            }
        }
    }
}

impl ReferenceIntegrity {
    /// Records a document before and after the commit.
    pub(super) fn record_document(
        &mut self,
        path: &NodePath,
        old: Option<BorrowedNode<'_>>,
        new: Option<BorrowedNode<'_>>,
        rules: &NodeTypeRules,
    ) {
        for (usage, node) in [(&mut self.before, old), (&mut self.after, new)] {
            if let Some(node) = node {
                usage.record_document(path, node, rules);
            }
        }
    }

    /// Validates the recorded documents.
    pub(super) fn validate(&self, validator: &mut NodeTypeValidator<'_>) -> Result<()> {
        let head = Snapshot::from_view(validator.head.clone());
        for (identifier, path) in self.after.identifiers.difference(&self.before.identifiers) {
            let mut holders = self.identifier_holders(&head, identifier)?;
            holders.remove(path);
            if !holders.is_empty() {
                let (kind, others) =
                    (ConstraintViolationKind::DuplicateIdentifier, holders.into_iter());
                let others = others.collect();
                validator.add_violation(ConstraintViolation {
                    conflicting_paths: others,
                    ..ConstraintViolation::new(path, kind, identifier.clone())
                });
            }
        }
        self.validate_accounts(validator)?;
        let mut removed = BTreeSet::new();
        for (identifier, path) in self.before.identifiers.difference(&self.after.identifiers) {
            if !self.identifier_holders(&head, identifier)?.is_empty() {
                continue;
            }
            removed.insert(identifier);
            let referrers = self.referrers(&head, identifier, validator)?;
            if !referrers.is_empty() {
                let mut violation = ConstraintViolation::new(
                    path,
                    ConstraintViolationKind::Referenced,
                    identifier.clone(),
                );
                violation.referrers = referrers.into_iter().collect();
                validator.add_violation(violation);
            }
        }
        for (identifier, referrers) in &self.after.references {
            let old = self.before.references.get(identifier);
            let new =
                referrers.iter().filter(|candidate| old.is_none_or(|old| !old.contains(candidate)));
            let new: Vec<&Referrer> = new.collect();
            let is_settled = new.is_empty() || removed.contains(identifier);
            if is_settled || !self.identifier_holders(&head, identifier)?.is_empty() {
                continue;
            }
            for referrer in new {
                let kind = ConstraintViolationKind::DanglingReference;
                let violation =
                    ConstraintViolation::new(&referrer.path, kind, referrer.property.clone());
                validator.add_violation(
                    violation.with_detail(format!("no node has the identifier `{identifier}`")),
                );
            }
        }
        Ok(())
    }

    /// Validates the names of users and groups: a second account of the same name would gain the permissions of the
    /// first.
    fn validate_accounts(&self, validator: &mut NodeTypeValidator<'_>) -> Result<()> {
        let is_changed = |(path, names): &(&NodePath, &[String; 2])| {
            self.before.accounts.get(*path) != Some(*names)
        };
        if !self.after.accounts.iter().any(|account| is_changed(&account)) {
            return Ok(());
        }
        let policies =
            validator.head.repository_state.cache.access_policies.policies_of(validator.head)?;
        // Ids and principal names are separate kinds of names.
        let mut paths_by_name: BTreeMap<(usize, String), BTreeSet<NodePath>> = BTreeMap::new();
        let mut take = |names: [&str; 2], path: &NodePath| {
            for (kind, name) in names.into_iter().enumerate() {
                paths_by_name.entry((kind, name.to_owned())).or_default().insert(path.clone());
            }
        };
        for (id, principal, path) in policies.accounts.iter() {
            if !self.before.accounts.contains_key(path) {
                take([id, principal], path);
            }
        }
        for (path, [id, principal]) in &self.after.accounts {
            take([id, principal], path);
        }
        for (path, names) in self.after.accounts.iter().filter(|account| is_changed(account)) {
            for (kind, name) in names.iter().enumerate() {
                let holders = paths_by_name.get(&(kind, name.clone())).into_iter().flatten();
                let others: Vec<NodePath> =
                    holders.filter(|holder| *holder != path).cloned().collect();
                if !others.is_empty() {
                    let kind = ConstraintViolationKind::DuplicateAccount;
                    validator.add_violation(ConstraintViolation {
                        conflicting_paths: others,
                        ..ConstraintViolation::new(path, kind, name.clone())
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the nodes that have an identifier after the commit.
    fn identifier_holders(&self, head: &Snapshot, identifier: &str) -> Result<BTreeSet<NodePath>> {
        let of = |usage: &IdentifierUsage| -> BTreeSet<NodePath> {
            let from = (identifier.to_owned(), NodePath::root());
            let own = usage
                .identifiers
                .range(from..)
                .take_while(|(entry_identifier, _)| entry_identifier == identifier);
            own.map(|(_, path)| path.clone()).collect()
        };
        let former_holders = of(&self.before);
        let stored = head.look_up_paths(LookupIndex::Uuid, identifier)?.into_iter();
        let mut holders: BTreeSet<NodePath> =
            stored.filter(|path| !former_holders.contains(path)).collect();
        holders.extend(of(&self.after));
        Ok(holders)
    }

    /// Returns the properties with a strong reference to an identifier after the commit.
    fn referrers(
        &self,
        head: &Snapshot,
        identifier: &str,
        validator: &NodeTypeValidator<'_>,
    ) -> Result<BTreeSet<Referrer>> {
        let mut referrers = self.after.references.get(identifier).cloned().unwrap_or_default();
        for path in head.look_up_paths(LookupIndex::Reference, identifier)? {
            let Some(node) = head.node(&path)? else { continue };
            // A changed document was recorded in its state after the commit.
            if validator.edits.contains_key(&record_key::record_key(node.record_path())?) {
                continue;
            }
            let mut usage = IdentifierUsage::default();
            if let Some(node) = node.as_borrowed() {
                usage.record_node(&path, node, validator.rules);
            }
            referrers.extend(usage.references.remove(identifier).unwrap_or_default());
        }
        Ok(referrers)
    }
}

/// Returns the names of a user or group; `None` for other nodes.
fn account_names(path: &NodePath, node: BorrowedNode<'_>) -> Option<[String; 2]> {
    if !path.as_str().starts_with("/home/") || !ACCOUNT_TYPES.contains(&node.text(PRIMARY_TYPE)?) {
        return None;
    }
    let id = node.text("rep:authorizableId").unwrap_or_else(|| path.name());
    let principal = node.text("rep:principalName").unwrap_or(id);
    Some([id.to_owned(), principal.to_owned()])
}
