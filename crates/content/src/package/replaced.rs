//! What an installation replaced, and how it is undone.
//!
//! Beside the content stands a ref for each installed package. It names two maps: the records that the installation
//! changed as they were before, and as it left them. Bodies and blobs are in them by hash, so that nothing is copied and
//! the garbage collector keeps them.
//!
//! Undoing is a three-way merge for each document: what the installation left is the base, what was before is wanted,
//! and what stands there now wins wherever something else changed it since.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use serde::Serialize;
use tympan_store::{Batch, ChunkId, Map, RefUpdate, Root};

use super::options::Stamp;
use super::properties::PackageId;
use super::settle::settle;
use crate::boundary::is_container;
use crate::record::Record;
use crate::siblings::orders_children;
use crate::snapshot::View;
use crate::{
    BlobId, Conflict, ConflictKind, Error, NodePath, Repository, Result, Session, Subtree, keys,
};

/// Refs of this prefix keep what installations replaced.
pub(crate) const REPLACED: &str = "package/";

const BEFORE: &str = "before";
const AFTER: &str = "after";

/// What an uninstallation did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Uninstalled {
    /// The package.
    pub package: PackageId,
    /// Documents that are again as they were before the installation.
    pub restored: usize,
    /// Documents that the installation had created and that are gone.
    pub removed: usize,
    /// What something else changed since the installation; it stays as it is.
    #[serde(serialize_with = "conflicts")]
    pub kept: Vec<Conflict>,
    /// What is odd but did not keep the package from being uninstalled.
    pub warnings: Vec<String>,
}

fn conflicts<S: serde::Serializer>(list: &[Conflict], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(|conflict| {
        serde_json::json!({
            "path": conflict.path.as_str(),
            "kind": conflict.kind.name(),
            "property": conflict.property,
        })
    }))
}

impl std::fmt::Display for Uninstalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "package {}", self.package)?;
        writeln!(f, "  restored   {:>9}  removed    {:>9}", self.restored, self.removed)?;
        for conflict in &self.kept {
            let property =
                conflict.property.as_deref().map_or(String::new(), |name| format!("/{name}"));
            writeln!(
                f,
                "  kept       {}{property}: changed since ({})",
                conflict.path,
                conflict.kind.name()
            )?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "  warning    {warning}"))
    }
}

type Records = BTreeMap<Vec<u8>, Arc<Record>>;

/// Records before and after an installation. A key in one map alone was created or removed.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    before: Records,
    after: Records,
}

impl Replaced {
    /// Compares two states of one session, of which the second has all edits of the first. What lies at `except` does
    /// not count.
    pub(super) fn between(before: &View, after: &View, except: &NodePath) -> Result<Self> {
        let mut replaced = Self::default();
        let system = NodePath::new("/jcr:system")?;
        for (key, new) in &after.overlay {
            let path = keys::path_of(key)?;
            // Node types and namespaces stay known: other content may use them by now.
            if path.is_within(except) || path.is_within(&system) {
                continue;
            }
            let old = before.record(key, &path)?;
            let is_same = match (&old, new) {
                (Some(old), Some(new)) => {
                    Arc::ptr_eq(old, new) || is_equal(before, &path, [old, new])?
                }
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                replaced.before.extend(old.map(|old| (key.clone(), old)));
                replaced.after.extend(new.clone().map(|new| (key.clone(), new)));
            }
        }
        Ok(replaced)
    }

    /// Puts this on top of what an earlier installation of the same package replaced.
    pub(super) fn after_earlier(self, repository: &Repository, package: &NodePath) -> Result<Self> {
        let earlier = find(repository, package)?;
        Ok(match earlier {
            Some(earlier) => earlier.followed_by(self),
            None => self,
        })
    }

    /// Puts a later installation of the same package on top: undoing goes back to before the first.
    fn followed_by(mut self, later: Self) -> Self {
        let touched: BTreeSet<Vec<u8>> = self.keys();
        for key in later.keys() {
            self.after.remove(&key);
        }
        let first = later.before.into_iter().filter(|(key, _)| !touched.contains(key));
        self.before.extend(first);
        self.after.extend(later.after);
        self
    }

    /// Tells whether nothing was replaced.
    pub(super) fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }

    fn keys(&self) -> BTreeSet<Vec<u8>> {
        self.before.keys().chain(self.after.keys()).cloned().collect()
    }

    fn write(&self, batch: &mut Batch) -> Result<ChunkId> {
        let mut maps = BTreeMap::new();
        for (name, records) in [(BEFORE, &self.before), (AFTER, &self.after)] {
            let mut stored = Vec::with_capacity(records.len());
            for (key, record) in records {
                stored.push((key.clone(), record.encode(batch)?));
            }
            maps.insert(name.to_owned(), Map::build(batch, stored.into_iter())?);
        }
        Ok(Root { maps }.write(batch)?)
    }

    fn read(repository: &Repository, root: &ChunkId) -> Result<Self> {
        let reads = repository.0.reads();
        let maps = Root::read(reads, root)?;
        let read = |name: &str| -> Result<Records> {
            let mut records = Records::new();
            for entry in maps.map(name).range(reads, (Bound::Unbounded, Bound::Unbounded)) {
                let (key, stored) = entry?;
                let path = keys::path_of(&key)?;
                let record = Record::decode(&stored);
                let reason = "the record that a package replaced does not decode";
                let record = record.ok_or(Error::Damaged { path, reason })?;
                records.insert(key.to_vec(), Arc::new(record));
            }
            Ok(records)
        };
        Ok(Self { before: read(BEFORE)?, after: read(AFTER)? })
    }
}

