//! The document that is being edited: decoded once, and cut into records when it is written back.

use std::sync::Arc;

use super::{Session, refused};
use crate::body::Body;
use crate::boundary::{has_ordered_children, is_container, is_own_content};
use crate::order::OrderKey;
use crate::record::{BodyPlace, Record};
use crate::{Error, NodePath, Result, Subtree, keys};

/// A decoded document.
#[derive(Debug)]
pub(super) struct Hot {
    path: NodePath,
    /// The record and body it was decoded from.
    record: Record,
    body: Arc<Body>,
    tree: Subtree,
}

impl Session {
    /// Changes a node inside its decoded document.
    pub(super) fn edit<T>(
        &mut self,
        path: &NodePath,
        change: impl FnOnce(&mut Subtree) -> Result<T>,
    ) -> Result<T> {
        self.heat(path)?;
        let missing = || Error::NodeMissing(path.clone());
        let hot = self.hot.as_mut().ok_or_else(missing)?;
        let relative = path.relative_to(&hot.path).ok_or_else(missing)?;
        change(hot.tree.find_mut(relative).ok_or_else(missing)?)
    }

    /// Decodes the document that holds `path`, unless it is the one that is being edited.
    fn heat(&mut self, path: &NodePath) -> Result<()> {
        if let Some(hot) = &self.hot
            && path.relative_to(&hot.path).is_some_and(|relative| hot.tree.find(relative).is_some())
        {
            return Ok(());
        }
        self.cool()?;
        let node = self.pending.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let owner = node.owner().clone();
        let node = if owner == *path { Some(node) } else { self.pending.node(&owner)? };
        let node = node.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let record = node.record().clone();
        let body = self.pending.0.body(&record, &owner)?;
        let tree = node.read_own()?;
        self.hot = Some(Hot { path: owner, record, body, tree });
        Ok(())
    }

    /// Writes the edited document back to the pending edits. What cannot be written stays, so that no later commit goes
    /// through without it.
    pub(super) fn cool(&mut self) -> Result<()> {
        let Some(hot) = self.hot.take() else { return Ok(()) };
        let written = self.write_back(&hot);
        if written.is_err() {
            self.hot = Some(hot);
        }
        written
    }

    fn write_back(&mut self, Hot { path, record, body, tree }: &Hot) -> Result<()> {
        let order = record.order.clone();
        let (old_type, new_type) = (record.summary.primary_type(), tree.primary_type());
        let is_cut_alike = new_type == old_type
            || !(is_container(path.name(), new_type) || is_container(path.name(), old_type));
        if is_cut_alike {
            let deep = || refused("write", path, "it is nested too deeply");
            let changed = Record::of(tree, order).ok_or_else(deep)?;
            // The bytes name blobs by their places in the list beside them.
            let is_same = matches!(&changed.body, BodyPlace::Pending(new)
                if new.bytes() == body.bytes() && new.blobs() == body.blobs());
            return if is_same { Ok(()) } else { self.write(path, changed) };
        }
        if path.is_root() && !is_container("", new_type) {
            return Err(refused("change the type of", path, "the root must be a folder"));
        }
        // The type decides which children have records of their own: put the whole subtree anew.
        let node = self.pending.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let mut tree = tree.clone();
        for child in node.listed_children()? {
            tree.children.push(child.read()?);
        }
        self.put_record(path, tree, order)
    }

    /// Tells whether a child `name` of `parent` has a record of its own.
    pub(crate) fn is_record_place(&mut self, parent: &NodePath, name: &str) -> Result<bool> {
        self.cool()?;
        let node = self.pending.node(parent)?.ok_or_else(|| Error::NodeMissing(parent.clone()))?;
        let primary_type = node.primary_type();
        Ok(node.summary().is_some()
            && is_container(parent.name(), primary_type)
            && !is_own_content(primary_type, name))
    }

    /// Replaces the record at `path` and all below it by those of `tree`; all of it or, on failure, nothing.
    pub(super) fn put_record(
        &mut self,
        path: &NodePath,
        tree: Subtree,
        order: OrderKey,
    ) -> Result<()> {
        let mut records = Vec::new();
        cut(path, tree, order, &mut records)?;
        self.remove_records(path)?;
        records.into_iter().try_for_each(|(path, record)| self.write(&path, record))
    }

    /// Removes the record at `path` and all below it from the pending state.
    pub(crate) fn remove_records(&mut self, path: &NodePath) -> Result<()> {
        self.last_order = None;
        for (key, _) in self.pending.0.records(&keys::below(path)?)? {
            self.edits().put(key, None)?;
        }
        let key = keys::key_of(path)?;
        self.edits().put(key, None)
    }
}

/// Cuts a tree into records.
fn cut(
    path: &NodePath,
    mut tree: Subtree,
    order: OrderKey,
    records: &mut Vec<(NodePath, Record)>,
) -> Result<()> {
    let primary_type = tree.primary_type().to_owned();
    let (own, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut tree.children).into_iter().partition(|child| {
            !is_container(path.name(), &primary_type) || is_own_content(&primary_type, &child.name)
        });
    tree.children = own;
    let record = Record::of(&tree, order);
    let record = record.ok_or_else(|| refused("write", path, "it is nested too deeply"))?;
    records.push((path.clone(), record));
    let mut child_order = has_ordered_children(&primary_type).then(OrderKey::first);
    for child in others {
        let child_path = path.child(&child.name)?;
        let order = child_order.clone().unwrap_or_default();
        child_order = child_order.as_ref().map(OrderKey::after);
        cut(&child_path, child, order, records)?;
    }
    Ok(())
}
