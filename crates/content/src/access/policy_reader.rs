//! Reads all policies and accounts of a state through their cache, and updates them as the content changes.
//!
//! In: a state. Out: its [`AccessPolicies`], read from the documents that the `type` index lists. For the next state
//! only the changed documents are read, and none if no changed document holds access control content.
//!
//! Invariants
//! * Consecutive states with equal policies and accounts share one [`AccessPolicies`], so that cached decisions stay
//!   valid.
//!
//! On failure: if the predecessor of a state was collected, the state is read in full.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tympan_store::{ChunkId, SortedMap, StoreRoot};

use super::access_policies::{AccessPolicies, lock_ignoring_poison};
use super::policy::{ACCESS_CONTROL_TYPES, AccessControlDocument};
use super::policy_cache::{AccessPolicyCache, CachedPolicyState, MAX_CACHED_STATES};
use crate::branch::branch_ref::MAIN_BRANCH;
use crate::document::record_key::CONTENT_MAP;
use crate::repository::repository_state::RepositoryState;
use crate::snapshot::SnapshotView;
use crate::{Error, NodePath, Result, Snapshot, document::record_key};

/// The index map of node types.
const TYPE_INDEX_MAP: &str = "type";

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

    pub(super) fn build_policies(
        &self,
        documents: BTreeMap<Vec<u8>, Arc<AccessControlDocument>>,
    ) -> Arc<AccessPolicies> {
        AccessPolicies::new(self.next_id.fetch_add(1, Ordering::Relaxed), documents)
    }
}

impl Snapshot {
    /// Returns the paths of the nodes that the type index lists under a name, without access control.
    fn paths_of_type(&self, name: &str) -> Result<Vec<NodePath>> {
        let reads = self.view.repository_state.chunk_reader();
        let map = StoreRoot::read(reads, &self.view.root_id)?.map(TYPE_INDEX_MAP);
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
