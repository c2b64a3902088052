//! Removals below nodes whose record boundaries one side of a merge changed: a folder became a document, or the
//! reverse.
//!
//! A record on one side is then part of a document on the other side. Comparing only records would miss that one side
//! removed it, and would restore it.
//!
//! In: the nodes that a merge visits. Out: conflicts for nodes in the result that one side removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::commit::merge_conflicts::MergeConflicts;
use crate::document::record::{ContentRecord, is_container_record};
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{
    ConflictKind, Error, MergeConflict, MergeSide, Node, NodePath, Result, Snapshot,
    document::record_key,
};

/// The nodes whose record boundaries one side changed.
pub(crate) struct BoundaryChanges<'a> {
    base: &'a SnapshotView,
    head: &'a SnapshotView,
    changed_paths: BTreeSet<NodePath>,
    /// The parent that was checked last.
    last_parent: Option<NodePath>,
}

/// The storage of a node: no record, document, folder or page.
#[derive(PartialEq)]
enum NodeStorageKind {
    Inside,
    Document,
    Folder,
    Page,
}

impl NodeStorageKind {
    fn from_record(path: &NodePath, record: Option<&ContentRecord>) -> Self {
        match record {
            None => Self::Inside,
            Some(record) if !is_container_record(path, Some(record)) => Self::Document,
            Some(record) if record.summary.primary_type() == "cq:Page" => Self::Page,
            Some(_) => Self::Folder,
        }
    }
}

impl<'a> BoundaryChanges<'a> {
    pub(crate) fn new(base: &'a SnapshotView, head: &'a SnapshotView) -> Self {
        Self { base, head, changed_paths: BTreeSet::new(), last_parent: None }
    }

    /// Records a node with an edit, in three states: base, edited, and currently stored.
    pub(crate) fn record_edit(
        &mut self,
        path: &NodePath,
        sides: [Option<&ContentRecord>; 3],
    ) -> Result<()> {
        let [base, ours, theirs] = sides.map(|record| NodeStorageKind::from_record(path, record));
        if base != NodeStorageKind::Inside
            && ours != NodeStorageKind::Inside
            && (base != ours || base != theirs)
        {
            self.changed_paths.insert(path.clone());
        }
        let Some(parent) = path.parent().filter(|_| ours == NodeStorageKind::Inside) else {
            return Ok(());
        };
        if self.last_parent.as_ref() == Some(&parent) {
            return Ok(());
        }
        let key = record_key::record_key(&parent)?;
        let cut = |view: &SnapshotView| -> Result<NodeStorageKind> {
            Ok(NodeStorageKind::from_record(&parent, view.read_record(&key, &parent)?.as_deref()))
        };
        if cut(self.base)? != cut(self.head)? {
            self.changed_paths.insert(parent.clone());
        }
        self.last_parent = Some(parent);
        Ok(())
    }

    /// Finds the nodes in the merged state that one side removed.
    pub(crate) fn apply_removals(
        self,
        edits: &RecordEdits,
        merged: &mut RecordEdits,
        conflicts: &mut MergeConflicts<'_>,
    ) -> Result<()> {
        if self.changed_paths.is_empty() {
            return Ok(());
        }
        let (base, head) =
            (Snapshot::from_view(self.base.clone()), Snapshot::from_view(self.head.clone()));
        let ours = snapshot_with_edits(self.base, edits);
        let now = snapshot_with_edits(self.head, merged);
        let mut lost = Vec::new();
        for path in &self.changed_paths {
            let [old, here, there, now] =
                [&base, &ours, &head, &now].map(|snapshot| paths_below(snapshot, path));
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
            let removed_by = if is_ours { MergeSide::Ours } else { MergeSide::Theirs };
            if conflicts.resolve(MergeConflict::for_node(&path, kind)) == removed_by {
                self.remove_node(&path, merged)?;
            }
        }
        Ok(())
    }

    /// Removes a node from the merged state, wherever it is stored.
    fn remove_node(&self, path: &NodePath, merged: &mut RecordEdits) -> Result<()> {
        let snapshot = snapshot_with_edits(self.head, merged);
        let Some(node) = snapshot.node(path)? else { return Ok(()) };
        let owner = node.record_path().clone();
        if owner == *path {
            for (key, _) in
                snapshot.view.records_in_range(&record_key::descendant_key_range(path)?)?
            {
                merged.insert(key, None);
            }
            merged.insert(record_key::record_key(path)?, None);
            return Ok(());
        }
        let (relative, order) =
            (path.relative_to(&owner).unwrap_or_default(), node.record().order_key.clone());
        let body = snapshot.view.load_body(node.record(), &owner)?;
        let mut tree = body.subtree(body.root());
        let (parent, name) = relative.rsplit_once('/').unwrap_or(("", relative));
        if let Some(parent) = tree.find_descendant_mut(parent) {
            parent.remove_child(name);
        }
        let record =
            ContentRecord::from_subtree(&tree, order).ok_or_else(|| Error::InvalidEdit {
                action: "merge",
                path: owner.clone(),
                reason: "it is nested too deeply",
            })?;
        merged.insert(record_key::record_key(&owner)?, Some(Arc::new(record)));
        Ok(())
    }
}

/// Returns a snapshot of a state with edits applied.
fn snapshot_with_edits(view: &SnapshotView, edits: &RecordEdits) -> Snapshot {
    let mut view = view.clone();
    view.record_edits = edits.clone();
    Snapshot::from_view(view)
}

/// Collects the paths of the descendants of a node.
fn paths_below(snapshot: &Snapshot, path: &NodePath) -> Result<BTreeSet<NodePath>> {
    fn collect(node: &Node, paths: &mut BTreeSet<NodePath>) -> Result<()> {
        for child in node.children()? {
            collect(&child, paths)?;
            paths.insert(child.path().clone());
        }
        Ok(())
    }
    let mut paths = BTreeSet::new();
    if let Some(node) = snapshot.node(path)? {
        collect(&node, &mut paths)?;
    }
    Ok(paths)
}
