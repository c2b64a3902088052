//! Check-in, check-out, labels, and the removal of versions.

use std::collections::BTreeSet;

use super::version_entry::{
    HistoryStatus, MAX_VERSIONED_PATH_BYTES, NodeVersion, StoredVersion, VersionHistory,
    VersionMapEntry, is_history_identifier, path_history_key, version_key,
};
use super::version_name::next_version_name;
use super::{CheckInOptions, CheckOutState, checked_in};
use crate::model::subtree::MIXIN_TYPES;
use crate::{
    Error, JcrDate, Node, NodePath, Privileges, Repository, Result, Session, Snapshot, Value,
    check_item_name,
};

/// The maximum length of a comment, because an entry must be small.
const MAX_VERSION_COMMENT_BYTES: usize = 4_096;
/// The maximum number of labels on one version.
const MAX_VERSION_LABELS: usize = 20;

/// Rejects a viewer without `jcr:versionManagement`, whether or not anything would change.
fn require_version_privilege(snapshot: &Snapshot, path: &NodePath) -> Result<()> {
    let privileges = Privileges::VERSION_MANAGEMENT;
    if snapshot.has_privileges(path, privileges)? {
        return Ok(());
    }
    Err(Error::AccessDenied { path: path.clone(), privilege: privileges.first_name() })
}

impl Session {
    /// Returns the editor of versions.
    pub fn versions(&mut self) -> VersionEditor<'_> {
        VersionEditor { session: self }
    }
}

/// Creates, labels, removes and restores versions in a session.
#[derive(Debug)]
pub struct VersionEditor<'a> {
    pub(super) session: &'a mut Session,
}

