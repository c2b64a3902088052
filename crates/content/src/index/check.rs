//! Verifies the index maps of stored states against their content.
//!
//! In: the branches of a store. Out: for each index map that differs, an [`IndexFault`] with the first path at which it
//! does.
//!
//! Invariants
//! * Nothing is written: each entry that the content produces is looked up, and entries are counted.
//! * The cost of a state that differs little from a verified one is proportional to the difference, because equal
//!   entries have one root.
//! * An absent property index is no fault: it is still to be built, and queries work without it.
//!
//! Not here: building index maps (`index::rebuild`), and verifying chunks against their ids (`store::check`).

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use tympan_store::{ChunkBatch, ChunkStore, MapValue, SortedMap, StoreRoot};

use crate::branch::branch_ref::{BASE_REF_PREFIX, REPLACED_REF_PREFIX};
use crate::document::record_key::CONTENT_MAP;
use crate::index::property_index::{IndexDefinitions, MAP_NAME_PREFIX, presence_value};
use crate::index::rebuild::{IndexMapRebuilder, REBUILD_BATCH_SIZE};
use crate::index::{
    INDEX_MAP_NAMES, IndexEdits, IndexEntries, IndexMapSelection, ORDER_MAP, must_be_complete,
};
use crate::model::value_key::split_entry;
use crate::{NodePath, Result, document::record_key};

/// An index map that differs from the one that the content produces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFault {
    /// The ref of the affected state.
    pub ref_name: String,
    /// The index: one of the fixed maps, or the name of a definition with its property.
    pub index_name: String,
    /// The first path at which it differs.
    pub path: NodePath,
    /// Number of missing entries.
    pub missing_entries: u64,
    /// Number of entries without a source in the content.
    pub surplus_entries: u64,
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ref_name, index_name, path, missing_entries, surplus_entries } = self;
        write!(
            f,
            "{ref_name}: index `{index_name}` differs from the content, first at `{path}`: {missing_entries} entries missing, {surplus_entries} too many"
        )
    }
}

/// A state under verification, and the findings about its index maps.
struct IndexAudit<'a> {
    store: &'a dyn ChunkStore,
    root: StoreRoot,
    definitions: Arc<IndexDefinitions>,
    counts_by_map: BTreeMap<String, IndexAuditCounts>,
}

/// The counts for one map.
#[derive(Default)]
struct IndexAuditCounts {
    present: u64,
    missing: u64,
    first_missing_path: Option<NodePath>,
}

