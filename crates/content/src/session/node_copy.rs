//! Moving and copying. Documents are copied unchanged if source and target are both locations of documents; otherwise
//! the decoded nodes are.

use super::edited_document::EditedNodeLookup;
use super::tag::is_tag_path;
use super::{Session, refused_error};
use crate::access::{RecordExtent, is_guarded_name};
use crate::document::boundary::is_container;
use crate::document::record::ContentRecord;
use crate::version::checked_in::IS_CHECKED_OUT;
use crate::{
    Error, Node, NodePath, Property, Result, Subtree, Value, check_item_name, document::record_key,
};

/// The policy for the identifiers of the referenceable nodes of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyIdentifierPolicy {
    Preserved,
    Regenerated,
}

impl Session {
    /// Moves a node with everything below it; documents are moved without being read.
    ///
    /// # Errors
    /// [`Error::NodeMissing`], [`Error::NodeExists`], [`Error::InvalidEdit`] for the root or a target inside the node
    /// itself.
    pub fn move_node(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        if from.is_root() || to.is_within(from) {
            return Err(refused_error("move", from, "a node cannot be moved into itself"));
        }
        if let Some(tree) = self.clone_within_edited_document(from, to)? {
            self.require_visible(from)?;
            self.remove_node(from)?;
            self.put_node(to, tree)?;
            self.moves.push((from.clone(), to.clone()));
            return Ok(());
        }
        self.clear_moved_tag(to)?;
        let histories = self.histories_from(from)?;
        self.require_visible(from)?;
        self.require_visible_parent(to)?;
        let moved = self.prepare_copy(from, to)?;
        match moved {
            Some(node) => {
                let tree = node.read_subtree()?;
                drop(node);
                self.remove_node(from)?;
                self.put_node(to, tree)?;
            }
            None => {
                self.copy_records(from, to, CopyIdentifierPolicy::Preserved)?;
                self.remove_records(from)?;
            }
        }
        self.move_histories(histories, from, to)?;
        self.moves.push((from.clone(), to.clone()));
        self.leave_tag_redirects(from, to)
    }

    /// Copies a node with everything below it; referenceable nodes of the copy get new identifiers.
    ///
    /// # Errors
    /// [`Error::NodeMissing`], [`Error::NodeExists`], [`Error::InvalidEdit`] for a target inside the node itself and for
    /// more than [`Session::limit_bulk_edits`] allows.
    pub fn copy_node(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        if to.is_within(from) {
            return Err(refused_error("copy", from, "a node cannot be copied into itself"));
        }
        if let Some(mut tree) = self.clone_within_edited_document(from, to)?
            && self.can_see_whole(from, &tree)
        {
            self.take_copied_tree(from, &tree)?;
            renew_identifiers(&mut tree);
            return self.put_node(to, tree);
        }
        if self.access_gate.as_ref().is_some_and(|gate| !gate.is_unrestricted()) {
            return self.copy_visible(from, to);
        }
        match self.prepare_copy(from, to)? {
            Some(node) => {
                let mut tree = self.read_copied_subtree(&node)?;
                drop(node);
                renew_identifiers(&mut tree);
                self.put_node(to, tree)
            }
            None => self.copy_records(from, to, CopyIdentifierPolicy::Regenerated),
        }
    }

    /// Clones a node that is to be moved or copied within the document being edited, where that concerns no record,
    /// version history or tag: such edits do not write the document back, so that those of a request encode it once.
    /// `None` otherwise.
    fn clone_within_edited_document(
        &self,
        from: &NodePath,
        to: &NodePath,
    ) -> Result<Option<Subtree>> {
        let EditedNodeLookup::Node(tree) = self.find_in_edited_document(from) else {
            return Ok(None);
        };
        let Some(parent) = to.parent() else { return Ok(None) };
        let is_free = self.is_in_edited_document(&parent)
            && matches!(self.find_in_edited_document(to), EditedNodeLookup::Absent);
        if !is_free || is_tag_path(from) || is_tag_path(to) {
            return Ok(None);
        }
        let has_history = self.pending.view.has_history_within(from)?;
        Ok((!has_history).then(|| tree.clone()))
    }

    /// Rejects a target below a node that the viewer does not see, as if that node did not exist.
    fn require_visible_parent(&mut self, to: &NodePath) -> Result<()> {
        to.parent().map_or(Ok(()), |parent| self.require_visible(&parent))
    }

    /// Copies the part of a node that the viewer sees.
    fn copy_visible(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        self.require_visible_parent(to)?;
        let node = self.node(from)?.ok_or_else(|| Error::NodeMissing(from.clone()))?;
        if self.unrestricted_snapshot()?.node(to)?.is_some() {
            return Err(self.node_exists_error(to)?);
        }
        let mut tree = self.read_copied_subtree(&node)?;
        drop(node);
        renew_identifiers(&mut tree);
        self.put_node(to, tree)
    }

    /// Returns true if the viewer sees a node that is part of a document, with everything below it.
    fn can_see_whole(&self, path: &NodePath, tree: &Subtree) -> bool {
        self.access_gate.as_ref().is_none_or(|gate| {
            gate.is_unrestricted()
                || (gate.can_see_record(path, RecordExtent::All) && !has_guarded_name(tree))
        })
    }

