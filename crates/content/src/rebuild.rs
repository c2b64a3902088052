//! Index maps made again: from the documents, where commits can no longer be relied on to have kept them.
//!
//! Invariant: the maps are those that commits of the same content make, so that equal content has one root.
//!
//! On failure: a document that does not decode is left out, as no look-up could read it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tympan_store::{Batch, ChunkStore, DeriveMaps, Map, Root, Value as Stored};

use crate::body::Body;
use crate::index::{IndexEdits, NAMES, ORDER};
use crate::record::Record;
use crate::repository::CONTENT;
use crate::{Error, NodePath, Result, keys, siblings};

/// Documents whose entries are written together.
const STEP: usize = 5_000;

/// Makes the index maps of states in a store.
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

    /// Adds the difference of two content maps to the index maps of the first; `None` if that is more than one step.
    fn update(&self, base: &Root, content: Map) -> Result<Option<BTreeMap<String, Map>>> {
        let mut edits = IndexEdits::default();
        for (number, change) in base.map(CONTENT).diff(&content, self.store).enumerate() {
            let change = change?;
            if number >= STEP {
                return Ok(None);
            }
            self.note(&mut edits, &change.key, change.left.as_ref(), change.right.as_ref())?;
        }
        let maps = base.maps.iter().filter(|(name, _)| self.is_derived(name));
        let mut maps = maps.map(|(name, map)| (name.clone(), *map)).collect();
        self.write(edits, &mut maps)?;
        Ok(Some(maps))
    }

    /// Makes the index maps from nothing.
    fn build(&self, content: Map) -> Result<BTreeMap<String, Map>> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let mut maps = BTreeMap::new();
        let mut edits = IndexEdits::default();
        for (number, record) in content.range(self.store, all).enumerate() {
            let (key, stored) = record?;
            self.note(&mut edits, &key, None, Some(&stored))?;
            if number % STEP == STEP - 1 {
                self.write(std::mem::take(&mut edits), &mut maps)?;
            }
        }
        self.write(edits, &mut maps)?;
        let mut batch = Batch::new();
        let order = siblings::build(self.store, &mut batch, content)?;
        self.store.commit(batch)?;
        maps.insert(ORDER.to_owned(), order);
        Ok(maps)
    }

    fn write(&self, edits: IndexEdits, maps: &mut BTreeMap<String, Map>) -> Result<()> {
        let mut batch = Batch::new();
        edits.apply(maps, self.store, &mut batch)?;
        Ok(self.store.commit(batch)?)
    }

    fn note(
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

impl DeriveMaps for IndexMaps<'_> {
    type Error = Error;

    fn is_derived(&self, map: &str) -> bool {
        NAMES.contains(&map)
    }

    fn derive(&self, base: &Root, root: &mut Root) -> Result<()> {
        let content = root.map(CONTENT);
        let maps = match self.update(base, content)? {
            Some(maps) => maps,
            None => self.build(content)?,
        };
        root.maps.extend(maps);
        Ok(())
    }
}

impl std::fmt::Debug for IndexMaps<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IndexMaps")
    }
}
