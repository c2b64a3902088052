//! Reading versions: the versions of a node, their content, and deleted nodes that still have versions.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tympan_store::{ChunkId, SortedMap, StoreRoot};

use super::version_entry::{
    HistoryStatus, NodeVersion, StoredVersion, VERSIONS_MAP, VersionHistory, VersionKeyRange,
    VersionMapEntry, VersionMapKey, is_history_identifier, is_path_history, parse_version_key,
    version_key,
};
use crate::document::record::ContentRecord;
use crate::snapshot::SnapshotView;
use crate::{Error, LookupIndex, NodePath, Result, Snapshot, Subtree, document::record_key};

/// A deleted node that still has versions.
#[derive(Debug, Clone)]
pub struct DeletedNode {
    /// The last path of the node.
    pub path: NodePath,
    /// Its versions, in the order of their creation.
    pub versions: Vec<NodeVersion>,
}

impl SnapshotView {
    /// Returns the stored map of versions, without pending edits.
    pub(crate) fn version_map(&self) -> Result<SortedMap> {
        Ok(StoreRoot::read(self.repository_state.chunk_reader(), &self.root_id)?.map(VERSIONS_MAP))
    }

    /// Reads an entry of the map of versions; pending edits take precedence.
    pub(super) fn version_entry(&self, key: &[u8]) -> Result<Option<VersionMapEntry>> {
        if let Some(edit) = self.version_edits.get(key) {
            return Ok(edit.clone());
        }
        let stored = self.version_map()?.get(self.repository_state.chunk_reader(), key)?;
        stored.map(|stored| VersionMapEntry::decode(key, &stored)).transpose()
    }

    /// Returns true if a version history was ever kept at a path or below it.
    pub(crate) fn has_history_within(&self, path: &NodePath) -> Result<bool> {
        Ok(!self.version_entries(&VersionKeyRange::at_path(path))?.is_empty()
            || !self.version_entries(&VersionKeyRange::below_path(path))?.is_empty())
    }

    /// Reads the entries of a range, pending edits applied, sorted by key.
    pub(super) fn version_entries(
        &self,
        range: &VersionKeyRange,
    ) -> Result<Vec<(Vec<u8>, VersionMapEntry)>> {
        let mut slots = BTreeMap::new();
        for entry in self.version_map()?.range(self.repository_state.chunk_reader(), range.bounds())
        {
            let (key, stored) = entry?;
            if !self.version_edits.contains_key(&*key) {
                slots.insert(key.to_vec(), VersionMapEntry::decode(&key, &stored)?);
            }
        }
        for (key, edit) in
            self.version_edits.range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>(range.bounds())
        {
            if let Some(slot) = edit {
                slots.insert(key.clone(), slot.clone());
            }
        }
        Ok(slots.into_iter().collect())
    }

    /// Reads the history with a given id.
    pub(crate) fn version_history(&self, id: &str) -> Result<Option<VersionHistory>> {
        Ok(match self.version_entry(&version_key(id, ""))? {
            Some(VersionMapEntry::History(history)) => Some(history),
            _ => None,
        })
    }

    /// Reads a version.
    pub(super) fn stored_version(
        &self,
        history: &str,
        name: &str,
    ) -> Result<Option<StoredVersion>> {
        Ok(match self.version_entry(&version_key(history, name))? {
            Some(VersionMapEntry::Version(version)) => Some(version),
            _ => None,
        })
    }

    /// Reads the versions of a history in the order of their creation.
    pub(super) fn history_versions(&self, history: &str) -> Result<Vec<NodeVersion>> {
        let base = self.version_history(history)?.map(|history| history.base_version);
        let mut versions = Vec::new();
        for (key, slot) in self.version_entries(&VersionKeyRange::of_history(history))? {
            if let (VersionMapEntry::Version(stored_version), VersionMapKey::Version { name, .. }) =
                (slot, parse_version_key(&key)?)
            {
                versions.push(stored_version.to_version(history, name, base.as_deref()));
            }
        }
        versions.sort_by_key(|version| version.stored_version.number);
        Ok(versions)
    }
}

impl Snapshot {
    /// Returns the versions of the node at a path, or of the last node there, in the order of their creation. Pending
    /// check-ins of a session are included.
    ///
    /// # Errors
    /// If the store fails.
    pub fn versions(&self, path: &NodePath) -> Result<Vec<NodeVersion>> {
        match self.history_at(path)? {
            Some(history) if self.can_see_versions(path)? => self.view.history_versions(&history),
            _ => Ok(Vec::new()),
        }
    }

