//! Withdrawals: paths at which visitors still have a document that no longer exists on this instance.
//!
//! In: the edits of a commit. Out: the same edits, in which documents keep their activation state, and entries of the
//! map `withdrawals`, which lists what is to be withdrawn from visitors. `docs/formats/withdrawals.md` specifies the
//! bytes.
//!
//! Invariants
//! * The activation state belongs to a document's path. Only a commit that records replication changes it; a copy, a
//!   package, a version or an earlier state brings no activation along.
//! * Every commit that removes an activated document from its path, or moves it away, writes an entry for it in the
//!   same root. Therefore no kind of edit can miss it, and a crash between the commit and the work on it loses nothing.
//! * An entry is removed when its path is activated again, or when the withdrawal is stored as a job
//!   ([`Repository::complete_withdrawals`]).
//! * Entries apply to the branch `main`, which visitors see.
//! * The replication properties of a page or an asset are in its content, as in AEM. Other documents, such as folders,
//!   tags and templates, whose types may not allow that, have an entry in the map `activated`.
//!
//! Not here: agents and their queues (`replicate`), and the privilege that a withdrawal needs (`access::permission_check`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{ChunkBatch, MapValue, ReadChunks, RefUpdate, SortedMap, StoreRoot};

use crate::branch::branch_ref::MAIN_BRANCH;
use crate::commit::commit_details::CommitDetails;
use crate::commit::staged_head::open_staged_head;
use crate::document::boundary::{is_container, is_own_content};
use crate::document::codec::{ByteCursor, write_length_prefixed, write_signed_varint};
use crate::document::record::{ContentRecord, NodeSummary, has_described_content};
use crate::model::subtree::{JCR_CONTENT, SubtreeScope};
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{
    ChunkId, Error, JcrDate, NodePath, Repository, Result, RevisionDetails, Snapshot, Subtree,
    document::record_key,
};

/// The name of the map.
pub(crate) const WITHDRAWALS_MAP: &str = "withdrawals";
/// The name of the map of activated documents that carry no stamps.
pub(crate) const ACTIVATED_MAP: &str = "activated";
/// The type of tags, which may be nodes inside a document.
const TAG_TYPE: &str = "cq:Tag";
/// The version of the entries' bytes.
const ENTRY_VERSION: u8 = 1;
const WAS_ACTIVATED_FLAG: u8 = 1;
/// The name prefix of all properties in which replication records its actions.
const STAMP_PREFIX: &str = "cq:lastReplicat";

/// Returns true if replication records its actions in a property of this name.
#[must_use]
pub fn is_replication_stamp(name: &str) -> bool {
    name.starts_with(STAMP_PREFIX)
}

/// A path at which visitors have something that no longer exists on this instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawal {
    /// The path.
    pub path: NodePath,
    /// True if the path is that of an activated document. Otherwise it is that of a folder that was removed with
    /// activated documents below it.
    pub was_activated: bool,
    /// The new path of the document if it was moved. Visitors keep it at the old path until they have it at the new
    /// one.
    pub moved_to: Option<NodePath>,
    /// The user who removed or moved it.
    pub user: String,
    /// The time of the removal or move.
    pub withdrawn_at: SystemTime,
}

/// Edits of the map of withdrawals, by key.
type WithdrawalEdits = BTreeMap<Vec<u8>, Option<Withdrawal>>;

/// The edits of a commit to the visitor state outside the content.
#[derive(Debug, Default)]
pub(crate) struct VisitorEdits {
    withdrawals: WithdrawalEdits,
    /// The edits of the map of activated documents.
    activated_entries: BTreeMap<Vec<u8>, Option<MapValue>>,
}

/// An activated document without stamps of its own, such as a folder or a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivatedDocument {
    /// The path of the document.
    pub path: NodePath,
    /// The user who activated it.
    pub user: String,
    /// The time of the activation.
    pub activated_at: SystemTime,
    /// True if the document is unchanged since then.
    pub is_unchanged: bool,
}

