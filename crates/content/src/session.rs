//! Sessions: one user's view and pending edits over one revision.
//!
//! In: edits by path. Out: a [`Snapshot`] that shows them, and with [`Session::commit`] a new revision.
//!
//! Invariants
//! * A session sees the state it began with and its own edits, nothing else, until it commits.
//! * Records are cut by the rule of `boundary` at every edit, so a type change moves children in or out of their
//!   parent's record at once.
//! * A failed commit leaves the pending edits as they were.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{ChunkId, Hold};

use crate::access::{self, Gate, Inner, Rulings};
use crate::body::Body;
use crate::boundary::{has_ordered_children, is_container, is_own_content};
use crate::commit::Checks;
use crate::order::OrderKey;
use crate::record::{BodyPlace, Record};
use crate::repository::{MAIN, Repository};
use crate::siblings::Spot;
use crate::snapshot::View;
use crate::version::{IS_CHECKED_OUT, Passes, check_privilege};
use crate::{
    BlobId, Error, Node, NodePath, Privileges, Property, Result, Snapshot, Subtree, Value, Viewer,
    check_name, commit, keys,
};

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

/// One user's view and pending edits.
#[derive(Debug)]
pub struct Session {
    repository: Repository,
    /// The state the session began with.
    base: Snapshot,
    /// The base with the pending edits.
    pending: Snapshot,
    user: String,
    /// In whose name it reads and commits.
    viewer: Viewer,
    /// What that one sees; nothing if it is the program itself.
    gate: Option<Arc<Gate>>,
    /// What was moved from where to where, in order.
    moves: Vec<(NodePath, NodePath)>,
    /// The document that is being edited, decoded; written back before anything else is read.
    hot: Option<Hot>,
    /// The last order key given out, so that adding many children in a row does not list them each time.
    last_order: Option<(NodePath, OrderKey)>,
    /// Keeps blobs that are stored before the commit that refers to them.
    hold: Option<Hold>,
    /// Which edits pass over check-ins.
    pub(crate) passes: Passes,
    /// Whether the next commit must obey the rules of node types.
    checks: Checks,
    /// The keys of documents that nobody else may have changed when the session commits.
    guarded: BTreeSet<Vec<u8>>,
}

/// A decoded document.
#[derive(Debug)]
struct Hot {
    path: NodePath,
    /// The record and body it was decoded from.
    record: Record,
    body: Arc<Body>,
    tree: Subtree,
}

impl Session {
    pub(crate) fn new(repository: Repository, base: Snapshot, user: &str) -> Self {
        Self {
            repository,
            pending: base.clone(),
            base,
            user: user.to_owned(),
            viewer: Viewer::system(),
            gate: None,
            moves: Vec::new(),
            hot: None,
            last_order: None,
            hold: None,
            passes: Passes::default(),
            checks: Checks::All,
            guarded: BTreeSet::new(),
        }
    }

    pub(crate) fn of_viewer(repository: Repository, base: Snapshot, viewer: &Viewer) -> Self {
        let gate = base.seen_by(viewer).1;
        let session = Self::new(repository, base, viewer.name());
        Self { viewer: viewer.clone(), gate, ..session }
    }

    /// Stores a blob for a property that is set before the session ends.
    ///
    /// # Errors
    /// If reading the source or storing the bytes fails.
    pub fn put_blob(&mut self, source: &mut dyn Read) -> Result<BlobId> {
        if self.hold.is_none() {
            self.hold = Some(self.repository.hold()?);
        }
        Ok(self.repository.blobs().put(source)?)
    }

    /// Stores a blob whose id its sender named, for a property that is set before the session ends. What is there already
    /// is compared and not written again.
    ///
    /// # Errors
    /// [`Error::BlobMismatch`] if other bytes came; if reading the source or storing the bytes fails.
    pub fn put_named_blob(&mut self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        if self.hold.is_none() {
            self.hold = Some(self.repository.hold()?);
        }
        self.repository.blobs().put_named(id, source).map_err(|error| match error {
            tympan_blobs::Error::Mismatch { expected, actual } => {
                Error::BlobMismatch { expected, actual }
            }
            error => error.into(),
        })
    }

