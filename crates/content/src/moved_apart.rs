//! Nodes that both sides of a merge moved, each to another place: told by their identifier (`jcr:uuid`).
//!
//! In: the merged edits of a rebase. Out: a conflict for each such node, at the place that this side gave it, with the
//! places as its values; and edits that hold the node once, where the decision says.
//!
//! Invariants
//! * What the state to merge onto held twice before, or one side alone makes twice, is no conflict: the check of the
//!   commit refuses it.
//! * Only documents with identifiers that are new at their place are looked up.
//!
//! Not here: what both sides changed inside of the node. The whole node of the side that counts is taken.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::body::{Body, BodyNode};
use crate::merge::Clashes;
use crate::record::Record;
use crate::reference::UUID;
use crate::snapshot::{Overlay, View};
use crate::{Conflict, ConflictKind, Error, Index, NodePath, Result, Side, Snapshot, Value, keys};

/// Where the two sides have a node, and where it was.
struct Apart {
    ours: NodePath,
    theirs: NodePath,
    from: Option<NodePath>,
}

/// Sees to it that the merged state has no node in two places because both sides moved it.
pub(crate) fn settle(
    base: &View,
    edits: &Overlay,
    head: &View,
    merged: &mut Overlay,
    clashes: &mut Clashes<'_>,
) -> Result<()> {
    let sides = Sides::new(base, edits, head);
    let mut settled: Vec<Apart> = Vec::new();
    let keys: Vec<Vec<u8>> = merged.keys().cloned().collect();
    for key in keys {
        for apart in sides.find(&key, merged)? {
            let is_known = |known: &Apart| {
                apart.ours.is_within(&known.ours) && apart.theirs.is_within(&known.theirs)
            };
            if settled.iter().any(is_known) {
                continue;
            }
            match clashes.settle(apart.conflict()) {
                Side::Mine => sides.take_out(&apart.theirs, merged)?,
                Side::Theirs => sides.leave_out(&apart.ours, merged)?,
            }
            settled.push(apart);
        }
    }
    Ok(())
}

impl Apart {
    fn conflict(&self) -> Conflict {
        let place = |path: &NodePath| Some(Value::Path(path.to_string()).into());
        Conflict {
            base: self.from.as_ref().and_then(place),
            ours: place(&self.ours),
            theirs: place(&self.theirs),
            ..Conflict::of_node(&self.ours, ConflictKind::AddExistingNode)
        }
    }
}

/// The three states of a merge.
struct Sides<'a> {
    head: &'a View,
    before: Snapshot,
    after: Snapshot,
    stored: Snapshot,
}

impl<'a> Sides<'a> {
    fn new(base: &View, edits: &Overlay, head: &'a View) -> Self {
        let snapshot = |view: View| Snapshot(Arc::new(view), None);
        let mut after = base.clone();
        after.overlay.clone_from(edits);
        let (before, after) = (snapshot(base.clone()), snapshot(after));
        Self { head, before, after, stored: snapshot(head.clone()) }
    }

    /// Finds the nodes of a merged document that the other side has elsewhere.
    fn find(&self, key: &[u8], merged: &Overlay) -> Result<Vec<Apart>> {
        let Some(Some(record)) = merged.get(key) else { return Ok(Vec::new()) };
        let path = keys::path_of(key)?;
        let mut new = self.identifiers(&path, record)?;
        if new.is_empty() {
            return Ok(Vec::new());
        }
        for known in [self.before.0.record(key, &path)?, self.head.record(key, &path)?] {
            let Some(known) = known else { continue };
            let known = self.identifiers(&path, &known)?;
            new.retain(|one| !known.contains(one));
        }
        let mut apart = Vec::new();
        for (identifier, ours) in &new {
            let were = self.before.look_up(Index::Uuid, identifier)?;
            for theirs in self.stored.look_up(Index::Uuid, identifier)? {
                let is_moved = theirs != *ours && !were.contains(&theirs);
                if is_moved && self.is_held(&theirs, identifier, merged)? {
                    apart.push(self.top(ours, &theirs, were.first())?);
                }
            }
        }
        Ok(apart)
    }

    /// Returns the identifiers in a document, with their nodes, parents first.
    fn identifiers(
        &self,
        path: &NodePath,
        record: &Record,
    ) -> Result<BTreeSet<(String, NodePath)>> {
        let body = self.head.body(record, path)?;
        let mut found = BTreeSet::new();
        collect(&body, body.root(), path, &mut found);
        Ok(found)
    }