    /// Finds a version of the node at a path by its name or a label.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find_version(&self, path: &NodePath, name: &str) -> Result<Option<NodeVersion>> {
        let versions = self.versions(path)?;
        let has_label = |version: &NodeVersion| version.labels.iter().any(|label| label == name);
        let named_version = versions.iter().find(|version| version.name == name);
        Ok(named_version.or_else(|| versions.iter().find(|version| has_label(version))).cloned())
    }

    /// Returns a version of the node at a path by its name or a label.
    ///
    /// # Errors
    /// [`Error::VersionMissing`].
    pub fn version(&self, path: &NodePath, name: &str) -> Result<NodeVersion> {
        let missing = || Error::VersionMissing { path: path.clone(), name: name.to_owned() };
        self.find_version(path, name)?.ok_or_else(missing)
    }

    /// Decodes the content of a version: the node with all descendants that have no record of their own.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if the viewer does not see the node; [`Error::Damaged`]; errors of the store.
    pub fn read_version(&self, version: &NodeVersion) -> Result<Subtree> {
        let NodeVersion { stored_version, path, .. } = version;
        let body = self.view.load_body(&stored_version.to_record(), path)?;
        let tree = self.visible_version(version, &body)?;
        let mut tree = tree.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        path.name().clone_into(&mut tree.name);
        Ok(tree)
    }

    /// Returns this state with a node replaced by one of its versions, at the node's current path, as shown for
    /// `;v=1.0`.
    ///
    /// # Errors
    /// [`Error::VersionMissing`]; [`Error::NodeMissing`] if the node is inside a document that no longer exists; errors
    /// of the store.
    pub fn with_version(&self, path: &NodePath, name: &str) -> Result<Self> {
        let version = self.version(path, name)?;
        // The access gate of this state also applies to the result.
        let whole = self.unrestricted();
        let whole_version = whole.read_version(&version)?;
        let mut tree = whole_version.clone();
        self.remove_formerly_closed(path, &whole_version, &mut tree)?;
        let mut view = SnapshotView::clone(&self.view);
        let node = whole.node(path)?;
        let is_document = node.as_ref().is_none_or(|node| node.record_path() == path);
        let (owner, order, tree) = match node {
            Some(node) if !is_document => {
                let owner = node.record_path().clone();
                let top = whole.node(&owner)?.ok_or_else(|| Error::NodeMissing(owner.clone()))?;
                let mut document = top.read_own_subtree()?;
                let relative = path.relative_to(&owner).unwrap_or_default();
                if let Some(inner) = document.find_descendant_mut(relative) {
                    *inner = tree;
                }
                (owner, top.record().order_key.clone(), document)
            }
            node => {
                let order = node.map(|node| node.record().order_key.clone());
                (path.clone(), order.unwrap_or_default(), tree)
            }
        };
        let record =
            ContentRecord::from_subtree(&tree, order).ok_or_else(|| Error::InvalidEdit {
                action: "show",
                path: path.clone(),
                reason: "it is nested too deeply",
            })?;
        view.put_record(record_key::record_key(&owner)?, Some(Arc::new(record)))?;
        Ok(Self { view: Arc::new(view), access_gate: self.access_gate.clone() })
    }

    /// Returns the deleted nodes at or below a path that still have versions, by path.
    ///
    /// # Errors
    /// If the store fails.
    pub fn deleted_nodes(&self, below: &NodePath) -> Result<Vec<DeletedNode>> {
        let mut entries = self.view.version_entries(&VersionKeyRange::at_path(below))?;
        entries.extend(self.view.version_entries(&VersionKeyRange::below_path(below))?);
        let mut deleted = Vec::new();
        for (key, slot) in entries {
            let (
                VersionMapKey::PathHistory { path, history },
                VersionMapEntry::PathHistory(status),
            ) = (parse_version_key(&key)?, slot)
            else {
                continue;
            };
            let path = NodePath::new(path)?;
            if !self.can_see_versions(&path)? || !self.is_deleted(&path, history, status)? {
                continue;
            }
            let versions = self.view.history_versions(history)?;
            if !versions.is_empty() {
                deleted.push(DeletedNode { path, versions });
            }
        }
        Ok(deleted)
    }

    /// Returns true if the node of a history is deleted.
    pub(super) fn is_deleted(
        &self,
        path: &NodePath,
        history: &str,
        status: HistoryStatus,
    ) -> Result<bool> {
        if status == HistoryStatus::Ended {
            return Ok(true);
        }
        let whole = self.unrestricted();
        if is_path_history(history) {
            return Ok(whole.node(path)?.is_none());
        }
        let has_identifier = |path: &NodePath| -> Result<bool> {
            let identifier = whole.node(path)?.and_then(|node| node.text("jcr:uuid"));
            Ok(identifier.as_deref() == Some(history))
        };
        if has_identifier(path)? {
            return Ok(false);
        }
        for elsewhere in whole.look_up_paths(LookupIndex::Uuid, history)? {
            if has_identifier(&elsewhere)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the history of the node at a path, or of the last node there.
    pub(super) fn history_at(&self, path: &NodePath) -> Result<Option<String>> {
        let node = self.unrestricted().node(path)?;
        let identifier = node.as_ref().and_then(|node| node.text("jcr:uuid"));
        if let Some(identifier) = identifier.filter(|identifier| is_history_identifier(identifier))
            && self.view.version_history(&identifier)?.is_some()
        {
            return Ok(Some(identifier));
        }
        let mut last = None;
        for (key, slot) in self.view.version_entries(&VersionKeyRange::at_path(path))? {
            let VersionMapKey::PathHistory { history, .. } = parse_version_key(&key)? else {
                continue;
            };
            let is_ended = matches!(slot, VersionMapEntry::PathHistory(HistoryStatus::Ended));
            if is_path_history(history) && !is_ended {
                return Ok(Some(history.to_owned()));
            }
            if node.is_none() && !is_path_history(history) {
                let at =
                    self.view.history_versions(history)?.last().map(|version| version.created_at);
                last = last.max(at.map(|at| (at, history.to_owned())));
            }
        }
        Ok(last.map(|(_, history)| history))
    }
}

impl NodeVersion {
    /// Returns the hash of the document in the version; it is equal for equal documents.
    #[must_use]
    pub fn body_id(&self) -> Option<ChunkId> {
        self.stored_version.to_record().body_id()
    }
}