impl Withdrawal {
    fn encode(&self) -> MapValue {
        let mut bytes =
            vec![ENTRY_VERSION, if self.was_activated { WAS_ACTIVATED_FLAG } else { 0 }];
        write_signed_varint(&mut bytes, JcrDate::from_system_time(self.withdrawn_at).millis);
        write_length_prefixed(&mut bytes, self.user.as_bytes());
        let moved_to = self.moved_to.as_ref().map(NodePath::as_str).unwrap_or_default();
        write_length_prefixed(&mut bytes, moved_to.as_bytes());
        MapValue { bytes: bytes.into(), body: None }
    }

    fn decode(key: &[u8], stored: &MapValue) -> Result<Self> {
        let path = record_key::record_path(key)?;
        let read = || {
            let mut cursor = ByteCursor::new(&stored.bytes, 0);
            if cursor.read_byte()? != ENTRY_VERSION {
                return None;
            }
            let was_activated = cursor.read_byte()? & WAS_ACTIVATED_FLAG != 0;
            let date = JcrDate { millis: cursor.read_signed_varint()?, offset_minutes: 0 };
            let user = cursor.read_prefixed_text()?.to_owned();
            let moved_to = match cursor.read_prefixed_text()? {
                "" => None,
                path => Some(NodePath::new(path).ok()?),
            };
            let (path, at) = (path.clone(), date.to_system_time());
            cursor.is_at_end().then_some(Self {
                path,
                was_activated,
                moved_to,
                user,
                withdrawn_at: at,
            })
        };
        read().ok_or_else(|| Error::Damaged {
            path: path.clone(),
            reason: "its withdrawal entry cannot be decoded",
        })
    }
}

/// The properties that a document has in common before and after a move.
type MoveFingerprint = (String, Option<String>, Option<String>, Option<String>, Option<i64>);

/// Returns the moves in a commit: those that its session lists, and those that its edits imply for activated documents,
/// because a merge does not know the moves on its branch.
pub(crate) fn document_moves(
    head: &SnapshotView,
    edits: &RecordEdits,
    change: &CommitDetails<'_>,
) -> Result<Vec<(NodePath, NodePath)>> {
    let mut moves = change.moves.to_vec();
    if !moves.is_empty() || head.repository_state.branch != MAIN_BRANCH {
        return Ok(moves);
    }
    let mut removed_paths: BTreeMap<MoveFingerprint, NodePath> = BTreeMap::new();
    for (key, record) in edits {
        if record.is_some() {
            continue;
        }
        if let Some(old) = head.find_record(key)?.filter(|old| old.summary.is_activated()) {
            let path = record_key::record_path(key)?;
            removed_paths.entry(move_fingerprint(&path, &old.summary)).or_insert(path);
        }
    }
    if removed_paths.is_empty() {
        return Ok(moves);
    }
    for (key, record) in edits {
        let Some(record) = record else { continue };
        let path = record_key::record_path(key)?;
        if let Some(from) = removed_paths.get(&move_fingerprint(&path, &record.summary))
            && head.find_record(key)?.is_none()
        {
            moves.push((from.clone(), path));
            removed_paths.retain(|_, removed_path| {
                moves.last().is_none_or(|(from, _)| from != removed_path)
            });
        }
    }
    Ok(moves)
}

fn move_fingerprint(path: &NodePath, summary: &NodeSummary) -> MoveFingerprint {
    let text = |text: Option<&str>| text.map(str::to_owned);
    let modified = summary.last_modified().map(|date| date.millis);
    // Without a date, the other properties are not distinctive enough to identify a document.
    let name = if modified.is_none() { Some(path.name()) } else { summary.title() };
    let kind = summary.primary_type().to_owned();
    (kind, text(name), text(summary.resource_type()), text(summary.template()), modified)
}

/// Returns those of the edited documents whose replication stamps differ from the stamps at their path, with the stamps
/// of the path.
pub(crate) fn records_with_own_stamps(
    head: &SnapshotView,
    edits: &RecordEdits,
) -> Result<RecordEdits> {
    let mut changed = RecordEdits::new();
    for (key, record) in edits {
        let Some(record) = record else { continue };
        let old = head.find_record(key)?;
        let before = old.as_ref().map(|old| replication_stamp(&old.summary)).unwrap_or_default();
        if before == replication_stamp(&record.summary) {
            continue;
        }
        let path = record_key::record_path(key)?;
        if let Some(own) = restamp_record(head, &path, old.as_ref(), record)? {
            changed.insert(key.clone(), Some(Arc::new(own)));
        }
    }
    Ok(changed)
}