    /// Tells whether a node of the state to merge onto keeps its identifier in the merged state.
    fn is_held(&self, path: &NodePath, identifier: &str, merged: &Overlay) -> Result<bool> {
        let Some(node) = self.stored.node(path)? else { return Ok(false) };
        let owner = node.owner();
        match merged.get(&keys::key_of(owner)?) {
            None => Ok(true),
            Some(None) => Ok(false),
            Some(Some(record)) => {
                let held = self.identifiers(owner, record)?;
                Ok(held.contains(&(identifier.to_owned(), path.clone())))
            }
        }
    }

    /// Climbs from a node that both sides have elsewhere to the node that they moved: the highest one above it that is
    /// new on both sides, and gone from where it was.
    fn top(&self, ours: &NodePath, theirs: &NodePath, from: Option<&NodePath>) -> Result<Apart> {
        let mut top = Apart { ours: ours.clone(), theirs: theirs.clone(), from: from.cloned() };
        loop {
            let parents = (top.ours.parent(), top.theirs.parent());
            let (Some(ours), Some(theirs)) = parents else { return Ok(top) };
            let is_new = |path: &NodePath| -> Result<bool> {
                Ok(!path.is_root() && self.before.node(path)?.is_none())
            };
            if !is_new(&ours)? || !is_new(&theirs)? {
                return Ok(top);
            }
            let from = match &top.from {
                Some(from) => {
                    let Some(parent) = from.parent().filter(|parent| !parent.is_root()) else {
                        return Ok(top);
                    };
                    let sides = [self.after.node(&parent)?, self.stored.node(&parent)?];
                    if sides.iter().any(Option::is_some) {
                        return Ok(top);
                    }
                    Some(parent)
                }
                // Both sides brought it along: no higher than its document.
                None if self.is_document(&top.ours)? => return Ok(top),
                None => None,
            };
            top = Apart { ours, theirs, from };
        }
    }

    fn is_document(&self, path: &NodePath) -> Result<bool> {
        Ok(self.after.node(path)?.is_some_and(|node| node.owner() == path))
    }

    /// Takes a node of the state to merge onto out of the merged state.
    fn take_out(&self, path: &NodePath, merged: &mut Overlay) -> Result<()> {
        let mut view = self.head.clone();
        view.overlay.clone_from(merged);
        let key = keys::key_of(path)?;
        if view.record(&key, path)?.is_none() {
            return self.cut(path, &view, merged);
        }
        for (below, _) in view.records(&keys::below(path)?)? {
            merged.insert(below, None);
        }
        merged.insert(key, None);
        Ok(())
    }

    /// Leaves a node that only this side has there out of the merged state.
    fn leave_out(&self, path: &NodePath, merged: &mut Overlay) -> Result<()> {
        let key = keys::key_of(path)?;
        if !merged.contains_key(&key) {
            let mut view = self.head.clone();
            view.overlay.clone_from(merged);
            return self.cut(path, &view, merged);
        }
        let below = keys::below(path)?;
        merged.retain(|one, _| *one != key && !below.contains(one));
        Ok(())
    }

    /// Takes a node out of the document that holds it.
    fn cut(&self, path: &NodePath, view: &View, merged: &mut Overlay) -> Result<()> {
        let snapshot = Snapshot(Arc::new(view.clone()), None);
        let (Some(node), Some(parent)) = (snapshot.node(path)?, path.parent()) else {
            return Ok(());
        };
        let owner = node.owner().clone();
        drop(node);
        let key = keys::key_of(&owner)?;
        let Some(record) = view.record(&key, &owner)? else { return Ok(()) };
        let body = view.body(&record, &owner)?;
        let mut tree = body.subtree(body.root());
        let held = parent.relative_to(&owner).and_then(|relative| tree.find_mut(relative));
        if let Some(held) = held {
            held.remove_child(path.name());
        }
        let cut = Record::of(&tree, record.order.clone()).ok_or(Error::Refused {
            action: "merge",
            path: owner,
            reason: "it is nested too deeply",
        })?;
        merged.insert(key, Some(Arc::new(cut)));
        Ok(())
    }
}

/// Collects the identifiers of a node and of those below it in its document.
fn collect(body: &Body, node: BodyNode, path: &NodePath, found: &mut BTreeSet<(String, NodePath)>) {
    if let Some(identifier) = body.text(node, UUID) {
        found.insert((identifier.to_owned(), path.clone()));
    }
    for child in body.children(node) {
        collect(body, child, &path.child_unchecked(body.name(child)), found);
    }
}
