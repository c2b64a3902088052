//! Commits: pending edits become a new revision of the branch.
//!
//! In: the base state of a session, its edits by key, the user and the time. Out: the new root.
//!
//! Invariants
//! * Content map and index maps change in one write; the ref moves with it by compare-and-swap.
//! * Edits are merged onto the newest state document by document; changes of others are retained.
//!
//! On failure: nothing is written; all conflicts are reported together.

pub(crate) mod blame;
pub(crate) mod commit_details;
pub(crate) mod conflict;
pub(crate) mod counter;
pub(crate) mod diverged_move;
pub(crate) mod merge_conflicts;
pub(crate) mod merge_options;
pub(crate) mod node_merge;
pub(crate) mod rebase;
pub(crate) mod retry;
pub(crate) mod staged_head;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tympan_store::{ChunkBatch, ChunkId, MapValue, ReadChunks, RefUpdate, SortedMap, StoreRoot};

use crate::access::{CommitPermission, FormerPolicyEdits};
use crate::commit::blame::attribute_conflicts;
use crate::commit::commit_details::{CommitChecks, CommitDetails};
use crate::commit::counter::{apply_increments, extract_increments};
use crate::commit::merge_conflicts::MergeConflicts;
use crate::commit::rebase::merge_record_edits;
use crate::commit::staged_head::open_staged_head;
use crate::document::record::ContentRecord;
use crate::document::record_key::CONTENT_MAP;
use crate::index::property_index::{self, DEFINITIONS_PATH, IndexDefinitions};
use crate::index::{IndexEdits, IndexMapSelection};
use crate::node_type::{SYSTEM_PATH, validate_edits};
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::version::version_entry::{VERSIONS_MAP, VersionEdits};
use crate::version::version_merge::merge_version_edits;
use crate::withdrawal::{self, VisitorEdits};
use crate::{
    ChangeKind, Error, MergeConflict, MergeOptions, MergeSide, NodePath, Result, Snapshot,
    document::record_key,
};

/// The result of a commit with decisions.
#[derive(Debug)]
pub(crate) struct CommitOutcome {
    pub(crate) root: ChunkId,
    pub(crate) changes: Vec<(NodePath, ChangeKind)>,
    pub(crate) resolved_conflicts: Vec<(MergeConflict, MergeSide)>,
}

/// Conditions on the state that a commit is based on, whatever others commit before.
pub(crate) struct CommitConditions<'a> {
    /// The keys of documents that must be unchanged since the base state of the session.
    pub(crate) guarded_keys: &'a BTreeSet<Vec<u8>>,
    /// The permission of the viewer, which is checked again on that state.
    pub(crate) permission: &'a CommitPermission<'a>,
}

/// Commits edits that were made on `base`, in a group with concurrent commits of other sessions.
///
/// # Errors
/// [`Error::Conflicts`] with every conflict and its author, [`Error::DocumentChanged`] for a guarded document, and the
/// errors of [`CommitPermission::recheck`]; nothing is written then.
pub(crate) fn commit_edits(
    base: &Snapshot,
    edits: &RecordEdits,
    conditions: &CommitConditions<'_>,
    change: &CommitDetails<'_>,
    checks: CommitChecks,
) -> Result<ChunkId> {
    let extraction = extract_increments(edits)?;
    let (edits, increments) = match &extraction {
        Some((edits, increments)) => (edits, increments.as_slice()),
        None => (edits, [].as_slice()),
    };
    let choice = MergeOptions::default();
    stage_commit(base, change, checks, &|_| Ok(()), |head| {
        conditions.permission.recheck(head)?;
        if head.root_id == base.view.root_id && increments.is_empty() {
            return Ok((Cow::Borrowed(edits), ()));
        }
        check_guarded_documents(&base.view, conditions.guarded_keys, head)?;
        let mut conflicts = MergeConflicts::new(&choice);
        let mut merged = match head.root_id == base.view.root_id {
            true => edits.clone(),
            false => merge_record_edits(&base.view, edits, head, &mut conflicts)?,
        };
        apply_increments(&mut merged, increments, head, &mut conflicts)?;
        resolved_conflicts(conflicts)?;
        Ok((Cow::Owned(merged), ()))
    })
    .map(|(root, ())| root)
}

