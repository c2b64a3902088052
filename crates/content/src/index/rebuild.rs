//! Completes a repaired content map: adds placeholders for lost folders and pages, and rebuilds index maps.
//!
//! Invariants
//! * The index maps equal those that commits of the same content produce, so that equal content has one root.
//! * Every rescued document is reachable: a placeholder folder replaces a lost folder or page above it.
//!
//! On failure: a document that does not decode is left out of the indexes, because no look-up could read it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{
    ChunkBatch, ChunkId, ChunkStore, DeriveMaps, MapValue, RefUpdate, SortedMap, StoreRoot,
};

use crate::document::body::DocumentBody;
use crate::document::record::ContentRecord;
use crate::document::record_key::{CONTENT_MAP, ORDER_MAP};
use crate::index::property_index::{self, IndexDefinitions, MAP_NAME_PREFIX, PropertyIndex};
use crate::index::{
    INDEX_MAP_NAMES, IndexEdits, IndexMapSelection, LINK_MAP, create_empty_link_map,
};
use crate::model::order_key::OrderKey;
use crate::model::subtree::ROOT_NODE_TYPE;
use crate::{Error, NodePath, Result, Subtree, document::record_key, document::sibling};

/// Number of documents whose entries are written together.
pub(crate) const REBUILD_BATCH_SIZE: usize = 5_000;

/// The type of the placeholder for a lost folder or page; it retains the order of children.
const PLACEHOLDER_TYPE: &str = "sling:OrderedFolder";
const PLACEHOLDER_TITLE: &str = "Lost: a repair replaced the document with this folder";

/// Completes repaired states of a store.
#[derive(Clone, Copy)]
pub struct IndexMapRebuilder<'a> {
    store: &'a dyn ChunkStore,
}

impl<'a> IndexMapRebuilder<'a> {
    /// Creates a rebuilder that writes to this store.
    #[must_use]
    pub fn new(store: &'a dyn ChunkStore) -> Self {
        Self { store }
    }

