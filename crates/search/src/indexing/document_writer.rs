//! Writing documents of the content to a build; many documents are written by several threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use parking_lot::Mutex;
use tantivy::indexer::UserOperation;
use tantivy::{TantivyDocument, Term};
use tympan_content::{Error as ContentError, Node, NodePath};
use tympan_notation::error_chain_text;

use crate::error::{Error, Result};
use crate::indexing::index_document::{IndexDocumentBuilder, is_indexed};
use crate::indexing::index_folder::SearchIndexWriter;
use crate::indexing::index_status::SearchIndexCounters;
use crate::indexing::memory_budget::{BudgetedDocument, IndexMemoryBudget};

/// The maximum size of the text waiting to be written, in bytes.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// The number of documents per batch: small documents cost less to index than to pass on one by one.
const BATCH_DOCUMENTS: usize = 32;
const BATCH_BYTES: usize = 1 << 20;
/// The maximum number of waiting batches of [`BATCH_DOCUMENTS`] documents.
const MAX_QUEUED_BATCHES: usize = 4;

/// A document to write.
pub(crate) enum DocumentSource {
    /// A document.
    Node(Node),
    /// A document whose record cannot be decoded, with the reason.
    Unreadable(NodePath, String),
}

impl DocumentSource {
    /// Returns true if the document belongs in the index.
    pub(crate) fn is_indexed(&self) -> bool {
        match self {
            Self::Node(node) => is_indexed(node.path()),
            Self::Unreadable(path, _) => is_indexed(path),
        }
    }