/// Returns the replication properties in a header.
fn replication_stamp(summary: &NodeSummary) -> (Option<&str>, Option<i64>) {
    (summary.activation_action(), summary.activation_date().map(|date| date.millis))
}

fn restamp_record(
    head: &SnapshotView,
    path: &NodePath,
    old: Option<&ContentRecord>,
    record: &ContentRecord,
) -> Result<Option<ContentRecord>> {
    let tree_of = |record: &ContentRecord| -> Result<Subtree> {
        let body = head.load_body(record, path)?;
        Ok(body.subtree(body.root()))
    };
    let before = tree_of(record)?;
    let mut tree = before.clone();
    let is_same_kind =
        old.is_some_and(|old| old.summary.primary_type() == record.summary.primary_type());
    let can_hold = is_same_kind && can_hold_stamps(&tree);
    let described = has_described_content(&tree);
    let node = match tree.children.iter_mut().find(|child| child.name == JCR_CONTENT) {
        Some(content) if described => content,
        _ => &mut tree,
    };
    node.properties.retain(|name, _| !is_replication_stamp(name));
    if let Some(old) = old.filter(|_| can_hold) {
        let old = tree_of(old)?;
        let from = match old.child(JCR_CONTENT) {
            Some(content) if has_described_content(&old) => content,
            _ => &old,
        };
        let own = from.properties.iter().filter(|(name, _)| is_replication_stamp(name));
        node.properties.extend(own.map(|(name, value)| (name.clone(), value.clone())));
    }
    if tree == before {
        return Ok(None);
    }
    let made = ContentRecord::from_subtree(&tree, record.order_key.clone());
    made.map(Some).ok_or_else(|| Error::InvalidEdit {
        action: "commit",
        path: path.clone(),
        reason: "it is nested too deeply",
    })
}

/// Returns true if a document's tree has a node that can hold replication stamps.
fn can_hold_stamps(tree: &Subtree) -> bool {
    has_described_content(tree) || !is_own_content(tree.primary_type(), JCR_CONTENT)
}

/// Returns true if a document that replaces an activated one remains activated. A folder in place of a page does not,
/// because visitors do not have it.
pub(crate) fn is_still_activated(
    view: &SnapshotView,
    path: &NodePath,
    old: &ContentRecord,
    record: &ContentRecord,
) -> Result<bool> {
    if old.summary.primary_type() != record.summary.primary_type() {
        return Ok(false);
    }
    if record.summary.is_activated() {
        return Ok(true);
    }
    let body = view.load_body(record, path)?;
    Ok(can_hold_stamps(&body.subtree(body.root())))
}

