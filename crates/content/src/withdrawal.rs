//! Withdrawals: addresses at which visitors still have a document that is not here any more.
//!
//! In: the edits of a commit. Out: the same edits, in which documents count as activated as they did before, and entries
//! of the map `withdrawals`, which says what is to be taken away from visitors. `docs/formats/withdrawals.md` gives the
//! bytes.
//!
//! Invariants
//! * Whether a document counts as activated is a fact about its address. Only a commit by which replication notes what it
//!   does changes it; a copy, a package, a version or an earlier state brings no activation along.
//! * Whatever commit removes an activated document from its address, or moves it away, has an entry for it in the same
//!   root. So no door can forget it, and a crash between the commit and the work on it loses nothing.
//! * An entry goes when its address is activated again, or when the withdrawal is stored work ([`Repository::settle_withdrawals`]).
//! * Entries are about the branch `main`, which visitors see.
//! * What replication notes about a page or an asset stands in its content, as in AEM. Other documents, such as folders, tags
//!   and templates, whose types may not allow that, have an entry of the map `activated`.
//!
//! Not here: agents and their queues (`replicate`), and the privilege that a withdrawal needs (`access::check`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{Batch, Map, ReadChunks, RefUpdate, Root, Value as Stored};

use crate::boundary::{is_container, is_own_content};
use crate::codec::{Cursor, put_bytes, put_signed};
use crate::commit::{Change, open_head};
use crate::record::{Record, Summary, has_described_content};
use crate::repository::MAIN;
use crate::snapshot::{Overlay, View};
use crate::subtree::JCR_CONTENT;
use crate::transfer::Depth;
use crate::{
    ChunkId, Date, Error, NodePath, Repository, Result, Revising, Snapshot, Subtree, keys,
};

/// The name of the map.
pub(crate) const WITHDRAWALS: &str = "withdrawals";
/// The name of the map of activated documents that carry no stamps.
pub(crate) const ACTIVATED: &str = "activated";
/// The type of tags, which can be parts of a document.
const TAG_TYPE: &str = "cq:Tag";
/// The version of the entries' bytes.
const VERSION: u8 = 1;
const WAS_ACTIVATED: u8 = 1;
/// With this the names of all properties begin by which replication notes what it does.
const STAMPS: &str = "cq:lastReplicat";

/// Tells whether replication notes what it does in a property of this name.
pub(crate) fn is_stamp(name: &str) -> bool {
    name.starts_with(STAMPS)
}

/// An address at which visitors have something that is not here any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawal {
    /// The address.
    pub path: NodePath,
    /// Whether it is that of an activated document; else of a folder that went with activated documents below it.
    pub was_activated: bool,
    /// Where the document is now, if it was moved: until visitors have it there, they keep it at the old address.
    pub moved_to: Option<NodePath>,
    /// Who removed or moved it.
    pub user: String,
    /// When.
    pub at: SystemTime,
}

/// What a commit writes into the map, by key.
type WithdrawalEdits = BTreeMap<Vec<u8>, Option<Withdrawal>>;

/// What a commit changes of what is said about visitors beside the content.
#[derive(Debug, Default)]
pub(crate) struct VisitorEdits {
    withdrawals: WithdrawalEdits,
    /// What the map of activated documents gets.
    activated: BTreeMap<Vec<u8>, Option<Stored>>,
}

/// What replication notes with a commit.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplicationNotes {
    /// The nodes that are taken away from visitors, with everything below them.
    pub(crate) taken_away: Vec<NodePath>,
    /// The documents that are taken away from visitors while something below them stays.
    pub(crate) emptied: Vec<NodePath>,
    /// The documents that visitors get and that carry no stamps, with the time of the wish.
    pub(crate) activated: Vec<(NodePath, SystemTime)>,
}

/// A document without stamps of its own that visitors have, such as a folder or a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivatedDocument {
    /// Its address.
    pub path: NodePath,
    /// Who activated it.
    pub user: String,
    /// When.
    pub at: SystemTime,
    /// Whether it is as it was then.
    pub is_current: bool,
}

