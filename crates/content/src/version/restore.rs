//! Restoring from a version: a page, one of its components, or a deleted node.
//!
//! Everything in a version is restored except what is not part of it (JCR's OnParentVersion IGNORE): replication
//! properties, the node's access control, and nodes below it with records of their own. These stay unchanged.

use std::time::SystemTime;

use super::check_in::VersionEditor;
use super::version_entry::{
    HistoryStatus, NodeVersion, VersionHistory, VersionMapEntry, path_history_key, version_key,
};
use super::{CheckOutState, checked_in};
use crate::document::record::ContentRecord;
use crate::model::order_key::OrderKey;
use crate::{
    Error, JCR_CONTENT, JcrDate, LookupIndex, NodePath, Result, Session, SiblingPosition, Subtree,
    Value, document::record_key,
};

impl VersionEditor<'_> {
    /// Restores a node from one of its versions; pending until the commit. A deleted node is restored as the last of
    /// its siblings. The restore is recorded as the last modification.
    ///
    /// # Errors
    /// [`Error::VersionMissing`]; [`Error::NodeMissing`] for the parent of a deleted node; [`Error::InvalidEdit`] for
    /// [`CheckOutState::CheckedIn`] of a version that is not `mix:versionable`.
    pub fn restore_node(
        &mut self,
        path: &NodePath,
        version: &str,
        at: SystemTime,
        after: CheckOutState,
    ) -> Result<NodeVersion> {
        let version = self.session.snapshot()?.version(path, version)?;
        self.restore_version(&version, path, at, after)?;
        Ok(version)
    }

    /// Restores the node at `target` from a version, which may be of another node, such as a deleted one.
    ///
    /// # Errors
    /// As [`VersionEditor::restore_node`], without the lookup.
    pub fn restore_version(
        &mut self,
        version: &NodeVersion,
        target: &NodePath,
        at: SystemTime,
        after: CheckOutState,
    ) -> Result<()> {
        // The restore includes content hidden from the viewer, which the commit may reject.
        let snapshot = self.session.unrestricted_snapshot()?;
        let mut tree = snapshot.read_version(version)?;
        let now = snapshot.node(target)?.map(|node| node.read_own_subtree()).transpose()?;
        restore_ignored_items(&mut tree, now.as_ref());
        self.session.renew_conflicting_identifiers(&mut tree, target)?;
        match after {
            CheckOutState::CheckedIn if is_versionable_subtree(&tree) => {
                let is_out = Value::Boolean(false).into();
                tree.properties.insert(checked_in::IS_CHECKED_OUT.to_owned(), is_out);
            }
            CheckOutState::CheckedIn => {
                let reason = "it is not `mix:versionable`";
                return Err(Error::InvalidEdit { action: "restore", path: target.clone(), reason });
            }
            CheckOutState::CheckedOut if is_versionable_subtree(&tree) && now.is_none() => {
                let is_out = Value::Boolean(true).into();
                tree.properties.insert(checked_in::IS_CHECKED_OUT.to_owned(), is_out);
            }
            CheckOutState::CheckedOut => {}
        }
        stamp_modification(&mut tree, self.session.user(), at);
        drop(snapshot);
        self.put_own_record(target, tree)?;
        self.session.record_restored(target);
        self.set_base_version(version, target)
    }

    /// Restores one component of a version: the node at `relative` below the versioned one, at the same relative path
    /// below `path`, after the sibling that it follows in the version.
    ///
    /// # Errors
    /// [`Error::VersionMissing`]; [`Error::NodeMissing`] if the version has no such node, or the page no parent for it.
    pub fn restore_component(
        &mut self,
        path: &NodePath,
        version: &str,
        relative: &str,
        at: SystemTime,
    ) -> Result<NodePath> {
        let version = self.session.snapshot()?.version(path, version)?;
        let whole = self.session.unrestricted_snapshot()?.read_version(&version)?;
        let target = relative
            .split('/')
            .filter(|name| !name.is_empty())
            .try_fold(path.clone(), |path, name| path.child(name))?;
        let missing = || Error::NodeMissing(target.clone());
        if self.session.snapshot()?.read_version(&version)?.find_descendant(relative).is_none() {
            return Err(missing());
        }
        let mut tree = whole.find_descendant(relative).cloned().ok_or_else(missing)?;
        let snapshot = self.session.unrestricted_snapshot()?;
        let now = snapshot.node(&target)?.map(|node| node.read_own_subtree()).transpose()?;
        restore_ignored_items(&mut tree, now.as_ref());
        drop(snapshot);
        if target == *path {
            return Err(Error::InvalidEdit {
                action: "restore a part of",
                path: target,
                reason: "the part is the whole node; restore the version instead",
            });
        }
        let is_new = self.session.node(&target)?.is_none();
        self.session.renew_conflicting_identifiers(&mut tree, &target)?;
        stamp_modification(&mut tree, self.session.user(), at);
        self.session.put_node(&target, tree)?;
        let parent =
            relative.trim_end_matches('/').rsplit_once('/').map_or("", |(parent, _)| parent);
        if let Some(siblings) = whole.find_descendant(parent).filter(|_| is_new) {
            self.restore_sibling_position(siblings, &target)?;
        }
        Ok(target)
    }

    /// Moves a node after the nearest sibling that precedes it in another state of its parent.
    fn restore_sibling_position(&mut self, siblings: &Subtree, path: &NodePath) -> Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        let is_it = |child: &Subtree| child.name == path.name();
        let own = siblings.children.iter().position(is_it).unwrap_or_default();
        let mut position = SiblingPosition::First;
        for sibling in siblings.children.iter().take(own).rev() {
            if self.session.node(&parent.child_unchecked(&sibling.name))?.is_some() {
                position = SiblingPosition::After(sibling.name.clone());
                break;
            }
        }
        match self.session.reorder_node(path, &position) {
            // Siblings listed by name have no position to restore.
            Err(Error::InvalidEdit { .. }) => Ok(()),
            done => done,
        }
    }

    /// Puts the part of a node that belongs to its own record; descendants with records of their own stay.
    fn put_own_record(&mut self, path: &NodePath, mut tree: Subtree) -> Result<()> {
        let old =
            self.session.pending_view_mut().read_record(&record_key::record_key(path)?, path)?;
        let Some(old) = old else {
            return self.session.put_node(path, tree);
        };
        if old.summary.primary_type() != tree.primary_type() {
            // The type decides what has a record of its own, so the whole node is written again.
            let node = self
                .session
                .unrestricted_snapshot()?
                .node(path)?
                .ok_or_else(|| Error::NodeMissing(path.clone()))?;
            for child in node.listed_children()? {
                if tree.child(child.name()).is_none() {
                    tree.children.push(child.read_subtree()?);
                }
            }
            drop(node);
            return self.session.put_node(path, tree);
        }
        let too_deep = Error::InvalidEdit {
            action: "restore",
            path: path.clone(),
            reason: "it is nested too deeply",
        };
        let order: OrderKey = old.order_key.clone();
        self.session.write_record(path, ContentRecord::from_subtree(&tree, order).ok_or(too_deep)?)
    }

    /// Records the version on which a node is now based, and continues the version's history if the node had none.
    fn set_base_version(&mut self, version: &NodeVersion, target: &NodePath) -> Result<()> {
        let current = self.session.unrestricted_snapshot()?.history_at(target)?;
        let is_gone_elsewhere = || version.path == *target;
        if current.as_deref() != Some(&*version.history_id)
            && !(current.is_none() && is_gone_elsewhere())
        {
            return Ok(());
        }
        let NodeVersion { history_id, name, .. } = version;
        let view = self.session.pending_view_mut();
        if let Some(stored_history) = view.version_history(history_id)? {
            let history = VersionHistory {
                base_version: name.clone(),
                path: target.clone(),
                last_number: stored_history.last_number,
            };
            view.version_edits
                .insert(version_key(history_id, ""), Some(VersionMapEntry::History(history)));
            view.version_edits.insert(
                path_history_key(target, history_id),
                Some(VersionMapEntry::PathHistory(HistoryStatus::Current)),
            );
        }
        Ok(())
    }
}

