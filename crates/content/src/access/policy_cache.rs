//! Caches all policies and accounts of a state, and updates them as the content changes.
//!
//! In: a state. Out: its [`AccessPolicies`], read from the documents that the `type` index lists. For the next state
//! only the changed documents are read, and none if no changed document holds access control content.
//!
//! Invariants
//! * Consecutive states with equal policies and accounts share one [`AccessPolicies`], so that cached decisions stay
//!   valid.
//!
//! On failure: if the predecessor of a state was collected, the state is read in full.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tympan_store::{ChunkId, SortedMap, StoreRoot};

use crate::access::access_gate::AccessGate;
use crate::access::policy::{
    ACCESS_CONTROL_TYPES, AccessControlDocument, AccessPolicy, ClosedUserGroup,
};
use crate::access::principal::AccountDirectory;
use crate::access::viewer::{Viewer, ViewerIdentity};
use crate::access::viewer_permissions::ViewerPermissions;
use crate::branch::branch_ref::MAIN_BRANCH;
use crate::document::record_key::CONTENT_MAP;
use crate::repository::repository_state::RepositoryState;
use crate::snapshot::SnapshotView;
use crate::{Error, NodePath, Result, Snapshot, document::record_key};

/// Maximum number of states whose policies are cached.
const MAX_CACHED_STATES: usize = 16;
/// Maximum number of viewers whose permissions are cached for one set of policies.
const MAX_CACHED_PERMISSIONS: usize = 1000;
/// The index map of node types.
const TYPE_INDEX_MAP: &str = "type";

/// The policies and accounts of one state.
pub(crate) struct AccessPolicies {
    /// Identifies the set without comparing its content.
    pub(crate) id: u64,
    /// Documents by the key of their record.
    documents: BTreeMap<Vec<u8>, Arc<AccessControlDocument>>,
    pub(crate) accounts: AccountDirectory,
    /// Permissions by viewer and by the set that provides the viewer's groups.
    permissions_by_viewer: Mutex<HashMap<(ViewerIdentity, u64), Arc<ViewerPermissions>>>,
}

/// The policies of the states that were read recently.
#[derive(Default)]
pub(crate) struct AccessPolicyCache {
    cached_states: Mutex<Vec<CachedPolicyState>>,
    /// The newest state of `main` that was requested.
    newest_main: Mutex<Option<(ChunkId, Arc<AccessPolicies>)>>,
    /// The gate that was opened last; most requests come from one viewer (anonymous) and for one state.
    last_gate: ArcSwapOption<CachedAccessGate>,
    next_id: AtomicU64,
    /// Number of documents read to find policies; for tests.
    documents_read: AtomicU64,
}

/// A gate and the parameters it was opened with.
struct CachedAccessGate {
    content_map: SortedMap,
    /// The newest state of `main`, whose policies also apply.
    main_root: ChunkId,
    viewer: Viewer,
    gate: Arc<AccessGate>,
}

#[derive(Clone)]
struct CachedPolicyState {
    content_map: SortedMap,
    type_map: SortedMap,
    policies: Arc<AccessPolicies>,
}

impl AccessPolicyCache {
    /// Returns the policies of the state of a view, without pending edits.
    pub(crate) fn policies_of(&self, view: &SnapshotView) -> Result<Arc<AccessPolicies>> {
        let content = view.content_map;
        let states = lock_ignoring_poison(&self.cached_states);
        if let Some(state) = states.iter().find(|state| state.content_map == content) {
            return Ok(state.policies.clone());
        }
        let last = states.last().cloned();
        drop(states);
        let types = StoreRoot::read(view.repository_state.chunk_reader(), &view.root_id)?
            .map(TYPE_INDEX_MAP);
        let followed = last.and_then(|last| self.update_policies(&last, view, types).ok());
        let policies = match followed {
            Some(policies) => policies,
            None => self.read_policies(view)?,
        };
        let mut states = lock_ignoring_poison(&self.cached_states);
        states.retain(|state| state.content_map != content);
        if states.len() >= MAX_CACHED_STATES {
            states.remove(0);
        }
        states.push(CachedPolicyState {
            content_map: content,
            type_map: types,
            policies: policies.clone(),
        });
        Ok(policies)
    }