impl IndexMapRebuilder<'_> {
    /// Verifies the index maps of all branches against their content; returns the first difference of each map.
    ///
    /// # Errors
    /// If a read fails; the store must be intact.
    pub fn find_faults(&self) -> Result<Vec<IndexFault>> {
        let mut faults = Vec::new();
        let mut good: Vec<StoreRoot> = Vec::new();
        for (name, root) in self.store().list_refs()? {
            // Base states of branches and states retained for rollback are not queried.
            if name.starts_with(BASE_REF_PREFIX) || name.starts_with(REPLACED_REF_PREFIX) {
                continue;
            }
            let root = StoreRoot::read(self.store(), &root)?;
            if !root.maps.contains_key(CONTENT_MAP) || self.is_consistent_with(&root, &good)? {
                continue;
            }
            let index_faults =
                IndexAudit::scan_content(self.store(), root.clone())?.index_faults(&name)?;
            if index_faults.is_empty() {
                good.push(root);
            }
            faults.extend(index_faults);
        }
        Ok(faults)
    }

    /// Returns true if the maps of a state equal those derived from a verified state and the difference to it.
    fn is_consistent_with(&self, root: &StoreRoot, good: &[StoreRoot]) -> Result<bool> {
        for base in good {
            let maps = self.derived_index_maps(base, root)?;
            let is_same = maps.is_some_and(|maps| {
                maps.iter().all(|(name, map)| root.maps.get(name) == Some(map))
                    && root.maps.keys().all(|name| !is_index_map(name) || maps.contains_key(name))
            });
            if is_same {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the index maps of `base` updated to the content of `root`; nothing is written to the store.
    fn derived_index_maps(
        &self,
        base: &StoreRoot,
        root: &StoreRoot,
    ) -> Result<Option<BTreeMap<String, SortedMap>>> {
        let content = root.map(CONTENT_MAP);
        let Some(edits) = self.index_edits_between(base, content)? else { return Ok(None) };
        let maps = base.maps.iter().filter(|(name, _)| is_index_map(name));
        let mut maps = maps.map(|(name, map)| (name.clone(), *map)).collect();
        edits.apply(&mut maps, self.store(), &mut ChunkBatch::new())?;
        Ok(Some(maps))
    }
}

fn is_index_map(map: &str) -> bool {
    INDEX_MAP_NAMES.contains(&map) || map.starts_with(MAP_NAME_PREFIX)
}

impl<'a> IndexAudit<'a> {
    /// Looks up every index entry that the content of a state produces.
    fn scan_content(store: &'a dyn ChunkStore, root: StoreRoot) -> Result<Self> {
        let content = root.map(CONTENT_MAP);
        let definitions = IndexDefinitions::read_stored(content, store)?;
        let mut survey = Self { store, root, definitions, counts_by_map: BTreeMap::new() };
        let maps = IndexMapRebuilder::new(store);
        let mut edits = survey.empty_edits();
        let all = (Bound::Unbounded, Bound::Unbounded);
        for (number, record) in content.range(store, all).enumerate() {
            let (key, stored) = record?;
            maps.add_record_edits(&mut edits, &key, None, Some(&stored))?;
            if number % REBUILD_BATCH_SIZE == REBUILD_BATCH_SIZE - 1 {
                let part = std::mem::replace(&mut edits, survey.empty_edits());
                survey.check_entries(&part)?;
            }
        }
        survey.check_entries(&edits)?;
        Ok(survey)
    }

    fn empty_edits(&self) -> IndexEdits {
        IndexEdits::new(IndexMapSelection::All, self.definitions.clone())
    }

    fn check_entries(&mut self, edits: &IndexEdits) -> Result<()> {
        for (index, keys) in edits.added_entries() {
            let map = self.root.maps.get(index).copied();
            if map.is_none() && must_be_complete(index) {
                continue;
            }
            let map = map.unwrap_or_default();
            let counts = self.counts_by_map.entry(index.to_owned()).or_default();
            let mut entries = AscendingLookup::new(self.store, map);
            for key in keys {
                if entries.contains(key)? {
                    counts.present += 1;
                } else {
                    counts.missing += 1;
                    counts.first_missing_path = counts
                        .first_missing_path
                        .take()
                        .or_else(|| entry_path(index, key, &self.definitions));
                }
            }
        }
        Ok(())
    }

    /// Checks that each map has the entries that the content produces, and no others.
    fn index_faults(&self, name: &str) -> Result<Vec<IndexFault>> {
        let mut faults = Vec::new();
        let defined = self.definitions.0.iter().map(|index| &*index.map_name);
        for index in INDEX_MAP_NAMES.into_iter().chain(defined) {
            let map = self.root.maps.get(index).copied().unwrap_or_default();
            let IndexAuditCounts { present, missing, first_missing_path } = self
                .counts_by_map
                .get(index)
                .unwrap_or(&IndexAuditCounts { present: 0, missing: 0, first_missing_path: None });
            let has_mark = map.get(self.store, &[])?.is_some();
            let entries = map.count_records(self.store)?.saturating_sub(u64::from(has_mark));
            let surplus = entries.saturating_sub(*present);
            if *missing == 0 && surplus == 0 {
                continue;
            }
            let path = match first_missing_path {
                Some(path) => path.clone(),
                None => self.first_surplus_path(index, map)?,
            };
            let index = self.display_name(index);
            let (name, missing) = (name.to_owned(), *missing);
            faults.push(IndexFault {
                ref_name: name,
                index_name: index,
                path,
                missing_entries: missing,
                surplus_entries: surplus,
            });
        }
        Ok(faults)
    }

    /// Returns the display name of a map.
    fn display_name(&self, map: &str) -> String {
        let index = self.definitions.0.iter().find(|index| index.map_name == map);
        index.map_or_else(
            || map.to_owned(),
            |index| format!("{} [{}]", index.name, index.expression()),
        )
    }

    /// Finds the first entry of a map that its document does not produce.
    fn first_surplus_path(&self, index: &str, map: SortedMap) -> Result<NodePath> {
        let mut last: Option<(NodePath, IndexEntries)> = None;
        for entry in map.range(self.store, (Bound::Excluded(&[][..]), Bound::Unbounded)) {
            let (key, _) = entry?;
            let Some(path) = entry_path(index, &key, &self.definitions) else {
                return Ok(NodePath::root());
            };
            let Some(document) = self.document_path_of(index, &path)? else { return Ok(path) };
            if last.as_ref().is_none_or(|(last_document, _)| *last_document != document) {
                let stored = self
                    .root
                    .map(CONTENT_MAP)
                    .get(self.store, &record_key::record_key(&document)?)?;
                let mut edits = self.empty_edits();
                let maps = IndexMapRebuilder::new(self.store);
                maps.add_record_edits(
                    &mut edits,
                    &record_key::record_key(&document)?,
                    None,
                    stored.as_ref(),
                )?;
                let entries = edits.added_entries().flat_map(|(index, keys)| {
                    keys.map(|key| (index.to_owned(), key.to_vec())).collect::<Vec<_>>()
                });
                last = Some((document, entries.collect()));
            }
            let is_made = last
                .as_ref()
                .is_some_and(|(_, entries)| entries.contains(&(index.to_owned(), key.to_vec())));
            if !is_made {
                return Ok(path);
            }
        }
        Ok(NodePath::root())
    }

    /// Returns the document that produces, or would produce, the entries of a node.
    fn document_path_of(&self, index: &str, path: &NodePath) -> Result<Option<NodePath>> {
        let definition =
            self.definitions.0.iter().find(|index_definition| index_definition.map_name == index);
        let parents = definition.map_or("", |index_definition| &*index_definition.property_parent);
        let owner = if parents.is_empty() { path.clone() } else { path.resolve(parents)? };
        for above in std::iter::successors(Some(owner), NodePath::parent) {
            if self
                .root
                .map(CONTENT_MAP)
                .get(self.store, &record_key::record_key(&above)?)?
                .is_some()
            {
                return Ok(Some(above));
            }
        }
        Ok(None)
    }
}

/// Look-ups in a map in ascending order of keys.
struct AscendingLookup<'a> {
    store: &'a dyn ChunkStore,
    map: SortedMap,
    /// The entries after the last position.
    remaining: Peekable<MapRangeScan<'a>>,
}

/// An iterator over a range of a map.
type MapRangeScan<'a> = Box<dyn Iterator<Item = tympan_store::Result<(Bytes, MapValue)>> + 'a>;

impl<'a> AscendingLookup<'a> {
    /// Maximum number of entries skipped before a key is looked up from the root again.
    const MAX_SCANNED_ENTRIES: usize = 8;

    fn new(store: &'a dyn ChunkStore, map: SortedMap) -> Self {
        let nothing: MapRangeScan<'a> = Box::new(std::iter::empty());
        Self { store, map, remaining: nothing.peekable() }
    }

    /// Returns true if a key after the last one exists with the value of index entries. Entries of consecutive
    /// documents are mostly adjacent, too.
    fn contains(&mut self, key: &[u8]) -> Result<bool> {
        let is_before = |entry: &tympan_store::Result<(Bytes, MapValue)>| {
            entry.as_ref().is_ok_and(|(entry_key, _)| **entry_key < *key)
        };
        let mut steps = 0;
        while steps < Self::MAX_SCANNED_ENTRIES && self.remaining.next_if(is_before).is_some() {
            steps += 1;
        }
        if self.remaining.peek().is_none_or(is_before) {
            let range = (Bound::Included(key), Bound::Unbounded);
            let entries: MapRangeScan<'a> = Box::new(self.map.range(self.store, range));
            self.remaining = entries.peekable();
        }
        let is_it = |entry: &tympan_store::Result<(Bytes, MapValue)>| {
            entry.as_ref().map_or(true, |(entry_key, _)| **entry_key == *key)
        };
        match self.remaining.next_if(is_it).transpose()? {
            Some((_, value)) => Ok(value == presence_value()),
            None => Ok(false),
        }
    }
}

/// Returns the node path in an entry of an index map.
fn entry_path(index: &str, key: &[u8], definitions: &IndexDefinitions) -> Option<NodePath> {
    if definitions.0.iter().any(|definition| definition.map_name == index) {
        return NodePath::new(split_entry(key)?.1).ok();
    }
    let text = |bytes: &[u8]| NodePath::new(std::str::from_utf8(bytes).ok()?).ok();
    match index {
        ORDER_MAP => {
            let parent = key.iter().position(|byte| *byte == 0)? + 1;
            let name = key.iter().rposition(|byte| *byte == 0)? + 1;
            record_key::record_path(&[key.get(..parent)?, key.get(name..)?].concat()).ok()
        }
        // The time has eight bytes.
        "modified" => text(key.get(9..)?),
        _ => text(key.split(|byte| *byte == 0).nth(1)?),
    }
}
