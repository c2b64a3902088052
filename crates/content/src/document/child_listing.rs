//! Lists children starting after a name: pages of folders of any size, each at a cost proportional to the page.
//!
//! Not here: pages by position (`Node::listed_page`). Orders without a sorted key read every header.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use bytes::Bytes;

use crate::document::boundary::has_ordered_children;
use crate::model::order_key::OrderKey;
use crate::snapshot::RangeRecord;
use crate::{Error, Node, Result, document::record_key};

/// The order of a listing without a sorted key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListingSort {
    /// By title, then by name; children without a title by their name.
    Title,
    /// By the time of the last change, oldest first, then by name.
    Modified,
}

/// A position in a listing: after the child with this sort value and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortPosition {
    /// The title in lower case, the time, or the order key of the child.
    pub sort_value: Vec<u8>,
    /// The child's name.
    pub name: String,
}

/// A child with its sort position; compared by that position.
struct SortedChild {
    position: SortPosition,
    is_reversed: bool,
    node: Node,
}

impl Node {
    /// Returns the position of a child in its parent's order of children.
    #[must_use]
    pub fn order_position(&self) -> SortPosition {
        SortPosition {
            sort_value: self.record().order_key.0.to_vec(),
            name: self.name().to_owned(),
        }
    }

    /// Returns at most `limit` children with records of their own, in order, after a position. Reads only these
    /// children.
    ///
    /// # Errors
    /// If the store fails.
    pub fn children_after(&self, after: Option<&SortPosition>, limit: usize) -> Result<Vec<Self>> {
        let view = &self.snapshot().view;
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        let siblings = match has_ordered_children(self.primary_type()) {
            true => view.ordered_siblings(self.path())?,
            false => None,
        };
        let Some(siblings) = siblings else {
            return self.children_by_name(after.map(|after| after.name.as_str()), limit);
        };
        let entry = after.map(|after| self.order_map_entry(after)).transpose()?;
        let missing = || Error::Damaged {
            path: self.path().clone(),
            reason: "its map of order keys lists a child that does not exist",
        };
        let child = |entry: Result<Vec<u8>>| {
            let key = siblings.entry_record_key(&entry?)?;
            let record = view.find_record(&key)?.ok_or_else(missing)?;
            Ok(self.node_from_record(
                self.path().child_unchecked(record_key::record_name(&key)?),
                record,
            ))
        };
        let children = siblings.entries_after(entry.as_deref()).map(child);
        children.filter(is_visible_or_error).take(limit).collect()
    }

    /// Returns the entry of a position in the map of order keys.
    fn order_map_entry(&self, position: &SortPosition) -> Result<Vec<u8>> {
        let range = record_key::child_key_range(self.path())?;
        let record = [&range.start, position.name.as_bytes()].concat();
        Ok(record_key::order_map_key(&record, &OrderKey(position.sort_value.clone().into())))
    }

    /// Returns at most `limit` children with records of their own, sorted by name, after a name. Reads only these
    /// children.
    ///
    /// # Errors
    /// If the store fails.
    pub fn children_by_name(&self, after: Option<&str>, limit: usize) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        let mut range = record_key::child_key_range(self.path())?;
        if let Some(after) = after {
            range.start.extend_from_slice(after.as_bytes());
            // No name contains this byte, so the range begins at the next name.
            range.start.push(0);
        }
        let view = &self.snapshot().view;
        let child = |entry: Result<(Bytes, RangeRecord<'_>)>| {
            let (key, record) = entry?;
            let path = self.path().child_unchecked(record_key::record_name(&key)?);
            Ok(self.node_from_record(path, record.into_record(&key)?))
        };
        view.range_records(&range).map(child).filter(is_visible_or_error).take(limit).collect()
    }

    /// Returns the position of a child in a listing.
    #[must_use]
    pub fn sort_position(&self, sorting: ListingSort) -> SortPosition {
        let summary = self.summary();
        let value = match sorting {
            ListingSort::Title => {
                let title = summary.and_then(|summary| summary.title());
                title.unwrap_or(self.name()).to_lowercase()
            }
            // Every time has the same number of digits, so that texts sort as times do; times before 1970 count as
            // unknown.
            ListingSort::Modified => {
                let modified = summary.and_then(|summary| summary.last_modified());
                format!("{:020}", modified.map_or(0, |date| date.millis.max(0)))
            }
        };
        SortPosition { sort_value: value.into_bytes(), name: self.name().to_owned() }
    }

    /// Returns at most `limit` children with records of their own, sorted, after a position. Reads the headers of all
    /// children, but no bodies. Memory use is proportional to the page.
    ///
    /// # Errors
    /// If the store fails.
    pub fn children_sorted(
        &self,
        sorting: ListingSort,
        is_reversed: bool,
        after: Option<&SortPosition>,
        limit: usize,
    ) -> Result<Vec<Self>> {
        let mut best: BinaryHeap<SortedChild> = BinaryHeap::new();
        let mut behind: Option<String> = None;
        loop {
            let page = self.children_by_name(behind.as_deref(), 1000)?;
            let Some(last) = page.last() else { break };
            behind = Some(last.name().to_owned());
            for node in page {
                let position = node.sort_position(sorting);
                let is_behind = after.is_none_or(|after| {
                    let order = position.cmp(after);
                    order == if is_reversed { Ordering::Less } else { Ordering::Greater }
                });
                if is_behind {
                    best.push(SortedChild { position, is_reversed, node });
                }
                if best.len() > limit {
                    best.pop();
                }
            }
        }
        Ok(best.into_sorted_vec().into_iter().map(|placed| placed.node).collect())
    }
}

/// Returns true for a visible child and for any error.
fn is_visible_or_error(child: &Result<Node>) -> bool {
    child.as_ref().ok().is_none_or(Node::is_visible)
}

impl Ord for SortedChild {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.position.cmp(&other.position);
        if self.is_reversed { order.reverse() } else { order }
    }
}

impl PartialOrd for SortedChild {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SortedChild {
    fn eq(&self, other: &Self) -> bool {
        self.position == other.position
    }
}

impl Eq for SortedChild {}
