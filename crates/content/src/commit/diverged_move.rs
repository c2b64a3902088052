//! Nodes that both sides of a merge moved to different places, identified by `jcr:uuid`.
//!
//! In: the merged edits of a rebase. Out: a conflict for each such node, at its path on this side, with the paths as
//! values; and edits that contain the node once, where the decision places it.
//!
//! Invariants
//! * A node that the target state already held twice, or that one side alone duplicates, is no conflict: the check of
//!   the commit refuses it.
//! * Only documents with identifiers that are new at their path are looked up.
//!
//! Not here: changes of both sides inside the node. The whole node of the winning side is used.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::commit::merge_conflicts::MergeConflicts;
use crate::document::body::{BodyNode, DocumentBody};
use crate::document::record::ContentRecord;
use crate::model::subtree::UUID_PROPERTY;
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{
    ConflictKind, Error, LookupIndex, MergeConflict, MergeSide, NodePath, Result, Snapshot, Value,
    document::record_key,
};

/// The paths of a node on both sides and in the base.
struct DivergedMove {
    our_path: NodePath,
    their_path: NodePath,
    base_path: Option<NodePath>,
}

/// Ensures that the merged state does not contain a node twice because both sides moved it.
pub(crate) fn resolve_diverged_moves(
    base: &SnapshotView,
    edits: &RecordEdits,
    head: &SnapshotView,
    merged: &mut RecordEdits,
    conflicts: &mut MergeConflicts<'_>,
) -> Result<()> {
    let sides = MergeStates::new(base, edits, head);
    let mut settled: Vec<DivergedMove> = Vec::new();
    let keys: Vec<Vec<u8>> = merged.keys().cloned().collect();
    for key in keys {
        for apart in sides.find_diverged_moves(&key, merged)? {
            let is_known = |earlier: &DivergedMove| {
                apart.our_path.is_within(&earlier.our_path)
                    && apart.their_path.is_within(&earlier.their_path)
            };
            if settled.iter().any(is_known) {
                continue;
            }
            match conflicts.resolve(apart.to_conflict()) {
                MergeSide::Ours => sides.remove_their_node(&apart.their_path, merged)?,
                MergeSide::Theirs => sides.remove_our_node(&apart.our_path, merged)?,
            }
            settled.push(apart);
        }
    }
    Ok(())
}

impl DivergedMove {
    fn to_conflict(&self) -> MergeConflict {
        let path_property = |path: &NodePath| Some(Value::Path(path.to_string()).into());
        MergeConflict {
            base: self.base_path.as_ref().and_then(path_property),
            ours: path_property(&self.our_path),
            theirs: path_property(&self.their_path),
            ..MergeConflict::for_node(&self.our_path, ConflictKind::AddExistingNode)
        }
    }
}

/// The three states of a merge.
struct MergeStates<'a> {
    head_view: &'a SnapshotView,
    base_snapshot: Snapshot,
    our_snapshot: Snapshot,
    head_snapshot: Snapshot,
}

impl<'a> MergeStates<'a> {
    fn new(base: &SnapshotView, edits: &RecordEdits, head: &'a SnapshotView) -> Self {
        let snapshot = Snapshot::from_view;
        let mut after = base.clone();
        after.record_edits.clone_from(edits);
        let (before, after) = (snapshot(base.clone()), snapshot(after));
        Self {
            head_view: head,
            base_snapshot: before,
            our_snapshot: after,
            head_snapshot: snapshot(head.clone()),
        }
    }

    /// Finds the nodes of a merged document that are elsewhere on the other side.
    fn find_diverged_moves(&self, key: &[u8], merged: &RecordEdits) -> Result<Vec<DivergedMove>> {
        let Some(Some(record)) = merged.get(key) else { return Ok(Vec::new()) };
        let path = record_key::record_path(key)?;
        let mut new = self.document_identifiers(&path, record)?;
        if new.is_empty() {
            return Ok(Vec::new());
        }
        for document in [
            self.base_snapshot.view.read_record(key, &path)?,
            self.head_view.read_record(key, &path)?,
        ] {
            let Some(document) = document else { continue };
            let base_identifiers = self.document_identifiers(&path, &document)?;
            new.retain(|identifier_path| !base_identifiers.contains(identifier_path));
        }
        let mut apart = Vec::new();
        for (identifier, ours) in &new {
            let were = self.base_snapshot.look_up_paths(LookupIndex::Uuid, identifier)?;
            for theirs in self.head_snapshot.look_up_paths(LookupIndex::Uuid, identifier)? {
                let is_moved = theirs != *ours && !were.contains(&theirs);
                if is_moved && self.is_identifier_retained(&theirs, identifier, merged)? {
                    apart.push(self.topmost_move(ours, &theirs, were.first())?);
                }
            }
        }
        Ok(apart)
    }

    /// Returns the identifiers in a document with their nodes, parents first.
    fn document_identifiers(
        &self,
        path: &NodePath,
        record: &ContentRecord,
    ) -> Result<BTreeSet<(String, NodePath)>> {
        let body = self.head_view.load_body(record, path)?;
        let mut identifiers = BTreeSet::new();
        collect_identifiers(&body, body.root(), path, &mut identifiers);
        Ok(identifiers)
    }

