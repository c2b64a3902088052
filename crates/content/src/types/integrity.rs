//! Identifiers and references of a commit: no two nodes with one identifier, no two accounts with one name, no strong
//! reference to nothing.
//!
//! In: the changed documents before and after. Out: [`Violation`]s.
//!
//! References in protected properties, such as those to versions, are the repository's own affair.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::judge::{Judge, NodeTypesOf};
use super::stored::Rules;
use super::violation::{Violation, ViolationKind};
use crate::reference::{ReferenceKind, Referrer, UUID};
use crate::{BorrowedNode, Index, NodePath, PRIMARY_TYPE, Result, Snapshot, ValueType, keys};

const ACCOUNTS: [&str; 3] = ["rep:User", "rep:SystemUser", "rep:Group"];

/// The identifiers and strong references of changed documents.
#[derive(Debug, Default)]
pub(super) struct Integrity {
    before: Held,
    after: Held,
}

/// Which identifiers nodes have, and which properties refer to identifiers.
#[derive(Debug, Default)]
struct Held {
    identifiers: BTreeSet<(String, NodePath)>,
    references: BTreeMap<String, BTreeSet<Referrer>>,
    /// The names of users and groups: what they are found by, and what policies mean them by.
    accounts: BTreeMap<NodePath, [String; 2]>,
}

impl Held {
    fn note(&mut self, path: &NodePath, node: BorrowedNode<'_>, rules: &Rules) {
        self.note_own(path, node, rules);
        for child in node.children() {
            self.note(&path.child_unchecked(child.name()), child, rules);
        }
    }

