//! Atomic counters: `oak:increment` set on a node with the mixin `mix:atomicCounter` adds to its `oak:counter` at the
//! commit and is gone then.
//!
//! Invariants
//! * Increments of any number of sessions and processes add up exactly: an increment is taken out of a session's edits
//!   before they are merged, and added to whatever the counter is in the state that they are merged onto.
//! * Increments on two branches add up when the branches are merged: what each added counts.

use std::sync::Arc;

use crate::merge::Clashes;
use crate::record::{BodyPlace, Record};
use crate::snapshot::{Overlay, View};
use crate::subtree::MIXIN_TYPES;
use crate::{
    Conflict, ConflictKind, Error, NodePath, Property, Result, Side, Subtree, Value, keys,
};

const COUNTER: &str = "oak:counter";
const INCREMENT: &str = "oak:increment";

/// What is added to one counter.
#[derive(Debug, Clone)]
pub(crate) struct Increment {
    document: NodePath,
    /// The node's path relative to its document.
    relative: String,
    amount: i64,
}

/// Takes increments out of edits; without any, the edits are not copied.
pub(crate) fn take_increments(edits: &Overlay) -> Result<Option<(Overlay, Vec<Increment>)>> {
    let mut increments = Vec::new();
    let mut changed = Vec::new();
    for (key, record) in edits {
        let Some(record) = record else { continue };
        let BodyPlace::Pending(body) = &record.body else { continue };
        if !body.has_name(INCREMENT) {
            continue;
        }
        let document = keys::path_of(key)?;
        let mut tree = body.subtree(body.root());
        let before = increments.len();
        take_from(&mut tree, &document, "", &mut increments);
        if increments.len() > before {
            let record = Record::of(&tree, record.order.clone()).ok_or_else(|| deep(&document))?;
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

fn take_from(
    tree: &mut Subtree,
    document: &NodePath,
    relative: &str,
    increments: &mut Vec<Increment>,
) {
    if is_counter(tree)
        && let Some(amount) = tree.properties.get(INCREMENT).and_then(amount_of)
    {
        tree.properties.remove(INCREMENT);
        tree.properties.entry(COUNTER.to_owned()).or_insert(Value::Long(0).into());
        let (document, relative) = (document.clone(), relative.to_owned());
        increments.push(Increment { document, relative, amount });
    }
    for child in &mut tree.children {
        let relative = match relative {
            "" => child.name.clone(),
            above => format!("{above}/{}", child.name),
        };
        take_from(child, document, &relative, increments);
    }
}

/// Returns what a property adds: one whole number, or a text of one, as a form sends it.
fn amount_of(property: &Property) -> Option<i64> {
    match property {
        Property::Single(Value::Long(amount)) => Some(*amount),
        Property::Single(Value::String(text)) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Adds increments to the counters of the merged state.
pub(crate) fn add_increments(
    merged: &mut Overlay,
    increments: &[Increment],
    head: &View,
    clashes: &mut Clashes<'_>,
) -> Result<()> {
    for Increment { document, relative, amount } in increments {
        let key = keys::key_of(document)?;
        let record = match merged.get(&key) {
            Some(record) => record.clone(),
            None => head.record(&key, document)?,
        };
        let node = document.resolve(if relative.is_empty() { "." } else { relative })?;
        let Some(record) = record else {
            is_gone(&node, clashes);
            continue;
        };
        let body = head.body(&record, document)?;
        let mut tree = body.subtree(body.root());
        let Some(counter) = tree.find_mut(relative) else {
            is_gone(&node, clashes);
            continue;
        };
        let count = counter.properties.get(COUNTER).and_then(amount_of).unwrap_or(0);
        let count = Value::Long(count.saturating_add(*amount));
        counter.properties.insert(COUNTER.to_owned(), count.into());
        let record = Record::of(&tree, record.order.clone()).ok_or_else(|| deep(document))?;
        merged.insert(key, Some(Arc::new(record)));
    }
    Ok(())
}

/// Notes that a counter was removed before it was added to.
fn is_gone(node: &NodePath, clashes: &mut Clashes<'_>) {
    // Whose side counts makes no difference: there is nothing to add to.
    let _: Side = clashes.settle(Conflict::of_node(node, ConflictKind::ChangeRemovedNode));
}

/// Tells whether a node is an atomic counter.
pub(crate) fn is_counter(node: &Subtree) -> bool {
    let mixins = node.properties.get(MIXIN_TYPES);
    let is_it = |value: &Value| value.as_str() == Some("mix:atomicCounter");
    mixins.is_some_and(|mixins| mixins.values().iter().any(is_it))
}

/// Returns what a counter is after both sides of a merge added to it; nothing for other properties.
pub(crate) fn sum(name: &str, sides: [Option<&Property>; 3]) -> Option<Property> {
    let [base, ours, theirs] = sides.map(|side| side.map_or(Some(0), amount_of));
    let added = ours?.saturating_sub(base?);
    (name == COUNTER).then_some(Value::Long(theirs?.saturating_add(added)).into())
}

fn deep(path: &NodePath) -> Error {
    Error::Refused { action: "count in", path: path.clone(), reason: "it is nested too deeply" }
}
