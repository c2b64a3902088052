//! Sessions: one user's view and pending edits over one revision.
//!
//! In: edits by path. Out: a [`Snapshot`] that shows them, and with [`Session::commit`] a new revision.
//!
//! Invariants
//! * Until it commits, a session sees only the state it began with and its own edits.
//! * Records are split by the rule of `boundary` at every edit, so a type change moves children in or out of their
//!   parent's record at once.
//! * A failed commit leaves the pending edits unchanged.
//!
//! `edited_document` adds, changes and removes nodes, `node_copy` moves and copies, `node_replacement` replaces nodes
//! without removing their policies, `sibling_order` orders siblings, `tag` redirects from the old path of a moved tag to
//! the new one, `session_commit` commits, `document_edit` compares two states of a session.

mod detached_node;
pub(crate) mod document_edit;
pub(crate) mod edited_document;
mod node_copy;
mod node_replacement;
mod session_commit;
pub(crate) mod sibling_order;
mod tag;

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::CollectionHold;

use crate::access::{AccessGate, RecordExtent, can_alter_property, is_policy_path};
use crate::commit::commit_details::{CommitChecks, ReplicationChanges};
use crate::document::body::DocumentBody;
use crate::document::record::ContentRecord;
use crate::model::order_key::OrderKey;
use crate::repository::Repository;
use crate::version::checked_in::CheckInBypass;
use crate::{
    BlobId, Error, Node, NodePath, Privileges, Result, Snapshot, Subtree, SubtreeBudget, Viewer,
    document::record_key,
};

/// One user's view and pending edits.
#[derive(Debug)]
pub struct Session {
    repository: Repository,
    /// The state the session began with.
    base: Snapshot,
    /// The base with the pending edits.
    pending: Snapshot,
    user: String,
    /// The viewer in whose name the session reads and commits.
    viewer: Viewer,
    /// What the viewer may see; `None` if the session belongs to the program itself.
    access_gate: Option<Arc<AccessGate>>,
    /// The moves of nodes (source, target), in order.
    moves: Vec<(NodePath, NodePath)>,
    /// The document being edited, in decoded form; it is written back before anything else is read.
    edited_document: Option<EditedDocument>,
    /// The last order key assigned, so that adding many children in sequence does not list them each time.
    last_order_key: Option<(NodePath, OrderKey)>,
    /// Protects blobs that are stored before the commit that refers to them.
    blob_hold: Option<CollectionHold>,
    /// The edits that bypass check-ins.
    pub(crate) check_in_bypass: CheckInBypass,
    /// Selects the rules of node types, names and references that the next commit must obey.
    commit_checks: CommitChecks,
    /// The keys of documents that no other session may have changed when this session commits.
    guarded_keys: BTreeSet<Vec<u8>>,
    /// The replication changes to record, for a session of the replication.
    replication_changes: Option<ReplicationChanges>,
    /// What copies may still add; `None` if that is not limited.
    bulk_edit_budget: Option<SubtreeBudget>,
}

/// A decoded document.
#[derive(Debug)]
struct EditedDocument {
    path: NodePath,
    /// The record and body from which it was decoded.
    record: ContentRecord,
    body: Arc<DocumentBody>,
    tree: Subtree,
    /// True if the tree may differ from the body.
    is_edited: bool,
}

impl Repository {
    /// Begins a session of `user` on the newest state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn session(&self, user: &str) -> Result<Session> {
        Ok(Session::new(self.clone(), self.snapshot()?, user))
    }

    /// Begins a session in the name of a viewer: it shows what the viewer may read, and its commits are refused where a
    /// privilege is missing.
    ///
    /// # Errors
    /// If the store fails.
    pub fn session_as(&self, viewer: &Viewer) -> Result<Session> {
        Ok(Session::for_viewer(self.clone(), self.snapshot()?, viewer))
    }
}

impl Session {
    fn new(repository: Repository, base: Snapshot, user: &str) -> Self {
        Self {
            repository,
            pending: base.clone(),
            base,
            user: user.to_owned(),
            viewer: Viewer::system(),
            access_gate: None,
            moves: Vec::new(),
            edited_document: None,
            last_order_key: None,
            blob_hold: None,
            check_in_bypass: CheckInBypass::default(),
            commit_checks: CommitChecks::All,
            guarded_keys: BTreeSet::new(),
            replication_changes: None,
            bulk_edit_budget: None,
        }
    }

    fn for_viewer(repository: Repository, base: Snapshot, viewer: &Viewer) -> Self {
        let access_gate = AccessGate::open(&base, viewer);
        let session = Self::new(repository, base, viewer.name());
        Self { viewer: viewer.clone(), access_gate, ..session }
    }

    /// Stores a blob for a property that is set before the session ends.
    ///
    /// # Errors
    /// If reading the source or storing the bytes fails.
    pub fn put_blob(&mut self, source: &mut dyn Read) -> Result<BlobId> {
        if self.blob_hold.is_none() {
            self.blob_hold = Some(self.repository.hold_blobs()?);
        }
        Ok(self.repository.blobs().put(source)?)
    }

