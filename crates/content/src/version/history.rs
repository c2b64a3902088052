//! Reading versions: which there are of a node, what they hold, and which nodes are gone but for their versions.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tympan_store::{ChunkId, Map, Root};

use super::Version;
use super::entry::{
    History, Kept, Keys, Slot, Standing, Subject, VERSIONS, is_of_path, names_history, subject,
    version_key,
};
use crate::record::Record;
use crate::snapshot::View;
use crate::{Error, Index, NodePath, Result, Snapshot, Subtree, keys};

/// A node that is gone, with versions left.
#[derive(Debug, Clone)]
pub struct DeletedNode {
    /// Where it was.
    pub path: NodePath,
    /// Its versions, in the order in which they were kept.
    pub versions: Vec<Version>,
}

impl View {
    /// Returns the map of versions as it is stored.
    pub(crate) fn version_map(&self) -> Result<Map> {
        Ok(Root::read(self.shared.reads(), &self.root)?.map(VERSIONS))
    }

    /// Reads an entry of the map of versions, pending edits first.
    pub(super) fn slot(&self, key: &[u8]) -> Result<Option<Slot>> {
        if let Some(edit) = self.versions.get(key) {
            return Ok(edit.clone());
        }
        let stored = self.version_map()?.get(self.shared.reads(), key)?;
        stored.map(|stored| Slot::decode(key, &stored)).transpose()
    }

    /// Reads the entries of a range, pending edits applied, sorted by key.
    pub(super) fn slots(&self, range: &Keys) -> Result<Vec<(Vec<u8>, Slot)>> {
        let mut slots = BTreeMap::new();
        for entry in self.version_map()?.range(self.shared.reads(), range.bounds()) {
            let (key, stored) = entry?;
            if !self.versions.contains_key(&*key) {
                slots.insert(key.to_vec(), Slot::decode(&key, &stored)?);
            }
        }
        for (key, edit) in self.versions.range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>(range.bounds())
        {
            if let Some(slot) = edit {
                slots.insert(key.clone(), slot.clone());
            }
        }
        Ok(slots.into_iter().collect())
    }

    /// Reads what is known about a history.
    pub(super) fn history(&self, id: &str) -> Result<Option<History>> {
        Ok(match self.slot(&version_key(id, ""))? {
            Some(Slot::History(history)) => Some(history),
            _ => None,
        })
    }

    /// Reads a version.
    pub(super) fn kept(&self, history: &str, name: &str) -> Result<Option<Kept>> {
        Ok(match self.slot(&version_key(history, name))? {
            Some(Slot::Version(kept)) => Some(kept),
            _ => None,
        })
    }

    /// Reads the versions of a history in the order in which they were kept.
    pub(super) fn versions_of(&self, history: &str) -> Result<Vec<Version>> {
        let base = self.history(history)?.map(|history| history.base);
        let mut versions = Vec::new();
        for (key, slot) in self.slots(&Keys::of_history(history))? {
            if let (Slot::Version(kept), Subject::Version { name, .. }) = (slot, subject(&key)?) {
                versions.push(kept.version(history, name, base.as_deref()));
            }
        }
        versions.sort_by_key(|version| version.kept.number);
        Ok(versions)
    }
}

impl Snapshot {
    /// Returns the versions of the node at a path, or of the node that was there last, in the order in which they were
    /// kept. Pending check-ins of a session are among them.
    ///
    /// # Errors
    /// If the store fails.
    pub fn versions(&self, path: &NodePath) -> Result<Vec<Version>> {
        match self.history_at(path)? {
            Some(history) if self.shows(path)? => self.0.versions_of(&history),
            _ => Ok(Vec::new()),
        }
    }

