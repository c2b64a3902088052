//! Check-in, check-out, labels, and the removal of versions.

use std::collections::BTreeSet;

use super::entry::{
    History, Kept, MAX_PATH_BYTES, Slot, Standing, names_history, place_key, version_key,
};
use super::{After, CheckIn, Version, closed};
use crate::subtree::MIXIN_TYPES;
use crate::{
    Date, Error, Node, NodePath, Privileges, Property, Repository, Result, Session, Snapshot,
    Value, check_name,
};

/// The name of the first version.
const FIRST: &str = "1.0";
/// Longer comments are refused: an entry has to stay small.
const MAX_COMMENT_BYTES: usize = 4_096;
/// More labels on one version are refused.
const MAX_LABELS: usize = 20;

/// Refuses whoever lacks `jcr:versionManagement`, whether or not anything would change.
fn require_privilege(seen: &Snapshot, path: &NodePath) -> Result<()> {
    let wanted = Privileges::VERSION_MANAGEMENT;
    if seen.allows(path, wanted)? {
        return Ok(());
    }
    Err(Error::AccessDenied { path: path.clone(), privilege: wanted.first_name() })
}

impl Session {
    /// Keeps the node as it is now, pending edits included, as its next version; pending until the commit.
    ///
    /// What has records of its own below the node (pages below a page) is not part of the version. If another session
    /// checks the same node in meanwhile, the commit gives this version the next free name:
    /// [`Repository::check_in`] returns the final one. A node that is checked in already keeps its version.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::Refused`] for [`After::CheckedIn`] of a node that is not `mix:versionable`, or
    /// if the path or comment is too long.
    pub fn check_in(&mut self, path: &NodePath, check_in: &CheckIn<'_>) -> Result<Version> {
        let refused = |reason| Error::Refused { action: "check in", path: path.clone(), reason };
        if !self.snapshot()?.shows(path)? {
            return Err(Error::NodeMissing(path.clone()));
        }
        let snapshot = self.whole()?;
        let node = snapshot.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        if check_in.comment.len() > MAX_COMMENT_BYTES {
            return Err(refused("its comment is longer than 4,096 bytes"));
        }
        if path.as_str().len() > MAX_PATH_BYTES {
            return Err(refused("its path is longer than 900 bytes"));
        }
        if check_in.after == After::CheckedIn {
            if !is_versionable(&node) {
                return Err(refused("it is not `mix:versionable`"));
            }
            require_privilege(&self.snapshot()?, path)?;
            let versions = snapshot.versions(path)?;
            if closed::is_closed(&node)
                && let Some(base) = versions.into_iter().find(|version| version.is_base)
            {
                return Ok(base);
            }
        }
        let id = match snapshot.history_at(path)? {
            Some(id) => id,
            None => new_history(&node)?,
        };
        let began = History { last: 0, base: String::new(), path: path.clone() };
        let history = snapshot.0.history(&id)?.unwrap_or(began);
        let (was_at, predecessor) = (history.path, history.base);
        let name = next_name(&predecessor, |name| Ok(snapshot.0.kept(&id, name)?.is_some()))?;
        let kept = Kept {
            number: history.last + 1,
            path: path.clone(),
            depth: path.depth() - node.owner().depth(),
            at: Date::from_system_time(check_in.at),
            user: self.user().to_owned(),
            comment: check_in.comment.to_owned(),
            predecessor,
            labels: BTreeSet::new(),
            body: node.record().body.clone(),
        };
        let version = kept.version(&id, &name, Some(&name));
        drop((node, snapshot));
        let history = History { last: kept.number, base: name.clone(), path: path.clone() };
        let edits = &mut self.edits().versions;
        edits.insert(place_key(&was_at, &id), None);
        edits.insert(version_key(&id, &name), Some(Slot::Version(kept)));
        edits.insert(version_key(&id, ""), Some(Slot::History(history)));
        edits.insert(place_key(path, &id), Some(Slot::Place(Standing::Current)));
        if check_in.after == After::CheckedIn {
            self.set_property(path, closed::IS_CHECKED_OUT, Value::Boolean(false).into())?;
            self.restored(path);
        }
        Ok(version)
    }

