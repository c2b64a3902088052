//! The order of siblings: moving nodes among them, and positions for new ones.

use std::collections::BTreeMap;

use super::{Session, refused_error};
use crate::document::boundary::has_ordered_children;
use crate::document::record::ContentRecord;
use crate::document::sibling::SiblingEntryPosition;
use crate::model::order_key::OrderKey;
use crate::{Error, NodePath, Result, Subtree, document::record_key};

/// The target position of a node among its siblings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SiblingPosition {
    /// Before all others.
    First,
    /// After all others.
    Last,
    /// Before the sibling with this name.
    Before(String),
    /// After the sibling with this name.
    After(String),
}

impl Session {
    /// Moves a node to another position among its siblings.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] for the node or the sibling; [`Error::InvalidEdit`] where siblings have no order.
    pub fn reorder_node(&mut self, path: &NodePath, position: &SiblingPosition) -> Result<()> {
        let parent = path.parent().ok_or_else(|| refused_error("order", path, "it is the root"))?;
        self.require_visible(path)?;
        if let SiblingPosition::Before(name) | SiblingPosition::After(name) = position {
            self.require_visible(&parent.child(name)?)?;
        }
        if self.find_edited_node(path).is_some() {
            return self.edit_node(&parent, |node| reorder_child(node, path, position));
        }
        self.write_back_edited_document()?;
        let Some(record) = self.pending.view.read_record(&record_key::record_key(path)?, path)?
        else {
            return self.edit_node(&parent, |node| reorder_child(node, path, position));
        };
        let parent_node =
            self.pending.node(&parent)?.ok_or_else(|| Error::NodeMissing(parent.clone()))?;
        if !has_ordered_children(parent_node.primary_type()) {
            return Err(refused_error(
                "order",
                path,
                "the children of its folder are sorted by name",
            ));
        }
        drop(parent_node);
        self.last_order_key = None;
        let assignments = {
            let siblings =
                self.pending.view.ordered_siblings(&parent)?.ok_or_else(|| Error::Damaged {
                    path: parent.clone(),
                    reason: "its state has no map of order keys",
                })?;
            let spot = match position {
                SiblingPosition::First => SiblingEntryPosition::First,
                SiblingPosition::Last => SiblingEntryPosition::Last,
                SiblingPosition::Before(name) | SiblingPosition::After(name) => {
                    if name == path.name() {
                        return Ok(());
                    }
                    let entry = self.order_entry(&parent.child(name)?)?;
                    if matches!(position, SiblingPosition::Before(_)) {
                        SiblingEntryPosition::Before(entry)
                    } else {
                        SiblingEntryPosition::After(entry)
                    }
                }
            };
            siblings.assign_keys_at(
                &record_key::order_map_key(&record_key::record_key(path)?, &record.order_key),
                spot,
            )?
        };
        for (key, order) in assignments {
            let path = record_key::record_path(&key)?;
            if let Some(record) = self.pending.view.read_record(&key, &path)? {
                self.write_record(
                    &path,
                    ContentRecord { order_key: order, ..ContentRecord::clone(&record) },
                )?;
            }
        }
        Ok(())
    }

    /// Returns the entry of a record in the map of order keys.
    fn order_entry(&self, path: &NodePath) -> Result<Vec<u8>> {
        let key = record_key::record_key(path)?;
        let record = self.pending.view.read_record(&key, path)?;
        let record = record.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        Ok(record_key::order_map_key(&key, &record.order_key))
    }

    /// Sorts the children of a node into the order of `names`; children that are not named go last. Does nothing where
    /// children have no order.
    ///
    /// # Errors
    /// [`Error::NodeMissing`].
    pub fn order_children(&mut self, path: &NodePath, names: &[String]) -> Result<()> {
        let positions: BTreeMap<&str, usize> =
            names.iter().enumerate().map(|(at, name)| (&**name, at)).collect();
        let position = |name: &str| positions.get(name).copied().unwrap_or(usize::MAX);
        self.require_visible(path)?;
        self.edit_node(path, |node| {
            node.children.sort_by_key(|child| position(&child.name));
            Ok(())
        })?;
        if self.is_in_edited_document(path) {
            return Ok(());
        }
        let node = self
            .unrestricted_snapshot()?
            .node(path)?
            .ok_or_else(|| Error::NodeMissing(path.clone()))?;
        if !has_ordered_children(node.primary_type()) {
            return Ok(());
        }
        let mut children: Vec<(NodePath, ContentRecord)> = node
            .listed_children()?
            .iter()
            .map(|child| (child.path().clone(), child.record().clone()))
            .collect();
        drop(node);
        if children.is_sorted_by_key(|(path, _)| position(path.name())) {
            return Ok(());
        }
        children.sort_by_key(|(path, _)| position(path.name()));
        self.last_order_key = None;
        let mut order = OrderKey::first();
        for (path, record) in children {
            self.write_record(&path, ContentRecord { order_key: order.clone(), ..record })?;
            order = OrderKey::after(&order);
        }
        Ok(())
    }

    /// Returns the order key of a new last child; empty where children have no order.
    pub(crate) fn next_order_key(&mut self, parent: &NodePath) -> Result<OrderKey> {
        let last = match &self.last_order_key {
            Some((cached_parent, last)) if cached_parent == parent => Some(last.clone()),
            _ => {
                let node =
                    self.pending.node(parent)?.ok_or_else(|| Error::NodeMissing(parent.clone()))?;
                if !has_ordered_children(node.primary_type()) {
                    return Ok(OrderKey::default());
                }
                self.pending.view.last_order_key(parent)?
            }
        };
        let next = last.as_ref().map_or_else(OrderKey::first, OrderKey::after);
        self.last_order_key = Some((parent.clone(), next.clone()));
        Ok(next)
    }
}

/// Moves a child within its parent's list of children.
fn reorder_child(
    parent: &mut Subtree,
    path: &NodePath,
    sibling_position: &SiblingPosition,
) -> Result<()> {
    let missing = |name: &str| {
        Error::NodeMissing(path.parent().unwrap_or_else(NodePath::root).child_unchecked(name))
    };
    let position = |parent: &Subtree, name: &str| {
        parent.children.iter().position(|child| child.name == name).ok_or_else(|| missing(name))
    };
    if let SiblingPosition::Before(name) | SiblingPosition::After(name) = sibling_position {
        position(parent, name)?;
        if name == path.name() {
            return Ok(());
        }
    }
    let child = parent.remove_child(path.name()).ok_or_else(|| missing(path.name()))?;
    let at = match sibling_position {
        SiblingPosition::First => 0,
        SiblingPosition::Last => parent.children.len(),
        SiblingPosition::Before(name) => position(parent, name)?,
        SiblingPosition::After(name) => position(parent, name)? + 1,
    };
    parent.children.insert(at, child);
    Ok(())
}