/// Commits the changes of a branch since `base`, with decisions about conflicts; `also` adds to the same write.
///
/// # Errors
/// [`Error::Conflicts`] with every undecided conflict and its author; nothing is written then.
pub(crate) fn commit_merge(
    base: &Snapshot,
    edits: &RecordEdits,
    change: &CommitDetails<'_>,
    choice: &MergeOptions,
    also: &dyn Fn(&mut ChunkBatch) -> Result<()>,
) -> Result<CommitOutcome> {
    // The content of a branch was completed when it was committed there.
    let done = stage_commit(base, change, CommitChecks::Package, also, |head| {
        let (merged, conflicts) = merge_branch_edits(&base.view, edits, head, choice)?;
        let changes = document_changes(&merged, head)?;
        Ok((Cow::Owned(merged), (changes, resolved_conflicts(conflicts)?)))
    });
    done.map(|(root, (changes, decided))| CommitOutcome {
        root,
        changes,
        resolved_conflicts: decided,
    })
}

/// Merges the changes of a branch since `base` onto a state.
pub(crate) fn merge_branch_edits<'a>(
    base: &SnapshotView,
    edits: &RecordEdits,
    head: &SnapshotView,
    choice: &'a MergeOptions,
) -> Result<(RecordEdits, MergeConflicts<'a>)> {
    let mut conflicts = MergeConflicts::new(choice);
    let merged = merge_record_edits(base, edits, head, &mut conflicts)?;
    Ok((merged, conflicts))
}

/// Returns the documents that edits change in a state.
pub(crate) fn document_changes(
    edits: &RecordEdits,
    head: &SnapshotView,
) -> Result<Vec<(NodePath, ChangeKind)>> {
    let mut changes = Vec::new();
    for (key, record) in edits {
        let old = head.content_map.get(head.repository_state.chunk_reader(), key)?;
        let new =
            record.as_ref().map(|record| record.encode(&mut ChunkBatch::new())).transpose()?;
        if let Some(kind) = ChangeKind::from_presence(old.is_some(), new.is_some())
            && old != new
        {
            changes.push((record_key::record_path(key)?, kind));
        }
    }
    Ok(changes)
}

/// Stages the result of `merge` for the newest state, and additions to it, in one group with concurrent commits of
/// other sessions.
fn stage_commit<'a, T>(
    base: &Snapshot,
    details: &CommitDetails<'_>,
    checks: CommitChecks,
    also: &dyn Fn(&mut ChunkBatch) -> Result<()>,
    mut merge: impl FnMut(&SnapshotView) -> Result<(Cow<'a, RecordEdits>, T)>,
) -> Result<(ChunkId, T)> {
    let commits = base
        .view
        .repository_state
        .session_committer
        .as_ref()
        .ok_or(Error::MissingContentMap(base.view.root_id))?;
    let done = commits.committer.commit_change(|head| {
        let head = open_staged_head(&commits.staged_state, head)?;
        let (mut edits, more) = merge(&head)?;
        let versions = merge_version_edits(&base.view, details.version_edits, &head)?;
        let change = &CommitDetails { version_edits: &versions, ..*details };
        let (mut batch, root) = match checks {
            // A publisher stores what it receives unchanged; the author decides what is withdrawn from its visitors.
            CommitChecks::Unchecked => {
                stage_edits(&head, &edits, change, &VisitorEdits::default())?
            }
            _ => {
                let moves = withdrawal::document_moves(&head, &edits, change)?;
                if change.replication.is_none() {
                    let stamped = withdrawal::records_with_own_stamps(&head, &edits)?;
                    if !stamped.is_empty() {
                        edits.to_mut().extend(stamped);
                    }
                }
                let edits = match checks {
                    CommitChecks::UncheckedRelay => Cow::Borrowed(&*edits),
                    _ => validate_edits(&head, &edits, change, checks)?,
                };
                let withdrawals = withdrawal::visitor_edits(&head, &edits, change, &moves)?;
                stage_edits(&head, &edits, change, &withdrawals)?
            }
        };
        also(&mut batch)?;
        Ok((batch, (root, more)))
    });
    done.map_err(|error| match error {
        Error::Conflicts(mut conflicts) => {
            attribute_conflicts(&base.view.repository_state, base.view.root_id, &mut conflicts);
            Error::Conflicts(conflicts)
        }
        error => error,
    })
}