    /// Stores blobs for properties of one document, in no more waits for the disk than one would take.
    ///
    /// # Errors
    /// If storing them fails.
    pub fn put_blobs(&mut self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        if self.hold.is_none() && !blobs.is_empty() {
            self.hold = Some(self.repository.hold()?);
        }
        Ok(self.repository.blobs().put_all(blobs)?)
    }

    /// Returns the user in whose name the session commits.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the repository.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Returns the state with the pending edits, to read.
    ///
    /// # Errors
    /// If the store fails.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        Ok(Snapshot(self.whole()?.0, self.gate.clone()))
    }

    /// Returns the state with the pending edits, whoever may see it.
    pub(crate) fn whole(&mut self) -> Result<Snapshot> {
        self.cool()?;
        Ok(self.pending.clone())
    }

    /// Says that a node is in the way. Whoever does not see it and might not add it learns only the latter.
    fn taken(&mut self, path: &NodePath) -> Result<Error> {
        if self.node(path)?.is_none() {
            let parent = path.parent().unwrap_or_else(NodePath::root);
            let wanted = Privileges::ADD_CHILD_NODES;
            if !self.snapshot()?.allows(&parent, wanted)? {
                return Ok(Error::AccessDenied { path: parent, privilege: wanted.first_name() });
            }
        }
        Ok(Error::NodeExists(path.clone()))
    }

    /// Refuses to edit a node that the viewer does not see, as if it were not there.
    fn require_seen(&mut self, path: &NodePath) -> Result<()> {
        let is_seen = match &self.gate {
            // Where the type does not matter the node need not be looked up, which would write back what is edited.
            Some(gate) => gate.sees_record(path, Inner::None) || self.node(path)?.is_some(),
            None => true,
        };
        if is_seen { Ok(()) } else { Err(Error::NodeMissing(path.clone())) }
    }

    /// Refuses to replace a node that the viewer does not see: nobody drops what they cannot know of.
    fn require_free_or_seen(&mut self, path: &NodePath) -> Result<()> {
        let sees_any = match &self.gate {
            Some(gate) => gate.sees_record(path, Inner::None),
            None => true,
        };
        if sees_any || self.node(path)?.is_some() || self.whole()?.node(path)?.is_none() {
            return Ok(());
        }
        Err(self.taken(path)?)
    }

    /// Tells whether there are edits to commit.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_changes(&mut self) -> Result<bool> {
        self.cool()?;
        Ok(!(self.pending.0.overlay.is_empty() && self.pending.0.versions.is_empty()))
    }

    /// Finds a node, pending edits included.
    ///
    /// # Errors
    /// If the store fails.
    pub fn node(&mut self, path: &NodePath) -> Result<Option<Node>> {
        self.snapshot()?.node(path)
    }

    /// Sets a property.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::InvalidName`].
    pub fn set_property(&mut self, path: &NodePath, name: &str, property: Property) -> Result<()> {
        check_name(name)?;
        self.require_seen(path)?;
        self.edit(path, |node| {
            node.properties.insert(name.to_owned(), property);
            Ok(())
        })
    }

    /// Removes a property and tells whether there was one.
    ///
    /// # Errors
    /// [`Error::NodeMissing`].
    pub fn remove_property(&mut self, path: &NodePath, name: &str) -> Result<bool> {
        self.require_seen(path)?;
        self.edit(path, |node| Ok(node.properties.remove(name).is_some()))
    }

    /// Adds an empty node.
    ///
    /// # Errors
    /// [`Error::NodeExists`]; [`Error::NodeMissing`] for the parent.
    pub fn add_node(&mut self, path: &NodePath, primary_type: &str) -> Result<()> {
        if self.whole()?.node(path)?.is_some() {
            return Err(self.taken(path)?);
        }
        self.put(path, Subtree::new(path.name(), primary_type))
    }

    /// Puts a node with everything below it in the place of whatever is there. It keeps its place among its siblings;
    /// a new one goes last.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] for the parent; [`Error::InvalidName`] for any name in the tree; [`Error::NodeExists`] if a
    /// node is there that the viewer does not see.
    pub fn put(&mut self, path: &NodePath, mut tree: Subtree) -> Result<()> {
        tree.check()?;
        self.require_free_or_seen(path)?;
        path.name().clone_into(&mut tree.name);
        let Some(parent) = path.parent() else {
            if !is_container("", tree.primary_type()) {
                return Err(refused("replace", path, "the root must be a folder"));
            }
            self.cool()?;
            return self.put_record(path, tree, OrderKey::default());
        };
        if !self.is_record_place(&parent, path.name())? {
            return self.edit(&parent, |node| {
                node.put_child(tree);
                Ok(())
            });
        }
        let order = match self.pending.0.record(&keys::key_of(path)?, path)? {
            Some(record) => record.order.clone(),
            None => self.next_order(&parent)?,
        };
        self.put_record(path, tree, order)
    }

    /// Removes a node with everything below it.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::Refused`] for the root.
    pub fn remove(&mut self, path: &NodePath) -> Result<()> {
        let parent = path.parent().ok_or_else(|| refused("remove", path, "it is the root"))?;
        self.require_seen(path)?;
        self.cool()?;
        if self.pending.0.record(&keys::key_of(path)?, path)?.is_some() {
            return self.remove_records(path);
        }
        let removed = self.edit(&parent, |node| Ok(node.remove_child(path.name())));
        match removed {
            Ok(Some(_)) => Ok(()),
            Ok(None) | Err(Error::NodeMissing(_)) => Err(Error::NodeMissing(path.clone())),
            Err(error) => Err(error),
        }
    }

    /// Moves a node with everything below it; documents move as they are, without being read.
    ///
    /// # Errors
    /// [`Error::NodeMissing`], [`Error::NodeExists`], [`Error::Refused`] for the root or a place inside itself.
    pub fn move_node(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        if from.is_root() || to.is_within(from) {
            return Err(refused("move", from, "a node cannot move into itself"));
        }
        let histories = self.histories_from(from)?;
        self.require_seen(from)?;
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
        Ok(())
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

    /// Copies what the viewer sees of a node.
    fn copy_seen(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        let node = self.node(from)?.ok_or_else(|| Error::NodeMissing(from.clone()))?;
        if self.whole()?.node(to)?.is_some() {
            return Err(self.taken(to)?);
        }
        let mut tree = node.read()?;
        drop(node);
        renew_identifiers(&mut tree);
        self.put(to, tree)
    }

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

    /// Replaces all properties of a node.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::InvalidName`].
    pub fn replace_properties(
        &mut self,
        path: &NodePath,
        properties: BTreeMap<String, Property>,
    ) -> Result<()> {
        properties.keys().try_for_each(|name| check_name(name))?;
        self.require_seen(path)?;
        self.edit(path, |node| {
            node.properties = properties;
            Ok(())
        })
    }

    /// Refuses the commit with [`Error::Stale`] if somebody else changes the document that holds a node, or would hold it,
    /// before: a condition that was checked in this session then still holds.
    ///
    /// # Errors
    /// If the store fails.
    pub fn expect_unchanged(&mut self, path: &NodePath) -> Result<()> {
        let owner = self.base.node(path)?.map(|node| node.owner().clone());
        self.guarded.insert(keys::key_of(&owner.unwrap_or_else(|| path.clone()))?);
        Ok(())
    }

    /// Makes a new revision of the pending edits, merged onto whatever others committed meanwhile, and goes on from
    /// there. Without edits nothing is written.
    ///
    /// # Errors
    /// [`Error::Conflicts`] with every clash; [`Error::Constraint`] with everything that breaks a rule of node types,
    /// names or references; errors of the store. The edits stay pending.
    pub fn commit(&mut self, message: &str, at: SystemTime) -> Result<ChunkId> {
        self.cool()?;
        if self.checks == Checks::Installed {
            self.check_in_installed(&self.base.clone(), message, at)?;
            self.cool()?;
        }
        let permitted = self.check_access()?;
        self.passes.check(&self.base, &self.pending, &self.moves)?;
        let versions = &self.pending.0.versions;
        let change = commit::Change { user: &self.user, message, at, versions };
        let edits = &self.pending.0.overlay;
        let permit = |head: &View| self.check_access_over(head, permitted.as_ref());
        let conditions = commit::Conditions { guarded: &self.guarded, permit: &permit };
        let done = commit::commit(&self.base, edits, &conditions, &change, self.checks);
        let root = done.map_err(|error| self.told(error))?;
        self.guarded.clear();
        self.base = self.repository.snapshot_at(root)?;
        self.begin_anew();
        Ok(root)
    }

    /// Says that the pending edits come from another instance: its commit judged them, so that the next one here stores
    /// them as they are. A publisher holds a part of the content, and what it gets must not depend on the rest.
    pub fn follow(&mut self) {
        self.checks = Checks::None;
    }

    /// Notes that pending edits come from a package, or take one back.
    pub(crate) fn note_installation(&mut self) {
        if self.checks == Checks::All {
            self.checks = Checks::Installed;
        }
    }

    /// Checks that the viewer has the privileges that the edits need, by the newest policies. Gives the state that they
    /// were taken from; nothing where no policy counts.
    fn check_access(&self) -> Result<Option<(ChunkId, Rulings)>> {
        let view = &self.pending.0;
        if self.gate.is_none() || (view.overlay.is_empty() && view.versions.is_empty()) {
            return Ok(None);
        }
        let newest = self.repository.snapshot()?;
        let (gate, rulings) = Gate::open_with_rulings(&newest.0, &self.viewer)?;
        self.check_by(&gate)?;
        Ok(Some((newest.root_id(), rulings)))
    }

    /// Checks the same for the state that the edits are written over. Costs nothing if it is the one that was checked,
    /// and little if its policies and groups are the same.
    fn check_access_over(&self, head: &View, permitted: Option<&(ChunkId, Rulings)>) -> Result<()> {
        let Some((root, known)) = permitted else { return Ok(()) };
        if head.root == *root && head.shared.branch == MAIN {
            return Ok(());
        }
        let (gate, rulings) = Gate::open_with_rulings(head, &self.viewer)?;
        if rulings == *known { Ok(()) } else { self.check_by(&gate) }
    }

    fn check_by(&self, gate: &Gate) -> Result<()> {
        let Self { base, pending, moves, .. } = self;
        check_privilege(base, &pending.0, gate)?;
        access::check(&access::Changed { base, pending, moves }, gate)
    }

    /// Returns why a commit was refused, as the viewer may know it.
    fn told(&self, error: Error) -> Error {
        if self.gate.is_none() {
            return error;
        }
        match self.repository.snapshot() {
            Ok(head) => {
                access::Seen([&self.base, &head].map(|one| one.seen_by(&self.viewer))).told(error)
            }
            Err(error) => error,
        }
    }

    /// Goes on without edits from the state that was just made the base.
    fn begin_anew(&mut self) {
        self.pending = self.base.clone();
        self.gate = self.base.seen_by(&self.viewer).1;
        self.moves.clear();
        self.last_order = None;
        self.passes.clear();
        self.checks = Checks::All;
    }

    /// Drops the pending edits and goes on from the newest state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn refresh(&mut self) -> Result<()> {
        self.base = self.repository.snapshot()?;
        self.hot = None;
        self.begin_anew();
        Ok(())
    }

    /// Changes a node inside its decoded document.
    fn edit<T>(
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
    fn cool(&mut self) -> Result<()> {
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
    fn put_record(&mut self, path: &NodePath, tree: Subtree, order: OrderKey) -> Result<()> {
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

    pub(crate) fn write(&mut self, path: &NodePath, record: Record) -> Result<()> {
        let key = keys::key_of(path)?;
        self.edits().put(key, Some(Arc::new(record)))
    }

    pub(crate) fn edits(&mut self) -> &mut View {
        Arc::<View>::make_mut(&mut self.pending.0)
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

/// Whether the referenceable nodes of a copy keep their identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identity {
    Kept,
    Renewed,
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

fn refused(action: &'static str, path: &NodePath, reason: &'static str) -> Error {
    Error::Refused { action, path: path.clone(), reason }
}