    /// Returns true if a node of the target state keeps its identifier in the merged state.
    fn is_identifier_retained(
        &self,
        path: &NodePath,
        identifier: &str,
        merged: &RecordEdits,
    ) -> Result<bool> {
        let Some(node) = self.head_snapshot.node(path)? else { return Ok(false) };
        let owner = node.record_path();
        match merged.get(&record_key::record_key(owner)?) {
            None => Ok(true),
            Some(None) => Ok(false),
            Some(Some(record)) => {
                let identifiers = self.document_identifiers(owner, record)?;
                Ok(identifiers.contains(&(identifier.to_owned(), path.clone())))
            }
        }
    }

    /// Ascends from a node that both sides moved to the root of the move: the highest ancestor that is new on both
    /// sides and removed from its old path.
    fn topmost_move(
        &self,
        ours: &NodePath,
        theirs: &NodePath,
        from: Option<&NodePath>,
    ) -> Result<DivergedMove> {
        let mut top = DivergedMove {
            our_path: ours.clone(),
            their_path: theirs.clone(),
            base_path: from.cloned(),
        };
        loop {
            let parents = (top.our_path.parent(), top.their_path.parent());
            let (Some(ours), Some(theirs)) = parents else { return Ok(top) };
            let is_new = |path: &NodePath| -> Result<bool> {
                Ok(!path.is_root() && self.base_snapshot.node(path)?.is_none())
            };
            if !is_new(&ours)? || !is_new(&theirs)? {
                return Ok(top);
            }
            let from = match &top.base_path {
                Some(from) => {
                    let Some(parent) = from.parent().filter(|parent| !parent.is_root()) else {
                        return Ok(top);
                    };
                    let sides =
                        [self.our_snapshot.node(&parent)?, self.head_snapshot.node(&parent)?];
                    if sides.iter().any(Option::is_some) {
                        return Ok(top);
                    }
                    Some(parent)
                }
                // The document as a whole was moved by both sides; ascend no higher.
                None if self.is_document_path(&top.our_path)? => return Ok(top),
                None => None,
            };
            top = DivergedMove { our_path: ours, their_path: theirs, base_path: from };
        }
    }

    fn is_document_path(&self, path: &NodePath) -> Result<bool> {
        Ok(self.our_snapshot.node(path)?.is_some_and(|node| node.record_path() == path))
    }

    /// Removes a node of the target state from the merged state.
    fn remove_their_node(&self, path: &NodePath, merged: &mut RecordEdits) -> Result<()> {
        let mut view = self.head_view.clone();
        view.record_edits.clone_from(merged);
        let key = record_key::record_key(path)?;
        if view.read_record(&key, path)?.is_none() {
            return self.remove_from_document(path, &view, merged);
        }
        for (below, _) in view.records_in_range(&record_key::descendant_key_range(path)?)? {
            merged.insert(below, None);
        }
        merged.insert(key, None);
        Ok(())
    }

    /// Removes a node that exists only on this side from the merged state.
    fn remove_our_node(&self, path: &NodePath, merged: &mut RecordEdits) -> Result<()> {
        let key = record_key::record_key(path)?;
        if !merged.contains_key(&key) {
            let mut view = self.head_view.clone();
            view.record_edits.clone_from(merged);
            return self.remove_from_document(path, &view, merged);
        }
        let below = record_key::descendant_key_range(path)?;
        merged.retain(|edit_key, _| *edit_key != key && !below.contains_key(edit_key));
        Ok(())
    }

    /// Removes a node from the document that holds it.
    fn remove_from_document(
        &self,
        path: &NodePath,
        view: &SnapshotView,
        merged: &mut RecordEdits,
    ) -> Result<()> {
        let snapshot = Snapshot::from_view(view.clone());
        let (Some(node), Some(parent)) = (snapshot.node(path)?, path.parent()) else {
            return Ok(());
        };
        let owner = node.record_path().clone();
        drop(node);
        let key = record_key::record_key(&owner)?;
        let Some(record) = view.read_record(&key, &owner)? else { return Ok(()) };
        let body = view.load_body(&record, &owner)?;
        let mut tree = body.subtree(body.root());
        let holder =
            parent.relative_to(&owner).and_then(|relative| tree.find_descendant_mut(relative));
        if let Some(holder) = holder {
            holder.remove_child(path.name());
        }
        let cut = ContentRecord::from_subtree(&tree, record.order_key.clone()).ok_or(
            Error::InvalidEdit { action: "merge", path: owner, reason: "it is nested too deeply" },
        )?;
        merged.insert(key, Some(Arc::new(cut)));
        Ok(())
    }
}

/// Collects the identifiers of a node and of its descendants in the same document.
fn collect_identifiers(
    body: &DocumentBody,
    node: BodyNode,
    path: &NodePath,
    identifiers: &mut BTreeSet<(String, NodePath)>,
) {
    if let Some(identifier) = body.text(node, UUID_PROPERTY) {
        identifiers.insert((identifier.to_owned(), path.clone()));
    }
    for child in body.children(node) {
        collect_identifiers(body, child, &path.child_unchecked(body.name(child)), identifiers);
    }
}
