//! The document being edited: decoded once, and split into records when it is written back.

use std::collections::BTreeMap;

use super::{EditedDocument, Session, refused_error};
use crate::access::{RecordExtent, is_guarded_name};
use crate::document::boundary::{has_ordered_children, is_container, is_own_content};
use crate::document::record::{ContentRecord, RecordBody};
use crate::model::order_key::OrderKey;
use crate::{Error, NodePath, Property, Result, Subtree, document::record_key};

impl Session {
    /// Changes a node inside the decoded document that holds it.
    pub(super) fn edit_node<T>(
        &mut self,
        path: &NodePath,
        change: impl FnOnce(&mut Subtree) -> Result<T>,
    ) -> Result<T> {
        self.decode_document(path)?;
        let missing = || Error::NodeMissing(path.clone());
        let hot = self.edited_document.as_mut().ok_or_else(missing)?;
        let relative = path.relative_to(&hot.path).ok_or_else(missing)?;
        change(hot.tree.find_descendant_mut(relative).ok_or_else(missing)?)
    }

    /// Finds a node inside the document being edited; the document's own node is not looked at, since it may have children
    /// with records of their own.
    pub(super) fn find_edited_node(&self, path: &NodePath) -> Option<&Subtree> {
        let hot = self.edited_document.as_ref()?;
        let relative = path.relative_to(&hot.path).filter(|relative| !relative.is_empty())?;
        hot.tree.find_descendant(relative)
    }

    /// Finds a node inside the document being edited if the viewer sees all of it.
    fn find_visible_edited_node(&self, path: &NodePath) -> Option<&Subtree> {
        let node = self.find_edited_node(path)?;
        let Some(gate) = &self.access_gate else { return Some(node) };
        let mut names = node.properties.keys().chain(node.children.iter().map(|child| &child.name));
        let has_guarded_name = names.any(|name| is_guarded_name(name));
        (!has_guarded_name && gate.can_see_record(path, RecordExtent::All)).then_some(node)
    }

