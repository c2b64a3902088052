//! Moving and copying: documents as they are where both ends are places of documents, else what is decoded of them.

use super::{Session, refused};
use crate::boundary::is_container;
use crate::record::Record;
use crate::version::IS_CHECKED_OUT;
use crate::{Error, NodePath, Property, Result, Subtree, Value, check_name, keys};

/// Whether the referenceable nodes of a copy keep their identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identity {
    Kept,
    Renewed,
}

impl Session {
    /// Moves a node with everything below it; documents move as they are, without being read.
    ///
    /// # Errors
    /// [`Error::NodeMissing`], [`Error::NodeExists`], [`Error::Refused`] for the root or a place inside itself.
    pub fn move_node(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        if from.is_root() || to.is_within(from) {
            return Err(refused("move", from, "a node cannot move into itself"));
        }
        self.clear_moved_tag(to)?;
        let histories = self.histories_from(from)?;
        self.require_seen(from)?;
        self.require_seen_parent(to)?;
        let tree_of_copy = self.prepare_copy(from, to)?;
        match tree_of_copy {
            Some(tree) => {
                self.remove(from)?;
                self.put(to, tree)?;
            }
            None => {
                self.copy_records(from, to, Identity::Kept)?;
                self.remove_records(from)?;
            }
        }
        self.move_histories(histories, from, to)?;
        self.moves.push((from.clone(), to.clone()));
        self.lead_to_moved_tags(from, to)
    }

    /// Copies a node with everything below it; referenceable nodes of the copy get identifiers of their own.
    ///
    /// # Errors
    /// [`Error::NodeMissing`], [`Error::NodeExists`], [`Error::Refused`] for a place inside itself.
    pub fn copy_node(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        if to.is_within(from) {
            return Err(refused("copy", from, "a node cannot be copied into itself"));
        }
        if self.gate.as_ref().is_some_and(|gate| !gate.is_unbound()) {
            return self.copy_seen(from, to);
        }
        match self.prepare_copy(from, to)? {
            Some(mut tree) => {
                renew_identifiers(&mut tree);
                self.put(to, tree)
            }
            None => self.copy_records(from, to, Identity::Renewed),
        }
    }

    /// Refuses a target below a node that the viewer does not see, as if that node were not there.
    fn require_seen_parent(&mut self, to: &NodePath) -> Result<()> {
        to.parent().map_or(Ok(()), |parent| self.require_seen(&parent))
    }

    /// Copies what the viewer sees of a node.
    fn copy_seen(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        self.require_seen_parent(to)?;
        let node = self.node(from)?.ok_or_else(|| Error::NodeMissing(from.clone()))?;
        if self.whole()?.node(to)?.is_some() {
            return Err(self.taken(to)?);
        }
        let mut tree = node.read()?;
        drop(node);
        renew_identifiers(&mut tree);
        self.put(to, tree)
    }

    /// Checks source and target of a copy. Gives the decoded subtree unless both are places of records.
    fn prepare_copy(&mut self, from: &NodePath, to: &NodePath) -> Result<Option<Subtree>> {
        let node = self.whole()?.node(from)?.ok_or_else(|| Error::NodeMissing(from.clone()))?;
        if self.pending.node(to)?.is_some() {
            return Err(self.taken(to)?);
        }
        let parent = to.parent().unwrap_or_else(NodePath::root);
        check_name(to.name())?;
        // Also finds out, before anything is removed, whether the new parent exists.
        let is_record_place = self.is_record_place(&parent, to.name())?;
        let primary_type = node.primary_type();
        let stays_cut = node.summary().is_some()
            && is_container(from.name(), primary_type) == is_container(to.name(), primary_type);
        if is_record_place && stays_cut { Ok(None) } else { Ok(Some(node.read()?)) }
    }

    /// Writes the records of a subtree under another path.
    fn copy_records(&mut self, from: &NodePath, to: &NodePath, identity: Identity) -> Result<()> {
        let order = self.next_order(&to.parent().unwrap_or_else(NodePath::root))?;
        let top = self.pending.0.record(&keys::key_of(from)?, from)?;
        let top = top.ok_or_else(|| Error::NodeMissing(from.clone()))?;
        let mut records = vec![(to.clone(), Record { order, ..Record::clone(&top) })];
        for (key, record) in self.pending.0.records(&keys::below(from)?)? {
            let path = keys::path_of(&key)?;
            let target = path.rebased(from, to).ok_or(Error::NodeMissing(path))?;
            records.push((NodePath::new(target.as_str())?, Record::clone(&record)));
        }
        for (path, record) in records {
            let record = match identity {
                Identity::Kept => record,
                Identity::Renewed => self.with_new_identifiers(&path, record)?,
            };
            self.write(&path, record)?;
        }
        Ok(())
    }

    /// Gives the referenceable nodes of a record identifiers of their own.
    fn with_new_identifiers(&self, path: &NodePath, record: Record) -> Result<Record> {
        let body = self.pending.0.body(&record, path)?;
        let mut tree = body.subtree(body.root());
        if !renew_identifiers(&mut tree) {
            return Ok(record);
        }
        Record::of(&tree, record.order)
            .ok_or_else(|| refused("copy", path, "it is nested too deeply"))
    }
}

/// Gives every referenceable node of a tree a new identifier, and checks every one out, as a copy has no versions; tells
/// whether there was one.
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
