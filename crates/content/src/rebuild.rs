//! What follows a repair of the content map: stand-ins for lost folders and pages, and index maps made again.
//!
//! Invariants
//! * The index maps are those that commits of the same content make, so that equal content has one root.
//! * A document that was saved can be reached: where a folder or page above it is lost, a folder stands in.
//!
//! On failure: a document that does not decode is left out of the indexes, as no look-up could read it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{Batch, ChunkId, ChunkStore, DeriveMaps, Map, RefUpdate, Root, Value as Stored};

use crate::body::Body;
use crate::index::{IndexEdits, LINK, Maps, NAMES, ORDER, empty_link_map};
use crate::order::OrderKey;
use crate::property_index::{self, Definitions, PREFIX, PropertyIndex};
use crate::record::Record;
use crate::repository::{CONTENT, ROOT_TYPE};
use crate::{Error, NodePath, Result, Subtree, keys, siblings};

/// Documents whose entries are written together.
pub(crate) const STEP: usize = 5_000;

/// What stands in for a folder or page that is lost: it keeps the order of its children.
const STAND_IN_TYPE: &str = "sling:OrderedFolder";
const STAND_IN_TITLE: &str = "Lost; a repair has put this folder in its place";

/// Completes repaired states of a store.
#[derive(Clone, Copy)]
pub struct IndexMaps<'a> {
    store: &'a dyn ChunkStore,
}

impl<'a> IndexMaps<'a> {
    /// Writes to this store.
    #[must_use]
    pub fn new(store: &'a dyn ChunkStore) -> Self {
        Self { store }
    }

