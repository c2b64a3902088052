//! Rebasing: merges edits made over one state onto a newer state.
//!
//! In: the state that a session or branch began with, its edits by key, the newest state. Out: the edits to apply to
//! the newest state.
//!
//! Invariants
//! * Every record of the result has a folder or page above it that lists it as its child, and no document contains a
//!   node that should have a record of its own by its type.
//! * What one side removed is restored only by an explicit decision, even if the other side split the nodes above it
//!   into records differently.
//!
//! On failure: all conflicts. Conflicts of nodes inside documents are handled by `merge`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::commit::merge_conflicts::MergeConflicts;
use crate::commit::node_merge::merge_node;
use crate::document::boundary::{is_container, is_own_content};
use crate::document::boundary_change::BoundaryChanges;
use crate::document::record::{ContentRecord, is_container_record};
use crate::document::sibling::assign_missing_order_keys;
use crate::node_type::adopt_created_items;
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{
    ConflictKind, Error, JCR_CONTENT, MergeConflict, MergeSide, NodePath, PRIMARY_TYPE, Property,
    Result, Subtree, commit::diverged_move, document::record_key,
};

/// Merges edits over `base` onto the newer state `head`; the conflicts are added to `conflicts`.
pub(crate) fn merge_record_edits(
    base: &SnapshotView,
    edits: &RecordEdits,
    head: &SnapshotView,
    conflicts: &mut MergeConflicts<'_>,
) -> Result<RecordEdits> {
    let mut merged = RecordEdits::new();
    // Records retained on their side, although our side removed the folder above or changed its type.
    let mut their_paths = BTreeSet::new();
    let mut recut = BoundaryChanges::new(base, head);
    for (key, ours) in edits {
        let path = record_key::record_path(key)?;
        let (before, theirs) = (base.read_record(key, &path)?, head.read_record(key, &path)?);
        recut.record_edit(&path, [before.as_deref(), ours.as_deref(), theirs.as_deref()])?;
        let is_untouched = base.content_map.get(base.repository_state.chunk_reader(), key)?
            == head.content_map.get(head.repository_state.chunk_reader(), key)?;
        let record = if is_untouched {
            ours.clone()
        } else {
            let sides = [before.as_deref(), ours.as_deref(), theirs.as_deref()];
            merge_record(&path, sides, head, conflicts)?
        };
        for foreign_path in foreign_record_keys(&path, theirs.as_deref(), record.as_deref(), head)?
        {
            if edits.contains_key(&foreign_path) {
                continue;
            }
            let at = record_key::record_path(&foreign_path)?;
            match conflicts.resolve(MergeConflict::for_node(&at, ConflictKind::RemoveChangedNode)) {
                MergeSide::Ours => drop(merged.insert(foreign_path, None)),
                MergeSide::Theirs => drop(their_paths.insert(at)),
            }
        }
        merged.insert(key.clone(), record);
    }
    for path in their_paths {
        let mut child = path;
        while let Some(parent) = child.parent() {
            let key = record_key::record_key(&parent)?;
            let lets_go = |record: &Option<Arc<ContentRecord>>| {
                !can_hold_child(&parent, record.as_deref(), &child)
            };
            if merged.get(&key).is_some_and(lets_go)
                && can_hold_child(&parent, head.read_record(&key, &parent)?.as_deref(), &child)
            {
                merged.remove(&key);
            }
            child = parent;
        }
    }
    diverged_move::resolve_diverged_moves(base, edits, head, &mut merged, conflicts)?;
    ensure_containers(base, edits, head, &mut merged, conflicts)?;
    recut.apply_removals(edits, &mut merged, conflicts)?;
    let mut keys = BTreeSet::new();
    let open = &mut conflicts.unresolved;
    open.retain(|conflict| {
        keys.insert((conflict.path.clone(), conflict.kind.name(), conflict.property.clone()))
    });
    assign_missing_order_keys(head, merged)
}

/// Ensures that every record has a folder or page above it. If their side removed it, that is a conflict.
fn ensure_containers(
    base: &SnapshotView,
    edits: &RecordEdits,
    head: &SnapshotView,
    merged: &mut RecordEdits,
    conflicts: &mut MergeConflicts<'_>,
) -> Result<()> {
    // Parents are processed before their children.
    let records: Vec<Vec<u8>> =
        merged.iter().filter(|(_, record)| record.is_some()).map(|(key, _)| key.clone()).collect();
    for key in records {
        let path = record_key::record_path(&key)?;
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
        let conflict = MergeConflict::for_node(nearest, ConflictKind::ChangeRemovedNode);
        match conflicts.resolve(conflict) {
            MergeSide::Ours => {
                for parent in missing {
                    let key = record_key::record_key(&parent)?;
                    let ours = match edits.get(&key) {
                        Some(ours) => ours.clone(),
                        None => base.read_record(&key, &parent)?,
                    };
                    merged.insert(key, ours);
                }
            }
            MergeSide::Theirs => drop(merged.remove(&key)),
        }
    }
    Ok(())
}

