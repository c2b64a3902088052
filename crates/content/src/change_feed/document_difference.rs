//! The documents that differ between two states, and their differences.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;

use tympan_store::{ChunkId, MapChange, MapDiff, MapValue, SortedMap};

use crate::change_feed::change_cursor::ChangeCursor;
use crate::change_feed::change_filter::ChangeFilter;
use crate::change_feed::move_cache::DocumentMoves;
use crate::change_feed::node_change::{FeedChangeKind, NodeChange, PropertyChange};
use crate::document::record::ContentRecord;
use crate::snapshot::SnapshotView;
use crate::{Error, NodePath, Repository, Result, Snapshot, Subtree, document::record_key};

/// The two states as seen by a follower with restricted permissions.
#[derive(Debug)]
pub(crate) struct FollowerSnapshots {
    pub(crate) snapshot_before: Snapshot,
    pub(crate) snapshot_after: Snapshot,
}

/// The changed documents of one revision, in the order of their keys.
pub(crate) struct ChangedDocuments<'a> {
    view_before: SnapshotView,
    view_after: SnapshotView,
    follower: Option<FollowerSnapshots>,
    changes: Peekable<MapDiff<'a>>,
    moves: Arc<DocumentMoves>,
    current_document: Option<(NodePath, MapChange)>,
    /// The last parent for which a new order of children was reported.
    reordered_parent: Option<NodePath>,
    has_hidden_changes: bool,
}

impl<'a> ChangedDocuments<'a> {
    /// Compares two states and their content, from the position of a cursor.
    pub(crate) fn open(
        repository: &'a Repository,
        roots: (ChunkId, ChunkId),
        maps: (SortedMap, SortedMap),
        follower: Option<FollowerSnapshots>,
        cursor: &ChangeCursor,
    ) -> Result<Self> {
        let shared = &repository.0;
        let before = SnapshotView::new(shared.clone(), roots.0, maps.0);
        let after = SnapshotView::new(shared.clone(), roots.1, maps.1);
        // A commit of many documents is read page by page, but searched for moves only once.
        let cached_moves =
            shared.cache.moves.get(maps).filter(|_| cursor.last_document_key.is_some());
        let moves = match cached_moves {
            Some(cached_moves) => cached_moves,
            None => Arc::new(DocumentMoves::detect(&before, &after, maps)?),
        };
        let changes = maps.0.diff(&maps.1, shared.chunk_reader());
        let changes = match &cursor.last_document_key {
            Some(key) => changes.start_after(key),
            None => changes,
        };
        let inside = cursor.last_document_key.as_deref().filter(|_| cursor.is_reorder_reported);
        let reordered =
            inside.map(record_key::record_path).transpose()?.and_then(|path| path.parent());
        let (changes, current, hid_something) = (changes.peekable(), None, false);
        Ok(Self {
            view_before: before,
            view_after: after,
            follower,
            changes,
            moves,
            current_document: current,
            reordered_parent: reordered,
            has_hidden_changes: hid_something,
        })
    }

    /// Advances to the next changed document and returns its key.
    pub(crate) fn advance(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(change) = self.changes.next().transpose()? else { return Ok(None) };
        let key = change.key.to_vec();
        self.current_document = Some((record_key::record_path(&key)?, change));
        Ok(Some(key))
    }

    /// Returns true if the new order of the siblings of the document with this key was reported.
    pub(crate) fn is_reorder_reported(&self, key: &[u8]) -> Result<bool> {
        Ok(self.reordered_parent.is_some()
            && record_key::record_path(key)?.parent() == self.reordered_parent)
    }

    /// Returns true if the follower may see the document with this key.
    pub(crate) fn is_key_visible(&self, key: &[u8]) -> Result<bool> {
        let Some(follower) = &self.follower else { return Ok(true) };
        let path = record_key::record_path(key)?;
        Ok(follower.snapshot_before.node(&path)?.is_some()
            || follower.snapshot_after.node(&path)?.is_some())
    }

    /// Caches the detected moves for the next page.
    pub(crate) fn cache_moves(&self) {
        let maps = (self.view_before.content_map, self.view_after.content_map);
        self.view_before.repository_state.cache.moves.insert(maps, self.moves.clone());
    }

    /// Returns true if there are documents after the current one.
    pub(crate) fn has_more(&mut self) -> bool {
        self.changes.peek().is_some()
    }

