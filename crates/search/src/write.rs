//! From documents of the content into a build, on several threads where there are many.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use parking_lot::Mutex;
use tantivy::indexer::UserOperation;
use tantivy::{TantivyDocument, Term};
use tympan_content::{Error as ContentError, Node, NodePath};

use crate::budget::{Budget, Weighed};
use crate::document::{Digest, is_indexed};
use crate::error::{Error, Result, chain};
use crate::folder::Writer;
use crate::status::Counters;

/// Text that waits to be written.
const WAITING_BYTES: usize = 64 << 20;
/// Documents that are handed on together: small ones cost less to index than to hand on one by one.
const TOGETHER: usize = 32;
const BYTES_TOGETHER: usize = 1 << 20;
/// So many times [`TOGETHER`] wait to be read.
const WAITING: usize = 4;

/// One document to write.
pub(crate) enum Source {
    /// A document.
    Node(Node),
    /// There is one here, but its record does not decode.
    Unreadable(NodePath, String),
}

impl Source {
    /// Tells whether the document belongs into the index.
    pub(crate) fn is_indexed(&self) -> bool {
        match self {
            Self::Node(node) => is_indexed(node.path()),
            Self::Unreadable(path, _) => is_indexed(path),
        }
    }

    /// Makes a source of what a snapshot gave.
    ///
    /// # Errors
    /// If the store fails; a damaged record is a source.
    pub(crate) fn of(found: tympan_content::Result<Node>) -> Result<Self> {
        match found {
            Ok(node) => Ok(Self::Node(node)),
            Err(error @ ContentError::Damaged { .. }) => {
                let reason = chain(&error);
                match error {
                    ContentError::Damaged { path, .. } => Ok(Self::Unreadable(path, reason)),
                    error => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What documents are made with, written to, and counted by.
pub(crate) struct Sink<'a> {
    pub(crate) digest: &'a Digest,
    pub(crate) writer: &'a Writer,
    /// Where the writer writes, for errors.
    pub(crate) dir: &'a Path,
    pub(crate) counters: &'a Counters,
    /// Documents read, of a rebuild that tells its progress.
    pub(crate) done: Option<&'a AtomicU64>,
    /// Set by whoever wants it to end early.
    pub(crate) is_cancelled: &'a AtomicBool,
}

/// Documents that are handed on together.
#[derive(Default)]
struct Batch {
    operations: Vec<UserOperation<Weighed>>,
    bytes: usize,
    failed: u64,
}

impl Sink<'_> {
    /// Takes out what the index has of a document.
    pub(crate) fn remove(&self, path: &NodePath) {
        let path = Term::from_field_text(self.digest.fields.path, path.as_str());
        self.writer.delete_term(path);
    }

    /// Writes documents, as many at a time as there are `threads`. It ends early, without an error, when cancelled.
    ///
    /// # Errors
    /// The first error of the content or the index.
    pub(crate) fn write_all(
        &self,
        sources: impl Iterator<Item = Result<Source>>,
        threads: usize,
    ) -> Result<()> {
        let budget = Budget::new(WAITING_BYTES);
        if threads <= 1 {
            let mut batch = Batch::default();
            for source in sources.take_while(|_| !self.is_cancelled()) {
                self.take(&source?, &budget, &mut batch)?;
            }
            return self.hand_on(&mut batch);
        }
        let (sender, receiver) = sync_channel(WAITING);
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..threads).map(|_| scope.spawn(|| self.work(&receiver, &budget))).collect();
            let mut outcome = Ok(());
            let mut together = Vec::with_capacity(TOGETHER);
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
                if together.len() >= TOGETHER {
                    // A worker that failed says so below.
                    drop(sender.send(std::mem::take(&mut together)));
                }
            }
            drop(sender.send(together));
            drop(sender);
            for worker in workers {
                let worked = worker.join();
                let panicked = || Err(Error::Damaged("a thread that indexes panicked".to_owned()));
                outcome = outcome.and(worked.unwrap_or_else(|_| panicked()));
            }
            outcome
        })
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn work(&self, receiver: &Mutex<Receiver<Vec<Source>>>, budget: &Arc<Budget>) -> Result<()> {
        let mut batch = Batch::default();
        let mut outcome = Ok(());
        loop {
            let received = receiver.lock().recv();
            let Ok(sources) = received else { return outcome };
            // After a failure the rest is passed over, so that the sender does not wait.
            if outcome.is_ok() && !self.is_cancelled() {
                let mut sources = sources.iter();
                outcome = sources.try_for_each(|source| self.take(source, budget, &mut batch));
                outcome = outcome.and_then(|()| self.hand_on(&mut batch));
            }
        }
    }

    /// Makes a document and adds it to those that are handed on together.
    fn take(&self, source: &Source, budget: &Arc<Budget>, batch: &mut Batch) -> Result<()> {
        let (document, is_failed) = match source {
            Source::Node(node) => self.digested(node)?,
            Source::Unreadable(path, reason) => (self.digest.unreadable(path, reason), true),
        };
        let bytes = document.len().saturating_mul(64) + text_bytes(&document);
        // What is held while waiting for more would keep others waiting.
        if batch.operations.len() >= TOGETHER || batch.bytes + bytes > BYTES_TOGETHER {
            self.hand_on(batch)?;
        }
        let share = budget.take(bytes);
        batch.operations.push(UserOperation::Add(Weighed { document, _share: share }));
        batch.bytes += bytes;
        batch.failed += u64::from(is_failed);
        Ok(())
    }

    fn hand_on(&self, batch: &mut Batch) -> Result<()> {
        let Batch { operations, failed, .. } = std::mem::take(batch);
        let count = operations.len() as u64;
        let added = self.writer.run(operations);
        added.map_err(|error| Error::of_index("write", self.dir, error))?;
        self.counters.indexed.fetch_add(count, Ordering::Relaxed);
        self.counters.failed.fetch_add(failed, Ordering::Relaxed);
        if let Some(done) = self.done {
            done.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes a document; one that no code was ready for is noted as failed and stops nothing.
    fn digested(&self, node: &Node) -> Result<(TantivyDocument, bool)> {
        let digested = catch_unwind(AssertUnwindSafe(|| self.digest.document(node)));
        digested.unwrap_or_else(|_| {
            tracing::error!(path = %node.path(), "document cannot be indexed: the program panicked");
            Ok((self.digest.unreadable(node.path(), "reading it made the program panic"), true))
        })
    }
}

/// Returns about how many bytes of text a document holds.
fn text_bytes(document: &TantivyDocument) -> usize {
    use tantivy::schema::Value;
    document.field_values().filter_map(|(_, value)| value.as_str().map(str::len)).sum()
}
