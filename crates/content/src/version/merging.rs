//! Merging the map of versions: what one side kept, labeled, moved or removed, onto what the other has now.
//!
//! Nothing clashes. A version that both sides kept under one name gets the next free name; one that one side removed
//! and the other labeled stays; a label that both sides gave goes where the later commit puts it.

use std::collections::{BTreeMap, BTreeSet};

use tympan_store::{Batch, Map, ReadChunks};

use super::check_in::next_name;
use super::entry::{History, Kept, Keys, Slot, Standing, Subject, place_key, subject, version_key};
use crate::snapshot::View;
use crate::{Error, NodePath, Result};

/// Pending edits of the map of versions by key: an entry put, or nothing where one was removed.
pub(crate) type VersionEdits = BTreeMap<Vec<u8>, Option<Slot>>;

/// Returns what makes the second map of the first, but for versions of nodes that are not wanted.
pub(crate) fn edits_between(
    before: &Map,
    after: &Map,
    reads: &dyn ReadChunks,
    is_wanted: impl Fn(&NodePath) -> bool,
) -> Result<VersionEdits> {
    let mut edits = VersionEdits::new();
    for change in before.diff(after, reads) {
        let change = change?;
        let left = change.left.map(|stored| Slot::decode(&change.key, &stored)).transpose()?;
        let right = change.right.map(|stored| Slot::decode(&change.key, &stored)).transpose()?;
        let path = match (right.as_ref().or(left.as_ref()), subject(&change.key)?) {
            (_, Subject::Place { path, .. }) => NodePath::new(path)?,
            (Some(Slot::Version(kept)), _) => kept.path.clone(),
            (Some(Slot::History(history)), _) => history.path.clone(),
            (_, Subject::Version { .. }) => return Err(crossed()),
        };
        if is_wanted(&path) {
            edits.insert(change.key.to_vec(), right);
        }
    }
    Ok(edits)
}

/// Merges edits over `base` onto the newer state `head`.
pub(crate) fn merge_onto(base: &View, edits: &VersionEdits, head: &View) -> Result<VersionEdits> {
    if edits.is_empty() || base.root == head.root {
        return Ok(edits.clone());
    }
    let (before, now) = (base.version_map()?, head.version_map()?);
    if before == now {
        return Ok(edits.clone());
    }
    let mut merged = VersionEdits::new();
    let mut renamed = BTreeMap::new();
    for (key, ours) in edits {
        let old = before.get(base.shared.reads(), key)?;
        let theirs = now.get(head.shared.reads(), key)?;
        let old_slot = old.as_ref().map(|stored| Slot::decode(key, stored)).transpose()?;
        let their_slot = theirs.as_ref().map(|stored| Slot::decode(key, stored)).transpose()?;
        if let (Some(Slot::Version(ours)), Subject::Version { history, name }) =
            (ours, subject(key)?)
        {
            let label_base = version_of(old_slot.as_ref());
            take_labels(ours, label_base, history, head, &mut merged)?;
            let other = version_of(their_slot.as_ref()).filter(|_| old.is_none());
            if other.map(|other| is_same_version(ours, other)).transpose()? == Some(false) {
                renamed.insert(key.clone(), (history.to_owned(), name.to_owned()));
                continue;
            }
        }
        let slot = if old == theirs {
            ours.clone()
        } else {
            merge_slot(old_slot.as_ref(), ours.as_ref(), their_slot.as_ref())
        };
        merged.insert(key.clone(), slot);
    }
    for (key, (history, name)) in renamed {
        if let Some(Some(Slot::Version(kept))) = edits.get(&key) {
            rename(kept, &history, &name, head, &mut merged)?;
        }
    }
    keep_histories(base, head, &mut merged)?;
    keep_places(head, &mut merged)?;
    Ok(merged)
}

/// Keeps the history of versions that one side labeled while the other took all of its versions away.
fn keep_histories(base: &View, head: &View, merged: &mut VersionEdits) -> Result<()> {
    let mut kept = Vec::new();
    for (key, _) in merged.iter().filter(|(_, slot)| matches!(slot, Some(Slot::Version(_)))) {
        let Subject::Version { history, .. } = subject(key)? else { continue };
        let known = version_key(history, "");
        let is_there = match merged.get(&known) {
            Some(slot) => slot.is_some(),
            None => head.history(history)?.is_some(),
        };
        if !is_there && let Some(known) = base.history(history)? {
            kept.push((history.to_owned(), known));
        }
    }
    for (history, known) in kept {
        let place = place_key(&known.path, &history);
        merged.insert(place, Some(Slot::Place(Standing::Current)));
        merged.insert(version_key(&history, ""), Some(Slot::History(known)));
    }
    Ok(())
}

