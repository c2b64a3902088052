//! Who made things what they are now: looked up in the history of a branch when a merge has conflicts.
//!
//! The search goes back from the newest revision to the state that the merge began with, and stops at a bound. Where
//! revisions between the two were thinned out, it says nothing rather than the wrong user.

use std::sync::Arc;

use tympan_store::{ChunkId, Revision, StoreRoot};

use crate::repository::{CONTENT_MAP, RepositoryState};
use crate::snapshot::SnapshotView;
use crate::{ChangeAttribution, MergeConflict, Property, Result, Snapshot, Subtree};

/// Revisions that are looked at.
const MAX_SEARCHED_REVISIONS: usize = 1_000;
/// Revisions that are read together.
const REVISION_PAGE_SIZE: usize = 100;
/// Conflicts that are explained; a list of more is read for its length.
const MAX_EXPLAINED_CONFLICTS: usize = 50;

/// Adds to each conflict who made it what it is now on the branch, since the state `base`.
pub(crate) fn attribute_conflicts(
    shared: &Arc<RepositoryState>,
    base: ChunkId,
    conflicts: &mut [MergeConflict],
) {
    let explained = conflicts.len().min(MAX_EXPLAINED_CONFLICTS);
    let conflicts = conflicts.get_mut(..explained).unwrap_or_default();
    if let Err(error) = search_history(shared, base, conflicts) {
        tracing::warn!(reason = %error, "the history does not say who made a conflict");
    }
}

fn search_history(
    shared: &Arc<RepositoryState>,
    base: ChunkId,
    conflicts: &mut [MergeConflict],
) -> Result<()> {
    let mut open: Vec<&mut MergeConflict> = conflicts.iter_mut().collect();
    let mut newer: Option<Revision> = None;
    let mut before = None;
    for _ in 0..MAX_SEARCHED_REVISIONS.div_ceil(REVISION_PAGE_SIZE) {
        let page = shared.chunks.ref_history(&shared.branch, before, REVISION_PAGE_SIZE)?;
        let Some(last) = page.last() else { return Ok(()) };
        before = Some(last.sequence);
        for revision in page {
            if let (Some(newer), Some(older)) = (&newer, revision.update.new_root) {
                attribute_revision(shared, older, newer, &mut open)?;
            }
            if open.is_empty() || revision.update.new_root == Some(base) {
                return Ok(());
            }
            newer = Some(revision);
        }
    }
    Ok(())
}

/// Settles the conflicts about what one revision changed.
fn attribute_revision(
    shared: &Arc<RepositoryState>,
    older: ChunkId,
    newer: &Revision,
    open: &mut Vec<&mut MergeConflict>,
) -> Result<()> {
    let Some(root) = newer.update.new_root else { return Ok(()) };
    let (left, right) = (open_snapshot(shared, older)?, open_snapshot(shared, root)?);
    if left.0.content_map == right.0.content_map {
        return Ok(());
    }
    // Otherwise revisions between the two are no longer known, and any of them may have made the change.
    let is_next = newer.update.expected_root == Some(older);
    let mut failure = None;
    open.retain_mut(|conflict| {
        let is_same =
            match (value_at_conflict(&left, conflict), value_at_conflict(&right, conflict)) {
                (Ok(left), Ok(right)) => left == right,
                (Err(error), _) | (_, Err(error)) => {
                    failure = Some(error);
                    true
                }
            };
        if !is_same && is_next {
            conflict.last_change = Some(ChangeAttribution {
                user: newer.update.author.clone(),
                time: newer.update.updated_at,
                revision: newer.sequence,
                message: Some(newer.update.message.clone()),
            });
        }
        is_same
    });
    failure.map_or(Ok(()), Err)
}

fn open_snapshot(shared: &Arc<RepositoryState>, root: ChunkId) -> Result<Snapshot> {
    let pin = shared.chunks.pin_root(root);
    let content = StoreRoot::read(shared.chunk_reader(), &root)?.map(CONTENT_MAP);
    Ok(Snapshot(Arc::new(SnapshotView::pinned(shared.clone(), pin, content)), None))
}

/// What a state has where a conflict is.
#[derive(PartialEq)]
enum ConflictValue {
    Property(Option<Property>),
    Node(Option<Subtree>),
}

fn value_at_conflict(snapshot: &Snapshot, conflict: &MergeConflict) -> Result<ConflictValue> {
    let node = snapshot.node(&conflict.their_path())?;
    Ok(match &conflict.property {
        Some(name) => ConflictValue::Property(node.and_then(|node| node.property(name))),
        None => ConflictValue::Node(node.map(|node| node.read_own_subtree()).transpose()?),
    })
}