    /// Returns the policies of the newest state of `main`, which apply to every state that is read.
    pub(crate) fn policies_of_main(
        &self,
        shared: &Arc<RepositoryState>,
    ) -> Result<Arc<AccessPolicies>> {
        Ok(self.policies_of_newest(shared)?.0)
    }

    /// Returns the policies of the newest state of `main`, and the root of that state.
    pub(crate) fn policies_of_newest(
        &self,
        shared: &Arc<RepositoryState>,
    ) -> Result<(Arc<AccessPolicies>, ChunkId)> {
        let missing = || Error::MissingContentMap(ChunkId::from_bytes([0; 32]));
        let root = shared.chunks.read_ref(MAIN_BRANCH)?.ok_or_else(missing)?;
        if let Some((cached_root, policies)) = &*lock_ignoring_poison(&self.newest_main)
            && *cached_root == root
        {
            return Ok((policies.clone(), root));
        }
        let pin = shared.chunks.pin_root(root);
        let content = StoreRoot::read(shared.chunk_reader(), &root)?.maps.get(CONTENT_MAP).copied();
        let content = content.ok_or(Error::MissingContentMap(root))?;
        let policies = self.policies_of(&SnapshotView::pinned(shared.clone(), pin, content))?;
        *lock_ignoring_poison(&self.newest_main) = Some((root, policies.clone()));
        Ok((policies, root))
    }

    /// Returns the cached gate if it was opened with these parameters.
    pub(crate) fn cached_gate(
        &self,
        content: SortedMap,
        main: ChunkId,
        viewer: &Viewer,
    ) -> Option<Arc<AccessGate>> {
        let last = self.last_gate.load();
        let last = last.as_ref().filter(|last| {
            last.main_root == main && last.content_map == content && last.viewer == *viewer
        });
        last.map(|last| Arc::clone(&last.gate))
    }

    /// Caches the gate that was opened last.
    pub(crate) fn cache_gate(
        &self,
        content: SortedMap,
        main: ChunkId,
        viewer: &Viewer,
        gate: &Arc<AccessGate>,
    ) {
        let (viewer, gate) = (viewer.clone(), Arc::clone(gate));
        self.last_gate.store(Some(Arc::new(CachedAccessGate {
            content_map: content,
            main_root: main,
            viewer,
            gate,
        })));
    }

    /// Returns the number of documents read to find policies.
    pub(crate) fn documents_read(&self) -> u64 {
        self.documents_read.load(Ordering::Relaxed)
    }

    fn read_policies(&self, view: &SnapshotView) -> Result<Arc<AccessPolicies>> {
        let snapshot = stored_snapshot(view);
        let mut owners = BTreeSet::new();
        for path in ACCESS_CONTROL_TYPES.iter().map(|name| snapshot.paths_of_type(name)) {
            for path in path? {
                owners.extend(document_path_of(&snapshot, &path)?);
            }
        }
        let mut documents = BTreeMap::new();
        for owner in owners {
            self.read_document(&snapshot, &owner, &mut documents)?;
        }
        Ok(self.build_policies(documents))
    }

    /// Derives the policies of a state from those of another by reading the changed documents.
    fn update_policies(
        &self,
        last: &CachedPolicyState,
        view: &SnapshotView,
        types: SortedMap,
    ) -> Result<Arc<AccessPolicies>> {
        let reads = view.repository_state.chunk_reader();
        let snapshot = stored_snapshot(view);
        let mut changed = BTreeSet::new();
        for change in last.content_map.diff(&view.content_map, reads) {
            let change = change?;
            if last.policies.documents.contains_key(&*change.key) {
                changed.insert(change.key.to_vec());
            }
        }
        for change in last.type_map.diff(&types, reads) {
            let change = change?;
            let mut parts = change.key.split(|byte| *byte == 0);
            let name = parts.next().unwrap_or_default();
            if change.right.is_some()
                && ACCESS_CONTROL_TYPES.iter().any(|type_name| type_name.as_bytes() == name)
            {
                let path = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
                if let Some(owner) = document_path_of(&snapshot, &NodePath::new(&path)?)? {
                    changed.insert(record_key::record_key(&owner)?);
                }
            }
        }
        let mut documents = BTreeMap::new();
        for key in &changed {
            self.read_document(&snapshot, &record_key::record_path(key)?, &mut documents)?;
        }
        let is_same = changed.iter().all(|key| {
            last.policies.documents.get(key).map(|access_document| &**access_document)
                == documents.get(key).map(|access_document| &**access_document)
        });
        if is_same {
            return Ok(last.policies.clone());
        }
        let unchanged_documents =
            last.policies.documents.iter().filter(|(key, _)| !changed.contains(*key));
        documents
            .extend(unchanged_documents.map(|(key, document)| (key.clone(), document.clone())));
        Ok(self.build_policies(documents))
    }

