//! Sorting of rows by the order that a query specifies.
//!
//! Memory holds as many rows as are wanted, or all rows if that number is not known, up to the limit.

use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;

use tympan_content::{Node, NodePath};

use crate::node_source::QueryContext;
use crate::query_plan::{MatchedRow, MatchedRowIterator};
use crate::{Error, Result};

/// The key by which rows are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowSortKey {
    pub(crate) sort_keys: Vec<Option<Vec<u8>>>,
    pub(crate) descending: Vec<bool>,
    pub(crate) paths: Vec<Option<NodePath>>,
}

impl RowSortKey {
    pub(crate) fn new(row: &MatchedRow, descending: &[bool]) -> Self {
        Self {
            sort_keys: row.sort_keys.clone(),
            descending: descending.to_vec(),
            paths: row.paths(),
        }
    }
}

impl Ord for RowSortKey {
    fn cmp(&self, other: &Self) -> Order {
        let keys = self.sort_keys.iter().zip(&other.sort_keys).zip(&self.descending);
        for ((left, right), descending) in keys {
            let order = left.cmp(right);
            let order = if *descending { order.reverse() } else { order };
            if order.is_ne() {
                return order;
            }
        }
        self.paths.cmp(&other.paths)
    }
}

impl PartialOrd for RowSortKey {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

/// A row in a heap; the last one in the wanted order is on top.
struct SortHeapEntry(RowSortKey, MatchedRow);

impl PartialEq for SortHeapEntry {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for SortHeapEntry {}

impl PartialOrd for SortHeapEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl Ord for SortHeapEntry {
    fn cmp(&self, other: &Self) -> Order {
        self.0.cmp(&other.0)
    }
}

/// Sorts rows. If only some are wanted, no more than these are kept in memory.
pub(crate) fn sort_rows(
    context: &QueryContext<'_>,
    rows: MatchedRowIterator<'_>,
    behind: Option<&RowSortKey>,
    descending: &[bool],
    limit: Option<u64>,
) -> Result<Vec<MatchedRow>> {
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let mut heap: BinaryHeap<SortHeapEntry> = BinaryHeap::new();
    for row in rows {
        let mut row = row?;
        let ranked = RowSortKey::new(&row, descending);
        if behind.is_some_and(|behind| ranked <= *behind) {
            continue;
        }
        if heap.len() >= limit {
            if heap.peek().is_some_and(|last| ranked >= last.0) {
                continue;
            }
            heap.pop();
        }
        // Many rows are held although few are used; without their bodies, only paths and headers stay in memory.
        row.nodes.iter_mut().flatten().for_each(Node::release_body);
        heap.push(SortHeapEntry(ranked, row));
        check_memory(context, heap.len())?;
    }
    Ok(heap.into_sorted_vec().into_iter().map(|heaped| heaped.1).collect())
}

/// Fails if holding this many rows exceeds the limits.
pub(crate) fn check_memory(context: &QueryContext<'_>, rows: usize) -> Result<()> {
    let limit = context.limits.max_rows_in_memory;
    if rows > limit {
        return Err(Error::QueryLimit {
            limit: format!(
                "it has to sort more than {limit} rows (`query.max_rows_in_memory`); add a limit, or an index \
                 for its order"
            ),
        });
    }
    Ok(())
}
