//! Launches: branches created at any point in time, compared with their base, and merged back whole or in part.
//!
//! In: a time or a root; a branch, the paths to merge, and the side that wins conflicts. Out: a [`Snapshot`] of that
//! time; [`PathChange`]s; and from a merge a [`MergeOutcome`] with its changes.
//!
//! Invariants
//! * A comparison reads only differences, and holds one document at a time.
//! * After a merge of some paths, only these paths of the branch count as merged.
//! * A merge with undecided conflicts changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{ChunkBatch, ChunkId, MapChange, MapValue, Revision};

use crate::branch::branch_error;
use crate::branch::branch_ref::{MAIN_BRANCH, base_ref_name, stage_ref_moves};
use crate::commit::blame::attribute_conflicts;
use crate::commit::commit_details::CommitDetails;
use crate::commit::merge_conflicts::MergeConflicts;
use crate::commit::merge_options::{MergeOptions, MergeSide};
use crate::commit::{self, CommitOutcome};
use crate::document::boundary::is_container;
use crate::document::record::ContentRecord;
use crate::model::node_difference::whole_tree_difference;
use crate::snapshot::RecordEdits;
use crate::version::version_entry::VersionEdits;
use crate::version::version_merge::version_edits_between;
use crate::{
    ChangeKind, Error, JcrDate, MergeConflict, NodeDifference, NodePath, Repository, Result,
    RevisionDetails, Session, Snapshot, Subtree, document::record_key,
};

/// Number of revisions read at a time.
const REVISION_PAGE_SIZE: usize = 500;

/// A document that differs between two states.
#[derive(Debug, Clone)]
pub struct PathChange {
    /// The path of the document.
    pub path: NodePath,
    /// The kind of change.
    pub kind: ChangeKind,
    states: [(Snapshot, Option<Arc<ContentRecord>>); 2],
}

/// The changes that a merge made, or would make.
#[derive(Debug, Clone, Default)]
pub struct MergeOutcome {
    /// The new state of the branch that was merged into; `None` for a preview.
    pub root: Option<ChunkId>,
    /// The changed documents of that branch, by path.
    pub document_changes: Vec<(NodePath, ChangeKind)>,
    /// Decided conflicts, each with the winning side.
    pub resolved_conflicts: Vec<(MergeConflict, MergeSide)>,
    /// Undecided conflicts. Only a preview has them, because a merge fails with them.
    pub conflicts: Vec<MergeConflict>,
}

impl PathChange {
    /// Returns the differences inside the document, node by node and property by property.
    ///
    /// # Errors
    /// If the store fails.
    pub fn node_differences(&self) -> Result<Vec<NodeDifference>> {
        let tree = |(snapshot, record): &(Snapshot, Option<Arc<ContentRecord>>)| {
            let Some(record) = record else { return Ok::<_, Error>(None) };
            let body = snapshot.view.load_body(record, &self.path)?;
            Ok(Some(body.subtree(body.root())))
        };
        let [before, after] = &self.states;
        Ok(match (tree(before)?, tree(after)?) {
            (Some(before), Some(after)) => Subtree::differences(&before, &after),
            (Some(before), None) => vec![whole_tree_difference(&before, ChangeKind::Removed, "")],
            (None, Some(after)) => vec![whole_tree_difference(&after, ChangeKind::Added, "")],
            (None, None) => Vec::new(),
        })
    }

    /// Returns the record in the later state; `None` if the document was removed.
    pub(crate) fn into_record_after(self) -> Option<Arc<ContentRecord>> {
        let [_, (_, after)] = self.states;
        after
    }

    /// Returns true if only the position of the document among its siblings changed.
    #[must_use]
    pub fn is_reorder_only(&self) -> bool {
        let [(_, Some(before)), (_, Some(after))] = &self.states else { return false };
        before.order_key != after.order_key && before.body_id() == after.body_id()
    }
}

