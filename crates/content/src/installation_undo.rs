//! Records the content that an installation replaced, and undoes the installation.
//!
//! For each installed package there is a ref beside the content. It names two maps: the changed records before the
//! installation, and after it. They refer to bodies and blobs by hash, so that nothing is copied and the garbage
//! collector retains them.
//!
//! Undoing is a three-way merge for each document: the state after the installation is the base, the state before it is
//! restored, and the current state wins wherever something else changed it since.
//!
//! Not here: reading and installing packages.

mod undo_merge;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use tympan_store::{ChunkBatch, ChunkId, RefUpdate, SortedMap, StoreRoot};

use self::undo_merge::undo_node_change;
use crate::branch::branch_ref::{REPLACED_REF_PREFIX, stage_ref_moves};
use crate::document::boundary::is_container;
use crate::document::record::ContentRecord;
use crate::document::sibling::container_orders_children;
use crate::snapshot::SnapshotView;
use crate::{
    BlobId, ConflictKind, Error, MergeConflict, NodePath, Repository, Result, RevisionDetails,
    Session, Snapshot, Subtree, document::record_key,
};

const BEFORE_MAP: &str = "before";
const AFTER_MAP: &str = "after";

/// The result of undoing an installation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UndoReport {
    /// Number of documents restored to their state before the installation.
    pub restored: usize,
    /// Number of removed documents that the installation had created.
    pub removed: usize,
    /// Items that something else changed since the installation; they stay unchanged.
    pub kept: Vec<MergeConflict>,
}

type RecordsByKey = BTreeMap<Vec<u8>, Arc<ContentRecord>>;

/// The records of documents before and after an installation, for those that it changed.
#[derive(Debug, Default)]
pub struct ReplacedRecords {
    /// A key in only one of the two maps belongs to a document that was created or removed.
    records_before: RecordsByKey,
    records_after: RecordsByKey,
}

impl ReplacedRecords {
    /// Compares two states of one session; the second contains all edits of the first. The subtree at `except` is
    /// ignored.
    ///
    /// # Errors
    /// If the store fails or a document is damaged.
    pub fn between(before: &Snapshot, after: &Snapshot, except: &NodePath) -> Result<Self> {
        let (before, after) = (&before.view, &after.view);
        let mut replaced = Self::default();
        let system = NodePath::new("/jcr:system")?;
        for (key, new) in &after.record_edits {
            let path = record_key::record_path(key)?;
            // Node types and namespaces stay registered, because other content may use them.
            if path.is_within(except) || path.is_within(&system) {
                continue;
            }
            let old = before.read_record(key, &path)?;
            let is_same = match (&old, new) {
                (Some(old), Some(new)) => {
                    Arc::ptr_eq(old, new) || is_same_record(before, &path, [old, new])?
                }
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                replaced.records_before.extend(old.map(|old| (key.clone(), old)));
                replaced.records_after.extend(new.clone().map(|new| (key.clone(), new)));
            }
        }
        Ok(replaced)
    }

    /// Loads the records that the installation of a package replaced; `None` if they are not known.
    ///
    /// # Errors
    /// If the store fails or a record is damaged.
    pub fn load(repository: &Repository, package: &NodePath) -> Result<Option<Self>> {
        let root = repository.0.chunks.read_ref(&replaced_ref_name(repository, package))?;
        root.map(|root| Self::read_snapshot(repository, &root)).transpose()
    }

    /// Drops the records that the installation of a package replaced.
    ///
    /// # Errors
    /// If the store fails.
    pub fn delete(
        repository: &Repository,
        package: &NodePath,
        details: RevisionDetails<'_>,
    ) -> Result<()> {
        let name = replaced_ref_name(repository, package);
        let Some(root) = repository.0.chunks.read_ref(&name)? else {
            return Ok(());
        };
        let mut batch = ChunkBatch::new();
        stage_ref_moves(&mut batch, [(&name, Some(root), None)], details);
        Ok(repository.0.chunks.commit(batch)?)
    }

