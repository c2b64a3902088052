//! The stored maps of one state, read directly: ranges of index entries, and documents in key order.
//!
//! In: a [`Snapshot`]. Out: a [`StateReader`], with which a query engine counts and reads index entries and scans
//! documents.
//!
//! Invariants
//! * Access control does not apply: a reader tells where nodes are, whether or not the viewer of its snapshot sees them.
//!   The caller checks each node ([`Node::is_visible`](crate::Node::is_visible)) before it shows anything of it.
//! * Pending edits of a session are not included.
//! * Chunks are read as iterators advance, and counted.
//!
//! `document_scan` scans documents. Not here: choosing what to read.

pub(crate) mod document_scan;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tympan_store::key::KeyRange;
use tympan_store::{Chunk, ChunkId, MapScan, ReadChunks, SortedMap, StoreRoot};

use crate::document::record_key::{self, CONTENT_MAP};
use crate::index::property_index::{IndexDefinitions, PropertyIndex};
use crate::model::value_key::KeySpan;
use crate::{LookupIndex, Node, NodePath, Result, Snapshot};

/// Reads the maps of one state without access control.
pub struct StateReader<'a> {
    snapshot: &'a Snapshot,
    chunk_reader: CountingChunkReader<'a>,
    maps: BTreeMap<String, SortedMap>,
    index_definitions: Arc<IndexDefinitions>,
}

/// One map of index entries of a state.
#[derive(Debug, Clone, Copy)]
pub struct IndexMap(SortedMap);

/// A chunk reader that counts reads.
struct CountingChunkReader<'a> {
    chunk_reader: &'a dyn ReadChunks,
    chunk_count: AtomicU64,
}

impl ReadChunks for CountingChunkReader<'_> {
    fn read_chunk(&self, id: &ChunkId) -> tympan_store::Result<Chunk> {
        self.chunk_count.fetch_add(1, Ordering::Relaxed);
        self.chunk_reader.read_chunk(id)
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> tympan_store::Result<Vec<Chunk>> {
        self.chunk_count.fetch_add(ids.len() as u64, Ordering::Relaxed);
        self.chunk_reader.read_chunks(ids)
    }

    fn has_costly_round_trips(&self) -> bool {
        self.chunk_reader.has_costly_round_trips()
    }
}

impl Snapshot {
    /// Opens the maps of the pinned state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn state_reader(&self) -> Result<StateReader<'_>> {
        let reads = self.view.repository_state.chunk_reader();
        Ok(StateReader {
            snapshot: self,
            chunk_reader: CountingChunkReader {
                chunk_reader: reads,
                chunk_count: AtomicU64::new(0),
            },
            maps: StoreRoot::read(reads, &self.view.root_id)?.maps,
            index_definitions: IndexDefinitions::read_cached(&self.view)?,
        })
    }
}

impl StateReader<'_> {
    /// Returns the number of chunks read so far.
    #[must_use]
    pub fn chunks_read(&self) -> u64 {
        self.chunk_reader.chunk_count.load(Ordering::Relaxed)
    }

    /// Finds a node, visible or not.
    ///
    /// # Errors
    /// If the store fails or a record on the way is damaged.
    pub fn node(&self, path: &NodePath) -> Result<Option<Node>> {
        self.snapshot.unrestricted().node(path)
    }

    /// Returns the property indexes of the state, whether their maps are built or not.
    #[must_use]
    pub fn property_indexes(&self) -> &[Arc<PropertyIndex>] {
        &self.index_definitions.0
    }

    /// Returns the map of a property index; `None` while it is not built.
    #[must_use]
    pub fn property_map(&self, index: &PropertyIndex) -> Option<IndexMap> {
        self.maps.get(index.map_name()).copied().map(IndexMap)
    }

    /// Returns the map of a lookup index; an empty one if it has no entries.
    #[must_use]
    pub fn lookup_map(&self, index: LookupIndex) -> IndexMap {
        IndexMap(self.maps.get(index.map_name()).copied().unwrap_or_default())
    }

    /// Returns the number of entries in a map.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_entries(&self, map: IndexMap) -> Result<u64> {
        Ok(map.0.count_records(&self.chunk_reader)?)
    }

    /// Returns the number of entries in a range of keys. The cost does not depend on their number.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_entries_in(&self, map: IndexMap, (start, end): &KeySpan) -> Result<u64> {
        let range = KeyRange { start: start.clone(), end: Some(end.clone()) };
        Ok(map.0.count_records_in(&self.chunk_reader, &range)?)
    }

    /// Returns the keys in a range of a map, in order.
    pub fn entry_keys(
        &self,
        map: IndexMap,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> IndexEntryKeys<'_> {
        IndexEntryKeys(map.0.range(&self.chunk_reader, range))
    }

    /// Returns the keys in a range of a map, in reverse order.
    pub fn entry_keys_reversed(
        &self,
        map: IndexMap,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> IndexEntryKeys<'_> {
        IndexEntryKeys(map.0.range_reversed(&self.chunk_reader, range))
    }

    /// Returns the number of documents of the state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_documents(&self) -> Result<u64> {
        Ok(self.content_map().count_records(&self.chunk_reader)?)
    }

    /// Returns the paths of the documents that differ between another state and this one, in key order; `None` if the
    /// other state cannot be read. The cost is proportional to the difference.
    #[must_use]
    pub fn documents_changed_since(
        &self,
        root: &ChunkId,
    ) -> Option<impl Iterator<Item = Result<NodePath>> + '_> {
        let reads = self.chunk_reader.chunk_reader;
        let before = StoreRoot::read(reads, root).ok()?.map(CONTENT_MAP);
        let diff = before.diff(&self.content_map(), reads);
        Some(diff.map(|change| record_key::record_path(&change?.key)))
    }

    fn content_map(&self) -> SortedMap {
        self.maps.get(CONTENT_MAP).copied().unwrap_or_default()
    }
}

impl fmt::Debug for StateReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateReader({:?})", self.snapshot)
    }
}

/// The keys of index entries in a range. Ends after the first error.
#[derive(Debug)]
pub struct IndexEntryKeys<'a>(MapScan<'a>);

impl Iterator for IndexEntryKeys<'_> {
    type Item = Result<Bytes>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.0.next()? {
            Ok((key, _)) => Ok(key),
            Err(error) => Err(error.into()),
        })
    }
}