    pub(crate) fn store(&self) -> &'a dyn ChunkStore {
        self.store
    }

    /// Puts index maps that are made from the content into the state of a ref, which it moves; gives the new root, and
    /// nothing if there is no such ref.
    ///
    /// # Errors
    /// A failed read or write; or the ref moved meanwhile.
    pub fn remake(&self, name: &str, at: SystemTime) -> Result<Option<ChunkId>> {
        let Some(head) = self.store.read_ref(name)? else { return Ok(None) };
        let _hold = self.store.hold()?;
        let mut root = Root::read(self.store, &head)?;
        let content = root.map(CONTENT);
        root.maps.retain(|map, _| !self.is_derived(map));
        root.maps.extend(self.build(content)?);
        root.maps.insert(ORDER.to_owned(), self.build_order(content)?);
        let mut batch = Batch::new();
        let new = root.write(&mut batch)?;
        batch.move_ref(RefUpdate {
            name: name.to_owned(),
            expected: Some(head),
            new: Some(new),
            at,
            author: "system".to_owned(),
            message: "repair: index maps made again".to_owned(),
        });
        self.store.commit(batch)?;
        Ok(Some(new))
    }

    /// Adds the difference of two content maps to the index maps of the first; `None` if that is more than one step.
    fn update(&self, base: &Root, content: Map) -> Result<Option<BTreeMap<String, Map>>> {
        let Some(edits) = self.edits_between(base, content)? else { return Ok(None) };
        let maps = base.maps.iter().filter(|(name, _)| self.is_derived(name));
        let mut maps = maps.map(|(name, map)| (name.clone(), *map)).collect();
        self.write(edits, &mut maps)?;
        Ok(Some(maps))
    }

    /// Returns what the difference of two content maps changes in the index maps of the first; `None` if that is more
    /// than one step, or if these lack a map.
    pub(crate) fn edits_between(&self, base: &Root, content: Map) -> Result<Option<IndexEdits>> {
        let definitions = Definitions::stored(content, self.store)?;
        let has_all = definitions.0.iter().all(|index| base.maps.contains_key(&index.map));
        if !has_all || self.definitions_differ(base.map(CONTENT), content)? {
            return Ok(None);
        }
        let mut edits = IndexEdits::new(Maps::All, definitions);
        for (number, change) in base.map(CONTENT).diff(&content, self.store).enumerate() {
            let change = change?;
            if number >= STEP {
                return Ok(None);
            }
            self.note(&mut edits, &change.key, change.left.as_ref(), change.right.as_ref())?;
        }
        Ok(Some(edits))
    }

    /// Makes the index maps from nothing. A unique index that the content does not allow is left out.
    fn build(&self, content: Map) -> Result<BTreeMap<String, Map>> {
        let mut definitions = Definitions::stored(content, self.store)?;
        loop {
            match self.build_defined(content, &definitions) {
                Err(Error::NotUnique { property, path, other }) => {
                    tracing::warn!(property, path = %path, other = ?other, "a unique index cannot be made");
                    let is_left = |one: &&Arc<_>| !is_unique_of(one, &property);
                    definitions = Arc::new(Definitions(
                        definitions.0.iter().filter(is_left).cloned().collect(),
                    ));
                }
                built => return built,
            }
        }
    }

    fn build_defined(
        &self,
        content: Map,
        definitions: &Arc<Definitions>,
    ) -> Result<BTreeMap<String, Map>> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let begin = || IndexEdits::new(Maps::All, definitions.clone());
        let mut batch = Batch::new();
        let mut maps = property_index::empty_maps(definitions, &mut batch)?;
        maps.insert(LINK.to_owned(), empty_link_map(&mut batch)?);
        self.store.commit(batch)?;
        let mut edits = begin();
        for (number, record) in content.range(self.store, all).enumerate() {
            let (key, stored) = record?;
            self.note(&mut edits, &key, None, Some(&stored))?;
            if number % STEP == STEP - 1 {
                self.write(std::mem::replace(&mut edits, begin()), &mut maps)?;
            }
        }
        self.write(edits, &mut maps)?;
        Ok(maps)
    }

    fn definitions_differ(&self, left: Map, right: Map) -> Result<bool> {
        let (left, right) =
            (Definitions::stored(left, self.store)?, Definitions::stored(right, self.store)?);
        Ok(left.maps() != right.maps())
    }

    /// Makes the map of order keys, which is whole or not there.
    fn build_order(&self, content: Map) -> Result<Map> {
        let mut batch = Batch::new();
        let order = siblings::build(self.store, &mut batch, content)?;
        self.store.commit(batch)?;
        Ok(order)
    }

    /// Puts a folder where a document lacks the one above it. Only what differs from `base` is looked at.
    fn stand_in(&self, base: &Root, content: Map) -> Result<Map> {
        let mut missing = BTreeMap::new();
        let mut last = None;
        for change in base.map(CONTENT).diff(&content, self.store) {
            let change = change?;
            let Ok(path) = keys::path_of(&change.key) else { continue };
            let below = match (&change.right, path.parent()) {
                (Some(_), parent) if parent == last => None,
                (Some(_), parent) => {
                    last.clone_from(&parent);
                    parent
                }
                (None, _) => {
                    let children = keys::children_of(&path)?;
                    let mut children = content.range(self.store, children.bounds());
                    children.next().transpose()?.map(|_| path)
                }
            };
            let mut at = below;
            while let Some(path) = at.take() {
                let key = keys::key_of(&path)?;
                if content.get(self.store, &key)?.is_none() {
                    at = path.parent();
                    missing.insert(key, path);
                }
            }
        }
        if missing.is_empty() {
            return Ok(content);
        }
        let mut batch = Batch::new();
        let mut edits = BTreeMap::new();
        for (key, path) in missing {
            tracing::warn!(path = %path, "a folder stands in for a document that is lost");
            let kind = if path.is_root() { ROOT_TYPE } else { STAND_IN_TYPE };
            let tree = Subtree::new(path.name(), kind).with("jcr:title", STAND_IN_TITLE);
            let record = Record::of(&tree, OrderKey::default());
            edits.insert(key, record.map(|record| record.encode(&mut batch)).transpose()?);
        }
        let content = content.edit(self.store, &mut batch, edits)?;
        self.store.commit(batch)?;
        Ok(content)
    }

    fn write(&self, edits: IndexEdits, maps: &mut BTreeMap<String, Map>) -> Result<()> {
        let mut batch = Batch::new();
        edits.apply(maps, self.store, &mut batch)?;
        Ok(self.store.commit(batch)?)
    }

    pub(crate) fn note(
        &self,
        edits: &mut IndexEdits,
        key: &[u8],
        old: Option<&Stored>,
        new: Option<&Stored>,
    ) -> Result<()> {
        let Ok(path) = keys::path_of(key) else { return Ok(()) };
        let old = old.map(|stored| self.read(&path, stored)).transpose()?.flatten();
        let new = new.map(|stored| self.read(&path, stored)).transpose()?.flatten();
        let old = old.as_ref().map(|(record, body)| (record, &**body));
        let new = new.as_ref().map(|(record, body)| (record, &**body));
        edits.change(&path, old, new);
        Ok(())
    }

    /// Reads a document; `None` if its bytes make no sense.
    fn read(&self, path: &NodePath, stored: &Stored) -> Result<Option<(Record, Arc<Body>)>> {
        let Some(record) = Record::decode(stored) else {
            tracing::error!(path = %path, "a record that does not decode is left out of the indexes");
            return Ok(None);
        };
        let Some(body) = record.read_body(self.store)? else {
            tracing::error!(path = %path, "a body that does not decode is left out of the indexes");
            return Ok(None);
        };
        Ok(Some((record, body)))
    }
}

fn is_unique_of(index: &PropertyIndex, property: &str) -> bool {
    index.unique && index.property == property
}

impl DeriveMaps for IndexMaps<'_> {
    type Error = Error;

    fn is_derived(&self, map: &str) -> bool {
        NAMES.contains(&map) || map.starts_with(PREFIX)
    }

    fn derive(&self, base: &Root, root: &mut Root) -> Result<()> {
        let content = self.stand_in(base, root.map(CONTENT))?;
        root.maps.insert(CONTENT.to_owned(), content);
        let mut maps = match self.update(base, content)? {
            Some(maps) => maps,
            None => self.build(content)?,
        };
        if !maps.contains_key(ORDER) {
            maps.insert(ORDER.to_owned(), self.build_order(content)?);
        }
        root.maps.extend(maps);
        Ok(())
    }
}

impl std::fmt::Debug for IndexMaps<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IndexMaps")
    }
}