/// Returns the decided conflicts.
///
/// # Errors
/// [`Error::Conflicts`] if any conflict is undecided.
fn resolved_conflicts(conflicts: MergeConflicts<'_>) -> Result<Vec<(MergeConflict, MergeSide)>> {
    if conflicts.unresolved.is_empty() {
        Ok(conflicts.resolved)
    } else {
        Err(Error::Conflicts(conflicts.unresolved))
    }
}

/// Returns an error if another session changed a guarded document.
fn check_guarded_documents(
    base: &SnapshotView,
    guarded: &BTreeSet<Vec<u8>>,
    head: &SnapshotView,
) -> Result<()> {
    for key in guarded {
        let before = base.content_map.get(base.repository_state.chunk_reader(), key)?;
        if before != head.content_map.get(head.repository_state.chunk_reader(), key)? {
            return Err(Error::DocumentChanged(record_key::record_path(key)?));
        }
    }
    Ok(())
}

/// Stages edits onto a state together with the move of the ref; stages nothing and returns the old root if they change
/// nothing.
fn stage_edits(
    head: &SnapshotView,
    edits: &RecordEdits,
    change: &CommitDetails<'_>,
    withdrawals: &VisitorEdits,
) -> Result<(ChunkBatch, ChunkId)> {
    let mut batch = ChunkBatch::new();
    let maps = stage_edited_maps(head, edits, change.version_edits, &mut batch)?;
    let reads = head.repository_state.chunk_reader();
    let before = match &maps {
        Some(maps) => maps.clone(),
        None => StoreRoot::read(reads, &head.root_id)?.maps,
    };
    let mut after = before.clone();
    withdrawal::write_visitor_edits(&mut after, withdrawals, reads, &mut batch)?;
    if maps.is_none() && after == before {
        return Ok((ChunkBatch::new(), head.root_id));
    }
    let new = StoreRoot { maps: after }.write(&mut batch)?;
    batch.add_ref_update(RefUpdate {
        name: head.repository_state.branch.clone(),
        expected_root: Some(head.root_id),
        new_root: Some(new),
        updated_at: change.time,
        author: change.user.to_owned(),
        message: change.message.to_owned(),
    });
    Ok((batch, new))
}

/// Stages the state that results from edits, with its index maps; `None` if they change nothing.
pub(crate) fn stage_root(
    head: &SnapshotView,
    edits: &RecordEdits,
    versions: &VersionEdits,
    batch: &mut ChunkBatch,
) -> Result<Option<ChunkId>> {
    let maps = stage_edited_maps(head, edits, versions, batch)?;
    Ok(maps.map(|maps| StoreRoot { maps }.write(batch)).transpose()?)
}

