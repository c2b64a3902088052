//! Ordered siblings: neighbors, the last child and pages of a listing, for any number of siblings.
//!
//! In: a view and the path of a parent. Out: entries of the map of order keys, with pending edits applied.
//!
//! Invariants
//! * The map has one entry for each record with an order key: its own key with the order key inserted before the name.
//!   It is written in the same commit as the records (`index`), and an edit that changes no order does not change it.
//! * Every child of an ordered parent has an order key. Sessions assign them, and [`assign_missing_order_keys`] does
//!   where a merge or a received document would leave one out.
//! * The map is never empty: it holds the empty key, so that a root without the map is recognized as one from an older
//!   version.
//!
//! Not here: listing all children, which reads their records in name order and sorts (`snapshot::child_list`).

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use tympan_store::{ChunkBatch, MapValue, ReadChunks, SortedMap, StoreRoot};

use crate::document::boundary::{has_ordered_children, is_container};
use crate::document::record::ContentRecord;
use crate::document::record_key::{self, KeyRange, ORDER_MAP};
use crate::model::order_key::OrderKey;
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{Error, NodePath, Result};

/// The children of one parent that have order keys.
pub(crate) struct OrderedSiblings<'a> {
    view: &'a SnapshotView,
    map: SortedMap,
    range: KeyRange,
}

impl SnapshotView {
    /// Opens the ordered children of a node; `None` in a state that has no order map yet.
    pub(crate) fn ordered_siblings(
        &self,
        parent: &NodePath,
    ) -> Result<Option<OrderedSiblings<'_>>> {
        let maps = StoreRoot::read(self.repository_state.chunk_reader(), &self.root_id)?.maps;
        let range = record_key::child_key_range(parent)?;
        Ok(maps.get(ORDER_MAP).map(|map| OrderedSiblings { view: self, map: *map, range }))
    }

    /// Returns the order key of the last of a node's children; `None` if none has one.
    pub(crate) fn last_order_key(&self, parent: &NodePath) -> Result<Option<OrderKey>> {
        if let Some(siblings) = self.ordered_siblings(parent)? {
            return Ok(siblings
                .previous_entry(None, &[])?
                .map(|last| siblings.entry_order_key(&last)));
        }
        let records = self.records_in_range(&record_key::child_key_range(parent)?)?;
        let last = records.into_iter().map(|(_, record)| record.order_key.clone()).max();
        Ok(last.filter(|order| !order.0.is_empty()))
    }

    /// Assigns order keys to the children of a node that have none: at the end, by name.
    pub(crate) fn assign_order_keys(&mut self, parent: &NodePath) -> Result<()> {
        let mut last = self.last_order_key(parent)?;
        for (key, record) in self.records_in_range(&record_key::child_key_range(parent)?)? {
            if record.order_key.0.is_empty() {
                let order = last.as_ref().map_or_else(OrderKey::first, OrderKey::after);
                let record =
                    ContentRecord { order_key: order.clone(), ..ContentRecord::clone(&record) };
                self.put_record(key, Some(record.into()))?;
                last = Some(order);
            }
        }
        Ok(())
    }
}

/// A position among siblings, given by their entries.
#[derive(Debug)]
pub(crate) enum SiblingEntryPosition {
    /// Before all others.
    First,
    /// After all others.
    Last,
    /// Before this entry.
    Before(Vec<u8>),
    /// After this entry.
    After(Vec<u8>),
}

/// The maximum rounded order key.
const MAX_ROUNDED_ORDER_KEY: u64 = (1 << 48) - 1;
/// The number of siblings on either side of a crowded position whose keys are spread at first. It is multiplied by four
/// until there is enough space.
const INITIAL_SPREAD_COUNT: usize = 32;
/// The gap that spreading leaves between two siblings, in units of 1/65,536: enough to halve it eight times before keys
/// grow.
const SPREAD_GAP: u64 = 256;