impl Snapshot {
    /// Returns the documents that differ in `after`, in the order of keys, read as the iterator advances.
    pub fn changed_documents<'a>(
        &'a self,
        after: &'a Self,
    ) -> impl Iterator<Item = Result<PathChange>> + 'a {
        let changes = self
            .view
            .content_map
            .diff(&after.view.content_map, self.view.repository_state.chunk_reader());
        changes.filter_map(move |change| match change {
            Ok(change) => self.path_change(after, change),
            Err(error) => Some(Err(error.into())),
        })
    }

    /// Returns the documents at and below a node that differ in `after`, in the order of keys, read as the iterator
    /// advances. The cost does not depend on changes elsewhere.
    ///
    /// # Errors
    /// If the store fails.
    pub fn changed_documents_within<'a>(
        &'a self,
        after: &'a Self,
        top: &NodePath,
    ) -> Result<impl Iterator<Item = Result<PathChange>> + 'a> {
        let reads = self.view.repository_state.chunk_reader();
        let (key, below) = (record_key::record_key(top)?, record_key::descendant_key_range(top)?);
        let (left, right) =
            (self.view.content_map.get(reads, &key)?, after.view.content_map.get(reads, &key)?);
        let own = (left != right).then(|| Ok(MapChange { key: key.into(), left, right }));
        let changes = self.view.content_map.diff(&after.view.content_map, reads);
        let changes = changes.start_after(&below.start).take_while(move |change| {
            change.as_ref().map_or(true, |change| below.contains_key(&change.key))
        });
        Ok(own.into_iter().chain(changes).filter_map(move |change| match change {
            Ok(change) => self.path_change(after, change),
            Err(error) => Some(Err(error.into())),
        }))
    }

    fn path_change(&self, after: &Self, change: MapChange) -> Option<Result<PathChange>> {
        let kind = ChangeKind::from_presence(change.left.is_some(), change.right.is_some())?;
        Some(record_key::record_path(&change.key).and_then(|path| {
            let record = |stored: Option<MapValue>| {
                let Some(stored) = stored else { return Ok(None) };
                let damaged = || Error::Damaged {
                    path: path.clone(),
                    reason: "its record cannot be decoded",
                };
                ContentRecord::decode(&stored).map(Arc::new).map(Some).ok_or_else(damaged)
            };
            let (left, right) = (record(change.left)?, record(change.right)?);
            let sides = [(self.clone(), left), (after.clone(), right)];
            Ok(PathChange { path, kind, states: sides })
        }))
    }
}

impl Repository {
    /// Returns the newest revision of the branch that is not later than `time`.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if the history does not reach back that far.
    pub fn revision_at_time(&self, time: SystemTime) -> Result<Revision> {
        // In milliseconds, as times are formatted everywhere: the time that `log` prints identifies the revision.
        let millis = |time| JcrDate::from_system_time(time).millis;
        let (mut before, mut candidate) = (None, None);
        loop {
            let page = self.revisions(before, REVISION_PAGE_SIZE)?;
            let Some(last) = page.last() else { break };
            before = Some(last.sequence);
            for revision in page {
                if millis(revision.update.updated_at) > millis(time) {
                    // Revisions after this one are not earlier, whatever their recorded time.
                    candidate = None;
                    continue;
                }
                // The repository's own revisions, such as those for new indexes, have no time; the previous revision
                // has one.
                let has_time = revision.update.updated_at != SystemTime::UNIX_EPOCH;
                let newest = candidate.get_or_insert(revision);
                if has_time {
                    return Ok(newest.clone());
                }
            }
        }
        let reason = "its history does not reach back to that time";
        Err(Error::InvalidBranch { name: self.branch().to_owned(), reason })
    }

    /// Returns the revision with this sequence number.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if the branch's history has no revision of that number.
    pub fn revision(&self, sequence: u64) -> Result<Revision> {
        let candidate = self.revisions(sequence.checked_add(1), 1)?.pop();
        candidate.filter(|revision| revision.sequence == sequence).ok_or_else(|| {
            Error::InvalidBranch {
                name: self.branch().to_owned(),
                reason: "its history has no revision with this number",
            }
        })
    }

    /// Returns the root that the branch had at a point in time.
    ///
    /// # Errors
    /// As [`Repository::revision_at_time`].
    pub fn root_at_time(&self, time: SystemTime) -> Result<ChunkId> {
        let revision = self.revision_at_time(time)?;
        revision.update.new_root.ok_or_else(|| Error::InvalidBranch {
            name: self.branch().to_owned(),
            reason: "it did not exist at that time",
        })
    }

    /// Pins the state that the branch had at a point in time.
    ///
    /// # Errors
    /// As [`Repository::root_at_time`].
    pub fn snapshot_at_time(&self, time: SystemTime) -> Result<Snapshot> {
        self.snapshot_at(self.root_at_time(time)?)
    }

