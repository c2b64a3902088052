//! The check of a commit: what it changes is completed, then judged.
//!
//! In: the newest state, the edits to it, and who commits when. Out: the edits as they are stored.
//!
//! Invariants
//! * Only documents that the edits change are read, and the nodes of types whose rules become stricter.
//! * Nothing depends on what else the state holds but the types above a document, its identifiers and references.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::definition::{ChildDefinition, PropertyDefinition, TypeDefinition};
use super::fill::{Filler, Source, apply};
use super::integrity::Integrity;
use super::judge::{Judge, NodeTypesOf, Place};
use super::stored::{Rules, SYSTEM, TYPES};
use crate::body::Body;
use crate::commit::{Change, Checks};
use crate::record::Record;
use crate::snapshot::{Overlay, View};
use crate::{BorrowedNode, Error, Index, NodePath, Result, Snapshot, keys};

/// Completes and judges the edits of a commit.
///
/// # Errors
/// [`Error::Constraint`] with all that breaks a rule; errors of the store.
pub(crate) fn check<'a>(
    head: &View,
    edits: &'a Overlay,
    change: &Change<'_>,
    checks: Checks,
) -> Result<Cow<'a, Overlay>> {
    let rules = head.rules(Some(edits))?;
    let source =
        Source { user: change.user, at: change.at, is_installed: checks == Checks::Installed };
    let edits = fill(head, edits, &rules, source)?;
    let mut judge = Judge::new(head, &edits, &rules);
    if source.is_installed {
        judge.be_patient();
    }
    let mut integrity = Integrity::default();
    for (key, edit) in &*edits {
        let path = keys::path_of(key)?;
        let old = body_of(head, head.record(key, &path)?.as_deref(), &path)?;
        let new = body_of(head, edit.as_deref(), &path)?;
        match (&old, &new) {
            (Some(old), Some(new)) if old.bytes() == new.bytes() && old.blobs() == new.blobs() => {
                continue;
            }
            (old, Some(new)) => judge.document(&path, old.as_deref().map(root), root(new))?,
            (Some(_), None) if !is_below_removed(&path, &edits)? => judge.removal(&path)?,
            (_, None) => {}
        }
        integrity.note(&path, old.as_deref().map(root), new.as_deref().map(root), &rules);
    }
    // A type may change although nodes from packages still lack what it creates.
    judge.be_patient();
    judge_changed_types(head, &mut judge)?;
    integrity.judge(&mut judge)?;
    let violations = judge.into_violations();
    if violations.is_empty() { Ok(edits) } else { Err(Error::Constraint(violations)) }
}

fn root(body: &Body) -> BorrowedNode<'_> {
    BorrowedNode::new(body, body.root(), None)
}

fn body_of(head: &View, record: Option<&Record>, path: &NodePath) -> Result<Option<Arc<Body>>> {
    record.map(|record| head.body(record, path)).transpose()
}

/// Tells whether the parent of a document is removed in the same commit.
fn is_below_removed(path: &NodePath, edits: &Overlay) -> Result<bool> {
    let Some(parent) = path.parent() else { return Ok(false) };
    Ok(matches!(edits.get(&keys::key_of(&parent)?), Some(None)))
}

/// Sets in the changed documents what the repository sets itself.
fn fill<'a>(
    head: &View,
    edits: &'a Overlay,
    rules: &Rules,
    source: Source<'_>,
) -> Result<Cow<'a, Overlay>> {
    let mut filled = Cow::Borrowed(edits);
    let mut parents = Judge::new(head, edits, rules);
    for (key, edit) in edits {
        let Some(record) = edit else { continue };
        let path = keys::path_of(key)?;
        let old = body_of(head, head.record(key, &path)?.as_deref(), &path)?;
        let new = head.body(record, &path)?;
        let parent = parents.parent_type(&path)?;
        let filler = Filler::new(rules, source);
        let old = old.as_deref().map(root);
        let fills = filler.document(path.name(), parent.as_ref(), old, root(&new));
        if fills.is_empty() {
            continue;
        }
        let mut tree = new.subtree(new.root());
        apply(&mut tree, fills);
        let complete = Record::of(&tree, record.order.clone()).ok_or_else(|| Error::Refused {
            action: "complete",
            path: path.clone(),
            reason: "it is nested too deeply",
        })?;
        filled.to_mut().insert(key.clone(), Some(Arc::new(complete)));
    }
    Ok(filled)
}