/// Returns the edits of a commit to the map of withdrawals.
pub(crate) fn visitor_edits(
    head: &SnapshotView,
    edits: &RecordEdits,
    change: &CommitDetails<'_>,
    moves: &[(NodePath, NodePath)],
) -> Result<VisitorEdits> {
    let mut made = WithdrawalEdits::new();
    let mut activated = BTreeMap::new();
    if head.repository_state.branch != MAIN_BRANCH {
        return Ok(VisitorEdits::default());
    }
    let reads = head.repository_state.chunk_reader();
    let root = StoreRoot::read(reads, &head.root_id)?;
    let (withdrawals, unstamped) = (root.map(WITHDRAWALS_MAP), root.map(ACTIVATED_MAP));
    let has_unstamped = unstamped != SortedMap::EMPTY_MAP;
    let is_known = withdrawals != SortedMap::EMPTY_MAP;
    if is_known {
        update_moved_withdrawals(head, withdrawals, moves, &mut made)?;
    }
    let destination = |path: &NodePath| -> Option<NodePath> {
        let to = moves
            .iter()
            .fold(path.clone(), |path, (from, to)| path.rebase(from, to).unwrap_or(path));
        (to != *path).then_some(to)
    };
    let entry = |path: NodePath, was_activated: bool| Withdrawal {
        moved_to: destination(&path),
        path,
        was_activated,
        user: change.user.to_owned(),
        withdrawn_at: change.time,
    };
    let is_removed = |key: &Vec<u8>| matches!(edits.get(key), Some(None));
    let mut tops = WithdrawalEdits::new();
    for (key, record) in edits {
        let is_activated = record.as_ref().is_some_and(|record| record.summary.is_activated());
        let was_unstamped = has_unstamped && unstamped.get(reads, key)?.is_some();
        if is_activated {
            if is_known {
                made.insert(key.clone(), None);
            }
            if was_unstamped {
                activated.insert(key.clone(), None);
            }
            continue;
        }
        let old = head.find_record(key)?;
        if was_unstamped {
            if let (Some(old), Some(record)) = (&old, record)
                && old.summary.primary_type() == record.summary.primary_type()
            {
                for path in removed_tags(head, key, old, record)? {
                    made.insert(record_key::record_key(&path)?, Some(entry(path, true)));
                }
                continue;
            }
            activated.insert(key.clone(), None);
        } else {
            let is_noted = record.is_some() && change.replication.is_some();
            if is_noted || old.is_none_or(|old| !old.summary.is_activated()) {
                continue;
            }
        }
        let path = record_key::record_path(key)?;
        let mut top = (key.clone(), path.clone());
        while record.is_none()
            && let Some(parent) = top.1.parent()
        {
            let key = record_key::record_key(&parent)?;
            if !is_removed(&key) {
                break;
            }
            top = (key, parent);
        }
        let (top, top_path) = top;
        tops.entry(top).or_insert_with(|| Some(entry(top_path, false)));
        made.insert(key.clone(), Some(entry(path, true)));
    }
    for (key, top) in tops {
        made.entry(key).or_insert(top);
    }
    let Some(notes) = change.replication else {
        return Ok(VisitorEdits { withdrawals: made, activated_entries: activated });
    };
    for path in &notes.withdrawn_paths {
        made.insert(record_key::record_key(path)?, None);
        activated.insert(record_key::record_key(path)?, None);
        for entry in withdrawals.range(reads, record_key::descendant_key_range(path)?.bounds()) {
            made.insert(entry?.0.to_vec(), None);
        }
        for entry in unstamped.range(reads, record_key::descendant_key_range(path)?.bounds()) {
            activated.insert(entry?.0.to_vec(), None);
        }
    }
    for path in &notes.emptied_paths {
        activated.insert(record_key::record_key(path)?, None);
    }
    for (path, at) in &notes.activated_documents {
        let key = record_key::record_key(path)?;
        let Some(stored) = head.content_map.get(reads, &key)? else { continue };
        made.insert(key.clone(), None);
        let record = head.find_record(&key)?;
        let holds_all_below =
            record.is_some_and(|record| !is_container(path.name(), record.summary.primary_type()));
        if holds_all_below {
            for entry in withdrawals.range(reads, record_key::descendant_key_range(path)?.bounds())
            {
                made.insert(entry?.0.to_vec(), None);
            }
        }
        activated.insert(key, Some(encode_activated_entry(change.user, *at, &stored)));
    }
    Ok(VisitorEdits { withdrawals: made, activated_entries: activated })
}

/// Returns the topmost tags that were removed from a document of tags.
fn removed_tags(
    head: &SnapshotView,
    key: &[u8],
    old: &ContentRecord,
    new: &ContentRecord,
) -> Result<Vec<NodePath>> {
    let mut removed = Vec::new();
    if old.summary.primary_type() == TAG_TYPE {
        let path = record_key::record_path(key)?;
        let (before, after) = (head.load_body(old, &path)?, head.load_body(new, &path)?);
        let (before, after) = (before.subtree(before.root()), after.subtree(after.root()));
        collect_removed_tags(&path, &before, &after, &mut removed);
    }
    Ok(removed)
}

fn collect_removed_tags(
    path: &NodePath,
    before: &Subtree,
    after: &Subtree,
    removed: &mut Vec<NodePath>,
) {
    for child in before.children.iter().filter(|child| child.primary_type() == TAG_TYPE) {
        let path = path.child_unchecked(&child.name);
        match after.child(&child.name) {
            Some(after) => collect_removed_tags(&path, child, after, removed),
            None => removed.push(path),
        }
    }
}