/// Tells whether two records hold the same in the same place.
fn is_equal(view: &View, path: &NodePath, [left, right]: [&Record; 2]) -> Result<bool> {
    let (before, after) = (view.body(left, path)?, view.body(right, path)?);
    // The bytes name blobs by their places in the list beside them.
    Ok(left.order == right.order
        && before.bytes() == after.bytes()
        && before.blobs() == after.blobs())
}

/// The moves of refs that keep what installations replaced. They come before the commit of the content: what they name
/// is harmless if that fails, and a commit without them could not be undone.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    batch: Batch,
    undo: Vec<RefUpdate>,
}

impl Keeping {
    /// Adds what the installation of a package replaced.
    pub(super) fn add(
        &mut self,
        repository: &Repository,
        package: &NodePath,
        replaced: &Replaced,
        stamp: &Stamp,
    ) -> Result<()> {
        let name = ref_name(repository, package);
        let expected = repository.0.chunks.read_ref(&name)?;
        let new = Some(replaced.write(&mut self.batch)?);
        if new == expected {
            return Ok(());
        }
        let message = format!("what the installation of {package} replaced");
        let update = |expected, new| RefUpdate {
            name: name.clone(),
            expected,
            new,
            at: stamp.at,
            author: stamp.user.clone(),
            message: message.clone(),
        };
        self.undo.push(update(new, expected));
        self.batch.move_ref(update(expected, new));
        Ok(())
    }

    /// Writes all of it, runs `commit`, and takes it back if that fails.
    pub(super) fn around<T>(
        self,
        session: &mut Session,
        commit: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let chunks = Arc::clone(&session.repository().0.chunks);
        chunks.commit(self.batch)?;
        commit(session).inspect_err(|_| {
            let mut batch = Batch::new();
            self.undo.into_iter().for_each(|update| batch.move_ref(update));
            // A ref that stays behind costs space only: nothing says that the package is installed.
            if let Err(error) = chunks.commit(batch) {
                tracing::warn!(reason = %error, "what a failed installation replaced is still kept");
            }
        })
    }
}

/// Reads what the installation of a package replaced, if that is known.
pub(super) fn find(repository: &Repository, package: &NodePath) -> Result<Option<Replaced>> {
    let root = repository.0.chunks.read_ref(&ref_name(repository, package))?;
    root.map(|root| Replaced::read(repository, &root)).transpose()
}

/// Lets go of what the installation of a package replaced.
pub(super) fn forget(repository: &Repository, package: &NodePath, stamp: &Stamp) -> Result<()> {
    let name = ref_name(repository, package);
    let Some(root) = repository.0.chunks.read_ref(&name)? else {
        return Ok(());
    };
    let mut batch = Batch::new();
    batch.move_ref(RefUpdate {
        name,
        expected: Some(root),
        new: None,
        at: stamp.at,
        author: stamp.user.clone(),
        message: format!("{package} is not installed any more"),
    });
    Ok(repository.0.chunks.commit(batch)?)
}

fn ref_name(repository: &Repository, package: &NodePath) -> String {
    let id = BlobId::of(format!("{}\0{package}", repository.branch()).as_bytes()).to_string();
    format!("{REPLACED}{}", id.split('#').next().unwrap_or_default())
}

/// What becomes of one document.
#[derive(Debug)]
struct Fate {
    key: Vec<u8>,
    step: Step,
    /// Whether nothing of it stays that something else changed.
    is_whole: bool,
}

#[derive(Debug)]
enum Step {
    Put(Arc<Record>),
    Remove,
    Leave,
}

/// Takes back what an installation did, as pending edits of the session.
pub(super) fn undo(
    session: &mut Session,
    replaced: &Replaced,
    out: &mut Uninstalled,
) -> Result<()> {
    let mut fates = BTreeMap::new();
    for key in replaced.keys() {
        let path = keys::path_of(&key)?;
        let fate = fate_of(session, replaced, key, &path, &mut out.kept)?;
        fates.insert(path, fate);
    }
    leave_what_is_cut_anew(replaced, &mut fates, &mut out.kept);
    let mut fates: Vec<(NodePath, Fate)> = fates.into_iter().collect();
    fates.sort_by_key(|(path, _)| path.depth());
    for (path, fate) in &fates {
        if let Step::Put(record) = &fate.step {
            put(session, path, record, out)?;
        }
    }
    for (path, fate) in fates.iter().rev() {
        if matches!(fate.step, Step::Remove) {
            remove(session, path, &fate.key, out)?;
        }
    }
    Ok(())
}

