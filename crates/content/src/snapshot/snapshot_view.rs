//! The data that a snapshot reads from: the records of one state, with pending edits applied.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tympan_store::{ChunkId, MapValue, RootPin, SortedMap};

use crate::document::body::DocumentBody;
use crate::document::record::{ContentRecord, RecordBody};
use crate::repository::repository_state::RepositoryState;
use crate::version::version_entry::VersionEdits;
use crate::{Error, NodePath, Result, document::record_key};

/// Pending edits of the map of order keys by entry; the value is true if the entry exists.
pub(crate) type OrderEdits = BTreeMap<Vec<u8>, bool>;

/// Pending edits by key: a record put, or `None` for a removed one.
pub(crate) type RecordEdits = BTreeMap<Vec<u8>, Option<Arc<ContentRecord>>>;

/// The data that a snapshot reads from.
#[derive(Clone)]
pub(crate) struct SnapshotView {
    pub(crate) repository_state: Arc<RepositoryState>,
    pub(crate) root_id: ChunkId,
    pub(crate) content_map: SortedMap,
    pub(crate) record_edits: RecordEdits,
    /// Pending edits of the map of order keys.
    pub(crate) order_edits: OrderEdits,
    /// Pending edits of the map of versions.
    pub(crate) version_edits: VersionEdits,
    /// True if the view holds a tree that exists in memory only and that its viewer may see as a whole.
    pub(crate) is_detached: bool,
    /// Protects the root from collection as long as the view exists.
    _pin: Option<RootPin>,
    pub(super) first_failure: OnceLock<Arc<Error>>,
}

impl SnapshotView {
    pub(crate) fn new(shared: Arc<RepositoryState>, root: ChunkId, content: SortedMap) -> Self {
        let (overlay, order, versions) =
            (RecordEdits::new(), OrderEdits::new(), VersionEdits::new());
        let (_pin, failure) = (None, OnceLock::new());
        Self {
            repository_state: shared,
            root_id: root,
            content_map: content,
            record_edits: overlay,
            order_edits: order,
            version_edits: versions,
            is_detached: false,
            _pin,
            first_failure: failure,
        }
    }

    /// Opens a state that stays readable as long as the view exists.
    pub(crate) fn pinned(shared: Arc<RepositoryState>, pin: RootPin, content: SortedMap) -> Self {
        let root = pin.root();
        Self { _pin: Some(pin), ..Self::new(shared, root, content) }
    }

    /// Puts a record into the pending edits, or marks it as removed.
    pub(crate) fn put_record(
        &mut self,
        key: Vec<u8>,
        record: Option<Arc<ContentRecord>>,
    ) -> Result<()> {
        let old = self.find_record(&key)?;
        let orders =
            [old.map(|old| old.order_key), record.as_ref().map(|new| new.order_key.clone())];
        for (order, is_there) in orders.into_iter().zip([false, true]) {
            if let Some(order) = order.filter(|order| !order.0.is_empty()) {
                self.order_edits.insert(record_key::order_map_key(&key, &order), is_there);
            }
        }
        self.record_edits.insert(key, record);
        Ok(())
    }

    /// Reads the record with this key; pending edits take precedence.
    pub(crate) fn read_record(
        &self,
        key: &[u8],
        path: &NodePath,
    ) -> Result<Option<Arc<ContentRecord>>> {
        match self.record_edits.get(key) {
            Some(edit) => Ok(edit.clone()),
            None => Ok(self
                .stored_record(key)?
                .map(|stored| decode_record(&stored, path))
                .transpose()?
                .map(Arc::new)),
        }
    }

    /// Reads the record with this key; its path is built only for an error.
    pub(crate) fn find_record(&self, key: &[u8]) -> Result<Option<ContentRecord>> {
        match self.record_edits.get(key) {
            Some(edit) => Ok(edit.as_deref().cloned()),
            None => self
                .stored_record(key)?
                .map(|stored| RangeRecord::Stored(stored).into_record(key))
                .transpose(),
        }
    }

    fn stored_record(&self, key: &[u8]) -> Result<Option<MapValue>> {
        Ok(self.content_map.get(self.repository_state.chunk_reader(), key)?)
    }

    /// Returns the records with keys in a range, pending edits applied, sorted by key.
    pub(crate) fn records_in_range(
        &self,
        range: &record_key::KeyRange,
    ) -> Result<Vec<(Vec<u8>, Arc<ContentRecord>)>> {
        let record = |(key, range_record): (Bytes, RangeRecord<'_>)| {
            let record = match range_record {
                RangeRecord::Pending(record) => record.clone(),
                stored_record @ RangeRecord::Stored(_) => {
                    Arc::new(stored_record.into_record(&key)?)
                }
            };
            Ok((key.into(), record))
        };
        self.range_records(range).map(|entry| entry.and_then(record)).collect()
    }

