//! Launches: branches begun at any instant, compared with where they began, and merged back whole or in part.
//!
//! In: a time or a root; a branch, the paths that are wanted of it, and whose side counts where both changed the same.
//! Out: a [`Snapshot`] of that time; [`PathChange`]s; and from a merge a [`Merged`], which says what it brought.
//!
//! Invariants
//! * A comparison reads only what differs, and holds one document at a time.
//! * After a merge of some paths, the branch counts as merged for these and for nothing else.
//! * A merge with conflicts that nobody decided changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{Batch, ChunkId, Revision};

use crate::blame::explain;
use crate::boundary::is_container;
use crate::branch::{self, base_of};
use crate::commit::{self, Change, Done};
use crate::difference::whole;
use crate::merge::Clashes;
use crate::record::Record;
use crate::repository::MAIN;
use crate::snapshot::Overlay;
use crate::version::{self, VersionEdits};
use crate::{
    ChangeKind, Conflict, Date, Error, NodeDifference, NodePath, Repository, Result, Revising,
    Session, Snapshot, Subtree, keys,
};

/// Revisions that are read together.
const PAGE: usize = 500;

/// A document that two states have differently.
#[derive(Debug, Clone)]
pub struct PathChange {
    /// Where it is.
    pub path: NodePath,
    /// What became of it.
    pub kind: ChangeKind,
    sides: [(Snapshot, Option<Arc<Record>>); 2],
}

/// One of the two sides of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// What is being merged: the branch's state, or a session's edits ([`Conflict::ours`]).
    Mine,
    /// What is there already: the state of the branch that it is merged into ([`Conflict::theirs`]).
    Theirs,
}

/// What is merged of a branch, and how.
#[derive(Debug, Clone, Default)]
pub struct MergeChoice {
    /// What is wanted: these nodes with everything below them, and the folders that the branch made above them.
    /// Everything if empty.
    pub only: Vec<NodePath>,
    /// Whose side counts in a conflict, where `decisions` has no answer; without it, conflicts are refused.
    pub prefer: Option<Side>,
    /// Whose side counts in conflicts at a node and below it; the nearest decision above a conflict counts.
    pub decisions: BTreeMap<NodePath, Side>,
}

/// What a merge has brought, or would bring.
#[derive(Debug, Clone, Default)]
pub struct Merged {
    /// The new state of the branch that was merged into; nothing for a trial.
    pub root: Option<ChunkId>,
    /// The documents that change there, by path.
    pub changes: Vec<(NodePath, ChangeKind)>,
    /// Conflicts that were decided, with whose side counted.
    pub decided: Vec<(Conflict, Side)>,
    /// Conflicts that nobody decided; only a trial has them, as a merge fails with them.
    pub conflicts: Vec<Conflict>,
}

impl PathChange {
    /// Returns what differs inside the document, node by node and property by property.
    ///
    /// # Errors
    /// If the store fails.
    pub fn details(&self) -> Result<Vec<NodeDifference>> {
        let tree = |(snapshot, record): &(Snapshot, Option<Arc<Record>>)| {
            let Some(record) = record else { return Ok::<_, Error>(None) };
            let body = snapshot.0.body(record, &self.path)?;
            Ok(Some(body.subtree(body.root())))
        };
        let [before, after] = &self.sides;
        Ok(match (tree(before)?, tree(after)?) {
            (Some(before), Some(after)) => Subtree::differences(&before, &after),
            (Some(before), None) => vec![whole(&before, ChangeKind::Removed, "")],
            (None, Some(after)) => vec![whole(&after, ChangeKind::Added, "")],
            (None, None) => Vec::new(),
        })
    }

    /// Returns the record that the later state has; nothing if the document is gone.
    pub(crate) fn into_after(self) -> Option<Arc<Record>> {
        let [_, (_, after)] = self.sides;
        after
    }

    /// Tells whether the document only came to stand in another place among its siblings.
    #[must_use]
    pub fn is_reordered_only(&self) -> bool {
        let [(_, Some(before)), (_, Some(after))] = &self.sides else { return false };
        before.order != after.order && before.body_id() == after.body_id()
    }
}

