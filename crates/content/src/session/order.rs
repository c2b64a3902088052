//! The order of siblings: putting nodes in other places, and places for new ones.

use std::collections::BTreeMap;

use super::{Session, refused};
use crate::boundary::has_ordered_children;
use crate::order::OrderKey;
use crate::record::Record;
use crate::siblings::Spot;
use crate::{Error, NodePath, Result, Subtree, keys};

/// Where to put a node among its siblings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Before all others.
    First,
    /// Behind all others.
    Last,
    /// Before the sibling with this name.
    Before(String),
    /// Behind the sibling with this name.
    After(String),
}

impl Session {
    /// Puts a node in another place among its siblings.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] for the node or the sibling; [`Error::Refused`] where siblings have no order.
    pub fn order(&mut self, path: &NodePath, place: &Place) -> Result<()> {
        let parent = path.parent().ok_or_else(|| refused("order", path, "it is the root"))?;
        self.require_seen(path)?;
        self.cool()?;
        let Some(record) = self.pending.0.record(&keys::key_of(path)?, path)? else {
            return self.edit(&parent, |node| order_children(node, path, place));
        };
        let parent_node =
            self.pending.node(&parent)?.ok_or_else(|| Error::NodeMissing(parent.clone()))?;
        if !has_ordered_children(parent_node.primary_type()) {
            return Err(refused("order", path, "the children of its folder are listed by name"));
        }
        drop(parent_node);
        self.last_order = None;
        let deals = {
            let siblings = self.pending.0.siblings(&parent)?.ok_or_else(|| Error::Damaged {
                path: parent.clone(),
                reason: "its state has no map of order keys",
            })?;
            let spot = match place {
                Place::First => Spot::First,
                Place::Last => Spot::Last,
                Place::Before(name) | Place::After(name) => {
                    if name == path.name() {
                        return Ok(());
                    }
                    let entry = self.order_entry(&parent.child(name)?)?;
                    if matches!(place, Place::Before(_)) {
                        Spot::Before(entry)
                    } else {
                        Spot::After(entry)
                    }
                }
            };
            siblings.make_room(&keys::order_entry(&keys::key_of(path)?, &record.order), spot)?
        };
        for (key, order) in deals {
            let path = keys::path_of(&key)?;
            if let Some(record) = self.pending.0.record(&key, &path)? {
                self.write(&path, Record { order, ..Record::clone(&record) })?;
            }
        }
        Ok(())
    }

    /// Returns the entry of a record in the map of order keys.
    fn order_entry(&self, path: &NodePath) -> Result<Vec<u8>> {
        let key = keys::key_of(path)?;
        let record = self.pending.0.record(&key, path)?;
        let record = record.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        Ok(keys::order_entry(&key, &record.order))
    }

    /// Brings the children of a node into the order of `names`; children that it does not name go last. Does nothing
    /// where children have no order.
    ///
    /// # Errors
    /// [`Error::NodeMissing`].
    pub fn order_children(&mut self, path: &NodePath, names: &[String]) -> Result<()> {
        let places: BTreeMap<&str, usize> =
            names.iter().enumerate().map(|(at, name)| (&**name, at)).collect();
        let place = |name: &str| places.get(name).copied().unwrap_or(usize::MAX);
        self.require_seen(path)?;
        self.edit(path, |node| {
            node.children.sort_by_key(|child| place(&child.name));
            Ok(())
        })?;
        let node = self.whole()?.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        if !has_ordered_children(node.primary_type()) {
            return Ok(());
        }
        let mut children: Vec<(NodePath, Record)> = node
            .listed_children()?
            .iter()
            .map(|child| (child.path().clone(), child.record().clone()))
            .collect();
        drop(node);
        if children.is_sorted_by_key(|(path, _)| place(path.name())) {
            return Ok(());
        }
        children.sort_by_key(|(path, _)| place(path.name()));
        self.last_order = None;
        let mut order = OrderKey::first();
        for (path, record) in children {
            self.write(&path, Record { order: order.clone(), ..record })?;
            order = OrderKey::after(&order);
        }
        Ok(())
    }

    /// Returns the order key of a new last child; empty where children have no order.
    pub(crate) fn next_order(&mut self, parent: &NodePath) -> Result<OrderKey> {
        let last = match &self.last_order {
            Some((known, last)) if known == parent => Some(last.clone()),
            _ => {
                let node =
                    self.pending.node(parent)?.ok_or_else(|| Error::NodeMissing(parent.clone()))?;
                if !has_ordered_children(node.primary_type()) {
                    return Ok(OrderKey::default());
                }
                self.pending.0.last_order(parent)?
            }
        };
        let next = last.as_ref().map_or_else(OrderKey::first, OrderKey::after);
        self.last_order = Some((parent.clone(), next.clone()));
        Ok(next)
    }
}

/// Moves a child inside its parent's list of children.
fn order_children(parent: &mut Subtree, path: &NodePath, place: &Place) -> Result<()> {
    let missing = |name: &str| {
        Error::NodeMissing(path.parent().unwrap_or_else(NodePath::root).child_unchecked(name))
    };
    let position = |parent: &Subtree, name: &str| {
        parent.children.iter().position(|child| child.name == name).ok_or_else(|| missing(name))
    };
    if let Place::Before(name) | Place::After(name) = place {
        position(parent, name)?;
        if name == path.name() {
            return Ok(());
        }
    }
    let child = parent.remove_child(path.name()).ok_or_else(|| missing(path.name()))?;
    let at = match place {
        Place::First => 0,
        Place::Last => parent.children.len(),
        Place::Before(name) => position(parent, name)?,
        Place::After(name) => position(parent, name)? + 1,
    };
    parent.children.insert(at, child);
    Ok(())
}