/// Encodes the entry of an activated document: the time, the user, and a hash of the document.
fn encode_activated_entry(user: &str, at: SystemTime, stored: &MapValue) -> MapValue {
    let mut bytes = vec![ENTRY_VERSION];
    write_signed_varint(&mut bytes, JcrDate::from_system_time(at).millis);
    write_length_prefixed(&mut bytes, user.as_bytes());
    write_length_prefixed(&mut bytes, stored_document_hash(stored).as_bytes());
    MapValue { bytes: bytes.into(), body: None }
}

/// Returns a hash of a stored document.
fn stored_document_hash(stored: &MapValue) -> ChunkId {
    let body = stored.body.map(|body| body.as_bytes().to_vec()).unwrap_or_default();
    ChunkId::hash_of(&[&stored.bytes[..], &body].concat())
}

/// Returns the map of activated documents without stamps of their own.
pub(crate) fn activated_map(view: &SnapshotView) -> Result<SortedMap> {
    Ok(StoreRoot::read(view.repository_state.chunk_reader(), &view.root_id)?.map(ACTIVATED_MAP))
}

/// Updates entries with the new paths of the documents for which they wait.
fn update_moved_withdrawals(
    head: &SnapshotView,
    withdrawals: SortedMap,
    moves: &[(NodePath, NodePath)],
    made: &mut WithdrawalEdits,
) -> Result<()> {
    if moves.is_empty() {
        return Ok(());
    }
    let all = record_key::descendant_key_range(&NodePath::root())?;
    for stored in withdrawals.range(head.repository_state.chunk_reader(), all.bounds()) {
        let (key, stored) = stored?;
        let mut entry = Withdrawal::decode(&key, &stored)?;
        let Some(to) = entry.moved_to.clone() else { continue };
        let now_at =
            moves.iter().fold(to.clone(), |to, (from, new)| to.rebase(from, new).unwrap_or(to));
        if now_at != to {
            entry.moved_to = Some(now_at);
            made.insert(key.to_vec(), Some(entry));
        }
    }
    Ok(())
}

/// Writes entries into the maps of a root.
pub(crate) fn write_visitor_edits(
    maps: &mut BTreeMap<String, SortedMap>,
    edits: &VisitorEdits,
    reads: &dyn ReadChunks,
    batch: &mut ChunkBatch,
) -> Result<()> {
    let withdrawals = edits.withdrawals.iter();
    let withdrawals = withdrawals.map(|(key, entry)| (key, entry.as_ref().map(Withdrawal::encode)));
    write_map(maps, WITHDRAWALS_MAP, withdrawals, reads, batch)?;
    let activated = edits.activated_entries.iter().map(|(key, entry)| (key, entry.clone()));
    write_map(maps, ACTIVATED_MAP, activated, reads, batch)
}

fn write_map<'a>(
    maps: &mut BTreeMap<String, SortedMap>,
    name: &str,
    edits: impl Iterator<Item = (&'a Vec<u8>, Option<MapValue>)>,
    reads: &dyn ReadChunks,
    batch: &mut ChunkBatch,
) -> Result<()> {
    let map = maps.get(name).copied().unwrap_or_default();
    let mut writes = BTreeMap::new();
    for (key, stored) in edits {
        if map.get(reads, key)? != stored {
            writes.insert(key.clone(), stored);
        }
    }
    if writes.is_empty() {
        return Ok(());
    }
    match map.edit(reads, batch, writes)? {
        SortedMap::EMPTY_MAP => maps.remove(name),
        map => maps.insert(name.to_owned(), map),
    };
    Ok(())
}

impl Snapshot {
    /// Returns the pending withdrawals at and below a node, sorted by key.
    ///
    /// # Errors
    /// If the store fails or an entry is damaged.
    pub fn withdrawals(&self, top: &NodePath) -> Result<Vec<Withdrawal>> {
        let reads = self.view.repository_state.chunk_reader();
        let map = StoreRoot::read(reads, &self.view.root_id)?.map(WITHDRAWALS_MAP);
        let mut stored_withdrawals = Vec::new();
        if map == SortedMap::EMPTY_MAP {
            return Ok(stored_withdrawals);
        }
        let key = record_key::record_key(top)?;
        if let Some(stored) = map.get(reads, &key)? {
            stored_withdrawals.push(Withdrawal::decode(&key, &stored)?);
        }
        for entry in map.range(reads, record_key::descendant_key_range(top)?.bounds()) {
            let (key, stored) = entry?;
            stored_withdrawals.push(Withdrawal::decode(&key, &stored)?);
        }
        Ok(stored_withdrawals)
    }
}