    /// Adds these records on top of those of an earlier installation of the same package.
    ///
    /// # Errors
    /// If the store fails or a record is damaged.
    pub fn on_top_of_stored(self, repository: &Repository, package: &NodePath) -> Result<Self> {
        let earlier = Self::load(repository, package)?;
        Ok(match earlier {
            Some(earlier) => earlier.followed_by(self),
            None => self,
        })
    }

    /// Undoes the installation, as pending edits of the session.
    ///
    /// # Errors
    /// If the store fails or a record is damaged; [`Error::InvalidEdit`] for a document that cannot be restored.
    pub fn undo(&self, session: &mut Session) -> Result<UndoReport> {
        session.mark_as_installation();
        let mut report = UndoReport::default();
        undo_installation(session, self, &mut report)?;
        Ok(report)
    }

    /// Adds a later installation of the same package on top: undoing restores the state before the first one.
    fn followed_by(mut self, later: Self) -> Self {
        let touched: BTreeSet<Vec<u8>> = self.record_keys();
        for key in later.record_keys() {
            self.records_after.remove(&key);
        }
        let first = later.records_before.into_iter().filter(|(key, _)| !touched.contains(key));
        self.records_before.extend(first);
        self.records_after.extend(later.records_after);
        self
    }

    /// Returns true if nothing was replaced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records_before.is_empty() && self.records_after.is_empty()
    }

    fn record_keys(&self) -> BTreeSet<Vec<u8>> {
        self.records_before.keys().chain(self.records_after.keys()).cloned().collect()
    }

    fn write_snapshot(&self, batch: &mut ChunkBatch) -> Result<ChunkId> {
        let mut maps = BTreeMap::new();
        for (name, records) in
            [(BEFORE_MAP, &self.records_before), (AFTER_MAP, &self.records_after)]
        {
            let mut stored = Vec::with_capacity(records.len());
            for (key, record) in records {
                stored.push((key.clone(), record.encode(batch)?));
            }
            maps.insert(name.to_owned(), SortedMap::build(batch, stored.into_iter())?);
        }
        Ok(StoreRoot { maps }.write(batch)?)
    }

    fn read_snapshot(repository: &Repository, root: &ChunkId) -> Result<Self> {
        let reads = repository.0.chunk_reader();
        let maps = StoreRoot::read(reads, root)?;
        let read = |name: &str| -> Result<RecordsByKey> {
            let mut records = RecordsByKey::new();
            for entry in maps.map(name).range(reads, (Bound::Unbounded, Bound::Unbounded)) {
                let (key, stored) = entry?;
                let path = record_key::record_path(&key)?;
                let record = ContentRecord::decode(&stored);
                let reason = "the record that a package replaced cannot be decoded";
                let record = record.ok_or(Error::Damaged { path, reason })?;
                records.insert(key.to_vec(), Arc::new(record));
            }
            Ok(records)
        };
        Ok(Self { records_before: read(BEFORE_MAP)?, records_after: read(AFTER_MAP)? })
    }
}

/// Returns true if two records have the same content and position.
fn is_same_record(
    view: &SnapshotView,
    path: &NodePath,
    [left, right]: [&ContentRecord; 2],
) -> Result<bool> {
    let (before, after) = (view.load_body(left, path)?, view.load_body(right, path)?);
    // The bytes refer to blobs by their index in the list beside them.
    Ok(left.order_key == right.order_key
        && before.bytes() == after.bytes()
        && before.blobs() == after.blobs())
}

/// The moves of refs to content that installations replaced. They are written before the commit of the content: if the
/// commit fails they are harmless, and without them the commit could not be undone.
#[derive(Debug, Default)]
pub struct UndoRefUpdates {
    batch: ChunkBatch,
    rollback_updates: Vec<RefUpdate>,
}

