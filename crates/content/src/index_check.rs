//! Comparing the index maps of stored states with those that their content makes.
//!
//! In: the branches of a store. Out: for each index map that differs, an [`IndexFault`] with the first path at which it does.
//!
//! Invariants
//! * Nothing is written: each entry that the content makes is looked up, and entries are counted.
//! * A state that differs little from one that was found in order costs in proportion to the difference, as equal
//!   entries have one root.
//! * A property index that is absent is no fault: it waits to be built, and queries do without it.
//!
//! Not here: making index maps (`rebuild`), and whether chunks are what their ids say (`store::check`).

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use tympan_store::{Batch, ChunkStore, Map, Root, Value};

use crate::index::{Entries, IndexEdits, Maps, NAMES, ORDER, is_whole_or_absent, present};
use crate::property_index::{Definitions, PREFIX};
use crate::rebuild::{IndexMaps, STEP};
use crate::repository::CONTENT;
use crate::value_key::split_entry;
use crate::{NodePath, Result, branch, keys, package};

/// An index map that is not what the content makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFault {
    /// The ref whose state has it.
    pub name: String,
    /// The index: one of the fixed maps, or the name of a definition with its property.
    pub index: String,
    /// The first path at which it differs.
    pub path: NodePath,
    /// Entries that are not there.
    pub missing: u64,
    /// Entries that nothing in the content makes.
    pub surplus: u64,
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, index, path, missing, surplus } = self;
        write!(
            f,
            "{name}: index `{index}` differs from the content, first at `{path}`: {missing} entries missing, {surplus} too many"
        )
    }
}

/// A state, and what is known of its index maps.
struct Survey<'a> {
    store: &'a dyn ChunkStore,
    root: Root,
    definitions: Arc<Definitions>,
    tallies: BTreeMap<String, Tally>,
}

/// What was found of one map.
#[derive(Default)]
struct Tally {
    found: u64,
    missing: u64,
    first: Option<NodePath>,
}

