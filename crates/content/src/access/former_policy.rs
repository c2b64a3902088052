//! Former policies: those of nodes that no longer exist at their path, as they were last.
//!
//! In: the changed documents of a commit to `main`. Out: entries of the map `former-policies` in its root, and the
//! policies that these add for other states. `docs/formats/former-policies.md` specifies the bytes.
//!
//! Invariants
//! * Every commit that removes a node with a policy, or moves it away, writes an entry in the same root. Therefore no
//!   kind of edit can miss it.
//! * An entry applies to each state whose root does not have it: a state of before the removal, or a branch from then.
//! * Only `main` has entries, as its policies apply to every state. An entry is replaced when another node with a
//!   policy is removed from the path; it is never removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tympan_store::{ChunkBatch, SortedMap, StoreRoot};

use super::access_policies::{AccessPolicies, lock_ignoring_poison};
use super::policy::AccessControlDocument;
use super::policy_cache::{AccessPolicyCache, CachedFormerPolicies, MAX_CACHED_STATES};
use crate::branch::branch_ref::MAIN_BRANCH;
use crate::document::body::DocumentBody;
use crate::document::record::ContentRecord;
use crate::model::order_key::OrderKey;
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{ChunkId, Error, NodePath, Result, Snapshot, Subtree, document::record_key};

/// The name of the map.
pub(crate) const FORMER_POLICIES_MAP: &str = "former-policies";
/// The names of the policies that close a node.
const CLOSING_POLICY_NAMES: [&str; 2] = ["rep:policy", "rep:cugPolicy"];
/// The type of the node that holds the policies in an entry. It says nothing about the controlled node.
const HOLDER_TYPE: &str = "nt:unstructured";

/// The policies that the changed documents of a commit no longer have, by controlled node, as children of a node.
#[derive(Default)]
pub(crate) struct FormerPolicyEdits(BTreeMap<NodePath, Subtree>);

impl FormerPolicyEdits {
    /// Returns the policies that the documents of a state no longer have after edits.
    pub(crate) fn from_edits(head: &SnapshotView, edits: &RecordEdits) -> Result<Self> {
        let mut former = Self::default();
        for (key, record) in edits {
            let path = record_key::record_path(key)?;
            let old = head.find_record(key)?;
            let old = old.map(|old| head.load_body(&old, &path)).transpose()?;
            let new = record.as_ref().map(|record| head.load_body(record, &path)).transpose()?;
            former.record_change(&path, old.as_deref(), new.as_deref());
        }
        Ok(former)
    }

    /// Records the policies that one changed document no longer has; it may be a policy itself.
    pub(crate) fn record_change(
        &mut self,
        path: &NodePath,
        old: Option<&DocumentBody>,
        new: Option<&DocumentBody>,
    ) {
        let is_policy = CLOSING_POLICY_NAMES.contains(&path.name());
        let Some(old) = old.filter(|old| is_policy || old.has_guarded_name()) else { return };
        let new = new.map(|new| new.subtree(new.root()));
        self.collect_removed(path, &old.subtree(old.root()), new.as_ref());
    }

    fn collect_removed(&mut self, path: &NodePath, old: &Subtree, new: Option<&Subtree>) {
        if !CLOSING_POLICY_NAMES.contains(&path.name()) {
            for child in &old.children {
                let new = new.and_then(|new| new.child(&child.name));
                self.collect_removed(&path.child_unchecked(&child.name), child, new);
            }
        } else if let (None, Some(node)) = (new, path.parent()) {
            let mut policy = old.clone();
            path.name().clone_into(&mut policy.name);
            let holder = self.0.entry(node).or_insert_with(|| Subtree::new("", HOLDER_TYPE));
            holder.put_child(policy);
        }
    }