    /// Returns the records with keys in a range, pending edits applied, sorted by key; chunks are read as the iterator
    /// advances.
    pub(crate) fn range_records<'a>(
        &'a self,
        range: &record_key::KeyRange,
    ) -> impl Iterator<Item = Result<(Bytes, RangeRecord<'a>)>> + use<'a> {
        let mut stored =
            self.content_map.range(self.repository_state.chunk_reader(), range.bounds()).peekable();
        let mut edits = self.record_edits.range::<[u8], _>(range.bounds()).peekable();
        std::iter::from_fn(move || {
            loop {
                let next = match (edits.peek(), stored.peek()) {
                    (None, _) | (Some(_), Some(Err(_))) => Ordering::Greater,
                    (Some(_), None) => Ordering::Less,
                    (Some((edited, _)), Some(Ok((key, _)))) => edited.as_slice().cmp(key),
                };
                if next == Ordering::Greater {
                    let (key, stored) = match stored.next()? {
                        Ok(entry) => entry,
                        Err(error) => return Some(Err(error.into())),
                    };
                    return Some(Ok((key, RangeRecord::Stored(stored))));
                }
                if next == Ordering::Equal {
                    stored.next();
                }
                if let (key, Some(record)) = edits.next()? {
                    return Some(Ok((Bytes::copy_from_slice(key), RangeRecord::Pending(record))));
                }
            }
        })
    }

    /// Returns a page of what [`SnapshotView::range_records`] returns. Without pending edits, the map skips the
    /// preceding records without reading them.
    pub(super) fn range_record_page<'a>(
        &'a self,
        range: &record_key::KeyRange,
        offset: usize,
        limit: usize,
    ) -> Box<dyn Iterator<Item = Result<(Bytes, RangeRecord<'a>)>> + 'a> {
        if self.record_edits.range::<[u8], _>(range.bounds()).next().is_some() {
            return Box::new(self.range_records(range).skip(offset).take(limit));
        }
        let page = self
            .content_map
            .range(self.repository_state.chunk_reader(), range.bounds())
            .skip(offset)
            .take(limit);
        Box::new(page.map(|entry| {
            let (key, stored) = entry?;
            Ok((key, RangeRecord::Stored(stored)))
        }))
    }

    /// Returns the content map under which lookups in this view are cached; `None` with pending edits, which belong to
    /// one session, and for an empty map, which has no nodes.
    pub(super) fn cacheable_map_id(&self) -> Option<ChunkId> {
        self.content_map.root().filter(|_| self.record_edits.is_empty())
    }

    /// Loads a record's body, through the cache of bodies.
    pub(crate) fn load_body(
        &self,
        record: &ContentRecord,
        path: &NodePath,
    ) -> Result<Arc<DocumentBody>> {
        let chunks = self.repository_state.chunk_reader();
        let load = || {
            record
                .read_body(chunks)?
                .ok_or_else(|| damaged_record_error(path, "its body cannot be decoded"))
        };
        match &record.body {
            RecordBody::Stored(id) => self.repository_state.cache.get_or_load_body(id, load),
            RecordBody::Inline(_) | RecordBody::Pending(_) => load(),
        }
    }
}

/// A record in a range; a stored one is not decoded yet.
pub(crate) enum RangeRecord<'a> {
    Pending(&'a Arc<ContentRecord>),
    Stored(MapValue),
}

impl RangeRecord<'_> {
    pub(crate) fn into_record(self, key: &[u8]) -> Result<ContentRecord> {
        match self {
            Self::Pending(record) => Ok(ContentRecord::clone(record)),
            // The path is needed only for an error, and building it costs more than decoding the record.
            Self::Stored(stored) => ContentRecord::decode(&stored)
                .map_or_else(|| decode_record(&stored, &record_key::record_path(key)?), Ok),
        }
    }
}

fn decode_record(stored: &MapValue, path: &NodePath) -> Result<ContentRecord> {
    ContentRecord::decode(stored)
        .ok_or_else(|| damaged_record_error(path, "its record cannot be decoded"))
}

pub(super) fn damaged_record_error(path: &NodePath, reason: &'static str) -> Error {
    Error::Damaged { path: path.clone(), reason }
}