/// Judges the nodes of types that the commit changes, removes or makes stricter.
fn judge_changed_types(head: &View, judge: &mut Judge<'_>) -> Result<()> {
    let is_touched =
        [TYPES, SYSTEM].iter().any(|path| judge.edits.contains_key(&keys::key_at(path)));
    if !is_touched {
        return Ok(());
    }
    let (before, after) = (head.rules(None)?.types, judge.rules.types.clone());
    let mut affected = BTreeSet::new();
    for old in before.all() {
        let name = &old.definition.name;
        let new = after.find(name);
        if new.is_some_and(|new| admits_as_much(&old.definition, &new.definition)) {
            continue;
        }
        affected.extend(before.subtypes(name));
        affected.extend(after.subtypes(name));
    }
    if affected.is_empty() {
        return Ok(());
    }
    let stored = Snapshot(Arc::new(head.clone()), None);
    let mut view = head.clone();
    view.overlay = judge.edits.clone();
    let edited = Snapshot(Arc::new(view), None);
    let mut paths = BTreeSet::new();
    for name in affected {
        paths.extend(stored.look_up(Index::Type, name)?);
    }
    for path in paths {
        judge_again(&edited, &path, judge)?;
    }
    Ok(())
}

/// Judges a node as if it were new.
fn judge_again(edited: &Snapshot, path: &NodePath, judge: &mut Judge<'_>) -> Result<()> {
    let Some(node) = edited.node(path)? else { return Ok(()) };
    let parent = edited.node(&path.parent().unwrap_or_else(NodePath::root))?;
    let parent = parent.as_ref().filter(|_| !path.is_root()).and_then(crate::Node::borrowed);
    let parent = parent.map(|parent| NodeTypesOf::of(parent).effective(judge.rules));
    let Some(node) = node.borrowed() else { return Ok(()) };
    let types = NodeTypesOf::of(node);
    let place = Place { path, parent: parent.as_ref(), is_parent_changed: true };
    if judge.types(place, &types) {
        let effective = types.effective(judge.rules);
        judge.own(place, &effective, None, node)?;
    }
    Ok(())
}

/// Tells whether every node that obeys the old definition obeys the new one.
fn admits_as_much(old: &TypeDefinition, new: &TypeDefinition) -> bool {
    let has_same_kind = old.flags.is_mixin == new.flags.is_mixin
        && (old.flags.is_abstract || !new.flags.is_abstract)
        && old.supertypes == new.supertypes;
    let keeps_properties = old.properties.iter().all(|old| {
        new.properties.iter().any(|new| old.name == new.name && is_wider_property(old, new))
    });
    let keeps_children = old
        .children
        .iter()
        .all(|old| new.children.iter().any(|new| old.name == new.name && is_wider_child(old, new)));
    let adds_no_property = new.properties.iter().all(|new| {
        !new.flags.is_mandatory || old.properties.iter().any(|old| old.name == new.name)
    });
    let adds_no_child = new
        .children
        .iter()
        .all(|new| !new.flags.is_mandatory || old.children.iter().any(|old| old.name == new.name));
    // A named definition takes the place of the one for all names, which may have been wider.
    let adds_no_rule = new.properties.iter().all(|new| {
        new.constraints.is_empty() || old.properties.iter().any(|old| old.name == new.name)
    });
    has_same_kind
        && keeps_properties
        && keeps_children
        && adds_no_property
        && adds_no_child
        && adds_no_rule
}

fn is_wider_property(old: &PropertyDefinition, new: &PropertyDefinition) -> bool {
    (new.value_type.is_none() || new.value_type == old.value_type)
        && new.is_multiple == old.is_multiple
        && (old.flags.is_mandatory || !new.flags.is_mandatory)
        && (new.constraints.is_empty() || new.constraints == old.constraints)
}

fn is_wider_child(old: &ChildDefinition, new: &ChildDefinition) -> bool {
    (new.required_types.is_empty() || new.required_types == old.required_types)
        && (old.flags.is_mandatory || !new.flags.is_mandatory)
}