impl Session {
    /// Assigns new identifiers to nodes of a tree if nodes outside of `target` have the same ones.
    pub(crate) fn renew_conflicting_identifiers(
        &mut self,
        tree: &mut Subtree,
        target: &NodePath,
    ) -> Result<()> {
        if let Some(identifier) = tree.text("jcr:uuid").map(str::to_owned) {
            let snapshot = self.unrestricted_snapshot()?;
            for holder_path in snapshot.look_up_paths(LookupIndex::Uuid, &identifier)? {
                let holder = snapshot.node(&holder_path)?;
                let has_it = holder.and_then(|node| node.text("jcr:uuid"));
                if !holder_path.is_within(target) && has_it.as_deref() == Some(&*identifier) {
                    let new = uuid::Uuid::new_v4().to_string();
                    tree.properties.insert("jcr:uuid".to_owned(), (&*new).into());
                    break;
                }
            }
        }
        tree.children
            .iter_mut()
            .try_for_each(|child| self.renew_conflicting_identifiers(child, target))
    }
}

/// Restores what versions ignore in a tree from the current node; such items of the version are dropped.
fn restore_ignored_items(tree: &mut Subtree, now: Option<&Subtree>) {
    tree.properties.retain(|name, _| !checked_in::is_ignored_property(name));
    tree.children.retain(|child| !checked_in::is_ignored_child(&child.name));
    if let Some(now) = now {
        let ignored =
            now.properties.iter().filter(|(name, _)| checked_in::is_ignored_property(name));
        tree.properties.extend(ignored.map(|(name, value)| (name.clone(), value.clone())));
        let ignored = now.children.iter().filter(|child| checked_in::is_ignored_child(&child.name));
        tree.children.extend(ignored.cloned());
    }
    for child in &mut tree.children {
        if !checked_in::is_ignored_child(&child.name) {
            restore_ignored_items(child, now.and_then(|now| now.child(&child.name)));
        }
    }
}

/// Records the restore as the last modification on nodes that track modifications.
fn stamp_modification(tree: &mut Subtree, user: &str, at: SystemTime) {
    let date = Value::Date(JcrDate::from_system_time(at));
    let is_there = tree.child(JCR_CONTENT).is_some();
    let target_node = if is_there { tree.child_mut(JCR_CONTENT) } else { Some(tree) };
    let Some(target_node) = target_node else { return };
    for prefix in ["cq", "jcr"] {
        if let Some(changed) = target_node.properties.get_mut(&format!("{prefix}:lastModified")) {
            *changed = date.clone().into();
            let by = format!("{prefix}:lastModifiedBy");
            target_node.properties.insert(by, user.into());
        }
    }
}

fn is_versionable_subtree(tree: &Subtree) -> bool {
    let mixins = tree.properties.get(crate::MIXIN_TYPES);
    mixins.is_some_and(checked_in::has_versionable_mixin)
}
