//! The policies and accounts of one state, and the permissions that they give to viewers.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::policy::{AccessControlDocument, AccessPolicy, ClosedUserGroup};
use super::principal::AccountDirectory;
use super::viewer::ViewerIdentity;
use super::viewer_permissions::ViewerPermissions;

/// Maximum number of viewers whose permissions are cached for one set of policies.
const MAX_CACHED_PERMISSIONS: usize = 1000;

/// The policies and accounts of one state.
pub(crate) struct AccessPolicies {
    /// Identifies the set without comparing its content.
    pub(crate) id: u64,
    /// Documents by the key of their record.
    pub(super) documents: BTreeMap<Vec<u8>, Arc<AccessControlDocument>>,
    pub(crate) accounts: AccountDirectory,
    /// Permissions by viewer and by the set that provides the viewer's groups.
    permissions_by_viewer: Mutex<HashMap<(ViewerIdentity, u64), Arc<ViewerPermissions>>>,
}

impl AccessPolicies {
    /// Creates the set of all documents that hold access control content, by the key of their record.
    pub(super) fn new(
        id: u64,
        documents: BTreeMap<Vec<u8>, Arc<AccessControlDocument>>,
    ) -> Arc<Self> {
        let accounts = AccountDirectory::new(documents.values().map(|document| &**document));
        Arc::new(Self { id, documents, accounts, permissions_by_viewer: Mutex::default() })
    }

    /// Returns the permissions of a viewer by these policies, with the groups that `accounts` lists for it.
    pub(crate) fn permissions_for(
        &self,
        identity: &ViewerIdentity,
        accounts: &Self,
    ) -> Arc<ViewerPermissions> {
        let key = (identity.clone(), accounts.id);
        if let Some(permissions) = lock_ignoring_poison(&self.permissions_by_viewer).get(&key) {
            return permissions.clone();
        }
        let principals = accounts.accounts.principals_for(identity);
        let permissions = Arc::new(ViewerPermissions::new(principals, &self.documents));
        let mut cache = lock_ignoring_poison(&self.permissions_by_viewer);
        if cache.len() >= MAX_CACHED_PERMISSIONS {
            cache.clear();
        }
        cache.insert(key, permissions.clone());
        permissions
    }

    /// Returns the accounts with some documents replaced; `None` stands for a removed document.
    pub(crate) fn accounts_with_overrides(
        &self,
        others: &BTreeMap<Vec<u8>, AccessControlDocument>,
    ) -> AccountDirectory {
        let own_documents = self.documents.iter().filter(|(key, _)| !others.contains_key(*key));
        let own_documents = own_documents.map(|(_, document)| &**document);
        AccountDirectory::new(own_documents.chain(others.values()))
    }

    /// Returns all policies, in the order of their documents.
    pub(crate) fn iter_policies(&self) -> impl Iterator<Item = &AccessPolicy> {
        self.documents.values().flat_map(|document| &document.policies)
    }

    /// Returns all closed user groups.
    pub(crate) fn closed_user_groups(&self) -> impl Iterator<Item = &ClosedUserGroup> {
        self.documents.values().flat_map(|document| &document.closed_user_groups)
    }
}

/// Locks the mutex and ignores poisoning: each value is inserted in one step, so that a panic leaves it complete.
pub(super) fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for AccessPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policies({}, {} documents)", self.id, self.documents.len())
    }
}
