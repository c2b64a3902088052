//! Commits: pending edits become a new revision of the branch.
//!
//! In: the state a session began with, its edits by key, and who commits when. Out: the new root.
//!
//! Invariants
//! * Content map and index maps change in one write; the ref moves with it by compare-and-swap.
//! * Edits are merged onto the newest state document by document; what others changed is kept.
//!
//! On failure: nothing is written; conflicts are reported all at once.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{Batch, ChunkId, Map, ReadChunks, RefUpdate, Root, Value as Stored};

use crate::blame::explain;
use crate::counter::{add_increments, take_increments};
use crate::index::{IndexEdits, Maps};
use crate::merge::Clashes;
use crate::property_index::{self, DEFINITIONS, Definitions};
use crate::rebase::merge_onto;
use crate::record::Record;
use crate::repository::{CONTENT, Shared};
use crate::snapshot::{Overlay, View};
use crate::types::SYSTEM;
use crate::version::{self, VERSIONS, VersionEdits};
use crate::withdrawal::{self, ReplicationNotes, VisitorEdits};
use crate::{
    ChangeKind, Conflict, Error, MergeChoice, NodePath, Result, Side, Snapshot, keys, types,
};

/// Who commits what, when.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) user: &'a str,
    pub(crate) message: &'a str,
    pub(crate) at: SystemTime,
    /// What the map of versions gets.
    pub(crate) versions: &'a VersionEdits,
    /// What was moved from where to where, in order.
    pub(crate) moves: &'a [(NodePath, NodePath)],
    /// For a commit by which replication notes what it does: what that is.
    pub(crate) replication: Option<&'a ReplicationNotes>,
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
    /// The same, for an author that replicates what it received further on: what its visitors have is its own affair.
    Received,
}

/// What a commit with decisions has done.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) root: ChunkId,
    pub(crate) changes: Vec<(NodePath, ChangeKind)>,
    pub(crate) decided: Vec<(Conflict, Side)>,
}

/// What must hold for the state that a commit is written over, whatever others commit before.
pub(crate) struct Conditions<'a> {
    /// The keys of documents that must be as they are in the state that the session began with.
    pub(crate) guarded: &'a BTreeSet<Vec<u8>>,
    /// Refuses what the policies of that state forbid.
    pub(crate) permit: &'a dyn Fn(&View) -> Result<()>,
}

/// Commits edits that were made over `base`, together with what other sessions commit at the moment.
///
/// # Errors
/// [`Error::Conflicts`] with every clash and who made it, [`Error::Stale`] for a guarded document, what `permit` says;
/// nothing is written then.
pub(crate) fn commit(
    base: &Snapshot,
    edits: &Overlay,
    conditions: &Conditions<'_>,
    change: &Change<'_>,
    checks: Checks,
) -> Result<ChunkId> {
    let taken = take_increments(edits)?;
    let (edits, increments) = match &taken {
        Some((edits, increments)) => (edits, increments.as_slice()),
        None => (edits, [].as_slice()),
    };
    let choice = MergeChoice::default();
    stage(base, change, checks, &|_| Ok(()), |head| {
        (conditions.permit)(head)?;
        if head.root == base.0.root && increments.is_empty() {
            return Ok((Cow::Borrowed(edits), ()));
        }
        check_guarded(&base.0, conditions.guarded, head)?;
        let mut clashes = Clashes::new(&choice);
        let mut merged = match head.root == base.0.root {
            true => edits.clone(),
            false => merge_onto(&base.0, edits, head, &mut clashes)?,
        };
        add_increments(&mut merged, increments, head, &mut clashes)?;
        settled(clashes)?;
        Ok((Cow::Owned(merged), ()))
    })
    .map(|(root, ())| root)
}

/// Commits what a branch has changed since `base`, with decisions about conflicts; `also` adds to the same write.
///
/// # Errors
/// [`Error::Conflicts`] with every clash that is not decided, and who made it; nothing is written then.
pub(crate) fn commit_decided(
    base: &Snapshot,
    edits: &Overlay,
    change: &Change<'_>,
    choice: &MergeChoice,
    also: &dyn Fn(&mut Batch) -> Result<()>,
) -> Result<Done> {
    // What a branch holds was completed when it was committed there.
    let done = stage(base, change, Checks::Installed, also, |head| {
        let (merged, clashes) = merge_decided(&base.0, edits, head, choice)?;
        let changes = changes_of(&merged, head)?;
        Ok((Cow::Owned(merged), (changes, settled(clashes)?)))
    });
    done.map(|(root, (changes, decided))| Done { root, changes, decided })
}