/// Keeps the place of a history that one side emptied while the other went on with it.
fn keep_places(head: &View, merged: &mut VersionEdits) -> Result<()> {
    let mut kept = Vec::new();
    for key in merged.iter().filter(|(_, slot)| slot.is_none()).map(|(key, _)| key) {
        let Subject::Place { path, history } = subject(key)? else { continue };
        let known = match merged.get(&version_key(history, "")) {
            Some(Some(Slot::History(known))) => Some(known.clone()),
            Some(_) => None,
            None => head.history(history)?,
        };
        if known.is_some_and(|known| known.path.as_str() == path) {
            kept.push(key.clone());
        }
    }
    for key in kept {
        merged.remove(&key);
    }
    Ok(())
}

/// Tells whether two entries are of one check-in, which came here by two ways.
fn is_same_version(left: &Kept, right: &Kept) -> Result<bool> {
    let is_alike = (left.at, &left.user, &left.comment, &left.path)
        == (right.at, &right.user, &right.comment, &right.path);
    let (mut here, mut there) = (Batch::new(), Batch::new());
    Ok(is_alike && left.body.store(&mut here)? == right.body.store(&mut there)?)
}

/// Gives a version that another one took the name of the next free one.
fn rename(
    kept: &Kept,
    history: &str,
    name: &str,
    head: &View,
    merged: &mut VersionEdits,
) -> Result<()> {
    let is_taken = |candidate: &str| -> Result<bool> {
        let key = version_key(history, candidate);
        Ok(merged.get(&key).is_some_and(Option::is_some) || head.slot(&key)?.is_some())
    };
    let (free, history_key) = (next_name(name, is_taken)?, version_key(history, ""));
    let last = match merged.get(&history_key) {
        Some(Some(Slot::History(known))) => known.last,
        _ => kept.number,
    };
    let number = last.max(head.history(history)?.map_or(0, |known| known.last)) + 1;
    if let Some(Some(Slot::History(known))) = merged.get_mut(&history_key) {
        known.last = number;
        if known.base == name {
            known.base.clone_from(&free);
        }
    }
    let kept = Kept { number, ..kept.clone() };
    merged.insert(version_key(history, &free), Some(Slot::Version(kept)));
    Ok(())
}

/// Takes the labels that this side gives to a version from those that have them on the other side.
fn take_labels(
    ours: &Kept,
    base: Option<&Kept>,
    history: &str,
    head: &View,
    merged: &mut VersionEdits,
) -> Result<()> {
    let is_new = |label: &&String| base.is_none_or(|base| !base.labels.contains(*label));
    let given: BTreeSet<&String> = ours.labels.iter().filter(is_new).collect();
    if given.is_empty() {
        return Ok(());
    }
    for (key, slot) in head.slots(&Keys::of_history(history))? {
        let Slot::Version(mut other) = slot else { continue };
        let before = other.labels.len();
        other.labels.retain(|label| !given.contains(label));
        if other.labels.len() < before {
            merged.entry(key).or_insert(Some(Slot::Version(other)));
        }
    }
    Ok(())
}

/// Merges an entry that both sides changed.
fn merge_slot(base: Option<&Slot>, ours: Option<&Slot>, theirs: Option<&Slot>) -> Option<Slot> {
    match (ours, theirs) {
        (Some(Slot::Version(ours)), Some(Slot::Version(theirs))) => {
            let none = BTreeSet::new();
            let old = version_of(base).map_or(&none, |base| &base.labels);
            let given = ours.labels.difference(old).cloned();
            let mut labels: BTreeSet<String> = theirs.labels.clone();
            labels.retain(|label| !old.contains(label) || ours.labels.contains(label));
            labels.extend(given);
            Some(Slot::Version(Kept { labels, ..theirs.clone() }))
        }
        (Some(Slot::History(ours)), Some(Slot::History(theirs))) => {
            let was_at = match base {
                Some(Slot::History(base)) => Some(&base.path),
                _ => None,
            };
            let path = if was_at == Some(&ours.path) { &theirs.path } else { &ours.path };
            Some(Slot::History(History {
                last: ours.last.max(theirs.last),
                base: ours.base.clone(),
                path: path.clone(),
            }))
        }
        // Removed on one side, changed on the other: it stays.
        (None, Some(theirs)) => Some(theirs.clone()),
        (ours, _) => ours.cloned(),
    }
}

fn version_of(slot: Option<&Slot>) -> Option<&Kept> {
    match slot {
        Some(Slot::Version(kept)) => Some(kept),
        _ => None,
    }
}

fn crossed() -> Error {
    let reason = "its map of versions lists a change of nothing";
    Error::Damaged { path: NodePath::root(), reason }
}
