//! Restoring: a page as a version holds it, one of its components, or a node that is gone.
//!
//! Of a version comes everything but what is no part of it (JCR's OnParentVersion IGNORE): what replication noted, the
//! node's access control, and nodes below it with records of their own. These stay as they are.

use std::time::SystemTime;

use super::entry::{History, Slot, Standing, place_key, version_key};
use super::{After, Version, closed};
use crate::order::OrderKey;
use crate::record::Record;
use crate::{
    Date, Error, Index, JCR_CONTENT, NodePath, Place, Result, Session, Subtree, Value, keys,
};

impl Session {
    /// Makes a node as one of its versions holds it; pending until the commit. A node that is gone comes back, last
    /// among its siblings. What the last change was is noted anew: this one.
    ///
    /// # Errors
    /// [`Error::VersionMissing`]; [`Error::NodeMissing`] for the parent of a node that is gone; [`Error::Refused`] for
    /// [`After::CheckedIn`] of a version that is not `mix:versionable`.
    pub fn restore(
        &mut self,
        path: &NodePath,
        version: &str,
        at: SystemTime,
        after: After,
    ) -> Result<Version> {
        let version = self.snapshot()?.version(path, version)?;
        self.restore_version(&version, path, at, after)?;
        Ok(version)
    }

    /// Makes the node at `target` as a version holds it, also one of another node, such as of one that is gone.
    ///
    /// # Errors
    /// As [`Session::restore`], without the look-up.
    pub fn restore_version(
        &mut self,
        version: &Version,
        target: &NodePath,
        at: SystemTime,
        after: After,
    ) -> Result<()> {
        // Whoever restores: what is hidden from a viewer is restored too, which the commit may refuse.
        let snapshot = self.whole()?;
        let mut tree = snapshot.read_version(version)?;
        let now = snapshot.node(target)?.map(|node| node.read_own()).transpose()?;
        keep_ignored(&mut tree, now.as_ref());
        self.renew_taken(&mut tree, target)?;
        match after {
            After::CheckedIn if is_versionable(&tree) => {
                let is_out = Value::Boolean(false).into();
                tree.properties.insert(closed::IS_CHECKED_OUT.to_owned(), is_out);
            }
            After::CheckedIn => {
                let reason = "it is not `mix:versionable`";
                return Err(Error::Refused { action: "restore", path: target.clone(), reason });
            }
            After::CheckedOut if is_versionable(&tree) && now.is_none() => {
                let is_out = Value::Boolean(true).into();
                tree.properties.insert(closed::IS_CHECKED_OUT.to_owned(), is_out);
            }
            After::CheckedOut => {}
        }
        stamp(&mut tree, self.user(), at);
        drop(snapshot);
        self.put_own(target, tree)?;
        self.restored(target);
        self.base_on(version, target)
    }

    /// Puts one component of a version back: the node at `relative` below the versioned one, at the same place below
    /// `path`, behind the sibling that it follows in the version.
    ///
    /// # Errors
    /// [`Error::VersionMissing`]; [`Error::NodeMissing`] if the version has no such node, or the page no parent for it.
    pub fn restore_part(
        &mut self,
        path: &NodePath,
        version: &str,
        relative: &str,
        at: SystemTime,
    ) -> Result<NodePath> {
        let version = self.snapshot()?.version(path, version)?;
        let whole = self.whole()?.read_version(&version)?;
        let target = relative
            .split('/')
            .filter(|name| !name.is_empty())
            .try_fold(path.clone(), |path, name| path.child(name))?;
        let missing = || Error::NodeMissing(target.clone());
        let mut tree = whole.find(relative).cloned().ok_or_else(missing)?;
        if target == *path {
            return Err(Error::Refused {
                action: "restore a part of",
                path: target,
                reason: "the part is the whole; restore the version",
            });
        }
        let is_new = self.node(&target)?.is_none();
        self.renew_taken(&mut tree, &target)?;
        stamp(&mut tree, self.user(), at);
        self.put(&target, tree)?;
        let parent =
            relative.trim_end_matches('/').rsplit_once('/').map_or("", |(parent, _)| parent);
        if let Some(siblings) = whole.find(parent).filter(|_| is_new) {
            self.place_as_in(siblings, &target)?;
        }
        Ok(target)
    }