impl UndoRefUpdates {
    /// Adds the records that the installation of a package replaced.
    ///
    /// # Errors
    /// If the store fails or a record is too large.
    pub fn add_replaced(
        &mut self,
        repository: &Repository,
        package: &NodePath,
        replaced: &ReplacedRecords,
        details: RevisionDetails<'_>,
    ) -> Result<()> {
        let name = replaced_ref_name(repository, package);
        let expected = repository.0.chunks.read_ref(&name)?;
        let new = Some(replaced.write_snapshot(&mut self.batch)?);
        if new == expected {
            return Ok(());
        }
        let update = |expected, new| RefUpdate {
            name: name.clone(),
            expected_root: expected,
            new_root: new,
            updated_at: details.time,
            author: details.user.to_owned(),
            message: details.message.to_owned(),
        };
        self.rollback_updates.push(update(new, expected));
        self.batch.add_ref_update(update(expected, new));
        Ok(())
    }

    /// Writes all updates, runs `commit`, and reverts the updates if it fails.
    ///
    /// # Errors
    /// If the store fails; errors of `commit`.
    pub fn commit_with_rollback<T>(
        self,
        session: &mut Session,
        commit: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let chunks = Arc::clone(&session.repository().0.chunks);
        chunks.commit(self.batch)?;
        commit(session).inspect_err(|_| {
            let mut batch = ChunkBatch::new();
            self.rollback_updates.into_iter().for_each(|update| batch.add_ref_update(update));
            // A leftover ref only costs space: nothing marks the package as installed.
            if let Err(error) = chunks.commit(batch) {
                tracing::warn!(reason = %error, "cannot remove the records that a failed installation \
                    replaced");
            }
        })
    }
}

fn replaced_ref_name(repository: &Repository, package: &NodePath) -> String {
    let id = BlobId::hash_of(format!("{}\0{package}", repository.branch()).as_bytes()).to_string();
    format!("{REPLACED_REF_PREFIX}{}", id.split('#').next().unwrap_or_default())
}

/// The plan for one document.
#[derive(Debug)]
struct DocumentUndo {
    key: Vec<u8>,
    action: UndoAction,
    /// True if nothing in it stays because something else changed it.
    is_complete: bool,
}

#[derive(Debug)]
enum UndoAction {
    Put(Arc<ContentRecord>),
    Remove,
    Leave,
}

/// Undoes an installation, as pending edits of the session.
fn undo_installation(
    session: &mut Session,
    replaced: &ReplacedRecords,
    out: &mut UndoReport,
) -> Result<()> {
    let mut document_undos = BTreeMap::new();
    for key in replaced.record_keys() {
        let path = record_key::record_path(&key)?;
        let document_undo = plan_document_undo(session, replaced, key, &path, &mut out.kept)?;
        document_undos.insert(path, document_undo);
    }
    skip_recut_documents(replaced, &mut document_undos, &mut out.kept);
    let mut document_undos: Vec<(NodePath, DocumentUndo)> = document_undos.into_iter().collect();
    document_undos.sort_by_key(|(path, _)| path.depth());
    for (path, document_undo) in &document_undos {
        if let UndoAction::Put(record) = &document_undo.action {
            put_record(session, path, record, out)?;
        }
    }
    for (path, document_undo) in document_undos.iter().rev() {
        if matches!(document_undo.action, UndoAction::Remove) {
            remove_record(session, path, &document_undo.key, out)?;
        }
    }
    Ok(())
}

