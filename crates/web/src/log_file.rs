//! A log file written by its own thread, so that no request waits for a disk.
//!
//! In: lines as values; they are turned into text on the writer's thread. Out: an append-only text file.
//!
//! Invariants
//! * [`LogFile::write`] never blocks: when the queue is full the line is dropped and counted.
//! * Lines of one sender keep their order. Text is on its way to the kernel at most one second after `write`.
//!
//! On failure: a line that cannot be written (full disk) is dropped and counted; the next one is tried again.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, Result};

/// Lines that wait for the writer at most.
const QUEUE: usize = 16 * 1024;
const BUFFER_BYTES: usize = 64 * 1024;
const FLUSH_AFTER: Duration = Duration::from_secs(1);

enum Order<L> {
    Line(L),
    Reopen,
    Sync(SyncSender<()>),
}

/// The sending side; clones share the writer, which ends with the last of them.
#[derive(Debug)]
pub struct LogFile<L> {
    shared: Arc<Shared<L>>,
}

impl<L> Clone for LogFile<L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<L> {
    // `None` only while dropping, as the writer ends when its queue closes.
    orders: Option<SyncSender<Order<L>>>,
    writer: Option<JoinHandle<()>>,
    dropped: Arc<AtomicU64>,
}

impl<L> Drop for Shared<L> {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(writer) = self.writer.take() {
            // The writer's own panic has been reported by then, and dropping cannot fail.
            drop(writer.join());
        }
    }
}

impl<L: Display + Send + 'static> LogFile<L> {
    /// Opens `file` for appending and starts its writer.
    ///
    /// # Errors
    /// [`Error::LogFile`] when the file cannot be opened or no thread started.
    pub fn open(file: &Path) -> Result<Self> {
        let failed = |source| Error::LogFile { file: file.to_owned(), source };
        let opened = open_for_append(file).map_err(failed)?;
        let (orders, queue) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            path: file.to_owned(),
            file: BufWriter::with_capacity(BUFFER_BYTES, opened),
            dropped: Arc::clone(&dropped),
        };
        let writer = std::thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || writer.run(&queue))
            .map_err(failed)?;
        Ok(Self {
            shared: Arc::new(Shared { orders: Some(orders), writer: Some(writer), dropped }),
        })
    }

    /// Queues `line`, or drops it if the queue is full.
    pub fn write(&self, line: L) {
        let is_queued = self
            .shared
            .orders
            .as_ref()
            .is_some_and(|orders| orders.try_send(Order::Line(line)).is_ok());
        if !is_queued {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many lines were lost to a full queue or disk.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Opens the path anew after what is queued, for tools that rotate logs by renaming.
    pub fn reopen(&self) {
        self.order(Order::Reopen);
    }

    /// Waits until everything queued before is written to the file.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        self.order(Order::Sync(done));
        // An error means that the writer ended, so nothing is left to wait for.
        wait.recv().ok();
    }

    fn order(&self, order: Order<L>) {
        if let Some(orders) = &self.shared.orders {
            orders.send(order).ok();
        }
    }
}

fn open_for_append(file: &Path) -> std::io::Result<File> {
    File::options().append(true).create(true).open(file)
}

struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    fn run<L: Display>(mut self, queue: &Receiver<Order<L>>) {
        let mut has_text = false;
        loop {
            let order = match queue.recv_timeout(FLUSH_AFTER) {
                Ok(order) => order,
                Err(RecvTimeoutError::Timeout) if has_text => {
                    self.try_to(|file| file.flush());
                    has_text = false;
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => match queue.recv() {
                    Ok(order) => order,
                    Err(_closed) => break,
                },
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match order {
                Order::Line(line) => {
                    self.try_to(|file| writeln!(file, "{line}"));
                    has_text = true;
                }
                Order::Reopen => self.reopen(),
                Order::Sync(done) => {
                    self.try_to(|file| file.flush());
                    done.send(()).ok();
                }
            }
        }
        self.try_to(|file| file.flush());
    }

    fn reopen(&mut self) {
        self.try_to(|file| file.flush());
        match open_for_append(&self.path) {
            Ok(file) => self.file = BufWriter::with_capacity(BUFFER_BYTES, file),
            Err(error) => {
                tracing::warn!(file = %self.path.display(), reason = %error, "cannot reopen the log");
            }
        }
    }

    fn try_to(&mut self, action: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) {
        if action(&mut self.file).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