    /// Returns a revision's message, unless it may reveal something that is hidden from the follower: a message can
    /// name paths.
    pub(crate) fn visible_message(&self, message: &str, is_part: bool) -> Option<String> {
        let is_safe = self.follower.is_none() || !(self.has_hidden_changes || is_part);
        is_safe.then(|| message.to_owned())
    }

    /// Adds the differences of the current document that the filter accepts.
    pub(crate) fn collect_changes(
        &mut self,
        filter: &ChangeFilter,
        out: &mut Vec<NodeChange>,
    ) -> Result<()> {
        let Some((path, change)) = self.current_document.take() else { return Ok(()) };
        let origin = self.moves.origin_by_target.get(&path).cloned();
        let may_admit = |path: &NodePath| filter.may_accept_below(path);
        if !may_admit(&path) && !origin.as_ref().is_some_and(may_admit) {
            self.has_hidden_changes |= self.follower.is_some();
            return Ok(());
        }
        let mut differences = Vec::new();
        if let Some(parent) = self.take_reordered_parent(&path, &change)? {
            differences.push(self.reorder_change(parent)?);
        }
        let new =
            change.right.map(|stored| read_tree(&self.view_after, &path, &stored)).transpose()?;
        match (origin, new) {
            (Some(from), Some(new)) => {
                let old = self.view_before.read_record(&record_key::record_key(&from)?, &from)?;
                let old = old
                    .map(|record| read_record_tree(&self.view_before, &from, &record))
                    .transpose()?;
                collect_differences(&path, old.as_ref(), Some(&new), Some(&from), &mut differences);
            }
            // Reported at the target of the move.
            (None, None) if self.moves.target_by_origin.contains_key(&path) => {}
            (_, new) => {
                let old = change
                    .left
                    .map(|stored| read_tree(&self.view_before, &path, &stored))
                    .transpose()?;
                collect_differences(&path, old.as_ref(), new.as_ref(), None, &mut differences);
            }
        }
        for change in differences {
            let Some(change) = self.visible_change(change)? else {
                self.has_hidden_changes = true;
                continue;
            };
            if filter.accepts(&change) {
                out.push(change);
            }
        }
        Ok(())
    }

    /// Returns the parent of a document whose position among its siblings changed, unless it was returned before.
    fn take_reordered_parent(
        &mut self,
        path: &NodePath,
        change: &MapChange,
    ) -> Result<Option<NodePath>> {
        let (Some(old), Some(new)) = (&change.left, &change.right) else { return Ok(None) };
        let is_moved = decode_record(path, old)?.order_key != decode_record(path, new)?.order_key;
        let Some(parent) = path.parent().filter(|_| is_moved) else { return Ok(None) };
        if self.reordered_parent.as_ref() == Some(&parent) {
            return Ok(None);
        }
        self.reordered_parent = Some(parent.clone());
        Ok(Some(parent))
    }

    /// Reports that the order of a node's children changed.
    fn reorder_change(&self, parent: NodePath) -> Result<NodeChange> {
        let record = self.view_after.read_record(&record_key::record_key(&parent)?, &parent)?;
        let node_type = record.map(|record| record.summary.primary_type().to_owned());
        Ok(NodeChange {
            kind: FeedChangeKind::Reordered,
            path: parent,
            from: None,
            node_type: node_type.unwrap_or_default(),
            properties: Vec::new(),
        })
    }

    /// Returns a change as the follower sees it; `None` if the follower sees nothing of it.
    fn visible_change(&self, mut change: NodeChange) -> Result<Option<NodeChange>> {
        let Some(follower) = &self.follower else { return Ok(Some(change)) };
        let origin = change.from.as_ref().unwrap_or(&change.path);
        let (before, after) =
            (follower.snapshot_before.node(origin)?, follower.snapshot_after.node(&change.path)?);
        match (&before, &after) {
            (None, None) => return Ok(None),
            // To the follower, a node that becomes visible is new and one that becomes hidden is removed, whatever the
            // actual change.
            (None, Some(_)) => (change.kind, change.from) = (FeedChangeKind::Added, None),
            (Some(_), None) => {
                let path = change.from.take().unwrap_or(change.path);
                let removed = NodeChange { kind: FeedChangeKind::Removed, path, ..change };
                return Ok(Some(NodeChange { properties: Vec::new(), from: None, ..removed }));
            }
            (Some(_), Some(_)) => {}
        }
        let has = |node: &Option<crate::Node>, name: &str| {
            node.as_ref().is_some_and(|node| node.property(name).is_some())
        };
        change
            .properties
            .retain(|property| has(&before, &property.name) || has(&after, &property.name));
        let is_empty = change.kind == FeedChangeKind::Changed && change.properties.is_empty();
        Ok((!is_empty).then_some(change))
    }
}