/// Merges what was before with what is there now.
fn fate_of(
    session: &mut Session,
    replaced: &Replaced,
    key: Vec<u8>,
    path: &NodePath,
    kept: &mut Vec<Conflict>,
) -> Result<Fate> {
    let snapshot = session.snapshot()?;
    let view = &snapshot.0;
    let tree = |record: Option<&Arc<Record>>| -> Result<Option<Subtree>> {
        let Some(record) = record else {
            return Ok(None);
        };
        let body = view.body(record, path)?;
        Ok(Some(body.subtree(body.root())))
    };
    let (before, after) = (replaced.before.get(&key), replaced.after.get(&key));
    let now = view.record(&key, path)?;
    let (wanted, left, there) = (tree(before)?, tree(after)?, tree(now.as_ref())?);
    let settled = settle(path, [left.as_ref(), wanted.as_ref(), there.as_ref()], kept);
    let is_whole = settled == wanted;
    let order = |record: Option<&Arc<Record>>| record.map(|record| record.order.clone());
    // A place among siblings that was given since stays, too.
    let is_placed_since = now.is_some() && order(now.as_ref()) != order(after);
    let order = if is_placed_since { order(now.as_ref()) } else { order(before).or(order(after)) };
    let is_in_place = order == now.as_ref().map(|now| now.order.clone());
    let step = match settled {
        None if there.is_none() => Step::Leave,
        None => Step::Remove,
        Some(settled) if there.as_ref() == Some(&settled) && is_in_place => Step::Leave,
        Some(settled) => {
            let record = Record::of(&settled, order.unwrap_or_default());
            let reason = "it is nested too deeply";
            let refused = || Error::Refused { action: "restore", path: path.clone(), reason };
            Step::Put(Arc::new(record.ok_or_else(refused)?))
        }
    };
    Ok(Fate { key, step, is_whole })
}

/// Where a document stops or begins to hold its children in records of their own, it goes back together with all of
/// them or not at all.
fn leave_what_is_cut_anew(
    replaced: &Replaced,
    fates: &mut BTreeMap<NodePath, Fate>,
    kept: &mut Vec<Conflict>,
) {
    let holds = |record: Option<&Arc<Record>>, path: &NodePath| {
        record.map(|record| is_container(path.name(), record.summary.primary_type()))
    };
    let cut_anew: Vec<NodePath> = fates
        .iter()
        .filter(|(path, fate)| {
            let before = holds(replaced.before.get(&fate.key), path);
            let after = holds(replaced.after.get(&fate.key), path);
            before.is_some() && after.is_some() && before != after
        })
        .map(|(path, _)| path.clone())
        .collect();
    for top in cut_anew {
        let is_hindered = fates.iter().any(|(path, fate)| path.is_within(&top) && !fate.is_whole);
        if is_hindered {
            kept.push(Conflict::of_node(&top, ConflictKind::RemoveChangedNode));
            let below = fates.iter_mut().filter(|(path, _)| path.is_within(&top));
            below.for_each(|(_, fate)| fate.step = Step::Leave);
        }
    }
}

fn put(
    session: &mut Session,
    path: &NodePath,
    record: &Arc<Record>,
    out: &mut Uninstalled,
) -> Result<()> {
    let snapshot = session.snapshot()?;
    if let Some(parent) = path.parent() {
        let node = snapshot.node(&parent)?;
        let can_hold = node.is_some_and(|node| {
            node.summary().is_some() && is_container(parent.name(), node.primary_type())
        });
        if !can_hold {
            out.kept.push(Conflict::of_node(path, ConflictKind::ChangeRemovedNode));
            return Ok(());
        }
    }
    let old = snapshot.0.record(&keys::key_of(path)?, path)?;
    drop(snapshot);
    let is_ordered_anew =
        orders_children(path, Some(record)) && !orders_children(path, old.as_deref());
    session.write(path, Record::clone(record))?;
    if is_ordered_anew {
        session.edits().deal_orders(path)?;
    }
    out.restored += 1;
    Ok(())
}

fn remove(session: &mut Session, path: &NodePath, key: &[u8], out: &mut Uninstalled) -> Result<()> {
    let snapshot = session.snapshot()?;
    if snapshot.0.record(key, path)?.is_none() {
        return Ok(());
    }
    let has_strangers = !snapshot.0.records(&keys::below(path)?)?.is_empty();
    drop(snapshot);
    if has_strangers {
        out.kept.push(Conflict::of_node(path, ConflictKind::RemoveChangedNode));
        return Ok(());
    }
    out.removed += 1;
    session.remove_records(path)
}
