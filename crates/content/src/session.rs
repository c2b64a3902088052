//! Sessions: one user's view and pending edits over one revision.
//!
//! In: edits by path. Out: a [`Snapshot`] that shows them, and with [`Session::commit`] a new revision.
//!
//! Invariants
//! * A session sees the state it began with and its own edits, nothing else, until it commits.
//! * Records are cut by the rule of `boundary` at every edit, so a type change moves children in or out of their
//!   parent's record at once.
//! * A failed commit leaves the pending edits as they were.
//!
//! `document` has the document that is being edited, `copy` moves and copies, `order` puts siblings in order, `tag` leads from
//! where a tag was to where it is.

mod copy;
mod document;
mod order;
mod tag;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{ChunkId, Hold};

use self::document::Hot;
use crate::access::{self, Gate, Inner, Rulings};
use crate::boundary::is_container;
use crate::commit::Checks;
use crate::order::OrderKey;
use crate::record::Record;
use crate::repository::{MAIN, Repository};
use crate::snapshot::View;
use crate::version::{Passes, check_privilege};
use crate::withdrawal::ReplicationNotes;
use crate::{
    BlobId, Conflict, Error, Node, NodePath, Privileges, Property, Result, Snapshot, Subtree,
    Viewer, check_name, commit, keys,
};

pub use self::order::Place;

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
    /// For a session by which replication notes what it does: what that is.
    replication: Option<ReplicationNotes>,
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
            replication: None,
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

    /// Returns the state that the session began with, as its viewer sees it.
    pub(crate) fn begun(&self) -> Snapshot {
        Snapshot(self.base.0.clone(), self.gate.clone())
    }

    /// Tells whether the viewer may change a property of a node.
    pub(crate) fn may_alter(&self, path: &NodePath, primary_type: &str, property: &str) -> bool {
        let may_alter = |gate: &Arc<Gate>| access::may_alter(gate, (path, primary_type), property);
        self.gate.as_ref().is_none_or(may_alter)
    }

    /// Returns the state with the pending edits, whoever may see it.
    pub(crate) fn whole(&mut self) -> Result<Snapshot> {
        self.cool()?;
        Ok(self.pending.clone())
    }

    /// Says that a node is in the way. Whoever does not see it learns only that none may be added, as where a policy denies it.
    fn taken(&mut self, path: &NodePath) -> Result<Error> {
        if self.node(path)?.is_some() {
            return Ok(Error::NodeExists(path.clone()));
        }
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let privilege = Privileges::ADD_CHILD_NODES.first_name();
        Ok(Error::AccessDenied { path: parent, privilege })
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
    /// [`Error::NodeExists`], or [`Error::AccessDenied`] where the viewer does not see it; [`Error::NodeMissing`] for the
    /// parent.
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
    /// [`Error::NodeMissing`] for the parent; [`Error::InvalidName`] for any name in the tree; [`Error::AccessDenied`] if a
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

    /// Refuses the commit with [`Error::Stale`] if somebody else makes a node of this pending one's path before, or changes
    /// the document that it is in: two who choose one name make two nodes, even where the nodes are equal.
    ///
    /// # Errors
    /// If the store fails.
    pub fn expect_new(&mut self, path: &NodePath) -> Result<()> {
        let owner = self.pending.node(path)?.map(|node| node.owner().clone());
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
        let (moves, replication) = (&self.moves, self.replication.as_ref());
        let user = &self.user;
        let change = commit::Change { user, message, at, versions, moves, replication };
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
        if self.checks != Checks::Received {
            self.checks = Checks::None;
        }
    }

    /// Says the same for an author that takes a part of its content from another one: what its own visitors have is its
    /// own affair, so that documents count as activated as they did before, and what goes is taken away from them.
    pub fn follow_as_author(&mut self) {
        self.checks = Checks::Received;
    }

    /// Says that the pending edits note what replication does: only such a commit changes whether a document counts as
    /// activated. The nodes are those that it takes away from visitors itself, with everything below them, whether they
    /// are still here or not.
    pub fn note_replication(&mut self, taken_away: Vec<NodePath>) {
        self.replication = Some(ReplicationNotes { taken_away, ..ReplicationNotes::default() });
    }

    /// Says that the pending edits note what replication does, among it documents that it takes away from visitors, while
    /// something below them stays.
    pub fn note_emptied(&mut self, documents: impl IntoIterator<Item = NodePath>) {
        self.replication.get_or_insert_default().emptied.extend(documents);
    }

    /// Says that the pending edits note what replication does, among it documents that visitors get and that carry no stamps
    /// in their content, all but pages and assets. `at` is the time of the wish.
    pub fn note_activated(
        &mut self,
        documents: impl IntoIterator<Item = NodePath>,
        at: SystemTime,
    ) {
        let documents = documents.into_iter().map(|path| (path, at));
        self.replication.get_or_insert_default().activated.extend(documents);
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
                let seen = [&self.base, &head].map(|one| one.seen_by(&self.viewer));
                let mut error = access::Seen(seen).told(error);
                if let Error::Conflicts(conflicts) = &mut error {
                    self.hide_messages(conflicts);
                }
                error
            }
            Err(error) => error,
        }
    }

    /// Leaves the messages of revisions out of conflicts, unless the viewer may know of all that these changed.
    fn hide_messages(&self, conflicts: &mut [Conflict]) {
        let mut told = BTreeMap::new();
        for changed in conflicts.iter_mut().filter_map(|conflict| conflict.changed.as_mut()) {
            let revision = changed.revision;
            let message = told.entry(revision).or_insert_with(|| {
                self.repository.message_for(&self.viewer, revision).unwrap_or_default()
            });
            changed.message.clone_from(message);
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
        self.replication = None;
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

    pub(crate) fn write(&mut self, path: &NodePath, record: Record) -> Result<()> {
        let key = keys::key_of(path)?;
        self.edits().put(key, Some(Arc::new(record)))
    }

    pub(crate) fn edits(&mut self) -> &mut View {
        Arc::<View>::make_mut(&mut self.pending.0)
    }
}

fn refused(action: &'static str, path: &NodePath, reason: &'static str) -> Error {
    Error::Refused { action, path: path.clone(), reason }
}
