//! A bound on the text that waits to be indexed: documents are made faster than they are written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tantivy::TantivyDocument;
use tantivy::schema::Document;

/// The longest that a document waits for others to be written.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Bytes that may be taken.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Mutex<usize>,
    freed: Condvar,
    total: usize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(bytes), freed: Condvar::new(), total: bytes })
    }

    /// Waits until there is room for so many bytes. More than the whole budget is granted when nothing else is taken.
    ///
    /// A writer that has failed frees nothing: after [`MAX_WAIT`] the share is granted beyond the budget, and the
    /// writer says what happened.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Share {
        let bytes = bytes.min(self.total);
        let mut left = self.left.lock();
        let deadline = Instant::now() + MAX_WAIT;
        while *left < bytes && !self.freed.wait_until(&mut left, deadline).timed_out() {}
        let bytes = bytes.min(*left);
        *left -= bytes;
        Share { budget: self.clone(), bytes }
    }
}

/// A part of a budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        *self.budget.left.lock() += self.bytes;
        self.budget.freed.notify_all();
    }
}

/// A document that holds its share of the budget until the writer has taken it.
pub(crate) struct Weighed {
    pub(crate) document: TantivyDocument,
    /// Given back when the writer drops the document.
    pub(crate) _share: Share,
}

impl Document for Weighed {
    type Value<'a> = <TantivyDocument as Document>::Value<'a>;
    type FieldsValuesIter<'a> = <TantivyDocument as Document>::FieldsValuesIter<'a>;

    fn iter_fields_and_values(&self) -> Self::FieldsValuesIter<'_> {
        self.document.iter_fields_and_values()
    }

    fn into_tantivy_document(self) -> TantivyDocument {
        self.document
    }
}