    /// Puts a node behind the nearest sibling in front of it in another state of its parent.
    fn place_as_in(&mut self, siblings: &Subtree, path: &NodePath) -> Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        let is_it = |child: &Subtree| child.name == path.name();
        let own = siblings.children.iter().position(is_it).unwrap_or_default();
        let mut place = Place::First;
        for sibling in siblings.children.iter().take(own).rev() {
            if self.node(&parent.child_unchecked(&sibling.name))?.is_some() {
                place = Place::After(sibling.name.clone());
                break;
            }
        }
        match self.order(path, &place) {
            // Where siblings are listed by name, there is no place to take.
            Err(Error::Refused { .. }) => Ok(()),
            done => done,
        }
    }

    /// Puts the part of a node that belongs to its own record; what has records of its own below it stays.
    fn put_own(&mut self, path: &NodePath, mut tree: Subtree) -> Result<()> {
        let old = self.edits().record(&keys::key_of(path)?, path)?;
        let Some(old) = old else {
            return self.put(path, tree);
        };
        if old.summary.primary_type() != tree.primary_type() {
            // The type decides what has a record of its own: the whole is put anew.
            let node = self.whole()?.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
            for child in node.listed_children()? {
                if tree.child(child.name()).is_none() {
                    tree.children.push(child.read()?);
                }
            }
            drop(node);
            return self.put(path, tree);
        }
        let too_deep = Error::Refused {
            action: "restore",
            path: path.clone(),
            reason: "it is nested too deeply",
        };
        let order: OrderKey = old.order.clone();
        self.write(path, Record::of(&tree, order).ok_or(too_deep)?)
    }

    /// Gives nodes of a tree new identifiers where nodes outside of `target` have theirs.
    pub(crate) fn renew_taken(&mut self, tree: &mut Subtree, target: &NodePath) -> Result<()> {
        if let Some(identifier) = tree.text("jcr:uuid").map(str::to_owned) {
            let snapshot = self.whole()?;
            for other in snapshot.look_up(Index::Uuid, &identifier)? {
                let holder = snapshot.node(&other)?;
                let has_it = holder.and_then(|node| node.text("jcr:uuid"));
                if !other.is_within(target) && has_it.as_deref() == Some(&*identifier) {
                    let new = uuid::Uuid::new_v4().to_string();
                    tree.properties.insert("jcr:uuid".to_owned(), (&*new).into());
                    break;
                }
            }
        }
        tree.children.iter_mut().try_for_each(|child| self.renew_taken(child, target))
    }

    /// Notes that a node is based on a version now, and goes on with its history if it had none.
    fn base_on(&mut self, version: &Version, target: &NodePath) -> Result<()> {
        let current = self.whole()?.history_at(target)?;
        let is_gone_elsewhere = || version.path == *target;
        if current.as_deref() != Some(&*version.history)
            && !(current.is_none() && is_gone_elsewhere())
        {
            return Ok(());
        }
        let Version { history: id, name, .. } = version;
        let view = self.edits();
        if let Some(known) = view.history(id)? {
            let history = History { base: name.clone(), path: target.clone(), last: known.last };
            view.versions.insert(version_key(id, ""), Some(Slot::History(history)));
            view.versions.insert(place_key(target, id), Some(Slot::Place(Standing::Current)));
        }
        Ok(())
    }
}

/// Puts what versions ignore back into a tree, from the node as it is now; what a version has of it goes.
fn keep_ignored(tree: &mut Subtree, now: Option<&Subtree>) {
    tree.properties.retain(|name, _| !closed::is_ignored_property(name));
    tree.children.retain(|child| !closed::is_ignored_child(&child.name));
    if let Some(now) = now {
        let ignored = now.properties.iter().filter(|(name, _)| closed::is_ignored_property(name));
        tree.properties.extend(ignored.map(|(name, value)| (name.clone(), value.clone())));
        let ignored = now.children.iter().filter(|child| closed::is_ignored_child(&child.name));
        tree.children.extend(ignored.cloned());
    }
    for child in &mut tree.children {
        if !closed::is_ignored_child(&child.name) {
            keep_ignored(child, now.and_then(|now| now.child(&child.name)));
        }
    }
}

/// Notes the restoring as the last change where changes are noted.
fn stamp(tree: &mut Subtree, user: &str, at: SystemTime) {
    let date = Value::Date(Date::from_system_time(at));
    let is_there = tree.child(JCR_CONTENT).is_some();
    let noted = if is_there { tree.child_mut(JCR_CONTENT) } else { Some(tree) };
    let Some(noted) = noted else { return };
    for prefix in ["cq", "jcr"] {
        if let Some(changed) = noted.properties.get_mut(&format!("{prefix}:lastModified")) {
            *changed = date.clone().into();
            let by = format!("{prefix}:lastModifiedBy");
            noted.properties.insert(by, user.into());
        }
    }
}

fn is_versionable(tree: &Subtree) -> bool {
    let mixins = tree.properties.get(crate::MIXIN_TYPES);
    mixins.is_some_and(super::check_in::has_versionable)
}
