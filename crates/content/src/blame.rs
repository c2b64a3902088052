//! Who made things what they are now: looked up in the history of a branch when a merge has conflicts.
//!
//! The search goes back from the newest revision to the state that the merge began with, and stops at a bound. Where
//! revisions between the two were thinned out, it says nothing rather than the wrong user.

use std::sync::Arc;

use tympan_store::{ChunkId, Revision, Root};

use crate::repository::{CONTENT, Shared};
use crate::snapshot::View;
use crate::{ChangedBy, Conflict, Property, Result, Snapshot, Subtree};

/// Revisions that are looked at.
const MAX_REVISIONS: usize = 1_000;
/// Revisions that are read together.
const PAGE: usize = 100;
/// Conflicts that are explained; a list of more is read for its length.
const MAX_EXPLAINED: usize = 50;

/// Adds to each conflict who made it what it is now on the branch, since the state `base`.
pub(crate) fn explain(shared: &Arc<Shared>, base: ChunkId, conflicts: &mut [Conflict]) {
    let explained = conflicts.len().min(MAX_EXPLAINED);
    let conflicts = conflicts.get_mut(..explained).unwrap_or_default();
    if let Err(error) = search(shared, base, conflicts) {
        tracing::warn!(reason = %error, "the history does not say who made a conflict");
    }
}

fn search(shared: &Arc<Shared>, base: ChunkId, conflicts: &mut [Conflict]) -> Result<()> {
    let mut open: Vec<&mut Conflict> = conflicts.iter_mut().collect();
    let mut newer: Option<Revision> = None;
    let mut before = None;
    for _ in 0..MAX_REVISIONS.div_ceil(PAGE) {
        let page = shared.chunks.history(&shared.branch, before, PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        before = Some(last.sequence);
        for revision in page {
            if let (Some(newer), Some(older)) = (&newer, revision.update.new) {
                compare(shared, older, newer, &mut open)?;
            }
            if open.is_empty() || revision.update.new == Some(base) {
                return Ok(());
            }
            newer = Some(revision);
        }
    }
    Ok(())
}

/// Settles the conflicts about what one revision changed.
fn compare(
    shared: &Arc<Shared>,
    older: ChunkId,
    newer: &Revision,
    open: &mut Vec<&mut Conflict>,
) -> Result<()> {
    let Some(root) = newer.update.new else { return Ok(()) };
    let (left, right) = (state(shared, older)?, state(shared, root)?);
    if left.0.content == right.0.content {
        return Ok(());
    }
    // Otherwise revisions between the two are no longer known, and any of them may have made the change.
    let is_next = newer.update.expected == Some(older);
    let mut failure = None;
    open.retain_mut(|conflict| {
        let is_same = match (value_at(&left, conflict), value_at(&right, conflict)) {
            (Ok(left), Ok(right)) => left == right,
            (Err(error), _) | (_, Err(error)) => {
                failure = Some(error);
                true
            }
        };
        if !is_same && is_next {
            conflict.changed = Some(ChangedBy {
                user: newer.update.author.clone(),
                at: newer.update.at,
                revision: newer.sequence,
                message: Some(newer.update.message.clone()),
            });
        }
        is_same
    });
    failure.map_or(Ok(()), Err)
}

fn state(shared: &Arc<Shared>, root: ChunkId) -> Result<Snapshot> {
    let pin = shared.chunks.pin(root);
    let content = Root::read(shared.reads(), &root)?.map(CONTENT);
    Ok(Snapshot(Arc::new(View::pinned(shared.clone(), pin, content)), None))
}

/// What a state has where a conflict is.
#[derive(PartialEq)]
enum Found {
    Property(Option<Property>),
    Node(Option<Subtree>),
}

fn value_at(snapshot: &Snapshot, conflict: &Conflict) -> Result<Found> {
    let node = snapshot.node(&conflict.their_path())?;
    Ok(match &conflict.property {
        Some(name) => Found::Property(node.and_then(|node| node.property(name))),
        None => Found::Node(node.map(|node| node.read_own()).transpose()?),
    })
}
