//! All policies and accounts of one state of the content, kept while the content changes.
//!
//! In: a state. Out: its [`Policies`], read from the documents that the `type` index names; for the next state only the
//! documents that changed are read, and nothing at all if none of them has to do with access control.
//!
//! Invariants
//! * States with equal policies and accounts that follow each other share one [`Policies`], so that what was decided with
//!   them stays decided.
//!
//! On failure: a state whose predecessor was collected is read anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tympan_store::{ChunkId, Map, Root};

use crate::access::gate::Gate;
use crate::access::lens::Lens;
use crate::access::policy::{Cug, Document, Policy, TYPES};
use crate::access::principals::Accounts;
use crate::access::viewer::{Viewer, Who};
use crate::repository::{CONTENT, MAIN, Shared};
use crate::snapshot::View;
use crate::{Error, NodePath, Result, Snapshot, keys};

/// How many states are remembered with their policies.
const MAX_STATES: usize = 16;
/// How many viewers' decisions are kept for one set of policies.
const MAX_LENSES: usize = 1000;
/// The index map of node types.
const TYPE_MAP: &str = "type";

/// The policies and accounts of one state.
pub(crate) struct Policies {
    /// Tells sets apart without comparing them.
    pub(crate) id: u64,
    /// By the key of the document's record.
    documents: BTreeMap<Vec<u8>, Arc<Document>>,
    pub(crate) accounts: Accounts,
    /// By viewer and the set that its groups come from.
    lenses: Mutex<HashMap<(Who, u64), Arc<Lens>>>,
}

/// The policies of the states that were read lately.
#[derive(Default)]
pub(crate) struct AccessCache {
    states: Mutex<Vec<State>>,
    /// The newest state of `main` that was asked for.
    main: Mutex<Option<(ChunkId, Arc<Policies>)>>,
    /// The door that was opened last: mostly one viewer, somebody without a login, asks for one state.
    opened: ArcSwapOption<OpenedGate>,
    next_id: AtomicU64,
    /// Documents read to find policies, for tests.
    reads: AtomicU64,
}

/// A door and what it was opened for.
struct OpenedGate {
    content: Map,
    /// The newest state of `main`, whose policies decide, too.
    main: ChunkId,
    viewer: Viewer,
    gate: Arc<Gate>,
}

#[derive(Clone)]
struct State {
    content: Map,
    types: Map,
    policies: Arc<Policies>,
}

impl AccessCache {
    /// Returns the policies of the state that a view shows, pending edits left out.
    pub(crate) fn of(&self, view: &View) -> Result<Arc<Policies>> {
        let content = view.content;
        let known = lock(&self.states);
        if let Some(state) = known.iter().find(|state| state.content == content) {
            return Ok(state.policies.clone());
        }
        let last = known.last().cloned();
        drop(known);
        let types = Root::read(view.shared.reads(), &view.root)?.map(TYPE_MAP);
        let followed = last.and_then(|last| self.follow(&last, view, types).ok());
        let policies = match followed {
            Some(policies) => policies,
            None => self.read_all(view)?,
        };
        let mut known = lock(&self.states);
        known.retain(|state| state.content != content);
        if known.len() >= MAX_STATES {
            known.remove(0);
        }
        known.push(State { content, types, policies: policies.clone() });
        Ok(policies)
    }

    /// Returns the policies of the newest state of `main`, which bind whatever state is read.
    pub(crate) fn of_main(&self, shared: &Arc<Shared>) -> Result<Arc<Policies>> {
        Ok(self.of_newest(shared)?.0)
    }

    /// Returns the policies of the newest state of `main`, and its root.
    pub(crate) fn of_newest(&self, shared: &Arc<Shared>) -> Result<(Arc<Policies>, ChunkId)> {
        let missing = || Error::NotContent(ChunkId::from_bytes([0; 32]));
        let root = shared.chunks.read_ref(MAIN)?.ok_or_else(missing)?;
        if let Some((known, policies)) = &*lock(&self.main)
            && *known == root
        {
            return Ok((policies.clone(), root));
        }
        let pin = shared.chunks.pin(root);
        let content = Root::read(shared.reads(), &root)?.maps.get(CONTENT).copied();
        let content = content.ok_or(Error::NotContent(root))?;
        let policies = self.of(&View::pinned(shared.clone(), pin, content))?;
        *lock(&self.main) = Some((root, policies.clone()));
        Ok((policies, root))
    }

    /// Returns the door that was opened last, if it was for this.
    pub(crate) fn opened(&self, content: Map, main: ChunkId, viewer: &Viewer) -> Option<Arc<Gate>> {
        let last = self.opened.load();
        let last = last
            .as_ref()
            .filter(|last| last.main == main && last.content == content && last.viewer == *viewer);
        last.map(|last| Arc::clone(&last.gate))
    }

    /// Keeps the door that was opened last.
    pub(crate) fn keep_opened(
        &self,
        content: Map,
        main: ChunkId,
        viewer: &Viewer,
        gate: &Arc<Gate>,
    ) {
        let (viewer, gate) = (viewer.clone(), Arc::clone(gate));
        self.opened.store(Some(Arc::new(OpenedGate { content, main, viewer, gate })));
    }