impl Snapshot {
    /// Returns the documents that `after` has differently, in the order of keys, read as the iterator advances.
    pub fn diff<'a>(&'a self, after: &'a Self) -> impl Iterator<Item = Result<PathChange>> + 'a {
        let changes = self.0.content.diff(&after.0.content, self.0.shared.reads());
        changes.filter_map(move |change| {
            let change = match change {
                Ok(change) => change,
                Err(error) => return Some(Err(error.into())),
            };
            let kind = ChangeKind::of(change.left.is_some(), change.right.is_some())?;
            let made = keys::path_of(&change.key).and_then(|path| {
                let record = |stored: Option<tympan_store::Value>| {
                    let Some(stored) = stored else { return Ok(None) };
                    let damaged = || Error::Damaged {
                        path: path.clone(),
                        reason: "its record does not decode",
                    };
                    Record::decode(&stored).map(Arc::new).map(Some).ok_or_else(damaged)
                };
                let (left, right) = (record(change.left)?, record(change.right)?);
                let sides = [(self.clone(), left), (after.clone(), right)];
                Ok(PathChange { path, kind, sides })
            });
            Some(made)
        })
    }
}

impl Repository {
    /// Returns the newest revision of the branch that is not younger than `time`.
    ///
    /// # Errors
    /// [`Error::Branch`] if the history does not reach back that far.
    pub fn revision_at(&self, time: SystemTime) -> Result<Revision> {
        // In milliseconds, as times are written everywhere: what `log` prints is the revision's own time.
        let millis = |time| Date::from_system_time(time).millis;
        let (mut before, mut found) = (None, None);
        loop {
            let page = self.revisions(before, PAGE)?;
            let Some(last) = page.last() else { break };
            before = Some(last.sequence);
            for revision in page {
                if millis(revision.update.at) > millis(time) {
                    // What came behind it is of no earlier time, whatever it says.
                    found = None;
                    continue;
                }
                // The repository's own revisions, such as of new indexes, have no time; the one before them has.
                let has_time = revision.update.at != SystemTime::UNIX_EPOCH;
                let newest = found.get_or_insert(revision);
                if has_time {
                    return Ok(newest.clone());
                }
            }
        }
        let reason = "its history does not reach back to that time";
        Err(Error::Branch { name: self.branch().to_owned(), reason })
    }

    /// Returns the revision with this sequence number.
    ///
    /// # Errors
    /// [`Error::Branch`] if the branch's history has none of that number.
    pub fn revision(&self, sequence: u64) -> Result<Revision> {
        let found = self.revisions(sequence.checked_add(1), 1)?.pop();
        found.filter(|revision| revision.sequence == sequence).ok_or_else(|| Error::Branch {
            name: self.branch().to_owned(),
            reason: "its history has no revision of this number",
        })
    }

    /// Returns the root that the branch had at an instant.
    ///
    /// # Errors
    /// As [`Repository::revision_at`].
    pub fn root_at(&self, time: SystemTime) -> Result<ChunkId> {
        let revision = self.revision_at(time)?;
        revision.update.new.ok_or_else(|| Error::Branch {
            name: self.branch().to_owned(),
            reason: "it did not exist at that time",
        })
    }

    /// Pins the state that the branch had at an instant, for time travel.
    ///
    /// # Errors
    /// As [`Repository::root_at`].
    pub fn snapshot_at_time(&self, time: SystemTime) -> Result<Snapshot> {
        self.snapshot_at(self.root_at(time)?)
    }