    /// Reads one document; `None` if it holds no access control content.
    fn read_document(
        &self,
        snapshot: &Snapshot,
        owner: &NodePath,
        documents: &mut BTreeMap<Vec<u8>, Arc<AccessControlDocument>>,
    ) -> Result<()> {
        let Some(node) = snapshot.node(owner)? else { return Ok(()) };
        self.documents_read.fetch_add(1, Ordering::Relaxed);
        let document = AccessControlDocument::from_subtree(owner, &node.read_own_subtree()?);
        if !document.is_empty() {
            documents.insert(record_key::record_key(owner)?, Arc::new(document));
        }
        Ok(())
    }

    fn build_policies(
        &self,
        documents: BTreeMap<Vec<u8>, Arc<AccessControlDocument>>,
    ) -> Arc<AccessPolicies> {
        let accounts = AccountDirectory::new(documents.values().map(|document| &**document));
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Arc::new(AccessPolicies {
            id,
            documents,
            accounts,
            permissions_by_viewer: Mutex::default(),
        })
    }
}

impl AccessPolicies {
    /// Returns the permissions of a viewer by these policies, with the groups that `accounts` lists for it.
    pub(crate) fn permissions_for(
        &self,
        identity: &ViewerIdentity,
        accounts: &Self,
    ) -> Arc<ViewerPermissions> {
        let key = (identity.clone(), accounts.id);
        if let Some(lens) = lock_ignoring_poison(&self.permissions_by_viewer).get(&key) {
            return lens.clone();
        }
        let principals = accounts.accounts.principals_for(identity);
        let lens = Arc::new(ViewerPermissions::new(principals, &self.documents));
        let mut lenses = lock_ignoring_poison(&self.permissions_by_viewer);
        if lenses.len() >= MAX_CACHED_PERMISSIONS {
            lenses.clear();
        }
        lenses.insert(key, lens.clone());
        lens
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

impl Snapshot {
    /// Returns the paths of the nodes that the type index lists under a name, without access control.
    fn paths_of_type(&self, name: &str) -> Result<Vec<NodePath>> {
        let reads = self.0.repository_state.chunk_reader();
        let map = StoreRoot::read(reads, &self.0.root_id)?.map(TYPE_INDEX_MAP);
        let (start, end) = ([name.as_bytes(), &[0]].concat(), [name.as_bytes(), &[1]].concat());
        let range = (Bound::Included(&*start), Bound::Excluded(&*end));
        let paths = map.range(reads, range).map(|entry| {
            let (key, _) = entry?;
            let path = key.get(start.len()..).unwrap_or_default();
            NodePath::new(&String::from_utf8_lossy(path))
        });
        paths.collect()
    }
}

/// Returns the state of a view, without pending edits.
fn stored_snapshot(view: &SnapshotView) -> Snapshot {
    Snapshot::from_view(SnapshotView::new(
        view.repository_state.clone(),
        view.root_id,
        view.content_map,
    ))
}

/// Returns the path of the document that holds a node.
fn document_path_of(snapshot: &Snapshot, path: &NodePath) -> Result<Option<NodePath>> {
    Ok(snapshot.node(path)?.map(|node| node.record_path().clone()))
}

/// Locks the mutex and ignores poisoning: each value is inserted in one step, so that a panic leaves it complete.
fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for AccessPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policies({}, {} documents)", self.id, self.documents.len())
    }
}
