//! Whoever is no administrator makes none: neither an account that leads to all rights nor a way to one.
//!
//! In: the state a session began with, and that with its edits. Out: the first account that leads to all rights, before or after, and that is not as it was.
//!
//! Accounts lead there by being `admin`, `administrators` or a member of that group, directly or through others. The rule
//! holds at the commit, whatever privilege a viewer has and whichever way the edits came: forms, the API, packages,
//! versions.
//!
//! Not here: who may change other accounts (`check`).

use std::collections::BTreeMap;

use crate::access::policy::{Account, Document, HOME, is_below};
use crate::{NodePath, Property, Result, Snapshot, Subtree, keys};

/// The property with the hash of a password.
const PASSWORD: &str = "rep:password";

/// What a document holds of accounts.
#[derive(Default)]
struct Holding {
    document: Document,
    /// The hashes of passwords, by account.
    passwords: BTreeMap<NodePath, Property>,
}

/// Returns where an account that leads to all rights was changed, made or removed.
///
/// # Errors
/// If the store fails.
pub(crate) fn find_changed_administrator(
    base: &Snapshot,
    pending: &Snapshot,
) -> Result<Option<NodePath>> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    for key in pending.0.overlay.keys() {
        let path = keys::path_of(key)?;
        if is_below(&path, HOME) {
            before.insert(key.to_vec(), Holding::read(base, key, &path)?);
            after.insert(key.to_vec(), Holding::read(pending, key, &path)?);
        }
    }
    if before.is_empty() {
        return Ok(None);
    }
    let known = base.0.shared.bodies.access.of(&base.0)?;
    let (gone, made) = (differing(&before, &after), differing(&after, &before));
    if let Some(one) = gone.iter().find(|one| known.accounts.leads_to_all_rights(one)) {
        return Ok(Some(one.path.clone()));
    }
    let documents: BTreeMap<Vec<u8>, Document> =
        after.into_iter().map(|(key, holding)| (key, holding.document)).collect();
    let accounts = known.accounts_with(&documents);
    let found = made.iter().find(|one| accounts.leads_to_all_rights(one));
    Ok(found.map(|one| one.path.clone()))
}

/// Returns the accounts of some documents that others do not have like this.
fn differing(
    these: &BTreeMap<Vec<u8>, Holding>,
    others: &BTreeMap<Vec<u8>, Holding>,
) -> Vec<Account> {
    let of = |holdings: &'_ BTreeMap<Vec<u8>, Holding>, account: &Account| {
        holdings.values().any(|holding| holding.has(account))
    };
    let passwords = |holdings: &'_ BTreeMap<Vec<u8>, Holding>, path: &NodePath| {
        holdings.values().find_map(|holding| holding.passwords.get(path)).cloned()
    };
    let accounts = these.values().flat_map(|holding| &holding.document.accounts);
    let is_other = |account: &&Account| {
        !of(others, account) || passwords(these, &account.path) != passwords(others, &account.path)
    };
    accounts.filter(is_other).cloned().collect()
}

impl Holding {
    fn read(snapshot: &Snapshot, key: &[u8], path: &NodePath) -> Result<Self> {
        let Some(record) = snapshot.0.find(key)? else { return Ok(Self::default()) };
        let body = snapshot.0.body(&record, path)?;
        let tree = body.subtree(body.root());
        let mut passwords = BTreeMap::new();
        collect_passwords(path, &tree, &mut passwords);
        Ok(Self { document: Document::read(path, &tree), passwords })
    }

    fn has(&self, account: &Account) -> bool {
        self.document.accounts.contains(account)
    }
}

fn collect_passwords(path: &NodePath, tree: &Subtree, found: &mut BTreeMap<NodePath, Property>) {
    if let Some(password) = tree.properties.get(PASSWORD) {
        found.insert(path.clone(), password.clone());
    }
    for child in &tree.children {
        collect_passwords(&path.child_unchecked(&child.name), child, found);
    }
}
