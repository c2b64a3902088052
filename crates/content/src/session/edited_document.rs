//! Edits of nodes and properties, in the document being edited: decoded once, and split into records when it is written
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{EditedDocument, Session, refused_error};
use crate::access::{AccessGate, RecordExtent, is_guarded_name};
use crate::document::boundary::{has_ordered_children, is_container, is_own_content};
use crate::document::record::{ContentRecord, RecordBody};
use crate::model::order_key::OrderKey;
use crate::model::subtree::PRIMARY_TYPE;
use crate::node_type::PropertyProtection;
use crate::snapshot::SnapshotView;
use crate::{Error, NodePath, Property, Result, Subtree, check_item_name, document::record_key};

/// A node without its descendants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFields {
    /// The properties by name.
    pub properties: BTreeMap<String, Property>,
    /// The names of the children, in order.
    pub child_names: Vec<String>,
}

/// The result of looking up a path in the document being edited.
pub(super) enum EditedNodeLookup<'a> {
    /// The document would not hold the node.
    Elsewhere,
    /// The document would hold the node, and does not.
    Absent,
    Node(&'a Subtree),
}

impl EditedDocument {
    /// Returns true if children of the document's own node may have records of their own, except for a child that belongs
    /// to the document by its name. An empty name stands for the document's own node.
    fn may_have_child_record(&self, name: &str) -> bool {
        let types = [self.record.summary.primary_type(), self.tree.primary_type()];
        types.into_iter().any(|primary_type| {
            is_container(self.path.name(), primary_type) && !is_own_content(primary_type, name)
        })
    }
}

/// Returns the primary type of a node as the stored document states it.
fn stored_primary_type(node: &Subtree) -> &str {
    let single = node.properties.get(PRIMARY_TYPE).filter(|property| !property.is_list());
    single.and_then(|property| property.first()?.as_str()).unwrap_or("nt:unstructured")
}

/// Returns the visible fields of a node; `None` if the node is hidden.
fn visible_fields(
    gate: Option<&AccessGate>,
    path: &NodePath,
    node: &Subtree,
) -> Option<NodeFields> {
    let all = || NodeFields {
        properties: node.properties.clone(),
        child_names: node.children.iter().map(|child| child.name.clone()).collect(),
    };
    let Some(gate) = gate else { return Some(all()) };
    let primary_type = stored_primary_type(node);
    if !gate.can_see(path, primary_type) {
        return None;
    }
    let mut names = node.properties.keys().chain(node.children.iter().map(|child| &child.name));
    let has_guarded_name = names.any(|name| is_guarded_name(name));
    if !has_guarded_name && gate.can_see_record(path, RecordExtent::All) {
        return Some(all());
    }
    let is_visible = |(name, _): &(&String, _)| gate.can_see_property(path, primary_type, name);
    let properties = node.properties.iter().filter(is_visible);
    let children = node.children.iter().filter(|child| {
        gate.can_see(&path.child_unchecked(&child.name), stored_primary_type(child))
    });
    Some(NodeFields {
        properties: properties.map(|(name, value)| (name.clone(), value.clone())).collect(),
        child_names: children.map(|child| child.name.clone()).collect(),
    })
}

impl Session {
    /// Sets a property.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::InvalidName`]; [`Error::AccessDenied`] in a policy that the viewer does not see.
    pub fn set_property(&mut self, path: &NodePath, name: &str, property: Property) -> Result<()> {
        check_item_name(name)?;
        self.require_editable(path)?;
        self.edit_node(path, |node| {
            node.properties.insert(name.to_owned(), property);
            Ok(())
        })
    }

    /// Removes a property; returns true if it existed.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::AccessDenied`] in a policy that the viewer does not see.
    pub fn remove_property(&mut self, path: &NodePath, name: &str) -> Result<bool> {
        self.require_editable(path)?;
        self.edit_node(path, |node| Ok(node.properties.remove(name).is_some()))
    }

    /// Adds an empty node.
    ///
    /// # Errors
    /// [`Error::NodeExists`], or [`Error::AccessDenied`] where the viewer does not see it; [`Error::NodeMissing`] for the
    /// parent.
    pub fn add_node(&mut self, path: &NodePath, primary_type: &str) -> Result<()> {
        if self.has_any_node(path)? {
            return Err(self.node_exists_error(path)?);
        }
        self.put_node(path, Subtree::new(path.name(), primary_type))
    }

