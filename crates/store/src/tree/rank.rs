//! Access to records by number: the counts in interior chunks lead to them, with one chunk read per level.

use std::ops::Bound;

use bytes::Bytes;

use super::node::TreeNode;
use super::sorted_map::SortedMap;
use crate::chunk::MapValue;
use crate::error::Result;
use crate::interface::chunk_reader::ReadChunks;
use crate::key::KeyRange;

impl SortedMap {
    /// Returns the number of records, from the counts in the root chunk.
    ///
    /// # Errors
    /// A failed read.
    pub fn count_records(&self, reads: &dyn ReadChunks) -> Result<u64> {
        let Some(id) = self.root() else {
            return Ok(0);
        };
        let chunk = reads.read_chunk(&id)?;
        Ok(TreeNode::from_chunk(&chunk, &id, None)?.record_count())
    }

    /// Returns the number of records below `key`, which is the rank of `key` in the map, from 0.
    ///
    /// # Errors
    /// A failed read.
    pub fn rank(&self, reads: &dyn ReadChunks, key: &[u8]) -> Result<u64> {
        let Some(mut id) = self.root() else {
            return Ok(0);
        };
        let (mut below, mut parent) = (0_u64, None);
        loop {
            let chunk = reads.read_chunk(&id)?;
            match TreeNode::from_chunk(&chunk, &id, parent)? {
                TreeNode::Leaf(leaf) => {
                    let position = leaf.find_key(key).unwrap_or_else(|index| index);
                    return Ok(below.saturating_add(position as u64));
                }
                TreeNode::Interior(interior) => {
                    let index = interior.find_child(key);
                    below = below.saturating_add(interior.records_before(index));
                    (id, parent) = (interior.child(index), Some(interior.level()));
                }
            }
        }
    }

    /// Returns the record at an index of the map, from 0; `None` after the last one.
    ///
    /// # Errors
    /// A failed read.
    pub fn nth(&self, reads: &dyn ReadChunks, index: u64) -> Result<Option<(Bytes, MapValue)>> {
        self.range(reads, (Bound::Unbounded, Bound::Unbounded))
            .skip_records(index)
            .next()
            .transpose()
    }

    /// Returns the number of records in a range, computed from two paths.
    ///
    /// # Errors
    /// A failed read.
    pub fn count_records_in(&self, reads: &dyn ReadChunks, range: &KeyRange) -> Result<u64> {
        let end = match &range.end {
            Some(end) => self.rank(reads, end)?,
            None => self.count_records(reads)?,
        };
        Ok(end.saturating_sub(self.rank(reads, &range.start)?))
    }
}