impl Snapshot {
    /// Returns the activated documents without stamps of their own, at and below a node, sorted by key.
    ///
    /// # Errors
    /// If the store fails or an entry is damaged.
    pub fn activated_documents(
        &self,
        top: &NodePath,
        depth: SubtreeScope,
    ) -> Result<Vec<ActivatedDocument>> {
        let reads = self.view.repository_state.chunk_reader();
        let map = StoreRoot::read(reads, &self.view.root_id)?.map(ACTIVATED_MAP);
        let mut documents = Vec::new();
        if map == SortedMap::EMPTY_MAP {
            return Ok(documents);
        }
        let key = record_key::record_key(top)?;
        if let Some(stored) = map.get(reads, &key)? {
            documents.push(self.activated_document(&key, &stored)?);
        }
        if depth == SubtreeScope::Subtree {
            for entry in map.range(reads, record_key::descendant_key_range(top)?.bounds()) {
                let (key, stored) = entry?;
                documents.push(self.activated_document(&key, &stored)?);
            }
        }
        Ok(documents)
    }

    fn activated_document(&self, key: &[u8], stored: &MapValue) -> Result<ActivatedDocument> {
        let path = record_key::record_path(key)?;
        let now = self.view.content_map.get(self.view.repository_state.chunk_reader(), key)?;
        let read = || {
            let mut cursor = ByteCursor::new(&stored.bytes, 0);
            if cursor.read_byte()? != ENTRY_VERSION {
                return None;
            }
            let date = JcrDate { millis: cursor.read_signed_varint()?, offset_minutes: 0 };
            let user = cursor.read_prefixed_text()?.to_owned();
            let is_current = now.is_some_and(|now| {
                cursor.read_prefixed_bytes() == Some(stored_document_hash(&now).as_bytes())
            });
            Some(ActivatedDocument {
                path: path.clone(),
                user,
                activated_at: date.to_system_time(),
                is_unchanged: is_current,
            })
        };
        read().ok_or_else(|| Error::Damaged {
            path: path.clone(),
            reason: "its activation entry cannot be decoded",
        })
    }
}

impl Repository {
    /// Removes entries whose withdrawal is now stored as a job, as long as they are unchanged.
    ///
    /// # Errors
    /// If the store fails.
    pub fn complete_withdrawals(
        &self,
        done: &[Withdrawal],
        revising: RevisionDetails<'_>,
    ) -> Result<()> {
        let commits =
            self.0.session_committer.as_ref().ok_or(Error::MissingContentMap(self.head_root()?))?;
        commits.committer.commit_change(|head| {
            let head = open_staged_head(&commits.staged_state, head)?;
            let reads = head.repository_state.chunk_reader();
            let mut maps = StoreRoot::read(reads, &head.root_id)?.maps;
            let map = maps.get(WITHDRAWALS_MAP).copied().unwrap_or_default();
            let mut edits = VisitorEdits::default();
            for entry in done {
                let key = record_key::record_key(&entry.path)?;
                if map.get(reads, &key)? == Some(entry.encode()) {
                    edits.withdrawals.insert(key, None);
                }
            }
            let mut batch = ChunkBatch::new();
            if edits.withdrawals.is_empty() {
                return Ok((batch, ()));
            }
            write_visitor_edits(&mut maps, &edits, reads, &mut batch)?;
            let new = StoreRoot { maps }.write(&mut batch)?;
            batch.add_ref_update(RefUpdate {
                name: head.repository_state.branch.clone(),
                expected_root: Some(head.root_id),
                new_root: Some(new),
                updated_at: revising.time,
                author: revising.user.to_owned(),
                message: revising.message.to_owned(),
            });
            Ok::<_, Error>((batch, ()))
        })
    }
}
