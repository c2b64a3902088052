//! What a snapshot reads from: the records of one state, with pending edits applied.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tympan_store::{ChunkId, Map, Pin, Value as Stored};

use crate::body::Body;
use crate::record::{BodyPlace, Record};
use crate::repository::Shared;
use crate::siblings::OrderEdits;
use crate::version::VersionEdits;
use crate::{Error, NodePath, Result, keys};

/// Pending edits by key: a record put, or nothing where one was removed.
pub(crate) type Overlay = BTreeMap<Vec<u8>, Option<Arc<Record>>>;

/// What a snapshot reads from.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) shared: Arc<Shared>,
    pub(crate) root: ChunkId,
    pub(crate) content: Map,
    pub(crate) overlay: Overlay,
    /// What the overlay changes in the map of order keys.
    pub(crate) order: OrderEdits,
    /// Pending edits of the map of versions.
    pub(crate) versions: VersionEdits,
    /// Keeps the root from being collected while the view is read.
    _pin: Option<Pin>,
    pub(super) failure: OnceLock<Arc<Error>>,
}

impl View {
    pub(crate) fn new(shared: Arc<Shared>, root: ChunkId, content: Map) -> Self {
        let (overlay, order, versions) = (Overlay::new(), OrderEdits::new(), VersionEdits::new());
        let (_pin, failure) = (None, OnceLock::new());
        Self { shared, root, content, overlay, order, versions, _pin, failure }
    }

    /// Opens a state that stays readable as long as the view.
    pub(crate) fn pinned(shared: Arc<Shared>, pin: Pin, content: Map) -> Self {
        let root = pin.root();
        Self { _pin: Some(pin), ..Self::new(shared, root, content) }
    }

    /// Puts a record into the pending edits, or removes it.
    pub(crate) fn put(&mut self, key: Vec<u8>, record: Option<Arc<Record>>) -> Result<()> {
        let old = self.find(&key)?;
        let orders = [old.map(|old| old.order), record.as_ref().map(|new| new.order.clone())];
        for (order, is_there) in orders.into_iter().zip([false, true]) {
            if let Some(order) = order.filter(|order| !order.0.is_empty()) {
                self.order.insert(keys::order_entry(&key, &order), is_there);
            }
        }
        self.overlay.insert(key, record);
        Ok(())
    }

    /// Reads the record with this key, pending edits first.
    pub(crate) fn record(&self, key: &[u8], path: &NodePath) -> Result<Option<Arc<Record>>> {
        match self.overlay.get(key) {
            Some(edit) => Ok(edit.clone()),
            None => {
                Ok(self.stored(key)?.map(|stored| decode(&stored, path)).transpose()?.map(Arc::new))
            }
        }
    }

    /// Reads the record with this key, whose path is made only for an error.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Option<Record>> {
        match self.overlay.get(key) {
            Some(edit) => Ok(edit.as_deref().cloned()),
            None => self.stored(key)?.map(|stored| Found::Stored(stored).record(key)).transpose(),
        }
    }

    fn stored(&self, key: &[u8]) -> Result<Option<Stored>> {
        Ok(self.content.get(self.shared.reads(), key)?)
    }

    /// Lists the records with keys in a range, pending edits applied, sorted by key.
    pub(crate) fn records(&self, range: &keys::KeyRange) -> Result<Vec<(Vec<u8>, Arc<Record>)>> {
        let record = |(key, found): (Bytes, Found<'_>)| {
            let record = match found {
                Found::Edited(record) => record.clone(),
                found @ Found::Stored(_) => Arc::new(found.record(&key)?),
            };
            Ok((key.into(), record))
        };
        self.entries(range).map(|entry| entry.and_then(record)).collect()
    }

    /// Returns what has keys in a range, pending edits applied, sorted by key; chunks are read as the iterator advances.
    pub(crate) fn entries<'a>(
        &'a self,
        range: &keys::KeyRange,
    ) -> impl Iterator<Item = Result<(Bytes, Found<'a>)>> + use<'a> {
        let mut stored = self.content.range(self.shared.reads(), range.bounds()).peekable();
        let mut edits = self.overlay.range::<[u8], _>(range.bounds()).peekable();
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
                    return Some(Ok((key, Found::Stored(stored))));
                }
                if next == Ordering::Equal {
                    stored.next();
                }
                if let (key, Some(record)) = edits.next()? {
                    return Some(Ok((Bytes::copy_from_slice(key), Found::Edited(record))));
                }
            }
        })
    }

    /// Returns a part of what [`View::entries`] gives. Without pending edits the map passes over what comes before it.
    pub(super) fn page<'a>(
        &'a self,
        range: &keys::KeyRange,
        offset: usize,
        limit: usize,
    ) -> Box<dyn Iterator<Item = Result<(Bytes, Found<'a>)>> + 'a> {
        if self.overlay.range::<[u8], _>(range.bounds()).next().is_some() {
            return Box::new(self.entries(range).skip(offset).take(limit));
        }
        let page = self.content.range(self.shared.reads(), range.bounds()).skip(offset).take(limit);
        Box::new(page.map(|entry| {
            let (key, stored) = entry?;
            Ok((key, Found::Stored(stored)))
        }))
    }

    /// Returns the content map under which what is found here is remembered for others; nothing with pending edits, which
    /// belong to one session, nor of an empty map, which has no nodes.
    pub(super) fn known_map(&self) -> Option<ChunkId> {
        self.content.root().filter(|_| self.overlay.is_empty())
    }

    /// Loads a record's body, through the cache of bodies.
    pub(crate) fn body(&self, record: &Record, path: &NodePath) -> Result<Arc<Body>> {
        let chunks = self.shared.reads();
        let load =
            || record.read_body(chunks)?.ok_or_else(|| damaged(path, "its body does not decode"));
        match &record.body {
            BodyPlace::Stored(id) => self.shared.bodies.get_or_insert_with(id, load),
            BodyPlace::Inline(_) | BodyPlace::Pending(_) => load(),
        }
    }
}

/// A record in a range, not decoded yet unless it is a pending edit.
pub(crate) enum Found<'a> {
    Edited(&'a Arc<Record>),
    Stored(Stored),
}

impl Found<'_> {
    pub(crate) fn record(self, key: &[u8]) -> Result<Record> {
        match self {
            Self::Edited(record) => Ok(Record::clone(record)),
            // Only an error needs the path, which costs more than the record.
            Self::Stored(stored) => {
                Record::decode(&stored).map_or_else(|| decode(&stored, &keys::path_of(key)?), Ok)
            }
        }
    }
}

fn decode(stored: &Stored, path: &NodePath) -> Result<Record> {
    Record::decode(stored).ok_or_else(|| damaged(path, "its record does not decode"))
}

pub(super) fn damaged(path: &NodePath, reason: &'static str) -> Error {
    Error::Damaged { path: path.clone(), reason }
}
