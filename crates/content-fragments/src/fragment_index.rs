//! The fragments of a state in memory, by model, so that a list reads no content to filter and sort.
//!
//! In: a snapshot. Out: a [`FragmentIndex`] with what its viewer sees.
//!
//! Invariants
//! * An index belongs to one state and to one set of rights. Viewers who see a fragment in part have it in part.
//! * The index of a state is built from that of another one by their difference; the first one by the property index
//!   `cqModel`, where it exists.
//! * Indexes of few states, and of few sets of rights for each, are held.
//!
//! Not here: which fragments a list has ([`crate::fragment_list`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use tympan_content::{
    ChunkId, IndexFunction, JCR_CONTENT, KeySpan, NodePath, Property, ScanScope, Snapshot,
    ValueKey, Viewer, split_entry,
};

use crate::fragment_record::{FragmentRecord, VariationRecord};

/// The folder of fragments.
const FRAGMENTS_ROOT: &str = "/content/dam";
/// The place in a fragment of the node that names its model.
const DATA_PATH: &str = "/jcr:content/data";
/// Number of states whose indexes are held: the newest, and those of requests that began earlier.
const MAX_STATES: usize = 4;
/// Number of sets of rights whose indexes are held for each state.
const MAX_VIEWS: usize = 8;

/// The fragments that a viewer sees in a state.
#[derive(Debug, Clone, Default)]
pub struct FragmentIndex {
    /// The fragments by path.
    fragments: BTreeMap<NodePath, Arc<FragmentRecord>>,
    /// The fragments of each model, sorted by path.
    models: BTreeMap<String, Arc<Vec<Arc<FragmentRecord>>>>,
    /// The state as the viewer sees it, for values that are not held.
    snapshot: Option<Snapshot>,
}

impl FragmentIndex {
    /// Returns the fragments of a model, sorted by path.
    #[must_use]
    pub fn fragments_of(&self, model: &str) -> &[Arc<FragmentRecord>] {
        self.models.get(model).map_or(&[], |fragments| fragments)
    }

    /// Finds a fragment by its path.
    #[must_use]
    pub fn fragment_at(&self, path: &str) -> Option<&FragmentRecord> {
        self.fragments.get(path).map(|fragment| &**fragment)
    }

    /// Returns the values of a field. Long ones are read.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn value<'a>(
        &self,
        fragment: &FragmentRecord,
        variation: &'a VariationRecord,
        name: &str,
    ) -> tympan_content::Result<Option<Cow<'a, Property>>> {
        if !variation.has_long_value(name) {
            return Ok(variation.value(name).map(Cow::Borrowed));
        }
        let Some(snapshot) = &self.snapshot else { return Ok(None) };
        let Some(asset) = snapshot.node(&fragment.path)? else { return Ok(None) };
        let node = asset.find_descendant(&format!("jcr:content/data/{}", variation.name))?;
        Ok(node.and_then(|node| node.property(name)).map(Cow::Owned))
    }

    fn replace(&mut self, path: &NodePath, fragment: Option<Arc<FragmentRecord>>) {
        let before = self.fragments.remove(path);
        if let Some(before) = before
            && let Some(fragments) = self.models.get_mut(&before.model)
        {
            let fragments = Arc::make_mut(fragments);
            if let Ok(at) = fragments.binary_search_by(|other| other.path.cmp(path)) {
                fragments.remove(at);
            }
        }
        let Some(fragment) = fragment else { return };
        let fragments = Arc::make_mut(self.models.entry(fragment.model.clone()).or_default());
        // The former state of the fragment is removed above.
        let at = fragments.partition_point(|other| other.path < *path);
        fragments.insert(at, Arc::clone(&fragment));
        self.fragments.insert(path.clone(), fragment);
    }
}

/// The indexes of recent states.
#[derive(Debug, Default)]
pub struct FragmentIndexCache {
    states: Mutex<Vec<Arc<StateIndexes>>>,
    /// Held while an index of a state is built, so that one request builds it.
    build_lock: Mutex<()>,
}

/// The indexes of one state.
#[derive(Debug)]
struct StateIndexes {
    /// The state, as the program itself sees it.
    snapshot: Snapshot,
    all: Arc<FragmentIndex>,
    /// By the fingerprint of the viewer's rights.
    views: Mutex<Vec<(String, Arc<FragmentIndex>)>>,
}

impl FragmentIndexCache {
    /// Returns the index of a snapshot for its viewer.
    ///
    /// # Errors
    /// If the store fails.
    pub fn index_at(&self, snapshot: &Snapshot) -> tympan_content::Result<Arc<FragmentIndex>> {
        let state = self.state_at(snapshot)?;
        if !snapshot.is_restricted() {
            return Ok(Arc::clone(&state.all));
        }
        let Some(rights) = snapshot.access_fingerprint().map(|rights| rights.to_string()) else {
            return visible_index(&state.all, snapshot).map(Arc::new);
        };
        let find = || {
            let views = state.views.lock();
            views.iter().find(|(own, _)| *own == rights).map(|(_, index)| Arc::clone(index))
        };
        if let Some(index) = find() {
            return Ok(index);
        }
        let index = Arc::new(visible_index(&state.all, snapshot)?);
        let mut views = state.views.lock();
        views.insert(0, (rights, Arc::clone(&index)));
        views.truncate(MAX_VIEWS);
        Ok(index)
    }