    /// Stores a blob whose id the sender gave, for a property that is set before the session ends. A blob that exists
    /// already is compared and not written again.
    ///
    /// # Errors
    /// [`Error::BlobMismatch`] if the bytes do not match the id; if reading the source or storing the bytes fails.
    pub fn put_named_blob(&mut self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        if self.blob_hold.is_none() {
            self.blob_hold = Some(self.repository.hold_blobs()?);
        }
        self.repository.blobs().put_named(id, source).map_err(|error| match error {
            tympan_blobs::Error::IdMismatch { expected, actual } => {
                Error::BlobMismatch { expected, actual }
            }
            error => error.into(),
        })
    }

    /// Stores blobs for properties of one document. It waits for the disk no more often than storing one blob does.
    ///
    /// # Errors
    /// If storing them fails.
    pub fn put_blobs(&mut self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        if self.blob_hold.is_none() && !blobs.is_empty() {
            self.blob_hold = Some(self.repository.hold_blobs()?);
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

    /// Limits what the copies of this session add and what its rewriting of references goes through, together: each copy
    /// of a node that holds copies doubles them, and each move of a node goes through all that refer to it.
    pub fn limit_bulk_edits(&mut self, budget: SubtreeBudget) {
        self.bulk_edit_budget = Some(budget);
    }

    /// Takes nodes and bytes out of the limit of bulk edits; returns false if less is left.
    pub(crate) fn take_bulk_edit(&mut self, nodes: usize, bytes: u64) -> bool {
        self.bulk_edit_budget.as_mut().is_none_or(|budget| budget.take(nodes, bytes))
    }

    /// Returns the state including the pending edits, for reading.
    ///
    /// # Errors
    /// If the store fails.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        Ok(self.unrestricted_snapshot()?.with_access_gate(self.access_gate.clone()))
    }

    /// Returns the state that the session began with, as its viewer sees it.
    pub(crate) fn base_snapshot(&self) -> Snapshot {
        self.base.with_access_gate(self.access_gate.clone())
    }

    /// Returns true if the viewer may change a property of a node.
    pub(crate) fn can_alter_property(
        &self,
        path: &NodePath,
        primary_type: &str,
        property: &str,
    ) -> bool {
        let may_alter =
            |gate: &Arc<AccessGate>| can_alter_property(gate, (path, primary_type), property);
        self.access_gate.as_ref().is_none_or(may_alter)
    }

    /// Returns the state including the pending edits, without access restrictions.
    pub(crate) fn unrestricted_snapshot(&mut self) -> Result<Snapshot> {
        self.write_back_edited_document()?;
        Ok(self.pending.clone())
    }

    /// Returns the error for a node that already exists. A viewer who does not see the node learns only that none may
    /// be added, as if a policy denied it.
    fn node_exists_error(&mut self, path: &NodePath) -> Result<Error> {
        if self.has_node(path)? {
            return Ok(Error::NodeExists(path.clone()));
        }
        if let Some(error) = self.policy_edit_error(path)? {
            return Ok(error);
        }
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let privilege = Privileges::ADD_CHILD_NODES.first_name();
        Ok(Error::AccessDenied { path: parent, privilege })
    }

    /// Rejects an edit of a node that the viewer does not see, as if the node did not exist.
    fn require_visible(&mut self, path: &NodePath) -> Result<()> {
        let is_seen = match &self.access_gate {
            // If the type does not matter, the node is not looked up.
            Some(gate) => gate.can_see_record(path, RecordExtent::None) || self.has_node(path)?,
            None => true,
        };
        if is_seen { Ok(()) } else { Err(Error::NodeMissing(path.clone())) }
    }

    /// Rejects an edit of the properties of a node that the viewer does not see: as if the node did not exist, or, in a
    /// policy of a node that the viewer sees, as the commit would, whether or not there is such a policy.
    fn require_editable(&mut self, path: &NodePath) -> Result<()> {
        match self.require_visible(path) {
            Err(error @ Error::NodeMissing(_)) => {
                Err(self.policy_edit_error(path)?.unwrap_or(error))
            }
            checked => checked,
        }
    }

    /// Returns the error for an edit of a policy that the viewer does not see; `None` if the path is not one of a
    /// policy, or the viewer does not see the node that it controls.
    fn policy_edit_error(&mut self, path: &NodePath) -> Result<Option<Error>> {
        let mut controlled = path.clone();
        while is_policy_path(controlled.as_str()) {
            controlled = controlled.parent().unwrap_or_else(NodePath::root);
        }
        if controlled == *path || self.node(&controlled)?.is_none() {
            return Ok(None);
        }
        let privilege = Privileges::MODIFY_ACCESS_CONTROL.first_name();
        Ok(Some(Error::AccessDenied { path: controlled, privilege }))
    }

    /// Rejects replacing a node that the viewer does not see, because a viewer must not remove what is hidden.
    fn require_free_or_visible(&mut self, path: &NodePath) -> Result<()> {
        let sees_any = match &self.access_gate {
            Some(gate) => gate.can_see_record(path, RecordExtent::None),
            None => true,
        };
        if sees_any || self.has_node(path)? || !self.has_any_node(path)? {
            return Ok(());
        }
        Err(self.node_exists_error(path)?)
    }

    /// Returns true if there are edits to commit.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_changes(&mut self) -> Result<bool> {
        self.write_back_edited_document()?;
        Ok(!(self.pending.view.record_edits.is_empty()
            && self.pending.view.version_edits.is_empty()))
    }