fn decode_record(path: &NodePath, stored: &MapValue) -> Result<ContentRecord> {
    ContentRecord::decode(stored).ok_or_else(|| Error::Damaged {
        path: path.clone(),
        reason: "its record cannot be decoded",
    })
}

fn read_tree(view: &SnapshotView, path: &NodePath, stored: &MapValue) -> Result<Subtree> {
    read_record_tree(view, path, &decode_record(path, stored)?)
}

fn read_record_tree(
    view: &SnapshotView,
    path: &NodePath,
    record: &ContentRecord,
) -> Result<Subtree> {
    let body = view.load_body(record, path)?;
    Ok(body.subtree(body.root()))
}

/// Adds the differences between two states of a node and its descendants, parents before their children.
fn collect_differences(
    path: &NodePath,
    old: Option<&Subtree>,
    new: Option<&Subtree>,
    from: Option<&NodePath>,
    out: &mut Vec<NodeChange>,
) {
    let Some(node) = new.or(old) else { return };
    let properties = if new.is_some() { diff_properties(old, new) } else { Vec::new() };
    let kind = match (old, new, from) {
        (Some(_), Some(_), Some(_)) => Some(FeedChangeKind::Moved),
        (None, ..) => Some(FeedChangeKind::Added),
        (Some(_), None, _) => Some(FeedChangeKind::Removed),
        (Some(_), Some(_), None) => (!properties.is_empty()).then_some(FeedChangeKind::Changed),
    };
    let report = |kind, properties, from| NodeChange {
        kind,
        path: path.clone(),
        from,
        node_type: node.primary_type().to_owned(),
        properties,
    };
    if let Some(kind) = kind {
        let from = from.filter(|_| kind == FeedChangeKind::Moved).cloned();
        out.push(report(kind, properties, from));
    }
    if let (Some(old), Some(new)) = (old, new)
        && !has_same_child_order(old, new)
    {
        out.push(report(FeedChangeKind::Reordered, Vec::new(), None));
    }
    for old_child in old.map(|old| old.children.as_slice()).unwrap_or_default() {
        if new.is_none_or(|new| new.child(&old_child.name).is_none()) {
            collect_differences(
                &path.child_unchecked(&old_child.name),
                Some(old_child),
                None,
                None,
                out,
            );
        }
    }
    for child in new.map(|new| new.children.as_slice()).unwrap_or_default() {
        let before = old.and_then(|old| old.child(&child.name));
        if before != Some(child) {
            collect_differences(&path.child_unchecked(&child.name), before, Some(child), None, out);
        }
    }
}

/// Returns true if the children that both nodes have are in the same order.
fn has_same_child_order(old: &Subtree, new: &Subtree) -> bool {
    let before = old.children.iter().map(|child| &child.name);
    let after = new.children.iter().map(|child| &child.name);
    let common_names = before.filter(|name| new.child(name).is_some());
    common_names.eq(after.filter(|name| old.child(name).is_some()))
}

fn diff_properties(old: Option<&Subtree>, new: Option<&Subtree>) -> Vec<PropertyChange> {
    let (none, mut changed) = (BTreeMap::new(), Vec::new());
    let old = old.map_or(&none, |old| &old.properties);
    let new = new.map_or(&none, |new| &new.properties);
    for (name, value) in new {
        let kind = match old.get(name) {
            None => FeedChangeKind::Added,
            Some(before) if before != value => FeedChangeKind::Changed,
            Some(_) => continue,
        };
        changed.push(PropertyChange { name: name.clone(), kind });
    }
    let removed_names = old.keys().filter(|name| !new.contains_key(*name));
    changed.extend(
        removed_names
            .map(|name| PropertyChange { name: name.clone(), kind: FeedChangeKind::Removed }),
    );
    changed.sort_by(|left, right| left.name.cmp(&right.name));
    changed
}
