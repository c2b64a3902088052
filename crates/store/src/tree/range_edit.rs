//! Edits of whole ranges: replaced, copied, moved. Records are streamed; removed subtrees are not read.

use super::edit::{self, EditStepResult};
use super::edit_script::EditOp;
use super::scan::MapScan;
use super::sorted_map::SortedMap;
use crate::chunk::{MapValue, check_record_limits};
use crate::error::{Error, Result};
use crate::interface::chunk_batch::{ChunkBatch, StagedView};
use crate::interface::chunk_reader::ReadChunks;
use crate::key::KeyRange;

impl SortedMap {
    /// Applies edits (`None` deletes) that come in strictly ascending order of keys, and stages the chunks of the new
    /// map. Works like [`SortedMap::edit`], for edits that should not be held in memory.
    ///
    /// # Errors
    /// [`Error::Unsorted`], [`Error::TooLong`], a failed read, or an error of the iterator; nothing is staged then.
    pub fn edit_sorted(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut ChunkBatch,
        edits: impl Iterator<Item = Result<(Vec<u8>, Option<MapValue>)>>,
    ) -> Result<Self> {
        let mut order = RecordOrderCheck::default();
        let steps = edits.map(|edit| {
            let (key, value) = edit?;
            order.check_next(&key, value.as_ref())?;
            Ok((key, value.map_or(EditOp::Remove, EditOp::Put)))
        });
        edit::edit_map(*self, reads, batch, steps)
    }

    /// Replaces all records of a range by `records`, which come in strictly ascending order of keys; an empty iterator
    /// deletes the range. The cost is that of the chunks at the two ends and of the new chunks: removed subtrees are
    /// not read.
    ///
    /// # Errors
    /// [`Error::Unsorted`] for a record that is not after the previous one or is outside the range, [`Error::TooLong`],
    /// or a failed read; nothing is staged then.
    pub fn replace_range(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut ChunkBatch,
        range: &KeyRange,
        records: impl Iterator<Item = (Vec<u8>, MapValue)>,
    ) -> Result<Self> {
        let mut order = RecordOrderCheck::default();
        let puts = records.map(|(key, value)| {
            order.check_next(&key, Some(&value))?;
            if !range.contains_key(&key) {
                return Err(order.unsorted_error());
            }
            Ok((key, EditOp::Put(value)))
        });
        edit::edit_map(*self, reads, batch, removal_step(range).chain(puts))
    }

    /// Copies the records of a range to the keys that `rewrite` returns, record by record, replacing existing records.
    ///
    /// The rewritten keys must keep the order of the old ones, as they do when one prefix replaces another.
    ///
    /// # Errors
    /// [`Error::Unsorted`] for rewritten keys out of order, [`Error::TooLong`], a failed read, or an error of
    /// `rewrite`; nothing is staged then.
    pub fn copy_range(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut ChunkBatch,
        from: &KeyRange,
        rewrite: impl FnMut(&[u8], &MapValue) -> Result<(Vec<u8>, MapValue)>,
    ) -> Result<Self> {
        let edited = {
            let staged = StagedView::new(batch, reads);
            let puts = rewrite_records(self.range(&staged, from.bounds()), rewrite);
            edit::prepare_edit(*self, &staged, puts)?
        };
        edited.stage_chunks(batch)
    }

    /// Moves the records of a range to the keys that `rewrite` returns: as [`SortedMap::copy_range`], but the old
    /// records are removed. A record can be moved to a key within the range.
    ///
    /// # Errors
    /// As [`SortedMap::copy_range`].
    pub fn move_range(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut ChunkBatch,
        from: &KeyRange,
        rewrite: impl FnMut(&[u8], &MapValue) -> Result<(Vec<u8>, MapValue)>,
    ) -> Result<Self> {
        let edited = {
            let staged = StagedView::new(batch, reads);
            let puts = rewrite_records(self.range(&staged, from.bounds()), rewrite);
            edit::prepare_edit(*self, &staged, insert_removal_step(from, puts))?
        };
        edited.stage_chunks(batch)
    }
}

/// Returns the records of a scan under their new keys.
fn rewrite_records(
    scan: MapScan<'_>,
    mut rewrite: impl FnMut(&[u8], &MapValue) -> Result<(Vec<u8>, MapValue)>,
) -> impl Iterator<Item = EditStepResult> {
    let mut order = RecordOrderCheck::default();
    scan.map(move |record| {
        let (key, value) = record?;
        let (key, value) = rewrite(&key, &value)?;
        order.check_next(&key, Some(&value))?;
        Ok((key, EditOp::Put(value)))
    })
}

/// Returns the step that removes a range.
fn removal_step(range: &KeyRange) -> impl Iterator<Item = EditStepResult> {
    std::iter::once(Ok((range.start.clone(), EditOp::RemoveRange(range.end.clone()))))
}

/// Inserts the removal of a range into steps, in the order of keys.
fn insert_removal_step(
    range: &KeyRange,
    steps: impl Iterator<Item = EditStepResult>,
) -> impl Iterator<Item = EditStepResult> {
    let mut steps = steps.peekable();
    let mut removal = removal_step(range).fuse();
    std::iter::from_fn(move || {
        let is_before =
            |step: &EditStepResult| step.as_ref().map_or(true, |(key, _)| *key < range.start);
        steps.next_if(is_before).or_else(|| removal.next()).or_else(|| steps.next())
    })
}

/// Checks that records come in order and within the limits.
#[derive(Default)]
struct RecordOrderCheck {
    last_key: Option<Vec<u8>>,
    record_count: u64,
}

impl RecordOrderCheck {
    fn check_next(&mut self, key: &[u8], value: Option<&MapValue>) -> Result<()> {
        self.record_count += 1;
        check_record_limits(key, value.unwrap_or(&MapValue::default()))?;
        if self.last_key.as_ref().is_some_and(|last| last.as_slice() >= key) {
            return Err(self.unsorted_error());
        }
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(())
    }

    /// Returns the error for the newest record being out of order.
    fn unsorted_error(&self) -> Error {
        Error::Unsorted { position: self.record_count.saturating_sub(1) }
    }
}