/// Returns true if a folder or page stores a child as a record of its own.
fn can_hold_child(parent: &NodePath, record: Option<&ContentRecord>, child: &NodePath) -> bool {
    is_container_record(parent, record)
        && record.is_some_and(|parent_record| {
            !is_own_content(parent_record.summary.primary_type(), child.name())
        })
}

/// Returns the keys of the records below a node that exist in the target state and that the merged node would not list
/// as its children.
fn foreign_record_keys(
    path: &NodePath,
    theirs: Option<&ContentRecord>,
    merged: Option<&ContentRecord>,
    head: &SnapshotView,
) -> Result<Vec<Vec<u8>>> {
    if !is_container_record(path, theirs) {
        return Ok(Vec::new());
    }
    if !is_container_record(path, merged) {
        let records = head.records_in_range(&record_key::descendant_key_range(path)?)?;
        return Ok(records.into_iter().map(|(key, _)| key).collect());
    }
    let content = path.child_unchecked(JCR_CONTENT);
    let key = record_key::record_key(&content)?;
    let is_lost = can_hold_child(path, theirs, &content) && !can_hold_child(path, merged, &content);
    Ok(if is_lost && head.find_record(&key)?.is_some() { vec![key] } else { Vec::new() })
}

/// Returns true if the merged state has a folder or page at `path` that can hold the record of a child.
fn has_container(
    path: &NodePath,
    child: &NodePath,
    merged: &RecordEdits,
    head: &SnapshotView,
) -> Result<bool> {
    let key = record_key::record_key(path)?;
    let record = match merged.get(&key) {
        Some(record) => record.clone(),
        None => head.read_record(&key, path)?,
    };
    Ok(can_hold_child(path, record.as_deref(), child))
}

/// Returns true if a document contains no child that should have a record of its own by its type.
fn is_split_by_type(path: &NodePath, document: &Subtree) -> bool {
    let primary_type = document.primary_type();
    let mut children = document.children.iter();
    !is_container(path.name(), primary_type)
        || children.all(|child| is_own_content(primary_type, &child.name))
}

/// Merges one document that both sides changed: base, ours, theirs.
fn merge_record(
    path: &NodePath,
    sides: [Option<&ContentRecord>; 3],
    head: &SnapshotView,
    conflicts: &mut MergeConflicts<'_>,
) -> Result<Option<Arc<ContentRecord>>> {
    let tree = |record: Option<&ContentRecord>| -> Result<Option<Subtree>> {
        let Some(record) = record else {
            return Ok(None);
        };
        let body = head.load_body(record, path)?;
        Ok(Some(body.subtree(body.root())))
    };
    let [base, ours, theirs] = sides;
    let mut trees = [tree(base)?, tree(ours)?, tree(theirs)?];
    adopt_created_items(&mut trees);
    let merged = merge_node(path, trees.each_ref().map(Option::as_ref), conflicts);
    let Some(merged) = merged else {
        return Ok(None);
    };
    if !is_split_by_type(path, &merged) {
        // One side turned the document into a folder, the other added a child inside the document.
        let types = trees.each_ref().map(|tree| tree.as_ref()?.properties.get(PRIMARY_TYPE));
        let [base, of_ours, of_theirs] = types.map(Option::<&Property>::cloned);
        let conflict = MergeConflict {
            property: Some(PRIMARY_TYPE.to_owned()),
            base,
            ours: of_ours,
            theirs: of_theirs,
            ..MergeConflict::for_node(path, ConflictKind::ChangeChangedProperty)
        };
        let side = if conflicts.resolve(conflict) == MergeSide::Ours { ours } else { theirs };
        return Ok(side.cloned().map(Arc::new));
    }
    let order_of = |record: Option<&ContentRecord>| record.map(|record| record.order_key.clone());
    let order = if order_of(ours) == order_of(base) { order_of(theirs) } else { order_of(ours) };
    let record = ContentRecord::from_subtree(&merged, order.unwrap_or_default());
    let record = record.ok_or(Error::InvalidEdit {
        action: "merge",
        path: path.clone(),
        reason: "it is nested too deeply",
    })?;
    Ok(Some(Arc::new(record)))
}