impl Withdrawal {
    fn encode(&self) -> Stored {
        let mut bytes = vec![VERSION, if self.was_activated { WAS_ACTIVATED } else { 0 }];
        put_signed(&mut bytes, Date::from_system_time(self.at).millis);
        put_bytes(&mut bytes, self.user.as_bytes());
        let moved_to = self.moved_to.as_ref().map(NodePath::as_str).unwrap_or_default();
        put_bytes(&mut bytes, moved_to.as_bytes());
        Stored { bytes: bytes.into(), body: None }
    }

    fn decode(key: &[u8], stored: &Stored) -> Result<Self> {
        let path = keys::path_of(key)?;
        let read = || {
            let mut cursor = Cursor::new(&stored.bytes, 0);
            if cursor.byte()? != VERSION {
                return None;
            }
            let was_activated = cursor.byte()? & WAS_ACTIVATED != 0;
            let date = Date { millis: cursor.signed()?, offset_minutes: 0 };
            let user = cursor.text()?.to_owned();
            let moved_to = match cursor.text()? {
                "" => None,
                path => Some(NodePath::new(path).ok()?),
            };
            let (path, at) = (path.clone(), date.to_system_time());
            cursor.is_at_end().then_some(Self { path, was_activated, moved_to, user, at })
        };
        read().ok_or_else(|| Error::Damaged {
            path: path.clone(),
            reason: "the entry about its withdrawal does not decode",
        })
    }
}

/// What two documents have in common of which one is the other after a move.
type Likeness = (String, Option<String>, Option<String>, Option<String>, Option<i64>);

/// Returns what a commit moves: what its session says, and what its edits show of documents that visitors have, as a merge
/// knows nothing of the moves on its branch.
pub(crate) fn moves(
    head: &View,
    edits: &Overlay,
    change: &Change<'_>,
) -> Result<Vec<(NodePath, NodePath)>> {
    let mut moves = change.moves.to_vec();
    if !moves.is_empty() || head.shared.branch != MAIN {
        return Ok(moves);
    }
    let mut gone: BTreeMap<Likeness, NodePath> = BTreeMap::new();
    for (key, record) in edits {
        if record.is_some() {
            continue;
        }
        if let Some(old) = head.find(key)?.filter(|old| old.summary.is_activated()) {
            let path = keys::path_of(key)?;
            gone.entry(likeness(&path, &old.summary)).or_insert(path);
        }
    }
    if gone.is_empty() {
        return Ok(moves);
    }
    for (key, record) in edits {
        let Some(record) = record else { continue };
        let path = keys::path_of(key)?;
        if let Some(from) = gone.get(&likeness(&path, &record.summary))
            && head.find(key)?.is_none()
        {
            moves.push((from.clone(), path));
            gone.retain(|_, other| moves.last().is_none_or(|(from, _)| from != other));
        }
    }
    Ok(moves)
}

fn likeness(path: &NodePath, summary: &Summary) -> Likeness {
    let text = |text: Option<&str>| text.map(str::to_owned);
    let modified = summary.modified().map(|date| date.millis);
    // Without a date, documents are too much alike to be known by the rest.
    let name = if modified.is_none() { Some(path.name()) } else { summary.title() };
    let kind = summary.primary_type().to_owned();
    (kind, text(name), text(summary.resource_type()), text(summary.template()), modified)
}

/// Returns those of the edited documents whose stamps of replication are others than those of the address, with the
/// address's own.
pub(crate) fn with_own_stamps(head: &View, edits: &Overlay) -> Result<Overlay> {
    let mut changed = Overlay::new();
    for (key, record) in edits {
        let Some(record) = record else { continue };
        let old = head.find(key)?;
        let before = old.as_ref().map(|old| stamp_of(&old.summary)).unwrap_or_default();
        if before == stamp_of(&record.summary) {
            continue;
        }
        let path = keys::path_of(key)?;
        if let Some(own) = restamped(head, &path, old.as_ref(), record)? {
            changed.insert(key.clone(), Some(Arc::new(own)));
        }
    }
    Ok(changed)
}