/// Merges what a branch has changed since `base` onto a state.
pub(crate) fn merge_decided<'a>(
    base: &View,
    edits: &Overlay,
    head: &View,
    choice: &'a MergeChoice,
) -> Result<(Overlay, Clashes<'a>)> {
    let mut clashes = Clashes::new(choice);
    let merged = merge_onto(base, edits, head, &mut clashes)?;
    Ok((merged, clashes))
}

/// Returns what edits change in a state.
pub(crate) fn changes_of(edits: &Overlay, head: &View) -> Result<Vec<(NodePath, ChangeKind)>> {
    let mut changes = Vec::new();
    for (key, record) in edits {
        let old = head.content.get(head.shared.reads(), key)?;
        let new = record.as_ref().map(|record| record.encode(&mut Batch::new())).transpose()?;
        if let Some(kind) = ChangeKind::of(old.is_some(), new.is_some())
            && old != new
        {
            changes.push((keys::path_of(key)?, kind));
        }
    }
    Ok(changes)
}

/// Stages what `merge` makes for the newest state, and what is added to it, in one group with what other sessions commit
/// at the moment.
fn stage<'a, T>(
    base: &Snapshot,
    change: &Change<'_>,
    checks: Checks,
    also: &dyn Fn(&mut Batch) -> Result<()>,
    mut merge: impl FnMut(&View) -> Result<(Cow<'a, Overlay>, T)>,
) -> Result<(ChunkId, T)> {
    let commits = base.0.shared.commits.as_ref().ok_or(Error::NotContent(base.0.root))?;
    let done = commits.committer.commit(|head| {
        let head = open_head(&commits.staged, head)?;
        let (mut edits, more) = merge(&head)?;
        let versions = version::merge_onto(&base.0, change.versions, &head)?;
        let change = &Change { versions: &versions, ..*change };
        let (mut batch, root) = match checks {
            Checks::None => write(&head, &edits, change, &VisitorEdits::default())?,
            _ => {
                let moves = withdrawal::moves(&head, &edits, change)?;
                if change.replication.is_none() {
                    let stamped = withdrawal::with_own_stamps(&head, &edits)?;
                    if !stamped.is_empty() {
                        edits.to_mut().extend(stamped);
                    }
                }
                let edits = match checks {
                    Checks::Received => Cow::Borrowed(&*edits),
                    _ => types::check(&head, &edits, change, checks)?,
                };
                let withdrawals = withdrawal::edits(&head, &edits, change, &moves)?;
                write(&head, &edits, change, &withdrawals)?
            }
        };
        also(&mut batch)?;
        Ok((batch, (root, more)))
    });
    done.map_err(|error| match error {
        Error::Conflicts(mut conflicts) => {
            explain(&base.0.shared, base.0.root, &mut conflicts);
            Error::Conflicts(conflicts)
        }
        error => error,
    })
}

/// Returns the conflicts that were decided.
///
/// # Errors
/// [`Error::Conflicts`] if any was not.
fn settled(clashes: Clashes<'_>) -> Result<Vec<(Conflict, Side)>> {
    if clashes.open.is_empty() { Ok(clashes.decided) } else { Err(Error::Conflicts(clashes.open)) }
}

/// Refuses the commit if somebody else changed a document that was to stay as it was.
fn check_guarded(base: &View, guarded: &BTreeSet<Vec<u8>>, head: &View) -> Result<()> {
    for key in guarded {
        let before = base.content.get(base.shared.reads(), key)?;
        if before != head.content.get(head.shared.reads(), key)? {
            return Err(Error::Stale(keys::path_of(key)?));
        }
    }
    Ok(())
}

