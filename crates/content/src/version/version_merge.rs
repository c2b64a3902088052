//! Merging the map of versions: versions that one side created, labeled, moved or removed, applied to the current state
//! of the other.
//!
//! Nothing conflicts. If both sides created a version with the same name, one gets the next free name. A version that
//! one side removed and the other labeled stays. A label that both sides assigned is placed as in the later commit.

use std::collections::{BTreeMap, BTreeSet};

use tympan_store::{ChunkBatch, ReadChunks, SortedMap};

use super::version_entry::{
    HistoryStatus, StoredVersion, VersionEdits, VersionHistory, VersionKeyRange, VersionMapEntry,
    VersionMapKey, parse_version_key, path_history_key, version_key,
};
use super::version_name::next_version_name;
use crate::snapshot::SnapshotView;
use crate::{Error, NodePath, Result};

/// Returns the edits that turn the first map into the second, except for versions of unwanted nodes.
pub(crate) fn version_edits_between(
    before: &SortedMap,
    after: &SortedMap,
    reads: &dyn ReadChunks,
    is_wanted: impl Fn(&NodePath) -> bool,
) -> Result<VersionEdits> {
    let mut edits = VersionEdits::new();
    for change in before.diff(after, reads) {
        let change = change?;
        let left =
            change.left.map(|stored| VersionMapEntry::decode(&change.key, &stored)).transpose()?;
        let right =
            change.right.map(|stored| VersionMapEntry::decode(&change.key, &stored)).transpose()?;
        let path = match (right.as_ref().or(left.as_ref()), parse_version_key(&change.key)?) {
            (_, VersionMapKey::PathHistory { path, .. }) => NodePath::new(path)?,
            (Some(VersionMapEntry::Version(stored_version)), _) => stored_version.path.clone(),
            (Some(VersionMapEntry::History(history)), _) => history.path.clone(),
            (_, VersionMapKey::Version { .. }) => return Err(empty_change_error()),
        };
        if is_wanted(&path) {
            edits.insert(change.key.to_vec(), right);
        }
    }
    Ok(edits)
}

/// Merges edits over `base` onto the newer state `head`.
pub(crate) fn merge_version_edits(
    base: &SnapshotView,
    edits: &VersionEdits,
    head: &SnapshotView,
) -> Result<VersionEdits> {
    if edits.is_empty() || base.root_id == head.root_id {
        return Ok(edits.clone());
    }
    let (before, now) = (base.version_map()?, head.version_map()?);
    if before == now {
        return Ok(edits.clone());
    }
    let mut merged = VersionEdits::new();
    let mut renamed = BTreeMap::new();
    for (key, ours) in edits {
        let old = before.get(base.repository_state.chunk_reader(), key)?;
        let theirs = now.get(head.repository_state.chunk_reader(), key)?;
        let old_slot =
            old.as_ref().map(|stored| VersionMapEntry::decode(key, stored)).transpose()?;
        let their_slot =
            theirs.as_ref().map(|stored| VersionMapEntry::decode(key, stored)).transpose()?;
        if let (Some(VersionMapEntry::Version(ours)), VersionMapKey::Version { history, name }) =
            (ours, parse_version_key(key)?)
        {
            let label_base = entry_version(old_slot.as_ref());
            merge_labels(ours, label_base, history, head, &mut merged)?;
            let their_version = entry_version(their_slot.as_ref()).filter(|_| old.is_none());
            if their_version
                .map(|their_version| is_same_version(ours, their_version))
                .transpose()?
                == Some(false)
            {
                renamed.insert(key.clone(), (history.to_owned(), name.to_owned()));
                continue;
            }
        }
        let slot = if old == theirs {
            ours.clone()
        } else {
            merge_entry(old_slot.as_ref(), ours.as_ref(), their_slot.as_ref())
        };
        merged.insert(key.clone(), slot);
    }
    for (key, (history, name)) in renamed {
        if let Some(Some(VersionMapEntry::Version(stored_version))) = edits.get(&key) {
            rename_version(stored_version, &history, &name, head, &mut merged)?;
        }
    }
    preserve_histories(base, head, &mut merged)?;
    preserve_path_histories(head, &mut merged)?;
    Ok(merged)
}

/// Preserves the history of versions that one side labeled while the other removed all of its versions.
fn preserve_histories(
    base: &SnapshotView,
    head: &SnapshotView,
    merged: &mut VersionEdits,
) -> Result<()> {
    let mut histories = Vec::new();
    for (key, _) in
        merged.iter().filter(|(_, slot)| matches!(slot, Some(VersionMapEntry::Version(_))))
    {
        let VersionMapKey::Version { history, .. } = parse_version_key(key)? else { continue };
        let history_key = version_key(history, "");
        let is_there = match merged.get(&history_key) {
            Some(slot) => slot.is_some(),
            None => head.version_history(history)?.is_some(),
        };
        if !is_there && let Some(stored_history) = base.version_history(history)? {
            histories.push((history.to_owned(), stored_history));
        }
    }
    for (history, stored_history) in histories {
        let path_key = path_history_key(&stored_history.path, &history);
        merged.insert(path_key, Some(VersionMapEntry::PathHistory(HistoryStatus::Current)));
        merged.insert(version_key(&history, ""), Some(VersionMapEntry::History(stored_history)));
    }
    Ok(())
}

