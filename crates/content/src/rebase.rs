//! Rebasing: edits that were made over one state, merged onto a newer one.
//!
//! In: the state that a session or branch began with, its edits by key, the newest state. Out: the edits to make there.
//!
//! Invariants
//! * Every record of the outcome has a folder or page above it that shows it as its child, and no document holds what its
//!   type gives a record of its own.
//! * What one side removed comes back only by a decision, also where the other side cut the nodes above it anew.
//!
//! On failure: conflicts, all of them; nodes inside of documents are `merge`'s.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::boundary::{is_container, is_own_content};
use crate::merge::{Clashes, merge};
use crate::record::Record;
use crate::recut::Recut;
use crate::siblings::deal_missing;
use crate::snapshot::{Overlay, View};
use crate::{
    Conflict, ConflictKind, Error, JCR_CONTENT, NodePath, PRIMARY_TYPE, Property, Result, Side,
    Subtree, keys, moved_apart, types,
};

/// Merges edits over `base` onto the newer state `head`; conflicts go to `clashes`.
pub(crate) fn merge_onto(
    base: &View,
    edits: &Overlay,
    head: &View,
    clashes: &mut Clashes<'_>,
) -> Result<Overlay> {
    let mut merged = Overlay::new();
    // What they keep although ours removed the folder above it, or made something else of it.
    let mut kept = BTreeSet::new();
    let mut recut = Recut::new(base, head);
    for (key, ours) in edits {
        let path = keys::path_of(key)?;
        let (before, theirs) = (base.record(key, &path)?, head.record(key, &path)?);
        recut.note(&path, [before.as_deref(), ours.as_deref(), theirs.as_deref()])?;
        let is_untouched = base.content.get(base.shared.reads(), key)?
            == head.content.get(head.shared.reads(), key)?;
        let record = if is_untouched {
            ours.clone()
        } else {
            let sides = [before.as_deref(), ours.as_deref(), theirs.as_deref()];
            merge_record(&path, sides, head, clashes)?
        };
        for stranger in strangers(&path, theirs.as_deref(), record.as_deref(), head)? {
            if edits.contains_key(&stranger) {
                continue;
            }
            let at = keys::path_of(&stranger)?;
            match clashes.settle(Conflict::of_node(&at, ConflictKind::RemoveChangedNode)) {
                Side::Mine => drop(merged.insert(stranger, None)),
                Side::Theirs => drop(kept.insert(at)),
            }
        }
        merged.insert(key.clone(), record);
    }
    for path in kept {
        let mut child = path;
        while let Some(parent) = child.parent() {
            let key = keys::key_of(&parent)?;
            let lets_go = |record: &Option<Arc<Record>>| !holds(&parent, record.as_deref(), &child);
            if merged.get(&key).is_some_and(lets_go)
                && holds(&parent, head.record(&key, &parent)?.as_deref(), &child)
            {
                merged.remove(&key);
            }
            child = parent;
        }
    }
    moved_apart::settle(base, edits, head, &mut merged, clashes)?;
    hold_children(base, edits, head, &mut merged, clashes)?;
    recut.keep_removals(edits, &mut merged, clashes)?;
    let mut seen = BTreeSet::new();
    let open = &mut clashes.open;
    open.retain(|one| seen.insert((one.path.clone(), one.kind.name(), one.property.clone())));
    deal_missing(head, merged)
}