impl VersionEditor<'_> {
    /// Stores the current state of the node, pending edits included, as its next version; pending until the commit.
    ///
    /// Descendants that have records of their own (pages below a page) are not part of the version. If another session
    /// checks in the same node before the commit, the commit gives this version the next free name:
    /// [`Repository::check_in`] returns the final one. A node that is already checked in keeps its version.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::InvalidEdit`] for [`CheckOutState::CheckedIn`] of a node that is not
    /// `mix:versionable`, or if the path or comment is too long.
    pub fn check_in(
        &mut self,
        path: &NodePath,
        check_in: &CheckInOptions<'_>,
    ) -> Result<NodeVersion> {
        let refused =
            |reason| Error::InvalidEdit { action: "check in", path: path.clone(), reason };
        if !self.session.snapshot()?.can_see_versions(path)? {
            return Err(Error::NodeMissing(path.clone()));
        }
        let snapshot = self.session.unrestricted_snapshot()?;
        let node = snapshot.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        if check_in.comment.len() > MAX_VERSION_COMMENT_BYTES {
            return Err(refused("its comment is longer than 4,096 bytes"));
        }
        if path.as_str().len() > MAX_VERSIONED_PATH_BYTES {
            return Err(refused("its path is longer than 900 bytes"));
        }
        if check_in.check_out_state == CheckOutState::CheckedIn {
            if !is_versionable(&node) {
                return Err(refused("it is not `mix:versionable`"));
            }
            require_version_privilege(&self.session.snapshot()?, path)?;
            let versions = snapshot.versions(path)?;
            if checked_in::is_checked_in(&node)
                && let Some(base) = versions.into_iter().find(|version| version.is_base)
            {
                return Ok(base);
            }
        }
        let id = match snapshot.history_at(path)? {
            Some(id) => id,
            None => new_history_name(&node)?,
        };
        let began =
            VersionHistory { last_number: 0, base_version: String::new(), path: path.clone() };
        let history = snapshot.view.version_history(&id)?.unwrap_or(began);
        let (was_at, predecessor) = (history.path, history.base_version);
        let name = next_version_name(&predecessor, |name| {
            Ok(snapshot.view.stored_version(&id, name)?.is_some())
        })?;
        let stored_version = StoredVersion {
            number: history.last_number + 1,
            path: path.clone(),
            inner_depth: path.depth() - node.record_path().depth(),
            created_at: JcrDate::from_system_time(check_in.created_at),
            user: self.session.user().to_owned(),
            comment: check_in.comment.to_owned(),
            predecessor,
            labels: BTreeSet::new(),
            body: node.record().body.clone(),
        };
        let version = stored_version.to_version(&id, &name, Some(&name));
        drop((node, snapshot));
        let history = VersionHistory {
            last_number: stored_version.number,
            base_version: name.clone(),
            path: path.clone(),
        };
        let edits = &mut self.session.pending_view_mut().version_edits;
        edits.insert(path_history_key(&was_at, &id), None);
        edits.insert(version_key(&id, &name), Some(VersionMapEntry::Version(stored_version)));
        edits.insert(version_key(&id, ""), Some(VersionMapEntry::History(history)));
        edits.insert(
            path_history_key(path, &id),
            Some(VersionMapEntry::PathHistory(HistoryStatus::Current)),
        );
        if check_in.check_out_state == CheckOutState::CheckedIn {
            self.session.set_property(
                path,
                checked_in::IS_CHECKED_OUT,
                Value::Boolean(false).into(),
            )?;
            self.session.record_restored(path);
        }
        Ok(version)
    }

    /// Checks out a node, so that it can be changed again.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::InvalidEdit`] if the node is not `mix:versionable`; [`Error::AccessDenied`]
    /// without `jcr:versionManagement`, whether or not it is checked in.
    pub fn check_out(&mut self, path: &NodePath) -> Result<()> {
        let node = self.session.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        if !is_versionable(&node) {
            let reason = "it is not `mix:versionable`";
            return Err(Error::InvalidEdit { action: "check out", path: path.clone(), reason });
        }
        require_version_privilege(&self.session.snapshot()?, path)?;
        if !checked_in::is_checked_in(&node) {
            return Ok(());
        }
        self.session.set_property(path, checked_in::IS_CHECKED_OUT, Value::Boolean(true).into())
    }

    /// Stores the current state of the node as a version, unless its newest version is equal (except for replication
    /// properties) or its path is too long for versions.
    ///
    /// # Errors
    /// As [`VersionEditor::check_in`].
    pub fn create_version_if_changed(
        &mut self,
        path: &NodePath,
        check_in: &CheckInOptions<'_>,
    ) -> Result<Option<NodeVersion>> {
        if path.as_str().len() > MAX_VERSIONED_PATH_BYTES {
            return Ok(None);
        }
        let snapshot = self.session.unrestricted_snapshot()?;
        if let Some(last) = snapshot.versions(path)?.last() {
            let node = snapshot.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
            let is_stored_alike = last.body_id().is_some() && last.body_id() == node.body_id();
            let (last_version, now) = (snapshot.read_version(last)?, node.read_own_subtree()?);
            if is_stored_alike
                || checked_in::is_same_content(
                    &last_version,
                    &now,
                    checked_in::NestedVersionables::Compared,
                )
            {
                return Ok(None);
            }
        }
        drop(snapshot);
        self.check_in(path, check_in).map(Some)
    }

    /// Adds a label to a version. Depending on the conflict policy, another version of the node that has the label
    /// keeps it or loses it to this one.
    ///
    /// # Errors
    /// [`Error::VersionMissing`]; [`Error::InvalidName`] for the label; [`Error::InvalidEdit`] if another version keeps
    /// it.
    pub fn add_label(
        &mut self,
        path: &NodePath,
        version: &str,
        label: &str,
        label_conflict: LabelConflictPolicy,
    ) -> Result<()> {
        check_item_name(label)?;
        let refused = |reason| Error::InvalidEdit { action: "label", path: path.clone(), reason };
        let snapshot = self.session.snapshot()?;
        let version = snapshot.version(path, version)?;
        if version.labels.len() >= MAX_VERSION_LABELS {
            return Err(refused("the version already has 20 labels"));
        }
        let versions = snapshot.versions(path)?;
        let holder = versions
            .iter()
            .find(|candidate| candidate.labels.iter().any(|version_label| version_label == label));
        if let Some(holder) = holder {
            if holder.name == version.name {
                return Ok(());
            }
            if label_conflict == LabelConflictPolicy::Refuse {
                return Err(refused(
                    "another version of the node already has this label; move the label",
                ));
            }
            self.update_labels(holder, |labels| _ = labels.remove(label));
        }
        self.update_labels(&version, |labels| _ = labels.insert(label.to_owned()));
        Ok(())
    }

    /// Removes a label from the version of the node that has it; returns true if one had it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn remove_label(&mut self, path: &NodePath, label: &str) -> Result<bool> {
        let versions = self.session.snapshot()?.versions(path)?;
        let holder = versions
            .iter()
            .find(|candidate| candidate.labels.iter().any(|version_label| version_label == label));
        if let Some(holder) = holder {
            self.update_labels(holder, |labels| _ = labels.remove(label));
        }
        Ok(holder.is_some())
    }

    fn update_labels(&mut self, version: &NodeVersion, change: impl FnOnce(&mut BTreeSet<String>)) {
        let mut stored_version = version.stored_version.clone();
        change(&mut stored_version.labels);
        let key = version_key(&version.history_id, &version.name);
        self.session
            .pending_view_mut()
            .version_edits
            .insert(key, Some(VersionMapEntry::Version(stored_version)));
    }

    /// Removes a version. If the node was based on it, the node is then based on its predecessor.
    ///
    /// # Errors
    /// [`Error::VersionMissing`].
    pub fn remove_version(&mut self, path: &NodePath, version: &str) -> Result<()> {
        let version = self.session.snapshot()?.version(path, version)?;
        self.remove_version_entries(&version)
    }

    /// Removes the entries of a version, and with the last version also those of its history.
    pub(super) fn remove_version_entries(&mut self, version: &NodeVersion) -> Result<()> {
        let NodeVersion { history_id, name, .. } = version;
        let view = self.session.unrestricted_snapshot()?.view;
        let others = view.history_versions(history_id)?;
        let stored_history = view.version_history(history_id)?;
        // Other versions may have been removed since this one was read.
        let own = view.stored_version(history_id, name)?;
        drop(view);
        let edits = &mut self.session.pending_view_mut().version_edits;
        edits.insert(version_key(history_id, name), None);
        let mut others = others.into_iter().filter(|candidate| candidate.name != *name).peekable();
        if others.peek().is_none() {
            edits.insert(version_key(history_id, ""), None);
            if let Some(history) = stored_history {
                edits.insert(path_history_key(&history.path, history_id), None);
            }
            return Ok(());
        }
        let before = own.map(|own| own.predecessor).unwrap_or_default();
        for mut remaining_version in others {
            if remaining_version.stored_version.predecessor == *name {
                remaining_version.stored_version.predecessor.clone_from(&before);
                edits.insert(
                    version_key(history_id, &remaining_version.name),
                    Some(VersionMapEntry::Version(remaining_version.stored_version)),
                );
            }
        }
        if let Some(history) = stored_history.filter(|history| history.base_version == *name) {
            let history = VersionHistory { base_version: before, ..history };
            edits.insert(version_key(history_id, ""), Some(VersionMapEntry::History(history)));
        }
        Ok(())
    }
}