/// Preserves the path of a history that one side emptied while the other continued it.
fn preserve_path_histories(head: &SnapshotView, merged: &mut VersionEdits) -> Result<()> {
    let mut current_keys = Vec::new();
    for key in merged.iter().filter(|(_, slot)| slot.is_none()).map(|(key, _)| key) {
        let VersionMapKey::PathHistory { path, history } = parse_version_key(key)? else {
            continue;
        };
        let stored_history = match merged.get(&version_key(history, "")) {
            Some(Some(VersionMapEntry::History(history_entry))) => Some(history_entry.clone()),
            Some(_) => None,
            None => head.version_history(history)?,
        };
        if stored_history.is_some_and(|stored_history| stored_history.path.as_str() == path) {
            current_keys.push(key.clone());
        }
    }
    for key in current_keys {
        merged.remove(&key);
    }
    Ok(())
}

/// Returns true if two entries come from the same check-in, received in two ways.
fn is_same_version(left: &StoredVersion, right: &StoredVersion) -> Result<bool> {
    let is_alike = (left.created_at, &left.user, &left.comment, &left.path)
        == (right.created_at, &right.user, &right.comment, &right.path);
    let (mut here, mut there) = (ChunkBatch::new(), ChunkBatch::new());
    Ok(is_alike && left.body.write_to_batch(&mut here)? == right.body.write_to_batch(&mut there)?)
}

/// Assigns the next free name to a version whose name another version has.
fn rename_version(
    stored_version: &StoredVersion,
    history: &str,
    name: &str,
    head: &SnapshotView,
    merged: &mut VersionEdits,
) -> Result<()> {
    let is_taken = |candidate: &str| -> Result<bool> {
        let key = version_key(history, candidate);
        Ok(merged.get(&key).is_some_and(Option::is_some) || head.version_entry(&key)?.is_some())
    };
    let (free, history_key) = (next_version_name(name, is_taken)?, version_key(history, ""));
    let last = match merged.get(&history_key) {
        Some(Some(VersionMapEntry::History(stored_history))) => stored_history.last_number,
        _ => stored_version.number,
    };
    let number = last
        .max(head.version_history(history)?.map_or(0, |head_history| head_history.last_number))
        + 1;
    if let Some(Some(VersionMapEntry::History(stored_history))) = merged.get_mut(&history_key) {
        stored_history.last_number = number;
        if stored_history.base_version == name {
            stored_history.base_version.clone_from(&free);
        }
    }
    let stored_version = StoredVersion { number, ..stored_version.clone() };
    merged.insert(version_key(history, &free), Some(VersionMapEntry::Version(stored_version)));
    Ok(())
}

/// Removes the labels that this side assigns to a version from the versions that have them on the other side.
fn merge_labels(
    ours: &StoredVersion,
    base: Option<&StoredVersion>,
    history: &str,
    head: &SnapshotView,
    merged: &mut VersionEdits,
) -> Result<()> {
    let is_new = |label: &&String| base.is_none_or(|base| !base.labels.contains(*label));
    let added_labels: BTreeSet<&String> = ours.labels.iter().filter(is_new).collect();
    if added_labels.is_empty() {
        return Ok(());
    }
    for (key, slot) in head.version_entries(&VersionKeyRange::of_history(history))? {
        let VersionMapEntry::Version(mut other_version) = slot else { continue };
        let before = other_version.labels.len();
        other_version.labels.retain(|label| !added_labels.contains(label));
        if other_version.labels.len() < before {
            merged.entry(key).or_insert(Some(VersionMapEntry::Version(other_version)));
        }
    }
    Ok(())
}

/// Merges an entry that both sides changed.
fn merge_entry(
    base: Option<&VersionMapEntry>,
    ours: Option<&VersionMapEntry>,
    theirs: Option<&VersionMapEntry>,
) -> Option<VersionMapEntry> {
    match (ours, theirs) {
        (Some(VersionMapEntry::Version(ours)), Some(VersionMapEntry::Version(theirs))) => {
            let none = BTreeSet::new();
            let old = entry_version(base).map_or(&none, |base| &base.labels);
            let added_labels = ours.labels.difference(old).cloned();
            let mut labels: BTreeSet<String> = theirs.labels.clone();
            labels.retain(|label| !old.contains(label) || ours.labels.contains(label));
            labels.extend(added_labels);
            Some(VersionMapEntry::Version(StoredVersion { labels, ..theirs.clone() }))
        }
        (Some(VersionMapEntry::History(ours)), Some(VersionMapEntry::History(theirs))) => {
            let was_at = match base {
                Some(VersionMapEntry::History(base)) => Some(&base.path),
                _ => None,
            };
            let path = if was_at == Some(&ours.path) { &theirs.path } else { &ours.path };
            Some(VersionMapEntry::History(VersionHistory {
                last_number: ours.last_number.max(theirs.last_number),
                base_version: ours.base_version.clone(),
                path: path.clone(),
            }))
        }
        // Removed on one side and changed on the other: the entry stays.
        (None, Some(theirs)) => Some(theirs.clone()),
        (ours, _) => ours.cloned(),
    }
}

fn entry_version(slot: Option<&VersionMapEntry>) -> Option<&StoredVersion> {
    match slot {
        Some(VersionMapEntry::Version(version)) => Some(version),
        _ => None,
    }
}

fn empty_change_error() -> Error {
    let reason = "the version map lists an empty change";
    Error::Damaged { path: NodePath::root(), reason }
}