    /// Finds a node, pending edits included.
    ///
    /// # Errors
    /// If the store fails.
    pub fn node(&mut self, path: &NodePath) -> Result<Option<Node>> {
        self.snapshot()?.node(path)
    }

    /// Makes the commit fail with [`Error::DocumentChanged`] if another session changes, before it, the document that
    /// holds or would hold a node. A condition that was checked in this session then still holds.
    ///
    /// # Errors
    /// If the store fails.
    pub fn expect_unchanged(&mut self, path: &NodePath) -> Result<()> {
        let owner = self.base.node(path)?.map(|node| node.record_path().clone());
        self.guarded_keys.insert(record_key::record_key(&owner.unwrap_or_else(|| path.clone()))?);
        Ok(())
    }

    /// Makes the commit fail with [`Error::DocumentChanged`] if another session creates, before it, a node at the path
    /// of this pending one, or changes the document that holds it. Two sessions that choose the same name therefore
    /// never share one node, even if the nodes are equal.
    ///
    /// # Errors
    /// If the store fails.
    pub fn expect_new(&mut self, path: &NodePath) -> Result<()> {
        let owner = self.pending.node(path)?.map(|node| node.record_path().clone());
        self.guarded_keys.insert(record_key::record_key(&owner.unwrap_or_else(|| path.clone()))?);
        Ok(())
    }

    /// Marks the pending edits as received from another instance. They were validated at the commit there, so the next
    /// commit here stores them unchanged. A publisher holds only a part of the content, and what it receives must not
    /// depend on the rest.
    pub fn mark_as_received(&mut self) {
        if self.commit_checks != CommitChecks::UncheckedRelay {
            self.commit_checks = CommitChecks::Unchecked;
        }
    }

    /// Marks the pending edits as received by an author that takes a part of its content from another one. The visitors
    /// of this author are its own concern: documents keep their activation state, and what is removed is withdrawn from
    /// visitors.
    pub fn mark_as_received_by_author(&mut self) {
        self.commit_checks = CommitChecks::UncheckedRelay;
    }

    /// Marks the pending edits as a record of replication; only such a commit changes whether a document counts as
    /// activated. `taken_away` lists the nodes that the replication itself withdraws from visitors, with everything
    /// below them, whether or not they still exist.
    pub fn record_replication(&mut self, taken_away: Vec<NodePath>) {
        self.replication_changes = Some(ReplicationChanges {
            withdrawn_paths: taken_away,
            ..ReplicationChanges::default()
        });
    }

    /// Marks the pending edits as a record of replication, including documents that are withdrawn from visitors while
    /// something below them stays.
    pub fn record_emptied_documents(&mut self, documents: impl IntoIterator<Item = NodePath>) {
        self.replication_changes.get_or_insert_default().emptied_paths.extend(documents);
    }

    /// Marks the pending edits as a record of replication, including documents that are activated for visitors and
    /// carry no stamps in their content: all except pages and assets. `at` is the time of the request.
    pub fn record_activated_documents(
        &mut self,
        documents: impl IntoIterator<Item = NodePath>,
        at: SystemTime,
    ) {
        let documents = documents.into_iter().map(|path| (path, at));
        self.replication_changes.get_or_insert_default().activated_documents.extend(documents);
    }

    /// Marks the pending edits as the installation or uninstallation of a package. The package determines the properties
    /// of its nodes, so the next commit checks them and adds none of its own.
    pub fn mark_as_installation(&mut self) {
        if self.commit_checks == CommitChecks::All {
            self.commit_checks = CommitChecks::Package;
        }
    }

    /// Clears the edits and continues from the new base state.
    fn reset_pending(&mut self) {
        self.pending = self.base.clone();
        self.access_gate = AccessGate::open(&self.base, &self.viewer);
        self.moves.clear();
        self.last_order_key = None;
        self.check_in_bypass.clear();
        self.commit_checks = CommitChecks::All;
        self.replication_changes = None;
    }

    /// Drops the pending edits and continues from the newest state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn refresh(&mut self) -> Result<()> {
        self.base = self.repository.snapshot()?;
        self.edited_document = None;
        self.reset_pending();
        Ok(())
    }
}

fn refused_error(action: &'static str, path: &NodePath, reason: &'static str) -> Error {
    Error::InvalidEdit { action, path: path.clone(), reason }
}