    /// Finds a version of the node at a path by its name or a label.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find_version(&self, path: &NodePath, name: &str) -> Result<Option<Version>> {
        let versions = self.versions(path)?;
        let has_label = |version: &Version| version.labels.iter().any(|label| label == name);
        let found = versions.iter().find(|version| version.name == name);
        Ok(found.or_else(|| versions.iter().find(|version| has_label(version))).cloned())
    }

    /// Returns a version of the node at a path by its name or a label.
    ///
    /// # Errors
    /// [`Error::VersionMissing`].
    pub fn version(&self, path: &NodePath, name: &str) -> Result<Version> {
        let missing = || Error::VersionMissing { path: path.clone(), name: name.to_owned() };
        self.find_version(path, name)?.ok_or_else(missing)
    }

    /// Decodes what a version holds: the node with everything below it that has no record of its own.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] if the viewer does not see the node; [`Error::Damaged`]; errors of the store.
    pub fn read_version(&self, version: &Version) -> Result<Subtree> {
        let Version { kept, path, .. } = version;
        let body = self.0.body(&kept.record(), path)?;
        let tree = self.seen_of(version, &body)?;
        let mut tree = tree.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        path.name().clone_into(&mut tree.name);
        Ok(tree)
    }

    /// Returns this state with the node of a version as it was then, where it is now: what `;v=1.0` shows.
    ///
    /// # Errors
    /// [`Error::VersionMissing`]; [`Error::NodeMissing`] if the node is inside a document that is gone; errors of the
    /// store.
    pub fn at_version(&self, path: &NodePath, name: &str) -> Result<Self> {
        let version = self.version(path, name)?;
        // The gate of this state stands before what is shown, too.
        let whole = self.unbound();
        let tree = whole.read_version(&version)?;
        let mut view = View::clone(&self.0);
        let node = whole.node(path)?;
        let is_document = node.as_ref().is_none_or(|node| node.owner() == path);
        let (owner, order, tree) = match node {
            Some(node) if !is_document => {
                let owner = node.owner().clone();
                let top = whole.node(&owner)?.ok_or_else(|| Error::NodeMissing(owner.clone()))?;
                let mut document = top.read_own()?;
                let relative = path.relative_to(&owner).unwrap_or_default();
                if let Some(inner) = document.find_mut(relative) {
                    *inner = tree;
                }
                (owner, top.record().order.clone(), document)
            }
            node => {
                let order = node.map(|node| node.record().order.clone());
                (path.clone(), order.unwrap_or_default(), tree)
            }
        };
        let record = Record::of(&tree, order).ok_or_else(|| Error::Refused {
            action: "show",
            path: path.clone(),
            reason: "it is nested too deeply",
        })?;
        view.put(keys::key_of(&owner)?, Some(Arc::new(record)))?;
        Ok(Self(Arc::new(view), self.1.clone()))
    }

    /// Returns the nodes below a path (and the one at it) that are gone, but for their versions, by path.
    ///
    /// # Errors
    /// If the store fails.
    pub fn deleted_nodes(&self, below: &NodePath) -> Result<Vec<DeletedNode>> {
        let mut places = self.0.slots(&Keys::at(below))?;
        places.extend(self.0.slots(&Keys::below(below))?);
        let mut deleted = Vec::new();
        for (key, slot) in places {
            let (Subject::Place { path, history }, Slot::Place(standing)) = (subject(&key)?, slot)
            else {
                continue;
            };
            let path = NodePath::new(path)?;
            if !self.shows(&path)? || !self.is_gone(&path, history, standing)? {
                continue;
            }
            let versions = self.0.versions_of(history)?;
            if !versions.is_empty() {
                deleted.push(DeletedNode { path, versions });
            }
        }
        Ok(deleted)
    }

    /// Tells whether the node that a history is about is gone.
    pub(super) fn is_gone(
        &self,
        path: &NodePath,
        history: &str,
        standing: Standing,
    ) -> Result<bool> {
        if standing == Standing::Ended {
            return Ok(true);
        }
        let whole = self.unbound();
        if is_of_path(history) {
            return Ok(whole.node(path)?.is_none());
        }
        let has_identifier = |path: &NodePath| -> Result<bool> {
            let identifier = whole.node(path)?.and_then(|node| node.text("jcr:uuid"));
            Ok(identifier.as_deref() == Some(history))
        };
        if has_identifier(path)? {
            return Ok(false);
        }
        for elsewhere in whole.look_up(Index::Uuid, history)? {
            if has_identifier(&elsewhere)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the history of the node at a path, or of the one that was there last.
    pub(super) fn history_at(&self, path: &NodePath) -> Result<Option<String>> {
        let node = self.unbound().node(path)?;
        let identifier = node.as_ref().and_then(|node| node.text("jcr:uuid"));
        if let Some(identifier) = identifier.filter(|identifier| names_history(identifier))
            && self.0.history(&identifier)?.is_some()
        {
            return Ok(Some(identifier));
        }
        let mut last = None;
        for (key, slot) in self.0.slots(&Keys::at(path))? {
            let Subject::Place { history, .. } = subject(&key)? else { continue };
            let is_ended = matches!(slot, Slot::Place(Standing::Ended));
            if is_of_path(history) && !is_ended {
                return Ok(Some(history.to_owned()));
            }
            if node.is_none() && !is_of_path(history) {
                let at = self.0.versions_of(history)?.last().map(|version| version.at);
                last = last.max(at.map(|at| (at, history.to_owned())));
            }
        }
        Ok(last.map(|(_, history)| history))
    }
}

impl Version {
    /// Returns the hash of the document that the version holds: equal for equal documents.
    #[must_use]
    pub fn body_id(&self) -> Option<ChunkId> {
        self.kept.record().body_id()
    }
}