    /// Lets a checked-in node be changed again.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::Refused`] if the node is not `mix:versionable`; [`Error::AccessDenied`] without
    /// `jcr:versionManagement`, whether or not it is checked in.
    pub fn check_out(&mut self, path: &NodePath) -> Result<()> {
        let node = self.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        if !is_versionable(&node) {
            let reason = "it is not `mix:versionable`";
            return Err(Error::Refused { action: "check out", path: path.clone(), reason });
        }
        require_privilege(&self.snapshot()?, path)?;
        if !closed::is_closed(&node) {
            return Ok(());
        }
        self.set_property(path, closed::IS_CHECKED_OUT, Value::Boolean(true).into())
    }

    /// Keeps the node as it is, unless its newest version holds the same (what replication noted aside) or its path is
    /// too long to keep versions of.
    ///
    /// # Errors
    /// As [`Session::check_in`].
    pub fn keep_version(
        &mut self,
        path: &NodePath,
        check_in: &CheckIn<'_>,
    ) -> Result<Option<Version>> {
        if path.as_str().len() > MAX_PATH_BYTES {
            return Ok(None);
        }
        let snapshot = self.whole()?;
        if let Some(last) = snapshot.versions(path)?.last() {
            let node = snapshot.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
            let is_stored_alike = last.body_id().is_some() && last.body_id() == node.body_id();
            let (kept, now) = (snapshot.read_version(last)?, node.read_own()?);
            if is_stored_alike || closed::is_same(&kept, &now, closed::Nested::Compared) {
                return Ok(None);
            }
        }
        drop(snapshot);
        self.check_in(path, check_in).map(Some)
    }

    /// Gives a version a label. Another version of the node that has it keeps it, or loses it to this one.
    ///
    /// # Errors
    /// [`Error::VersionMissing`]; [`Error::InvalidName`] for the label; [`Error::Refused`] if another version keeps it.
    pub fn add_label(
        &mut self,
        path: &NodePath,
        version: &str,
        label: &str,
        clash: LabelClash,
    ) -> Result<()> {
        check_name(label)?;
        let refused = |reason| Error::Refused { action: "label", path: path.clone(), reason };
        let snapshot = self.snapshot()?;
        let version = snapshot.version(path, version)?;
        if version.labels.len() >= MAX_LABELS {
            return Err(refused("its version has 20 labels already"));
        }
        let versions = snapshot.versions(path)?;
        let holder = versions.iter().find(|one| one.labels.iter().any(|other| other == label));
        if let Some(holder) = holder {
            if holder.name == version.name {
                return Ok(());
            }
            if clash == LabelClash::Refuse {
                return Err(refused("another version of it has this label; move the label"));
            }
            self.put_labels(holder, |labels| _ = labels.remove(label));
        }
        self.put_labels(&version, |labels| _ = labels.insert(label.to_owned()));
        Ok(())
    }

    /// Takes a label from whichever version of the node has it; tells whether one had.
    ///
    /// # Errors
    /// If the store fails.
    pub fn remove_label(&mut self, path: &NodePath, label: &str) -> Result<bool> {
        let versions = self.snapshot()?.versions(path)?;
        let holder = versions.iter().find(|one| one.labels.iter().any(|other| other == label));
        if let Some(holder) = holder {
            self.put_labels(holder, |labels| _ = labels.remove(label));
        }
        Ok(holder.is_some())
    }

    fn put_labels(&mut self, version: &Version, change: impl FnOnce(&mut BTreeSet<String>)) {
        let mut kept = version.kept.clone();
        change(&mut kept.labels);
        let key = version_key(&version.history, &version.name);
        self.edits().versions.insert(key, Some(Slot::Version(kept)));
    }

    /// Takes a version away. The node is based on its predecessor then, if it was based on this one.
    ///
    /// # Errors
    /// [`Error::VersionMissing`].
    pub fn remove_version(&mut self, path: &NodePath, version: &str) -> Result<()> {
        let version = self.snapshot()?.version(path, version)?;
        self.drop_version(&version)
    }