impl OrderedSiblings<'_> {
    /// Returns the order keys to assign so that the record with the entry `own` gets a given position: one for the
    /// record, and for some of its neighbors if keys have become long. Each is returned with the key of its record.
    pub(crate) fn assign_keys_at(
        &self,
        own: &[u8],
        spot: SiblingEntryPosition,
    ) -> Result<Vec<(Vec<u8>, OrderKey)>> {
        let (low, high) = match spot {
            SiblingEntryPosition::First => (None, self.next_entry(None, own)?),
            SiblingEntryPosition::Last => (self.previous_entry(None, own)?, None),
            SiblingEntryPosition::Before(entry) => {
                (self.previous_entry(Some(&entry), own)?, Some(entry))
            }
            SiblingEntryPosition::After(entry) => {
                let high = self.next_entry(Some(&entry), own)?;
                (Some(entry), high)
            }
        };
        let order =
            |entry: &Option<Vec<u8>>| entry.as_ref().map(|entry| self.entry_order_key(entry));
        let order = match (order(&low), order(&high)) {
            (None, None) => Some(OrderKey::first()),
            (None, Some(high)) => Some(OrderKey::before(&high)),
            (Some(low), None) => Some(OrderKey::after(&low)),
            (Some(low), Some(high)) => (low < high).then(|| OrderKey::between(&low, &high)),
        };
        match order.filter(|order| !order.needs_renumbering()) {
            Some(order) => Ok(vec![(self.entry_record_key(own)?, order)]),
            None => self.respread_keys(own, low, high),
        }
    }

    /// Reassigns keys to the siblings around a position, and to the record inserted between them.
    fn respread_keys(
        &self,
        own: &[u8],
        low: Option<Vec<u8>>,
        high: Option<Vec<u8>>,
    ) -> Result<Vec<(Vec<u8>, OrderKey)>> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let (mut low, mut high) = (low, high);
        let mut spread = INITIAL_SPREAD_COUNT;
        loop {
            while let Some(entry) = low.take_if(|_| before.len() < spread) {
                low = self.previous_entry(Some(&entry), own)?;
                before.push(entry);
            }
            while let Some(entry) = high.take_if(|_| after.len() < spread) {
                high = self.next_entry(Some(&entry), own)?;
                after.push(entry);
            }
            let count = before.len() as u64 + 1 + after.len() as u64;
            // Before the first and after the last sibling, there is space for whole numbers.
            let more = (count + 1) << 16;
            let rounded =
                |entry: &Option<Vec<u8>>| Some(self.entry_order_key(entry.as_ref()?).to_rounded());
            let (from, to) = match (rounded(&low), rounded(&high)) {
                (Some(from), Some(to)) => (from, to),
                (Some(from), None) => (from, (from + more).min(MAX_ROUNDED_ORDER_KEY)),
                (None, Some(to)) => (to.saturating_sub(more), to),
                (None, None) => {
                    (OrderKey::first().to_rounded(), OrderKey::first().to_rounded() + more)
                }
            };
            let gap = to.saturating_sub(from) / (count + 1);
            if gap < SPREAD_GAP && (low.is_some() || high.is_some()) {
                spread *= 4;
                continue;
            }
            let own = std::iter::once(own);
            let entries = before.iter().rev().map(Vec::as_slice).chain(own);
            let entries = entries.chain(after.iter().map(Vec::as_slice));
            let keys = (1..).map(|step| OrderKey::from_rounded(from + gap * step));
            return entries
                .zip(keys)
                .map(|(entry, key)| Ok((self.entry_record_key(entry)?, key)))
                .collect();
        }
    }

    /// Returns the entry before a given one, or the last entry; `own` is skipped.
    fn previous_entry(&self, entry: Option<&[u8]>, own: &[u8]) -> Result<Option<Vec<u8>>> {
        let end = entry.or(self.range.end.as_deref());
        match end.map(|end| self.stored_entry_before(end)).transpose()?.flatten() {
            Some(sibling_entry) if sibling_entry == own => self.stored_entry_before(own),
            sibling_entry => Ok(sibling_entry),
        }
    }

    /// Returns the entry after a given one, or the first entry; `own` is skipped.
    fn next_entry(&self, entry: Option<&[u8]>, own: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut entries = self.entries_after(entry).filter(|sibling_entry| {
            sibling_entry.as_ref().ok().is_none_or(|sibling_entry| sibling_entry != own)
        });
        entries.next().transpose()
    }

    /// Returns the order key in an entry.
    fn entry_order_key(&self, entry: &[u8]) -> OrderKey {
        record_key::order_key_of(entry, &self.range.start)
    }

    /// Returns the key of the record to which an entry belongs.
    pub(crate) fn entry_record_key(&self, entry: &[u8]) -> Result<Vec<u8>> {
        let name = record_key::record_name(entry)?;
        Ok([&self.range.start, name.as_bytes()].concat())
    }

    /// Returns all entries after a given one, or from the first, in order; chunks are read as the iterator advances.
    pub(crate) fn entries_after(
        &self,
        behind: Option<&[u8]>,
    ) -> impl Iterator<Item = Result<Vec<u8>>> + '_ {
        let (first, end) = self.range.bounds();
        let bounds = (behind.map_or(first, Bound::Excluded), end);
        let mut stored = self.map.range(self.chunk_reader(), bounds).peekable();
        let mut edits = self.view.order_edits.range::<[u8], _>(bounds).peekable();
        std::iter::from_fn(move || {
            loop {
                let is_edit_next = match (edits.peek(), stored.peek()) {
                    (None, _) | (Some(_), Some(Err(_))) => false,
                    (Some(_), None) => true,
                    (Some((edited, _)), Some(Ok((key, _)))) => edited.as_slice() <= &**key,
                };
                if !is_edit_next {
                    return Some(stored.next()?.map(|(key, _)| key.into()).map_err(Error::from));
                }
                let (edited, is_there) = edits.next()?;
                stored.next_if(|entry| entry.as_ref().is_ok_and(|(key, _)| key == edited));
                if *is_there {
                    return Some(Ok(edited.clone()));
                }
            }
        })
    }

    /// Returns a page of the entries. Without pending edits, the map skips the preceding entries without reading them.
    pub(crate) fn entry_page(&self, offset: usize, limit: usize) -> Result<Vec<Vec<u8>>> {
        let bounds = self.range.bounds();
        if self.view.order_edits.range::<[u8], _>(bounds).next().is_some() {
            return self.entries_after(None).skip(offset).take(limit).collect();
        }
        let page = self.map.range(self.chunk_reader(), bounds).skip(offset).take(limit);
        page.map(|entry| Ok(entry?.0.into())).collect()
    }

    /// Returns the stored entry before a given one.
    fn stored_entry_before(&self, entry: &[u8]) -> Result<Option<Vec<u8>>> {
        let start = self.range.start.as_slice();
        let mut end = entry.to_vec();
        let stored = loop {
            let range = (Bound::Included(start), Bound::Excluded(end.as_slice()));
            let last = self.map.last_record_in(self.chunk_reader(), range)?;
            match last.map(|(key, _)| Vec::from(key)) {
                Some(deleted_entry)
                    if self.view.order_edits.get(&deleted_entry) == Some(&false) =>
                {
                    end = deleted_entry
                }
                sibling_entry => break sibling_entry,
            }
        };
        let mut edits = self
            .view
            .order_edits
            .range::<[u8], _>((Bound::Included(start), Bound::Excluded(entry)))
            .rev();
        let edited = edits.find(|(_, is_there)| **is_there).map(|(edited, _)| edited.clone());
        Ok(stored.max(edited))
    }

    /// Returns the number of stored entries before a given one.
    pub(crate) fn stored_rank(&self, entry: &[u8]) -> Result<u64> {
        let before = KeyRange { start: self.range.start.clone(), end: Some(entry.to_vec()) };
        Ok(self.map.count_records_in(self.chunk_reader(), &before)?)
    }

    fn chunk_reader(&self) -> &dyn ReadChunks {
        self.view.repository_state.chunk_reader()
    }
}