    fn cached_state(&self, root: ChunkId) -> Option<Arc<StateIndexes>> {
        let states = self.states.lock();
        states.iter().find(|state| state.snapshot.root_id() == root).map(Arc::clone)
    }

    fn state_at(&self, snapshot: &Snapshot) -> tympan_content::Result<Arc<StateIndexes>> {
        let snapshot = snapshot.without_pending_edits();
        if let Some(state) = self.cached_state(snapshot.root_id()) {
            return Ok(state);
        }
        let _turn = self.build_lock.lock();
        if let Some(state) = self.cached_state(snapshot.root_id()) {
            return Ok(state);
        }
        let system = snapshot.as_viewer(&Viewer::system());
        let latest = self.states.lock().first().map(Arc::clone);
        // A state that can no longer be compared, or was not built, does not help.
        let updated = latest.and_then(|latest| updated_index(&latest, &system).ok());
        let all = match updated {
            Some(index) => index,
            None => read_index(&system)?,
        };
        let state = Arc::new(StateIndexes {
            snapshot: system,
            all: Arc::new(all),
            views: Mutex::default(),
        });
        let mut states = self.states.lock();
        states.insert(0, Arc::clone(&state));
        states.truncate(MAX_STATES);
        Ok(state)
    }
}

/// Reads all fragments of a state.
fn read_index(snapshot: &Snapshot) -> tympan_content::Result<FragmentIndex> {
    let mut index = FragmentIndex { snapshot: Some(snapshot.clone()), ..FragmentIndex::default() };
    for path in fragment_paths(snapshot)? {
        let Some(asset) = snapshot.node(&path)? else { continue };
        if let Some(fragment) = FragmentRecord::read(&asset)? {
            let fragment = Arc::new(fragment);
            let of_model = index.models.entry(fragment.model.clone()).or_default();
            Arc::make_mut(of_model).push(Arc::clone(&fragment));
            index.fragments.insert(path, fragment);
        }
    }
    for fragments in index.models.values_mut() {
        Arc::make_mut(fragments).sort_by(|left, right| left.path.cmp(&right.path));
    }
    Ok(index)
}

/// Applies the difference of two states.
fn updated_index(from: &StateIndexes, to: &Snapshot) -> tympan_content::Result<FragmentIndex> {
    let mut index = FragmentIndex::clone(&from.all);
    index.snapshot = Some(to.clone());
    let root = NodePath::new(FRAGMENTS_ROOT)?;
    for path in from.snapshot.changed_paths(to)? {
        if !path.is_within(&root) {
            continue;
        }
        let fragment = match to.node(&path)? {
            Some(asset) => FragmentRecord::read(&asset)?,
            None => None,
        };
        index.replace(&path, fragment.map(Arc::new));
    }
    Ok(index)
}

/// Returns the part of an index that the viewer of a snapshot sees.
fn visible_index(
    all: &FragmentIndex,
    snapshot: &Snapshot,
) -> tympan_content::Result<FragmentIndex> {
    let mut index = FragmentIndex { snapshot: Some(snapshot.clone()), ..FragmentIndex::default() };
    for (path, fragment) in &all.fragments {
        let Some(asset) = snapshot.node(path)? else { continue };
        let fragment = if asset.is_document_visible() {
            Some(Arc::clone(fragment))
        } else {
            FragmentRecord::read(&asset)?.map(Arc::new)
        };
        let Some(fragment) = fragment else { continue };
        let of_model = index.models.entry(fragment.model.clone()).or_default();
        Arc::make_mut(of_model).push(Arc::clone(&fragment));
        index.fragments.insert(path.clone(), fragment);
    }
    Ok(index)
}

/// Returns the paths of the documents that have a model: by the index of `cq:model`, or by reading all assets while it
/// is not built.
fn fragment_paths(snapshot: &Snapshot) -> tympan_content::Result<Vec<NodePath>> {
    let root = NodePath::new(FRAGMENTS_ROOT)?;
    let reader = snapshot.state_reader()?;
    let index = reader.property_indexes().iter().find(|index| {
        index.property() == "cq:model"
            && index.function() == IndexFunction::Value
            && index.indexes_all_nodes()
            && !index.has_value_pattern()
    });
    let mut paths = Vec::new();
    if let Some(map) = index.and_then(|index| reader.property_map(index)) {
        let (start, end): KeySpan = ValueKey::valued_span();
        let range = (Bound::Included(&*start), Bound::Excluded(&*end));
        for key in reader.entry_keys(map, range) {
            let key = key?;
            let path = split_entry(&key).and_then(|(_, path)| path.strip_suffix(DATA_PATH));
            let path = path.and_then(|path| NodePath::new(path).ok());
            paths.extend(path.filter(|path| path.is_within(&root)));
        }
        return Ok(paths);
    }
    for document in reader.scan_documents(&root, ScanScope::Descendants, None)? {
        let document = document?;
        let data =
            document.root_node().child(JCR_CONTENT).and_then(|content| content.child("data"));
        if data.is_some_and(|data| data.text("cq:model").is_some()) {
            paths.extend(NodePath::new(&document.path_text()));
        }
    }
    Ok(paths)
}
