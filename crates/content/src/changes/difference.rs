//! The documents that two states have differently, and what is different in them.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;

use tympan_store::{Change, ChunkId, Diff, Map, Value as Stored};

use crate::changes::moves::Moves;
use crate::changes::{ChangeFilter, Cursor, FeedKind, NodeChange, PropertyChange};
use crate::record::Record;
use crate::snapshot::View;
use crate::{Error, NodePath, Repository, Result, Snapshot, Subtree, keys};

/// The two states as a follower sees them who may not see everything.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) before: Snapshot,
    pub(crate) after: Snapshot,
}

/// The changed documents of one revision, in the order of their keys.
pub(crate) struct Documents<'a> {
    before: View,
    after: View,
    sight: Option<Sight>,
    changes: Peekable<Diff<'a>>,
    moves: Arc<Moves>,
    current: Option<(NodePath, Change)>,
    /// The parent that was last reported for another order of its children.
    reordered: Option<NodePath>,
    hid_something: bool,
}

impl<'a> Documents<'a> {
    /// Compares two states with their content, behind the place of a cursor.
    pub(crate) fn open(
        repository: &'a Repository,
        roots: (ChunkId, ChunkId),
        maps: (Map, Map),
        (sight, cursor): (Option<Sight>, &Cursor),
    ) -> Result<Self> {
        let shared = &repository.0;
        let before = View::new(shared.clone(), roots.0, maps.0);
        let after = View::new(shared.clone(), roots.1, maps.1);
        // A commit of many documents is read page by page, but searched once.
        let known = shared.bodies.moves.find(maps).filter(|_| cursor.inside.is_some());
        let moves = match known {
            Some(known) => known,
            None => Arc::new(Moves::find(&before, &after, maps)?),
        };
        let changes = maps.0.diff(&maps.1, shared.reads());
        let changes = match &cursor.inside {
            Some(key) => changes.behind(key),
            None => changes,
        };
        let inside = cursor.inside.as_deref().filter(|_| cursor.is_reorder_told);
        let reordered = inside.map(keys::path_of).transpose()?.and_then(|path| path.parent());
        let (changes, current, hid_something) = (changes.peekable(), None, false);
        Ok(Self { before, after, sight, changes, moves, current, reordered, hid_something })
    }

    /// Goes on to the next changed document and returns its key.
    pub(crate) fn advance(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(change) = self.changes.next().transpose()? else { return Ok(None) };
        let key = change.key.to_vec();
        self.current = Some((keys::path_of(&key)?, change));
        Ok(Some(key))
    }

    /// Tells whether another order of the siblings of the document with this key was told.
    pub(crate) fn is_reorder_told(&self, key: &[u8]) -> Result<bool> {
        Ok(self.reordered.is_some() && keys::path_of(key)?.parent() == self.reordered)
    }

    /// Tells whether the follower may know of the document with this key.
    pub(crate) fn may_name(&self, key: &[u8]) -> Result<bool> {
        let Some(sight) = &self.sight else { return Ok(true) };
        let path = keys::path_of(key)?;
        Ok(sight.before.node(&path)?.is_some() || sight.after.node(&path)?.is_some())
    }

    /// Remembers where documents went, for the next page.
    pub(crate) fn keep_moves(&self) {
        let maps = (self.before.content, self.after.content);
        self.before.shared.bodies.moves.keep(maps, self.moves.clone());
    }

    /// Tells whether there are documents behind the present one.
    pub(crate) fn has_more(&mut self) -> bool {
        self.changes.peek().is_some()
    }

    /// Returns a revision's message unless it may tell something that is hidden from the follower: it can name paths.
    pub(crate) fn message(&self, message: &str, is_part: bool) -> Option<String> {
        let is_safe = self.sight.is_none() || !(self.hid_something || is_part);
        is_safe.then(|| message.to_owned())
    }

    /// Adds what is different in the present document, as far as the filter lets it through.
    pub(crate) fn compare(
        &mut self,
        filter: &ChangeFilter,
        out: &mut Vec<NodeChange>,
    ) -> Result<()> {
        let Some((path, change)) = self.current.take() else { return Ok(()) };
        let origin = self.moves.origins.get(&path).cloned();
        let may_admit = |path: &NodePath| filter.may_admit_below(path);
        if !may_admit(&path) && !origin.as_ref().is_some_and(may_admit) {
            self.hid_something |= self.sight.is_some();
            return Ok(());
        }
        let mut found = Vec::new();
        if let Some(parent) = self.take_reordered(&path, &change)? {
            found.push(self.reordered(parent)?);
        }
        let new = change.right.map(|stored| tree(&self.after, &path, &stored)).transpose()?;
        match (origin, new) {
            (Some(from), Some(new)) => {
                let old = self.before.record(&keys::key_of(&from)?, &from)?;
                let old = old.map(|record| tree_of(&self.before, &from, &record)).transpose()?;
                difference(&path, old.as_ref(), Some(&new), Some(&from), &mut found);
            }
            // Reported where the document went.
            (None, None) if self.moves.targets.contains_key(&path) => {}
            (_, new) => {
                let old =
                    change.left.map(|stored| tree(&self.before, &path, &stored)).transpose()?;
                difference(&path, old.as_ref(), new.as_ref(), None, &mut found);
            }
        }
        for change in found {
            let Some(change) = self.seen(change)? else {
                self.hid_something = true;
                continue;
            };
            if filter.admits(&change) {
                out.push(change);
            }
        }
        Ok(())
    }

