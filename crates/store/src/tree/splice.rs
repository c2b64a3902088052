//! Whole ranges at once: replaced, copied, moved. Records stream through; removed subtrees are not read.

use super::edit::{self, Step};
use super::script::Op;
use super::{Map, Scan, Value, check_record};
use crate::batch::{Batch, Staged};
use crate::chunk_store::ReadChunks;
use crate::error::{Error, Result};
use crate::key::KeyRange;

impl Map {
    /// Applies edits (`None` deletes) that come in strictly ascending order of keys, and stages the chunks of the new
    /// map. As [`Map::edit`], for edits that should not be held in memory.
    ///
    /// # Errors
    /// [`Error::Unsorted`], [`Error::TooLong`], a failed read, or what the iterator fails with; nothing is staged then.
    pub fn edit_sorted(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut Batch,
        edits: impl Iterator<Item = Result<(Vec<u8>, Option<Value>)>>,
    ) -> Result<Self> {
        let mut order = Order::default();
        let steps = edits.map(|edit| {
            let (key, value) = edit?;
            order.check(&key, value.as_ref())?;
            Ok((key, value.map_or(Op::Remove, Op::Put)))
        });
        edit::edit(*self, reads, batch, steps)
    }

    /// Replaces all records of a range by `records`, which come in strictly ascending order of keys; none at all
    /// deletes the range. Costs the chunks at the two ends and what is new: subtrees that vanish are not read.
    ///
    /// # Errors
    /// [`Error::Unsorted`] for a record that is not behind the one before it or is outside the range,
    /// [`Error::TooLong`], or a failed read; nothing is staged then.
    pub fn replace_range(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut Batch,
        range: &KeyRange,
        records: impl Iterator<Item = (Vec<u8>, Value)>,
    ) -> Result<Self> {
        let mut order = Order::default();
        let puts = records.map(|(key, value)| {
            order.check(&key, Some(&value))?;
            if !range.contains(&key) {
                return Err(order.fault());
            }
            Ok((key, Op::Put(value)))
        });
        edit::edit(*self, reads, batch, removal(range).chain(puts))
    }

    /// Copies the records of a range to where `rewrite` says, record by record, over what is there.
    ///
    /// The rewritten keys keep the order of the old ones, as they do when one prefix takes the place of another.
    ///
    /// # Errors
    /// [`Error::Unsorted`] for rewritten keys out of order, [`Error::TooLong`], a failed read, or what `rewrite` fails
    /// with; nothing is staged then.
    pub fn copy_range(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut Batch,
        from: &KeyRange,
        rewrite: impl FnMut(&[u8], &Value) -> Result<(Vec<u8>, Value)>,
    ) -> Result<Self> {
        let edited = {
            let staged = Staged::new(batch, reads);
            let puts = rewritten(self.range(&staged, from.bounds()), rewrite);
            edit::prepare(*self, &staged, puts)?
        };
        edited.stage(batch)
    }

    /// Moves the records of a range to where `rewrite` says: as [`Map::copy_range`], and the old ones are removed.
    /// A record can be moved to within the range.
    ///
    /// # Errors
    /// As [`Map::copy_range`].
    pub fn move_range(
        &self,
        reads: &dyn ReadChunks,
        batch: &mut Batch,
        from: &KeyRange,
        rewrite: impl FnMut(&[u8], &Value) -> Result<(Vec<u8>, Value)>,
    ) -> Result<Self> {
        let edited = {
            let staged = Staged::new(batch, reads);
            let puts = rewritten(self.range(&staged, from.bounds()), rewrite);
            edit::prepare(*self, &staged, with_removal(from, puts))?
        };
        edited.stage(batch)
    }
}

/// The records of a scan under their new keys.
fn rewritten(
    scan: Scan<'_>,
    mut rewrite: impl FnMut(&[u8], &Value) -> Result<(Vec<u8>, Value)>,
) -> impl Iterator<Item = Step> {
    let mut order = Order::default();
    scan.map(move |record| {
        let (key, value) = record?;
        let (key, value) = rewrite(&key, &value)?;
        order.check(&key, Some(&value))?;
        Ok((key, Op::Put(value)))
    })
}

/// The step that removes a range.
fn removal(range: &KeyRange) -> impl Iterator<Item = Step> {
    std::iter::once(Ok((range.start.clone(), Op::RemoveTo(range.end.clone()))))
}

/// Steps in order, and the removal of a range at its place among them.
fn with_removal(range: &KeyRange, steps: impl Iterator<Item = Step>) -> impl Iterator<Item = Step> {
    let mut steps = steps.peekable();
    let mut removal = removal(range).fuse();
    std::iter::from_fn(move || {
        let is_before = |step: &Step| step.as_ref().map_or(true, |(key, _)| *key < range.start);
        steps.next_if(is_before).or_else(|| removal.next()).or_else(|| steps.next())
    })
}

/// Watches that records come in order and within the limits.
#[derive(Default)]
struct Order {
    last: Option<Vec<u8>>,
    seen: u64,
}

impl Order {
    fn check(&mut self, key: &[u8], value: Option<&Value>) -> Result<()> {
        self.seen += 1;
        check_record(key, value.unwrap_or(&Value::default()))?;
        if self.last.as_ref().is_some_and(|last| last.as_slice() >= key) {
            return Err(self.fault());
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(())
    }

    /// The newest record is not at its place.
    fn fault(&self) -> Error {
        Error::Unsorted { position: self.seen.saturating_sub(1) }
    }
}