    /// Merges all or part of the changes of a branch since it was created or last merged. The cost is proportional to
    /// the changes, not to the size of the content.
    ///
    /// # Errors
    /// [`Error::Conflicts`] with every item that both sides changed differently and that has no decision; nothing is
    /// merged then. [`Error::InvalidBranch`] if there is no branch of that name, or it is this one.
    pub fn merge_branch_part(
        &self,
        name: &str,
        choice: &MergeOptions,
        revising: RevisionDetails<'_>,
    ) -> Result<MergeOutcome> {
        let launch = self.collect_branch_changes(name, choice)?;
        let RevisionDetails { user, message, time } = revising;
        let versions = &launch.version_edits;
        let change = CommitDetails {
            user,
            message,
            time,
            version_edits: versions,
            moves: &[],
            replication: None,
        };
        // The branch is marked as merged in the same write as the merge, so that a repeated merge does not apply the
        // changes twice.
        let also = |batch: &mut ChunkBatch| {
            let chunks = &self.0.chunks;
            let is_there = chunks.read_ref(name)?.is_some();
            if !is_there || chunks.read_ref(&launch.base_ref)? != launch.base_root {
                return Err(branch_error(name, "it was merged or removed concurrently"));
            }
            let merged = match choice.included_paths.is_empty() {
                true => Some(launch.snapshot_after.root_id()),
                false => {
                    let view = &launch.snapshot_before.view;
                    commit::stage_root(view, &launch.edits, &launch.version_edits, batch)?
                }
            };
            let merged = merged.unwrap_or(launch.snapshot_before.root_id());
            let base = (launch.base_ref.as_str(), launch.base_root, Some(merged));
            stage_ref_moves(batch, [base], revising);
            Ok(())
        };
        let edits = &launch.edits;
        let done = commit::commit_merge(&launch.snapshot_before, edits, &change, choice, &also)?;
        let CommitOutcome { root, changes, resolved_conflicts } = done;
        Ok(MergeOutcome {
            root: Some(root),
            document_changes: changes,
            resolved_conflicts,
            conflicts: Vec::new(),
        })
    }

    /// Returns what [`Repository::merge_branch_part`] would do now.
    ///
    /// # Errors
    /// As [`Repository::merge_branch_part`], but conflicts are part of the result.
    pub fn preview_merge(&self, name: &str, choice: &MergeOptions) -> Result<MergeOutcome> {
        let launch = self.collect_branch_changes(name, choice)?;
        let head = self.snapshot()?;
        let (edits, merge_conflicts) = commit::merge_branch_edits(
            &launch.snapshot_before.view,
            &launch.edits,
            &head.view,
            choice,
        )?;
        let MergeConflicts { unresolved: mut conflicts, resolved, .. } = merge_conflicts;
        attribute_conflicts(&self.0, launch.snapshot_before.root_id(), &mut conflicts);
        let changes = commit::document_changes(&edits, &head.view)?;
        Ok(MergeOutcome {
            root: None,
            document_changes: changes,
            resolved_conflicts: resolved,
            conflicts,
        })
    }

    /// Returns the base state of the branch, from which its own changes count, and its current state; a merge applies
    /// the difference.
    ///
    /// # Errors
    /// [`Error::InvalidBranch`] if there is no branch of that name, or it is `main`.
    pub fn branch_change_states(&self, name: &str) -> Result<[Snapshot; 2]> {
        let root = self.own_branch_root(name)?;
        let (_, _, base) = self.merge_base(name)?;
        Ok([self.snapshot_at(base)?, self.snapshot_at(root)?])
    }

    /// Returns the base ref of a branch for merges into this one, its value, and the base state; the base ref for
    /// `main` if the branch was never merged into this one.
    fn merge_base(&self, name: &str) -> Result<(String, Option<ChunkId>, ChunkId)> {
        let base = base_ref_name(name, self.branch());
        let at = self.0.chunks.read_ref(&base)?;
        let from = match at {
            None => self.0.chunks.read_ref(&base_ref_name(name, MAIN_BRANCH))?,
            at => at,
        };
        let from = from.ok_or_else(|| branch_error(name, "its merge base is unknown"))?;
        Ok((base, at, from))
    }