    /// Returns the parent of a document that stands at another place among its siblings, unless it was returned before.
    fn take_reordered(&mut self, path: &NodePath, change: &Change) -> Result<Option<NodePath>> {
        let (Some(old), Some(new)) = (&change.left, &change.right) else { return Ok(None) };
        let is_moved = record(path, old)?.order != record(path, new)?.order;
        let Some(parent) = path.parent().filter(|_| is_moved) else { return Ok(None) };
        if self.reordered.as_ref() == Some(&parent) {
            return Ok(None);
        }
        self.reordered = Some(parent.clone());
        Ok(Some(parent))
    }

    /// Reports that the children of a node have another order.
    fn reordered(&self, parent: NodePath) -> Result<NodeChange> {
        let record = self.after.record(&keys::key_of(&parent)?, &parent)?;
        let node_type = record.map(|record| record.summary.primary_type().to_owned());
        Ok(NodeChange {
            kind: FeedKind::Reordered,
            path: parent,
            from: None,
            node_type: node_type.unwrap_or_default(),
            properties: Vec::new(),
        })
    }

    /// Returns a change as the follower sees it; nothing if that is nothing.
    fn seen(&self, mut change: NodeChange) -> Result<Option<NodeChange>> {
        let Some(sight) = &self.sight else { return Ok(Some(change)) };
        let origin = change.from.as_ref().unwrap_or(&change.path);
        let (before, after) = (sight.before.node(origin)?, sight.after.node(&change.path)?);
        match (&before, &after) {
            (None, None) => return Ok(None),
            // What appears to a follower is new, and what disappears is gone, whatever happened behind the scenes.
            (None, Some(_)) => (change.kind, change.from) = (FeedKind::Added, None),
            (Some(_), None) => {
                let path = change.from.take().unwrap_or(change.path);
                let removed = NodeChange { kind: FeedKind::Removed, path, ..change };
                return Ok(Some(NodeChange { properties: Vec::new(), from: None, ..removed }));
            }
            (Some(_), Some(_)) => {}
        }
        let has = |node: &Option<crate::Node>, name: &str| {
            node.as_ref().is_some_and(|node| node.property(name).is_some())
        };
        change.properties.retain(|one| has(&before, &one.name) || has(&after, &one.name));
        let is_empty = change.kind == FeedKind::Changed && change.properties.is_empty();
        Ok((!is_empty).then_some(change))
    }
}

fn record(path: &NodePath, stored: &Stored) -> Result<Record> {
    Record::decode(stored)
        .ok_or_else(|| Error::Damaged { path: path.clone(), reason: "its record does not decode" })
}

fn tree(view: &View, path: &NodePath, stored: &Stored) -> Result<Subtree> {
    tree_of(view, path, &record(path, stored)?)
}

fn tree_of(view: &View, path: &NodePath, record: &Record) -> Result<Subtree> {
    let body = view.body(record, path)?;
    Ok(body.subtree(body.root()))
}

/// Adds what is different between two states of a node and below it, parents before their children.
fn difference(
    path: &NodePath,
    old: Option<&Subtree>,
    new: Option<&Subtree>,
    from: Option<&NodePath>,
    out: &mut Vec<NodeChange>,
) {
    let Some(node) = new.or(old) else { return };
    let properties = if new.is_some() { changed_properties(old, new) } else { Vec::new() };
    let kind = match (old, new, from) {
        (Some(_), Some(_), Some(_)) => Some(FeedKind::Moved),
        (None, ..) => Some(FeedKind::Added),
        (Some(_), None, _) => Some(FeedKind::Removed),
        (Some(_), Some(_), None) => (!properties.is_empty()).then_some(FeedKind::Changed),
    };
    let report = |kind, properties, from| NodeChange {
        kind,
        path: path.clone(),
        from,
        node_type: node.primary_type().to_owned(),
        properties,
    };
    if let Some(kind) = kind {
        let from = from.filter(|_| kind == FeedKind::Moved).cloned();
        out.push(report(kind, properties, from));
    }
    if let (Some(old), Some(new)) = (old, new)
        && !is_ordered_alike(old, new)
    {
        out.push(report(FeedKind::Reordered, Vec::new(), None));
    }
    for gone in old.map(|old| old.children.as_slice()).unwrap_or_default() {
        if new.is_none_or(|new| new.child(&gone.name).is_none()) {
            difference(&path.child_unchecked(&gone.name), Some(gone), None, None, out);
        }
    }
    for child in new.map(|new| new.children.as_slice()).unwrap_or_default() {
        let before = old.and_then(|old| old.child(&child.name));
        if before != Some(child) {
            difference(&path.child_unchecked(&child.name), before, Some(child), None, out);
        }
    }
}

/// Tells whether the children that both have stand in the same order.
fn is_ordered_alike(old: &Subtree, new: &Subtree) -> bool {
    let before = old.children.iter().map(|child| &child.name);
    let after = new.children.iter().map(|child| &child.name);
    let kept = before.filter(|name| new.child(name).is_some());
    kept.eq(after.filter(|name| old.child(name).is_some()))
}

fn changed_properties(old: Option<&Subtree>, new: Option<&Subtree>) -> Vec<PropertyChange> {
    let (none, mut changed) = (BTreeMap::new(), Vec::new());
    let old = old.map_or(&none, |old| &old.properties);
    let new = new.map_or(&none, |new| &new.properties);
    for (name, value) in new {
        let kind = match old.get(name) {
            None => FeedKind::Added,
            Some(before) if before != value => FeedKind::Changed,
            Some(_) => continue,
        };
        changed.push(PropertyChange { name: name.clone(), kind });
    }
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    changed.extend(gone.map(|name| PropertyChange { name: name.clone(), kind: FeedKind::Removed }));
    changed.sort_by(|one, other| one.name.cmp(&other.name));
    changed
}