    fn note_own(&mut self, path: &NodePath, node: BorrowedNode<'_>, rules: &Rules) {
        if let Some(names) = account_names(path, node) {
            self.accounts.insert(path.clone(), names);
        }
        for (name, property) in node.properties() {
            if name == UUID {
                let texts = property.values().filter_map(|value| value.as_str());
                self.identifiers.extend(texts.map(|text| (text.to_owned(), path.clone())));
            } else if property.value_type() == ValueType::Reference {
                let effective = NodeTypesOf::of(node).effective(rules);
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

impl Integrity {
    /// Notes a document before and after the commit.
    pub(super) fn note(
        &mut self,
        path: &NodePath,
        old: Option<BorrowedNode<'_>>,
        new: Option<BorrowedNode<'_>>,
        rules: &Rules,
    ) {
        for (held, node) in [(&mut self.before, old), (&mut self.after, new)] {
            if let Some(node) = node {
                held.note(path, node, rules);
            }
        }
    }

    /// Judges what was noted.
    pub(super) fn judge(&self, judge: &mut Judge<'_>) -> Result<()> {
        let head = Snapshot(Arc::new(judge.head.clone()), None);
        for (identifier, path) in self.after.identifiers.difference(&self.before.identifiers) {
            let mut holders = self.holders(&head, identifier)?;
            holders.remove(path);
            if !holders.is_empty() {
                let (kind, others) = (ViolationKind::DuplicateIdentifier, holders.into_iter());
                let others = others.collect();
                judge.add(Violation { others, ..Violation::new(path, kind, identifier.clone()) });
            }
        }
        self.judge_accounts(judge)?;
        let mut removed = BTreeSet::new();
        for (identifier, path) in self.before.identifiers.difference(&self.after.identifiers) {
            if !self.holders(&head, identifier)?.is_empty() {
                continue;
            }
            removed.insert(identifier);
            let referrers = self.referrers(&head, identifier, judge)?;
            if !referrers.is_empty() {
                let mut violation =
                    Violation::new(path, ViolationKind::Referenced, identifier.clone());
                violation.referrers = referrers.into_iter().collect();
                judge.add(violation);
            }
        }
        for (identifier, referrers) in &self.after.references {
            let old = self.before.references.get(identifier);
            let new = referrers.iter().filter(|one| old.is_none_or(|old| !old.contains(one)));
            let new: Vec<&Referrer> = new.collect();
            let is_settled = new.is_empty() || removed.contains(identifier);
            if is_settled || !self.holders(&head, identifier)?.is_empty() {
                continue;
            }
            for referrer in new {
                let kind = ViolationKind::DanglingReference;
                let violation = Violation::new(&referrer.path, kind, referrer.property.clone());
                judge.add(violation.saying(format!("no node has the identifier `{identifier}`")));
            }
        }
        Ok(())
    }

    /// Judges the names of users and groups: a second account of a name would have what the first one may do.
    fn judge_accounts(&self, judge: &mut Judge<'_>) -> Result<()> {
        let is_changed = |(path, names): &(&NodePath, &[String; 2])| {
            self.before.accounts.get(*path) != Some(*names)
        };
        if !self.after.accounts.iter().any(|one| is_changed(&one)) {
            return Ok(());
        }
        let policies = judge.head.shared.bodies.access.of(judge.head)?;
        // What accounts are found by, and what policies mean them by, are names of two kinds.
        let mut taken: BTreeMap<(usize, String), BTreeSet<NodePath>> = BTreeMap::new();
        let mut take = |names: [&str; 2], path: &NodePath| {
            for (kind, name) in names.into_iter().enumerate() {
                taken.entry((kind, name.to_owned())).or_default().insert(path.clone());
            }
        };
        for (id, principal, path) in policies.accounts.all() {
            if !self.before.accounts.contains_key(path) {
                take([id, principal], path);
            }
        }
        for (path, [id, principal]) in &self.after.accounts {
            take([id, principal], path);
        }
        for (path, names) in self.after.accounts.iter().filter(|one| is_changed(one)) {
            for (kind, name) in names.iter().enumerate() {
                let holders = taken.get(&(kind, name.clone())).into_iter().flatten();
                let others: Vec<NodePath> = holders.filter(|one| *one != path).cloned().collect();
                if !others.is_empty() {
                    let kind = ViolationKind::DuplicateAccount;
                    judge.add(Violation { others, ..Violation::new(path, kind, name.clone()) });
                }
            }
        }
        Ok(())
    }

    /// Returns the nodes that have an identifier after the commit.
    fn holders(&self, head: &Snapshot, identifier: &str) -> Result<BTreeSet<NodePath>> {
        let of = |held: &Held| -> BTreeSet<NodePath> {
            let from = (identifier.to_owned(), NodePath::root());
            let own = held.identifiers.range(from..).take_while(|(one, _)| one == identifier);
            own.map(|(_, path)| path.clone()).collect()
        };
        let gone = of(&self.before);
        let stored = head.look_up(Index::Uuid, identifier)?.into_iter();
        let mut holders: BTreeSet<NodePath> = stored.filter(|path| !gone.contains(path)).collect();
        holders.extend(of(&self.after));
        Ok(holders)
    }

    /// Returns the properties that refer to an identifier strongly after the commit.
    fn referrers(
        &self,
        head: &Snapshot,
        identifier: &str,
        judge: &Judge<'_>,
    ) -> Result<BTreeSet<Referrer>> {
        let mut referrers = self.after.references.get(identifier).cloned().unwrap_or_default();
        for path in head.look_up(Index::Reference, identifier)? {
            let Some(node) = head.node(&path)? else { continue };
            // A changed document was noted as it is after the commit.
            if judge.edits.contains_key(&keys::key_of(node.owner())?) {
                continue;
            }
            let mut held = Held::default();
            if let Some(node) = node.borrowed() {
                held.note_own(&path, node, judge.rules);
            }
            referrers.extend(held.references.remove(identifier).unwrap_or_default());
        }
        Ok(referrers)
    }
}

/// Returns the names of a user or group; nothing for other nodes.
fn account_names(path: &NodePath, node: BorrowedNode<'_>) -> Option<[String; 2]> {
    if !path.as_str().starts_with("/home/") || !ACCOUNTS.contains(&node.text(PRIMARY_TYPE)?) {
        return None;
    }
    let id = node.text("rep:authorizableId").unwrap_or_else(|| path.name());
    let principal = node.text("rep:principalName").unwrap_or(id);
    Some([id.to_owned(), principal.to_owned()])
}
