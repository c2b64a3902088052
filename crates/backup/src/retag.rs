//! Changing tags of snapshots, and copying snapshots to another vault.
//!
//! A snapshot never changes: one with other tags is a new one that names the old one as its original, as in restic, and
//! the old one is removed.

use std::collections::HashSet;

use rayon::prelude::*;

use crate::backend::VaultFileKind;
use crate::error::Result;
use crate::inspection::walk_trees;
use crate::object_id::VaultObjectId;
use crate::save::SaveSession;
use crate::vault::lock::VaultLock;
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::{PackWriter, WriteTotals};
use crate::vault::snapshot::{INCOMPLETE_TAG, VaultSnapshot, is_internal_tag};
use crate::vault::{IndexedVault, Vault};

/// A change of tags. Internal tags always stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// Replaces the tags.
    Set(Vec<String>),
    /// Adds and removes tags.
    Edit {
        /// Tags to add.
        add: Vec<String>,
        /// Tags to remove.
        remove: Vec<String>,
    },
}

impl TagChange {
    /// Returns the tags after the change.
    fn apply(&self, tags: &[String]) -> Vec<String> {
        let is_fixed =
            |tag: &String| is_internal_tag(tag) || tag == INCOMPLETE_TAG || tag == "tympan";
        let (fixed, mut free): (Vec<String>, Vec<String>) =
            tags.iter().cloned().partition(is_fixed);
        match self {
            Self::Set(tags) => free.clone_from(tags),
            Self::Edit { add, remove } => {
                free.retain(|tag| !remove.contains(tag));
                free.extend(add.iter().cloned());
            }
        }
        let mut seen = HashSet::new();
        fixed.into_iter().chain(free).filter(|tag| seen.insert(tag.clone())).collect()
    }
}

/// Changes the tags of a snapshot; returns the id of the new one, or `None` if the tags are the same. `lock` is
/// exclusive.
///
/// # Errors
/// A failed write or removal. The old snapshot is removed after the new one is written.
pub fn change_tags(
    vault: &Vault,
    lock: &VaultLock,
    snapshot: &VaultSnapshot,
    change: &TagChange,
) -> Result<Option<VaultObjectId>> {
    let tags = change.apply(snapshot.tags());
    if tags == snapshot.tags() {
        return Ok(None);
    }
    lock.check_held()?;
    let changed = VaultSnapshot {
        original: snapshot.original.or(Some(snapshot.id)),
        tags: (!tags.is_empty()).then_some(tags),
        ..snapshot.clone()
    };
    let id = vault.files().write_json(VaultFileKind::Snapshot, &changed)?;
    lock.check_held()?;
    vault.remove_snapshot(&snapshot.id)?;
    Ok(Some(id))
}

/// Copies a snapshot with everything that it refers to into the vault of a session; returns the new id and the amount
/// written; `None` if that vault already has a copy of it.
///
/// # Errors
/// Data that cannot be read from the one vault or written to the other. Nothing refers to the data written until then.
pub fn copy_snapshot(
    IndexedVault { vault: from, index: from_index }: IndexedVault<'_>,
    snapshot: &VaultSnapshot,
    session: &SaveSession<'_>,
) -> Result<Option<(VaultObjectId, WriteTotals)>> {
    let original = snapshot.original.unwrap_or(snapshot.id);
    let is_copy = |other_snapshot: &VaultSnapshot| {
        other_snapshot.original == Some(original)
            && other_snapshot.tree == snapshot.tree
            && other_snapshot.tags() == snapshot.tags()
    };
    if session
        .vault
        .read_snapshots()?
        .iter()
        .any(|other_snapshot| other_snapshot.id == snapshot.id || is_copy(other_snapshot))
    {
        return Ok(None);
    }
    let writer = PackWriter::new(session.vault, session.index, session.lock);
    let copy = |kind: PackBlobKind, id: &VaultObjectId| {
        if !writer.contains(kind, id) {
            session.progress.check_running()?;
            let bytes = from.read_blob(from_index, kind, id)?;
            writer.add_blob(kind, &bytes)?;
            session.progress.add_done(1, bytes.len() as u64);
        }
        Ok(())
    };
    walk_trees(IndexedVault::new(from, from_index), &[snapshot.tree], &mut |id, tree| {
        let pieces: Vec<VaultObjectId> =
            tree?.nodes.into_iter().flat_map(|node| node.content.unwrap_or_default()).collect();
        pieces.par_iter().try_for_each(|id| copy(PackBlobKind::Data, id))?;
        copy(PackBlobKind::Tree, id)
    })?;
    let (written, _) = writer.finish(session.lock)?;
    session.lock.check_held()?;
    // The parent is not in the target vault.
    let copied = VaultSnapshot { original: Some(original), parent: None, ..snapshot.clone() };
    let id = session.vault.files().write_json(VaultFileKind::Snapshot, &copied)?;
    Ok(Some((id, written)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_programs_stay() {
        let words =
            |words: &[&str]| -> Vec<String> { words.iter().map(ToString::to_string).collect() };
        let tags = words(&["tympan", "root:1", "incomplete", "old", "both"]);
        let set = TagChange::Set(words(&["new", "new"]));
        assert_eq!(set.apply(&tags), ["tympan", "root:1", "incomplete", "new"]);
        let edit = TagChange::Edit { add: words(&["new"]), remove: words(&["old", "root:1"]) };
        assert_eq!(edit.apply(&tags), ["tympan", "root:1", "incomplete", "both", "new"]);
    }
}