/// Stages the maps that result from edits to those of another state; `None` if they change nothing.
pub(crate) fn stage_edited_maps(
    head: &SnapshotView,
    edits: &RecordEdits,
    versions: &VersionEdits,
    batch: &mut ChunkBatch,
) -> Result<Option<BTreeMap<String, SortedMap>>> {
    let shared = &head.repository_state;
    let mut writes = BTreeMap::new();
    let before = IndexDefinitions::read_cached(head)?;
    let after = index_definitions_after(head, edits, &before)?;
    let mut indexes = IndexEdits::new(IndexMapSelection::All, after.clone());
    let mut former_policies = FormerPolicyEdits::default();
    for (key, record) in edits {
        let path = record_key::record_path(key)?;
        let old = head.content_map.get(shared.chunk_reader(), key)?;
        let new = record.as_ref().map(|record| record.encode(batch)).transpose()?;
        if old == new {
            continue;
        }
        let mut derived =
            DerivedEdits { indexes: &mut indexes, former_policies: &mut former_policies };
        record_document_change(head, &path, old.as_ref(), record.as_deref(), &mut derived)?;
        writes.insert(key.clone(), new);
    }
    let mut maps = StoreRoot::read(shared.chunk_reader(), &head.root_id)?.maps;
    let versions = stage_version_edits(&maps, versions, shared.chunk_reader(), batch)?;
    if writes.is_empty() && maps.get(VERSIONS_MAP).copied().unwrap_or_default() == versions {
        return Ok(None);
    }
    maps.insert(VERSIONS_MAP.to_owned(), versions);
    let content = head.content_map.edit(shared.chunk_reader(), batch, writes)?;
    maps.insert(CONTENT_MAP.to_owned(), content);
    property_index::drop_stale_maps(&mut maps, &before, &after);
    indexes.apply(&mut maps, shared.chunk_reader(), batch)?;
    former_policies.stage(head, edits, &mut maps, batch)?;
    Ok(Some(maps))
}

/// Applies edits to the map of versions.
fn stage_version_edits(
    maps: &BTreeMap<String, SortedMap>,
    edits: &VersionEdits,
    reads: &dyn ReadChunks,
    batch: &mut ChunkBatch,
) -> Result<SortedMap> {
    let map = maps.get(VERSIONS_MAP).copied().unwrap_or_default();
    let mut writes = BTreeMap::new();
    for (key, slot) in edits {
        let stored = slot.as_ref().map(|slot| slot.encode(batch)).transpose()?;
        writes.insert(key.clone(), stored);
    }
    Ok(map.edit(reads, batch, writes)?)
}

/// Returns the property index definitions after the edits.
fn index_definitions_after(
    head: &SnapshotView,
    edits: &RecordEdits,
    before: &Arc<IndexDefinitions>,
) -> Result<Arc<IndexDefinitions>> {
    let folder = NodePath::new(DEFINITIONS_PATH)?;
    let below = record_key::descendant_key_range(&folder)?;
    let folder = record_key::record_key(&folder)?;
    let system = NodePath::new(SYSTEM_PATH)?;
    let (types, below_system) =
        (record_key::record_key(&system)?, record_key::descendant_key_range(&system)?);
    let has_types = before.has_type_restrictions();
    let is_about = |key: &Vec<u8>| {
        *key == folder
            || below.contains_key(key)
            || (has_types && (*key == types || below_system.contains_key(key)))
    };
    if !edits.keys().any(is_about) {
        return Ok(before.clone());
    }
    let mut edited = head.clone();
    edited.record_edits = edits.clone();
    IndexDefinitions::read_pending(&edited)
}

/// The edits of the maps beside the content that are derived from changed documents.
struct DerivedEdits<'a> {
    indexes: &'a mut IndexEdits,
    former_policies: &'a mut FormerPolicyEdits,
}

/// Derives the edits of the maps beside the content from one changed document.
fn record_document_change(
    head: &SnapshotView,
    path: &NodePath,
    old: Option<&MapValue>,
    new: Option<&ContentRecord>,
    derived: &mut DerivedEdits<'_>,
) -> Result<()> {
    let damaged = || Error::Damaged { path: path.clone(), reason: "its record cannot be decoded" };
    let old = old.map(|stored| ContentRecord::decode(stored).ok_or_else(damaged)).transpose()?;
    let old_body = old.as_ref().map(|record| head.load_body(record, path)).transpose()?;
    let new_body = new.map(|record| head.load_body(record, path)).transpose()?;
    derived.indexes.record_change(
        path,
        old.as_ref().zip(old_body.as_deref()),
        new.zip(new_body.as_deref()),
    );
    derived.former_policies.record_change(path, old_body.as_deref(), new_body.as_deref());
    Ok(())
}
