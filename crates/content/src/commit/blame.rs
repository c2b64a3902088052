//! Attribution of conflicts: searches the history of a branch for the last change of each conflicting item.
//!
//! The search goes back from the newest revision to the base of the merge, up to a limit. Where revisions between the
//! two were thinned out, it returns no user rather than a wrong one.

use std::sync::Arc;

use tympan_store::{ChunkId, Revision, StoreRoot};

use crate::document::record_key::CONTENT_MAP;
use crate::repository::repository_state::RepositoryState;
use crate::snapshot::SnapshotView;
use crate::{ChangeAttribution, MergeConflict, Property, Result, Snapshot, Subtree};

/// Maximum number of revisions searched.
const MAX_SEARCHED_REVISIONS: usize = 1_000;
/// Number of revisions read at a time.
const REVISION_PAGE_SIZE: usize = 100;
/// Maximum number of conflicts that are attributed; users read a longer list only for its length.
const MAX_EXPLAINED_CONFLICTS: usize = 50;

/// Adds to each conflict the last change of the item on the branch since the state `base`.
pub(crate) fn attribute_conflicts(
    shared: &Arc<RepositoryState>,
    base: ChunkId,
    conflicts: &mut [MergeConflict],
) {
    let explained = conflicts.len().min(MAX_EXPLAINED_CONFLICTS);
    let conflicts = conflicts.get_mut(..explained).unwrap_or_default();
    if let Err(error) = search_history(shared, base, conflicts) {
        tracing::warn!(reason = %error, "cannot determine who made the conflicting changes");
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

/// Attributes the conflicts about items that one revision changed.
fn attribute_revision(
    shared: &Arc<RepositoryState>,
    older: ChunkId,
    newer: &Revision,
    open: &mut Vec<&mut MergeConflict>,
) -> Result<()> {
    let Some(root) = newer.update.new_root else { return Ok(()) };
    let (left, right) = (open_snapshot(shared, older)?, open_snapshot(shared, root)?);
    if left.view.content_map == right.view.content_map {
        return Ok(());
    }
    // Otherwise revisions between the two are unknown, and any of them may have made the change.
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
    Ok(Snapshot::from_view(SnapshotView::pinned(shared.clone(), pin, content)))
}

/// The value that a state has for a conflicting item.
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
