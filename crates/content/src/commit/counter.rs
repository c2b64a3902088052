//! Atomic counters: a value of `oak:increment` on a node with the mixin `mix:atomicCounter` is added to its
//! `oak:counter` at the commit; `oak:increment` is then removed.
//!
//! Invariants
//! * Increments of any number of sessions and processes add up exactly: an increment is removed from a session's edits
//!   before they are merged, and added to the counter of the state that they are merged onto.
//! * Increments on two branches add up when the branches are merged.

use std::sync::Arc;

use crate::commit::merge_conflicts::MergeConflicts;
use crate::document::record::{ContentRecord, RecordBody};
use crate::model::subtree::MIXIN_TYPES;
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{
    ConflictKind, Error, MergeConflict, MergeSide, NodePath, Property, Result, Subtree, Value,
    document::record_key,
};

const COUNTER_PROPERTY: &str = "oak:counter";
const INCREMENT_PROPERTY: &str = "oak:increment";

/// The increment of one counter.
#[derive(Debug, Clone)]
pub(crate) struct CounterIncrement {
    document_path: NodePath,
    /// The node's path relative to its document.
    relative_path: String,
    amount: i64,
}

/// Extracts the increments from edits; without any, the edits are not copied.
pub(crate) fn extract_increments(
    edits: &RecordEdits,
) -> Result<Option<(RecordEdits, Vec<CounterIncrement>)>> {
    let mut increments = Vec::new();
    let mut changed = Vec::new();
    for (key, record) in edits {
        let Some(record) = record else { continue };
        let RecordBody::Pending(body) = &record.body else { continue };
        if !body.has_name(INCREMENT_PROPERTY) {
            continue;
        }
        let document = record_key::record_path(key)?;
        let mut tree = body.subtree(body.root());
        let before = increments.len();
        extract_from_tree(&mut tree, &document, "", &mut increments);
        if increments.len() > before {
            let record = ContentRecord::from_subtree(&tree, record.order_key.clone())
                .ok_or_else(|| too_deep_error(&document))?;
            changed.push((key.clone(), Some(Arc::new(record))));
        }
    }
    if increments.is_empty() {
        return Ok(None);
    }
    let mut edits = edits.clone();
    edits.extend(changed);
    Ok(Some((edits, increments)))
}

fn extract_from_tree(
    tree: &mut Subtree,
    document: &NodePath,
    relative: &str,
    increments: &mut Vec<CounterIncrement>,
) {
    if is_counter(tree)
        && let Some(amount) = tree.properties.get(INCREMENT_PROPERTY).and_then(increment_amount)
    {
        tree.properties.remove(INCREMENT_PROPERTY);
        tree.properties.entry(COUNTER_PROPERTY.to_owned()).or_insert(Value::Long(0).into());
        let (document, relative) = (document.clone(), relative.to_owned());
        increments.push(CounterIncrement {
            document_path: document,
            relative_path: relative,
            amount,
        });
    }
    for child in &mut tree.children {
        let relative = match relative {
            "" => child.name.clone(),
            above => format!("{above}/{}", child.name),
        };
        extract_from_tree(child, document, &relative, increments);
    }
}

/// Returns the increment in a property: a single integer, or its text as sent by a form.
fn increment_amount(property: &Property) -> Option<i64> {
    match property {
        Property::Single(Value::Long(amount)) => Some(*amount),
        Property::Single(Value::String(text)) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Adds increments to the counters of the merged state.
pub(crate) fn apply_increments(
    merged: &mut RecordEdits,
    increments: &[CounterIncrement],
    head: &SnapshotView,
    conflicts: &mut MergeConflicts<'_>,
) -> Result<()> {
    for CounterIncrement { document_path: document, relative_path: relative, amount } in increments
    {
        let key = record_key::record_key(document)?;
        let record = match merged.get(&key) {
            Some(record) => record.clone(),
            None => head.read_record(&key, document)?,
        };
        let node = document.resolve(if relative.is_empty() { "." } else { relative })?;
        let Some(record) = record else {
            record_removed_counter(&node, conflicts);
            continue;
        };
        let body = head.load_body(&record, document)?;
        let mut tree = body.subtree(body.root());
        let Some(counter) = tree.find_descendant_mut(relative) else {
            record_removed_counter(&node, conflicts);
            continue;
        };
        let count =
            counter.properties.get(COUNTER_PROPERTY).and_then(increment_amount).unwrap_or(0);
        let count = Value::Long(count.saturating_add(*amount));
        counter.properties.insert(COUNTER_PROPERTY.to_owned(), count.into());
        let record = ContentRecord::from_subtree(&tree, record.order_key.clone())
            .ok_or_else(|| too_deep_error(document))?;
        merged.insert(key, Some(Arc::new(record)));
    }
    Ok(())
}

/// Records a conflict for a counter that was removed before it was incremented.
fn record_removed_counter(node: &NodePath, conflicts: &mut MergeConflicts<'_>) {
    // The winning side is irrelevant: the counter does not exist.
    let _: MergeSide =
        conflicts.resolve(MergeConflict::for_node(node, ConflictKind::ChangeRemovedNode));
}

/// Returns true if a node is an atomic counter.
pub(crate) fn is_counter(node: &Subtree) -> bool {
    let mixins = node.properties.get(MIXIN_TYPES);
    let is_it = |value: &Value| value.as_str() == Some("mix:atomicCounter");
    mixins.is_some_and(|mixins| mixins.values().iter().any(is_it))
}

/// Returns the value of a counter after increments on both sides of a merge; `None` for other properties.
pub(crate) fn merge_counter(name: &str, sides: [Option<&Property>; 3]) -> Option<Property> {
    let [base, ours, theirs] = sides.map(|side| side.map_or(Some(0), increment_amount));
    let added = ours?.saturating_sub(base?);
    (name == COUNTER_PROPERTY).then_some(Value::Long(theirs?.saturating_add(added)).into())
}

fn too_deep_error(path: &NodePath) -> Error {
    Error::InvalidEdit {
        action: "update the counter of",
        path: path.clone(),
        reason: "it is nested too deeply",
    }
}
