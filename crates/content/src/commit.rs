//! Commits: pending edits become a new revision of the branch.
//!
//! In: the state a session began with, its edits by key, and who commits when. Out: the new root.
//!
//! Invariants
//! * Content map and index maps change in one write; the ref moves with it by compare-and-swap.
//! * Edits are merged onto the newest state document by document; what others changed is kept.
//!
//! On failure: nothing is written; conflicts are reported all at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{Batch, ChunkId, Map, ReadChunks, RefUpdate, Root, Value as Stored};

use crate::boundary::is_container;
use crate::index::IndexEdits;
use crate::merge::merge;
use crate::record::Record;
use crate::repository::{CONTENT, Shared};
use crate::siblings::deal_missing;
use crate::snapshot::{Overlay, View};
use crate::version::{self, VERSIONS, VersionEdits};
use crate::{Conflict, ConflictKind, Error, NodePath, Result, Snapshot, Subtree, keys, types};

/// Who commits what, when.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) user: &'a str,
    pub(crate) message: &'a str,
    pub(crate) at: SystemTime,
    /// What the map of versions gets.
    pub(crate) versions: &'a VersionEdits,
}

/// Whether edits must obey the rules of node types, names and references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checks {
    /// They do, and what the repository sets itself is set.
    All,
    /// They do; they come from a package, which says what its nodes hold.
    Installed,
    /// They came from another instance, which judged them, and are stored as they are.
    None,
}

/// Commits edits that were made over `base`, together with what other sessions commit at the moment.
pub(crate) fn commit(base: &Snapshot, edits: &Overlay, change: &Change<'_>) -> Result<ChunkId> {
    commit_with(base, edits, change, Checks::All)
}

/// Commits edits like [`commit`], judged or as they are.
pub(crate) fn commit_with(
    base: &Snapshot,
    edits: &Overlay,
    change: &Change<'_>,
    checks: Checks,
) -> Result<ChunkId> {
    let commits = base.0.shared.commits.as_ref().ok_or(Error::NotContent(base.0.root))?;
    commits.committer.commit(|head| {
        let head = open_head(&commits.staged, head)?;
        let merged;
        let edits = if head.root == base.0.root {
            edits
        } else {
            merged = merge_onto(&base.0, edits, &head)?;
            &merged
        };
        let versions = version::merge_onto(&base.0, change.versions, &head)?;
        let change = &Change { versions: &versions, ..*change };
        if checks == Checks::None {
            return write(&head, edits, change);
        }
        let edits = types::check(&head, edits, change, checks)?;
        write(&head, &edits, change)
    })
}

/// Opens the state that the branch will name when everything staged is written.
fn open_head(staged: &Arc<Shared>, root: Option<ChunkId>) -> Result<View> {
    let root = root.ok_or(Error::NotContent(ChunkId::from_bytes([0; 32])))?;
    let maps = Root::read(staged.reads(), &root)?.maps;
    let content = maps.get(CONTENT).copied().ok_or(Error::NotContent(root))?;
    Ok(View::new(staged.clone(), root, content))
}

/// Stages edits onto a state with the move of the ref from it; nothing, and the old root, if they change nothing.
fn write(head: &View, edits: &Overlay, change: &Change<'_>) -> Result<(Batch, ChunkId)> {
    let shared = &head.shared;
    let mut batch = Batch::default();
    let mut writes = BTreeMap::new();
    let mut indexes = IndexEdits::default();
    for (key, record) in edits {
        let path = keys::path_of(key)?;
        let old = head.content.get(shared.reads(), key)?;
        let new = record.as_ref().map(|record| record.encode(&mut batch)).transpose()?;
        if old == new {
            continue;
        }
        note_change(head, &path, old.as_ref(), record.as_deref(), &mut indexes)?;
        writes.insert(key.clone(), new);
    }
    let mut maps = Root::read(shared.reads(), &head.root)?.maps;
    let versions = write_versions(&maps, change.versions, shared.reads(), &mut batch)?;
    if writes.is_empty() && maps.get(VERSIONS).copied().unwrap_or_default() == versions {
        return Ok((Batch::new(), head.root));
    }
    maps.insert(VERSIONS.to_owned(), versions);
    let content = head.content.edit(shared.reads(), &mut batch, writes)?;
    maps.insert(CONTENT.to_owned(), content);
    indexes.apply(&mut maps, shared.reads(), &mut batch)?;
    let new = Root { maps }.write(&mut batch)?;
    batch.move_ref(RefUpdate {
        name: shared.branch.clone(),
        expected: Some(head.root),
        new: Some(new),
        at: change.at,
        author: change.user.to_owned(),
        message: change.message.to_owned(),
    });
    Ok((batch, new))
}