    /// Counts the documents below a node that have records of their own, pending edits included, at most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_documents_below(&mut self, path: &NodePath, limit: usize) -> Result<usize> {
        if self.find_edited_node(path).is_some() {
            return Ok(0);
        }
        self.unrestricted_snapshot()?.0.count_records_below(path, limit)
    }

    /// Returns the properties of a node and the names of its children in order, pending edits included. Nodes of the
    /// document being edited are read without writing it back, so a caller that alternately reads and edits the nodes of
    /// one document encodes it once.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_node_fields(
        &mut self,
        path: &NodePath,
    ) -> Result<Option<(BTreeMap<String, Property>, Vec<String>)>> {
        if let Some(node) = self.find_visible_edited_node(path) {
            let children = node.children.iter().map(|child| child.name.clone()).collect();
            return Ok(Some((node.properties.clone(), children)));
        }
        let Some(node) = self.node(path)? else { return Ok(None) };
        let children = node.children()?.iter().map(|child| child.name().to_owned()).collect();
        Ok(Some((node.properties().into_iter().collect(), children)))
    }

    /// Decodes the document that holds `path`, unless it is already the one being edited.
    fn decode_document(&mut self, path: &NodePath) -> Result<()> {
        if let Some(hot) = &self.edited_document
            && path
                .relative_to(&hot.path)
                .is_some_and(|relative| hot.tree.find_descendant(relative).is_some())
        {
            return Ok(());
        }
        self.write_back_edited_document()?;
        let node = self.pending.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let owner = node.record_path().clone();
        let node = if owner == *path { Some(node) } else { self.pending.node(&owner)? };
        let node = node.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let record = node.record().clone();
        let body = self.pending.0.load_body(&record, &owner)?;
        let tree = node.read_own_subtree()?;
        self.edited_document = Some(EditedDocument { path: owner, record, body, tree });
        Ok(())
    }

    /// Writes the edited document back to the pending edits. If that fails, the document is retained, so that no later
    /// commit succeeds without it.
    pub(super) fn write_back_edited_document(&mut self) -> Result<()> {
        let Some(hot) = self.edited_document.take() else { return Ok(()) };
        let written = self.write_back_document(&hot);
        if written.is_err() {
            self.edited_document = Some(hot);
        }
        written
    }

    fn write_back_document(
        &mut self,
        EditedDocument { path, record, body, tree }: &EditedDocument,
    ) -> Result<()> {
        let order = record.order_key.clone();
        let (old_type, new_type) = (record.summary.primary_type(), tree.primary_type());
        let is_cut_alike = new_type == old_type
            || !(is_container(path.name(), new_type) || is_container(path.name(), old_type));
        if is_cut_alike {
            let deep = || refused_error("write", path, "it is nested too deeply");
            let changed = ContentRecord::from_subtree(tree, order).ok_or_else(deep)?;
            // The bytes reference blobs by their index in the list beside them.
            let is_same = matches!(&changed.body, RecordBody::Pending(new)
                if new.bytes() == body.bytes() && new.blobs() == body.blobs());
            return if is_same { Ok(()) } else { self.write_record(path, changed) };
        }
        if path.is_root() && !is_container("", new_type) {
            return Err(refused_error("change the type of", path, "the root must be a folder"));
        }
        // The type decides which children have records of their own, so the whole subtree is written again.
        let node = self.pending.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let mut tree = tree.clone();
        for child in node.listed_children()? {
            tree.children.push(child.read_subtree()?);
        }
        self.put_record(path, tree, order)
    }

    /// Returns true if a child `name` of `parent` has a record of its own.
    pub(crate) fn has_own_record(&mut self, parent: &NodePath, name: &str) -> Result<bool> {
        if self.find_edited_node(parent).is_some() {
            return Ok(false);
        }
        self.write_back_edited_document()?;
        let node = self.pending.node(parent)?.ok_or_else(|| Error::NodeMissing(parent.clone()))?;
        let primary_type = node.primary_type();
        Ok(node.summary().is_some()
            && is_container(parent.name(), primary_type)
            && !is_own_content(primary_type, name))
    }

    /// Replaces the record at `path` and all below it by those of `tree`. On failure, nothing is changed.
    pub(super) fn put_record(
        &mut self,
        path: &NodePath,
        tree: Subtree,
        order: OrderKey,
    ) -> Result<()> {
        let mut records = Vec::new();
        split_into_records(path, tree, order, &mut records)?;
        self.remove_records(path)?;
        records.into_iter().try_for_each(|(path, record)| self.write_record(&path, record))
    }

    /// Removes the record at `path` and all below it from the pending state.
    pub(crate) fn remove_records(&mut self, path: &NodePath) -> Result<()> {
        self.last_order_key = None;
        for (key, _) in self.pending.0.records_in_range(&record_key::descendant_key_range(path)?)? {
            self.pending_view_mut().put_record(key, None)?;
        }
        let key = record_key::record_key(path)?;
        self.pending_view_mut().put_record(key, None)
    }
}

/// Splits a tree into records.
fn split_into_records(
    path: &NodePath,
    mut tree: Subtree,
    order: OrderKey,
    records: &mut Vec<(NodePath, ContentRecord)>,
) -> Result<()> {
    let primary_type = tree.primary_type().to_owned();
    let (own, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut tree.children).into_iter().partition(|child| {
            !is_container(path.name(), &primary_type) || is_own_content(&primary_type, &child.name)
        });
    tree.children = own;
    let record = ContentRecord::from_subtree(&tree, order);
    let record = record.ok_or_else(|| refused_error("write", path, "it is nested too deeply"))?;
    records.push((path.clone(), record));
    let mut child_order = has_ordered_children(&primary_type).then(OrderKey::first);
    for child in others {
        let child_path = path.child(&child.name)?;
        let order = child_order.clone().unwrap_or_default();
        child_order = child_order.as_ref().map(OrderKey::after);
        split_into_records(&child_path, child, order, records)?;
    }
    Ok(())
}
