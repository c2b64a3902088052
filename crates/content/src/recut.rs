//! Removals below nodes that one side of a merge cut anew: a folder that became a document, or the other way round.
//!
//! What was a record on one side is then a part of a document on the other, so that comparing records alone would not see
//! that one side removed it, and bring it back.
//!
//! In: the nodes that a merge comes across. Out: conflicts where something is in the outcome that one side removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::merge::Clashes;
use crate::rebase::is_container_record;
use crate::record::Record;
use crate::snapshot::{Overlay, View};
use crate::{Conflict, ConflictKind, Error, Node, NodePath, Result, Side, Snapshot, keys};

/// The nodes that one side cut anew.
pub(crate) struct Recut<'a> {
    base: &'a View,
    head: &'a View,
    paths: BTreeSet<NodePath>,
    /// The parent that was looked at last.
    last: Option<NodePath>,
}

/// How a node is cut: not as a record, as a document, as a folder, as a page.
#[derive(PartialEq)]
enum Cut {
    Inside,
    Document,
    Folder,
    Page,
}

impl Cut {
    fn of(path: &NodePath, record: Option<&Record>) -> Self {
        match record {
            None => Self::Inside,
            Some(record) if !is_container_record(path, Some(record)) => Self::Document,
            Some(record) if record.summary.primary_type() == "cq:Page" => Self::Page,
            Some(_) => Self::Folder,
        }
    }
}

impl<'a> Recut<'a> {
    pub(crate) fn new(base: &'a View, head: &'a View) -> Self {
        Self { base, head, paths: BTreeSet::new(), last: None }
    }

    /// Notes a node with an edit: as it was, as it is wanted, as it is stored now.
    pub(crate) fn note(&mut self, path: &NodePath, sides: [Option<&Record>; 3]) -> Result<()> {
        let [base, ours, theirs] = sides.map(|record| Cut::of(path, record));
        if base != Cut::Inside && ours != Cut::Inside && (base != ours || base != theirs) {
            self.paths.insert(path.clone());
        }
        let Some(parent) = path.parent().filter(|_| ours == Cut::Inside) else { return Ok(()) };
        if self.last.as_ref() == Some(&parent) {
            return Ok(());
        }
        let key = keys::key_of(&parent)?;
        let cut = |view: &View| -> Result<Cut> {
            Ok(Cut::of(&parent, view.record(&key, &parent)?.as_deref()))
        };
        if cut(self.base)? != cut(self.head)? {
            self.paths.insert(parent.clone());
        }
        self.last = Some(parent);
        Ok(())
    }

    /// Finds what is in the merged state although one side removed it.
    pub(crate) fn keep_removals(
        self,
        edits: &Overlay,
        merged: &mut Overlay,
        clashes: &mut Clashes<'_>,
    ) -> Result<()> {
        if self.paths.is_empty() {
            return Ok(());
        }
        let (base, head) =
            (Snapshot::of_view(self.base.clone()), Snapshot::of_view(self.head.clone()));
        let ours = with_edits(self.base, edits);
        let now = with_edits(self.head, merged);
        let mut lost = Vec::new();
        for path in &self.paths {
            let [old, here, there, now] =
                [&base, &ours, &head, &now].map(|snapshot| nodes_below(snapshot, path));
            let (old, here, there, now) = (old?, here?, there?, now?);
            for node in old.intersection(&now) {
                let kind = match (here.contains(node), there.contains(node)) {
                    (false, true) => ConflictKind::RemoveChangedNode,
                    (true, false) => ConflictKind::ChangeRemovedNode,
                    _ => continue,
                };
                lost.push((node.clone(), kind));
            }
        }
        for (path, kind) in lost {
            let is_ours = kind == ConflictKind::RemoveChangedNode;
            let removed_by = if is_ours { Side::Mine } else { Side::Theirs };
            if clashes.settle(Conflict::of_node(&path, kind)) == removed_by {
                self.remove(&path, merged)?;
            }
        }
        Ok(())
    }

    /// Removes a node from the merged state, wherever it is stored.
    fn remove(&self, path: &NodePath, merged: &mut Overlay) -> Result<()> {
        let snapshot = with_edits(self.head, merged);
        let Some(node) = snapshot.node(path)? else { return Ok(()) };
        let owner = node.owner().clone();
        if owner == *path {
            for (key, _) in snapshot.0.records(&keys::below(path)?)? {
                merged.insert(key, None);
            }
            merged.insert(keys::key_of(path)?, None);
            return Ok(());
        }
        let (relative, order) =
            (path.relative_to(&owner).unwrap_or_default(), node.record().order.clone());
        let body = snapshot.0.body(node.record(), &owner)?;
        let mut tree = body.subtree(body.root());
        let (parent, name) = relative.rsplit_once('/').unwrap_or(("", relative));
        if let Some(parent) = tree.find_mut(parent) {
            parent.remove_child(name);
        }
        let record = Record::of(&tree, order).ok_or_else(|| Error::Refused {
            action: "merge",
            path: owner.clone(),
            reason: "it is nested too deeply",
        })?;
        merged.insert(keys::key_of(&owner)?, Some(Arc::new(record)));
        Ok(())
    }
}

/// Shows a state with edits.
fn with_edits(view: &View, edits: &Overlay) -> Snapshot {
    let mut view = view.clone();
    view.overlay = edits.clone();
    Snapshot::of_view(view)
}

/// Collects the nodes below one.
fn nodes_below(snapshot: &Snapshot, path: &NodePath) -> Result<BTreeSet<NodePath>> {
    fn collect(node: &Node, found: &mut BTreeSet<NodePath>) -> Result<()> {
        for child in node.children()? {
            collect(&child, found)?;
            found.insert(child.path().clone());
        }
        Ok(())
    }
    let mut found = BTreeSet::new();
    if let Some(node) = snapshot.node(path)? {
        collect(&node, &mut found)?;
    }
    Ok(found)
}