    /// Merges what a branch has changed since it was made or last merged, or a part of that. The cost is that of the
    /// changes, whatever the size of the content.
    ///
    /// # Errors
    /// [`Error::Conflicts`] with everything that both sides changed differently and nobody decided; nothing is merged
    /// then. [`Error::Branch`] if there is none of that name, or it is this one.
    pub fn merge_part(
        &self,
        name: &str,
        choice: &MergeChoice,
        revising: Revising<'_>,
    ) -> Result<Merged> {
        let launch = self.launch(name, choice)?;
        let Revising { user, message, at } = revising;
        let versions = &launch.versions;
        let change = Change { user, message, at, versions, moves: &[], replication: None };
        // In the same write as the merge, the branch counts as merged: a merge that is made twice must not count twice.
        let also = |batch: &mut Batch| {
            let chunks = &self.0.chunks;
            let is_there = chunks.read_ref(name)?.is_some();
            if !is_there || chunks.read_ref(&launch.base)? != launch.base_at {
                return Err(branch::refused(name, "it was merged or removed meanwhile"));
            }
            let merged = match choice.only.is_empty() {
                true => Some(launch.after.root_id()),
                false => {
                    let view = &launch.before.0;
                    commit::write_root(view, &launch.edits, &launch.versions, batch)?
                }
            };
            let merged = merged.unwrap_or(launch.before.root_id());
            let base = (launch.base.as_str(), launch.base_at, Some(merged));
            branch::add_moves(batch, [base], revising);
            Ok(())
        };
        let edits = &launch.edits;
        let done = commit::commit_decided(&launch.before, edits, &change, choice, &also)?;
        let Done { root, changes, decided } = done;
        Ok(Merged { root: Some(root), changes, decided, conflicts: Vec::new() })
    }

    /// Tells what [`Repository::merge_part`] would do now.
    ///
    /// # Errors
    /// As [`Repository::merge_part`], but conflicts are part of the answer.
    pub fn try_merge(&self, name: &str, choice: &MergeChoice) -> Result<Merged> {
        let launch = self.launch(name, choice)?;
        let head = self.snapshot()?;
        let (edits, clashes) =
            commit::merge_decided(&launch.before.0, &launch.edits, &head.0, choice)?;
        let Clashes { open: mut conflicts, decided, .. } = clashes;
        explain(&self.0, launch.before.root_id(), &mut conflicts);
        let changes = commit::changes_of(&edits, &head.0)?;
        Ok(Merged { root: None, changes, decided, conflicts })
    }

    /// Returns the branch's state where its own changes begin to count, and its present one: what they differ in is
    /// what a merge brings.
    ///
    /// # Errors
    /// [`Error::Branch`] if there is none of that name, or it is `main`.
    pub fn launched(&self, name: &str) -> Result<[Snapshot; 2]> {
        let root = self.own_root_of(name)?;
        let (_, _, base) = self.merge_base(name)?;
        Ok([self.snapshot_at(base)?, self.snapshot_at(root)?])
    }

    /// Returns the ref that says from where a branch's changes count for this one, what it names, and the state to count
    /// from: the one for `main` if the branch was never merged into this one.
    fn merge_base(&self, name: &str) -> Result<(String, Option<ChunkId>, ChunkId)> {
        let base = base_of(name, self.branch());
        let at = self.0.chunks.read_ref(&base)?;
        let from = match at {
            None => self.0.chunks.read_ref(&base_of(name, MAIN))?,
            at => at,
        };
        let from =
            from.ok_or_else(|| branch::refused(name, "it is not known where it was made"))?;
        Ok((base, at, from))
    }