    pub(crate) fn store(&self) -> &'a dyn ChunkStore {
        self.store
    }

    /// Replaces the index maps in the state of a ref by maps built from the content, and moves the ref. Returns the new
    /// root; `None` if there is no such ref.
    ///
    /// # Errors
    /// If a read or write fails, or the ref moved concurrently.
    pub fn rebuild_ref(&self, name: &str, at: SystemTime) -> Result<Option<ChunkId>> {
        let Some(head) = self.store.read_ref(name)? else { return Ok(None) };
        let _hold = self.store.begin_hold()?;
        let mut root = StoreRoot::read(self.store, &head)?;
        let content = root.map(CONTENT_MAP);
        root.maps.retain(|map, _| !self.is_derived(map));
        root.maps.extend(self.build_maps(content)?);
        root.maps.insert(ORDER_MAP.to_owned(), self.build_order_map(content)?);
        let mut batch = ChunkBatch::new();
        let new = root.write(&mut batch)?;
        batch.add_ref_update(RefUpdate {
            name: name.to_owned(),
            expected_root: Some(head),
            new_root: Some(new),
            updated_at: at,
            author: "system".to_owned(),
            message: "repair: rebuild index maps".to_owned(),
        });
        self.store.commit(batch)?;
        Ok(Some(new))
    }

    /// Applies the difference of two content maps to the index maps of the first; `None` if it exceeds one step.
    fn update_maps(
        &self,
        base: &StoreRoot,
        content: SortedMap,
    ) -> Result<Option<BTreeMap<String, SortedMap>>> {
        let Some(edits) = self.index_edits_between(base, content)? else { return Ok(None) };
        let maps = base.maps.iter().filter(|(name, _)| self.is_derived(name));
        let mut maps = maps.map(|(name, map)| (name.clone(), *map)).collect();
        self.write_edits(edits, &mut maps)?;
        Ok(Some(maps))
    }

    /// Returns the index edits for the difference of two content maps; `None` if they exceed one step, or if the first
    /// state lacks a map.
    pub(crate) fn index_edits_between(
        &self,
        base: &StoreRoot,
        content: SortedMap,
    ) -> Result<Option<IndexEdits>> {
        let definitions = IndexDefinitions::read_stored(content, self.store)?;
        let has_all = definitions.0.iter().all(|index| base.maps.contains_key(&index.map_name));
        if !has_all || self.definitions_differ(base.map(CONTENT_MAP), content)? {
            return Ok(None);
        }
        let mut edits = IndexEdits::new(IndexMapSelection::All, definitions);
        for (number, change) in base.map(CONTENT_MAP).diff(&content, self.store).enumerate() {
            let change = change?;
            if number >= REBUILD_BATCH_SIZE {
                return Ok(None);
            }
            self.add_record_edits(
                &mut edits,
                &change.key,
                change.left.as_ref(),
                change.right.as_ref(),
            )?;
        }
        Ok(Some(edits))
    }

    /// Builds the index maps from scratch. A unique index that the content does not allow is left out.
    fn build_maps(&self, content: SortedMap) -> Result<BTreeMap<String, SortedMap>> {
        let mut definitions = IndexDefinitions::read_stored(content, self.store)?;
        loop {
            match self.build_defined_maps(content, &definitions) {
                Err(Error::NotUnique { property, path, existing_path }) => {
                    tracing::warn!(property, path = %path, other = ?existing_path, "cannot build a unique index");
                    let is_left = |index: &&Arc<_>| !is_unique_index_of(index, &property);
                    definitions = Arc::new(IndexDefinitions(
                        definitions.0.iter().filter(is_left).cloned().collect(),
                    ));
                }
                built => return built,
            }
        }
    }

    fn build_defined_maps(
        &self,
        content: SortedMap,
        definitions: &Arc<IndexDefinitions>,
    ) -> Result<BTreeMap<String, SortedMap>> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let begin = || IndexEdits::new(IndexMapSelection::All, definitions.clone());
        let mut batch = ChunkBatch::new();
        let mut maps = property_index::create_empty_maps(definitions, &mut batch)?;
        maps.insert(LINK_MAP.to_owned(), create_empty_link_map(&mut batch)?);
        self.store.commit(batch)?;
        let mut edits = begin();
        for (number, record) in content.range(self.store, all).enumerate() {
            let (key, stored) = record?;
            self.add_record_edits(&mut edits, &key, None, Some(&stored))?;
            if number % REBUILD_BATCH_SIZE == REBUILD_BATCH_SIZE - 1 {
                self.write_edits(std::mem::replace(&mut edits, begin()), &mut maps)?;
            }
        }
        self.write_edits(edits, &mut maps)?;
        Ok(maps)
    }

    fn definitions_differ(&self, left: SortedMap, right: SortedMap) -> Result<bool> {
        let (left, right) = (
            IndexDefinitions::read_stored(left, self.store)?,
            IndexDefinitions::read_stored(right, self.store)?,
        );
        Ok(left.map_names() != right.map_names())
    }

    /// Builds the map of order keys, which must be complete or absent.
    fn build_order_map(&self, content: SortedMap) -> Result<SortedMap> {
        let mut batch = ChunkBatch::new();
        let order = sibling::build_order_map(self.store, &mut batch, content)?;
        self.store.commit(batch)?;
        Ok(order)
    }

    /// Adds a placeholder folder where a document lacks its parent. Checks only the difference to `base`.
    fn add_placeholders(&self, base: &StoreRoot, content: SortedMap) -> Result<SortedMap> {
        let mut missing = BTreeMap::new();
        let mut last = None;
        for change in base.map(CONTENT_MAP).diff(&content, self.store) {
            let change = change?;
            let Ok(path) = record_key::record_path(&change.key) else { continue };
            let below = match (&change.right, path.parent()) {
                (Some(_), parent) if parent == last => None,
                (Some(_), parent) => {
                    last.clone_from(&parent);
                    parent
                }
                (None, _) => {
                    let children = record_key::child_key_range(&path)?;
                    let mut children = content.range(self.store, children.bounds());
                    children.next().transpose()?.map(|_| path)
                }
            };
            let mut at = below;
            while let Some(path) = at.take() {
                let key = record_key::record_key(&path)?;
                if content.get(self.store, &key)?.is_none() {
                    at = path.parent();
                    missing.insert(key, path);
                }
            }
        }
        if missing.is_empty() {
            return Ok(content);
        }
        let mut batch = ChunkBatch::new();
        let mut edits = BTreeMap::new();
        for (key, path) in missing {
            tracing::warn!(path = %path, "lost document replaced with a folder");
            let kind = if path.is_root() { ROOT_NODE_TYPE } else { PLACEHOLDER_TYPE };
            let tree =
                Subtree::new(path.name(), kind).with_property("jcr:title", PLACEHOLDER_TITLE);
            let record = ContentRecord::from_subtree(&tree, OrderKey::default());
            edits.insert(key, record.map(|record| record.encode(&mut batch)).transpose()?);
        }
        let content = content.edit(self.store, &mut batch, edits)?;
        self.store.commit(batch)?;
        Ok(content)
    }

    fn write_edits(&self, edits: IndexEdits, maps: &mut BTreeMap<String, SortedMap>) -> Result<()> {
        let mut batch = ChunkBatch::new();
        edits.apply(maps, self.store, &mut batch)?;
        Ok(self.store.commit(batch)?)
    }

    pub(crate) fn add_record_edits(
        &self,
        edits: &mut IndexEdits,
        key: &[u8],
        old: Option<&MapValue>,
        new: Option<&MapValue>,
    ) -> Result<()> {
        let Ok(path) = record_key::record_path(key) else { return Ok(()) };
        let old = old.map(|stored| self.read_document(&path, stored)).transpose()?.flatten();
        let new = new.map(|stored| self.read_document(&path, stored)).transpose()?.flatten();
        let old = old.as_ref().map(|(record, body)| (record, &**body));
        let new = new.as_ref().map(|(record, body)| (record, &**body));
        edits.record_change(&path, old, new);
        Ok(())
    }

    /// Reads a document; `None` if its bytes are invalid.
    fn read_document(
        &self,
        path: &NodePath,
        stored: &MapValue,
    ) -> Result<Option<(ContentRecord, Arc<DocumentBody>)>> {
        let Some(record) = ContentRecord::decode(stored) else {
            tracing::error!(path = %path, "cannot decode a record; leaving it out of the indexes");
            return Ok(None);
        };
        let Some(body) = record.read_body(self.store)? else {
            tracing::error!(path = %path, "cannot decode a body; leaving it out of the indexes");
            return Ok(None);
        };
        Ok(Some((record, body)))
    }
}

fn is_unique_index_of(index: &PropertyIndex, property: &str) -> bool {
    index.is_unique && index.property == property
}

impl DeriveMaps for IndexMapRebuilder<'_> {
    type Error = Error;

    fn is_derived(&self, map: &str) -> bool {
        INDEX_MAP_NAMES.contains(&map) || map.starts_with(MAP_NAME_PREFIX)
    }

    fn derive_maps(&self, base: &StoreRoot, root: &mut StoreRoot) -> Result<()> {
        let content = self.add_placeholders(base, root.map(CONTENT_MAP))?;
        root.maps.insert(CONTENT_MAP.to_owned(), content);
        let mut maps = match self.update_maps(base, content)? {
            Some(maps) => maps,
            None => self.build_maps(content)?,
        };
        if !maps.contains_key(ORDER_MAP) {
            maps.insert(ORDER_MAP.to_owned(), self.build_order_map(content)?);
        }
        root.maps.extend(maps);
        Ok(())
    }
}

impl std::fmt::Debug for IndexMapRebuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IndexMaps")
    }
}