/// Sees to it that every record has a folder or page above it: where they removed it, that is a conflict.
fn hold_children(
    base: &View,
    edits: &Overlay,
    head: &View,
    merged: &mut Overlay,
    clashes: &mut Clashes<'_>,
) -> Result<()> {
    // Parents come before their children.
    let records: Vec<Vec<u8>> =
        merged.iter().filter(|(_, record)| record.is_some()).map(|(key, _)| key.clone()).collect();
    for key in records {
        let path = keys::path_of(&key)?;
        let mut missing = Vec::new();
        let mut child = path;
        while let Some(parent) = child.parent() {
            let is_held = has_container(&parent, &child, merged, head)?;
            child = parent.clone();
            if is_held {
                break;
            }
            missing.push(parent);
        }
        let Some(nearest) = missing.first() else { continue };
        let clash = Conflict::of_node(nearest, ConflictKind::ChangeRemovedNode);
        match clashes.settle(clash) {
            Side::Mine => {
                for parent in missing {
                    let key = keys::key_of(&parent)?;
                    let ours = match edits.get(&key) {
                        Some(ours) => ours.clone(),
                        None => base.record(&key, &parent)?,
                    };
                    merged.insert(key, ours);
                }
            }
            Side::Theirs => drop(merged.remove(&key)),
        }
    }
    Ok(())
}

pub(crate) fn is_container_record(path: &NodePath, record: Option<&Record>) -> bool {
    record.is_some_and(|record| is_container(path.name(), record.summary.primary_type()))
}

/// Tells whether a folder or page holds a child as a record of its own.
fn holds(parent: &NodePath, record: Option<&Record>, child: &NodePath) -> bool {
    is_container_record(parent, record)
        && record.is_some_and(|one| !is_own_content(one.summary.primary_type(), child.name()))
}

/// Returns the keys of the records below a node that the state to merge onto has, and that the merged node would not
/// show as its children.
fn strangers(
    path: &NodePath,
    theirs: Option<&Record>,
    merged: Option<&Record>,
    head: &View,
) -> Result<Vec<Vec<u8>>> {
    if !is_container_record(path, theirs) {
        return Ok(Vec::new());
    }
    if !is_container_record(path, merged) {
        let records = head.records(&keys::below(path)?)?;
        return Ok(records.into_iter().map(|(key, _)| key).collect());
    }
    let content = path.child_unchecked(JCR_CONTENT);
    let key = keys::key_of(&content)?;
    let is_lost = holds(path, theirs, &content) && !holds(path, merged, &content);
    Ok(if is_lost && head.find(&key)?.is_some() { vec![key] } else { Vec::new() })
}

/// Tells whether the merged state has a folder or page at `path` to hold the record of a child.
fn has_container(path: &NodePath, child: &NodePath, merged: &Overlay, head: &View) -> Result<bool> {
    let key = keys::key_of(path)?;
    let record = match merged.get(&key) {
        Some(record) => record.clone(),
        None => head.record(&key, path)?,
    };
    Ok(holds(path, record.as_deref(), child))
}

/// Tells whether a document holds no child that its type gives a record of its own.
fn is_cut_by_rule(path: &NodePath, document: &Subtree) -> bool {
    let primary_type = document.primary_type();
    let mut children = document.children.iter();
    !is_container(path.name(), primary_type)
        || children.all(|child| is_own_content(primary_type, &child.name))
}

/// Merges one document that both sides touched: base, ours, theirs.
fn merge_record(
    path: &NodePath,
    sides: [Option<&Record>; 3],
    head: &View,
    clashes: &mut Clashes<'_>,
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
    let merged = merge(path, trees.each_ref().map(Option::as_ref), clashes);
    let Some(merged) = merged else {
        return Ok(None);
    };
    if !is_cut_by_rule(path, &merged) {
        // One side made a folder of it, the other put a child into the document.
        let types = trees.each_ref().map(|tree| tree.as_ref()?.properties.get(PRIMARY_TYPE));
        let [base, of_ours, of_theirs] = types.map(Option::<&Property>::cloned);
        let clash = Conflict {
            property: Some(PRIMARY_TYPE.to_owned()),
            base,
            ours: of_ours,
            theirs: of_theirs,
            ..Conflict::of_node(path, ConflictKind::ChangeChangedProperty)
        };
        let side = if clashes.settle(clash) == Side::Mine { ours } else { theirs };
        return Ok(side.cloned().map(Arc::new));
    }
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