/// Builds the map for a state that has none.
pub(crate) fn build_order_map(
    reads: &dyn ReadChunks,
    batch: &mut ChunkBatch,
    content: SortedMap,
) -> Result<SortedMap> {
    let mut entries = BTreeSet::from([Vec::new()]);
    for entry in content.range(reads, (Bound::Unbounded, Bound::Unbounded)) {
        let (key, stored) = entry?;
        if let Some(record) = ContentRecord::decode(&stored)
            && !record.order_key.0.is_empty()
        {
            entries.insert(record_key::order_map_key(&key, &record.order_key));
        }
    }
    let present = || MapValue { bytes: Bytes::new(), body: None };
    Ok(SortedMap::build(batch, entries.into_iter().map(|entry| (entry, present())))?)
}

/// Assigns order keys to records without one that a merge put below an ordered parent: at the end, by name.
pub(crate) fn assign_missing_order_keys(
    head: &SnapshotView,
    edits: RecordEdits,
) -> Result<RecordEdits> {
    let mut view = head.clone();
    let mut suspects = BTreeSet::new();
    for (key, record) in edits {
        let path = record_key::record_path(&key)?;
        if let Some(record) = &record {
            if record.order_key.0.is_empty() {
                suspects.extend(path.parent());
            }
            if container_orders_children(&path, Some(record))
                && !container_orders_children(&path, view.read_record(&key, &path)?.as_deref())
            {
                suspects.insert(path.clone());
            }
        }
        view.put_record(key, record)?;
    }
    for parent in suspects {
        let record = view.read_record(&record_key::record_key(&parent)?, &parent)?;
        if container_orders_children(&parent, record.as_deref()) {
            view.assign_order_keys(&parent)?;
        }
    }
    Ok(view.record_edits)
}

/// Returns true if the children of the node with this record are ordered.
pub(crate) fn container_orders_children(path: &NodePath, record: Option<&ContentRecord>) -> bool {
    let primary_type = record.map(|record| record.summary.primary_type());
    primary_type.is_some_and(|parent_type| {
        is_container(path.name(), parent_type) && has_ordered_children(parent_type)
    })
}