impl IndexMaps<'_> {
    /// Compares the index maps of all branches with those that their content makes; gives the first difference of each map.
    ///
    /// # Errors
    /// A failed read: the store has to be in order.
    pub fn compare(&self) -> Result<Vec<IndexFault>> {
        let mut faults = Vec::new();
        let mut good: Vec<Root> = Vec::new();
        for (name, root) in self.store().refs()? {
            // States that are kept to be gone back to are asked for nothing.
            if name.starts_with(branch::BASE) || name.starts_with(package::REPLACED) {
                continue;
            }
            let root = Root::read(self.store(), &root)?;
            if !root.maps.contains_key(CONTENT) || self.follows(&root, &good)? {
                continue;
            }
            let found = Survey::of(self.store(), root.clone())?.faults(&name)?;
            if found.is_empty() {
                good.push(root);
            }
            faults.extend(found);
        }
        Ok(faults)
    }

    /// Tells whether a state has the maps that the difference to one of those that are in order makes.
    fn follows(&self, root: &Root, good: &[Root]) -> Result<bool> {
        for base in good {
            let maps = self.staged_update(base, root)?;
            let is_same = maps.is_some_and(|maps| {
                maps.iter().all(|(name, map)| root.maps.get(name) == Some(map))
                    && root.maps.keys().all(|name| !is_index(name) || maps.contains_key(name))
            });
            if is_same {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the index maps of `base` with the difference to the content of `root`; nothing is kept in the store.
    fn staged_update(&self, base: &Root, root: &Root) -> Result<Option<BTreeMap<String, Map>>> {
        let content = root.map(CONTENT);
        let Some(edits) = self.edits_between(base, content)? else { return Ok(None) };
        let maps = base.maps.iter().filter(|(name, _)| is_index(name));
        let mut maps = maps.map(|(name, map)| (name.clone(), *map)).collect();
        edits.apply(&mut maps, self.store(), &mut Batch::new())?;
        Ok(Some(maps))
    }
}

fn is_index(map: &str) -> bool {
    NAMES.contains(&map) || map.starts_with(PREFIX)
}

impl<'a> Survey<'a> {
    /// Looks for every entry that the content of a state makes.
    fn of(store: &'a dyn ChunkStore, root: Root) -> Result<Self> {
        let content = root.map(CONTENT);
        let definitions = Definitions::stored(content, store)?;
        let mut survey = Self { store, root, definitions, tallies: BTreeMap::new() };
        let maps = IndexMaps::new(store);
        let mut edits = survey.no_edits();
        let all = (Bound::Unbounded, Bound::Unbounded);
        for (number, record) in content.range(store, all).enumerate() {
            let (key, stored) = record?;
            maps.note(&mut edits, &key, None, Some(&stored))?;
            if number % STEP == STEP - 1 {
                let part = std::mem::replace(&mut edits, survey.no_edits());
                survey.look_for(&part)?;
            }
        }
        survey.look_for(&edits)?;
        Ok(survey)
    }

    fn no_edits(&self) -> IndexEdits {
        IndexEdits::new(Maps::All, self.definitions.clone())
    }

    fn look_for(&mut self, edits: &IndexEdits) -> Result<()> {
        for (index, keys) in edits.added() {
            let map = self.root.maps.get(index).copied();
            if map.is_none() && is_whole_or_absent(index) {
                continue;
            }
            let map = map.unwrap_or_default();
            let tally = self.tallies.entry(index.to_owned()).or_default();
            let mut entries = Ascending::of(self.store, map);
            for key in keys {
                if entries.has(key)? {
                    tally.found += 1;
                } else {
                    tally.missing += 1;
                    tally.first =
                        tally.first.take().or_else(|| path_in(index, key, &self.definitions));
                }
            }
        }
        Ok(())
    }

    /// Says of each map whether it has what the content makes, and no more.
    fn faults(&self, name: &str) -> Result<Vec<IndexFault>> {
        let mut faults = Vec::new();
        let defined = self.definitions.0.iter().map(|index| &*index.map);
        for index in NAMES.into_iter().chain(defined) {
            let map = self.root.maps.get(index).copied().unwrap_or_default();
            let Tally { found, missing, first } =
                self.tallies.get(index).unwrap_or(&Tally { found: 0, missing: 0, first: None });
            let has_mark = map.get(self.store, &[])?.is_some();
            let entries = map.count(self.store)?.saturating_sub(u64::from(has_mark));
            let surplus = entries.saturating_sub(*found);
            if *missing == 0 && surplus == 0 {
                continue;
            }
            let path = match first {
                Some(path) => path.clone(),
                None => self.first_surplus(index, map)?,
            };
            let index = self.label(index);
            let (name, missing) = (name.to_owned(), *missing);
            faults.push(IndexFault { name, index, path, missing, surplus });
        }
        Ok(faults)
    }

    /// Returns the name that people know a map by.
    fn label(&self, map: &str) -> String {
        let index = self.definitions.0.iter().find(|index| index.map == map);
        index.map_or_else(|| map.to_owned(), |index| format!("{} [{}]", index.name, index.what()))
    }

    /// Finds the first entry of a map that its document does not make.
    fn first_surplus(&self, index: &str, map: Map) -> Result<NodePath> {
        let mut last: Option<(NodePath, Entries)> = None;
        for entry in map.range(self.store, (Bound::Excluded(&[][..]), Bound::Unbounded)) {
            let (key, _) = entry?;
            let Some(path) = path_in(index, &key, &self.definitions) else {
                return Ok(NodePath::root());
            };
            let Some(document) = self.document_of(index, &path)? else { return Ok(path) };
            if last.as_ref().is_none_or(|(known, _)| *known != document) {
                let stored = self.root.map(CONTENT).get(self.store, &keys::key_of(&document)?)?;
                let mut edits = self.no_edits();
                let maps = IndexMaps::new(self.store);
                maps.note(&mut edits, &keys::key_of(&document)?, None, stored.as_ref())?;
                let entries = edits.added().flat_map(|(index, keys)| {
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

    /// Returns the document that makes the entries about a node, or would.
    fn document_of(&self, index: &str, path: &NodePath) -> Result<Option<NodePath>> {
        let definition = self.definitions.0.iter().find(|one| one.map == index);
        let parents = definition.map_or("", |one| &*one.parents);
        let owner = if parents.is_empty() { path.clone() } else { path.resolve(parents)? };
        for above in std::iter::successors(Some(owner), NodePath::parent) {
            if self.root.map(CONTENT).get(self.store, &keys::key_of(&above)?)?.is_some() {
                return Ok(Some(above));
            }
        }
        Ok(None)
    }
}

/// Entries of a map, looked for in the order of their keys.
struct Ascending<'a> {
    store: &'a dyn ChunkStore,
    map: Map,
    /// What follows the last place that was looked at.
    rest: Peekable<Scan<'a>>,
}

/// What a range of a map gives.
type Scan<'a> = Box<dyn Iterator<Item = tympan_store::Result<(Bytes, Value)>> + 'a>;

impl<'a> Ascending<'a> {
    /// Entries that are passed over before a key is looked up from the root again.
    const STEPS: usize = 8;

    fn of(store: &'a dyn ChunkStore, map: Map) -> Self {
        let nothing: Scan<'a> = Box::new(std::iter::empty());
        Self { store, map, rest: nothing.peekable() }
    }

    /// Tells whether a key behind the last one is there, with the value that index entries have. Those of documents
    /// that follow each other mostly do so, too.
    fn has(&mut self, key: &[u8]) -> Result<bool> {
        let is_before = |entry: &tympan_store::Result<(Bytes, Value)>| {
            entry.as_ref().is_ok_and(|(found, _)| **found < *key)
        };
        let mut steps = 0;
        while steps < Self::STEPS && self.rest.next_if(is_before).is_some() {
            steps += 1;
        }
        if self.rest.peek().is_none_or(is_before) {
            let range = (Bound::Included(key), Bound::Unbounded);
            let entries: Scan<'a> = Box::new(self.map.range(self.store, range));
            self.rest = entries.peekable();
        }
        let is_it = |entry: &tympan_store::Result<(Bytes, Value)>| {
            entry.as_ref().map_or(true, |(found, _)| **found == *key)
        };
        match self.rest.next_if(is_it).transpose()? {
            Some((_, value)) => Ok(value == present()),
            None => Ok(false),
        }
    }
}

/// Returns the node path in an entry of an index map.
fn path_in(index: &str, key: &[u8], definitions: &Definitions) -> Option<NodePath> {
    if definitions.0.iter().any(|one| one.map == index) {
        return NodePath::new(split_entry(key)?.1).ok();
    }
    let text = |bytes: &[u8]| NodePath::new(std::str::from_utf8(bytes).ok()?).ok();
    match index {
        ORDER => {
            let parent = key.iter().position(|byte| *byte == 0)? + 1;
            let name = key.iter().rposition(|byte| *byte == 0)? + 1;
            keys::path_of(&[key.get(..parent)?, key.get(name..)?].concat()).ok()
        }
        // A moment has eight bytes.
        "modified" => text(key.get(9..)?),
        _ => text(key.split(|byte| *byte == 0).nth(1)?),
    }
}