/// Merges the state before the installation with the current state.
fn plan_document_undo(
    session: &mut Session,
    replaced: &ReplacedRecords,
    key: Vec<u8>,
    path: &NodePath,
    conflicts: &mut Vec<MergeConflict>,
) -> Result<DocumentUndo> {
    let snapshot = session.snapshot()?;
    let view = &snapshot.view;
    let tree = |record: Option<&Arc<ContentRecord>>| -> Result<Option<Subtree>> {
        let Some(record) = record else {
            return Ok(None);
        };
        let body = view.load_body(record, path)?;
        Ok(Some(body.subtree(body.root())))
    };
    let (before, after) = (replaced.records_before.get(&key), replaced.records_after.get(&key));
    let now = view.read_record(&key, path)?;
    let (target, left, there) = (tree(before)?, tree(after)?, tree(now.as_ref())?);
    let settled =
        undo_node_change(path, [left.as_ref(), target.as_ref(), there.as_ref()], conflicts);
    let is_whole = settled == target;
    let order = |record: Option<&Arc<ContentRecord>>| record.map(|record| record.order_key.clone());
    // A position among siblings that was changed since stays, too.
    let is_placed_since = now.is_some() && order(now.as_ref()) != order(after);
    let order = if is_placed_since { order(now.as_ref()) } else { order(before).or(order(after)) };
    let is_in_place = order == now.as_ref().map(|now| now.order_key.clone());
    let step = match settled {
        None if there.is_none() => UndoAction::Leave,
        None => UndoAction::Remove,
        Some(settled) if there.as_ref() == Some(&settled) && is_in_place => UndoAction::Leave,
        Some(settled) => {
            let record = ContentRecord::from_subtree(&settled, order.unwrap_or_default());
            let reason = "it is nested too deeply";
            let refused = || Error::InvalidEdit { action: "restore", path: path.clone(), reason };
            UndoAction::Put(Arc::new(record.ok_or_else(refused)?))
        }
    };
    Ok(DocumentUndo { key, action: step, is_complete: is_whole })
}

/// If a document begins or ceases to hold its children in records of their own, it is undone together with all of them
/// or not at all.
fn skip_recut_documents(
    replaced: &ReplacedRecords,
    document_undos: &mut BTreeMap<NodePath, DocumentUndo>,
    conflicts: &mut Vec<MergeConflict>,
) {
    let holds = |record: Option<&Arc<ContentRecord>>, path: &NodePath| {
        record.map(|record| is_container(path.name(), record.summary.primary_type()))
    };
    let cut_anew: Vec<NodePath> = document_undos
        .iter()
        .filter(|(path, document_undo)| {
            let before = holds(replaced.records_before.get(&document_undo.key), path);
            let after = holds(replaced.records_after.get(&document_undo.key), path);
            before.is_some() && after.is_some() && before != after
        })
        .map(|(path, _)| path.clone())
        .collect();
    for top in cut_anew {
        let is_hindered = document_undos
            .iter()
            .any(|(path, document_undo)| path.is_within(&top) && !document_undo.is_complete);
        if is_hindered {
            conflicts.push(MergeConflict::for_node(&top, ConflictKind::RemoveChangedNode));
            let below = document_undos.iter_mut().filter(|(path, _)| path.is_within(&top));
            below.for_each(|(_, document_undo)| document_undo.action = UndoAction::Leave);
        }
    }
}

fn put_record(
    session: &mut Session,
    path: &NodePath,
    record: &Arc<ContentRecord>,
    out: &mut UndoReport,
) -> Result<()> {
    let snapshot = session.snapshot()?;
    if let Some(parent) = path.parent() {
        let node = snapshot.node(&parent)?;
        let can_hold = node.is_some_and(|node| {
            node.summary().is_some() && is_container(parent.name(), node.primary_type())
        });
        if !can_hold {
            out.kept.push(MergeConflict::for_node(path, ConflictKind::ChangeRemovedNode));
            return Ok(());
        }
    }
    let old = snapshot.view.read_record(&record_key::record_key(path)?, path)?;
    drop(snapshot);
    let is_ordered_anew = container_orders_children(path, Some(record))
        && !container_orders_children(path, old.as_deref());
    session.write_record(path, ContentRecord::clone(record))?;
    if is_ordered_anew {
        session.pending_view_mut().assign_order_keys(path)?;
    }
    out.restored += 1;
    Ok(())
}

fn remove_record(
    session: &mut Session,
    path: &NodePath,
    key: &[u8],
    out: &mut UndoReport,
) -> Result<()> {
    let snapshot = session.snapshot()?;
    if snapshot.view.read_record(key, path)?.is_none() {
        return Ok(());
    }
    let has_strangers =
        !snapshot.view.records_in_range(&record_key::descendant_key_range(path)?)?.is_empty();
    drop(snapshot);
    if has_strangers {
        out.kept.push(MergeConflict::for_node(path, ConflictKind::RemoveChangedNode));
        return Ok(());
    }
    out.removed += 1;
    session.remove_records(path)
}