    /// Writes the entries into the maps of the state that results from edits.
    pub(crate) fn stage(
        &self,
        head: &SnapshotView,
        edits: &RecordEdits,
        maps: &mut BTreeMap<String, SortedMap>,
        batch: &mut ChunkBatch,
    ) -> Result<()> {
        if self.0.is_empty() || head.repository_state.branch != MAIN_BRANCH {
            return Ok(());
        }
        let mut edited = head.clone();
        edited.record_edits = edits.clone();
        let edited = Snapshot::from_view(edited);
        let mut writes = BTreeMap::new();
        for (path, holder) in &self.0 {
            // A node whose policy alone was removed was opened. One that became a document of its own, or part of
            // another, still exists.
            if edited.node(path)?.is_none() {
                let record = ContentRecord::from_subtree(holder, OrderKey::default());
                let record = record.ok_or_else(|| damaged_entry_error(path))?;
                writes.insert(record_key::record_key(path)?, Some(record.encode(batch)?));
            }
        }
        if !writes.is_empty() {
            let map = maps.get(FORMER_POLICIES_MAP).copied().unwrap_or_default();
            let map = map.edit(head.repository_state.chunk_reader(), batch, writes)?;
            maps.insert(FORMER_POLICIES_MAP.to_owned(), map);
        }
        Ok(())
    }
}

impl AccessPolicyCache {
    /// Returns the policies of the newest state of `main` together with the former ones that apply to the state of a
    /// view; `None` if none do.
    pub(super) fn former_policies_for(
        &self,
        view: &SnapshotView,
        main: &Arc<AccessPolicies>,
        main_root: ChunkId,
    ) -> Result<Option<Arc<AccessPolicies>>> {
        if view.root_id == main_root {
            return Ok(None);
        }
        let reads = view.repository_state.chunk_reader();
        let own_map = StoreRoot::read(reads, &view.root_id)?.map(FORMER_POLICIES_MAP);
        let main_map = StoreRoot::read(reads, &main_root)?.map(FORMER_POLICIES_MAP);
        if own_map == main_map {
            return Ok(None);
        }
        let is_same = |cached: &&CachedFormerPolicies| {
            cached.own_map == own_map && cached.main_map == main_map && cached.main_id == main.id
        };
        if let Some(cached) = lock_ignoring_poison(&self.former_policies).iter().find(is_same) {
            return Ok(cached.policies.clone());
        }
        let mut former = BTreeMap::new();
        for change in own_map.diff(&main_map, reads) {
            let change = change?;
            let Some(stored) = change.right else { continue };
            let path = record_key::record_path(&change.key)?;
            let record =
                ContentRecord::decode(&stored).ok_or_else(|| damaged_entry_error(&path))?;
            let body = view.load_body(&record, &path)?;
            let holder = body.subtree(body.root());
            former.insert(path.clone(), AccessControlDocument::from_subtree(&path, &holder));
        }
        let policies = match former.is_empty() {
            true => None,
            false => Some(self.with_former_policies(main, former)?),
        };
        let mut cached = lock_ignoring_poison(&self.former_policies);
        if cached.len() >= MAX_CACHED_STATES {
            cached.remove(0);
        }
        cached.push(CachedFormerPolicies {
            own_map,
            main_map,
            main_id: main.id,
            policies: policies.clone(),
        });
        Ok(policies)
    }

    /// Returns policies in which former ones replace those of the same nodes.
    fn with_former_policies(
        &self,
        main: &AccessPolicies,
        former: BTreeMap<NodePath, AccessControlDocument>,
    ) -> Result<Arc<AccessPolicies>> {
        let mut documents = main.documents.clone();
        for document in documents.values_mut() {
            if document.controls_any(|node| former.contains_key(node)) {
                Arc::make_mut(document).retain_policies(|node| !former.contains_key(node));
            }
        }
        for (path, document) in former {
            let slot = documents.entry(record_key::record_key(&path)?).or_default();
            Arc::make_mut(slot).append_policies(document);
        }
        Ok(self.build_policies(documents))
    }
}

fn damaged_entry_error(path: &NodePath) -> Error {
    Error::Damaged { path: path.clone(), reason: "its former policies cannot be decoded" }
}