    /// Returns how many documents were read to find policies.
    pub(crate) fn documents_read(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn read_all(&self, view: &View) -> Result<Arc<Policies>> {
        let snapshot = stored_in(view);
        let mut owners = BTreeSet::new();
        for path in TYPES.iter().map(|name| snapshot.listed_as(name)) {
            for path in path? {
                owners.extend(owner_of(&snapshot, &path)?);
            }
        }
        let mut documents = BTreeMap::new();
        for owner in owners {
            self.read(&snapshot, &owner, &mut documents)?;
        }
        Ok(self.finish(documents))
    }

    /// Returns the policies of a state from those of another, reading what changed.
    fn follow(&self, last: &State, view: &View, types: Map) -> Result<Arc<Policies>> {
        let reads = view.shared.reads();
        let snapshot = stored_in(view);
        let mut changed = BTreeSet::new();
        for change in last.content.diff(&view.content, reads) {
            let change = change?;
            if last.policies.documents.contains_key(&*change.key) {
                changed.insert(change.key.to_vec());
            }
        }
        for change in last.types.diff(&types, reads) {
            let change = change?;
            let mut parts = change.key.split(|byte| *byte == 0);
            let name = parts.next().unwrap_or_default();
            if change.right.is_some() && TYPES.iter().any(|one| one.as_bytes() == name) {
                let path = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
                if let Some(owner) = owner_of(&snapshot, &NodePath::new(&path)?)? {
                    changed.insert(keys::key_of(&owner)?);
                }
            }
        }
        let mut documents = BTreeMap::new();
        for key in &changed {
            self.read(&snapshot, &keys::path_of(key)?, &mut documents)?;
        }
        let is_same = changed.iter().all(|key| {
            last.policies.documents.get(key).map(|one| &**one)
                == documents.get(key).map(|one| &**one)
        });
        if is_same {
            return Ok(last.policies.clone());
        }
        let kept = last.policies.documents.iter().filter(|(key, _)| !changed.contains(*key));
        documents.extend(kept.map(|(key, document)| (key.clone(), document.clone())));
        Ok(self.finish(documents))
    }

    /// Reads one document, if it holds anything.
    fn read(
        &self,
        snapshot: &Snapshot,
        owner: &NodePath,
        documents: &mut BTreeMap<Vec<u8>, Arc<Document>>,
    ) -> Result<()> {
        let Some(node) = snapshot.node(owner)? else { return Ok(()) };
        self.reads.fetch_add(1, Ordering::Relaxed);
        let document = Document::read(owner, &node.read_own()?);
        if !document.is_empty() {
            documents.insert(keys::key_of(owner)?, Arc::new(document));
        }
        Ok(())
    }

    fn finish(&self, documents: BTreeMap<Vec<u8>, Arc<Document>>) -> Arc<Policies> {
        let accounts = Accounts::new(documents.values().map(|document| &**document));
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Arc::new(Policies { id, documents, accounts, lenses: Mutex::default() })
    }
}

impl Policies {
    /// Returns what a viewer may do by these policies, as a member of the groups that `accounts` puts it in.
    pub(crate) fn lens(&self, who: &Who, accounts: &Self) -> Arc<Lens> {
        let key = (who.clone(), accounts.id);
        if let Some(lens) = lock(&self.lenses).get(&key) {
            return lens.clone();
        }
        let principals = accounts.accounts.principals_of(who);
        let lens = Arc::new(Lens::new(principals, self));
        let mut lenses = lock(&self.lenses);
        if lenses.len() >= MAX_LENSES {
            lenses.clear();
        }
        lenses.insert(key, lens.clone());
        lens
    }

    /// Returns the accounts as they are when some documents hold something else; nothing stands for one that is gone.
    pub(crate) fn accounts_with(&self, others: &BTreeMap<Vec<u8>, Document>) -> Accounts {
        let kept = self.documents.iter().filter(|(key, _)| !others.contains_key(*key));
        let kept = kept.map(|(_, document)| &**document);
        Accounts::new(kept.chain(others.values()))
    }

    /// Returns all policies, in the order of their documents.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.documents.values().flat_map(|document| &document.policies)
    }

    /// Returns all closed user groups.
    pub(crate) fn cugs(&self) -> impl Iterator<Item = &Cug> {
        self.documents.values().flat_map(|document| &document.cugs)
    }
}

impl Snapshot {
    /// Returns the paths of the nodes that the index of types lists under a name, whoever looks.
    fn listed_as(&self, name: &str) -> Result<Vec<NodePath>> {
        let reads = self.0.shared.reads();
        let map = Root::read(reads, &self.0.root)?.map(TYPE_MAP);
        let (start, end) = ([name.as_bytes(), &[0]].concat(), [name.as_bytes(), &[1]].concat());
        let range = (Bound::Included(&*start), Bound::Excluded(&*end));
        let paths = map.range(reads, range).map(|entry| {
            let (key, _) = entry?;
            let path = key.get(start.len()..).unwrap_or_default();
            NodePath::new(&String::from_utf8_lossy(path))
        });
        paths.collect()
    }
}

/// Returns the state that a view shows, pending edits left out.
fn stored_in(view: &View) -> Snapshot {
    Snapshot::of_view(View::new(view.shared.clone(), view.root, view.content))
}

/// Returns the path of the document that holds a node.
fn owner_of(snapshot: &Snapshot, path: &NodePath) -> Result<Option<NodePath>> {
    Ok(snapshot.node(path)?.map(|node| node.owner().clone()))
}

/// Locks; what a panic left behind is whole, as values are put in at once.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policies({}, {} documents)", self.id, self.documents.len())
    }
}