    /// Takes a version away, and with the last one all that is known about the history.
    pub(super) fn drop_version(&mut self, version: &Version) -> Result<()> {
        let Version { history: id, name, .. } = version;
        let view = self.whole()?.0;
        let others = view.versions_of(id)?;
        let known = view.history(id)?;
        // Others may have been taken away since the version was read.
        let own = view.kept(id, name)?;
        drop(view);
        let edits = &mut self.edits().versions;
        edits.insert(version_key(id, name), None);
        let mut others = others.into_iter().filter(|other| other.name != *name).peekable();
        if others.peek().is_none() {
            edits.insert(version_key(id, ""), None);
            if let Some(history) = known {
                edits.insert(place_key(&history.path, id), None);
            }
            return Ok(());
        }
        let before = own.map(|own| own.predecessor).unwrap_or_default();
        for mut other in others {
            if other.kept.predecessor == *name {
                other.kept.predecessor.clone_from(&before);
                edits.insert(version_key(id, &other.name), Some(Slot::Version(other.kept)));
            }
        }
        if let Some(history) = known.filter(|history| history.base == *name) {
            let history = History { base: before, ..history };
            edits.insert(version_key(id, ""), Some(Slot::History(history)));
        }
        Ok(())
    }
}

impl Repository {
    /// Keeps a node as it is as its next version, in a commit of its own.
    ///
    /// # Errors
    /// As [`Session::check_in`]; errors of the commit.
    pub fn check_in(&self, user: &str, path: &NodePath, check_in: &CheckIn<'_>) -> Result<Version> {
        let mut session = self.session(user)?;
        let pending = session.check_in(path, check_in)?;
        session.commit(&format!("check in {path}"), check_in.at)?;
        let kept = session.snapshot()?.0.versions_of(&pending.history)?;
        // The commit may have moved the name on; the newest of this user, instant and document is the one.
        let is_it = |version: &Version| {
            version.user == pending.user
                && version.kept.at == pending.kept.at
                && version.comment == pending.comment
        };
        Ok(kept.into_iter().rfind(is_it).unwrap_or(pending))
    }
}

/// Names the history of a node that has none: by its identifier, else by its path, numbered if a node that was there
/// and moved away has that name.
fn new_history(node: &Node) -> Result<String> {
    if let Some(identifier) = node.text("jcr:uuid").filter(|one| names_history(one)) {
        return Ok(identifier);
    }
    let path = node.path().as_str();
    let mut id = path.to_owned();
    let mut number = 1;
    while node.snapshot().0.history(&id)?.is_some() {
        number += 1;
        // No name holds `|`, so this is no other node's path.
        id = format!("{path}|{number}");
    }
    Ok(id)
}

/// What happens to a label that another version of the node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelClash {
    /// It stays there, and the call is refused.
    Refuse,
    /// It moves.
    Move,
}

/// Tells whether JCR's check-in works on a node.
pub(super) fn is_versionable(node: &Node) -> bool {
    let mixins = node.property(MIXIN_TYPES);
    mixins.as_ref().is_some_and(has_versionable)
}

/// Tells whether a list of mixins has `mix:versionable`.
pub(super) fn has_versionable(mixins: &Property) -> bool {
    mixins.values().iter().any(|value| value.as_str() == Some("mix:versionable"))
}

/// Returns the name of the version after `base`, as Jackrabbit counts: `1.1` after `1.0`; where that is taken, as after
/// restoring an older one, `1.0.0`.
pub(super) fn next_name(
    base: &str,
    mut is_taken: impl FnMut(&str) -> Result<bool>,
) -> Result<String> {
    let mut name = FIRST.to_owned();
    if let Some((stem, last)) = base.rsplit_once('.') {
        let last: u64 = last.parse().unwrap_or_default();
        name = format!("{stem}.{}", last + 1);
    }
    let mut branch = if base.is_empty() { name.clone() } else { base.to_owned() };
    while is_taken(&name)? {
        branch.push_str(".0");
        name.clone_from(&branch);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(base: &str, taken: &[&str], expected: &str) {
        let name = next_name(base, |name| Ok(taken.contains(&name))).unwrap();
        assert_eq!(name, expected, "{base} {taken:?}");
    }

    #[test]
    fn versions_are_counted_as_jackrabbit_does() {
        check("", &[], "1.0");
        check("1.0", &["1.0"], "1.1");
        check("1.9", &["1.9"], "1.10");
        check("1.0", &["1.0", "1.1"], "1.0.0");
        check("1.0.0", &["1.0", "1.1", "1.0.0"], "1.0.1");
        check("1.0", &["1.0", "1.1", "1.0.0"], "1.0.0.0");
        check("", &["1.0"], "1.0.0");
    }
}