    /// Collects the changes of a branch within the selected paths.
    fn collect_branch_changes(&self, name: &str, choice: &MergeOptions) -> Result<BranchChanges> {
        if name == self.branch() {
            return Err(branch_error(name, "it cannot be merged into itself"));
        }
        let root = self.own_branch_root(name)?;
        let (base, base_at, from) = self.merge_base(name)?;
        let (before, after) = (self.snapshot_at(from)?, self.snapshot_at(root)?);
        let reads = self.0.chunk_reader();
        let mut edits = RecordEdits::new();
        let mut added = BTreeMap::new();
        for change in before.changed_documents(&after) {
            let PathChange { path, kind, states: [_, (_, record)] } = change?;
            if choice.is_included(&path) {
                edits.insert(record_key::record_key(&path)?, record);
            } else if kind == ChangeKind::Added {
                added.insert(path, record);
            }
        }
        // The selected paths need the folders above them that exist only on the branch.
        let mut above = Vec::new();
        for key in edits.keys() {
            above.extend(record_key::record_path(key)?.parent());
        }
        while let Some(path) = above.pop() {
            if let Some(record) = added.remove(&path) {
                edits.insert(record_key::record_key(&path)?, record);
                above.extend(path.parent());
            }
        }
        let maps = [&before.view, &after.view].map(|view| view.version_map());
        let [old, new] = maps;
        let versions = version_edits_between(&old?, &new?, reads, |path| choice.is_included(path))?;
        Ok(BranchChanges {
            snapshot_before: before,
            snapshot_after: after,
            edits,
            version_edits: versions,
            base_ref: base,
            base_root: base_at,
        })
    }
}

impl Session {
    /// Replaces the node at `to` with a node of another state of this repository, including everything below it.
    /// Documents are copied without being read. A node whose identifier is in use elsewhere gets a new one.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] for the node in the other state, or for the parent here; [`Error::InvalidEdit`] for the
    /// root.
    pub fn replace_from_snapshot(
        &mut self,
        source: &Snapshot,
        from: &NodePath,
        to: &NodePath,
    ) -> Result<()> {
        let node = source.node(from)?.ok_or_else(|| Error::NodeMissing(from.clone()))?;
        let Some(parent) = to.parent() else {
            let reason = "it is the root; revert the whole state instead";
            return Err(Error::InvalidEdit { action: "restore", path: to.clone(), reason });
        };
        let kind = node.primary_type().to_owned();
        let is_alike = is_container(from.name(), &kind) == is_container(to.name(), &kind);
        if node.summary().is_none() || !is_alike || !self.has_own_record(&parent, to.name())? {
            let mut tree = node.read_subtree()?;
            self.renew_conflicting_identifiers(&mut tree, to)?;
            return self.put_node(to, tree);
        }
        let old = self.pending_view_mut().read_record(&record_key::record_key(to)?, to)?;
        let order = match &old {
            Some(record) => record.order_key.clone(),
            None => self.next_order_key(&parent)?,
        };
        let mut records =
            vec![(to.clone(), ContentRecord { order_key: order, ..node.record().clone() })];
        for (key, record) in
            source.view.records_in_range(&record_key::descendant_key_range(from)?)?
        {
            let path = record_key::record_path(&key)?;
            let target = path.rebase(from, to).ok_or(Error::NodeMissing(path))?;
            records.push((NodePath::new(target.as_str())?, ContentRecord::clone(&record)));
        }
        if old.is_some() {
            self.remove_records(to)?;
        }
        for (path, record) in records {
            let record = self.with_unique_identifiers(source, &path, to, record)?;
            self.write_record(&path, record)?;
        }
        Ok(())
    }

    /// Assigns new identifiers to nodes of a record whose identifiers are in use outside of `target`.
    fn with_unique_identifiers(
        &mut self,
        source: &Snapshot,
        path: &NodePath,
        target: &NodePath,
        record: ContentRecord,
    ) -> Result<ContentRecord> {
        let body = source.view.load_body(&record, path)?;
        if !body.has_name("jcr:uuid") {
            return Ok(record);
        }
        let mut tree = body.subtree(body.root());
        let before = tree.clone();
        self.renew_conflicting_identifiers(&mut tree, target)?;
        if tree == before {
            return Ok(record);
        }
        ContentRecord::from_subtree(&tree, record.order_key).ok_or_else(|| Error::InvalidEdit {
            action: "restore",
            path: path.clone(),
            reason: "it is nested too deeply",
        })
    }
}

/// The changes of a branch.
struct BranchChanges {
    snapshot_before: Snapshot,
    snapshot_after: Snapshot,
    edits: RecordEdits,
    version_edits: VersionEdits,
    /// The base ref, from which its changes count, and the value of that ref.
    base_ref: String,
    base_root: Option<ChunkId>,
}