    /// Replaces the node at a path, with everything below it. The node keeps its position among its siblings; a new one
    /// goes last.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] for the parent; [`Error::InvalidName`] for any name in the tree; [`Error::AccessDenied`]
    /// if the viewer does not see the existing node.
    pub fn put_node(&mut self, path: &NodePath, mut tree: Subtree) -> Result<()> {
        tree.check_names()?;
        self.require_free_or_visible(path)?;
        path.name().clone_into(&mut tree.name);
        let Some(parent) = path.parent() else {
            if !is_container("", tree.primary_type()) {
                return Err(refused_error("replace", path, "the root must be a folder"));
            }
            self.write_back_edited_document()?;
            return self.put_record(path, tree, OrderKey::default());
        };
        if !self.has_own_record(&parent, path.name())? {
            return self.edit_node(&parent, |node| {
                node.put_child(tree);
                Ok(())
            });
        }
        let order = match self.pending.view.read_record(&record_key::record_key(path)?, path)? {
            Some(record) => record.order_key.clone(),
            None => self.next_order_key(&parent)?,
        };
        self.put_record(path, tree, order)
    }

    /// Removes a node with everything below it.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::InvalidEdit`] for the root.
    pub fn remove_node(&mut self, path: &NodePath) -> Result<()> {
        let parent =
            path.parent().ok_or_else(|| refused_error("remove", path, "it is the root"))?;
        self.require_visible(path)?;
        if self.find_edited_node(path).is_none() {
            self.write_back_edited_document()?;
            if self.pending.view.read_record(&record_key::record_key(path)?, path)?.is_some() {
                return self.remove_records(path);
            }
        }
        let removed = self.edit_node(&parent, |node| Ok(node.remove_child(path.name())));
        match removed {
            Ok(Some(_)) => Ok(()),
            Ok(None) | Err(Error::NodeMissing(_)) => Err(Error::NodeMissing(path.clone())),
            Err(error) => Err(error),
        }
    }

    /// Removes children of a node with everything below them. Children inside the node's document are removed together, at
    /// the cost of one pass over them.
    ///
    /// # Errors
    /// As [`Session::remove_node`].
    pub fn remove_children(&mut self, path: &NodePath, names: &BTreeSet<&str>) -> Result<()> {
        let mut inside = BTreeSet::new();
        for name in names {
            let child = path.child(name)?;
            self.require_visible(&child)?;
            match self.is_in_edited_document(&child) {
                true => drop(inside.insert(*name)),
                false => self.remove_node(&child)?,
            }
        }
        if inside.is_empty() {
            return Ok(());
        }
        self.edit_node(path, |node| {
            node.remove_children(|name| inside.contains(name));
            Ok(())
        })
    }

    /// Replaces all properties of a node.
    ///
    /// # Errors
    /// As [`Session::set_property`].
    pub fn replace_properties(
        &mut self,
        path: &NodePath,
        properties: BTreeMap<String, Property>,
    ) -> Result<()> {
        properties.keys().try_for_each(|name| check_item_name(name))?;
        self.require_editable(path)?;
        self.edit_node(path, |node| {
            node.properties = properties;
            Ok(())
        })
    }

    /// Changes a node inside the decoded document that holds it.
    pub(super) fn edit_node<T>(
        &mut self,
        path: &NodePath,
        change: impl FnOnce(&mut Subtree) -> Result<T>,
    ) -> Result<T> {
        self.decode_document(path)?;
        let missing = || Error::NodeMissing(path.clone());
        let document = self.edited_document.as_mut().ok_or_else(missing)?;
        let relative = path.relative_to(&document.path).ok_or_else(missing)?;
        document.is_edited = true;
        change(document.tree.find_descendant_mut(relative).ok_or_else(missing)?)
    }

    /// Finds a node inside the document being edited; the document's own node is not looked at, since it may have children
    /// with records of their own.
    pub(super) fn find_edited_node(&self, path: &NodePath) -> Option<&Subtree> {
        let document = self.edited_document.as_ref()?;
        let relative = path.relative_to(&document.path).filter(|relative| !relative.is_empty())?;
        document.tree.find_descendant(relative)
    }