/// Returns what a header says about replication.
fn stamp_of(summary: &Summary) -> (Option<&str>, Option<i64>) {
    (summary.activation(), summary.activated().map(|date| date.millis))
}

fn restamped(
    head: &View,
    path: &NodePath,
    old: Option<&Record>,
    record: &Record,
) -> Result<Option<Record>> {
    let tree_of = |record: &Record| -> Result<Subtree> {
        let body = head.body(record, path)?;
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
    node.properties.retain(|name, _| !is_stamp(name));
    if let Some(old) = old.filter(|_| can_hold) {
        let old = tree_of(old)?;
        let from = match old.child(JCR_CONTENT) {
            Some(content) if has_described_content(&old) => content,
            _ => &old,
        };
        let own = from.properties.iter().filter(|(name, _)| is_stamp(name));
        node.properties.extend(own.map(|(name, value)| (name.clone(), value.clone())));
    }
    if tree == before {
        return Ok(None);
    }
    let made = Record::of(&tree, record.order.clone());
    made.map(Some).ok_or_else(|| Error::Refused {
        action: "commit",
        path: path.clone(),
        reason: "it is nested too deeply",
    })
}

/// Tells whether a document's tree has a node that stamps of replication can be on.
fn can_hold_stamps(tree: &Subtree) -> bool {
    has_described_content(tree) || !is_own_content(tree.primary_type(), JCR_CONTENT)
}

/// Tells whether a document that takes the place of an activated one goes on as activated: a folder in the place of a page
/// is none that visitors have.
pub(crate) fn holds_stamps(
    view: &View,
    path: &NodePath,
    (old, record): (&Record, &Record),
) -> Result<bool> {
    if old.summary.primary_type() != record.summary.primary_type() {
        return Ok(false);
    }
    if record.summary.is_activated() {
        return Ok(true);
    }
    let body = view.body(record, path)?;
    Ok(can_hold_stamps(&body.subtree(body.root())))
}

/// Returns what a commit changes in the map of withdrawals.
pub(crate) fn edits(
    head: &View,
    edits: &Overlay,
    change: &Change<'_>,
    moves: &[(NodePath, NodePath)],
) -> Result<VisitorEdits> {
    let mut made = WithdrawalEdits::new();
    let mut activated = BTreeMap::new();
    if head.shared.branch != MAIN {
        return Ok(VisitorEdits::default());
    }
    let reads = head.shared.reads();
    let root = Root::read(reads, &head.root)?;
    let (known, unstamped) = (root.map(WITHDRAWALS), root.map(ACTIVATED));
    let has_unstamped = unstamped != Map::EMPTY;
    let is_known = known != Map::EMPTY;
    if is_known {
        follow_moves(head, known, moves, &mut made)?;
    }
    let destination = |path: &NodePath| -> Option<NodePath> {
        let to = moves
            .iter()
            .fold(path.clone(), |path, (from, to)| path.rebased(from, to).unwrap_or(path));
        (to != *path).then_some(to)
    };
    let entry = |path: NodePath, was_activated: bool| Withdrawal {
        moved_to: destination(&path),
        path,
        was_activated,
        user: change.user.to_owned(),
        at: change.at,
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
        let old = head.find(key)?;
        if was_unstamped {
            if let (Some(old), Some(record)) = (&old, record)
                && old.summary.primary_type() == record.summary.primary_type()
            {
                for path in removed_tags(head, key, (old, record))? {
                    made.insert(keys::key_of(&path)?, Some(entry(path, true)));
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
        let path = keys::path_of(key)?;
        let mut top = (key.clone(), path.clone());
        while record.is_none()
            && let Some(parent) = top.1.parent()
        {
            let key = keys::key_of(&parent)?;
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
        return Ok(VisitorEdits { withdrawals: made, activated });
    };
    for path in &notes.taken_away {
        made.insert(keys::key_of(path)?, None);
        activated.insert(keys::key_of(path)?, None);
        for entry in known.range(reads, keys::below(path)?.bounds()) {
            made.insert(entry?.0.to_vec(), None);
        }
        for entry in unstamped.range(reads, keys::below(path)?.bounds()) {
            activated.insert(entry?.0.to_vec(), None);
        }
    }
    for path in &notes.emptied {
        activated.insert(keys::key_of(path)?, None);
    }
    for (path, at) in &notes.activated {
        let key = keys::key_of(path)?;
        let Some(stored) = head.content.get(reads, &key)? else { continue };
        made.insert(key.clone(), None);
        let record = head.find(&key)?;
        let holds_all_below =
            record.is_some_and(|record| !is_container(path.name(), record.summary.primary_type()));
        if holds_all_below {
            for entry in known.range(reads, keys::below(path)?.bounds()) {
                made.insert(entry?.0.to_vec(), None);
            }
        }
        activated.insert(key, Some(encode_activated((change.user, *at), &stored)));
    }
    Ok(VisitorEdits { withdrawals: made, activated })
}

/// Returns the tags that went from a document of tags, the topmost ones.
fn removed_tags(head: &View, key: &[u8], (old, new): (&Record, &Record)) -> Result<Vec<NodePath>> {
    let mut removed = Vec::new();
    if old.summary.primary_type() == TAG_TYPE {
        let path = keys::path_of(key)?;
        let (before, after) = (head.body(old, &path)?, head.body(new, &path)?);
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

/// Writes the entry of an activated document: when, by whom, and a hash of what it was.
fn encode_activated((user, at): (&str, SystemTime), stored: &Stored) -> Stored {
    let mut bytes = vec![VERSION];
    put_signed(&mut bytes, Date::from_system_time(at).millis);
    put_bytes(&mut bytes, user.as_bytes());
    put_bytes(&mut bytes, state_of(stored).as_bytes());
    Stored { bytes: bytes.into(), body: None }
}

/// Returns a hash of a stored document.
fn state_of(stored: &Stored) -> ChunkId {
    let body = stored.body.map(|body| body.as_bytes().to_vec()).unwrap_or_default();
    ChunkId::of(&[&stored.bytes[..], &body].concat())
}

/// Returns the map of activated documents without stamps of their own.
pub(crate) fn activated_map(view: &View) -> Result<Map> {
    Ok(Root::read(view.shared.reads(), &view.root)?.map(ACTIVATED))
}

/// Lets entries know where the documents went that they wait for.
fn follow_moves(
    head: &View,
    known: Map,
    moves: &[(NodePath, NodePath)],
    made: &mut WithdrawalEdits,
) -> Result<()> {
    if moves.is_empty() {
        return Ok(());
    }
    let all = keys::below(&NodePath::root())?;
    for stored in known.range(head.shared.reads(), all.bounds()) {
        let (key, stored) = stored?;
        let mut entry = Withdrawal::decode(&key, &stored)?;
        let Some(to) = entry.moved_to.clone() else { continue };
        let now_at =
            moves.iter().fold(to.clone(), |to, (from, new)| to.rebased(from, new).unwrap_or(to));
        if now_at != to {
            entry.moved_to = Some(now_at);
            made.insert(key.to_vec(), Some(entry));
        }
    }
    Ok(())
}

/// Writes entries into the maps of a root.
pub(crate) fn write(
    maps: &mut BTreeMap<String, Map>,
    edits: &VisitorEdits,
    reads: &dyn ReadChunks,
    batch: &mut Batch,
) -> Result<()> {
    let withdrawals = edits.withdrawals.iter();
    let withdrawals = withdrawals.map(|(key, entry)| (key, entry.as_ref().map(Withdrawal::encode)));
    write_map((maps, WITHDRAWALS), withdrawals, reads, batch)?;
    let activated = edits.activated.iter().map(|(key, entry)| (key, entry.clone()));
    write_map((maps, ACTIVATED), activated, reads, batch)
}

fn write_map<'a>(
    (maps, name): (&mut BTreeMap<String, Map>, &str),
    edits: impl Iterator<Item = (&'a Vec<u8>, Option<Stored>)>,
    reads: &dyn ReadChunks,
    batch: &mut Batch,
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
        Map::EMPTY => maps.remove(name),
        map => maps.insert(name.to_owned(), map),
    };
    Ok(())
}

impl Snapshot {
    /// Returns what is to be taken away from visitors at and below a node, sorted by key.
    ///
    /// # Errors
    /// If the store fails or an entry is damaged.
    pub fn withdrawals(&self, top: &NodePath) -> Result<Vec<Withdrawal>> {
        let reads = self.0.shared.reads();
        let map = Root::read(reads, &self.0.root)?.map(WITHDRAWALS);
        let mut found = Vec::new();
        if map == Map::EMPTY {
            return Ok(found);
        }
        let key = keys::key_of(top)?;
        if let Some(stored) = map.get(reads, &key)? {
            found.push(Withdrawal::decode(&key, &stored)?);
        }
        for entry in map.range(reads, keys::below(top)?.bounds()) {
            let (key, stored) = entry?;
            found.push(Withdrawal::decode(&key, &stored)?);
        }
        Ok(found)
    }
}

impl Snapshot {
    /// Returns the documents without stamps of their own that visitors have, at and below a node, sorted by key.
    ///
    /// # Errors
    /// If the store fails or an entry is damaged.
    pub fn activated_documents(
        &self,
        top: &NodePath,
        depth: Depth,
    ) -> Result<Vec<ActivatedDocument>> {
        let reads = self.0.shared.reads();
        let map = Root::read(reads, &self.0.root)?.map(ACTIVATED);
        let mut found = Vec::new();
        if map == Map::EMPTY {
            return Ok(found);
        }
        let key = keys::key_of(top)?;
        if let Some(stored) = map.get(reads, &key)? {
            found.push(self.activated_document(&key, &stored)?);
        }
        if depth == Depth::Subtree {
            for entry in map.range(reads, keys::below(top)?.bounds()) {
                let (key, stored) = entry?;
                found.push(self.activated_document(&key, &stored)?);
            }
        }
        Ok(found)
    }

    fn activated_document(&self, key: &[u8], stored: &Stored) -> Result<ActivatedDocument> {
        let path = keys::path_of(key)?;
        let now = self.0.content.get(self.0.shared.reads(), key)?;
        let read = || {
            let mut cursor = Cursor::new(&stored.bytes, 0);
            if cursor.byte()? != VERSION {
                return None;
            }
            let date = Date { millis: cursor.signed()?, offset_minutes: 0 };
            let user = cursor.text()?.to_owned();
            let is_current =
                now.is_some_and(|now| cursor.bytes() == Some(state_of(&now).as_bytes()));
            Some(ActivatedDocument {
                path: path.clone(),
                user,
                at: date.to_system_time(),
                is_current,
            })
        };
        read().ok_or_else(|| Error::Damaged {
            path: path.clone(),
            reason: "the entry about its activation does not decode",
        })
    }
}

impl Repository {
    /// Removes entries whose withdrawal is stored work by now, as long as they say the same.
    ///
    /// # Errors
    /// If the store fails.
    pub fn settle_withdrawals(&self, done: &[Withdrawal], revising: Revising<'_>) -> Result<()> {
        let commits = self.0.commits.as_ref().ok_or(Error::NotContent(self.head()?))?;
        commits.committer.commit(|head| {
            let head = open_head(&commits.staged, head)?;
            let reads = head.shared.reads();
            let mut maps = Root::read(reads, &head.root)?.maps;
            let map = maps.get(WITHDRAWALS).copied().unwrap_or_default();
            let mut edits = VisitorEdits::default();
            for entry in done {
                let key = keys::key_of(&entry.path)?;
                if map.get(reads, &key)? == Some(entry.encode()) {
                    edits.withdrawals.insert(key, None);
                }
            }
            let mut batch = Batch::new();
            if edits.withdrawals.is_empty() {
                return Ok((batch, ()));
            }
            write(&mut maps, &edits, reads, &mut batch)?;
            let new = Root { maps }.write(&mut batch)?;
            batch.move_ref(RefUpdate {
                name: head.shared.branch.clone(),
                expected: Some(head.root),
                new: Some(new),
                at: revising.at,
                author: revising.user.to_owned(),
                message: revising.message.to_owned(),
            });
            Ok::<_, Error>((batch, ()))
        })
    }
}