impl Repository {
    /// Checks in the current state of a node as its next version, in a separate commit.
    ///
    /// # Errors
    /// As [`VersionEditor::check_in`]; errors of the commit.
    pub fn check_in(
        &self,
        user: &str,
        path: &NodePath,
        check_in: &CheckInOptions<'_>,
    ) -> Result<NodeVersion> {
        let mut session = self.session(user)?;
        let pending = session.versions().check_in(path, check_in)?;
        session.commit(&format!("check in {path}"), check_in.created_at)?;
        let versions = session.snapshot()?.view.history_versions(&pending.history_id)?;
        // The commit may have assigned a later name, so the newest version with this user, time and document is taken.
        let is_it = |version: &NodeVersion| {
            version.user == pending.user
                && version.stored_version.created_at == pending.stored_version.created_at
                && version.comment == pending.comment
        };
        Ok(versions.into_iter().rfind(is_it).unwrap_or(pending))
    }
}

/// Returns a name for the history of a node that has none: its identifier, otherwise its path, with a number if a node
/// that was moved away from the path has that name.
fn new_history_name(node: &Node) -> Result<String> {
    if let Some(identifier) =
        node.text("jcr:uuid").filter(|identifier_text| is_history_identifier(identifier_text))
    {
        return Ok(identifier);
    }
    let path = node.path().as_str();
    let mut id = path.to_owned();
    let mut number = 1;
    while node.snapshot().view.version_history(&id)?.is_some() {
        number += 1;
        // Names cannot contain `|`, so this is not the path of another node.
        id = format!("{path}|{number}");
    }
    Ok(id)
}

/// The treatment of a label that another version of the node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelConflictPolicy {
    /// The label stays at the other version, and the call fails.
    Refuse,
    /// The label is moved.
    Move,
}

/// Returns true if JCR's check-in works on a node.
fn is_versionable(node: &Node) -> bool {
    let mixins = node.property(MIXIN_TYPES);
    mixins.as_ref().is_some_and(checked_in::has_versionable_mixin)
}