    /// Returns true if the document being edited holds a node with everything below it.
    pub(super) fn is_in_edited_document(&self, path: &NodePath) -> bool {
        matches!(self.find_in_edited_document(path), EditedNodeLookup::Node(_))
    }

    /// Looks up a path in the document being edited.
    pub(super) fn find_in_edited_document(&self, path: &NodePath) -> EditedNodeLookup<'_> {
        let Some(document) = &self.edited_document else { return EditedNodeLookup::Elsewhere };
        let Some(relative) = path.relative_to(&document.path) else {
            return EditedNodeLookup::Elsewhere;
        };
        let first = relative.split('/').next().unwrap_or_default();
        if document.may_have_child_record(first) {
            return EditedNodeLookup::Elsewhere;
        }
        match document.tree.find_descendant(relative) {
            Some(node) => EditedNodeLookup::Node(node),
            None => EditedNodeLookup::Absent,
        }
    }

    /// Returns true if there is a node that the viewer sees, pending edits included. Looking into the document being edited
    /// does not write it back.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_node(&mut self, path: &NodePath) -> Result<bool> {
        match self.find_in_edited_document(path) {
            EditedNodeLookup::Absent => Ok(false),
            EditedNodeLookup::Node(node) => {
                let gate = self.access_gate.as_ref();
                Ok(gate.is_none_or(|gate| gate.can_see(path, stored_primary_type(node))))
            }
            EditedNodeLookup::Elsewhere => Ok(self.node(path)?.is_some()),
        }
    }

    /// Returns the primary type of a node that the viewer sees, as [`Session::has_node`] looks it up.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_primary_type(&mut self, path: &NodePath) -> Result<Option<String>> {
        if !self.has_node(path)? {
            return Ok(None);
        }
        match self.find_in_edited_document(path) {
            EditedNodeLookup::Node(node) => Ok(Some(stored_primary_type(node).to_owned())),
            _ => Ok(self.node(path)?.map(|node| node.primary_type().to_owned())),
        }
    }

    /// Returns a property that the viewer sees, pending edits included. Looking into the document being edited does not
    /// write it back.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_property(&mut self, path: &NodePath, name: &str) -> Result<Option<Property>> {
        if !self.has_node(path)? {
            return Ok(None);
        }
        match self.find_in_edited_document(path) {
            EditedNodeLookup::Node(node) => {
                let primary_type = stored_primary_type(node);
                let gate = self.access_gate.as_ref();
                let is_visible =
                    gate.is_none_or(|gate| gate.can_see_property(path, primary_type, name));
                Ok(node.properties.get(name).filter(|_| is_visible).cloned())
            }
            _ => Ok(self.node(path)?.and_then(|node| node.property(name))),
        }
    }

    /// Returns true if there is a node, whether or not the viewer sees it.
    pub(super) fn has_any_node(&mut self, path: &NodePath) -> Result<bool> {
        match self.find_in_edited_document(path) {
            EditedNodeLookup::Absent => Ok(false),
            EditedNodeLookup::Node(_) => Ok(true),
            EditedNodeLookup::Elsewhere => Ok(self.unrestricted_snapshot()?.node(path)?.is_some()),
        }
    }

    /// Returns the protection of a node's properties as [`Snapshot::property_protection`] does, pending edits included.
    /// Looking into the document being edited does not write it back.
    ///
    /// # Errors
    /// If the store fails.
    pub fn property_protection(&mut self, path: &NodePath) -> Result<PropertyProtection> {
        match self.find_in_edited_document(path) {
            EditedNodeLookup::Absent => Ok(PropertyProtection::of_missing_node(path)),
            EditedNodeLookup::Node(node) => {
                PropertyProtection::of_pending_node(path, node, &self.pending)
            }
            EditedNodeLookup::Elsewhere => self.unrestricted_snapshot()?.property_protection(path),
        }
    }

    /// Counts the documents below a node that have records of their own, pending edits included, at most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_documents_below(&mut self, path: &NodePath, limit: usize) -> Result<usize> {
        if self.find_edited_node(path).is_some() {
            return Ok(0);
        }
        let range = record_key::descendant_key_range(path)?;
        let pending = self.unrestricted_snapshot()?;
        pending.view.range_records(&range).take(limit).try_fold(0, |count, record| {
            record?;
            Ok(count + 1)
        })
    }

    /// Returns the properties of a node and the names of its children in order, pending edits included. The document that
    /// holds the node and its children is decoded once, and read without writing it back, so a caller that alternately reads
    /// and edits the nodes of one document encodes it once.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_node_fields(&mut self, path: &NodePath) -> Result<Option<NodeFields>> {
        match self.find_in_edited_document(path) {
            EditedNodeLookup::Absent => return Ok(None),
            EditedNodeLookup::Node(node) => {
                return Ok(visible_fields(self.access_gate.as_deref(), path, node));
            }
            EditedNodeLookup::Elsewhere => {}
        }
        let Some(node) = self.node(path)? else { return Ok(None) };
        let is_whole_document = !is_container(path.name(), node.primary_type());
        if node.record_path() != path || is_whole_document {
            self.decode_document(path)?;
            if let EditedNodeLookup::Node(node) = self.find_in_edited_document(path) {
                return Ok(visible_fields(self.access_gate.as_deref(), path, node));
            }
        }
        Ok(Some(NodeFields {
            child_names: node.children()?.iter().map(|child| child.name().to_owned()).collect(),
            properties: node.properties().into_iter().collect(),
        }))
    }

    /// Decodes the document that holds `path`, unless it is already the one being edited.
    fn decode_document(&mut self, path: &NodePath) -> Result<()> {
        if let Some(document) = &self.edited_document
            && path
                .relative_to(&document.path)
                .is_some_and(|relative| document.tree.find_descendant(relative).is_some())
        {
            return Ok(());
        }
        self.write_back_edited_document()?;
        let node = self.pending.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let owner = node.record_path().clone();
        let node = if owner == *path { Some(node) } else { self.pending.node(&owner)? };
        let node = node.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let record = node.record().clone();
        let body = self.pending.view.load_body(&record, &owner)?;
        let tree = node.read_own_subtree()?;
        self.edited_document =
            Some(EditedDocument { path: owner, record, body, tree, is_edited: false });
        Ok(())
    }

    /// Writes the edited document back to the pending edits. If that fails, the document is retained, so that no later
    /// commit succeeds without it.
    pub(super) fn write_back_edited_document(&mut self) -> Result<()> {
        let Some(document) = self.edited_document.take() else { return Ok(()) };
        if !document.is_edited {
            return Ok(());
        }
        let written = self.write_back_document(&document);
        if written.is_err() {
            self.edited_document = Some(document);
        }
        written
    }

    fn write_back_document(
        &mut self,
        EditedDocument { path, record, body, tree, .. }: &EditedDocument,
    ) -> Result<()> {
        let order = record.order_key.clone();
        let (old_type, new_type) = (record.summary.primary_type(), tree.primary_type());
        let is_cut_alike = new_type == old_type
            || !(is_container(path.name(), new_type) || is_container(path.name(), old_type));
        if is_cut_alike {
            let deep = || refused_error("write", path, "it is nested too deeply");
            let changed = ContentRecord::from_subtree(tree, order).ok_or_else(deep)?;
            self.repository.count_encoded_document();
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
        if self.is_in_edited_document(parent) {
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
        for (key, _) in
            self.pending.view.records_in_range(&record_key::descendant_key_range(path)?)?
        {
            self.pending_view_mut().put_record(key, None)?;
        }
        let key = record_key::record_key(path)?;
        self.pending_view_mut().put_record(key, None)
    }

    pub(crate) fn write_record(&mut self, path: &NodePath, record: ContentRecord) -> Result<()> {
        let key = record_key::record_key(path)?;
        self.pending_view_mut().put_record(key, Some(Arc::new(record)))
    }

    pub(crate) fn pending_view_mut(&mut self) -> &mut SnapshotView {
        Arc::<SnapshotView>::make_mut(&mut self.pending.view)
    }
}

/// Splits a tree into records.
pub(super) fn split_into_records(
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
    tree.children = own.into();
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