    /// Collects what a branch changed, as far as it is wanted.
    fn launch(&self, name: &str, choice: &MergeChoice) -> Result<Launch> {
        if name == self.branch() {
            return Err(branch::refused(name, "it cannot be merged into itself"));
        }
        let root = self.own_root_of(name)?;
        let (base, base_at, from) = self.merge_base(name)?;
        let (before, after) = (self.snapshot_at(from)?, self.snapshot_at(root)?);
        let reads = self.0.reads();
        let mut edits = Overlay::new();
        let mut added = BTreeMap::new();
        for change in before.diff(&after) {
            let PathChange { path, kind, sides: [_, (_, record)] } = change?;
            if choice.is_wanted(&path) {
                edits.insert(keys::key_of(&path)?, record);
            } else if kind == ChangeKind::Added {
                added.insert(path, record);
            }
        }
        // What is wanted needs the folders above it that only the branch has.
        let mut above = Vec::new();
        for key in edits.keys() {
            above.extend(keys::path_of(key)?.parent());
        }
        while let Some(path) = above.pop() {
            if let Some(record) = added.remove(&path) {
                edits.insert(keys::key_of(&path)?, record);
                above.extend(path.parent());
            }
        }
        let maps = [&before.0, &after.0].map(|view| view.version_map());
        let [old, new] = maps;
        let versions = version::edits_between(&old?, &new?, reads, |path| choice.is_wanted(path))?;
        Ok(Launch { before, after, edits, versions, base, base_at })
    }
}

impl Session {
    /// Puts a node of another state of this repository, with everything below it, in the place of whatever is at `to`.
    /// Documents come as they are, without being read; a node whose identifier is taken elsewhere gets a new one.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] for the node in the other state, or for the parent here; [`Error::Refused`] for the root.
    pub fn put_from(&mut self, source: &Snapshot, from: &NodePath, to: &NodePath) -> Result<()> {
        let node = source.node(from)?.ok_or_else(|| Error::NodeMissing(from.clone()))?;
        let Some(parent) = to.parent() else {
            let reason = "it is the root; revert to the state";
            return Err(Error::Refused { action: "restore", path: to.clone(), reason });
        };
        let kind = node.primary_type().to_owned();
        let is_alike = is_container(from.name(), &kind) == is_container(to.name(), &kind);
        if node.summary().is_none() || !is_alike || !self.is_record_place(&parent, to.name())? {
            let mut tree = node.read()?;
            self.renew_taken(&mut tree, to)?;
            return self.put(to, tree);
        }
        let old = self.edits().record(&keys::key_of(to)?, to)?;
        let order = match &old {
            Some(record) => record.order.clone(),
            None => self.next_order(&parent)?,
        };
        let mut records = vec![(to.clone(), Record { order, ..node.record().clone() })];
        for (key, record) in source.0.records(&keys::below(from)?)? {
            let path = keys::path_of(&key)?;
            let target = path.rebased(from, to).ok_or(Error::NodeMissing(path))?;
            records.push((NodePath::new(target.as_str())?, Record::clone(&record)));
        }
        if old.is_some() {
            self.remove_records(to)?;
        }
        for (path, record) in records {
            let record = self.with_free_identifiers(source, &path, to, record)?;
            self.write(&path, record)?;
        }
        Ok(())
    }

    /// Gives nodes of a record new identifiers where nodes outside of `target` have theirs.
    fn with_free_identifiers(
        &mut self,
        source: &Snapshot,
        path: &NodePath,
        target: &NodePath,
        record: Record,
    ) -> Result<Record> {
        let body = source.0.body(&record, path)?;
        if !body.has_name("jcr:uuid") {
            return Ok(record);
        }
        let mut tree = body.subtree(body.root());
        let before = tree.clone();
        self.renew_taken(&mut tree, target)?;
        if tree == before {
            return Ok(record);
        }
        Record::of(&tree, record.order).ok_or_else(|| Error::Refused {
            action: "restore",
            path: path.clone(),
            reason: "it is nested too deeply",
        })
    }
}

/// What a branch changed.
struct Launch {
    before: Snapshot,
    after: Snapshot,
    edits: Overlay,
    versions: VersionEdits,
    /// The ref that says from where its changes count, and what that names.
    base: String,
    base_at: Option<ChunkId>,
}

impl MergeChoice {
    fn is_wanted(&self, path: &NodePath) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| path.is_within(wanted))
    }

    /// Returns whose side counts in a conflict at a node; nothing if nobody decided.
    pub(crate) fn side_at(&self, path: &NodePath) -> Option<Side> {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            if let Some(side) = self.decisions.get(&path) {
                return Some(*side);
            }
            at = path.parent();
        }
        self.prefer
    }
}