/// Applies edits to the map of versions.
fn write_versions(
    maps: &BTreeMap<String, Map>,
    edits: &VersionEdits,
    reads: &dyn ReadChunks,
    batch: &mut Batch,
) -> Result<Map> {
    let map = maps.get(VERSIONS).copied().unwrap_or_default();
    let mut writes = BTreeMap::new();
    for (key, slot) in edits {
        let stored = slot.as_ref().map(|slot| slot.encode(batch)).transpose()?;
        writes.insert(key.clone(), stored);
    }
    Ok(map.edit(reads, batch, writes)?)
}

/// Derives the index edits of one changed document.
fn note_change(
    head: &View,
    path: &NodePath,
    old: Option<&Stored>,
    new: Option<&Record>,
    indexes: &mut IndexEdits,
) -> Result<()> {
    let damaged = || Error::Damaged { path: path.clone(), reason: "its record does not decode" };
    let old = old.map(|stored| Record::decode(stored).ok_or_else(damaged)).transpose()?;
    let old_body = old.as_ref().map(|record| head.body(record, path)).transpose()?;
    let new_body = new.map(|record| head.body(record, path)).transpose()?;
    indexes.change(path, old.as_ref().zip(old_body.as_deref()), new.zip(new_body.as_deref()));
    Ok(())
}

/// Merges edits over `base` onto the newer state `head`.
///
/// # Errors
/// [`Error::Conflicts`] with everything that both sides changed differently.
fn merge_onto(base: &View, edits: &Overlay, head: &View) -> Result<Overlay> {
    let mut conflicts = Vec::new();
    let mut merged = Overlay::new();
    for (key, ours) in edits {
        let path = keys::path_of(key)?;
        let (before, theirs) = (base.record(key, &path)?, head.record(key, &path)?);
        let is_untouched = base.content.get(base.shared.reads(), key)?
            == head.content.get(head.shared.reads(), key)?;
        let record = if is_untouched {
            ours.clone()
        } else {
            merge_record(
                &path,
                [before.as_deref(), ours.as_deref(), theirs.as_deref()],
                head,
                &mut conflicts,
            )?
        };
        if let Some(below) =
            (ours.is_none() && before.is_some()).then(|| keys::below(&path)).transpose()?
        {
            let strangers =
                head.records(&below)?.into_iter().filter(|(key, _)| !edits.contains_key(key));
            for (key, _) in strangers {
                conflicts.push(Conflict::of_node(
                    &keys::path_of(&key)?,
                    ConflictKind::RemoveChangedNode,
                ));
            }
        }
        merged.insert(key.clone(), record);
    }
    for (key, record) in &merged {
        let path = keys::path_of(key)?;
        if let (Some(_), Some(parent)) = (record, path.parent())
            && !has_container(&parent, &merged, head)?
        {
            conflicts.push(Conflict::of_node(&parent, ConflictKind::ChangeRemovedNode));
        }
    }
    let mut seen = BTreeSet::new();
    conflicts.retain(|one| seen.insert((one.path.clone(), one.kind.name(), one.property.clone())));
    if conflicts.is_empty() { deal_missing(head, merged) } else { Err(Error::Conflicts(conflicts)) }
}

/// Tells whether the merged state has a folder or page at `path` to hold records.
fn has_container(path: &NodePath, merged: &Overlay, head: &View) -> Result<bool> {
    let key = keys::key_of(path)?;
    let record = match merged.get(&key) {
        Some(record) => record.clone(),
        None => head.record(&key, path)?,
    };
    Ok(record.is_some_and(|record| is_container(path.name(), record.summary.primary_type())))
}

/// Merges one document that both sides touched: base, ours, theirs.
fn merge_record(
    path: &NodePath,
    sides: [Option<&Record>; 3],
    head: &View,
    conflicts: &mut Vec<Conflict>,
) -> Result<Option<Arc<Record>>> {
    let tree = |record: Option<&Record>| -> Result<Option<Subtree>> {
        let Some(record) = record else {
            return Ok(None);
        };
        let body = head.body(record, path)?;
        Ok(Some(body.subtree(body.root())))
    };
    let [base, ours, theirs] = sides;
    let mut trees = [tree(base)?, tree(ours)?, tree(theirs)?];
    types::adopt(&mut trees);
    let [before, mine, other] = trees.each_ref().map(Option::as_ref);
    let merged = merge(path, before, mine, other, conflicts);
    let Some(merged) = merged else {
        return Ok(None);
    };
    let order_of = |record: Option<&Record>| record.map(|record| record.order.clone());
    let order = if order_of(ours) == order_of(base) { order_of(theirs) } else { order_of(ours) };
    let record = Record::of(&merged, order.unwrap_or_default());
    let record = record.ok_or(Error::Refused {
        action: "merge",
        path: path.clone(),
        reason: "it is nested too deeply",
    })?;
    Ok(Some(Arc::new(record)))
}