    /// Creates a source from the result of a snapshot.
    ///
    /// # Errors
    /// If the store fails; a damaged record is not an error but an unreadable source.
    pub(crate) fn from_snapshot(result: tympan_content::Result<Node>) -> Result<Self> {
        match result {
            Ok(node) => Ok(Self::Node(node)),
            Err(error @ ContentError::Damaged { .. }) => {
                let reason = error_chain_text(&error);
                match error {
                    ContentError::Damaged { path, .. } => Ok(Self::Unreadable(path, reason)),
                    error => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Builds documents and writes them to an index.
pub(crate) struct IndexDocumentWriter<'a> {
    pub(crate) document_builder: &'a IndexDocumentBuilder,
    pub(crate) writer: &'a SearchIndexWriter,
    /// The folder of the index, for error messages.
    pub(crate) dir: &'a Path,
    pub(crate) counters: &'a SearchIndexCounters,
    /// The number of documents read, for a rebuild that reports its progress.
    pub(crate) done_documents: Option<&'a AtomicU64>,
    /// Set to stop early.
    pub(crate) is_cancelled: &'a AtomicBool,
}

/// A batch of documents.
#[derive(Default)]
struct IndexWriteBatch {
    operations: Vec<UserOperation<BudgetedDocument>>,
    bytes: usize,
    failed_documents: u64,
}

impl IndexDocumentWriter<'_> {
    /// Removes a document from the index.
    pub(crate) fn remove_document(&self, path: &NodePath) {
        let path = Term::from_field_text(self.document_builder.fields.path, path.as_str());
        self.writer.delete_term(path);
    }

    /// Writes documents with up to `threads` threads. It stops early, without an error, when cancelled.
    ///
    /// # Errors
    /// The first error of the content or the index.
    pub(crate) fn write_all(
        &self,
        sources: impl Iterator<Item = Result<DocumentSource>>,
        threads: usize,
    ) -> Result<()> {
        let budget = IndexMemoryBudget::new(MAX_QUEUED_BYTES);
        if threads <= 1 {
            let mut batch = IndexWriteBatch::default();
            for source in sources.take_while(|_| !self.is_cancelled()) {
                self.add_to_batch(&source?, &budget, &mut batch)?;
            }
            return self.flush_batch(&mut batch);
        }
        let (sender, receiver) = sync_channel(MAX_QUEUED_BATCHES);
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| self.write_received(&receiver, &budget)))
                .collect();
            let mut outcome = Ok(());
            let mut together = Vec::with_capacity(BATCH_DOCUMENTS);
            for source in sources {
                let is_over = workers.iter().any(|worker| worker.is_finished());
                if is_over || self.is_cancelled() {
                    break;
                }
                match source {
                    Ok(source) => together.push(source),
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
                if together.len() >= BATCH_DOCUMENTS {
                    // If a worker has failed, its error is returned below.
                    drop(sender.send(std::mem::take(&mut together)));
                }
            }
            drop(sender.send(together));
            drop(sender);
            for worker in workers {
                let worked = worker.join();
                let panicked = || Err(Error::Damaged("an indexing thread panicked".to_owned()));
                outcome = outcome.and(worked.unwrap_or_else(|_| panicked()));
            }
            outcome
        })
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn write_received(
        &self,
        receiver: &Mutex<Receiver<Vec<DocumentSource>>>,
        budget: &Arc<IndexMemoryBudget>,
    ) -> Result<()> {
        let mut batch = IndexWriteBatch::default();
        let mut outcome = Ok(());
        loop {
            let received = receiver.lock().recv();
            let Ok(sources) = received else { return outcome };
            // After a failure, the remaining documents are drained, so that the sender does not block.
            if outcome.is_ok() && !self.is_cancelled() {
                let mut sources = sources.iter();
                outcome =
                    sources.try_for_each(|source| self.add_to_batch(source, budget, &mut batch));
                outcome = outcome.and_then(|()| self.flush_batch(&mut batch));
            }
        }
    }

    /// Builds a document and adds it to the batch.
    fn add_to_batch(
        &self,
        source: &DocumentSource,
        budget: &Arc<IndexMemoryBudget>,
        batch: &mut IndexWriteBatch,
    ) -> Result<()> {
        let (document, is_failed) = match source {
            DocumentSource::Node(node) => self.build_or_record_failure(node)?,
            DocumentSource::Unreadable(path, reason) => {
                (self.document_builder.build_unreadable(path, reason), true)
            }
        };
        let bytes = document.len().saturating_mul(64) + text_bytes(&document);
        // A batch that held its memory while waiting for more documents would block other workers.
        if batch.operations.len() >= BATCH_DOCUMENTS || batch.bytes + bytes > BATCH_BYTES {
            self.flush_batch(batch)?;
        }
        let share = budget.acquire(bytes);
        batch.operations.push(UserOperation::Add(BudgetedDocument { document, _share: share }));
        batch.bytes += bytes;
        batch.failed_documents += u64::from(is_failed);
        Ok(())
    }

    fn flush_batch(&self, batch: &mut IndexWriteBatch) -> Result<()> {
        let IndexWriteBatch { operations, failed_documents, .. } = std::mem::take(batch);
        let count = operations.len() as u64;
        let added = self.writer.run(operations);
        added.map_err(|error| Error::index_access("write", self.dir, error))?;
        self.counters.indexed_documents.fetch_add(count, Ordering::Relaxed);
        self.counters.failed_documents.fetch_add(failed_documents, Ordering::Relaxed);
        if let Some(done) = self.done_documents {
            done.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Builds a document. If that panics, the document is recorded as failed, and indexing continues.
    fn build_or_record_failure(&self, node: &Node) -> Result<(TantivyDocument, bool)> {
        let digested =
            catch_unwind(AssertUnwindSafe(|| self.document_builder.build_document(node)));
        digested.unwrap_or_else(|_| {
            tracing::error!(path = %node.path(), "indexing a document panicked");
            Ok((
                self.document_builder.build_unreadable(node.path(), "reading it caused a panic"),
                true,
            ))
        })
    }
}

/// Returns the approximate size of a document's text, in bytes.
fn text_bytes(document: &TantivyDocument) -> usize {
    use tantivy::schema::Value;
    document.field_values().filter_map(|(_, value)| value.as_str().map(str::len)).sum()
}
