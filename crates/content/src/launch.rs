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

use tympan_store::{ChunkId, Revision};

use crate::difference::whole;
use crate::record::Record;
use crate::{
    ChangeKind, Conflict, Error, NodeDifference, NodePath, Repository, Result, Revising, Snapshot,
    Subtree, keys,
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
        self.find_revision(|revision| revision.update.at <= time)?.ok_or_else(|| Error::Branch {
            name: self.branch().to_owned(),
            reason: "its history does not reach back to that time",
        })
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

    /// Finds the newest revision that fits, reading the history page by page.
    fn find_revision(&self, mut fits: impl FnMut(&Revision) -> bool) -> Result<Option<Revision>> {
        let mut before = None;
        loop {
            let page = self.revisions(before, PAGE)?;
            let Some(last) = page.last() else { return Ok(None) };
            before = Some(last.sequence);
            if let Some(found) = page.into_iter().find(&mut fits) {
                return Ok(Some(found));
            }
        }
    }

    /// Merges what a branch has changed since it was made or last merged, or a part of that.
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
        let _ = (name, choice, revising);
        todo!()
    }

    /// Tells what [`Repository::merge_part`] would do now.
    ///
    /// # Errors
    /// As [`Repository::merge_part`], but conflicts are part of the answer.
    pub fn try_merge(&self, name: &str, choice: &MergeChoice) -> Result<Merged> {
        let _ = (name, choice);
        todo!()
    }
}