/// Opens the state that the branch will name when everything staged is written.
pub(crate) fn open_head(staged: &Arc<Shared>, root: Option<ChunkId>) -> Result<View> {
    let root = root.ok_or(Error::NotContent(ChunkId::from_bytes([0; 32])))?;
    let maps = Root::read(staged.reads(), &root)?.maps;
    let content = maps.get(CONTENT).copied().ok_or(Error::NotContent(root))?;
    Ok(View::new(staged.clone(), root, content))
}

/// Stages edits onto a state with the move of the ref from it; nothing, and the old root, if they change nothing.
fn write(
    head: &View,
    edits: &Overlay,
    change: &Change<'_>,
    withdrawals: &VisitorEdits,
) -> Result<(Batch, ChunkId)> {
    let mut batch = Batch::new();
    let maps = edited_maps(head, edits, change.versions, &mut batch)?;
    let reads = head.shared.reads();
    let before = match &maps {
        Some(maps) => maps.clone(),
        None => Root::read(reads, &head.root)?.maps,
    };
    let mut after = before.clone();
    withdrawal::write(&mut after, withdrawals, reads, &mut batch)?;
    if maps.is_none() && after == before {
        return Ok((Batch::new(), head.root));
    }
    let new = Root { maps: after }.write(&mut batch)?;
    batch.move_ref(RefUpdate {
        name: head.shared.branch.clone(),
        expected: Some(head.root),
        new: Some(new),
        at: change.at,
        author: change.user.to_owned(),
        message: change.message.to_owned(),
    });
    Ok((batch, new))
}

/// Stages the state that edits make of another, with its index maps; nothing if they change nothing.
pub(crate) fn write_root(
    head: &View,
    edits: &Overlay,
    versions: &VersionEdits,
    batch: &mut Batch,
) -> Result<Option<ChunkId>> {
    let maps = edited_maps(head, edits, versions, batch)?;
    Ok(maps.map(|maps| Root { maps }.write(batch)).transpose()?)
}

/// Stages the maps that edits make of those of another state; nothing if they change nothing.
pub(crate) fn edited_maps(
    head: &View,
    edits: &Overlay,
    versions: &VersionEdits,
    batch: &mut Batch,
) -> Result<Option<BTreeMap<String, Map>>> {
    let shared = &head.shared;
    let mut writes = BTreeMap::new();
    let before = Definitions::cached(head)?;
    let after = definitions_after(head, edits, &before)?;
    let mut indexes = IndexEdits::new(Maps::All, after.clone());
    for (key, record) in edits {
        let path = keys::path_of(key)?;
        let old = head.content.get(shared.reads(), key)?;
        let new = record.as_ref().map(|record| record.encode(batch)).transpose()?;
        if old == new {
            continue;
        }
        note_change(head, &path, old.as_ref(), record.as_deref(), &mut indexes)?;
        writes.insert(key.clone(), new);
    }
    let mut maps = Root::read(shared.reads(), &head.root)?.maps;
    let versions = write_versions(&maps, versions, shared.reads(), batch)?;
    if writes.is_empty() && maps.get(VERSIONS).copied().unwrap_or_default() == versions {
        return Ok(None);
    }
    maps.insert(VERSIONS.to_owned(), versions);
    let content = head.content.edit(shared.reads(), batch, writes)?;
    maps.insert(CONTENT.to_owned(), content);
    property_index::drop_stale(&mut maps, &before, &after);
    indexes.apply(&mut maps, shared.reads(), batch)?;
    Ok(Some(maps))
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

/// Returns the property indexes that edits lead to.
fn definitions_after(
    head: &View,
    edits: &Overlay,
    before: &Arc<Definitions>,
) -> Result<Arc<Definitions>> {
    let folder = NodePath::new(DEFINITIONS)?;
    let below = keys::below(&folder)?;
    let folder = keys::key_of(&folder)?;
    let system = NodePath::new(SYSTEM)?;
    let (types, below_system) = (keys::key_of(&system)?, keys::below(&system)?);
    let has_types = before.has_types();
    let is_about = |key: &Vec<u8>| {
        *key == folder
            || below.contains(key)
            || (has_types && (*key == types || below_system.contains(key)))
    };
    if !edits.keys().any(is_about) {
        return Ok(before.clone());
    }
    let mut edited = head.clone();
    edited.overlay = edits.clone();
    Definitions::read(&edited)
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
