//! A limit on the memory of text waiting to be indexed, because documents are built faster than they are written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tantivy::TantivyDocument;
use tantivy::schema::Document;

/// The maximum time that a document waits for others to be written.
const BUDGET_WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A budget of bytes.
#[derive(Debug)]
pub(crate) struct IndexMemoryBudget {
    available_bytes: Mutex<usize>,
    bytes_freed: Condvar,
    total_bytes: usize,
}

impl IndexMemoryBudget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            available_bytes: Mutex::new(bytes),
            bytes_freed: Condvar::new(),
            total_bytes: bytes,
        })
    }

    /// Waits until the given number of bytes is available. More than the whole budget is granted when nothing else is
    /// in use.
    ///
    /// A failed writer frees nothing. Therefore the share is granted beyond the budget after [`BUDGET_WAIT_TIMEOUT`],
    /// and the writer returns its error.
    pub(crate) fn acquire(self: &Arc<Self>, bytes: usize) -> BudgetShare {
        let bytes = bytes.min(self.total_bytes);
        let mut left = self.available_bytes.lock();
        let deadline = Instant::now() + BUDGET_WAIT_TIMEOUT;
        while *left < bytes && !self.bytes_freed.wait_until(&mut left, deadline).timed_out() {}
        let bytes = bytes.min(*left);
        *left -= bytes;
        BudgetShare { budget: self.clone(), bytes }
    }
}

/// A part of a budget, released when it is dropped.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<IndexMemoryBudget>,
    bytes: usize,
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        *self.budget.available_bytes.lock() += self.bytes;
        self.budget.bytes_freed.notify_all();
    }
}

/// A document that holds its share of the budget until the writer has consumed it.
pub(crate) struct BudgetedDocument {
    pub(crate) document: TantivyDocument,
    /// Released when the writer drops the document.
    pub(crate) _share: BudgetShare,
}

impl Document for BudgetedDocument {
    type Value<'a> = <TantivyDocument as Document>::Value<'a>;
    type FieldsValuesIter<'a> = <TantivyDocument as Document>::FieldsValuesIter<'a>;

    fn iter_fields_and_values(&self) -> Self::FieldsValuesIter<'_> {
        self.document.iter_fields_and_values()
    }

    fn into_tantivy_document(self) -> TantivyDocument {
        self.document
    }
}
