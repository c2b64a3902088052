//! Ensures that only administrators create or change administrators: accounts with all rights, and memberships that
//! lead to them.
//!
//! In: the base state of a session, and that state with its edits. Out: the first account that has all rights, before
//! or after, and that differs.
//!
//! An account has all rights if it is `admin`, `administrators` or a member of that group, directly or through other
//! groups. The rule is checked at the commit, whatever privilege a viewer has and whatever the source of the edits:
//! forms, the API, packages, versions.
//!
//! Not here: permission to change other accounts (`check`).

use std::collections::BTreeMap;

use crate::access::policy::{ACCOUNTS_ROOT, AccessControlDocument, StoredAccount};
use crate::model::node_path::is_path_within;
use crate::{NodePath, Property, Result, Snapshot, Subtree, document::record_key};

/// The property that holds the hash of a password.
const PASSWORD_PROPERTY: &str = "rep:password";

/// The accounts in a document.
#[derive(Default)]
struct DocumentAccounts {
    access_control: AccessControlDocument,
    /// The password hashes, by account.
    passwords: BTreeMap<NodePath, Property>,
}

/// Returns the path of an account with all rights that was changed, created or removed.
///
/// # Errors
/// If the store fails.
pub(crate) fn find_changed_administrator(
    base: &Snapshot,
    pending: &Snapshot,
) -> Result<Option<NodePath>> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    for key in pending.view.record_edits.keys() {
        let path = record_key::record_path(key)?;
        if is_path_within(path.as_str(), ACCOUNTS_ROOT) {
            before.insert(key.to_vec(), DocumentAccounts::read_document(base, key, &path)?);
            after.insert(key.to_vec(), DocumentAccounts::read_document(pending, key, &path)?);
        }
    }
    if before.is_empty() {
        return Ok(None);
    }
    let policies = base.view.repository_state.cache.access_policies.policies_of(&base.view)?;
    let (removed_accounts, made) =
        (differing_accounts(&before, &after), differing_accounts(&after, &before));
    if let Some(removed_account) =
        removed_accounts.iter().find(|account| policies.accounts.grants_all_rights(account))
    {
        return Ok(Some(removed_account.path.clone()));
    }
    let documents: BTreeMap<Vec<u8>, AccessControlDocument> =
        after.into_iter().map(|(key, holding)| (key, holding.access_control)).collect();
    let accounts = policies.accounts_with_overrides(&documents);
    let new_administrator = made.iter().find(|account| accounts.grants_all_rights(account));
    Ok(new_administrator.map(|account| account.path.clone()))
}

/// Returns the accounts of some documents that others lack or have in a different form.
fn differing_accounts(
    these: &BTreeMap<Vec<u8>, DocumentAccounts>,
    others: &BTreeMap<Vec<u8>, DocumentAccounts>,
) -> Vec<StoredAccount> {
    let of = |holdings: &'_ BTreeMap<Vec<u8>, DocumentAccounts>, account: &StoredAccount| {
        holdings.values().any(|holding| holding.contains(account))
    };
    let passwords = |holdings: &'_ BTreeMap<Vec<u8>, DocumentAccounts>, path: &NodePath| {
        holdings.values().find_map(|holding| holding.passwords.get(path)).cloned()
    };
    let accounts = these.values().flat_map(|holding| &holding.access_control.accounts);
    let is_other = |account: &&StoredAccount| {
        !of(others, account) || passwords(these, &account.path) != passwords(others, &account.path)
    };
    accounts.filter(is_other).cloned().collect()
}

impl DocumentAccounts {
    fn read_document(snapshot: &Snapshot, key: &[u8], path: &NodePath) -> Result<Self> {
        let Some(record) = snapshot.view.find_record(key)? else { return Ok(Self::default()) };
        let body = snapshot.view.load_body(&record, path)?;
        let tree = body.subtree(body.root());
        let mut passwords = BTreeMap::new();
        collect_passwords(path, &tree, &mut passwords);
        Ok(Self { access_control: AccessControlDocument::from_subtree(path, &tree), passwords })
    }

    fn contains(&self, account: &StoredAccount) -> bool {
        self.access_control.accounts.contains(account)
    }
}

fn collect_passwords(
    path: &NodePath,
    tree: &Subtree,
    passwords: &mut BTreeMap<NodePath, Property>,
) {
    if let Some(password) = tree.properties.get(PASSWORD_PROPERTY) {
        passwords.insert(path.clone(), password.clone());
    }
    for child in &tree.children {
        collect_passwords(&path.child_unchecked(&child.name), child, passwords);
    }
}