    /// Reads a node that is copied, within what copies may add.
    fn read_copied_subtree(&mut self, node: &Node) -> Result<Subtree> {
        if let Some(budget) = &mut self.bulk_edit_budget
            && node.record_path() == node.path()
        {
            let read = node.read_subtree_within(budget)?;
            return read.ok_or_else(|| copy_limit_error(node.path()));
        }
        // A node inside a document is at most as large as the document.
        let tree = node.read_subtree()?;
        self.take_copied_tree(node.path(), &tree)?;
        Ok(tree)
    }

    /// Takes a tree that is copied out of what copies may add.
    fn take_copied_tree(&mut self, path: &NodePath, tree: &Subtree) -> Result<()> {
        let is_limited = self.bulk_edit_budget.is_some();
        let bytes = if is_limited { tree.text_bytes() } else { 0 };
        match self.take_bulk_edit(tree.node_count(), bytes) {
            true => Ok(()),
            false => Err(copy_limit_error(path)),
        }
    }

    /// Checks the source and target of a copy. Returns the source unless both are locations of records.
    fn prepare_copy(&mut self, from: &NodePath, to: &NodePath) -> Result<Option<Node>> {
        let node = self
            .unrestricted_snapshot()?
            .node(from)?
            .ok_or_else(|| Error::NodeMissing(from.clone()))?;
        if self.pending.node(to)?.is_some() {
            return Err(self.node_exists_error(to)?);
        }
        let parent = to.parent().unwrap_or_else(NodePath::root);
        check_item_name(to.name())?;
        // This also checks, before anything is removed, that the new parent exists.
        let is_record_place = self.has_own_record(&parent, to.name())?;
        let primary_type = node.primary_type();
        let stays_cut = node.summary().is_some()
            && is_container(from.name(), primary_type) == is_container(to.name(), primary_type);
        Ok((!(is_record_place && stays_cut)).then_some(node))
    }

    /// Writes the records of a subtree under another path.
    fn copy_records(
        &mut self,
        from: &NodePath,
        to: &NodePath,
        identity: CopyIdentifierPolicy,
    ) -> Result<()> {
        let order = self.next_order_key(&to.parent().unwrap_or_else(NodePath::root))?;
        let top = self.pending.view.read_record(&record_key::record_key(from)?, from)?;
        let top = top.ok_or_else(|| Error::NodeMissing(from.clone()))?;
        let mut records =
            vec![(to.clone(), ContentRecord { order_key: order, ..ContentRecord::clone(&top) })];
        for (key, record) in
            self.pending.view.records_in_range(&record_key::descendant_key_range(from)?)?
        {
            let path = record_key::record_path(&key)?;
            let target = path.rebase(from, to).ok_or(Error::NodeMissing(path))?;
            records.push((NodePath::new(target.as_str())?, ContentRecord::clone(&record)));
        }
        for (path, record) in records {
            let record = match identity {
                CopyIdentifierPolicy::Preserved => record,
                CopyIdentifierPolicy::Regenerated => self.with_new_identifiers(&path, record)?,
            };
            self.write_record(&path, record)?;
        }
        Ok(())
    }

    /// Gives the referenceable nodes of a record new identifiers.
    fn with_new_identifiers(
        &mut self,
        path: &NodePath,
        record: ContentRecord,
    ) -> Result<ContentRecord> {
        let body = self.pending.view.load_body(&record, path)?;
        let mut tree = body.subtree(body.root());
        if let Some(budget) = &mut self.bulk_edit_budget
            && !budget.take(tree.node_count(), body.bytes().len() as u64)
        {
            return Err(copy_limit_error(path));
        }
        if !renew_identifiers(&mut tree) {
            return Ok(record);
        }
        ContentRecord::from_subtree(&tree, record.order_key)
            .ok_or_else(|| refused_error("copy", path, "it is nested too deeply"))
    }
}

/// Returns true if access control decides individually about an item of a tree.
fn has_guarded_name(tree: &Subtree) -> bool {
    tree.properties.keys().any(|name| is_guarded_name(name))
        || tree.children.iter().any(|child| is_guarded_name(&child.name) || has_guarded_name(child))
}

fn copy_limit_error(path: &NodePath) -> Error {
    refused_error(
        "copy",
        path,
        "together, the copies exceed the limit of a request; copy less at once",
    )
}

/// Gives every referenceable node of a tree a new identifier, and checks every node out, because a copy has no
/// versions. Returns true if there was such a node.
fn renew_identifiers(tree: &mut Subtree) -> bool {
    let mut has_any = false;
    if let Some(is_out) = tree.properties.get_mut(IS_CHECKED_OUT) {
        *is_out = Value::Boolean(true).into();
        has_any = true;
    }
    if let Some(property) = tree.properties.get_mut("jcr:uuid") {
        *property = Property::text(uuid::Uuid::new_v4().to_string());
        has_any = true;
    }
    for child in &mut tree.children {
        has_any |= renew_identifiers(child);
    }
    has_any
}
